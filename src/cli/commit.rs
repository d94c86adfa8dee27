//! `forkpoint commit`.

use clap::ValueEnum;

use crate::error::Result;
use crate::fork::{CommitOptions, CommitOutcome, Copier, Trust, commit, read_plan, write_plan};
use crate::report::{commit_json, commit_text, left_json, left_text};
use crate::store::Stores;

use super::ui::Ui;
use super::{Output, exit, interrupt, location};

/// Finish a fork whose workers have ended: check that everything is there, write the commit object,
/// prove that nothing refers to the original any more.
///
/// What is there is proved by the receipts of the workers, or else by comparing contents. If objects
/// are missing nothing is committed, and they are listed by worker (exit 6). May be run again.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The plan: a file or a URL. Any plan of the fork will do, that of --redistribute too.
    plan: String,
    /// If objects are missing, plan them for N other workers. Needs --out.
    #[arg(long, value_name = "N", requires = "out", value_parser = clap::value_parser!(u32).range(1..=65536))]
    redistribute: Option<u32>,
    /// Where to write that plan: a file or a URL.
    #[arg(long, value_name = "PLAN2", requires = "redistribute")]
    out: Option<String>,
    /// Who copied the objects that have no receipt. Their size will do then, and their checksum
    /// where both services tell one; the answer says what was proved by what.
    #[arg(long, value_enum)]
    copied_by: Option<By>,
    /// With --copied-by: how sure to be of objects without a receipt.
    #[arg(long, value_enum, default_value_t = Sure::Checksum, requires = "copied_by")]
    verify: Sure,
    /// Read files on other services than the snapshot's own too. Not taken from the plan.
    #[arg(long)]
    other_services: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum By {
    /// A job of S3 Batch Operations.
    S3Batch,
    /// A job of Google's Storage Transfer Service.
    GcsTransfer,
    /// Another tool.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sure {
    /// Equal sizes, and equal hashes where both services tell one.
    Checksum,
    /// Equal contents.
    Content,
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let plan_at = location::parse(&args.plan)?;
    let plan = read_plan(stores, &plan_at).await?;
    let out = args.out.as_deref().map(location::parse).transpose()?;
    let options = CommitOptions {
        trust: Trust {
            copied_by: args.copied_by.map(|by| match by {
                By::S3Batch => Copier::S3Batch,
                By::GcsTransfer => Copier::GcsTransfer,
                By::Other => Copier::Other,
            }),
            compare_contents: args.verify == Sure::Content,
        },
        other_services: args.other_services,
        plan_at: Some(plan_at),
        redistribute: args.redistribute,
    };
    let outcome = commit(stores, &plan, &options, ui)
        .await
        .map_err(interrupt::say_how_to_go_on)?;
    match outcome {
        CommitOutcome::Committed(report) => Ok(Output {
            text: commit_text(&report),
            json: commit_json(&report),
            svg: None,
            code: exit::DONE,
        }),
        CommitOutcome::Left(report) => {
            if let (Some(out), Some(plan)) = (&out, &report.plan) {
                write_plan(stores, out, plan).await?;
            }
            Ok(Output {
                text: left_text(&report, out.as_ref()),
                json: left_json(&report, out.as_ref()),
                svg: None,
                code: exit::RESUMABLE,
            })
        }
    }
}
