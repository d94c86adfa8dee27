//! `forkpoint ls`.

use crate::error::Result;
use crate::ownership::{Lineage, family_tree};
use crate::report::{ls_json, ls_text};
use crate::store::Stores;

use super::roots::{Also, parse_all};
use super::ui::Ui;
use super::{Output, exit};

/// List the snapshots below roots: job, kind, completeness, age; total, shared and exclusive bytes (what
/// deletion would free), and what keeps each. Reads every `_metadata`, writes nothing.
///
/// Metadata is counted too, as deletion frees it: `fork`, `plan` and `verify` count only the files that it refers to.
///
/// Exit code 4 if something could not be read, 1 if the store does not answer.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The folders below which jobs keep their checkpoints, such as s3://prod/ckpt.
    #[arg(required = true, value_name = "ROOT")]
    roots: Vec<String>,
    #[command(flatten)]
    also: Also,
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let looked = args.also.look(stores, ui, &parse_all(&args.roots)?).await?;
    let tree = family_tree(&Lineage::new(&looked.survey), &looked.roots);
    Ok(Output::of(
        ui.format(),
        exit::of_evidence(tree.missing.is_empty()),
        || ls_text(&tree),
        || ls_json(&tree),
    ))
}
