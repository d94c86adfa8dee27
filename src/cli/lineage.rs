//! `forkpoint lineage`.

use crate::error::Result;
use crate::ownership::{Lineage, family_tree};
use crate::report::{lineage_json, lineage_svg, lineage_text};
use crate::store::Stores;

use super::roots::{Also, parse_all};
use super::ui::Ui;
use super::{Output, exit};

/// Show who depends on whom: jobs, their snapshots, and the snapshot that each job grew from. Reads every
/// `_metadata`, writes nothing. `--format svg` draws it.
///
/// A fork, or a job of the snapshot writer that was started without claim, shares nothing with its source: it is
/// shown as started from it and independent, dashed in the picture, if both lie below the roots and the names of its
/// objects, or a record, prove it. Where nothing does, as of a Flink job that was started without claim and recorded
/// by nobody, nothing is drawn.
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
    // Here the others are shown too: what a job grew from may lie there.
    let mut shown = looked.roots;
    for other in args.also.locations()? {
        shown.push(stores.real(&other).await?);
    }
    let tree = family_tree(&Lineage::new(&looked.survey), &shown);
    Ok(Output::drawn(
        ui.format(),
        exit::of_evidence(tree.missing.is_empty()),
        || lineage_text(&tree),
        || lineage_json(&tree),
        || Some(lineage_svg(&tree)),
    ))
}
