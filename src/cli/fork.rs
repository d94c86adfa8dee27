//! `forkpoint fork`.

use crate::error::Result;
use crate::fork;
use crate::progress::Cancel;
use crate::report::{fork_json, fork_text, plan_json, plan_text};
use crate::store::Stores;

use super::plan::What;
use super::ui::Ui;
use super::{Output, exit, interrupt};

/// Make an independent snapshot from a retained one: duplicate every file it needs, rewrite its
/// references, commit, and prove that nothing refers to the original any more.
///
/// Stopped or killed, the same command goes on where it was.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    what: What,
    /// Print the plan and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Objects under way at once. Left out: 32 on local disk, and on object stores as many as the
    /// store answers well, up to 256.
    #[arg(long, value_name = "N")]
    concurrency: Option<u16>,
}

impl Args {
    /// Objects at once, where the user says how many.
    pub(super) fn objects_at_once(&self) -> Option<usize> {
        self.concurrency.map(|n| usize::from(n.max(1)))
    }
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let mut request = args.what.request()?;
    request.execute.objects_at_once = args.objects_at_once();
    let planned = fork::plan(stores, &request, ui).await?;
    if args.dry_run {
        return Ok(Output {
            text: plan_text(&planned.plan),
            json: plan_json(&planned.plan),
            svg: None,
            code: exit::DONE,
        });
    }
    let cancel = Cancel::default();
    let watch = tokio::spawn(interrupt::stop_on_interrupt(cancel.clone()));
    let result = fork::run(stores, &planned, &request.execute, ui, &cancel).await;
    watch.abort();
    let report = result.map_err(interrupt::say_how_to_go_on)?;
    if let Some(why) = &report.unpinned {
        ui.warn(&format!(
            "the original could not be pinned while it was read, so nothing kept others from deleting it; the fork is \
             whole all the same ({why})"
        ));
    }
    Ok(Output {
        text: fork_text(&report),
        json: fork_json(&report),
        svg: None,
        code: exit::DONE,
    })
}
