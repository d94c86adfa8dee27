//! `forkpoint blob scrub`.

use std::fmt::Write;

use serde_json::json;

use crate::blob::{Failure, Mode, Place as Copy};
use crate::error::Result;
use crate::store::Stores;

use super::super::{Output, exit};
use super::offline::{Offline, document, recovery_text};

/// Read every copy of every blob, without a server, and say which are damaged; --apply repairs them from the
/// other place.
///
/// Both take the cluster over: a server that still runs is fenced off. `serve --scrub-every` does the same while
/// it serves.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    offline: Offline,
    /// Repair.
    #[arg(long)]
    apply: bool,
}

pub(super) async fn run(args: &Args, stores: &Stores) -> Result<Output> {
    let (server, recovery) = args.offline.own(stores).await?;
    let mode = if args.apply {
        Mode::Apply
    } else {
        Mode::DryRun
    };
    let scrubbed = server.scrub(mode).await;
    server.close().await?;
    let report = scrubbed.map_err(Failure::into_error)?;
    let mut text = recovery_text(&recovery);
    let _ = writeln!(
        text,
        "{} copies read, {} bytes",
        report.copies, report.bytes
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
        let _ = writeln!(text, "  {key}: no good copy is left");
    }
    for (key, why) in &report.unknown {
        let _ = writeln!(text, "  {key}: not known: {why}");
    }
    let unrepaired = report.findings.iter().any(|f| !f.repaired);
    let code = match () {
        () if unrepaired || !report.lost.is_empty() => exit::DAMAGED,
        () if !report.unknown.is_empty() => exit::INCOMPLETE,
        () => exit::DONE,
    };
    Ok(Output {
        text,
        json: json!({ "recovery": document(&recovery)?, "scrub": document(&report)? }),
        svg: None,
        code,
    })
}
