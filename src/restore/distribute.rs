//! Spreads the tasks of a fork over workers. Pure.

use crate::error::{Error, Result};

use super::balance::{Balanced, WorkerReason, Workload, balance};
use super::cost::CostModel;
use super::mode::Execution;
use super::need::DuplicateReason;
use super::outcome::{balance_report, loads};
use super::plan::{ForkPlan, Task};
use super::restore_plan::{RESTORE_PLAN_VERSION, RestorePlan, RestoreTask, SourceFate};
use super::terms::ForkTerms;
use crate::snapshot::RestoreMode;

/// The fork `fork` as a plan for `workers` workers, numbered from 0: everybody can duplicate
/// everything, so that only the costs count. n objects take O(n log n).
///
/// Unlike [`plan_restore`](super::plan_restore) it needs no references and asks nothing of the
/// operators: what a fork duplicates is given.
///
/// # Errors
///
/// `Invalid` without workers.
pub fn distribute(
    fork: &ForkPlan,
    checkpoint_id: i64,
    workers: u32,
    cost: &CostModel,
    terms: ForkTerms,
) -> Result<RestorePlan> {
    let nobody = Balanced::nothing();
    let mut plan = RestorePlan {
        version: RESTORE_PLAN_VERSION,
        mode: RestoreMode::NoClaim,
        execution: Execution::Offline { workers },
        source: fork.source.clone(),
        checkpoint_id,
        metadata_sha256: fork.metadata_sha256.clone(),
        source_fate: SourceFate::NeededUntilCommit,
        fork_id: Some(fork.fork_id.clone()),
        destination: Some(fork.destination.clone()),
        snapshot: Some(fork.snapshot.clone()),
        objects: 0,
        bytes: 0,
        balance: balance_report(&Workload::default(), &nobody),
        workers: Vec::new(),
        tasks: fork.tasks.iter().map(|t| unassigned(t, cost)).collect(),
        folders: fork.folders.clone(),
        skipped: Vec::new(),
        kept: Vec::new(),
        dropped: Vec::new(),
        fresh: Vec::new(),
        terms: Some(terms),
        unknown: serde_json::Map::new(),
    };
    let numbers: Vec<u32> = (0..workers).collect();
    assign(&mut plan, &numbers)?;
    Ok(plan)
}

/// A task of a fork that nobody has been given yet.
pub fn unassigned(task: &Task, cost: &CostModel) -> RestoreTask {
    RestoreTask {
        duplicate: task.clone(),
        needed: DuplicateReason::Fork,
        worker: 0,
        chosen: WorkerReason::LeastLoaded,
        holder: None,
        cost_ns: cost.of(task.method).nanoseconds(task.size),
        live_bytes: None,
        ranges: Vec::new(),
    }
}

/// Gives the tasks of `plan` to the workers `numbers` (sorted, each once), whoever had them before,
/// and sums up.
pub(super) fn assign(plan: &mut RestorePlan, numbers: &[u32]) -> Result<()> {
    let count = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
    if count == 0 {
        return Err(Error::invalid("there is no worker"));
    }
    let workload = Workload {
        workers: count,
        costs: plan.tasks.iter().map(|t| t.cost_ns).collect(),
        group_of: vec![0; plan.tasks.len()],
        groups: vec![vec![(0, count)]],
    };
    let balanced = balance(&workload)?;
    let chosen = balanced.worker_of.iter().zip(&balanced.reason_of);
    for (task, (place, reason)) in plan.tasks.iter_mut().zip(chosen) {
        task.worker = numbers.get(*place as usize).copied().unwrap_or(0);
        task.chosen = *reason;
    }
    plan.execution = Execution::Offline { workers: count };
    plan.objects = plan.tasks.len() as u64;
    plan.bytes = plan.tasks.iter().map(|t| t.duplicate.size).sum();
    plan.balance = balance_report(&workload, &balanced);
    plan.workers = loads(numbers, &plan.tasks);
    Ok(())
}
