//! `forkpoint run`.

use crate::error::{Error, Result};
use crate::fork::{RunOptions, Slice, read_plan_for, run_slice};
use crate::progress::Cancel;
use crate::report::{run_json, run_text};
use crate::restore::ExecuteOptions;
use crate::store::Stores;

use super::concurrency::Concurrency;
use super::ui::Ui;
use super::{Output, exit, interrupt, location};

/// Where Kubernetes tells the pods of an Indexed Job which one each is.
const INDEX: &str = "JOB_COMPLETION_INDEX";

/// Do one worker's share of a plan: duplicate its objects and leave receipts.
///
/// It may be run again, at the same time and on other machines: what is there is not copied again.
/// When all workers have ended, `forkpoint commit` makes the fork.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Args {
    /// The plan, as `forkpoint plan --workers N --out PLAN` wrote it: a file or a URL.
    plan: String,
    /// Whose share, from 0 (or --all). Left out, JOB_COMPLETION_INDEX says it, as Kubernetes sets it in the pods of an
    /// Indexed Job.
    #[arg(long, value_name = "I")]
    worker: Option<u32>,
    /// The shares of all workers, as far as they are not done; goes before --worker and JOB_COMPLETION_INDEX.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    pub(super) concurrency: Concurrency,
    /// Read files on other services than the snapshot's own too. Not taken from the plan.
    #[arg(long)]
    other_services: bool,
}

/// Which pod of an Indexed Job this is.
fn index_of_pod() -> Result<u32> {
    let text = std::env::var(INDEX).unwrap_or_default();
    let which =
        "--worker I does that of worker I, counted from 0; --all does what all of them have left";
    match (text.as_str(), text.parse()) {
        (_, Ok(index)) => Ok(index),
        ("", _) => Err(Error::invalid("whose share of the plan?").hint(which)),
        _ => Err(Error::invalid(format!("{INDEX} is `{text}`, which is no number")).hint(which)),
    }
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let plan_at = location::parse(&args.plan)?;
    let slice = match (args.all, args.worker) {
        (true, _) => Slice::All,
        (false, Some(worker)) => Slice::Worker(worker),
        (false, None) => Slice::Worker(index_of_pod()?),
    };
    let plan = read_plan_for(stores, &plan_at, slice).await?;
    let options = RunOptions {
        execute: ExecuteOptions {
            objects_at_once: args.concurrency.objects_at_once(),
        },
        other_services: args.other_services,
        plan_at: Some(plan_at),
    };
    let cancel = Cancel::default();
    let watch = tokio::spawn(interrupt::stop_on_interrupt(cancel.clone()));
    let result = run_slice(stores, &plan, slice, &options, ui, &cancel).await;
    watch.abort();
    let report = result.map_err(interrupt::say_how_to_go_on)?;
    if let Some(why) = &report.unpinned {
        ui.warn(&format!(
            "the original could not be pinned, so nothing keeps others from deleting it until the fork is committed ({why})"
        ));
    }
    Ok(Output {
        text: run_text(&report),
        json: run_json(&report),
        svg: None,
        code: exit::DONE,
    })
}
