//! What `forkpoint ls` prints.

use serde_json::{Value, json};

use crate::ownership::{FamilyTree, MissingEvidence, NeedReason, SnapshotSummary, human_millis};

use super::text::{count, human_bytes, name, table};

/// The list as a document.
pub fn ls_json(tree: &FamilyTree) -> Value {
    let snapshots: Vec<&SnapshotSummary> =
        tree.branches.iter().flat_map(|b| &b.snapshots).collect();
    json!({
        "version": 1,
        "taken_at_unix_ms": tree.taken_at_unix_ms,
        "snapshots": snapshots,
        "missing": tree.missing,
    })
}

/// The list for people, one snapshot a line.
pub fn ls_text(tree: &FamilyTree) -> String {
    let mut rows = vec![
        [
            "JOB",
            "SNAPSHOT",
            "KIND",
            "COMPLETE",
            "AGE",
            "TOTAL",
            "SHARED",
            "EXCLUSIVE",
            "KEPT BY",
        ]
        .map(str::to_string)
        .to_vec(),
    ];
    for branch in &tree.branches {
        rows.extend(branch.snapshots.iter().map(|s| row(tree, s)));
    }
    if rows.len() == 1 {
        let none = match tree.missing.is_empty() {
            true => "no snapshot\n",
            false => "no snapshot was seen, but not all could be\n",
        };
        return format!("{none}{}", missing_text(&tree.missing));
    }
    format!(
        "{}{}",
        table(&rows, &[4, 5, 6, 7]),
        missing_text(&tree.missing)
    )
}

fn row(tree: &FamilyTree, s: &SnapshotSummary) -> Vec<String> {
    vec![
        name(s.snapshot.short_job()),
        name(&s.snapshot.name),
        s.kind.as_str().to_string(),
        match (s.missing_objects, s.outside_objects) {
            (0, 0) => "yes".to_string(),
            (0, n) => format!("{n} not seen"),
            (n, _) => match s.wrong_size_objects {
                0 => format!("no, {n} lost"),
                wrong if wrong == n => format!("no, {wrong} of wrong size"),
                wrong => format!("no, {n} lost, {wrong} of wrong size"),
            },
        },
        age(tree.taken_at_unix_ms, s.modified_unix_ms),
        human_bytes(s.total.bytes),
        human_bytes(s.shared.bytes),
        human_bytes(s.exclusive.bytes),
        kept_by(s),
    ]
}

fn age(now: u64, then: u64) -> String {
    match then {
        0 => "?".to_string(),
        then => human_millis(now.saturating_sub(then)),
    }
}

fn kept_by(s: &SnapshotSummary) -> String {
    let mut by: Vec<String> = s.needs.iter().map(short_need).collect();
    if let Some(plan) = &s.going {
        by.push(format!("being deleted by plan {plan}"));
    }
    match s.used_by.as_slice() {
        [] => {}
        [one] => by.push(one.to_string()),
        [one, two] => by.push(format!("{one}, {two}")),
        [first, .., last] => {
            by.push(format!(
                "{}: {first} to {last}",
                count(s.used_by.len() as u64, "snapshot", "snapshots")
            ));
        }
    }
    match by.is_empty() {
        true => "-".to_string(),
        false => name(by.join("; ")),
    }
}

/// A need in a few words.
fn short_need(need: &NeedReason) -> String {
    match need {
        NeedReason::UsedBy { snapshot, .. } | NeedReason::MeantBy { snapshot, .. } => {
            snapshot.to_string()
        }
        NeedReason::Pinned { name, .. } => format!("pin {name}"),
        NeedReason::ForkedTo { destination, .. } => format!("fork to {destination}"),
        NeedReason::Restoring { job, mode } => format!("job {job} ({mode})"),
    }
}

/// Missing evidence for people, each with the next step; nothing if there is none.
pub(super) fn missing_text(missing: &[MissingEvidence]) -> String {
    let mut text = String::new();
    if !missing.is_empty() {
        text.push_str("\nevidence is missing:\n");
    }
    for one in missing.iter().take(20) {
        text.push_str(&format!(
            "  {}\n    -> {}\n",
            name(one),
            name(one.next_step())
        ));
    }
    if missing.len() > 20 {
        text.push_str(&format!("  and {} more\n", missing.len() - 20));
    }
    text
}
