//! `forkpoint verify`.

use crate::error::Result;
use crate::report::{verify_json, verify_text};
use crate::snapshot::CommitObject;
use crate::store::{Location, Stores};
use crate::verify::{self, VerifyReport};

use super::lookups::{Lookups, readable};
use super::ui::Ui;
use super::{Output, exit, location};

/// Check that every file a snapshot needs is there with its size. Exit code 5 if not; 4 if some of them could
/// not be looked at, 1 if the snapshot's metadata could not be read.
///
/// A byte that has changed within a file is not seen so. --content reads every file and compares it with the digest
/// in the manifest of a snapshot of forkpoint's own format; Flink's metadata has no digests, so name the snapshot
/// that this one was forked or copied from with --against: both are read and compared, and their metadata too. If another
/// tool has moved the original, or this copy of it, name the old place with --moved-from as for `fork`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The snapshot: the folder that holds `_metadata`.
    snapshot: String,
    #[command(flatten)]
    lookups: Lookups,
    /// Read every file, and compare its bytes with the digests in the manifest.
    #[arg(long, conflicts_with_all = ["moved_from", "look_in", "against"])]
    content: bool,
    /// Read every file of this snapshot too, and compare both byte by byte.
    #[arg(long, value_name = "ORIGINAL")]
    against: Option<String>,
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let at = location::parse(&args.snapshot)?;
    let original = match &args.against {
        Some(text) => Some(location::parse(text)?),
        None => None,
    };
    let report = look(args, stores, ui, &at, original.as_ref()).await;
    let report = readable(stores, &at, report).await?;
    let code = if report.problems.is_empty() {
        exit::DONE
    } else {
        exit::DAMAGED
    };
    Ok(Output::of(
        ui.format(),
        code,
        || verify_text(&report),
        || verify_json(&report),
    ))
}

async fn look(
    args: &Args,
    stores: &Stores,
    ui: &Ui,
    at: &Location,
    original: Option<&Location>,
) -> Result<VerifyReport> {
    match (args.lookups.is_empty(), original) {
        (true, original) if args.content || original.is_some() => {
            verify::verify_content(stores, at, original, ui).await
        }
        (true, _) => verify::verify(stores, at, ui).await,
        (false, Some(original)) => {
            let copy = CommitObject::read(stores, at).await?;
            let original = CommitObject::read(stores, original).await?;
            let (copy, original) = args.lookups.both(stores, copy, original, ui).await?;
            verify::verify_against(stores, &copy, &original, ui).await
        }
        (false, None) => {
            let commit = CommitObject::read(stores, at).await?;
            let snapshot = args.lookups.snapshot(stores, &commit, ui).await?;
            verify::check(stores, &snapshot, ui).await
        }
    }
}
