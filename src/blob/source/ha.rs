//! The HA store as a source, read without the server: the newest manifest of the job says which object holds
//! a blob.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};

use crate::error::{Error, ErrorKind, Result};
use crate::store::{Location, Stores};

use super::super::client::{OnWait, Waiting};
use super::super::key::{BlobKey, ClusterId, Digest, JobId, ObjectName};
use super::super::layout::StorePath;
use super::super::lifecycle::{Class, JobState, Refusal};
use super::super::manifest::{LARGEST_MANIFEST, Manifest};
use super::patience::wait_for;
use super::{BlobSource, ByteStream, SourceError};

/// A manifest read so short a time ago is not read again because of a blob that it does not have.
const FRESH: Duration = Duration::from_secs(1);
/// Bytes of one request.
const PIECE_BYTES: u64 = 4 << 20;
/// Requests of one blob under way at once.
const READ_AHEAD: usize = 3;
/// How long the store may take to find a blob, repeats included: another source may have it.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a job's newest manifest said.
#[derive(Debug, Clone)]
struct Known {
    read: Instant,
    state: JobState,
    objects: Arc<HashMap<Digest, ObjectName>>,
}

/// Fetches retained blobs from the HA store.
#[derive(Clone)]
pub struct HaSource {
    stores: Stores,
    root: Location,
    known: Arc<Mutex<HashMap<JobId, Known>>>,
    patience: Duration,
    on_wait: Option<OnWait>,
}

impl fmt::Debug for HaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HaSource")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

impl HaSource {
    /// A source over the HA store at `url` (`blob.retained.url`), of one cluster. No request.
    ///
    /// # Errors
    ///
    /// `Invalid` for a location that is none.
    pub fn new(stores: Stores, url: &Location, cluster: &ClusterId) -> Result<HaSource> {
        Ok(HaSource {
            root: url.join(cluster.as_str())?,
            stores,
            known: Arc::default(),
            patience: PATIENCE,
            on_wait: None,
        })
    }

    /// Gives up the search for a blob after this time, repeats included; 60 s.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> HaSource {
        self.patience = patience;
        self
    }

    /// Is told what is waited for; nobody.
    #[must_use]
    pub fn telling(mut self, on_wait: Option<OnWait>) -> HaSource {
        self.on_wait = on_wait;
        self
    }

    fn known(&self, job: &JobId) -> Option<Known> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(job).cloned()
    }

    /// Reads a job's newest manifest: a listing and a read.
    async fn look(&self, job: &JobId) -> Result<Option<Known>> {
        let read = Instant::now();
        let folder = self.root.join(&format!("jobs/{job}/manifest"))?;
        // The newest may be replaced between the two requests.
        for _ in 0..3 {
            let mut newest: Option<(u64, Location)> = None;
            let mut listing = self.stores.list_stream(&folder)?;
            while let Some((at, _)) = listing.try_next().await? {
                let Some(below) = self.root.strip(&at) else {
                    continue;
                };
                if let Ok(StorePath::Manifest(of, number)) = StorePath::parse(below)
                    && of == *job
                    && newest.as_ref().is_none_or(|(n, _)| *n < number)
                {
                    newest = Some((number, at));
                }
            }
            let Some((number, at)) = newest else {
                return Ok(None);
            };
            let bytes = match self.stores.read(&at, LARGEST_MANIFEST as u64).await {
                Err(e) if crate::store::is_missing_object(&e) => continue,
                other => other?,
            };
            let manifest = Manifest::from_json(&bytes, number).map_err(|e| e.at(&at))?;
            let entries = manifest.content.entries.iter().filter(|e| !e.lost);
            let known = Known {
                read,
                state: manifest.content.state,
                objects: Arc::new(entries.map(|e| (e.digest, e.object)).collect()),
            };
            let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(job.clone(), known.clone());
            return Ok(Some(known));
        }
        let text = "the manifest is replaced faster than it can be read";
        Err(Error::new(ErrorKind::Unavailable, text)
            .during("read")
            .at(&folder))
    }

    /// The object that holds a blob; `again`: the one that is known has not been found.
    async fn object(&self, key: &BlobKey, again: bool) -> Result<ObjectName, SourceError> {
        let failed = |e: Error| match e.kind() {
            ErrorKind::Denied | ErrorKind::Corrupt | ErrorKind::Unsupported => {
                SourceError::Refused(e)
            }
            ErrorKind::NotFound => SourceError::Absent,
            _ => SourceError::Transient(e, None),
        };
        let before = self.known(&key.job);
        let found = before.as_ref().and_then(|k| k.objects.get(&key.digest));
        let known = match (found, &before) {
            (Some(object), _) if !again => return Ok(*object),
            (None, Some(known)) if known.read.elapsed() < FRESH => before,
            _ => self.look(&key.job).await.map_err(failed)?,
        };
        let Some(known) = known else {
            return Err(SourceError::Absent);
        };
        if let JobState::Terminal(outcome) = known.state {
            let over = Refusal::JobOver(key.job.clone(), outcome);
            return Err(SourceError::Gone(over.into_error()));
        }
        known
            .objects
            .get(&key.digest)
            .copied()
            .ok_or(SourceError::Absent)
    }
}

impl HaSource {
    async fn open_now(&self, key: &BlobKey, range: Range<u64>) -> Result<ByteStream, SourceError> {
        let mut again = false;
        loop {
            let object = self.object(key, again).await?;
            let path = StorePath::Object(key.job.clone(), Class::Retained, object);
            let at = self
                .root
                .join(&path.to_string())
                .map_err(SourceError::Refused)?;
            let first_end = range.start.saturating_add(PIECE_BYTES).min(range.end);
            // The first piece tells whether the object is there.
            match self.stores.read_piece(&at, range.start, first_end).await {
                Ok(first) => {
                    let rest = first_end..range.end;
                    let rest = self.stores.pieces(&at, rest, PIECE_BYTES, READ_AHEAD);
                    return Ok(stream::once(async { Ok(first) }).chain(rest).boxed());
                }
                Err(e) if crate::store::is_missing_object(&e) && !again => again = true,
                Err(e) if crate::store::is_missing_object(&e) => return Err(SourceError::Absent),
                Err(e) if e.kind() == ErrorKind::Denied => return Err(SourceError::Refused(e)),
                Err(e) => return Err(SourceError::Transient(e, None)),
            }
        }
    }
}

#[async_trait]
impl BlobSource for HaSource {
    fn label(&self) -> &str {
        "HA store"
    }

    async fn open(&self, key: &BlobKey, range: Range<u64>) -> Result<ByteStream, SourceError> {
        let what = || format!("the look for {key} in the HA store {}", self.root);
        let opened = wait_for(self, what, self.patience, self.open_now(key, range)).await;
        opened.unwrap_or_else(|| {
            let text = format!("no answer for {} s", self.patience.as_secs_f64());
            let e = Error::new(ErrorKind::Unavailable, text)
                .during("read")
                .at(&self.root);
            Err(SourceError::Transient(e, None))
        })
    }

    fn waits(&self, waiting: &Waiting) {
        if let Some(on_wait) = &self.on_wait {
            on_wait.tell(waiting);
        }
    }
}
