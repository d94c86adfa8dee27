//! What a plan says besides its tasks: loads and why they differ, what is kept, what is dropped.

use std::collections::BTreeMap;

use crate::snapshot::{Part, References, RestoreMode, Scope, Snapshot};

use super::balance::{Balanced, BoundReason, Workload};
use super::holders::Assignment;
use super::mode::TargetJob;
use super::restore_plan::{
    BalanceReport, DroppedOperator, ImbalanceReason, KeepReason, Kept, RestoreTask, WorkerLoad,
};

/// How many reasons for imbalance a report has.
const REASONS: usize = 3;

/// What each worker has to do.
pub(super) fn loads(numbers: &[u32], tasks: &[RestoreTask]) -> Vec<WorkerLoad> {
    let mut loads: Vec<WorkerLoad> = numbers
        .iter()
        .map(|worker| WorkerLoad {
            worker: *worker,
            objects: 0,
            bytes: 0,
            cost_ns: 0,
        })
        .collect();
    for task in tasks {
        if let Ok(at) = numbers.binary_search(&task.worker)
            && let Some(load) = loads.get_mut(at)
        {
            load.objects += 1;
            load.bytes = load.bytes.saturating_add(task.duplicate.size);
            load.cost_ns = load.cost_ns.saturating_add(task.cost_ns);
        }
    }
    loads
}

/// How well the work is spread, and what stands in the way of better.
pub(super) fn balance_report(workload: &Workload, balanced: &Balanced) -> BalanceReport {
    let total: u64 = balanced.loads.iter().sum();
    let workers = balanced.loads.len() as u64;
    let average = total.checked_div(workers).unwrap_or(0);
    let mut reasons = Vec::new();
    let largest = (0u32..)
        .zip(&workload.costs)
        .max_by_key(|(at, cost)| (**cost, u32::MAX - at));
    if let Some((task, cost)) = largest {
        reasons.push(ImbalanceReason::LargeObject {
            task,
            excess_ns: cost.saturating_sub(average),
        });
    }
    if let BoundReason::FewWorkers { first, end } = balanced.bound_reason
        && u64::from(end - first) < workers
    {
        reasons.push(ImbalanceReason::FewHolders {
            first,
            end,
            excess_ns: balanced.lower_bound.saturating_sub(average),
        });
    }
    let mut held = vec![false; balanced.loads.len()];
    for (first, end) in workload.groups.iter().flatten() {
        if let Some(held) = held.get_mut(*first as usize..*end as usize) {
            held.fill(true);
        }
    }
    let idle = held.iter().filter(|held| !**held).count() as u64;
    if idle > 0 && idle < workers {
        reasons.push(ImbalanceReason::IdleWorkers {
            workers: u32::try_from(idle).unwrap_or(u32::MAX),
            excess_ns: (total / (workers - idle)).saturating_sub(average),
        });
    }
    reasons.push(ImbalanceReason::WholeObjects {
        excess_ns: balanced.slowest - balanced.lower_bound,
    });
    reasons.retain(|reason| reason.excess_ns() > 0);
    reasons.sort_by_key(|reason| std::cmp::Reverse(reason.excess_ns()));
    reasons.truncate(REASONS);
    BalanceReport {
        slowest_ns: balanced.slowest,
        average_ns: average,
        lower_bound_ns: balanced.lower_bound,
        bound: balanced.bound_reason,
        ratio: balanced.ratio(),
        start_of_range: None,
        reasons,
    }
}

/// For each object whether an operator that goes on refers to it.
fn carried(snapshot: &Snapshot, references: &References, assignment: &Assignment) -> Vec<bool> {
    let mut carried = vec![false; snapshot.objects.len()];
    for reference in &references.references {
        let handle = references.handles.get(reference.handle as usize);
        if handle.is_some_and(|h| assignment.target(h.operator).is_some())
            && let Some(slot) = carried.get_mut(reference.object as usize)
        {
            *slot = true;
        }
    }
    carried
}

/// What is left behind, by operator.
pub(super) fn dropped_operators(
    snapshot: &Snapshot,
    references: &References,
    assignment: &Assignment,
) -> Vec<DroppedOperator> {
    if assignment.dropped().is_empty() {
        return Vec::new();
    }
    let carried = carried(snapshot, references, assignment);
    let mut objects: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for reference in &references.references {
        if let Some(handle) = references.handles.get(reference.handle as usize)
            && assignment.target(handle.operator).is_none()
        {
            objects
                .entry(handle.operator)
                .or_default()
                .push(reference.object);
        }
    }
    let mut dropped: Vec<DroppedOperator> = assignment
        .dropped()
        .iter()
        .filter_map(|index| Some((index, snapshot.operators.get(*index as usize)?)))
        .map(|(index, operator)| {
            let mut own = objects.remove(index).unwrap_or_default();
            own.sort_unstable();
            own.dedup();
            let all = own.len();
            own.retain(|object| !carried.get(*object as usize).copied().unwrap_or(false));
            let lost = || own.iter().filter_map(|o| snapshot.objects.get(*o as usize));
            let mut files: Vec<_> = lost().map(|o| o.location.clone()).collect();
            files.sort();
            DroppedOperator {
                operator_id: operator.operator_id.clone(),
                name: operator.name.clone(),
                bytes: lost().map(|o| o.size.bytes().unwrap_or(0)).sum(),
                shared_objects: (all - files.len()) as u64,
                files,
                inlined_bytes: operator.inlined_bytes,
            }
        })
        .collect();
    dropped.sort_by(|a, b| a.operator_id.cmp(&b.operator_id));
    dropped
}

/// Operators of the job that start empty, by id.
pub(super) fn fresh_operators(job: &TargetJob, assignment: &Assignment) -> Vec<String> {
    let mut ids: Vec<String> = assignment
        .fresh()
        .iter()
        .filter_map(|index| job.operators.get(*index as usize))
        .map(|operator| operator.operator_id.clone())
        .collect();
    ids.sort();
    ids
}

/// What a job that claims the snapshot, or restores it the old way, uses in place: all but what
/// was dropped with its operator.
pub(super) fn kept(
    snapshot: &Snapshot,
    references: &References,
    assignment: &Assignment,
    mode: RestoreMode,
) -> Vec<Kept> {
    let carried = carried(snapshot, references, assignment);
    let mut merged = vec![false; snapshot.objects.len()];
    for reference in &references.references {
        if matches!(reference.part, Part::Segment { .. })
            && let Some(slot) = merged.get_mut(reference.object as usize)
        {
            *slot = true;
        }
    }
    let mut kept: Vec<Kept> = snapshot
        .objects
        .iter()
        .zip(carried.into_iter().zip(merged))
        .filter(|(_, (carried, _))| *carried)
        .map(|(object, (_, merged))| {
            let inside = snapshot.directory.contains(&object.location);
            let reason = match (mode, object.scope) {
                (RestoreMode::Legacy | RestoreMode::NoClaim, _) => KeepReason::NobodyOwns,
                (RestoreMode::Claim, Scope::Exclusive) => KeepReason::GoesWithSnapshot,
                (RestoreMode::Claim, Scope::Shared | Scope::TaskOwned) if inside => {
                    KeepReason::HoldsSnapshotFolder
                }
                (RestoreMode::Claim, Scope::Shared | Scope::TaskOwned) => KeepReason::JobOwns,
            };
            Kept {
                source: object.location.clone(),
                size: object.size.bytes().unwrap_or(0),
                reason,
                read_only: merged,
            }
        })
        .collect();
    kept.sort_by(|a, b| a.source.cmp(&b.source));
    kept
}
