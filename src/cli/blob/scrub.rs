//! `forkpoint blob scrub`.

use std::fmt::Write;

use serde_json::json;

use crate::blob::{Failure, Mode, Place as Copy, compare};
use crate::error::Result;
use crate::report::count;
use crate::store::Stores;

use super::super::{Output, exit};
use super::offline::{Offline, document, recovery_text, refused_text};

/// Read and compare every copy of every blob, in the local directory and in the HA store. Changes nothing and
/// disturbs no server, unless --apply is given.
///
/// --apply repairs a damaged copy from the other place. It takes the cluster over as a server does: one that still
/// runs is fenced off and must be started again. `serve --scrub-every` does the same while it serves.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    offline: Offline,
    /// Repair.
    #[arg(long)]
    apply: bool,
}

pub(super) async fn run(args: &Args, stores: &Stores) -> Result<Output> {
    let mut code = exit::DONE;
    let (mut text, mut json, report) = match args.apply {
        false => {
            let found = compare(&args.offline.look(stores)?, &args.offline.data).await?;
            if !found.refused.is_empty() {
                code = exit::INCOMPLETE;
            }
            let text = format!("epoch {}\n{}", found.epoch, refused_text(&found.refused));
            let json = json!({ "epoch": found.epoch, "refused": document(&found.refused)? });
            (text, json, found.scrub)
        }
        true => {
            let (server, recovery) = args.offline.own(stores).await?;
            let scrubbed = server.scrub(Mode::Apply).await;
            server.close().await?;
            if !recovery.refused.is_empty() {
                code = exit::INCOMPLETE;
            }
            let json = json!({ "recovery": document(&recovery)? });
            let report = scrubbed.map_err(Failure::into_error)?;
            (recovery_text(&recovery), json, report)
        }
    };
    let copies = count(report.copies, "copy", "copies");
    let verdict = match report.findings.len() {
        0 => "none damaged or missing".to_string(),
        n => format!("{n} damaged or missing"),
    };
    let _ = writeln!(
        text,
        "{copies} read, {}; {verdict}",
        count(report.bytes, "byte", "bytes")
    );
    for finding in &report.findings {
        let place = match finding.place {
            Copy::Local => "local copy",
            Copy::Ha => "object",
        };
        let done = if finding.repaired { ": repaired" } else { "" };
        let _ = writeln!(
            text,
            "  {}: the {place}: {}{done}",
            finding.key, finding.what
        );
    }
    for key in &report.lost {
        let _ = writeln!(text, "  LOST: {key} has no good copy left");
    }
    for (key, why) in &report.unknown {
        let _ = writeln!(text, "  {key}: not known: {why}");
    }
    let unrepaired = report.findings.iter().any(|f| !f.repaired);
    if unrepaired || !report.lost.is_empty() {
        code = exit::DAMAGED;
    } else if !report.unknown.is_empty() {
        code = exit::INCOMPLETE;
    }
    if unrepaired && !args.apply {
        text.push_str("nothing was repaired: --apply does it, with the server stopped\n");
    }
    json["scrub"] = document(&report)?;
    Ok(Output {
        text,
        json,
        svg: None,
        code,
    })
}
