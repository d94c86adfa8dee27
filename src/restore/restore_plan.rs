//! The plan of a restore as a document that any engine can carry.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::snapshot::{RestoreMode, Snapshot};
use crate::store::Location;

use super::balance::{BoundReason, WorkerReason};
use super::independence::{Violation, ViolationReason};
use super::mode::Execution;
use super::need::{DuplicateReason, SkipReason};
use super::plan::{FolderMove, Task};
use super::slice::cut;
use super::terms::ForkTerms;

/// The newest document of this kind that this version writes and reads.
pub const RESTORE_PLAN_VERSION: u32 = 1;

/// A subtask of the restored job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HolderOfTask {
    /// Index into the operators of the job.
    pub operator: u32,
    /// 0-based.
    pub subtask: u32,
}

/// Bytes of a merged file that are still in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveRange {
    /// The first byte in the source.
    pub start: u64,
    /// How many bytes.
    pub length: u64,
    /// The first byte in the duplicate.
    pub new_start: u64,
}

/// One object to duplicate, and who does it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreTask {
    /// What is duplicated, and how.
    pub duplicate: Task,
    /// Why it is needed.
    pub needed: DuplicateReason,
    /// The worker that does it.
    pub worker: u32,
    /// Why that one.
    pub chosen: WorkerReason,
    /// The subtask of that worker that does it and tells the others; none offline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<HolderOfTask>,
    /// What it is estimated to take, in nanoseconds.
    pub cost_ns: u64,
    /// Of a merged file: the bytes that are still in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_bytes: Option<u64>,
    /// Of a merged file of which only parts are copied: those. Empty: the whole file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<LiveRange>,
}

/// An object that is in the snapshot and not duplicated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Where it is.
    pub source: Location,
    /// Its size in bytes, as far as the metadata says.
    pub size: u64,
    /// Why not.
    pub reason: SkipReason,
}

/// State of an operator that the job no longer has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedOperator {
    /// Its id in the snapshot.
    pub operator_id: String,
    /// Its name, if the snapshot has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The objects that hold its state and none that is restored, sorted. After the restore the
    /// snapshot is the only one that has them.
    pub files: Vec<Location>,
    /// Their bytes, as far as the metadata says.
    pub bytes: u64,
    /// Objects that it shares with operators that go on.
    pub shared_objects: u64,
    /// Its bytes inside the metadata.
    pub inlined_bytes: u64,
}

/// An object that the job uses in place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Where it is.
    pub source: Location,
    /// Its size in bytes, as far as the metadata says.
    pub size: u64,
    /// Whose it is from now on.
    pub reason: KeepReason,
    /// It is a merged file: never written to again, since it holds what others wrote.
    #[serde(default)]
    pub read_only: bool,
}

/// Whose an object is that a job uses in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum KeepReason {
    /// The job registers it as its own, and deletes it when its last snapshot that uses it goes.
    JobOwns,
    /// The job's; it goes with the claimed snapshot.
    GoesWithSnapshot,
    /// The job registers it, and as it lies in the folder of the claimed snapshot, that folder must
    /// stay until nobody uses the object (FLINK-25872).
    HoldsSnapshotFolder,
    /// Nobody's: the job uses it and never deletes it; nobody else may.
    NobodyOwns,
}

/// What becomes of the snapshot that is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SourceFate {
    /// Stays its owner's. The job needs it until its first snapshot (no savepoint) is complete.
    NeededUntilFirstSnapshot,
    /// Stays its owner's. Needed until the fork is committed and proved.
    NeededUntilCommit,
    /// The job's, which deletes it. Other snapshots that share its objects may break.
    OwnedByJob,
    /// Must stay as long as the job or any of its snapshots does.
    NeededForEver,
}

/// What one worker has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerLoad {
    /// Its number.
    pub worker: u32,
    /// Objects.
    pub objects: u64,
    /// Bytes.
    pub bytes: u64,
    /// Estimated time one after another, in nanoseconds.
    pub cost_ns: u64,
}

/// What the rule would have cost that the subtask with the first key group of the old range copies
/// (the sketch in FLIP-193).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOfRange {
    /// Its slowest worker, in nanoseconds.
    pub slowest_ns: u64,
    /// Objects that nobody would have copied.
    pub without_copier: u64,
    /// Objects that several subtasks would have copied.
    pub several_copiers: u64,
}

/// Why the slowest worker has more to do than the average.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
#[non_exhaustive]
pub enum ImbalanceReason {
    /// One object takes longer than the average worker.
    LargeObject {
        /// Index into the tasks.
        task: u32,
        /// By so much, in nanoseconds.
        excess_ns: u64,
    },
    /// Only some workers hold much of the state.
    FewHolders {
        /// Index into the workers of the first.
        first: u32,
        /// Index of the one after the last.
        end: u32,
        /// So much more for each of them, in nanoseconds.
        excess_ns: u64,
    },
    /// Some workers hold nothing that must be copied.
    IdleWorkers {
        /// How many.
        workers: u32,
        /// What the others do more for it on average, in nanoseconds.
        excess_ns: u64,
    },
    /// Objects cannot be divided, or no better distribution was found.
    WholeObjects {
        /// How far the slowest is above the lower bound, in nanoseconds.
        excess_ns: u64,
    },
}

impl ImbalanceReason {
    /// How much it weighs, in nanoseconds.
    pub fn excess_ns(self) -> u64 {
        match self {
            ImbalanceReason::LargeObject { excess_ns, .. }
            | ImbalanceReason::FewHolders { excess_ns, .. }
            | ImbalanceReason::IdleWorkers { excess_ns, .. }
            | ImbalanceReason::WholeObjects { excess_ns } => excess_ns,
        }
    }
}

/// How well the work is spread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BalanceReport {
    /// Estimated time of the slowest worker, in nanoseconds.
    pub slowest_ns: u64,
    /// Average time of all workers, in nanoseconds.
    pub average_ns: u64,
    /// No distribution is faster than this, in nanoseconds.
    pub lower_bound_ns: u64,
    /// Why. Jobs are indices into the tasks, workers into the workers.
    pub bound: BoundReason,
    /// The slowest in relation to the lower bound.
    pub ratio: f64,
    /// What the start-of-range rule would have cost; none offline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_of_range: Option<StartOfRange>,
    /// The biggest reasons for imbalance, biggest first.
    pub reasons: Vec<ImbalanceReason>,
}

/// What a restore will do, as a document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RestorePlan {
    /// Version of this document.
    pub version: u32,
    /// Who will own the snapshot.
    pub mode: RestoreMode,
    /// Who duplicates.
    pub execution: Execution,
    /// The folder of the snapshot that is restored.
    pub source: Location,
    /// Its number.
    pub checkpoint_id: i64,
    /// SHA-256 of its commit object, in hex.
    pub metadata_sha256: String,
    /// What becomes of it.
    pub source_fate: SourceFate,
    /// The fork's id, as 32 hex digits; none if nothing is duplicated.
    pub fork_id: Option<String>,
    /// The root below which duplicates go.
    pub destination: Option<Location>,
    /// The folder of the new snapshot.
    pub snapshot: Option<Location>,
    /// Number of tasks.
    pub objects: u64,
    /// Bytes of all tasks.
    pub bytes: u64,
    /// How well they are spread.
    pub balance: BalanceReport,
    /// The workers, sorted by number.
    pub workers: Vec<WorkerLoad>,
    /// The objects to duplicate, sorted by source.
    pub tasks: Vec<RestoreTask>,
    /// The folders that go as a whole, sorted by source.
    pub folders: Vec<FolderMove>,
    /// What is not duplicated, sorted by source.
    pub skipped: Vec<Skipped>,
    /// What is used in place, sorted by source.
    pub kept: Vec<Kept>,
    /// What the job has no operator for.
    pub dropped: Vec<DroppedOperator>,
    /// Operators of the job that start empty, by id.
    pub fresh: Vec<String>,
    /// Of a fork that workers share: what they and the one who commits must know besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<ForkTerms>,
    /// Fields that this version does not know, kept as they are.
    #[serde(flatten)]
    pub unknown: serde_json::Map<String, serde_json::Value>,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl RestorePlan {
    /// The document, as JSON. The same plan gives the same bytes.
    ///
    /// # Errors
    ///
    /// `Internal` if it cannot be written as JSON.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|e| {
            Error::new(ErrorKind::Internal, "the plan cannot be written as JSON").caused_by(e)
        })
    }

    /// Reads a document.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a newer version, `Corrupt` for anything else that is no plan.
    pub fn from_json(bytes: &[u8]) -> Result<RestorePlan> {
        Self::judge(bytes, serde_json::from_slice(bytes))
    }

    /// Reads a document, and of its tasks those of one worker alone; [`objects`](Self::objects), [`bytes`](Self::bytes) and
    /// the rest stay those of the whole. Besides these tasks it takes the memory of the document and 16 bytes for each
    /// task in it.
    ///
    /// # Errors
    ///
    /// As [`RestorePlan::from_json`].
    pub fn from_json_of_worker(bytes: &[u8], worker: u32) -> Result<RestorePlan> {
        let read = cut(bytes, worker).and_then(|own| serde_json::from_slice(&own));
        // What is wrong is named by its place in the document.
        Self::judge(bytes, read.or_else(|_| serde_json::from_slice(bytes)))
    }

    fn judge(bytes: &[u8], read: serde_json::Result<RestorePlan>) -> Result<RestorePlan> {
        let damaged = |e: serde_json::Error| {
            Error::corrupt(format!("this is no restore plan: {e}"))
                .caused_by(e)
                .hint("name the file or URL that `forkpoint plan --workers N --out PLAN` wrote, whole")
        };
        // Of a newer one, nothing but its version may be understood.
        let version = match &read {
            Ok(plan) => plan.version,
            Err(_) => {
                let Version { version } = serde_json::from_slice(bytes).map_err(damaged)?;
                version
            }
        };
        if version > RESTORE_PLAN_VERSION {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the plan has version {version}, this program knows up to {RESTORE_PLAN_VERSION}"
                ),
            )
            .hint("use the version of the program that made the plan"));
        }
        read.map_err(damaged)
    }

    /// The tasks of one worker.
    pub fn slice(&self, worker: u32) -> impl Iterator<Item = &RestoreTask> {
        self.tasks.iter().filter(move |t| t.worker == worker)
    }

    /// Where each duplicated object will be: what every holder must know before it refers to it.
    pub fn new_places(&self) -> HashMap<&Location, &Location> {
        let tasks = self.tasks.iter().map(|t| &t.duplicate);
        let folders = self.folders.iter().map(|f| (&f.source, &f.destination));
        tasks
            .map(|t| (&t.source, &t.destination))
            .chain(folders)
            .collect()
    }

    /// The references that would still leave the fork's root once the plan has run: those of
    /// `snapshot` to objects that are neither duplicated, nor written anew by the job, nor left
    /// behind with their operator; and duplicates outside the root. Empty proves that the job, or
    /// the fork, no longer needs the snapshot.
    pub fn find_violations(&self, snapshot: &Snapshot) -> Vec<Violation> {
        let places = self.new_places();
        let mut excused: std::collections::HashSet<&Location> =
            self.skipped.iter().map(|s| &s.source).collect();
        excused.extend(self.dropped.iter().flat_map(|d| &d.files));
        let folders = snapshot.folders.iter().map(|f| &f.location);
        let objects = snapshot.objects.iter().map(|o| &o.location);
        let mut violations = Vec::new();
        for location in objects.chain(folders.filter(|_| !self.folders.is_empty())) {
            if excused.contains(location) {
                continue;
            }
            let place = places.get(location).copied();
            let inside = match (place, &self.destination) {
                (Some(place), Some(root)) => root.contains(place),
                _ => false,
            };
            if !inside {
                violations.push(Violation {
                    location: place.unwrap_or(location).clone(),
                    reason: ViolationReason::OutsideRoot,
                });
            }
        }
        violations
    }
}
