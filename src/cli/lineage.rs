//! `forkpoint lineage`.

use std::path::PathBuf;

use crate::error::{Error, ErrorKind, Result};
use crate::ownership::{Lineage, family_tree};
use crate::report::{lineage_json, lineage_svg, lineage_text};
use crate::store::Stores;

use super::roots::{Also, parse_all};
use super::ui::Ui;
use super::{Output, exit};

/// Show who depends on whom: jobs, their snapshots, and the snapshot that each job grew from. Reads every
/// `_metadata`, writes nothing but the picture.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The folders below which jobs keep their checkpoints, such as s3://prod/ckpt.
    #[arg(required = true, value_name = "ROOT")]
    roots: Vec<String>,
    #[command(flatten)]
    also: Also,
    /// Draw it into this file too.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let looked = args.also.look(stores, ui, &parse_all(&args.roots)?).await?;
    let tree = family_tree(&Lineage::new(&looked.survey), &looked.roots);
    if let Some(file) = &args.svg {
        std::fs::write(file, lineage_svg(&tree)).map_err(|e| {
            Error::new(ErrorKind::Unavailable, e.to_string())
                .during("write")
                .at(file.display())
        })?;
    }
    Ok(Output {
        text: lineage_text(&tree),
        json: lineage_json(&tree),
        code: if tree.missing.is_empty() {
            exit::DONE
        } else {
            exit::INCOMPLETE
        },
    })
}
