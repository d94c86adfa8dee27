//! One attempt at one snapshot, as its coordinator sees it: orders out, acknowledgements in, commit or abort.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use futures::TryStreamExt;
use serde_json::{Map, Value};

use crate::error::{Error, ErrorKind, Result};
use crate::ownership::clean::remove_ended;
use crate::ownership::{refuse_destination, unpin};
use crate::snapshot::RestoreMode;
use crate::snapshot::native::{MANIFEST_LIMIT_BYTES, Manifest, ManifestKind, ManifestScope};
use crate::store::Location;

use super::assemble::{self, AttemptShape, SubtaskKey};
use super::coordinator::{Job, lost};
use super::names;
use super::order::{Acknowledgement, FileRef, ORDER_VERSION, Origin, SubtaskOrder};
use super::restore::release_source;
use super::uploads::now;

/// What the engine and its users add to a snapshot.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Details {
    /// Numbers by which snapshots are compared, such as a loss; finite ones.
    pub metrics: BTreeMap<String, f64>,
    /// Anything small: with the metrics at most 100,000 values and 1 MiB of text.
    pub user: Map<String, Value>,
}

/// A snapshot that is complete.
#[derive(Debug, Clone, PartialEq)]
pub struct CommittedSnapshot {
    /// Its folder.
    pub directory: Location,
    /// Its manifest.
    pub manifest: Manifest,
    /// Bytes that were uploaded for it.
    pub uploaded_bytes: u64,
    /// Bytes that it refers to and that were there before.
    pub reused_bytes: u64,
}

/// What a commit came to.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub enum CommitOutcome {
    /// The snapshot is complete.
    Committed(Box<CommittedSnapshot>),
    /// Another attempt was first: mostly that of another coordinator, who is the only one from now on. After
    /// one of this coordinator the next checkpoint can be begun.
    Lost {
        /// The number that both wanted.
        number: i64,
        /// The other attempt.
        winner: String,
    },
}

impl CommitOutcome {
    /// The snapshot, if it is complete.
    ///
    /// # Errors
    ///
    /// `Conflict` if another attempt was first.
    pub fn committed(self) -> Result<CommittedSnapshot> {
        match self {
            CommitOutcome::Committed(snapshot) => Ok(*snapshot),
            CommitOutcome::Lost { number, winner } => Err(Error::new(
                ErrorKind::Conflict,
                format!("attempt {winner} was first, at snapshot {number} or near it"),
            )
            .hint("start the job again, from its newest snapshot")),
        }
    }
}

/// One attempt at one snapshot.
#[derive(Debug)]
pub struct SnapshotWriter {
    job: Job,
    shape: AttemptShape,
    deadline_unix_ms: u64,
    /// What is pinned for it: the snapshot that it builds upon, or its own, which is yet to come.
    base: Option<Location>,
    orders: BTreeMap<SubtaskKey, SubtaskOrder>,
    acks: BTreeMap<SubtaskKey, Acknowledgement>,
    /// The manifest and what it says, once a commit was tried: another try writes the same.
    written: Option<(Manifest, Bytes)>,
}

impl SnapshotWriter {
    pub(super) fn new(
        job: Job,
        shape: AttemptShape,
        deadline_unix_ms: u64,
        base: Option<Location>,
    ) -> SnapshotWriter {
        let mut orders = BTreeMap::new();
        let state = job.0.state();
        for (n, operator) in shape.operators.iter().enumerate() {
            for subtask in 0..operator.parallelism {
                let key = (n, subtask);
                let is_checkpoint = shape.kind == ManifestKind::Checkpoint;
                let order = SubtaskOrder {
                    version: ORDER_VERSION,
                    home: shape.home.clone(),
                    directory: shape.directory.clone(),
                    number: shape.number,
                    kind: shape.kind,
                    attempt: shape.attempt.clone(),
                    deadline_unix_ms,
                    operator: operator.id.clone(),
                    subtask,
                    key_groups: operator.key_groups(subtask),
                    max_parallelism: operator.max_parallelism,
                    reusable: match is_checkpoint {
                        true => state.reusable.get(&key).cloned().unwrap_or_default(),
                        false => Vec::new(),
                    },
                    duplicates: match is_checkpoint {
                        true => state.duplicates.get(&key).cloned().unwrap_or_default(),
                        false => Vec::new(),
                    },
                    look_for_uploads: is_checkpoint && state.look_for_uploads,
                };
                orders.insert(key, order);
            }
        }
        drop(state);
        SnapshotWriter {
            job,
            shape,
            deadline_unix_ms,
            base,
            orders,
            acks: BTreeMap::new(),
            written: None,
        }
    }

    /// The number of the snapshot.
    pub fn number(&self) -> i64 {
        self.shape.number
    }

    /// The attempt: 32 hex digits.
    pub fn attempt(&self) -> &str {
        &self.shape.attempt
    }

    /// The folder of the snapshot.
    pub fn directory(&self) -> &Location {
        &self.shape.directory
    }

    /// What each subtask must know: to be carried to it, as a document if it is another process.
    pub fn orders(&self) -> impl Iterator<Item = &SubtaskOrder> {
        self.orders.values()
    }

    /// The order of one subtask.
    ///
    /// # Errors
    ///
    /// `Invalid` for a subtask that the job does not have.
    pub fn order(&self, operator: &str, subtask: u32) -> Result<&SubtaskOrder> {
        let key = self.key(operator, subtask)?;
        self.orders
            .get(&key)
            .ok_or_else(|| no_subtask(operator, subtask))
    }

    fn key(&self, operator: &str, subtask: u32) -> Result<SubtaskKey> {
        let operators = &self.shape.operators;
        operators
            .iter()
            .position(|o| o.id == operator && subtask < o.parallelism)
            .map(|n| (n, subtask))
            .ok_or_else(|| no_subtask(operator, subtask))
    }

    /// Takes what a subtask has written. False for one that has acknowledged before, whose first
    /// acknowledgement counts. No request.
    ///
    /// # Errors
    ///
    /// `Conflict` for that of another attempt; `Refused` for files that the subtask cannot have written or
    /// been given.
    pub fn acknowledge(&mut self, ack: Acknowledgement) -> Result<bool> {
        if ack.attempt != self.shape.attempt {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "subtask {} of {} acknowledges attempt {}, this is {}",
                    ack.subtask, ack.operator, ack.attempt, self.shape.attempt
                ),
            ));
        }
        let key = self.key(&ack.operator, ack.subtask)?;
        if self.acks.contains_key(&key) {
            return Ok(false);
        }
        let order = self.orders.get(&key);
        let reusable = order.map_or(&[][..], |order| &order.reusable);
        assemble::check_acknowledgement(&self.shape, &ack, key.0, reusable)?;
        self.acks.insert(key, ack);
        Ok(true)
    }

    /// The subtasks that have not acknowledged yet: operator and number.
    pub fn missing(&self) -> Vec<(&str, u32)> {
        self.orders
            .iter()
            .filter(|(key, _)| !self.acks.contains_key(key))
            .map(|(_, order)| (order.operator.as_str(), order.subtask))
            .collect()
    }

    /// True once the attempt can no longer be committed.
    pub fn is_expired(&self) -> bool {
        now() >= self.deadline_unix_ms
    }

    /// Commits: writes the manifest, unless another attempt has written one.
    ///
    /// After an error that may be temporary it may be tried again: a manifest that is there already and is
    /// this attempt's counts as written.
    ///
    /// # Cost
    ///
    /// Two small writes, a listing and some deletes; a look at each file that an attempt before had left, and for
    /// the first checkpoint of a job started without claim at each duplicate.
    ///
    /// # Errors
    ///
    /// `Incomplete` while acknowledgements are missing; `Refused` when the attempt's time is up, or for
    /// references to what no complete snapshot has; and what the store answers.
    pub async fn commit(&mut self, details: &Details) -> Result<CommitOutcome> {
        let outcome = self.try_commit(details).await;
        outcome.map_err(|e| e.during("commit").at(&self.shape.directory))
    }

    async fn try_commit(&mut self, details: &Details) -> Result<CommitOutcome> {
        let (manifest, bytes) = match &self.written {
            Some(written) => written.clone(),
            None => self.prepare(details).await?,
        };
        self.written = Some((manifest.clone(), bytes.clone()));
        let stores = &self.job.0.stores;
        let at = names::commit_object(&self.shape.directory)?;
        if let Some(winner) = self.overtaken().await? {
            return self.lose(winner, None).await;
        }
        // Too late to write; but an earlier try may have written, and its answer was lost.
        let put = match self.is_expired() {
            false => stores.put(&at, bytes.clone(), true).await.map(drop),
            true => Err(too_late()),
        };
        if let Err(e) = put {
            if !matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::Refused) {
                return Err(e);
            }
            match stores.read(&at, MANIFEST_LIMIT_BYTES).await {
                Ok(there) if there == bytes => {}
                Ok(there) => {
                    let there = Manifest::decode(&there).ok();
                    let winner = there.as_ref().map(|m| m.attempt.clone());
                    return self.lose(winner.unwrap_or_default(), there).await;
                }
                Err(_) => return Err(e),
            }
        }
        if self.shape.kind == ManifestKind::Checkpoint {
            if let Some(winner) = self.settle(&self.shape.attempt).await? {
                return self.lose(winner, None).await;
            }
            let source = self.job.0.advance(&manifest, &self.shape.directory)?;
            if let Some(source) = source {
                release_source(stores, &self.shape.home, &source).await;
            }
        }
        let sum = |of: fn(&Acknowledgement) -> u64| self.acks.values().map(of).sum();
        Ok(CommitOutcome::Committed(Box::new(CommittedSnapshot {
            directory: self.shape.directory.clone(),
            uploaded_bytes: sum(Acknowledgement::uploaded_bytes),
            reused_bytes: sum(Acknowledgement::reused_bytes),
            manifest,
        })))
    }

    /// Checks everything, and makes the manifest.
    async fn prepare(&self, details: &Details) -> Result<(Manifest, Bytes)> {
        let missing = self.missing();
        if let Some((operator, subtask)) = missing.first() {
            return Err(Error::new(
                ErrorKind::Incomplete,
                format!(
                    "{} of {} subtasks have not acknowledged, such as subtask {subtask} of {operator}",
                    missing.len(),
                    self.orders.len()
                ),
            ));
        }
        if self.is_expired() {
            return Err(too_late());
        }
        self.look_at_unused().await?;
        let is_checkpoint = self.shape.kind == ManifestKind::Checkpoint;
        if is_checkpoint {
            let mut state = self.job.0.state();
            if state.lost {
                return Err(lost(&self.shape.home));
            }
            let made: Vec<Location> = self
                .acks
                .values()
                .flat_map(|ack| ack.duplicated.iter().cloned())
                .collect();
            state.duplicated.extend(made);
            let duplicated = state.duplicated.clone();
            assemble::register(&mut state.registry, &self.shape, &self.acks, &duplicated)?;
            let without_claim = state.source.as_ref().map(|s| s.mode) == Some(RestoreMode::NoClaim);
            drop(state);
            if without_claim {
                self.prove_independence()?;
            }
        }
        let (metrics, user) = (details.metrics.clone(), details.user.clone());
        let manifest = assemble::manifest(&self.shape, &self.acks, metrics, user)?;
        let bytes = manifest.encode()?;
        Ok((manifest, Bytes::from(bytes)))
    }

    /// A clean may have taken what no snapshot refers to since a subtask has looked at it: what an attempt before
    /// had left, and duplicates, which one of long ago may have made.
    async fn look_at_unused(&self) -> Result<()> {
        let duplicates: HashSet<Location> = {
            let state = self.job.0.state();
            let tasks = state.duplicates.values().flatten();
            tasks.map(|task| task.destination.clone()).collect()
        };
        let files = self.acks.values().flat_map(|ack| &ack.files);
        let unused: Vec<&FileRef> = files
            .filter(|f| match f.origin {
                Origin::Uploaded => false,
                Origin::Unconfirmed => true,
                Origin::Reused => duplicates.contains(&f.file.location),
            })
            .map(|f| &f.file)
            .collect();
        if unused.is_empty() {
            return Ok(());
        }
        let stores = &self.job.0.stores;
        // Duplicates have the same names at each try, and may be older than anything that a clean passes over. The
        // attempt has announced itself before it relied upon them; this is for one whose pin somebody has removed.
        if unused.iter().any(|f| duplicates.contains(&f.location)) {
            refuse_destination(stores, &self.shape.directory).await?;
        }
        let places: Vec<Location> = unused.iter().map(|f| f.location.clone()).collect();
        let there = stores.stat_all(&places).await?;
        let is_there = |file: &FileRef| matches!(there.get(&file.location), Some(Some(stat)) if stat.size == file.size);
        match unused.into_iter().find(|file| !is_there(file)) {
            None => Ok(()),
            Some(gone) => Err(Error::new(
                ErrorKind::Conflict,
                "a file that no snapshot referred to yet has gone since a subtask has looked at it",
            )
            .at(&gone.location)
            .hint("begin another attempt")),
        }
    }

    /// The first checkpoint after a restore without claim refers to nothing outside the job's folder.
    fn prove_independence(&self) -> Result<()> {
        let mut files = self.acks.values().flat_map(|ack| &ack.files);
        let outside = files.find(|f| {
            f.scope == ManifestScope::Shared && !self.shape.home.contains(&f.file.location)
        });
        match outside {
            None => Ok(()),
            Some(file) => Err(Error::refused(
                "the first checkpoint of a job started without claim would depend on another job's file",
            )
            .at(&file.file.location)),
        }
    }

    /// Whether another coordinator has committed a checkpoint that this one does not know, and that has
    /// another number. No request but for a first checkpoint whose number comes after that of another job's
    /// snapshot: only then numbers are left out.
    async fn overtaken(&self) -> Result<Option<String>> {
        let shape = &self.shape;
        let known = self.job.0.state().known;
        if shape.kind != ManifestKind::Checkpoint || shape.number <= known.saturating_add(1) {
            return Ok(None);
        }
        let notes = names::commits(&shape.home)?;
        let listed: Vec<_> = match self.job.0.stores.list_stream(&notes)?.try_collect().await {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            listed => listed?,
        };
        let notes = listed
            .iter()
            .filter_map(|(at, _)| names::of_commit_note(at));
        let state = self.job.0.state();
        let is_own = |other: &str| state.attempts.iter().any(|own| own == other);
        let mut others = notes.filter(|(n, other)| *n > known && !is_own(other));
        Ok(others.next().map(|(_, other)| other.to_string()))
    }

    /// After the manifest of `attempt` was written: leaves a note that it was, looks whether that came too late, and
    /// removes what attempts have left. The attempt that was first, if this one was not.
    ///
    /// Somebody else's checkpoint of this number may have come and gone, with newer ones in its place, so
    /// that its name was free. Then there is a note of a newer one, or another one of this number: notes
    /// go only when there is a newer one.
    async fn settle(&self, attempt: &str) -> Result<Option<String>> {
        let shape = &self.shape;
        let stores = &self.job.0.stores;
        let known = self.job.0.state().known;
        let note = names::commit_note(&shape.home, shape.number, attempt)?;
        stores
            .put(&note, Bytes::from_static(b"{\"version\":1}\n"), false)
            .await?;
        let own = names::own(&shape.home)?;
        let listed: Vec<_> = stores.list_stream(&own)?.try_collect().await?;
        let mut over = Vec::new();
        for (at, _) in &listed {
            if let Some((number, other)) = names::of_commit_note(at) {
                if other != attempt && (number >= shape.number || number > known) {
                    return Ok(Some(other.to_string()));
                }
                if number < shape.number {
                    over.push(at.clone());
                }
            }
        }
        // No other attempt at this number or a lower one can be committed any more.
        let uploads = names::uploads(&shape.home)?;
        let mut left_by_cleaners = false;
        for (at, _) in listed {
            let below = own.strip(&at).unwrap_or_default();
            left_by_cleaners |= below.starts_with("going/") || below.starts_with("clean/");
            let number = match uploads.contains(&at) {
                true => names::number_of_uploads(&at),
                false => names::number_of_pin(&at),
            };
            if number.is_some_and(|number| number <= shape.number) || is_left_over(below) {
                over.push(at);
            }
        }
        self.remove(over).await;
        if left_by_cleaners && let Err(e) = remove_ended(stores, &shape.home).await {
            tracing::warn!(home = %shape.home, error = %e, "what a clean has left stays");
        }
        Ok(None)
    }

    /// Removes small objects of ours; what cannot be removed costs little and means nothing.
    async fn remove(&self, over: Vec<Location>) {
        if over.is_empty() {
            return;
        }
        let stores = &self.job.0.stores;
        for (at, outcome) in stores.delete_all(over).await {
            match outcome {
                Ok(()) => stores.remove_empty_folders(&at, &self.shape.home).await,
                Err(e) => tracing::warn!(%at, error = %e, "it could not be removed"),
            }
        }
    }

    /// `manifest` is the winner's, where it was met at this attempt's place.
    async fn lose(&self, winner: String, manifest: Option<Manifest>) -> Result<CommitOutcome> {
        // An attempt of this very coordinator may have been the one that won: one that was committed, or
        // one that was given up after its manifest was written.
        let (own, behind) = {
            let state = self.job.0.state();
            let own = state.attempts.contains(&winner);
            (own, state.highest < self.shape.number)
        };
        let mut won = own && !behind;
        if let (true, true, Some(manifest)) = (own, behind, manifest)
            && self.shape.kind == ManifestKind::Checkpoint
            && self.settle(&winner).await?.is_none()
        {
            let source = self.job.0.advance(&manifest, &self.shape.directory)?;
            if let Some(source) = source {
                release_source(&self.job.0.stores, &self.shape.home, &source).await;
            }
            won = true;
        }
        self.job.0.state().lost |= !won;
        self.unpin().await;
        Ok(CommitOutcome::Lost {
            number: self.shape.number,
            winner,
        })
    }

    /// Gives the attempt up. What subtasks have uploaded for it is used by the next one, or is an orphan to
    /// the next clean. Dropping the writer does the same, but for the pin, which goes with the next commit
    /// or when its time is up. One request.
    pub async fn abort(self) {
        self.unpin().await;
    }

    async fn unpin(&self) {
        if let Some(base) = &self.base {
            let name = names::pin(self.shape.number, &self.shape.attempt);
            if let Err(e) = unpin(&self.job.0.stores, base, &name).await {
                tracing::warn!(snapshot = %base, error = %e, "a pin stays until its time is up");
            }
        }
    }
}

impl Drop for SnapshotWriter {
    /// The next attempt looks for what this one has left.
    fn drop(&mut self) {
        let mut state = self.job.0.state();
        if self.shape.kind == ManifestKind::Checkpoint && state.highest < self.shape.number {
            state.look_for_uploads = true;
        }
    }
}

/// True for a receipt for duplicates, which are a complete checkpoint's now.
fn is_left_over(below: &str) -> bool {
    below.starts_with("duplicates-") && below.ends_with(".jsonl")
}

fn too_late() -> Error {
    Error::refused("the time of this attempt is up").hint("begin another attempt")
}

fn no_subtask(operator: &str, subtask: u32) -> Error {
    Error::invalid(format!("the job has no subtask {subtask} of {operator}"))
}
