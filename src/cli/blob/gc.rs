//! `forkpoint blob gc`.

use serde_json::json;

use crate::blob::{Failure, Mode, inspect};
use crate::error::Result;
use crate::store::Stores;

use super::super::{Output, exit};
use super::offline::{Offline, document, inspection_code, inspection_text, recovery_text};

/// Remove from the HA store what nothing needs, without a server. A dry run unless --apply is given.
///
/// A server that runs does this by itself. --apply takes the cluster over, so that one that still runs is fenced
/// off; a dry run disturbs nobody.
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
        let ha = offline.ha(stores)?;
        let age = offline.orphan_min_age.unwrap_or(offline.retention_interval);
        let found = inspect(&ha, age).await?;
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
    let code = if report.failed > 0 {
        exit::RESUMABLE
    } else {
        exit::DONE
    };
    Ok(Output {
        text: format!(
            "{}{goes} blobs were past their time; {} objects removed, {} could not be\n",
            recovery_text(&recovery),
            report.removed,
            report.failed
        ),
        json: json!({ "recovery": document(&recovery)?, "sweep": document(&report)? }),
        svg: None,
        code,
    })
}
