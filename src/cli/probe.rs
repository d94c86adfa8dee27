//! `forkpoint probe`.

use crate::error::Result;
use crate::progress::Cancel;
use crate::report::{probe_json, probe_text};
use crate::store::{ProbeOptions, Stores};

use super::interrupt::stop_on_interrupt;
use super::ui::Ui;
use super::{Output, exit, location};

/// Find out what a store, or a pair of stores, really does: how objects would be duplicated, whether
/// conditions are honoured, how long it takes. Writes objects of its own below URL and removes them.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A folder to write to.
    url: String,
    /// Another one, to duplicate to; left out: the same.
    url2: Option<String>,
    /// Sizes to measure, in KiB: by default 4 KiB, 64 MiB and 1 GiB. An object of each is written, and
    /// at most one duplicate of it is there at a time.
    #[arg(long, value_name = "KIB", value_delimiter = ',', default_values_t = [4, 65536, 1_048_576])]
    sizes: Vec<u64>,
    /// Duplicates per size; the median is shown.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let from = location::parse(&args.url)?;
    let to = match &args.url2 {
        Some(url) => location::parse(url)?,
        None => from.clone(),
    };
    let options = ProbeOptions {
        sizes: args
            .sizes
            .iter()
            .map(|kib| kib.saturating_mul(1024))
            .collect(),
        rounds: args.rounds.max(1),
    };
    let cancel = Cancel::default();
    let listener = tokio::spawn(stop_on_interrupt(cancel.clone()));
    let report = stores.probe(&from, &to, &options, ui, &cancel).await;
    listener.abort();
    let report = report?;
    Ok(Output {
        text: probe_text(&report),
        json: probe_json(&report),
        svg: None,
        code: exit::DONE,
    })
}
