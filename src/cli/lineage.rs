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
    Ok(Output {
        text: lineage_text(&tree),
        json: lineage_json(&tree),
        svg: Some(lineage_svg(&tree)),
        code: exit::of_evidence(tree.missing.is_empty()),
    })
}
