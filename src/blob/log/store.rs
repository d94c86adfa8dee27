//! Publishing and reading logs over a client of the blob service.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};

use super::super::client::{BlobClient, Content, Upload};
use super::super::key::{BlobKey, Digest, JobId, LeaseId};
use super::super::lifecycle::Class;
use super::index::{LARGEST_INDEX, LogIndex, LogName, LogPart, display, parse_display};

/// Requests for leases under way at once.
const LEASES_AT_ONCE: usize = 8;
/// Parts that are in memory at once while a log is published.
const PARTS_AT_ONCE: usize = 2;

/// Settings of a [`LogStore`].
#[derive(Debug, Clone, Copy)]
pub struct LogConfig {
    /// Largest part in bytes; as much is in memory for each part that moves. 8 MiB.
    pub largest_part: u64,
    /// How long a log stays after its last publication: 24 hours.
    pub keep: Duration,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig {
            largest_part: 8 << 20,
            keep: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// One log in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogEntry {
    /// The node.
    pub node: String,
    /// The file.
    pub file: String,
    /// How often the file began anew.
    pub incarnation: u64,
    /// The publication.
    pub revision: u64,
}

#[derive(Debug, Clone)]
struct Last {
    index: LogIndex,
    blob: Digest,
    renewed: Instant,
}

/// The logs of a job.
#[derive(Debug)]
pub struct LogStore {
    client: BlobClient,
    job: JobId,
    config: LogConfig,
    last: Mutex<HashMap<LogName, Last>>,
}

impl LogStore {
    /// The logs of `job`. No request.
    pub fn new(client: BlobClient, job: JobId, config: LogConfig) -> LogStore {
        LogStore {
            client,
            job,
            config,
            last: Mutex::default(),
        }
    }

    fn key(&self, digest: &Digest) -> BlobKey {
        BlobKey {
            job: self.job.clone(),
            digest: *digest,
        }
    }

    /// Publishes what a file has now; `None` if there is no such file, and what was published before stays. Of a
    /// log that grew only the tail is sent. One process at a time publishes a log.
    ///
    /// # Errors
    ///
    /// `Conflict` if the file was cut off meanwhile: publish again. As [`BlobClient::upload`].
    pub async fn publish(&self, name: &LogName, file: &Path) -> Result<Option<LogIndex>> {
        let path = file.to_path_buf();
        let opened = crate::store::blocking(move || open(&path)).await?;
        let Some((file, length)) = opened else {
            return Ok(None);
        };
        let file = Arc::new(file);
        let known = self.known(name);
        let before = match known {
            Some(last) => Some(last),
            None => self.find(name).await?,
        };
        let same = match &before {
            Some(last) => self.goes_on(&file, length, &last.index).await?,
            None => false,
        };
        let base = match &before {
            Some(last) if same => last.index.clone(),
            Some(last) => LogIndex::first(last.index.incarnation + 1, last.index.revision),
            None => LogIndex::first(0, 0),
        };
        let (kept, ranges) = base.missing(length, self.config.largest_part);
        if let Some(last) = before.as_ref().filter(|_| same && ranges.is_empty()) {
            return self.renewed(name, last.clone()).await.map(Some);
        }
        let mut index = base.clone();
        index.parts.truncate(kept);
        for some in ranges.chunks(PARTS_AT_ONCE) {
            self.send_parts(&file, some, &mut index).await?;
        }
        index.revision += 1;
        let (head, tail) = LogIndex::marks(length);
        index.head = Digest::of(&read(&file, head).await?);
        index.tail = Digest::of(&read(&file, tail).await?);
        let document = Upload {
            name: Some(display(name, &index)?),
            class: Class::Recreatable,
            content: Content::Bytes(index.to_json()?.into()),
        };
        let sent = self.client.upload(&self.job, &[document]).await?;
        let blob = sent.digests.first().copied();
        let blob = blob.ok_or_else(|| Error::corrupt("an upload came back without its digest"))?;
        let last = Last {
            index: index.clone(),
            blob,
            renewed: Instant::now(),
        };
        let new: BTreeSet<Digest> = held(&last).collect();
        let old: BTreeSet<Digest> = before.iter().flat_map(held).collect();
        let lease = name.lease()?;
        let fresh = before
            .as_ref()
            .is_some_and(|b| b.renewed.elapsed() < self.config.keep / 2);
        let acquire: Vec<Digest> = match fresh {
            // The others have time left.
            true => new.difference(&old).copied().collect(),
            false => new.iter().copied().collect(),
        };
        self.hold(&lease, acquire).await?;
        let remembered = Last {
            renewed: match (&before, fresh) {
                (Some(before), true) => before.renewed,
                _ => last.renewed,
            },
            ..last
        };
        self.remember(name, remembered);
        // The new list is complete and held: what only the old one had may go.
        let released = old.difference(&new).copied();
        stream::iter(released.map(Ok::<_, Error>))
            .try_for_each_concurrent(LEASES_AT_ONCE, |digest| {
                let (key, lease) = (self.key(&digest), &lease);
                async move { self.client.release(&key, lease).await }
            })
            .await?;
        Ok(Some(index))
    }

    async fn send_parts(
        &self,
        file: &Arc<File>,
        ranges: &[Range<u64>],
        index: &mut LogIndex,
    ) -> Result<()> {
        let mut uploads = Vec::new();
        for range in ranges {
            uploads.push(Upload {
                name: None,
                class: Class::Recreatable,
                content: Content::Bytes(read(file, range.clone()).await?),
            });
        }
        let sent = self.client.upload(&self.job, &uploads).await?;
        for (range, digest) in ranges.iter().zip(sent.digests) {
            index.parts.push(LogPart {
                start: range.start,
                end: range.end,
                digest,
            });
        }
        Ok(())
    }

    /// Nothing is new: the leases are renewed when half of their time has gone.
    async fn renewed(&self, name: &LogName, last: Last) -> Result<LogIndex> {
        let index = last.index.clone();
        if last.renewed.elapsed() >= self.config.keep / 2 {
            self.hold(&name.lease()?, held(&last).collect()).await?;
            let renewed = Instant::now();
            self.remember(name, Last { renewed, ..last });
        } else {
            self.remember(name, last);
        }
        Ok(index)
    }

    async fn hold(&self, lease: &LeaseId, digests: Vec<Digest>) -> Result<()> {
        stream::iter(digests.into_iter().map(Ok::<_, Error>))
            .try_for_each_concurrent(LEASES_AT_ONCE, |digest| {
                let key = self.key(&digest);
                async move {
                    self.client
                        .acquire_lease(&key, lease, self.config.keep)
                        .await
                }
            })
            .await
    }

    fn known(&self, name: &LogName) -> Option<Last> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.get(name).cloned()
    }

    fn remember(&self, name: &LogName, last: Last) {
        let mut all = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(name.clone(), last);
    }

    /// True if the file still begins and goes on as it did when it was published.
    async fn goes_on(&self, file: &Arc<File>, length: u64, index: &LogIndex) -> Result<bool> {
        if length < index.length() {
            return Ok(false);
        }
        let (head, tail) = LogIndex::marks(index.length());
        Ok(Digest::of(&read(file, head).await?) == index.head
            && Digest::of(&read(file, tail).await?) == index.tail)
    }

    /// The newest index of each log, by the names of the job's blobs. One request.
    async fn newest(&self) -> Result<BTreeMap<LogName, (u64, u64, Digest)>> {
        let list = match self.client.blobs(&self.job).await {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
            other => other?,
        };
        let mut newest: BTreeMap<LogName, (u64, u64, Digest)> = BTreeMap::new();
        for blob in list.blobs {
            let shown = blob.name.map(|n| n.to_string()).unwrap_or_default();
            let Some((name, incarnation, revision)) = parse_display(&shown) else {
                continue;
            };
            let this = (revision, incarnation, blob.digest);
            let known = newest.entry(name).or_insert(this);
            *known = this.max(*known);
        }
        Ok(newest)
    }

    async fn find(&self, name: &LogName) -> Result<Option<Last>> {
        let newest = self.newest().await?;
        let Some((_, _, blob)) = newest.get(name) else {
            return Ok(None);
        };
        let bytes = self.whole(blob).await?;
        let index = LogIndex::from_json(&bytes).map_err(|e| e.at(self.key(blob)))?;
        Ok(Some(Last {
            index,
            blob: *blob,
            // Another process held it: how long it still will is not known here.
            renewed: Instant::now()
                .checked_sub(self.config.keep)
                .unwrap_or_else(Instant::now),
        }))
    }

    /// A small blob, compared.
    async fn whole(&self, digest: &Digest) -> Result<Bytes> {
        let key = self.key(digest);
        if digest.size > LARGEST_INDEX.max(self.config.largest_part) {
            return Err(Error::corrupt("it is too large for a part of a log")
                .during("read")
                .at(&key));
        }
        for _ in 0..3 {
            let mut download = self.client.download(&key, None).await?;
            let mut bytes = BytesMut::new();
            let broken = loop {
                match download.chunk().await {
                    Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
                    Ok(None) => break None,
                    Err(e) => break Some(e),
                }
            };
            match broken {
                None if Digest::of(&bytes) == *digest => return Ok(bytes.freeze()),
                None => break,
                Some(e) if e.kind() == ErrorKind::Unavailable => {}
                Some(e) => return Err(e),
            }
        }
        Err(Error::corrupt("what the server sends is something else")
            .during("read")
            .at(&key))
    }

    /// The logs that there are. One request.
    ///
    /// # Errors
    ///
    /// `Denied`, `Unavailable`.
    pub async fn list(&self) -> Result<Vec<LogEntry>> {
        let newest = self.newest().await?;
        let entry = |(name, (revision, incarnation, _)): (LogName, _)| LogEntry {
            node: name.node.to_string(),
            file: name.file().to_string(),
            incarnation,
            revision,
        };
        Ok(newest.into_iter().map(entry).collect())
    }

    /// The newest index of a log, or `None` if there is none. Two requests.
    ///
    /// # Errors
    ///
    /// `Corrupt` for a damaged index; as [`list`](LogStore::list).
    pub async fn open(&self, name: &LogName) -> Result<Option<LogIndex>> {
        // The newest may be replaced and gone between the two requests.
        match self.find(name).await {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                Ok(self.find(name).await?.map(|last| last.index))
            }
            other => Ok(other?.map(|last| last.index)),
        }
    }

    /// The bytes of a range, in order; what lies behind the end is left out. One request for each part that holds some
    /// of it: a part is read as a whole and compared.
    ///
    /// # Errors
    ///
    /// In the stream: `NotFound` if a part has gone, since the log has been published anew: open it again; `Corrupt`.
    pub fn read<'a>(
        &'a self,
        index: &LogIndex,
        range: Range<u64>,
    ) -> impl futures::Stream<Item = Result<Bytes>> + use<'a> {
        let parts = index.covering(&range).to_vec();
        stream::iter(parts)
            .map(move |part| async move {
                let bytes = self.whole(&part.digest).await?;
                let from = range_within(&part, range.start);
                let to = range_within(&part, range.end);
                Ok(bytes.slice(from..to))
            })
            .buffered(PARTS_AT_ONCE)
    }
}

/// Where byte `at` of the log lies in a part, or its nearest end.
fn range_within(part: &LogPart, at: u64) -> usize {
    let at = at.clamp(part.start, part.end) - part.start;
    usize::try_from(at).unwrap_or(usize::MAX)
}

fn held(last: &Last) -> impl Iterator<Item = Digest> + '_ {
    let parts = last.index.parts.iter().map(|p| p.digest);
    parts.chain([last.blob])
}

fn open(path: &Path) -> Result<Option<(File, u64)>> {
    let fail = |e| super::super::local::io_error(e, "read", path);
    match File::open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        other => {
            let file = other.map_err(fail)?;
            let length = file.metadata().map_err(fail)?.len();
            Ok(Some((file, length)))
        }
    }
}

/// Bytes of a file, all of them.
async fn read(file: &Arc<File>, range: Range<u64>) -> Result<Bytes> {
    let file = Arc::clone(file);
    crate::store::blocking(move || {
        let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0);
        let mut bytes = BytesMut::zeroed(length);
        file.read_exact_at(&mut bytes, range.start).map_err(|e| {
            let kind = match e.kind() {
                std::io::ErrorKind::UnexpectedEof => ErrorKind::Conflict,
                _ => ErrorKind::Unavailable,
            };
            Error::new(
                kind,
                format!("bytes {range:?} of the log cannot be read: {e}"),
            )
            .during("publish")
            .hint("publish it again")
        })?;
        Ok(bytes.freeze())
    })
    .await
}
