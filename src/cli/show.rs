//! `forkpoint show`.

use std::collections::HashMap;

use crate::error::Result;
use crate::report::{ShowReport, show_json, show_text};
use crate::snapshot::CommitObject;
use crate::store::Stores;
use crate::verify::look_at_objects;

use super::lookups::Lookups;
use super::ui::Ui;
use super::{Output, exit, location};

/// Show what a snapshot consists of: operators, files by scope with sizes, what lies outside its
/// own folder.
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
    let commit = CommitObject::read(stores, &at).await?;
    let snapshot = args.lookups.snapshot(stores, &commit, ui).await?;
    let stats = match args.no_stat {
        true => HashMap::new(),
        false => match look_at_objects(stores, &snapshot, ui).await {
            Ok(stats) => stats,
            // What the metadata says can be shown all the same.
            Err(e) => {
                ui.warn(&format!("the files could not be looked at: {e}"));
                HashMap::new()
            }
        },
    };
    let report = ShowReport { snapshot, stats };
    Ok(Output {
        text: show_text(&report, args.files),
        json: show_json(&report),
        svg: None,
        code: exit::DONE,
    })
}
