//! Objects: one interface over local disk, S3, Google Cloud Storage and Azure, and the verb that
//! makes a second object with equal bytes without moving them through this process.
//!
//! ```no_run
//! # async fn demo() -> forkpoint::Result<()> {
//! use forkpoint::store;
//!
//! let receipt = store::duplicate("s3://from/state.sst", "s3://to/state.sst").await?;
//! println!("{} bytes by {}", receipt.bytes, receipt.method);
//! # Ok(()) }
//! ```

mod azure_copy;
mod batch;
mod compare;
mod delete;
mod duplicate;
mod errors;
mod gcs_rewrite;
mod http;
mod journal;
mod ladder;
mod listing;
mod local;
mod location;
mod method;
mod open;
mod options;
mod pacing;
mod probe;
mod receipt;
mod relay;
mod s3;
mod stat;
mod unfinished;

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

pub use batch::{BatchOptions, BatchReport, Item, ItemOutcome};
pub use duplicate::{
    DuplicateOptions, Durability, Existing, PART_SIZE_BYTES, Preserve, SPLIT_AT_BYTES,
};
pub use journal::Journal;
pub use ladder::{Checked, Expected, Level};
pub use location::{Bucket, Location, Provider};
pub use method::{Choice, Facts, Method, S3_COPY_LIMIT_BYTES, choose};
pub use open::{RELAY_BUDGET_BYTES, Store, Stores};
pub use options::Options;
pub use probe::{ProbeOptions, ProbeReport, Timing};
pub use receipt::Receipt;
pub(crate) use receipt::same_tag;
pub use stat::Stat;
pub use unfinished::{NoLog, Unfinished, UnfinishedLog};

pub(crate) use errors::is_missing_object;
pub(crate) use location::{normalize, split_text};

/// Opens the store that a location lies in, with settings from the environment. No request.
///
/// # Errors
///
/// `Invalid` for a location or settings that make no client, `Unsupported` for other schemes.
pub fn open(url: &str) -> Result<Arc<Store>> {
    Stores::from_env().open(&Location::parse(url)?)
}

/// Makes `destination` an independent object with the bytes of `source`, with settings from the
/// environment; refuses to overwrite. See [`Stores::duplicate`].
///
/// # Errors
///
/// As [`Stores::duplicate`].
pub async fn duplicate(source: &str, destination: &str) -> Result<Receipt> {
    Stores::from_env()
        .duplicate(
            &Location::parse(source)?,
            &Location::parse(destination)?,
            &DuplicateOptions::default(),
        )
        .await
}

/// Runs file-system work off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| {
        Err(Error::new(
            ErrorKind::Internal,
            format!("a worker thread ended: {e}"),
        ))
    })
}
