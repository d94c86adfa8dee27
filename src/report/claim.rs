//! What `forkpoint claim` and `forkpoint pin` print.

use serde_json::{Value, json};

use crate::ownership::{ClaimReport, Pin};
use crate::snapshot::RestoreMode;
use crate::store::{Location, shell_word};

use super::text::{count, human_bytes, name};

/// A claim as a document.
pub fn claim_json(report: &ClaimReport) -> Value {
    json!({
        "version": 1,
        "job": report.job,
        "mode": report.mode,
        "snapshots": report.snapshots,
        "left_behind": report.left_behind,
        "left_behind_freed": report.left_behind_freed,
        "endangered": report.endangered,
    })
}

/// A claim for people.
pub fn claim_text(report: &ClaimReport) -> String {
    let what = match report.mode {
        RestoreMode::Claim => "has taken over",
        RestoreMode::NoClaim => "needs, until a checkpoint of it stands alone,",
        RestoreMode::Legacy => "may forever, until no snapshot of it refers to them, need",
    };
    let mut text = format!("job {} {what}\n", name(&report.job));
    for one in &report.snapshots {
        text.push_str(&format!("  {}\n", name(&one.directory)));
    }
    if !report.left_behind.is_empty() {
        text.push_str(&format!(
            "{} of the old job that nobody has claimed stay forever; together they would free {}, {}:\n",
            count(report.left_behind.len() as u64, "older checkpoint", "older checkpoints"),
            count(report.left_behind_freed.objects, "object", "objects"),
            human_bytes(report.left_behind_freed.bytes),
        ));
        for one in &report.left_behind {
            text.push_str(&format!("  {}\n", name(&one.directory)));
        }
        text.push_str(
            "  the job may delete files that they share with the claimed one: claim them too with --chain\n",
        );
    }
    if !report.endangered.is_empty() {
        text.push_str(&format!(
            "{} of the old job {} files with it, which the new job may delete; whoever needs them makes a fork of them first:\n",
            count(report.endangered.len() as u64, "newer checkpoint", "newer checkpoints"),
            if report.endangered.len() == 1 { "shares" } else { "share" },
        ));
        for one in &report.endangered {
            text.push_str(&format!("  {}\n", name(&one.directory)));
        }
    }
    text
}

/// The pins of a snapshot as a document.
pub fn pins_json(snapshot: &Location, pins: &[Pin]) -> Value {
    json!({ "version": 1, "snapshot": snapshot, "pins": pins })
}

/// What became of a pin that was to be removed, with the pins that are left.
pub fn unpinned_json(mut pins: Value, was_there: bool) -> Value {
    if let Value::Object(document) = &mut pins {
        document.insert("removed".into(), was_there.into());
    }
    pins
}

/// What became of a pin that was to be removed.
pub fn unpinned_text(pin: &str, was_there: bool) -> String {
    match was_there {
        true => format!("pin {} removed\n", name(pin)),
        false => format!(
            "nothing to remove: there is no pin {}; those that are there:\n",
            name(pin)
        ),
    }
}

/// A claim that was taken back, or was not there, as a document; `others` were claimed together with it and stay.
pub fn released_json(
    snapshot: &Location,
    job: &str,
    mode: RestoreMode,
    released: bool,
    others: &[Location],
) -> Value {
    json!({
        "version": 1,
        "snapshot": snapshot,
        "job": job,
        "mode": mode,
        "released": released,
        "still_claimed": others,
    })
}

/// The same for people.
pub fn released_text(
    snapshot: &Location,
    job: &str,
    mode: RestoreMode,
    released: bool,
    others: &[Location],
) -> String {
    let mut text = match released {
        true => format!("released {}\n", name(snapshot)),
        false => format!(
            "nothing to release: no record says that job {} started from {} ({mode})\n",
            name(job),
            name(snapshot)
        ),
    };
    if !others.is_empty() {
        text.push_str(&format!(
            "{} that the job took over together with it with --chain {} claimed; to release one, name it:\n",
            count(others.len() as u64, "older checkpoint", "older checkpoints"),
            if others.len() == 1 { "stays" } else { "stay" },
        ));
    }
    for at in others {
        text.push_str(&format!(
            "  forkpoint claim --release {} --job {}\n",
            name(shell_word(at)),
            name(shell_word(job))
        ));
    }
    text
}

/// The pins of a snapshot for people.
pub fn pins_text(snapshot: &Location, pins: &[Pin], now_unix_ms: u64) -> String {
    let mut text = format!("{}\n", name(snapshot));
    if pins.is_empty() {
        text.push_str("  no pin\n");
    }
    for pin in pins {
        let until = match pin.expires_unix_ms {
            None => String::new(),
            Some(t) if t <= now_unix_ms => {
                format!(", expired {}: counts no more", crate::clock::utc(t))
            }
            Some(t) => format!(", until {}", crate::clock::utc(t)),
        };
        text.push_str(&format!(
            "  {} by {}: {}{until}\n",
            name(&pin.name),
            name(&pin.owner),
            name(&pin.reason)
        ));
    }
    text
}
