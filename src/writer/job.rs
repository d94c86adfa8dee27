//! What a job consists of, as its engine describes it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::restore::{
    BackendCapability, Execution, TargetJob, TargetOperator, default_max_parallelism,
};
use crate::snapshot::{MAX_KEY_GROUPS, RestoreMode};
use crate::store::Location;

/// A part of a job whose state is found again by an id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorDescription {
    /// The id, any text; one per job.
    pub id: String,
    /// Number of subtasks, 1 to 32768.
    pub parallelism: u32,
    /// Number of key groups. Left out: that of the state that is restored, else as Flink would choose
    /// ([`default_max_parallelism`]). It can never change once there is state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_parallelism: Option<u32>,
    /// What its first snapshot after a no-claim restore can refer to.
    pub backend: BackendCapability,
}

/// A job: its name and its operators. A program without operators is a job of one operator; a training
/// loop is one operator whose subtasks are the ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDescription {
    /// The name, for people.
    pub name: String,
    /// Its operators.
    pub operators: Vec<OperatorDescription>,
    /// State of operators that the job no longer has may be left behind.
    pub allow_dropped: bool,
    /// Operators whose id has changed: from the id in the snapshot to that in the job.
    pub renamed: BTreeMap<String, String>,
}

impl JobDescription {
    /// A job without operators yet.
    pub fn new(name: impl Into<String>) -> JobDescription {
        JobDescription {
            name: name.into(),
            operators: Vec::new(),
            allow_dropped: false,
            renamed: BTreeMap::new(),
        }
    }

    /// The same with another operator, whose shared files are referred to again after any restore.
    #[must_use]
    pub fn operator(mut self, id: impl Into<String>, parallelism: u32) -> JobDescription {
        self.operators.push(OperatorDescription {
            id: id.into(),
            parallelism,
            max_parallelism: None,
            backend: BackendCapability::ReusesAlways,
        });
        self
    }

    /// The same with leave to leave state of missing operators behind.
    #[must_use]
    pub fn allow_dropped(mut self) -> JobDescription {
        self.allow_dropped = true;
        self
    }

    /// Refuses what is no job.
    pub(super) fn check(&self) -> Result<()> {
        if self.name.trim().is_empty() {
            return Err(Error::invalid("a job has a name")
                .hint("give the description one: people find the job by it"));
        }
        if self.operators.is_empty() {
            return Err(Error::invalid(format!(
                "job `{}` has no operator",
                self.name
            )));
        }
        for (n, operator) in self.operators.iter().enumerate() {
            let id = &operator.id;
            if self.operators.iter().take(n).any(|o| o.id == *id) {
                return Err(Error::invalid(format!("two operators have the id `{id}`")));
            }
            let groups = operator.max_parallelism.unwrap_or(operator.parallelism);
            if !(1..=MAX_KEY_GROUPS).contains(&operator.parallelism)
                || !(operator.parallelism..=MAX_KEY_GROUPS).contains(&groups)
            {
                return Err(Error::invalid(format!(
                    "operator `{id}`: {} subtasks and {groups} key groups, where there can be 1 to {MAX_KEY_GROUPS}, \
                     and no more subtasks than key groups",
                    operator.parallelism
                )));
            }
        }
        Ok(())
    }

    /// The job as restores are planned for.
    pub(super) fn target(&self) -> TargetJob {
        let target = |o: &OperatorDescription| TargetOperator {
            max_parallelism: o.max_parallelism,
            ..TargetOperator::new(o.id.clone(), o.parallelism, o.backend)
        };
        TargetJob {
            operators: self.operators.iter().map(target).collect(),
            allow_dropped: self.allow_dropped,
            renamed: self.renamed.clone(),
            execution: Execution::Live,
        }
    }
}

impl OperatorDescription {
    /// The number of key groups without state that says otherwise.
    pub(super) fn key_groups(&self) -> u32 {
        self.max_parallelism
            .unwrap_or_else(|| default_max_parallelism(self.parallelism))
    }
}

/// Which snapshot a job is started from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The one in this folder.
    Snapshot(Location),
    /// The newest complete one of the job whose folder this is.
    NewestOf(Location),
}

/// What a job is started from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Its own newest complete snapshot, if there is one, comes first.
    pub own_first: bool,
    /// Else this snapshot, and who owns it then; else nothing.
    pub from: Option<(Source, RestoreMode)>,
}

impl Start {
    /// From the job's own newest snapshot; without one from nothing. What a restart after a failure wants.
    pub fn newest() -> Start {
        Start {
            own_first: true,
            from: None,
        }
    }

    /// From the job's own newest snapshot; a job that has none yet from another one's.
    pub fn newest_or(source: Source, mode: RestoreMode) -> Start {
        Start {
            own_first: true,
            from: Some((source, mode)),
        }
    }

    /// From this snapshot, whatever else there is.
    pub fn from(source: Source, mode: RestoreMode) -> Start {
        Start {
            own_first: false,
            from: Some((source, mode)),
        }
    }
}

/// How a job writes and restores. How each subtask writes is its own affair:
/// [`SubtaskWriter::with_options`](super::SubtaskWriter::with_options).
#[derive(Debug, Clone)]
pub struct JobOptions {
    /// How long an attempt may take. What it builds upon is kept from cleaners for so long; later it
    /// cannot commit.
    pub timeout: Duration,
    /// Other roots whose jobs may use the snapshot that a job is started from.
    pub also: Vec<Location>,
}

impl Default for JobOptions {
    fn default() -> JobOptions {
        JobOptions {
            timeout: Duration::from_secs(3600),
            also: Vec::new(),
        }
    }
}
