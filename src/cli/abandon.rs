//! `forkpoint abandon`.

use crate::error::Result;
use crate::fork::{AbandonOptions, abandon, read_plan};
use crate::report::{abandon_json, abandon_text};
use crate::store::Stores;

use super::ui::Ui;
use super::{Output, exit, interrupt, location};

/// Remove what a fork that will never be finished has left at its destination. End its workers first.
///
/// Removes only objects that are proved to be the fork's, by a receipt or by their content, each by
/// its own name; what is not proved stays (exit 4). A committed fork is refused. While it runs, and
/// after a kill until it is run again, nobody can commit the fork or go on with it. After a run that
/// was killed the next one waits a minute before it frees the place, for what that one may still be
/// removing. What a worker was copying when it was killed the service may bring to its end later: run this
/// again in some minutes, which says so. Without --apply it only says what it would remove.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The plan: a file or a URL. It is not removed.
    plan: String,
    /// Remove, instead of saying what would be removed.
    #[arg(long)]
    apply: bool,
    /// Read files on other services than the snapshot's own too. Not taken from the plan.
    #[arg(long)]
    other_services: bool,
    /// I know that no job was ever started from this fork, and that nobody is committing it. Asked for where
    /// the evidence does not tell whether it was committed and its commit object was removed since, and for what came
    /// after it was given up: then all that is equal to its source goes.
    #[arg(long)]
    never_used: bool,
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let plan = read_plan(stores, &location::parse(&args.plan)?).await?;
    let options = AbandonOptions {
        apply: args.apply,
        other_services: args.other_services,
        never_used: args.never_used,
        ..AbandonOptions::default()
    };
    let report = abandon(stores, &plan, options, ui)
        .await
        .map_err(interrupt::say_how_to_go_on)?;
    Ok(Output {
        text: abandon_text(&report),
        json: abandon_json(&report),
        svg: None,
        code: match report.unproved.is_empty() {
            true => exit::DONE,
            false => exit::INCOMPLETE,
        },
    })
}
