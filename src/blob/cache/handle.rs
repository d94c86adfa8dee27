//! Guards of jobs and handles on files. A handle pins its file for as long as it lives.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};

use crate::error::{Error, ErrorKind, Result};

use super::super::key::{BlobKey, Digest, JobId};
use super::super::lifecycle::Class;
use super::super::local::{BLOCK_BYTES, Copy};
use super::super::source::ByteStream;
use super::Shared;

/// Blocks that are read and compared in one piece of work: 2 MiB.
const BLOCKS_AT_ONCE: u64 = 16;

/// A reference to a job in this process: as long as there is one, the job's files stay, and only with one
/// can they be fetched. Dropping it gives the reference back.
#[derive(Debug)]
pub struct JobGuard {
    cache: Arc<Shared>,
    job: JobId,
}

impl JobGuard {
    pub(super) fn new(cache: Arc<Shared>, job: JobId) -> JobGuard {
        cache.uses().attach(&job);
        JobGuard { cache, job }
    }

    /// The job.
    pub fn job(&self) -> &JobId {
        &self.job
    }

    /// A verified local file of a retained blob: the one that is here, or fetched from the sources in their
    /// order. However many ask at once, it is fetched once.
    ///
    /// # Errors
    ///
    /// `NotFound` if no source has it; `Refused` if its job is over, or if there is no space and nothing can be
    /// given up; `Corrupt` if every source sends something else; `Unavailable`.
    pub async fn get(&self, digest: &Digest) -> Result<CachedBlob> {
        self.get_as(digest, Class::Retained).await
    }

    /// As [`get`](JobGuard::get), for a blob of either class. The file of a re-creatable one goes an interval after its
    /// last handle although the job is attached: messages would pile up in long jobs.
    ///
    /// # Errors
    ///
    /// As [`get`](JobGuard::get).
    pub async fn get_as(&self, digest: &Digest, class: Class) -> Result<CachedBlob> {
        let key = self.key(digest);
        self.cache.get(key, class).await
    }

    /// The whole of a blob in memory. A file that was damaged since it was verified is found out while it is read,
    /// and fetched again.
    ///
    /// # Errors
    ///
    /// As [`get`](JobGuard::get).
    pub async fn read(&self, digest: &Digest, class: Class) -> Result<Bytes> {
        let first = self.get_as(digest, class).await?;
        match first.bytes().await {
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                tracing::warn!(error = %e, "fetching a blob again");
                drop(first);
                self.get_as(digest, class).await?.bytes().await
            }
            other => other,
        }
    }

    pub(crate) fn key(&self, digest: &Digest) -> BlobKey {
        BlobKey {
            job: self.job.clone(),
            digest: *digest,
        }
    }

    /// The server may remove the blob from now on: it is kept here until nobody uses it.
    pub(crate) fn acknowledged(&self, digest: &Digest) {
        self.cache.uses().acknowledged(&self.key(digest));
    }
}

impl Drop for JobGuard {
    fn drop(&mut self) {
        let now = self.cache.now();
        self.cache.uses().detach(&self.job, now);
    }
}

/// A pin that goes with whoever holds it.
pub(super) struct Pin {
    cache: Arc<Shared>,
    key: BlobKey,
}

impl Pin {
    pub(super) fn new(cache: Arc<Shared>, key: BlobKey, class: Class) -> Pin {
        cache.uses().pin(&key, class);
        Pin { cache, key }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let now = self.cache.now();
        let retention = self.cache.config.retention;
        self.cache.uses().unpin(&self.key, now, retention);
    }
}

struct Pinned {
    pin: Pin,
    /// `None` for the blob without bytes, which has no file.
    copy: Option<Copy>,
}

/// A verified local file, pinned: it is neither evicted nor expired as long as a handle lives. Cheap to
/// clone.
#[derive(Clone)]
pub struct CachedBlob(Arc<Pinned>);

impl fmt::Debug for CachedBlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CachedBlob")
            .field(&self.0.pin.key.to_string())
            .finish()
    }
}

impl CachedBlob {
    pub(super) fn new(pin: Pin, copy: Option<Copy>) -> CachedBlob {
        CachedBlob(Arc::new(Pinned { pin, copy }))
    }

    /// What it is.
    pub fn digest(&self) -> &Digest {
        &self.0.pin.key.digest
    }

    /// The file. It was verified when the handle was made or before, and stays at this path as long as the handle
    /// lives; it must not be written to. The blob without bytes has none.
    pub fn path(&self) -> Option<&Path> {
        self.0.copy.as_ref().map(|c| c.path.as_path())
    }

    /// The whole in memory, compared while it is read.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the file was damaged since it was verified: it is in the quarantine then, and the next
    /// [`JobGuard::get`] fetches it again.
    pub async fn bytes(&self) -> Result<Bytes> {
        let size = usize::try_from(self.digest().size);
        let size = size.map_err(|_| Error::invalid("it does not fit into memory"))?;
        let mut whole = BytesMut::with_capacity(size);
        let mut pieces = self.stream(None)?;
        while let Some(piece) = pieces.next().await {
            whole.extend_from_slice(&piece?);
        }
        Ok(whole.freeze())
    }

    /// The bytes of a range, or all, in pieces of up to 2 MiB, each compared before it is handed out.
    ///
    /// # Errors
    ///
    /// `Invalid` for a range that is not within the blob; in the stream as [`bytes`](CachedBlob::bytes).
    pub fn stream(&self, range: Option<Range<u64>>) -> Result<ByteStream> {
        let size = self.digest().size;
        let range = range.unwrap_or(0..size);
        if range.start > range.end || range.end > size {
            let text = format!("bytes {range:?} are not within its {size}");
            return Err(Error::invalid(text).during("read").at(&self.0.pin.key));
        }
        if range.is_empty() || self.0.copy.is_none() {
            return Ok(stream::empty().boxed());
        }
        let handle = self.clone();
        let pieces = stream::unfold(Some(range.start), move |at| {
            let (handle, end) = (handle.clone(), range.end);
            async move {
                let at = at.filter(|at| *at < end)?;
                let read = crate::store::blocking(move || handle.read_blocks(at, end)).await;
                match read {
                    Ok(bytes) => {
                        let next = at.saturating_add(bytes.len() as u64);
                        Some((Ok(bytes), Some(next)))
                    }
                    Err(e) => Some((Err(e), None)),
                }
            }
        });
        Ok(pieces.boxed())
    }

    /// Bytes from `at` on, before `end`, of some whole blocks that were compared.
    fn read_blocks(&self, at: u64, end: u64) -> Result<Bytes> {
        let Some(copy) = &self.0.copy else {
            return Ok(Bytes::new());
        };
        let first = at / BLOCK_BYTES;
        let last = (first + BLOCKS_AT_ONCE).min(end.div_ceil(BLOCK_BYTES));
        let start = copy.blocks.range(first).start;
        let bytes = match copy.read_blocks(first, last, Duration::ZERO) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::Corrupt => return Err(self.damaged(e.message())),
            Err(e) => return Err(e),
        };
        let stop = start.saturating_add(bytes.len() as u64);
        let skip = usize::try_from(at - start).unwrap_or(0);
        let keep = usize::try_from(end.min(stop) - start).unwrap_or(0);
        Ok(bytes.slice(skip..keep))
    }

    fn damaged(&self, what: &str) -> Error {
        let pin = &self.0.pin;
        if let Some(copy) = &self.0.copy {
            pin.cache.quarantine(&pin.key, copy, what);
        }
        Error::corrupt(format!(
            "the local file was damaged since it was verified: {what}"
        ))
        .during("read")
        .at(&pin.key)
        .hint("ask the cache for it again")
    }
}
