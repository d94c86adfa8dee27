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

mod azure;
mod batch;
mod checksum;
mod compare;
#[cfg(feature = "test-util")]
pub mod conformance;
mod delete;
mod digest;
mod duplicate;
mod errors;
mod gcs;
mod http;
mod journal;
mod journal_writer;
mod ladder;
mod lazy_journal;
mod listing;
mod local;
mod location;
mod method;
mod open;
mod open_uploads;
mod options;
mod pacing;
mod probe;
mod reach;
mod receipt;
mod relay;
mod s3;
mod shell;
mod stat;
mod stream;
mod unfinished;
mod upload;

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

pub use batch::{BatchOptions, BatchReport, Item, ItemOutcome};
pub use digest::Sha256Sum;
pub(crate) use duplicate::plain_hashes;
pub use duplicate::{
    DuplicateOptions, Durability, Existing, PART_SIZE_BYTES, Preserve, SPLIT_AT_BYTES,
};
pub use journal::Journal;
pub use ladder::{Checked, Expected, Level};
pub use lazy_journal::LazyJournal;
#[cfg(feature = "cli")]
pub(crate) use local::Staged as StagedFile;
pub(crate) use local::link_on_the_way;
pub use location::{Bucket, Location, Provider};
pub use method::{Choice, Facts, Method, S3_COPY_LIMIT_BYTES, choose};
pub use open::{RELAY_BUDGET_BYTES, RELAY_MEMORY_SETTING, Store, Stores};
pub use open_uploads::OpenUpload;
pub use options::Options;
pub use probe::{ProbeOptions, ProbeReport, Timing};
pub use receipt::Receipt;
pub(crate) use receipt::same_tag;
#[cfg(feature = "blob")]
pub(crate) use shell::shell_word;
pub use stat::Stat;
pub use unfinished::{NoLog, Unfinished, UnfinishedLog};
pub(crate) use upload::of_file;
pub use upload::{Content, UploadOptions, Uploaded};

pub(crate) use errors::{is_missing_bucket, is_missing_object};
pub(crate) use location::{normalize, split_text};

/// The folder in which this crate keeps notes, beside what they are about.
pub(crate) const OWN_FOLDER: &str = ".forkpoint";

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

thread_local! {
    /// This thread is one for blocking work and runs many pieces of it in a row.
    static AT_WORK: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs a future of file-system work on one thread for blocking work, so that its pieces need not be
/// handed from thread to thread: for many small files that costs more than the files do.
pub(crate) async fn in_a_row<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T> {
    let runtime = tokio::runtime::Handle::current();
    let run = move || {
        AT_WORK.set(true);
        let done = runtime.block_on(work);
        AT_WORK.set(false);
        Ok(done)
    };
    tokio::task::spawn_blocking(run).await.unwrap_or_else(ended)
}

/// Runs a future of file-system work on this very thread, for work that takes less time than another thread
/// takes to start.
#[cfg(feature = "cli")]
pub(crate) async fn here<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| {
        let before = AT_WORK.replace(true);
        let polled = work.as_mut().poll(context);
        AT_WORK.set(before);
        polled
    })
    .await
}

fn ended<T>(e: tokio::task::JoinError) -> Result<T> {
    Err(Error::new(
        ErrorKind::Internal,
        format!("a worker thread ended: {e}"),
    ))
}

/// Runs file-system work off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if AT_WORK.get() {
        return work();
    }
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(ended)
}
