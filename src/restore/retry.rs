//! What is left of a plan after an attempt: pure, from evidence that somebody else has gathered.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::store::{Receipt, Stat, same_tag};

use super::distribute::assign;
use super::mode::Execution;
use super::plan::Task;
use super::restore_plan::{RestorePlan, RestoreTask};

/// What is known of one task.
#[derive(Debug, Clone, Copy, Default)]
pub struct Evidence<'a> {
    /// The source as it is now; none if it is gone.
    pub source: Option<&'a Stat>,
    /// What is at the destination; none for nothing.
    pub destination: Option<&'a Stat>,
    /// The receipt of an earlier attempt.
    pub receipt: Option<&'a Receipt>,
}

/// What the evidence says of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TaskState {
    /// The duplicate is there, and a receipt proves that it is ours and of this very source.
    Proven,
    /// Nothing is there: it must be copied. A receipt for something that is gone proves nothing.
    Missing,
    /// Something of the right size is there without a receipt that fits. It may be ours, of an
    /// attempt that ended before it could say so; only its content can tell.
    Unproven,
    /// Something else is there. It must not be overwritten.
    Stranger,
    /// The source is no longer what was planned, or gone before it was copied.
    SourceChanged,
}

/// Judges one task. An object is reused only with proof: that it is there says nothing about whose
/// it is (Flink once reused files that a failed task then deleted, FLINK-25395).
pub fn judge(task: &RestoreTask, evidence: &Evidence<'_>) -> TaskState {
    let plan = &task.duplicate;
    if evidence.source.is_some_and(|now| has_changed(plan, now)) {
        return TaskState::SourceChanged;
    }
    let length = match task.ranges.is_empty() {
        true => plan.size,
        false => task.ranges.iter().map(|r| r.length).sum(),
    };
    match (evidence.destination, evidence.receipt) {
        (Some(there), _) if there.size != length => TaskState::Stranger,
        (Some(there), Some(receipt))
            if receipt.proves(&plan.source, &plan.source_stat(), there) =>
        {
            TaskState::Proven
        }
        _ if evidence.source.is_none() => TaskState::SourceChanged,
        (Some(_), _) => TaskState::Unproven,
        (None, _) => TaskState::Missing,
    }
}

/// Is the source no longer what was planned? Tags that one side does not know say nothing.
pub fn has_changed(plan: &Task, now: &Stat) -> bool {
    let differ = |a: &Option<String>, b: &Option<String>| {
        a.is_some() && b.is_some() && !same_tag(a.as_deref(), b.as_deref())
    };
    now.size != plan.size
        || differ(&now.tag, &plan.source_tag)
        || differ(&now.version, &plan.source_version)
}

/// The plan with some of its tasks only, given to other workers: what a coordinator hands out when
/// workers have died. Destinations and everything else stay.
///
/// # Errors
///
/// `Invalid` for the plan of a live job, whose tasks cannot go to anybody, or without workers.
pub fn redistribute(plan: &RestorePlan, tasks: &[u32], workers: &[u32]) -> Result<RestorePlan> {
    if plan.execution == Execution::Live {
        return Err(Error::invalid(
            "the tasks of a live job belong to those who hold the objects; plan its restore again",
        ));
    }
    let mut numbers = workers.to_vec();
    numbers.sort_unstable();
    numbers.dedup();
    let mut wanted = tasks.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    let mut other = RestorePlan {
        tasks: wanted
            .iter()
            .filter_map(|index| plan.tasks.get(*index as usize).cloned())
            .collect(),
        ..plan.clone()
    };
    assign(&mut other, &numbers)?;
    Ok(other)
}
