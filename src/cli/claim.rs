//! `forkpoint claim`.

use crate::error::Result;
use crate::ownership::{ClaimRequest, claim, claimed_with, common_root, guess_root, release};
use crate::report::{claim_json, claim_text, released_json, released_text};
use crate::snapshot::RestoreMode;
use crate::store::Stores;

use super::roots::{Also, parse_all};
use super::ui::Ui;
use super::{Output, exit, location};

/// Record that a job is started from a snapshot, so that nobody deletes it under the job, and no two jobs
/// take it over. Run it before `flink run -s SNAPSHOT`.
///
/// A claim is refused while another job still depends on the snapshot, or somebody has pinned it, or a fork reads it, and so
/// is a second claim; the same holds for each checkpoint of the old job that shares files with it, since whoever takes one
/// over may delete what both need. So is that of a snapshot that has lost objects.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The snapshot's folder, such as s3://prod/ckpt/3f2a.../chk-42.
    snapshot: String,
    /// The job: its id, or any name that you will find again. A job of forkpoint's own snapshot writer is known
    /// by the location of its folder, such as s3://prod/jobs/orders; `orders` is enough if such a job has snapshots
    /// below the roots, and no other one there ends alike.
    #[arg(long)]
    job: String,
    /// The job's restore mode: claim, no-claim or legacy.
    #[arg(long, default_value = "claim")]
    mode: RestoreMode,
    /// Take over the older checkpoints of the snapshot's job too; Flink itself would leave them forever.
    #[arg(long, conflicts_with = "release")]
    chain: bool,
    /// Take the record back: the job was never started, or has let the snapshot go.
    #[arg(long)]
    release: bool,
    /// Where jobs keep their checkpoints. Left out: the folder above that of the snapshot's job. A savepoint, and a
    /// checkpoint that lies in no folder named by a job id, such as a fork, is taken over only if it is given: jobs that
    /// were started from it may lie anywhere.
    #[arg(long, value_name = "ROOT")]
    root: Vec<String>,
    #[command(flatten)]
    also: Also,
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let snapshot = stores.real(&location::parse(&args.snapshot)?).await?;
    if args.release {
        let released = release(stores, &snapshot, &args.job, args.mode).await?;
        let others = match args.mode {
            RestoreMode::Claim => claimed_with(stores, &snapshot, &args.job).await?,
            _ => Vec::new(),
        };
        return Ok(Output::of(
            ui.format(),
            exit::DONE,
            || released_text(&snapshot, &args.job, args.mode, released, &others),
            || released_json(&snapshot, &args.job, args.mode, released, &others),
        ));
    }
    let mut roots = match args.root.is_empty() {
        true => vec![guess_root(stores, &snapshot).await],
        false => parse_all(&args.root)?.iter().map(common_root).collect(),
    };
    roots.extend(args.also.locations()?);
    let request = ClaimRequest {
        snapshot,
        job: args.job.clone(),
        mode: args.mode,
        chain: args.chain,
        guessed_roots: args.root.is_empty(),
    };
    let report = claim(stores, &roots, &request, ui).await?;
    Ok(Output::of(
        ui.format(),
        exit::DONE,
        || claim_text(&report),
        || claim_json(&report),
    ))
}
