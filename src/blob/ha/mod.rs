//! The HA store's edge: sends what the protocol asks for ([`Ask`]) to any location, and hands the reply back.
//!
//! Records are created with create-if-absent and never changed. Each has something random in it, so that a
//! create that meets equal bytes has met its own, of an attempt whose reply was lost.

mod apart;
mod compare;
mod drive;
mod folder;
mod inspect;
mod probe;
mod transfer;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Location, Stores};

use super::chain::{Ask, Reply};
use super::key::{ClusterId, JobId, Moment, ObjectName};
use super::layout::{LAYOUT_VERSION, StorePath};
use super::lifecycle::Class;
use super::manifest::{LARGEST_MANIFEST, Manifest};
use super::recovery::{Listed, RefusedJob};

pub(crate) use apart::{apart, outside_of_stores};
pub use compare::{Comparison, compare};
pub use inspect::{InspectedJob, Inspection, Orphan, inspect};
pub use probe::StoreAbilities;
pub(crate) use transfer::Object;

/// Manifests that a look at a whole cluster reads ahead; each has up to 64 MiB.
const MANIFESTS_READ_AHEAD: usize = 4;

/// Largest record of an epoch and of the format, in bytes.
const LARGEST_RECORD: u64 = 64 * 1024;

/// Who owns a cluster: the content of `epoch/<number>.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// 1.
    pub version: u32,
    /// The epoch.
    pub epoch: u64,
    /// Random.
    pub nonce: String,
    /// Where it can be reached, if it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// When it took over, in milliseconds since 1970 by its own clock.
    pub since_unix_ms: u64,
}

/// The content of `format.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Format {
    version: u32,
    digest: String,
}

/// One cluster's folder in an HA store.
#[derive(Debug, Clone)]
pub struct HaStore {
    stores: Stores,
    folder: Location,
    /// Longest time that one operation may take, repeats included.
    patience: Duration,
    /// What this owner says of itself.
    address: Option<String>,
}

impl HaStore {
    /// The cluster's folder below `url`. No request.
    ///
    /// # Errors
    ///
    /// `Invalid` for a location that makes no client.
    pub fn new(stores: Stores, url: &Location, cluster: &ClusterId) -> Result<HaStore> {
        stores.open(url)?;
        Ok(HaStore {
            folder: url.join(cluster.as_str())?,
            stores,
            patience: Duration::from_secs(45),
            address: None,
        })
    }

    /// Gives up an operation after this time, repeats included; 45 s.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> HaStore {
        self.patience = patience;
        self
    }

    /// Says in the record of an epoch where this owner can be reached.
    #[must_use]
    pub fn reachable_at(mut self, address: Option<String>) -> HaStore {
        self.address = address;
        self
    }

    /// The cluster's folder.
    pub fn folder(&self) -> &Location {
        &self.folder
    }

    /// Where a path lies.
    pub(crate) fn at(&self, path: &StorePath) -> Result<Location> {
        self.folder.join(&path.to_string())
    }

    /// What lies below a folder of ours, relative to the cluster's.
    async fn list(&self, below: &str) -> Result<Vec<Listed>> {
        let folder = match below {
            "" => self.folder.clone(),
            below => self.folder.join(below)?,
        };
        let found = self.stores.list(&folder).await?;
        let mut listed = Vec::with_capacity(found.len());
        for (at, stat) in found {
            let path = self.folder.strip(&at).ok_or_else(|| {
                Error::new(ErrorKind::Internal, "a listing names what is elsewhere").at(&at)
            })?;
            listed.push(Listed {
                path: path.trim_start_matches('/').to_string(),
                size: stat.size,
                modified: Moment(stat.modified.unwrap_or(0)),
            });
        }
        Ok(listed)
    }

    /// Everything below the cluster's folder. One request per 1,000 objects.
    ///
    /// # Errors
    ///
    /// As [`Stores::list`].
    pub(crate) async fn everything(&self) -> Result<Vec<Listed>> {
        self.list("").await
    }

    async fn numbers(&self, below: &str) -> Result<Vec<u64>> {
        let listed = self.list(below).await?;
        let number = |l: &Listed| match StorePath::parse(&l.path) {
            Ok(StorePath::Epoch(n) | StorePath::Manifest(_, n)) => Some(n),
            _ => None,
        };
        Ok(listed.iter().filter_map(number).collect())
    }

    /// The largest epoch; 0 if there is none. One listing.
    pub(crate) async fn newest_epoch(&self) -> Result<u64> {
        Ok(self.numbers("epoch").await?.into_iter().max().unwrap_or(0))
    }

    /// The epoch of the newest owner. One listing.
    ///
    /// # Errors
    ///
    /// `NotFound` if no server ever owned the cluster.
    pub async fn owned_epoch(&self) -> Result<u64> {
        match self.newest_epoch().await? {
            0 => Err(Error::new(ErrorKind::NotFound, "no blob store is here")
                .at(&self.folder)
                .hint("check --ha and --cluster; the first `forkpoint blob serve` makes one")),
            epoch => Ok(epoch),
        }
    }

    /// Who owns an epoch. One request.
    pub(crate) async fn owner(&self, epoch: u64) -> Result<Owner> {
        let at = self.at(&StorePath::Epoch(epoch))?;
        let bytes = self.stores.read(&at, LARGEST_RECORD).await?;
        serde_json::from_slice(&bytes)
            .map_err(|e| Error::corrupt(e.to_string()).during("read").at(&at))
    }

    /// Jobs that have a manifest or an object. One listing.
    pub(crate) fn jobs(listed: &[Listed]) -> BTreeSet<JobId> {
        let job = |l: &Listed| match StorePath::parse(&l.path) {
            Ok(StorePath::Manifest(job, _) | StorePath::Object(job, ..)) => Some(job),
            _ => None,
        };
        listed.iter().filter_map(job).collect()
    }

    /// The numbers of manifests among what was listed, by job.
    pub(crate) fn manifest_numbers(listed: &[Listed]) -> BTreeMap<JobId, Vec<u64>> {
        let mut numbers: BTreeMap<JobId, Vec<u64>> = BTreeMap::new();
        for l in listed {
            if let Ok(StorePath::Manifest(job, number)) = StorePath::parse(&l.path) {
                numbers.entry(job).or_default().push(number);
            }
        }
        numbers
    }

    /// The newest manifest among what was listed; `None` if the job has none. One request.
    async fn newest_manifest(
        &self,
        numbers: &BTreeMap<JobId, Vec<u64>>,
        job: &JobId,
    ) -> Result<Option<Manifest>> {
        let Some(newest) = numbers.get(job).and_then(|n| n.iter().copied().max()) else {
            return Ok(None);
        };
        match self.perform(Some(job), &Ask::ReadManifest(newest)).await? {
            Reply::Manifest(manifest) => Ok(manifest),
            _ => Err(no_answer()),
        }
    }

    /// The newest manifest of each of these jobs among what was listed, or why it cannot be read; jobs without one
    /// are left out. In the order of `jobs`, up to `at_once` read ahead. One request for each.
    pub(crate) fn newest_manifests<'a>(
        &'a self,
        listed: &[Listed],
        jobs: impl IntoIterator<Item = JobId, IntoIter: Send + 'a>,
        at_once: usize,
    ) -> impl Stream<Item = Result<(JobId, Result<Manifest>)>> + Send + 'a {
        let numbers = Arc::new(Self::manifest_numbers(listed));
        futures::stream::iter(jobs)
            .map(move |job| {
                let numbers = Arc::clone(&numbers);
                async move {
                    match self.newest_manifest(&numbers, &job).await {
                        Ok(manifest) => Ok(manifest.map(|m| (job, Ok(m)))),
                        Err(e) if refuses_the_job(&e) => Ok(Some((job, Err(e)))),
                        Err(e) => Err(e),
                    }
                }
            })
            .buffered(at_once)
            .try_filter_map(|found| std::future::ready(Ok(found)))
    }

    /// Creates what is not there. `Unknown` if no answer came.
    async fn create(&self, path: &StorePath, bytes: Vec<u8>) -> Result<Reply<Manifest>> {
        self.still_there().await?;
        match self
            .stores
            .put(&self.at(path)?, Bytes::from(bytes), true)
            .await
        {
            Ok(_) => Ok(Reply::Created),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(Reply::Taken),
            Err(e) if may_be_done(&e) => {
                tracing::debug!(error = %e, "no answer to a create");
                Ok(Reply::Unknown)
            }
            Err(e) => Err(e),
        }
    }

    fn job_path(job: Option<&JobId>) -> Result<&JobId> {
        job.ok_or_else(|| Error::new(ErrorKind::Internal, "a request about no job"))
    }

    /// Sends one request. What is transient gives [`Reply::Unknown`], which the machines ask again or leave.
    ///
    /// # Errors
    ///
    /// What will not pass by itself: no right, no bucket, a manifest that cannot be read.
    pub(crate) async fn perform(
        &self,
        job: Option<&JobId>,
        ask: &Ask<Manifest>,
    ) -> Result<Reply<Manifest>> {
        let unknown = |e: Error| match may_be_done(&e) {
            true => {
                tracing::debug!(error = %e, "no answer");
                Ok(Reply::Unknown)
            }
            false => Err(e),
        };
        match ask {
            Ask::ListEpochs => self
                .numbers("epoch")
                .await
                .map(Reply::Numbers)
                .or_else(unknown),
            Ask::CreateEpoch(epoch) => {
                let owner = Owner {
                    version: LAYOUT_VERSION,
                    epoch: *epoch,
                    nonce: format!("{:016x}", clock::random_id()),
                    address: self.address.clone(),
                    since_unix_ms: u64::try_from(clock::unix_millis()).unwrap_or(0),
                };
                self.create(&StorePath::Epoch(*epoch), json(&owner)?).await
            }
            Ask::ListManifests => {
                let below = format!("jobs/{}/manifest", Self::job_path(job)?);
                self.numbers(&below)
                    .await
                    .map(Reply::Numbers)
                    .or_else(unknown)
            }
            Ask::ReadManifest(number) => {
                let path = StorePath::Manifest(Self::job_path(job)?.clone(), *number);
                let at = self.at(&path)?;
                match self.stores.read(&at, LARGEST_MANIFEST as u64).await {
                    Ok(bytes) => {
                        let read = Manifest::from_json(&bytes, *number).map_err(|e| e.at(&at))?;
                        Ok(Reply::Manifest(Some(read)))
                    }
                    Err(e) if crate::store::is_missing_object(&e) => Ok(Reply::Manifest(None)),
                    Err(e) => unknown(e),
                }
            }
            Ask::CreateManifest(number, manifest) => {
                let path = StorePath::Manifest(Self::job_path(job)?.clone(), *number);
                let document = manifest.to_json()?;
                if document.len() > LARGEST_MANIFEST {
                    return Err(Error::refused(format!(
                        "its manifest would have {} bytes, and is read up to {LARGEST_MANIFEST}",
                        document.len()
                    ))
                    .during("commit")
                    .at(self.at(&path)?)
                    .hint("end the job, release blobs, or spread them over several jobs"));
                }
                self.create(&path, document).await
            }
            Ask::RemoveManifest(number) => {
                let path = StorePath::Manifest(Self::job_path(job)?.clone(), *number);
                let removed = self.stores.delete(&self.at(&path)?).await;
                removed.map(|()| Reply::Removed).or_else(unknown)
            }
            Ask::ListObjects => {
                let below = format!("jobs/{}/{}", Self::job_path(job)?, Class::Retained.as_str());
                match self.list(&below).await {
                    Ok(listed) => Ok(Reply::Names(object_names(&listed))),
                    Err(e) => unknown(e),
                }
            }
            Ask::RemoveObject(name) => {
                let at = self.object_at(Self::job_path(job)?, name)?;
                let removed = self.stores.delete(&at).await;
                removed.map(|()| Reply::Removed).or_else(unknown)
            }
            // Not the store's: the driver answers it.
            Ask::CopyInFlight => Ok(Reply::Unknown),
        }
    }

    pub(crate) fn object_at(&self, job: &JobId, name: &ObjectName) -> Result<Location> {
        self.at(&StorePath::Object(job.clone(), Class::Retained, *name))
    }

    /// The numbers of a job's manifests. One listing.
    pub(crate) async fn manifests(&self, job: &JobId) -> Result<Vec<u64>> {
        self.numbers(&format!("jobs/{job}/manifest")).await
    }

    /// Removes the manifests that were listed of a job of which nothing is left and whose tombstone has had its
    /// time, the newest one last. Between the listing and this a look for a later owner is due.
    ///
    /// # Errors
    ///
    /// What the store answers; a repeat goes on.
    pub(crate) async fn forget(&self, job: &JobId, mut numbers: Vec<u64>) -> Result<()> {
        numbers.sort_unstable();
        for number in numbers {
            let path = StorePath::Manifest(job.clone(), number);
            self.stores.delete(&self.at(&path)?).await?;
        }
        Ok(())
    }

    /// Writes `format.json`, or checks the one that is there.
    ///
    /// # Errors
    ///
    /// `Unsupported` for another layout.
    pub(crate) async fn check_format(&self) -> Result<()> {
        let at = self.at(&StorePath::Format)?;
        let ours = Format {
            version: LAYOUT_VERSION,
            digest: "sha256".to_string(),
        };
        match self.stores.put(&at, Bytes::from(json(&ours)?), true).await {
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
        let bytes = self.stores.read(&at, LARGEST_RECORD).await?;
        let theirs: Format = serde_json::from_slice(&bytes)
            .map_err(|e| Error::corrupt(e.to_string()).during("read").at(&at))?;
        match theirs == ours {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "its layout has version {} with {}",
                    theirs.version, theirs.digest
                ),
            )
            .during("open")
            .at(&at)
            .hint("use the program that wrote it, or another cluster id")),
        }
    }

    /// When the store says that the record of an epoch was made: its clock. One request.
    pub(crate) async fn store_time(&self, epoch: u64) -> Result<Moment> {
        let stat = self
            .stores
            .stat(&self.at(&StorePath::Epoch(epoch))?)
            .await?;
        Ok(Moment(stat.modified.unwrap_or(0)))
    }
}

/// The manifest; or none of a job that is not served for it, which `refused` then lists.
fn readable(
    job: &JobId,
    manifest: Result<Manifest>,
    refused: &mut Vec<RefusedJob>,
) -> Option<Manifest> {
    let why = match manifest {
        Ok(manifest) => return Some(manifest),
        Err(e) => e.to_string(),
    };
    let job = job.clone();
    refused.push(RefusedJob { job, why });
    None
}

/// True of an error that says of a manifest that it cannot be read now or later: its job is not served, and the
/// others are.
pub(crate) fn refuses_the_job(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported)
}

/// The objects among what was listed.
pub(crate) fn object_names(listed: &[Listed]) -> BTreeSet<ObjectName> {
    let name = |l: &Listed| match StorePath::parse(&l.path) {
        Ok(StorePath::Object(_, _, name)) => Some(name),
        _ => None,
    };
    listed.iter().filter_map(name).collect()
}

fn json(record: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(record).map_err(|e| {
        Error::new(
            ErrorKind::Internal,
            format!("a record cannot be written: {e}"),
        )
    })
}

/// Nobody knows whether it was done. A disk that is full may be so only after the file has its name.
fn may_be_done(e: &Error) -> bool {
    e.kind().is_transient() || e.kind() == ErrorKind::Full
}

pub(crate) fn no_answer() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the HA store gave no answer in time",
    )
    .hint("nothing was acknowledged; try again when the store answers")
}
