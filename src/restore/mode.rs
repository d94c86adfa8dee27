//! What a job's operators can do when it is started from a snapshot, and who duplicates.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::snapshot::Snapshot;

use super::rescale::ChannelMapper;

/// Who duplicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Execution {
    /// The restored job's own subtasks, as a part of its first snapshot: only what that snapshot
    /// will refer to, each object by a subtask that holds it.
    Live,
    /// No job runs. Any of the workers duplicates any object, and all objects are needed.
    Offline {
        /// How many workers there are; they are numbered from 0.
        workers: u32,
    },
}

/// What the first snapshot of a restored operator refers to, as far as keyed state goes. State of
/// operators and channels is always written anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendCapability {
    /// It cannot be independent of what was restored: the job would fail at its first snapshot.
    /// Flink's changelog (`ChangelogStateBackend does not support enforcing a full snapshot`), and
    /// its ForSt of 2.0 (FLINK-37335).
    CannotBeIndependent,
    /// Only to files that it writes itself. Flink's RocksDB today, and heap state.
    WritesEverything,
    /// To duplicates of restored database files at the same parallelism; after a rescale the
    /// databases are built anew and so are their files. RocksDB that was taught to duplicate.
    ReusesAtSameParallelism,
    /// To duplicates of all that was restored. A changelog or a database on remote files that was
    /// taught to duplicate.
    ReusesAlways,
}

/// An operator of the job that is started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetOperator {
    /// The id by which its state is found, in hex.
    pub operator_id: String,
    /// Another id that is looked for first: the one a user has set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Number of key groups, if the user has set it; else the state's own number holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_parallelism: Option<u32>,
    /// What its first snapshot refers to.
    pub backend: BackendCapability,
    /// The worker of each subtask. Empty: subtask `i` is on worker `i`, as in Flink's default
    /// sharing of slots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<u32>,
    /// Which subtasks get records in flight when the parallelism changes.
    #[serde(default)]
    pub channels: ChannelMapper,
}

impl TargetOperator {
    /// An operator without wishes: subtask `i` on worker `i`.
    pub fn new(
        operator_id: impl Into<String>,
        parallelism: u32,
        backend: BackendCapability,
    ) -> TargetOperator {
        TargetOperator {
            operator_id: operator_id.into(),
            user_id: None,
            parallelism,
            max_parallelism: None,
            backend,
            workers: Vec::new(),
            channels: ChannelMapper::default(),
        }
    }

    /// The worker of a subtask.
    pub(crate) fn worker(&self, subtask: u32) -> u32 {
        match self.workers.get(subtask as usize) {
            Some(worker) => *worker,
            None => subtask,
        }
    }
}

/// The job that is started from a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetJob {
    /// Its operators.
    pub operators: Vec<TargetOperator>,
    /// State of operators that the job no longer has may be left behind.
    #[serde(default)]
    pub allow_dropped: bool,
    /// Operators whose id has changed: from the id in the snapshot to that in the job.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub renamed: BTreeMap<String, String>,
    /// Who duplicates.
    pub execution: Execution,
}

impl TargetJob {
    /// The job that wrote the snapshot, unchanged, with one backend for all operators.
    pub fn unchanged(
        snapshot: &Snapshot,
        backend: BackendCapability,
        execution: Execution,
    ) -> TargetJob {
        TargetJob {
            operators: snapshot
                .operators
                .iter()
                .filter(|o| o.parallelism > 0)
                .map(|o| TargetOperator::new(o.operator_id.clone(), o.parallelism, backend))
                .collect(),
            allow_dropped: false,
            renamed: BTreeMap::new(),
            execution,
        }
    }
}
