//! `forkpoint blob`: job artefacts with counted references. One file per verb.

mod finish;
mod gc;
mod get;
mod log;
mod ls;
mod named;
mod offline;
mod place;
mod probe;
mod put;
mod recover;
mod refs;
mod remote;
mod scrub;
mod serve;

use clap::Subcommand;

use crate::error::Result;
use crate::store::Stores;

use super::ui::Ui;
use super::{Format, Output};

/// A store for job artefacts: jars, large messages. References are counted, what nobody holds goes after a
/// while, and what must survive is kept in an HA store, which can be any location.
///
/// Ids of jobs, clusters, receivers and leases are 1 to 128 lower-case letters, digits, `-` and `_`. A blob is named by
/// its digest, in lower case: the SHA-256 in 64 hex digits, `-`, the size in bytes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: BlobVerb,
}

#[derive(Debug, Subcommand)]
enum BlobVerb {
    Serve(Box<serve::Args>),
    Put(put::Args),
    Get(Box<get::Args>),
    Ls(ls::Args),
    Jobs(ls::JobsArgs),
    Refs(refs::Args),
    Why(refs::WhyArgs),
    Finish(finish::Args),
    Log(log::Args),
    Recover(recover::Args),
    Gc(gc::Args),
    Scrub(scrub::Args),
    Probe(probe::Args),
}

impl Args {
    /// True for the verb that runs until it is stopped.
    pub(super) fn is_server(&self) -> bool {
        matches!(self.verb, BlobVerb::Serve(_))
    }
}

pub(super) async fn run(args: &Args, stores: &Stores, format: Format, ui: &Ui) -> Result<Output> {
    match &args.verb {
        BlobVerb::Serve(args) => serve::run(args, stores).await,
        BlobVerb::Put(args) => put::run(args, ui).await,
        BlobVerb::Get(args) => get::run(args, stores, format, ui).await,
        BlobVerb::Ls(args) => ls::run(args, ui).await,
        BlobVerb::Jobs(args) => ls::jobs(args, ui).await,
        BlobVerb::Refs(args) => refs::run(args, ui).await,
        BlobVerb::Why(args) => refs::why(args, ui).await,
        BlobVerb::Finish(args) => finish::run(args, ui).await,
        BlobVerb::Log(args) => log::run(args, format, ui).await,
        BlobVerb::Recover(args) => recover::run(args, stores).await,
        BlobVerb::Gc(args) => gc::run(args, stores).await,
        BlobVerb::Scrub(args) => scrub::run(args, stores).await,
        BlobVerb::Probe(args) => probe::run(args, stores).await,
    }
}
