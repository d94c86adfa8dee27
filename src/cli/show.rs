//! `forkpoint show`.

use std::collections::HashMap;

use crate::error::Result;
use crate::report::{ShowReport, show_json, show_text};
use crate::snapshot::CommitObject;
use crate::store::Stores;
use crate::verify::look_at_objects;

use super::lookups::{Lookups, readable};
use super::ui::Ui;
use super::{Output, exit, location};

/// Show what a snapshot consists of: operators, files by scope with sizes, what lies outside its
/// own folder.
///
/// Exit code 5 if files are missing or have another size than the metadata says, 4 if they could not be looked at; all
/// that is known is shown all the same.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The snapshot: the folder that holds `_metadata`, such as s3://bucket/job/chk-42.
    snapshot: String,
    /// List every file, not only the sums.
    #[arg(long)]
    files: bool,
    /// Read the metadata only; do not look at the files.
    #[arg(long)]
    no_stat: bool,
    #[command(flatten)]
    lookups: Lookups,
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let at = location::parse(&args.snapshot)?;
    let commit = readable(stores, &at, CommitObject::read(stores, &at).await).await?;
    let snapshot = args.lookups.snapshot(stores, &commit, ui).await?;
    let (stats, looked) = match args.no_stat {
        true => (HashMap::new(), true),
        false => match look_at_objects(stores, &snapshot, ui).await {
            Ok(stats) => (stats, true),
            // What the metadata says can be shown all the same.
            Err(e) => {
                ui.warn(&format!("the files could not be looked at: {e}"));
                (HashMap::new(), false)
            }
        },
    };
    let any_missing = stats.values().any(Option::is_none);
    let report = ShowReport { snapshot, stats };
    let damaged = any_missing || !report.wrong_sizes().is_empty();
    let code = match (looked, damaged) {
        (false, _) => exit::INCOMPLETE,
        (true, true) => exit::DAMAGED,
        (true, false) => exit::DONE,
    };
    Ok(Output::of(
        ui.format(),
        code,
        || show_text(&report, args.files),
        || show_json(&report),
    ))
}
