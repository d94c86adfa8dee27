//! The start of a server: lock, probe, epoch, seals, recovery. Nothing is downloaded.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use futures::{StreamExt, TryStreamExt};
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::clock::Steady;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Stores, blocking};

use super::super::chain::Verdict;
use super::super::flight::{Flights, Outlives};
use super::super::ha::{HaStore, apart, refuses_the_job};
use super::super::key::{BlobKey, JobId, Moment};
use super::super::layout::LocalPath;
use super::super::local::LocalStore;
use super::super::manifest::Manifest;
use super::super::recovery::{Action, Found, Listed, RefusedJob, recover};
use super::cell::Cell;
use super::{BlobServer, Inner, Metrics, RecoverJobs, ServerConfig};

/// Jobs that are sealed at once.
const SEALS_IN_FLIGHT: usize = 32;
/// Listings until no new job appears.
const MOST_ROUNDS: usize = 10;

/// What a start found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RecoveryReport {
    /// The epoch that was taken.
    pub epoch: u64,
    /// Jobs that have a manifest, ended ones included.
    pub jobs: u64,
    /// Blobs of jobs that have not ended.
    pub blobs: u64,
    /// Objects that no manifest names: they are staged.
    pub staged_objects: u64,
    /// Objects of ended jobs that are being removed.
    pub leftover_objects: u64,
    /// Local files of known blobs; each is verified before its first use.
    pub local_adopted: u64,
    /// Local files of no known blob: they are staged.
    pub local_staged: u64,
    /// Local files that went into the quarantine for their size.
    pub quarantined: u64,
    /// Blobs whose objects were missing or had another size and were written again from local copies.
    pub repaired: Vec<BlobKey>,
    /// Blobs without a good copy, those included that an earlier owner found.
    pub lost: Vec<BlobKey>,
    /// Names that are none of ours, in the HA store and in the local directory: left alone.
    pub foreign: Vec<String>,
    /// Jobs whose manifests cannot be read: nothing of them is touched.
    pub refused: Vec<RefusedJob>,
    /// Jobs that were to be recovered and of which nothing is known.
    pub unknown: Vec<JobId>,
}

fn deposed(epoch: u64) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("epoch {epoch} was taken over while it began"),
    )
    .during("start")
    .hint("another server of this cluster id has just started; one at a time")
}

/// Makes sure that the HA store can be one, and that it is the one that the local directory was used with, before
/// anything is written into it.
async fn found_again(local: LocalStore, ha: HaStore) -> Result<(LocalStore, HaStore)> {
    let names = ha.names_on_disk().await?;
    let (local, known) = blocking(move || {
        let known = local.known_ha_folders()?;
        Ok((local, known))
    })
    .await?;
    if !known.is_disjoint(&names) {
        ha.is_back(local.root()).await?;
    }
    ha.probe().await?.check(ha.folder())?;
    ha.check_format().await?;
    let local = blocking(move || {
        local.remember_ha_folders(&names)?;
        Ok(local)
    })
    .await?;
    Ok((local, ha))
}

/// Seals all jobs, and reads what they are then. The listing is one that was made after all seals.
async fn seal_all(
    ha: &HaStore,
    epoch: u64,
) -> Result<(Vec<Listed>, BTreeMap<JobId, Result<Manifest>>)> {
    let mut sealed: BTreeSet<JobId> = BTreeSet::new();
    let mut unreadable: BTreeMap<JobId, Error> = BTreeMap::new();
    for _ in 0..MOST_ROUNDS {
        let listed = ha.everything().await?;
        let mut jobs = HaStore::jobs(&listed);
        jobs.retain(|j| !sealed.contains(j));
        if jobs.is_empty() {
            sealed.retain(|j| !unreadable.contains_key(j));
            // Those without a manifest have objects alone: orphans.
            let manifests = ha.newest_manifests(&listed, sealed, SEALS_IN_FLIGHT);
            let mut manifests: BTreeMap<_, _> = manifests.try_collect().await?;
            manifests.extend(unreadable.into_iter().map(|(job, e)| (job, Err(e))));
            return Ok((listed, manifests));
        }
        let mut numbers = HaStore::manifest_numbers(&listed);
        let jobs = jobs.into_iter().map(|job| {
            let known = numbers.remove(&job).unwrap_or_default();
            (job, known)
        });
        let seals = futures::stream::iter(jobs)
            .map(|(job, known)| async move {
                let sealed = ha.commit(&job, epoch, None, Some(known)).await;
                (job, sealed)
            })
            .buffer_unordered(SEALS_IN_FLIGHT);
        let mut seals = std::pin::pin!(seals);
        while let Some((job, outcome)) = seals.next().await {
            match outcome {
                Ok(Verdict::Done) => {}
                Ok(Verdict::Fenced) => return Err(deposed(epoch)),
                Err(e) if refuses_the_job(&e) => {
                    unreadable.insert(job.clone(), e);
                }
                Err(e) => return Err(e),
            }
            sealed.insert(job);
        }
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        "new jobs kept appearing in the HA store",
    )
    .during("start")
    .hint("is another server of this cluster id running? stop it"))
}

impl BlobServer {
    /// Locks the local directory, makes sure that the HA store can be one, takes the next epoch, seals every job,
    /// and recovers. Costs two listings of the whole cluster, and per job two reads, a create and a listing; a dozen requests for the probe.
    ///
    /// # Errors
    ///
    /// `Invalid` if HA store and local directory lie in each other; `Refused` if another process has the directory,
    /// if it is somebody else's, and if an HA folder that was used with it is not there; `Unsupported` if the HA store ignores create-if-absent;
    /// `Conflict` if another server starts at the same time; what stores and file system answer. The old state
    /// is intact.
    pub async fn open(
        config: ServerConfig,
        stores: Stores,
    ) -> Result<(BlobServer, RecoveryReport)> {
        apart(&stores, &config.ha, &config.local.directory).await?;
        let options = config.local.clone();
        let (local, listed_local) = blocking(move || LocalStore::open(options)).await?;
        let ha = super::ha_store(stores, &config)?;
        let (local, ha) = found_again(local, ha).await?;
        let clock = Steady::start();
        let epoch = ha.claim().await?;
        let (objects, manifests) = seal_all(&ha, epoch).await?;
        let recovered = match &config.recover {
            RecoverJobs::Only(jobs) => jobs.clone(),
            RecoverJobs::All => {
                let live =
                    |m: &Result<Manifest>| m.as_ref().is_ok_and(|m| !m.content.state.is_terminal());
                let jobs = manifests.iter().filter(|(_, m)| live(m));
                jobs.map(|(job, _)| job.clone()).collect()
            }
        };
        let found = Found {
            epoch,
            manifests,
            objects,
            local: listed_local,
            recover: recovered,
            store_now: ha.store_time(epoch).await?,
            now: Moment(clock.now()),
            orphan_min_age: config.orphan_min_age,
        };
        let recovery = recover(&found, config.settings)?;
        let mut report = RecoveryReport {
            epoch,
            jobs: found.manifests.values().filter(|m| m.is_ok()).count() as u64,
            blobs: recovery
                .registry
                .jobs()
                .map(|(_, j)| j.blobs.len() as u64)
                .sum(),
            ..RecoveryReport::default()
        };
        let cells: BTreeMap<JobId, Arc<Cell>> = recovery
            .registry
            .by_job()
            .into_iter()
            .map(|(job, registry)| (job, Arc::new(Cell::new(registry, true))))
            .collect();
        let inner = Arc::new(Inner {
            trouble: Mutex::default(),
            epoch,
            ha,
            local: Arc::new(local),
            cells: Mutex::new(cells),
            refused: refused(&recovery.actions),
            strays: Mutex::new(HashMap::new()),
            flights: Flights::new(Outlives::Callers),
            fenced: OnceLock::new(),
            closing: AtomicBool::new(false),
            clock,
            disk: Arc::new(Semaphore::new(config.max_transfers.max(1))),
            ha_uploads: Arc::new(Semaphore::new(config.max_ha_uploads.max(1))),
            metrics: Metrics::default(),
            config,
        });
        let server = BlobServer(inner);
        server
            .act(recovery.actions, found.store_now, found.now, &mut report)
            .await?;
        report.lost = server.0.all_lost();
        Ok((server, report))
    }

    async fn act(
        &self,
        actions: Vec<Action>,
        store_now: Moment,
        now: Moment,
        report: &mut RecoveryReport,
    ) -> Result<()> {
        let inner = &self.0;
        let lasting = |e: super::Failure| e.into_error().during("start");
        for action in actions {
            match action {
                Action::StageObject {
                    job,
                    name,
                    not_before,
                } => {
                    // Times between two moments of the store's clock are times of ours.
                    let wait = not_before.0.saturating_sub(store_now.0);
                    let due = Moment(now.0.saturating_add(wait));
                    let cell = inner.cell_or_new(&job).map_err(lasting)?;
                    cell.work().orphans.insert(name, due);
                    report.staged_objects += 1;
                }
                Action::RemoveObject { job, name } => {
                    let cell = inner.cell_or_new(&job).map_err(lasting)?;
                    let mut work = cell.work();
                    work.orphans.insert(name, Moment(0));
                    work.dirty = true;
                    report.leftover_objects += 1;
                }
                Action::AdoptLocal(_) => report.local_adopted += 1,
                Action::StageLocal { key, not_before } => {
                    super::unpoisoned(&inner.strays).insert(key, not_before);
                    report.local_staged += 1;
                }
                Action::RemoveLocal(LocalPath::Blob(job, digest)) => {
                    let key = BlobKey { job, digest };
                    let local = Arc::clone(&inner.local);
                    blocking(move || local.remove(&key)).await?;
                }
                // Parts and trash went when the directory was opened.
                Action::RemoveLocal(_) => {}
                Action::QuarantineLocal { key, size } => {
                    let local = Arc::clone(&inner.local);
                    let why = format!("it has {size} bytes");
                    blocking(move || local.damaged(&key, &why, None)).await?;
                    report.quarantined += 1;
                }
                Action::RepairObject(key) => {
                    let Some(cell) = inner.cell(&key.job).map_err(lasting)? else {
                        continue;
                    };
                    match inner.rewrite_object(&cell, &key).await {
                        Ok(true) => report.repaired.push(key),
                        Ok(false) => {
                            let object = cell
                                .work()
                                .registry
                                .visible(&key)
                                .ok()
                                .and_then(|b| b.object);
                            let failure = inner.all_copies_bad(&key, object).await;
                            if !matches!(failure, super::Failure::Refused(_)) {
                                return Err(lasting(failure));
                            }
                            tracing::error!(%key, %failure, "no good copy is left");
                        }
                        Err(failure) => return Err(lasting(failure)),
                    }
                }
                Action::MarkLost(key) => {
                    tracing::error!(%key, "no copy is left");
                }
                Action::LeaveForeign { path, .. } => report.foreign.push(path),
                Action::RefuseJob { job, why } => report.refused.push(RefusedJob { job, why }),
                Action::NothingKnown(job) => report.unknown.push(job),
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Every blob that is marked as lost.
    pub(super) fn all_lost(&self) -> Vec<BlobKey> {
        let mut lost = Vec::new();
        for (job, cell) in self.all_cells() {
            let work = cell.work();
            let blobs = work.registry.job(&job).map(|j| j.blobs.iter());
            let marked = blobs
                .into_iter()
                .flatten()
                .filter(|(_, b)| b.lost && !b.deleting);
            lost.extend(marked.map(|(digest, _)| BlobKey {
                job: job.clone(),
                digest: *digest,
            }));
        }
        lost
    }
}

fn refused(actions: &[Action]) -> BTreeMap<JobId, String> {
    let refused = actions.iter().filter_map(|a| match a {
        Action::RefuseJob { job, why } => Some((job.clone(), why.clone())),
        _ => None,
    });
    refused.collect()
}
