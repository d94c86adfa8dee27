//! `forkpoint blob probe`.

use crate::blob::HaStore;
use crate::error::Result;
use crate::store::Stores;

use super::super::{Output, exit};
use super::offline::document;
use super::place::Place;

/// Can this location be an HA store? Tried out with objects of its own, which are removed again.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
}

pub(super) async fn run(args: &Args, stores: &Stores) -> Result<Output> {
    let ha = HaStore::new(stores.clone(), &args.place.ha()?, &args.place.cluster)?;
    let found = ha.probe().await?;
    let line = |what: &str, good: bool| format!("{:<5} {what}\n", if good { "yes" } else { "NO" });
    let mut text = line("reads give what was written", found.reads_own_writes);
    text.push_str(&line(
        "create-if-absent leaves what is there",
        found.create_if_absent,
    ));
    text.push_str(&line(
        "one of several creates at once wins",
        found.one_winner,
    ));
    text.push_str(&line("listings are current", found.listing_is_current));
    if let Some(why) = found.lacking() {
        text.push_str(&format!("no HA store: {why}\n"));
    }
    Ok(Output {
        text,
        json: document(&found)?,
        svg: None,
        code: match found.lacking() {
            None => exit::DONE,
            Some(_) => exit::REFUSED,
        },
    })
}
