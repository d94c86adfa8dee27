//! The coordinator's side of a job: what it is started from, its attempts, what is kept.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::ownership::{PinRequest, SharedStateRegistry, announce, inside_of_snapshot, pin, unpin};
use crate::restore::Task;
use crate::snapshot::native::{Manifest, ManifestKind};
use crate::snapshot::{RestoreMode, formats};
use crate::store::{Location, Stores};

use super::assemble::{AttemptShape, OperatorShape, SubtaskKey, reusable_of};
use super::attempt::SnapshotWriter;
use super::catalog;
use super::job::{JobDescription, JobOptions, Source, Start};
use super::names;
use super::order::ReusableFile;
use super::restore::{self, JobSource, Restored, fresh_shapes};
use super::uploads::now;

/// How long after an attempt's deadline its pin still holds: another machine's clock may be wrong by so
/// much. In milliseconds.
const PIN_MARGIN_MS: u64 = 15 * 60_000;

/// How many attempts a coordinator knows as its own: those that may be committed late.
const ATTEMPTS_KNOWN: usize = 1_000;

/// How often the newest snapshot is looked for while it keeps changing.
const TRIES: usize = 10;

/// A running job, as its coordinator sees it. Cheap to clone; clones are the same job.
///
/// Two coordinators of one job may run at once without harm: every checkpoint has the number after that of
/// the newest one that its coordinator knows, and of all attempts at one number exactly one is committed. The
/// coordinator that loses is told, and must restore again.
#[derive(Debug, Clone)]
pub struct Job(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) stores: Stores,
    pub(super) home: Location,
    pub(super) name: String,
    pub(super) options: JobOptions,
    pub(super) operators: Vec<OperatorShape>,
    state: Mutex<State>,
}

/// What changes while a job runs.
#[derive(Debug)]
pub(super) struct State {
    /// The highest number of a checkpoint.
    pub(super) highest: i64,
    /// What the next checkpoint may refer to.
    pub(super) reusable: HashMap<SubtaskKey, Vec<Arc<ReusableFile>>>,
    /// The snapshot that this is of, if it lies in the folder of the job.
    pub(super) base: Option<Location>,
    pub(super) registry: SharedStateRegistry,
    /// Duplicates that the first checkpoint brings. Empty once that is complete.
    pub(super) duplicates: HashMap<SubtaskKey, Vec<Task>>,
    /// Those of them that are made.
    pub(super) duplicated: HashSet<Location>,
    /// The snapshot that the job needs until its first checkpoint is complete.
    pub(super) source: Option<JobSource>,
    /// Attempts at the next number may have left files.
    pub(super) look_for_uploads: bool,
    /// The highest number of a checkpoint in the job's folder that this coordinator knows of.
    pub(super) known: i64,
    /// The attempts of this coordinator at checkpoints, the last ones.
    pub(super) attempts: VecDeque<String>,
    /// Another coordinator has committed a checkpoint.
    pub(super) lost: bool,
}

impl Job {
    /// Starts a job whose snapshots lie in the folder `home`, which is its own: other jobs have other
    /// folders. Returns what it was started from, if that was anything.
    ///
    /// # Cost
    ///
    /// One listing request per 1,000 objects of the folder, one read of a manifest, and a look at each of its
    /// files (one listing request per 1,000); a small write, a listing and a look, by which the snapshot is
    /// kept from cleaners; two looks for each folder above it. Another job's snapshot costs a survey of that job's
    /// folder more.
    ///
    /// # Errors
    ///
    /// `Invalid` for a job without a name, or in the folder of a snapshot; `NotFound` if there is no snapshot where
    /// one was named; `Corrupt` if it is damaged; `Refused` if its
    /// state does not fit the job, if another job has claimed it, or if a clean is about to delete it.
    pub async fn start(
        stores: &Stores,
        home: &Location,
        description: &JobDescription,
        start: &Start,
        options: JobOptions,
    ) -> Result<(Job, Option<Restored>)> {
        description.check()?;
        if home.key().is_empty() {
            return Err(
                Error::invalid("a job needs a folder of its own, not a whole bucket").at(home),
            );
        }
        home.refuse_control_characters()?;
        refuse_inside_snapshot(stores, home).await?;
        let mut before = None;
        for _ in 0..TRIES {
            let catalog = catalog::list(stores, home).await?;
            let highest = catalog.highest();
            match Job::try_start(stores, home, description, start, &options, catalog).await {
                // Another coordinator may have completed a checkpoint meanwhile and let this one go.
                Err(e) if may_have_gone(&e) && before != Some(highest) => before = Some(highest),
                outcome => return outcome,
            }
        }
        Err(lost(home))
    }

    async fn try_start(
        stores: &Stores,
        home: &Location,
        description: &JobDescription,
        start: &Start,
        options: &JobOptions,
        catalog: catalog::Catalog,
    ) -> Result<(Job, Option<Restored>)> {
        let own = match start.own_first {
            true => catalog.newest(stores).await?,
            false => None,
        };
        let (found, mode) = match (own, &start.from) {
            (Some(own), _) => (Some(own), RestoreMode::Claim),
            (None, None) => (None, RestoreMode::Claim),
            (None, Some((source, mode))) => (Some(find(stores, source).await?), *mode),
        };
        let mut state = State {
            highest: catalog.highest(),
            reusable: HashMap::new(),
            base: None,
            registry: SharedStateRegistry::default(),
            duplicates: HashMap::new(),
            duplicated: HashSet::new(),
            source: None,
            look_for_uploads: catalog.has_uploads,
            known: catalog.highest(),
            attempts: VecDeque::new(),
            lost: false,
        };
        let mut operators = fresh_shapes(description);
        let mut restored = None;
        if let Some(found) = found {
            let own = found.directory.parent().as_ref() == Some(home);
            let mode = if own { RestoreMode::Claim } else { mode };
            let number = found.manifest.number;
            // Before its files are looked at, so that none goes afterwards.
            let held = match own {
                true => hold(stores, &found.directory, catalog.highest(), options).await?,
                false => None,
            };
            let directory = found.directory.clone();
            let planned = restore::plan(stores, home, description, found, mode, own).await;
            let mut planned = match (planned, held) {
                (Err(e), Some(name)) => {
                    if let Err(e) = unpin(stores, &directory, &name).await {
                        tracing::warn!(snapshot = %directory, error = %e, "a pin stays until its time is up");
                    }
                    return Err(e);
                }
                (planned, _) => planned?,
            };
            if !own {
                let snapshot = &planned.restored.snapshot;
                planned.restored.unrecorded =
                    restore::record(stores, home, snapshot, mode, &options.also).await?;
                // Numbers go on, so that people see which is newer.
                state.highest = state.highest.max(number);
            }
            let shared: Vec<String> = planned
                .reusable
                .values()
                .flatten()
                .map(|r| r.file.location.to_string())
                .collect();
            let shared = shared.iter().map(|id| (id.as_str(), false));
            state.registry.restore(number, mode, shared);
            state.base = own.then(|| planned.restored.snapshot.clone());
            state.reusable = planned.reusable;
            state.duplicates = planned.duplicates;
            state.source = Some(JobSource {
                snapshot: planned.restored.snapshot.clone(),
                mode,
                own,
            });
            operators = planned.operators;
            restored = Some(planned.restored);
        }
        let inner = Inner {
            stores: stores.clone(),
            home: home.clone(),
            name: description.name.clone(),
            options: options.clone(),
            operators,
            state: Mutex::new(state),
        };
        Ok((Job(Arc::new(inner)), restored))
    }

    /// The folder of the job.
    pub fn home(&self) -> &Location {
        &self.0.home
    }

    /// Begins an attempt at the next checkpoint: one that later ones may build upon.
    ///
    /// Costs a small write, a listing and a look, by which what it builds upon is kept from cleaners.
    ///
    /// # Errors
    ///
    /// `Conflict` if another coordinator has committed a checkpoint of this job meanwhile; `Refused` if a
    /// clean is about to delete what it would build upon, or orphans in the folder of a job whose first checkpoint
    /// refers to duplicates.
    pub async fn checkpoint(&self) -> Result<SnapshotWriter> {
        self.begin(ManifestKind::Checkpoint).await
    }

    /// Begins an attempt at a snapshot for a user: it shares no file with any other, nobody builds upon it,
    /// and it does not count as the first one after a restore. No request.
    ///
    /// # Errors
    ///
    /// As [`Job::checkpoint`].
    pub async fn savepoint(&self) -> Result<SnapshotWriter> {
        self.begin(ManifestKind::Savepoint).await
    }

    async fn begin(&self, kind: ManifestKind) -> Result<SnapshotWriter> {
        let attempt = new_id();
        let created = now();
        let deadline = deadline_of(created, &self.0.options);
        let (number, base, duplicates) = {
            let mut state = self.0.state();
            if state.lost {
                return Err(lost(&self.0.home));
            }
            let next = state.highest.checked_add(1).filter(|n| *n < i64::MAX);
            let number = next.ok_or_else(|| {
                Error::invalid(format!(
                    "no number comes after that of snapshot {}",
                    state.highest
                ))
                .at(&self.0.home)
                .hint("no job counts so far: see who has made the snapshot of this number, and move it elsewhere")
            })?;
            if kind == ManifestKind::Checkpoint {
                state.attempts.push_back(attempt.clone());
                if state.attempts.len() > ATTEMPTS_KNOWN {
                    state.attempts.pop_front();
                }
            }
            (number, state.base.clone(), !state.duplicates.is_empty())
        };
        let shape = AttemptShape {
            job: self.0.name.clone(),
            directory: names::directory(&self.0.home, kind, number, &attempt)?,
            home: self.0.home.clone(),
            number,
            kind,
            attempt,
            created_unix_ms: created,
            operators: self.0.operators.clone(),
        };
        // What is for a user builds upon nothing.
        let base = base.filter(|_| kind == ManifestKind::Checkpoint);
        if let Some(base) = &base {
            let name = names::pin(number, &shape.attempt);
            let reason = format!("an attempt at {} builds upon it", shape.directory);
            let request = pin_until(name, reason, deadline);
            if let Err(e) = pin(&self.0.stores, base, &request).await {
                return Err(match e.kind() {
                    // A newer one has taken its place.
                    ErrorKind::NotFound => lost(&self.0.home).caused_by(e),
                    _ => e,
                });
            }
        }
        if duplicates && kind == ManifestKind::Checkpoint {
            // An attempt of long ago may have made them, and nothing refers to them yet: no cleaner may take them
            // for orphans before the manifest is there.
            let name = names::pin(number, &shape.attempt);
            let reason = format!("an attempt at {} refers to duplicates", shape.directory);
            let request = pin_until(name, reason, deadline);
            announce(&self.0.stores, &shape.directory, &request).await?;
            let announced = Some(shape.directory.clone());
            return Ok(SnapshotWriter::new(
                self.clone(),
                shape,
                deadline,
                announced,
            ));
        }
        Ok(SnapshotWriter::new(self.clone(), shape, deadline, base))
    }
}

/// Keeps the job's own snapshot from cleaners until its first checkpoint is complete, as an attempt at that
/// would: by a pin, whose name is returned. It ends by itself when an attempt would. A store that cannot be
/// written to is only read.
async fn hold(
    stores: &Stores,
    snapshot: &Location,
    highest: i64,
    options: &JobOptions,
) -> Result<Option<String>> {
    let name = names::pin(highest.saturating_add(1), &new_id());
    let reason = "a job was started from it and has no checkpoint yet".to_string();
    let request = pin_until(name, reason, deadline_of(now(), options));
    match pin(stores, snapshot, &request).await {
        Ok(_) => Ok(Some(request.name)),
        Err(e) if e.kind() == ErrorKind::Denied => {
            tracing::warn!(%snapshot, error = %e, "it is not kept from cleaners");
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// An id that nobody else makes: 32 hex digits.
fn new_id() -> String {
    format!("{:016x}{:016x}", clock::random_id(), clock::random_id())
}

/// When an attempt that begins now has no more time.
fn deadline_of(begun_unix_ms: u64, options: &JobOptions) -> u64 {
    let timeout = u64::try_from(options.timeout.as_millis()).unwrap_or(u64::MAX);
    begun_unix_ms.saturating_add(timeout)
}

/// A pin of this writer that ends by itself some time after the deadline of an attempt.
fn pin_until(name: String, reason: String, deadline_unix_ms: u64) -> PinRequest {
    PinRequest {
        name,
        owner: "snapshot writer".to_string(),
        reason,
        expires_unix_ms: Some(deadline_unix_ms.saturating_add(PIN_MARGIN_MS)),
        fork: None,
    }
}

/// True for what a snapshot looks like while it goes.
fn may_have_gone(e: &Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::NotFound | ErrorKind::Corrupt | ErrorKind::Conflict | ErrorKind::Incomplete
    )
}

/// The error for a coordinator that is no longer the only one.
pub(super) fn lost(home: &Location) -> Error {
    Error::new(
        ErrorKind::Conflict,
        "another coordinator of this job has committed a checkpoint",
    )
    .during("write a snapshot of")
    .at(home)
    .hint("start the job again, from its newest snapshot")
}

/// Refuses a folder for a job that lies in the folder of a snapshot, its own or another's: it would go with that
/// one. By the names of the folders above, and by the commit objects in them and in the folder itself.
async fn refuse_inside_snapshot(stores: &Stores, home: &Location) -> Result<()> {
    let refuse = |folder: &Location| {
        Err(Error::invalid(format!(
            "the folder of a job cannot lie in that of a snapshot, which is {folder}"
        ))
        .during("start a job in")
        .at(home)
        .hint("choose a folder beside it: what lies in a snapshot goes with it"))
    };
    if let Some(folder) = inside_of_snapshot(&stores.real(home).await?) {
        return refuse(&folder);
    }
    let above = std::iter::successors(Some(home.clone()), Location::parent);
    let mut looks = Vec::new();
    for folder in above.filter(|folder| !folder.key().is_empty()) {
        for format in formats() {
            looks.push((folder.join(format.commit_object())?, folder.clone()));
        }
    }
    let looks = looks
        .into_iter()
        .map(|(at, folder)| async move { (folder, stores.find(&at).await) });
    for (folder, found) in futures::future::join_all(looks).await {
        match found {
            Ok(Some(_)) => return refuse(&folder),
            Ok(None) => {}
            // Rights often begin at the folder itself.
            Err(e) if matches!(e.kind(), ErrorKind::Denied | ErrorKind::NotFound) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

async fn find(stores: &Stores, source: &Source) -> Result<catalog::FoundSnapshot> {
    let (at, found) = match source {
        Source::NewestOf(home) => (
            home,
            catalog::list(stores, home).await?.newest(stores).await?,
        ),
        Source::Snapshot(directory) => (
            directory,
            match catalog::read(stores, directory).await {
                Ok(found) => Some(found),
                Err(e) if e.kind() == ErrorKind::NotFound => None,
                Err(e) => return Err(e),
            },
        ),
    };
    found.ok_or_else(|| catalog::nothing_there(at))
}

impl Inner {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A checkpoint is complete: from now on it is what the next one builds upon. The snapshot that the
    /// job needed until now, if there was one.
    pub(super) fn advance(
        &self,
        manifest: &Manifest,
        directory: &Location,
    ) -> Result<Option<JobSource>> {
        let reusable = reusable_of(manifest, directory)?;
        let mut state = self.state();
        let mut files = Vec::with_capacity(manifest.files.len());
        for file in &manifest.files {
            files.push(manifest.locate(file, directory)?.to_string());
        }
        state
            .registry
            .confirm(manifest.number, files.iter().map(String::as_str));
        // Only the files of this one can be referred to from now on.
        state.registry.subsume(manifest.number);
        state.highest = state.highest.max(manifest.number);
        state.known = state.known.max(manifest.number);
        state.reusable = reusable;
        state.base = Some(directory.clone());
        state.duplicates.clear();
        state.duplicated.clear();
        state.look_for_uploads = false;
        Ok(state
            .source
            .take()
            .filter(|source| source.mode == RestoreMode::NoClaim))
    }
}
