//! `forkpoint blob gc`.

use serde_json::json;

use crate::blob::{Failure, Mode, SweepDecision, SweepReason, inspect};
use crate::error::Result;
use crate::report::count;
use crate::store::Stores;

use super::super::{Output, exit};
use super::offline::{Offline, document, inspection_code, inspection_text, recovery_text};

/// Remove from the HA store what nothing needs, without a server. A dry run unless --apply is given.
///
/// A server that runs does this by itself. --apply takes the cluster over, so that one that still runs is fenced
/// off; a dry run disturbs nobody.
///
/// What goes: objects of ended jobs, and objects in no manifest that are older than --orphan-min-age. Blobs that
/// nobody holds stay, since a take-over begins their --retention-interval again in full, as the start of a server
/// does. With --retention-interval 0 those go whose time has come by their manifests, and the age of objects in no
/// manifest is 30 minutes unless it is given.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    offline: Offline,
    /// Do it.
    #[arg(long)]
    apply: bool,
}

pub(super) async fn run(args: &Args, stores: &Stores) -> Result<Output> {
    let offline = &args.offline;
    if !args.apply {
        let ha = offline.look(stores)?;
        let found = inspect(&ha, offline.orphan_min_age()).await?;
        let mut text = inspection_text(&found);
        text.push_str("nothing was removed: --apply does it\n");
        return Ok(Output {
            text,
            json: document(&found)?,
            svg: None,
            code: inspection_code(&found),
        });
    }
    let (server, recovery) = offline.own(stores).await?;
    let swept = server.sweep(Mode::Apply).await;
    server.close().await?;
    let report = swept.map_err(Failure::into_error)?;
    let goes = report.decisions.iter().filter(|d| d.reason.goes()).count();
    let waits = |d: &&SweepDecision| matches!(d.reason, SweepReason::KeptUntil { .. });
    let wait = report.decisions.iter().filter(waits).count() as u64;
    let stay = match wait {
        0 => String::new(),
        n => format!(
            "{} stay{} though nobody holds {}: the take-over began the retention interval again; \
             --retention-interval 0 goes by the times in the manifests\n",
            count(n, "blob", "blobs"),
            if n == 1 { "s" } else { "" },
            if n == 1 { "it" } else { "them" },
        ),
    };
    let code = if report.failed > 0 {
        exit::RESUMABLE
    } else {
        exit::DONE
    };
    Ok(Output {
        text: format!(
            "{}{} time; {} removed, {} could not be\n{stay}",
            recovery_text(&recovery),
            count(goes as u64, "blob was past its", "blobs were past their"),
            count(report.removed, "object", "objects"),
            report.failed
        ),
        json: json!({ "recovery": document(&recovery)?, "sweep": document(&report)? }),
        svg: None,
        code,
    })
}
