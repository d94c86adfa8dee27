//! `forkpoint fork`.

use clap::ValueEnum;

use crate::error::{Error, Result};
use crate::fork::{self, ForkReport, PlannedFork};
use crate::progress::Cancel;
use crate::report::{REPAIR, fork_json, fork_text};
use crate::snapshot::CommitObject;
use crate::store::Stores;
use crate::verify::{ReadSnapshot, verify_against};

use super::concurrency::Concurrency;
use super::plan::What;
use super::ui::Ui;
use super::{Output, exit, interrupt, plan};

/// Make an independent snapshot from a retained one: duplicate every file it needs, rewrite its
/// references, commit, and prove that nothing refers to the original any more.
///
/// Stopped or killed, the same command goes on where it was. What an earlier run has finished is looked at again by size
/// alone: --verify content reads every object, and compares it with the one that it was copied from.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    what: What,
    /// Print the plan, and what is done of it already, and write nothing. Fails where the fork would be refused.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    pub(super) concurrency: Concurrency,
    /// How sure to be of the objects of the fork, those that were already there among them.
    #[arg(long, value_enum, default_value_t = Sure::Size, conflicts_with = "dry_run")]
    verify: Sure,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sure {
    /// Every object is there with its size.
    Size,
    /// And every byte is as in the original: reads both. Exit code 5 if not.
    Content,
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let mut request = args.what.request()?;
    request.execute.objects_at_once = args.concurrency.objects_at_once();
    let planned = fork::plan(stores, &request, ui).await?;
    if args.dry_run {
        return plan::shown(&planned, stores, ui).await;
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
    let compared = args.verify == Sure::Content;
    if compared {
        compare(stores, &planned, &report, ui).await?;
    }
    Ok(Output::of(
        ui.format(),
        exit::DONE,
        || fork_text(&report, compared),
        || fork_json(&report, compared),
    ))
}

/// Compares every byte of the fork with what it was made from.
///
/// # Errors
///
/// `Corrupt` with the objects that differ.
async fn compare(
    stores: &Stores,
    planned: &PlannedFork,
    report: &ForkReport,
    ui: &Ui,
) -> Result<()> {
    let copy = ReadSnapshot::plain(CommitObject::read(stores, &report.snapshot).await?)?;
    let original = planned.read_source(stores).await?;
    let found = verify_against(stores, &copy, &original, ui).await?;
    let Some(first) = found.problems.first() else {
        return Ok(());
    };
    let more = match found.problems.len() - 1 {
        0 => String::new(),
        n => format!("; and {n} more"),
    };
    Err(Error::corrupt(format!(
        "the fork is not as the original: {}: {}{more}",
        first.location, first.problem
    ))
    .during("compare")
    .at(&report.snapshot)
    .hint(format!(
        "{REPAIR}; `forkpoint verify --against` lists all of them"
    )))
}
