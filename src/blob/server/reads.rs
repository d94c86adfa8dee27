//! Reading: a verified local copy, or one made from the HA store. Every byte that is handed out was compared
//! with what it must be, after it was read from the disk or within the minute before.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use crate::error::{Error, ErrorKind, Result};
use crate::store::blocking;

use super::super::ha::Object;
use super::super::key::{BlobKey, Digest, ObjectName};
use super::super::lifecycle::Refusal;
use super::super::local::{BLOCK_BYTES, Copy, Look, Opened};
use super::super::registry::Effect;
use super::cell::Cell;
use super::{BlobServer, Failure, Inner};

/// Blocks that are read in one piece: 256 KiB.
const RUN_BLOCKS: u64 = 2;
/// Pieces that are read before the reader asks for them; a reader that stalls holds as much memory.
const RUNS_AHEAD: usize = 2;
/// A block that was compared so short a time ago, in a file that was not touched since, is sent as it is: many who
/// fetch one blob at once cost one comparison. Whoever receives the whole compares it all the same.
const TRUST: Duration = Duration::from_secs(60);

/// While it lives, the blob's copies stay.
pub(super) struct Pin {
    inner: Arc<Inner>,
    cell: Arc<Cell>,
    key: BlobKey,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let effects = self.cell.work().registry.unpin(&self.key);
        for effect in effects {
            if let Effect::Remove(key, object) = effect {
                self.cell.work().dirty |= object.is_some();
                self.inner.remove_local(&self.cell, &key);
            }
        }
    }
}

/// A blob that is open for reading: its file stays as long as this lives.
pub struct BlobHandle {
    digest: Digest,
    /// None for the blob without bytes.
    copy: Option<Copy>,
    pin: Option<Arc<Pin>>,
    inner: Arc<Inner>,
}

impl std::fmt::Debug for BlobHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobHandle")
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

/// Blocks `first..last`, read and compared where that is due, when it is their turn at the disk. In a task of its
/// own: a reader that stalls polls nothing, and must not hold a turn meanwhile.
async fn read_from_disk(inner: &Inner, copy: Copy, first: u64, last: u64) -> Result<Bytes> {
    let disk = Arc::clone(&inner.disk);
    let read = tokio::spawn(async move {
        let _turn = disk.acquire_owned().await;
        blocking(move || copy.read_blocks(first, last, TRUST)).await
    });
    read.await.unwrap_or_else(|e| {
        let text = format!("a worker task ended: {e}");
        Err(Error::new(ErrorKind::Internal, text))
    })
}

impl BlobHandle {
    /// What it is.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The file; none for the blob without bytes. It was verified before; what happens to it from now on only
    /// [`stream`](BlobHandle::stream) notices.
    pub fn path(&self) -> Option<&Path> {
        self.copy.as_ref().map(|c| c.path.as_path())
    }

    /// Bytes of the blob, each block of the file compared before any of it is handed out, or within the minute before
    /// if the file was not touched since. The range is cut at the end.
    ///
    /// The stream ends with `Corrupt` before the first block that is damaged; the copy goes into the quarantine
    /// then, and the next [`get`](BlobServer::get) makes a new one.
    pub fn stream(&self, range: Range<u64>) -> BoxStream<'static, Result<Bytes>> {
        let Some(copy) = self.copy.clone() else {
            return futures::stream::empty().boxed();
        };
        let (start, end) = (range.start, range.end.min(self.digest.size));
        if start >= end {
            return futures::stream::empty().boxed();
        }
        let first = start / BLOCK_BYTES;
        let last = end.div_ceil(BLOCK_BYTES);
        let runs = (first..last).step_by(usize::try_from(RUN_BLOCKS).unwrap_or(1));
        let inner = Arc::clone(&self.inner);
        let pin = self.pin.clone();
        // The next run is read and compared while this one is on its way.
        futures::stream::iter(runs)
            .map(move |first| {
                let (copy, inner, pin) = (copy.clone(), Arc::clone(&inner), pin.clone());
                async move {
                    let last = last.min(first + RUN_BLOCKS);
                    let read = match copy.read_ready(first, last, TRUST) {
                        Some(bytes) => Ok(bytes),
                        None => read_from_disk(&inner, copy.clone(), first, last).await,
                    };
                    let bytes = match read {
                        Ok(bytes) => bytes,
                        Err(e) => {
                            if let Some(pin) = pin.filter(|_| e.kind() == ErrorKind::Corrupt) {
                                let me = Arc::clone(&inner);
                                let key = pin.key.clone();
                                let why = e.message().to_string();
                                inner.metrics.damaged_local.add(1);
                                let moved = blocking(move || match copy.inode() {
                                    Some(inode) => {
                                        me.local.damaged(&key, &why, Some(inode)).map(drop)
                                    }
                                    None => Ok(()),
                                });
                                if let Err(error) = moved.await {
                                    tracing::warn!(%error, "a damaged copy stays where it is");
                                }
                            }
                            return Err(e);
                        }
                    };
                    let at = first * BLOCK_BYTES;
                    let from = usize::try_from(start.saturating_sub(at)).unwrap_or(0);
                    let to = usize::try_from(end - at)
                        .unwrap_or(usize::MAX)
                        .min(bytes.len());
                    inner.metrics.bytes_out.add((to - from) as u64);
                    Ok(bytes.slice(from..to))
                }
            })
            .buffered(RUNS_AHEAD)
            .boxed()
    }

    /// All bytes.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the file was damaged since it was opened.
    pub async fn bytes(&self) -> Result<Bytes> {
        let mut all = Vec::with_capacity(usize::try_from(self.digest.size).unwrap_or(0));
        let mut stream = self.stream(0..self.digest.size);
        while let Some(piece) = stream.try_next().await? {
            all.extend_from_slice(&piece);
        }
        Ok(all.into())
    }
}

impl BlobServer {
    /// Opens a blob; makes a local copy from the HA store first if there is no good one.
    ///
    /// # Errors
    ///
    /// `NotFound`, `JobOver`; `Lost` if every copy is damaged; an HA store that does not answer.
    pub async fn get(&self, key: &BlobKey) -> Result<BlobHandle, Failure> {
        let inner = &self.0;
        inner.check_owner()?;
        let cell = inner.cell(&key.job)?;
        let handle = |copy, pin| BlobHandle {
            digest: key.digest,
            copy,
            pin,
            inner: Arc::clone(inner),
        };
        if key.digest.is_empty_blob() {
            if let Some(cell) = cell {
                cell.work().registry.live_job(&key.job)?;
            }
            return Ok(handle(None, None));
        }
        let cell = cell.ok_or_else(|| Refusal::NotFound(key.clone()))?;
        let pin = Arc::new(inner.pin(&cell, key)?);
        let copy = inner.open_or_fetch(&cell, key, &pin).await?;
        inner.metrics.downloads.add(1);
        Ok(handle(Some(copy), Some(pin)))
    }
}

impl Inner {
    /// Keeps a blob's copies for as long as what it gives lives.
    pub(super) fn pin(self: &Arc<Self>, cell: &Arc<Cell>, key: &BlobKey) -> Result<Pin, Refusal> {
        cell.work().registry.pin(key)?;
        Ok(Pin {
            inner: Arc::clone(self),
            cell: Arc::clone(cell),
            key: key.clone(),
        })
    }

    pub(super) async fn open_local(self: &Arc<Self>, key: &BlobKey, look: Look) -> Result<Opened> {
        let (me, key, now) = (Arc::clone(self), key.clone(), self.now());
        let opened = blocking(move || me.local.open_copy(&key, now, look)).await?;
        if matches!(opened, Opened::Damaged(_)) {
            self.metrics.damaged_local.add(1);
        }
        Ok(opened)
    }

    /// A copy that was compared lately, or what one turn gives to all who want the blob: the comparison that is due,
    /// or a copy from the HA store. Once begun it comes to its end, whoever goes away; it fails for all.
    async fn open_or_fetch(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        key: &BlobKey,
        pin: &Arc<Pin>,
    ) -> Result<Copy, Failure> {
        if !self.local.is_due(key)
            && let Opened::Copy(copy) = self.open_local(key, Look::WhereDue).await?
        {
            return Ok(copy);
        }
        let fetch = || {
            let (me, cell, key) = (Arc::clone(self), Arc::clone(cell), key.clone());
            // The pin goes along.
            let pin = Arc::clone(pin);
            async move {
                let _pin = pin;
                me.verify_or_fetch(&cell, &key).await
            }
        };
        self.flights.join(key, fetch, || {}).await
    }

    /// The same for who has a pin and is a task of its own.
    pub(super) async fn fetch(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        key: &BlobKey,
    ) -> Result<Copy, Failure> {
        let pin = Arc::new(self.pin(cell, key)?);
        self.open_or_fetch(cell, key, &pin).await
    }

    async fn verify_or_fetch(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        key: &BlobKey,
    ) -> Result<Copy, Failure> {
        let here = {
            // Reading all of a file takes a turn of the disk like any other reader.
            let _turn = Arc::clone(&self.disk).acquire_owned().await;
            self.open_local(key, Look::WhereDue).await?
        };
        if let Opened::Copy(copy) = here {
            return Ok(copy);
        }
        let object = cell.work().registry.visible(key)?.object;
        let Some(object) = object else {
            return Err(self.all_copies_bad(key, None).await);
        };
        match self.copy_from_ha(cell, key, &object).await? {
            Object::Good => {}
            bad => {
                self.metrics.damaged_ha.add(1);
                tracing::error!(%key, ?bad, "the object in the HA store is damaged too");
                return Err(self.all_copies_bad(key, Some(object)).await);
            }
        }
        match self.open_local(key, Look::WhereDue).await? {
            Opened::Copy(copy) => Ok(copy),
            _ => Err(Failure::Busy {
                wait: std::time::Duration::from_secs(1),
                why: "the local copy went while it was opened".to_string(),
            }),
        }
    }

    /// Downloads, compares, publishes.
    pub(super) async fn copy_from_ha(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        key: &BlobKey,
        object: &ObjectName,
    ) -> Result<Object, Failure> {
        let me = Arc::clone(self);
        let size = key.digest.size;
        let begun = blocking(move || {
            let reserved = me.reserve(size)?;
            me.local.begin(reserved)
        });
        let into = match self.ha.download(&key.job, object, begun.await?).await {
            Ok(Ok(into)) => into,
            Ok(Err(bad)) => return Ok(bad),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Object::Missing),
            Err(e) => return Err(e.into()),
        };
        let complete = blocking(move || into.complete()).await?;
        let got = complete.digest();
        if got != key.digest {
            return Ok(Object::Damaged(format!("its bytes are those of {got}")));
        }
        // Announced under the lock under which copies are removed.
        *cell.work().arriving.entry(key.digest).or_default() += 1;
        let (me, job, now) = (Arc::clone(self), key.job.clone(), self.now());
        let published = blocking(move || me.local.publish(complete, &job, now).map(drop)).await;
        let known = {
            let mut work = cell.work();
            if let Some(count) = work.arriving.get_mut(&key.digest) {
                *count -= 1;
                if *count == 0 {
                    work.arriving.remove(&key.digest);
                }
            }
            let job = work.registry.job(&key.job);
            job.is_some_and(|j| j.blobs.contains_key(&key.digest))
        };
        if !known {
            self.remove_local(cell, key);
        }
        published?;
        self.metrics.fetches.add(1);
        Ok(Object::Good)
    }

    /// Is a copy good? Reads the local one if it was not verified, and then the object. A download may have been
    /// damaged on its way: nothing is said for good after one look.
    pub(super) async fn look_again(
        self: &Arc<Self>,
        key: &BlobKey,
        object: Option<&ObjectName>,
    ) -> Result<bool, Failure> {
        if let Opened::Copy(_) = self.open_local(key, Look::WhereDue).await? {
            return Ok(true);
        }
        let Some(object) = object else {
            return Ok(false);
        };
        let seen = self.ha.examine(&key.job, object, |_| async {}).await?;
        Ok(seen == Object::Good)
    }

    /// No good copy is left, which a second look confirms: says so durably, unless things have changed meanwhile.
    pub(super) async fn all_copies_bad(
        self: &Arc<Self>,
        key: &BlobKey,
        object: Option<ObjectName>,
    ) -> Failure {
        let of = key.clone();
        match self.look_again(key, object.as_ref()).await {
            Ok(false) => {}
            Ok(true) => {
                return Failure::Busy {
                    wait: std::time::Duration::from_secs(1),
                    why: "a copy that looked damaged is good after all".to_string(),
                };
            }
            Err(failure) => return failure,
        }
        let marked = self
            .change(&key.job, move |registry, _| {
                let blob = registry.job(&of.job).and_then(|j| j.blobs.get(&of.digest));
                let same = blob.is_some_and(|b| b.object == object);
                Ok(((), if same { registry.lost(&of) } else { Vec::new() }))
            })
            .await;
        match marked {
            Ok(()) => Refusal::Lost(key.clone()).into(),
            Err(failure) => failure,
        }
    }
}
