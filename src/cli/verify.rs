//! `forkpoint verify`.

use crate::error::Result;
use crate::report::{verify_json, verify_text};
use crate::snapshot::CommitObject;
use crate::store::Stores;
use crate::verify;

use super::lookups::Lookups;
use super::ui::Ui;
use super::{Output, exit, location};

/// Check that every file a snapshot needs is there with its size. Exit code 5 if not.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The snapshot: the folder that holds `_metadata`.
    snapshot: String,
    #[command(flatten)]
    lookups: Lookups,
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let at = location::parse(&args.snapshot)?;
    let report = match args.lookups.is_empty() {
        true => verify::verify(stores, &at, ui).await?,
        false => {
            let commit = CommitObject::read(stores, &at).await?;
            verify::check(
                stores,
                &args.lookups.snapshot(stores, &commit, ui).await?,
                ui,
            )
            .await?
        }
    };
    Ok(Output {
        text: verify_text(&report),
        json: verify_json(&report),
        svg: None,
        code: if report.problems.is_empty() {
            exit::DONE
        } else {
            exit::DAMAGED
        },
    })
}
