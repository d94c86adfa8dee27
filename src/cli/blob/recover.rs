//! `forkpoint blob recover`.

use crate::blob::{HaStore, inspect};
use crate::error::Result;
use crate::store::Stores;

use super::super::Output;
use super::offline::{document, inspection_code, inspection_text};
use super::place::{Place, span};

/// What a server would find in the HA store: jobs, missing objects, orphans. Changes nothing and disturbs no
/// server. The recovery itself is part of every start of `serve`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// Age at which an object counts as old enough to go that no manifest names.
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = span)]
    orphan_min_age: std::time::Duration,
}

pub(super) async fn run(args: &Args, stores: &Stores) -> Result<Output> {
    let ha = HaStore::new(stores.clone(), &args.place.ha()?, &args.place.cluster)?;
    let found = inspect(&ha, args.orphan_min_age).await?;
    Ok(Output {
        text: inspection_text(&found),
        json: document(&found)?,
        svg: None,
        code: inspection_code(&found),
    })
}
