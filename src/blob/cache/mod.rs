//! The cache of a process that uses blobs: verified local files, fetched when they are first asked for.
//!
//! A file is looked for here, then in the sources in their order: the HA store, the server. Bytes land in a
//! temporary file, are compared with the digest, and get their path by a rename. Files are used through a
//! [`JobGuard`], which holds the job, and a [`CachedBlob`], which pins the file. The directory has a
//! limit; what is given up can be fetched again and is not in use.

mod handle;
mod state;

use std::collections::HashSet;
use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::clock;
use crate::error::{Error, ErrorKind, Result};

use super::eviction::CachedFile;
use super::flight::{Flights, Outlives};
use super::key::{BlobKey, Digest, JobId, Moment};
use super::layout::LocalPath;
use super::lifecycle::Class;
use super::local::{Complete, Copy, Incoming, LocalOptions, LocalStore, Look, Opened};
use super::source::{BlobSource, FetchPatience, Part, SourceUse, Sources, fetch};

use handle::Pin;
pub use handle::{CachedBlob, JobGuard};
use state::Uses;

/// Settings of a [`BlobCache`].
#[derive(Debug, Clone)]
pub struct CacheConfig {
    /// The directory: limits, when files are verified again, what becomes of them at the end.
    pub local: LocalOptions,
    /// `blob.retention.interval`: how long files stay that nobody uses. 30 minutes.
    pub retention: Duration,
    /// Verify a file whenever it is asked for, and not only as `local` says.
    pub always_verify: bool,
    /// `blob.fetch.retries`: rounds through the sources after the first: 5.
    pub retries: u32,
    /// The first pause between rounds; it doubles, with jitter: 100 ms.
    pub backoff: Duration,
    /// How long no byte may come from a source: 60 s.
    pub idle_timeout: Duration,
    /// Fetches under way at once: 16.
    pub most_fetches: usize,
}

impl CacheConfig {
    /// The defaults, over this directory.
    pub fn new(local: LocalOptions) -> CacheConfig {
        CacheConfig {
            local,
            retention: Duration::from_secs(30 * 60),
            always_verify: false,
            retries: 5,
            backoff: Duration::from_millis(100),
            idle_timeout: Duration::from_secs(60),
            most_fetches: 16,
        }
    }

    fn patience(&self) -> FetchPatience {
        FetchPatience {
            retries: self.retries,
            backoff: self.backoff,
            idle: self.idle_timeout,
        }
    }
}

/// What a cache has done since it was opened, and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheStats {
    /// Handles given out on a file that was there.
    pub hits: u64,
    /// Fetches begun.
    pub fetches: u64,
    /// Callers that joined a fetch or verification under way.
    pub joined: u64,
    /// Files given up because of the limit.
    pub evictions: u64,
    /// Their bytes.
    pub evicted_bytes: u64,
    /// Files whose time had come.
    pub expired: u64,
    /// Local files that were found damaged.
    pub damaged: u64,
    /// What each source did, in the order in which they are asked.
    pub sources: Vec<SourceUse>,
    /// Files here.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that fetches under way have reserved.
    pub reserved: u64,
}

#[derive(Debug, Default)]
struct Counters {
    hits: AtomicU64,
    fetches: AtomicU64,
    joined: AtomicU64,
    evictions: AtomicU64,
    evicted_bytes: AtomicU64,
    expired: AtomicU64,
    damaged: AtomicU64,
}

pub(crate) struct Shared {
    config: CacheConfig,
    local: Arc<LocalStore>,
    sources: Sources,
    uses: Mutex<Uses>,
    flights: Flights<bool, Error>,
    fetches: Semaphore,
    counters: Counters,
    began: Instant,
    closed: AtomicBool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlobCache")
            .field("directory", &self.local.root())
            .finish_non_exhaustive()
    }
}

/// A cache of blobs in a local directory of its own.
#[derive(Debug)]
pub struct BlobCache {
    shared: Arc<Shared>,
    sweeper: AbortHandle,
}

impl Drop for BlobCache {
    fn drop(&mut self) {
        self.sweeper.abort();
    }
}

impl BlobCache {
    /// Takes the directory, removes what a process before left half done, and adopts its complete files: each
    /// is verified before its first use, and goes after the retention interval if no job needs it.
    ///
    /// # Errors
    ///
    /// `Refused` if another process has the directory; what the file system answers.
    pub async fn open(config: CacheConfig, sources: Vec<Arc<dyn BlobSource>>) -> Result<BlobCache> {
        let mut options = config.local.clone();
        options.durable = false;
        let (local, listed) = crate::store::blocking(move || LocalStore::open(options)).await?;
        let mut uses = Uses::default();
        for found in &listed {
            match LocalPath::parse(&found.path) {
                Ok(LocalPath::Blob(job, digest)) => uses.adopt(&BlobKey { job, digest }, Moment(0)),
                Ok(_) => {}
                Err(_) => {
                    tracing::warn!(
                        path = found.path,
                        "no file of the blob cache; it is left alone"
                    );
                }
            }
        }
        let shared = Arc::new(Shared {
            fetches: Semaphore::new(config.most_fetches.max(1)),
            local: Arc::new(local),
            sources: Sources::new(sources),
            uses: Mutex::new(uses),
            flights: Flights::new(Outlives::Nobody),
            counters: Counters::default(),
            began: Instant::now(),
            closed: AtomicBool::new(false),
            config,
        });
        let period =
            (shared.config.retention / 4).clamp(Duration::from_millis(10), Duration::from_secs(60));
        let swept = Arc::downgrade(&shared);
        let sweeper = tokio::spawn(async move {
            loop {
                clock::sleep(period).await;
                let Some(shared) = swept.upgrade() else {
                    return;
                };
                if let Err(error) = shared.sweep().await {
                    // It is tried again with the next sweep.
                    tracing::warn!(%error, "a file of the blob cache cannot be removed");
                }
            }
        });
        Ok(BlobCache {
            shared,
            sweeper: sweeper.abort_handle(),
        })
    }

    /// Attaches to a job: its files stay as long as a guard lives.
    pub fn attach(&self, job: &JobId) -> JobGuard {
        JobGuard::new(Arc::clone(&self.shared), job.clone())
    }

    /// What has been done, and what is here.
    pub fn stats(&self) -> CacheStats {
        let shared = &self.shared;
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let usage = shared.local.usage();
        CacheStats {
            hits: get(&shared.counters.hits),
            fetches: get(&shared.counters.fetches),
            joined: get(&shared.counters.joined),
            evictions: get(&shared.counters.evictions),
            evicted_bytes: get(&shared.counters.evicted_bytes),
            expired: get(&shared.counters.expired),
            damaged: get(&shared.counters.damaged),
            sources: shared.sources.usage(),
            files: usage.files,
            bytes: usage.used,
            reserved: usage.reserved,
        }
    }

    /// The files that are here, with what an eviction would look at.
    pub fn files(&self) -> Vec<CachedFile> {
        let mut files = self.shared.candidates();
        files.sort_by(|a, b| a.key.cmp(&b.key));
        files
    }

    /// Removes files whose time has come; this happens by itself every quarter of the retention interval.
    ///
    /// # Errors
    ///
    /// What the file system answers; it is tried again by the next sweep.
    pub async fn sweep(&self) -> Result<()> {
        self.shared.sweep().await
    }

    /// Ends: nothing can be fetched any more, and the files go or stay as `blob.local.on-exit` says. Open handles keep
    /// reading what they have open.
    ///
    /// # Errors
    ///
    /// What the file system answers.
    pub async fn close(self) -> Result<()> {
        self.shared.closed.store(true, Ordering::SeqCst);
        let local = Arc::clone(&self.shared.local);
        crate::store::blocking(move || local.close()).await
    }
}

impl Shared {
    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Moment {
        Moment(0).after(self.began.elapsed())
    }

    fn candidates(&self) -> Vec<CachedFile> {
        let keys = self.local.keys();
        let uses = self.uses();
        keys.into_iter()
            .map(|(key, _)| {
                let used = self.local.last_used(&key);
                uses.describe(key, used)
            })
            .collect()
    }

    /// Takes a file off, unless somebody has pinned it meanwhile.
    fn remove_unpinned(&self, key: &BlobKey) -> Result<bool> {
        let mut uses = self.uses();
        if uses.is_pinned(key) {
            return Ok(false);
        }
        // Off its path under the lock: whoever pins later finds no file and fetches it again.
        let trash = self.local.take_off(key)?;
        uses.forget(key);
        drop(uses);
        if let Some(trash) = trash {
            self.local.throw_away(key, &trash);
        }
        Ok(true)
    }

    async fn sweep(self: &Arc<Self>) -> Result<()> {
        let shared = Arc::clone(self);
        crate::store::blocking(move || {
            let files: Vec<BlobKey> = shared.local.keys().into_iter().map(|(k, _)| k).collect();
            let retention = shared.config.retention;
            let due = shared
                .uses()
                .due(files.into_iter(), shared.now(), retention);
            let mut failed = None;
            for key in due {
                match shared.remove_unpinned(&key) {
                    Ok(true) => _ = shared.counters.expired.fetch_add(1, Ordering::Relaxed),
                    Ok(false) => {}
                    Err(e) => failed = Some(e),
                }
            }
            let left: HashSet<BlobKey> = shared.local.keys().into_iter().map(|(k, _)| k).collect();
            shared.uses().forget_others(&left);
            failed.map_or(Ok(()), Err)
        })
        .await
    }

    /// A file that a handle has open turned out to be damaged. What lies at its path by now may be a good one.
    fn quarantine(&self, key: &BlobKey, open: &Copy, what: &str) {
        let inode = |m: std::io::Result<Metadata>| m.map(|m| m.ino()).ok();
        if inode(open.file.metadata()) != inode(std::fs::metadata(&open.path)) {
            return;
        }
        self.counters.damaged.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.local.damaged(key, what, open.inode()) {
            tracing::warn!(%key, %error, "a damaged file stays where it is");
        }
    }

    /// The heart: a verified local file, pinned.
    async fn get(self: &Arc<Self>, key: BlobKey, class: Class) -> Result<CachedBlob> {
        let pin = Pin::new(Arc::clone(self), key.clone(), class);
        if key.digest.is_empty_blob() {
            return Ok(CachedBlob::new(pin, None));
        }
        let mut hit = true;
        // A file may be damaged or gone again between its arrival and its opening; not time after time.
        for turn in 0..3 {
            if self.closed.load(Ordering::SeqCst) {
                return Err(Error::refused("the cache is closed").during("get").at(&key));
            }
            let verify = self.config.always_verify && turn == 0;
            if !verify && !self.local.is_due(&key) {
                match self.look(&key, Look::WhereDue).await? {
                    Opened::Copy(copy) => {
                        if hit {
                            self.counters.hits.fetch_add(1, Ordering::Relaxed);
                        }
                        return Ok(CachedBlob::new(pin, Some(copy)));
                    }
                    Opened::Absent | Opened::Damaged(_) => {}
                }
            }
            let flight = || self.fly(key.clone());
            let joins = || {
                self.counters.joined.fetch_add(1, Ordering::Relaxed);
            };
            hit &= !self.flights.join(&key, flight, joins).await?;
        }
        let text = "the file is damaged or gone as soon as it is there";
        Err(Error::new(ErrorKind::Corrupt, text)
            .during("get")
            .at(&key)
            .hint("is the disk in order, and does nobody else write to the directory?"))
    }

    async fn look(self: &Arc<Self>, key: &BlobKey, look: Look) -> Result<Opened> {
        let (local, wanted, now) = (Arc::clone(&self.local), key.clone(), self.now());
        let opened = crate::store::blocking(move || local.open_copy(&wanted, now, look)).await?;
        if let Opened::Damaged(_) = &opened {
            self.counters.damaged.fetch_add(1, Ordering::Relaxed);
        }
        Ok(opened)
    }

    /// Verifies the file that is here, or fetches it; true if it was fetched. Once for all who wait.
    fn fly(self: &Arc<Self>, key: BlobKey) -> impl Future<Output = Result<bool>> + Send + 'static {
        let shared = Arc::clone(self);
        async move {
            let look = match shared.config.always_verify {
                true => Look::Again,
                false => Look::WhereDue,
            };
            if let Opened::Copy(_) = shared.look(&key, look).await? {
                return Ok(false);
            }
            // Fails only when the semaphore is closed, which it never is.
            let _turn = shared.fetches.acquire().await.ok();
            shared.counters.fetches.fetch_add(1, Ordering::Relaxed);
            let (into, size) = (Arc::clone(&shared), key.digest.size);
            let begin = move || into.begin(size);
            let complete = fetch(&shared.sources, &key, shared.config.patience(), begin).await?;
            let (local, now) = (Arc::clone(&shared.local), shared.now());
            let publish = move || local.publish(complete, &key.job, now);
            let published = crate::store::blocking(publish).await?;
            // Whoever wanted it may have gone meanwhile.
            shared.uses().adopt(&published, now);
            Ok(true)
        }
    }

    /// Makes room for a file and begins it.
    fn begin(&self, size: u64) -> Result<Incoming> {
        let reserved = self.local.reserve(
            size,
            || self.candidates(),
            |key| {
                if self.remove_unpinned(key)? {
                    self.counters.evictions.fetch_add(1, Ordering::Relaxed);
                    let bytes = key.digest.size;
                    self.counters
                        .evicted_bytes
                        .fetch_add(bytes, Ordering::Relaxed);
                }
                Ok(())
            },
        )?;
        self.local.begin(reserved)
    }
}

impl Part for Incoming {
    type Done = Complete;

    fn write(&mut self, pieces: &[Bytes]) -> Result<()> {
        Incoming::write(self, pieces)
    }

    fn finish(self) -> Result<(Digest, Complete)> {
        let complete = self.complete()?;
        Ok((complete.digest(), complete))
    }
}
