//! `forkpoint duplicate`.

use crate::error::Result;
use crate::report::{duplicate_json, duplicate_text};
use crate::store::{DuplicateOptions, Existing, Stores};

use super::{Output, exit, location};

/// Make a second, independent object with equal bytes: server-side inside one service, by the file
/// system on local disk, streamed between different stores.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The object to read.
    source: String,
    /// The object to write.
    destination: String,
    /// Replace an object that is already there; without this it is left and reported (exit 3).
    #[arg(long)]
    overwrite: bool,
}

pub(super) async fn run(args: &Args, stores: &Stores) -> Result<Output> {
    let options = DuplicateOptions {
        existing: if args.overwrite {
            Existing::Overwrite
        } else {
            Existing::Refuse
        },
        ..DuplicateOptions::default()
    };
    let receipt = stores
        .duplicate(
            &location::parse(&args.source)?,
            &location::parse(&args.destination)?,
            &options,
        )
        .await?;
    Ok(Output {
        text: duplicate_text(&receipt),
        json: duplicate_json(&receipt),
        code: exit::DONE,
    })
}
