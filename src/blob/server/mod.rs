//! The owner of a cluster, without a network of its own: upload sessions, references, events of jobs, staged
//! cleanup, scrubbing, recovery.
//!
//! Decisions are the [`Registry`]'s, one for each job; this sends their effects to the local directory and the
//! HA store, in the order that they demand. Events that change what must survive go one after the other, per
//! job, and are answered after the commit; if the commit fails they are taken back. Nothing waits for a lock
//! while bytes move: a reader has a pin, and a sender the names that it has in flight.

mod cell;
mod cleanup;
mod failure;
mod jobs;
mod metrics;
mod reads;
mod scrub;
mod start;
mod uploads;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::clock::Steady;
use crate::error::Result;
use crate::store::{Location, Stores};

use super::flight::Flights;
use super::ha::HaStore;
use super::key::{BlobKey, ClusterId, JobId, Moment};
use super::lifecycle::{Refusal, Settings};
use super::local::{Copy, LocalOptions, LocalStore};
use super::registry::Registry;

pub use cleanup::{Mode, SweepReport};
pub use failure::Failure;
pub use metrics::Metrics;
pub use reads::BlobHandle;
pub use scrub::{Finding, Place, ScrubReport};
pub use start::RecoveryReport;

use cell::Cell;

/// Which jobs keep the holder "job" that their manifests name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RecoverJobs {
    /// All that have not ended.
    #[default]
    All,
    /// These; the blobs of others are staged, unless the job is suspended.
    Only(BTreeSet<JobId>),
}

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// `blob.retained.url`: where the HA store lies.
    pub ha: Location,
    /// `blob.cluster-id`: below it; has one owner at a time.
    pub cluster: ClusterId,
    /// The local directory.
    pub local: LocalOptions,
    /// Times and limits.
    pub settings: Settings,
    /// `blob.sweep.period`; a quarter of the retention interval, at most a minute.
    pub sweep_period: Duration,
    /// `blob.orphan.min-age`: how old, by the HA store's clock, an object must be that no manifest names. The
    /// retention interval.
    pub orphan_min_age: Duration,
    /// The jobs to recover.
    pub recover: RecoverJobs,
    /// `blob.server.advertise`: told to clients that ask a server that is not the owner any more.
    pub advertise: Option<String>,
    /// `blob.server.max-transfers`: blocks that are read for downloads at once. A reader that takes nothing
    /// has none. 50.
    pub max_transfers: usize,
    /// Uploads to the HA store at once, of up to 24 MiB of memory each. 4.
    pub max_ha_uploads: usize,
    /// `blob.client.socket.timeout`: a sender that sends nothing for so long is given up. 60 s.
    pub idle_timeout: Duration,
    /// `blob.server.max-jobs`: jobs that the server knows at once, ended ones that it still remembers included.
    /// 100,000.
    pub max_jobs: usize,
    /// `blob.server.max-sessions`: upload sessions that are open at once, of all jobs. 1,024.
    pub max_sessions: usize,
    /// How long one operation of the HA store may take, repeats included. 45 s.
    pub ha_patience: Duration,
    /// `blob.scrub.rate` in bytes per second. No limit.
    pub scrub_rate: Option<u64>,
}

impl ServerConfig {
    /// The defaults.
    pub fn new(ha: Location, cluster: ClusterId, directory: impl Into<PathBuf>) -> ServerConfig {
        ServerConfig {
            ha,
            cluster,
            local: LocalOptions::new(directory),
            settings: Settings::default(),
            sweep_period: Settings::default().sweep_period(),
            orphan_min_age: Settings::default().retention,
            recover: RecoverJobs::default(),
            advertise: None,
            max_transfers: 50,
            max_ha_uploads: 4,
            max_jobs: 100_000,
            max_sessions: 1024,
            idle_timeout: Duration::from_secs(60),
            ha_patience: Duration::from_secs(45),
            scrub_rate: None,
        }
    }

    /// Sets `blob.retention.interval`, and what follows from it.
    #[must_use]
    pub fn with_retention(mut self, retention: Duration) -> ServerConfig {
        self.settings.retention = retention;
        self.sweep_period = self.settings.sweep_period();
        self.orphan_min_age = retention;
        self
    }
}

/// A later owner has taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fenced {
    /// Its epoch, if it is known.
    pub by: Option<u64>,
    /// Where it can be reached, if it said so.
    pub address: Option<String>,
}

impl Fenced {
    /// Who it is and where, or why nobody can be sent to it; for the end of a sentence: ` by epoch 7 at URL`.
    pub fn by_whom(&self) -> String {
        let epoch = self
            .by
            .map(|n| format!(" by epoch {n}"))
            .unwrap_or_default();
        format!("{epoch}{}", self.at())
    }

    /// Where it is, or why nobody can be sent to it; for the end of a sentence.
    pub fn at(&self) -> String {
        match &self.address {
            Some(address) => format!(" at {address}"),
            None => self.no_address().to_string(),
        }
    }

    /// Why nobody can be sent to it, where it is so; for the end of a sentence.
    pub fn no_address(&self) -> &'static str {
        match (self.by, &self.address) {
            (Some(_), None) => ", whose address is not known: it was started without --advertise",
            _ => "",
        }
    }
}

pub(crate) struct Inner {
    trouble: Mutex<Option<String>>,
    config: ServerConfig,
    epoch: u64,
    ha: HaStore,
    local: Arc<LocalStore>,
    cells: Mutex<BTreeMap<JobId, Arc<Cell>>>,
    /// Jobs whose manifests cannot be read: nothing of them is touched.
    refused: BTreeMap<JobId, String>,
    /// Local files of no known blob: when they may go.
    strays: Mutex<HashMap<BlobKey, Moment>>,
    flights: Flights<Copy, Failure>,
    fenced: OnceLock<Fenced>,
    closing: AtomicBool,
    clock: Steady,
    disk: Arc<Semaphore>,
    ha_uploads: Arc<Semaphore>,
    metrics: Metrics,
}

/// A server of blobs; cheap to clone. See the module.
#[derive(Clone)]
pub struct BlobServer(pub(crate) Arc<Inner>);

impl std::fmt::Debug for BlobServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobServer")
            .field("ha", &self.0.ha.folder())
            .field("epoch", &self.0.epoch)
            .finish_non_exhaustive()
    }
}

fn unpoisoned<T>(lock: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    fn now(&self) -> Moment {
        Moment(self.clock.now())
    }

    /// Fails if this is not the owner any more, or is about to end.
    fn check_owner(&self) -> std::result::Result<(), Failure> {
        match self.fenced.get() {
            Some(fenced) => Err(Failure::NotOwner {
                epoch: self.epoch,
                fenced: fenced.clone(),
            }),
            None if self.closing.load(Ordering::SeqCst) => Err(Failure::Busy {
                wait: Duration::from_secs(1),
                why: "the server is about to end".to_string(),
            }),
            None => Ok(()),
        }
    }

    /// Another owner was seen: from now on nothing is acknowledged, written or deleted.
    async fn step_down(&self, by: Option<u64>) -> Failure {
        let address = match by {
            Some(epoch) => self.ha.owner(epoch).await.ok().and_then(|o| o.address),
            None => None,
        };
        let fenced = Fenced { by, address };
        tracing::error!(epoch = self.epoch, ?fenced, "another owner has taken over");
        let fenced = self.fenced.get_or_init(|| fenced).clone();
        Failure::NotOwner {
            epoch: self.epoch,
            fenced,
        }
    }

    /// Is there a later epoch? One listing.
    async fn look_for_successor(&self) -> std::result::Result<(), Failure> {
        let newest = self.ha.newest_epoch().await?;
        match newest.cmp(&self.epoch) {
            std::cmp::Ordering::Greater => Err(self.step_down(Some(newest)).await),
            std::cmp::Ordering::Equal => Ok(()),
            // A file system that is not mounted, say: nothing is concluded from what is not listed.
            std::cmp::Ordering::Less => Err(Failure::Busy {
                wait: std::time::Duration::from_secs(1),
                why: format!(
                    "the HA store does not list epoch {}, which this server has claimed: is it mounted?",
                    self.epoch
                ),
            }),
        }
    }

    fn cell(&self, job: &JobId) -> std::result::Result<Option<Arc<Cell>>, Failure> {
        if let Some(why) = self.refused.get(job) {
            return Err(Failure::JobRefused(job.clone(), why.clone()));
        }
        Ok(unpoisoned(&self.cells).get(job).map(Arc::clone))
    }

    /// The cell of a job that a call may begin: not more of them than there may be.
    fn cell_to_begin(&self, job: &JobId) -> std::result::Result<Arc<Cell>, Failure> {
        if let Some(cell) = self.cell(job)? {
            return Ok(cell);
        }
        let most = self.config.max_jobs;
        if unpoisoned(&self.cells).len() >= most {
            return Err(Refusal::TooMany("jobs", most).into());
        }
        self.cell_or_new(job)
    }

    fn cell_or_new(&self, job: &JobId) -> std::result::Result<Arc<Cell>, Failure> {
        if let Some(cell) = self.cell(job)? {
            return Ok(cell);
        }
        let mut cells = unpoisoned(&self.cells);
        let cell = cells.entry(job.clone());
        let new = || Arc::new(Cell::new(Registry::new(self.config.settings), false));
        Ok(Arc::clone(cell.or_insert_with(new)))
    }

    fn all_cells(&self) -> Vec<(JobId, Arc<Cell>)> {
        let cells = unpoisoned(&self.cells);
        cells
            .iter()
            .map(|(id, c)| (id.clone(), Arc::clone(c)))
            .collect()
    }
}

impl BlobServer {
    /// The epoch of this owner.
    pub fn epoch(&self) -> u64 {
        self.0.epoch
    }

    /// The server's clock: milliseconds since 1970 as of its start, and what has passed since.
    pub fn now(&self) -> Moment {
        self.0.now()
    }

    /// The settings.
    pub fn config(&self) -> &ServerConfig {
        &self.0.config
    }

    /// Who has taken over, once this is known.
    pub fn fenced(&self) -> Option<&Fenced> {
        self.0.fenced.get()
    }

    /// True while calls are answered.
    pub fn is_ready(&self) -> bool {
        self.0.check_owner().is_ok()
    }

    /// What keeps uploads from being kept, as far as [`watch`](BlobServer::watch) has seen.
    pub fn trouble(&self) -> Option<String> {
        unpoisoned(&self.0.trouble).clone()
    }

    /// Looks again and again, with a pause of `every`, whether this server is still the owner, the HA store answers
    /// and the local directory is there: an idle server would not notice. One listing each time. Ends when another
    /// owner has taken over.
    pub async fn watch(&self, every: std::time::Duration) {
        let inner = &self.0;
        while self.fenced().is_none() {
            crate::clock::sleep(every).await;
            let local = Arc::clone(&inner.local);
            let local = crate::store::blocking(move || match std::fs::metadata(local.root()) {
                Ok(_) => Ok(()),
                Err(e) => Err(local.fails(e, "look at", local.root())),
            });
            let trouble = match (local.await, inner.look_for_successor().await) {
                (_, Err(Failure::NotOwner { .. })) => None,
                (Err(e), _) => Some(e.to_string()),
                (_, Err(failure)) => Some(failure.to_string()),
                (Ok(()), Ok(())) => None,
            };
            let before = std::mem::replace(&mut *unpoisoned(&inner.trouble), trouble.clone());
            match (before, trouble) {
                (None, Some(trouble)) => tracing::warn!(%trouble, "not ready"),
                (Some(_), None) => tracing::info!("ready again"),
                _ => {}
            }
        }
    }

    /// The counters, and what there is, in Prometheus' text format.
    pub fn metrics_text(&self) -> String {
        metrics::render(&self.0)
    }

    /// The counters.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Ends: nothing new is begun, local files go or stay as the settings say, and the HA store is not touched.
    ///
    /// # Errors
    ///
    /// What the file system answers.
    pub async fn close(self) -> Result<()> {
        self.0.closing.store(true, Ordering::SeqCst);
        // What is in the middle of a commit comes to its end.
        for (_, cell) in self.0.all_cells() {
            let _done = cell.serial.lock().await;
        }
        let local = Arc::clone(&self.0.local);
        crate::store::blocking(move || local.close()).await
    }

    /// Cleans up every sweep period, for as long as this future is polled. Failures are logged and tried
    /// again.
    pub async fn maintain(&self) {
        loop {
            crate::clock::sleep(self.0.config.sweep_period).await;
            if self.fenced().is_some() {
                continue;
            }
            if let Err(failure) = self.sweep(Mode::Apply).await {
                self.0.metrics.sweep_failures.add(1);
                tracing::warn!(%failure, "a sweep failed; the next one goes on");
            }
        }
    }
}

/// The settings of `stores` that a server needs of an HA store.
pub(crate) fn ha_store(stores: Stores, config: &ServerConfig) -> Result<HaStore> {
    let ha = HaStore::new(stores, &config.ha, &config.cluster)?;
    Ok(ha
        .with_patience(config.ha_patience)
        .reachable_at(config.advertise.clone()))
}
