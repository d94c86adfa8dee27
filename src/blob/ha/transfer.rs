//! Blobs between the local directory and the HA store: what is sent is checked block by block as it is read,
//! and what comes is hashed before anybody sees it.

use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use crate::error::{Error, Result};
use crate::store::{Content, UploadOptions, blocking};

use super::super::fail;
use super::super::key::{Digest, Digester, JobId, ObjectName};
use super::super::local::{Copy, Incoming};
use super::HaStore;

/// Size of a range that is read with one request, in bytes.
const PIECE_BYTES: u64 = 8 << 20;
/// Parts of one object on their way to the store at once.
const PARTS_IN_FLIGHT: usize = 2;
/// Ranges of one object on their way to us at once.
const READ_AHEAD: usize = 2;

/// How an object is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Object {
    /// Its bytes are those its name says.
    Good,
    /// It is not there.
    Missing,
    /// It has other bytes; what is wrong.
    Damaged(String),
}

/// A block of a local copy, checked.
///
/// # Errors
///
/// `Corrupt` if it is not what it was.
pub(crate) fn read_block(copy: &Copy, number: u64) -> Result<Bytes> {
    let range = copy.blocks.range(number);
    let length = usize::try_from(range.end - range.start).unwrap_or(0);
    let mut bytes = vec![0; length];
    let damaged = |what: String| {
        Error::corrupt(format!("block {number}: {what}"))
            .during("read")
            .at(copy.path.display())
    };
    copy.file
        .read_exact_at(&mut bytes, range.start)
        .map_err(|e| damaged(e.to_string()))?;
    match copy.blocks.fits(number, &bytes) {
        true => Ok(Bytes::from(bytes)),
        false => Err(damaged(
            "its bytes have changed since they were verified".to_string(),
        )),
    }
}

/// The same, off the async threads.
async fn block(copy: &Copy, number: u64) -> Result<Bytes> {
    let copy = copy.clone();
    blocking(move || read_block(&copy, number)).await
}

impl HaStore {
    /// Writes an object from a local copy. One request up to 8 MiB, above that one per part and two more (three on
    /// Google and Azure at most); two parts on their way and one that is read, of 8 MiB each.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the copy is not what it was; `Unavailable` if nothing moves for the store's patience, and then
    /// parts may stay that no listing shows; what the store answers. The object may then be there or not.
    pub(crate) async fn upload(&self, job: &JobId, name: &ObjectName, copy: &Copy) -> Result<()> {
        self.step(self.still_there()).await?;
        let at = self.object_at(job, name)?;
        let moved = Arc::new(Mutex::new(Instant::now()));
        let (blocks, moves) = (copy.clone(), Arc::clone(&moved));
        let stream = futures::stream::iter(0..copy.blocks.count()).then(move |number| {
            let (blocks, moves) = (blocks.clone(), Arc::clone(&moves));
            async move {
                *moves.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                let bytes = block(&blocks, number).await?;
                fail::point("object-half-written");
                Ok(bytes)
            }
        });
        let content = Content::Stream {
            stream: stream.boxed(),
            size: Some(name.digest.size),
        };
        let options = UploadOptions {
            parts_at_once: PARTS_IN_FLIGHT,
            fresh: true,
            ..UploadOptions::default()
        };
        let mut upload = std::pin::pin!(self.stores.upload(&at, content, &options));
        loop {
            let last = *moved.lock().unwrap_or_else(PoisonError::into_inner);
            let left = self.patience.saturating_sub(last.elapsed());
            if left.is_zero() {
                return Err(super::no_answer().at(&at));
            }
            if let Ok(done) = tokio::time::timeout(left, &mut upload).await {
                return match done?.sha256.bytes() == name.digest.sha256 {
                    true => Ok(()),
                    false => Err(Error::corrupt("other bytes were read than its name says")
                        .during("upload")
                        .at(&at)),
                };
            }
        }
    }

    /// All of an object.
    fn pieces(
        &self,
        job: &JobId,
        name: &ObjectName,
        size: u64,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        let at = self.object_at(job, name)?;
        Ok(self.stores.pieces(&at, 0..size, PIECE_BYTES, READ_AHEAD))
    }

    async fn step<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let result = tokio::time::timeout(self.patience, work).await;
        result.unwrap_or_else(|_| Err(super::no_answer().at(self.folder())))
    }

    async fn size_of(&self, job: &JobId, name: &ObjectName) -> Result<Result<u64, Object>> {
        let at = self.object_at(job, name)?;
        let found = self.step(self.stores.find(&at)).await?;
        Ok(match found {
            None => Err(Object::Missing),
            Some(stat) if stat.size != name.digest.size => {
                Err(Object::Damaged(format!("it has {} bytes", stat.size)))
            }
            Some(stat) => Ok(stat.size),
        })
    }

    /// Reads an object into a file that is arriving. A look, and a request for every 8 MiB. The caller compares
    /// the digest.
    ///
    /// # Errors
    ///
    /// What the store and the file system answer.
    pub(crate) async fn download(
        &self,
        job: &JobId,
        name: &ObjectName,
        mut into: Incoming,
    ) -> Result<Result<Incoming, Object>> {
        let size = match self.size_of(job, name).await? {
            Ok(size) => size,
            Err(bad) => return Ok(Err(bad)),
        };
        let mut pieces = self.pieces(job, name, size)?;
        while let Some(piece) = self.step(pieces.try_next()).await? {
            into = blocking(move || {
                into.write(&[piece])?;
                Ok(into)
            })
            .await?;
        }
        Ok(Ok(into))
    }

    /// Reads all of an object and compares. `pause` waits as long as so many bytes should take.
    ///
    /// # Errors
    ///
    /// What the store answers.
    pub(crate) async fn examine<F: Future<Output = ()>>(
        &self,
        job: &JobId,
        name: &ObjectName,
        pause: impl Fn(u64) -> F,
    ) -> Result<Object> {
        let size = match self.size_of(job, name).await? {
            Ok(size) => size,
            Err(bad) => return Ok(bad),
        };
        let mut pieces = self.pieces(job, name, size)?;
        let mut digester = Digester::default();
        while let Some(piece) = self.step(pieces.try_next()).await? {
            let length = piece.len() as u64;
            digester = blocking(move || {
                digester.update(&piece);
                Ok(digester)
            })
            .await?;
            pause(length).await;
        }
        let digest: Digest = digester.finish();
        Ok(match digest == name.digest {
            true => Object::Good,
            false => Object::Damaged(format!("its bytes are those of {digest}")),
        })
    }
}
