//! Where a blob can be fetched from: the HA store, the server, whatever else a program has. A source is
//! never believed: whoever fetches compares the digest.

mod breaker;
mod fetch;
mod ha;
mod patience;
mod server;
mod writing;

use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::error::{Error, Result};

use super::client::Waiting;
use super::key::BlobKey;

pub(crate) use fetch::{FetchPatience, Sources, fetch};
pub use fetch::{SourceUse, fetch_file, read_range};
#[cfg(feature = "cli")]
pub(crate) use fetch::{check_name, give_name};
pub use ha::HaSource;
pub use server::ServerSource;
pub(crate) use writing::Part;

/// The bytes of a blob as they come.
pub type ByteStream = BoxStream<'static, Result<Bytes>>;

/// Something that blobs can be fetched from.
#[async_trait]
pub trait BlobSource: Send + Sync {
    /// A word for messages and counters, such as `server`.
    fn label(&self) -> &str;

    /// The bytes `range` of a blob, in order. An error in the stream is a broken connection: the rest may be
    /// asked for again.
    ///
    /// # Errors
    ///
    /// A [`SourceError`], which says whether it is worth asking again.
    async fn open(&self, key: &BlobKey, range: Range<u64>) -> Result<ByteStream, SourceError>;

    /// It is about to be asked again after a pause. Does nothing unless somebody wants to know.
    fn waits(&self, _: &Waiting) {}
}

/// Why a source does not give a blob.
#[derive(Debug)]
#[non_exhaustive]
pub enum SourceError {
    /// It does not have it: the next source is asked at once.
    Absent,
    /// The blob is gone for good: its job is over, or every copy is damaged.
    Gone(Error),
    /// It may have it in a moment.
    Transient(Error, Option<Duration>),
    /// It does not give it to us.
    Refused(Error),
}
