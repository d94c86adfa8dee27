//! `forkpoint usage`.

use crate::error::Result;
use crate::ownership::{Lineage, parse_millis, usage};
use crate::report::{usage_json, usage_text};
use crate::store::Stores;

use super::roots::{Also, parse_all};
use super::ui::Ui;
use super::{Output, exit};

/// Show what takes up the bytes below roots: by class, and orphans by their likely cause. Writes nothing.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The folders below which jobs keep their checkpoints, such as s3://prod/ckpt.
    #[arg(required = true, value_name = "ROOT")]
    roots: Vec<String>,
    #[command(flatten)]
    also: Also,
    /// Nothing younger is called an orphan: longer than any checkpoint takes.
    #[arg(long, value_name = "TIME", default_value = "24h")]
    min_age: String,
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let min_age = parse_millis(&args.min_age)?;
    let looked = args.also.look(stores, ui, &parse_all(&args.roots)?).await?;
    let usage = usage(&Lineage::new(&looked.survey), &looked.roots, min_age);
    Ok(Output::of(
        ui.format(),
        exit::of_evidence(usage.missing.is_empty()),
        || usage_text(&usage),
        || usage_json(&usage),
    ))
}
