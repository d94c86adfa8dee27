//! What the sketch in FLIP-193 would have cost: whoever gets the first key group of the old range
//! copies, decided for each handle by itself.

use std::collections::BTreeMap;

use crate::snapshot::{Handle, References};

use super::holders::Assignment;
use super::mode::TargetOperator;
use super::need::need;
use super::request::RestoreRequest;
use super::rescale::subtask_of;
use super::restore_plan::StartOfRange;

/// Sums it up for objects with their costs in nanoseconds and their references.
pub(super) fn start_of_range<'a>(
    request: &RestoreRequest<'_>,
    all: &References,
    assignment: &Assignment,
    objects: impl Iterator<Item = (u64, &'a [u32])>,
) -> StartOfRange {
    let mut loads: BTreeMap<u32, u64> = BTreeMap::new();
    let mut sum = StartOfRange::default();
    let mut copiers: Vec<(u32, u32)> = Vec::new();
    for (cost, own) in objects {
        copiers.clear();
        for number in own {
            let Some(reference) = all.references.get(*number as usize) else {
                continue;
            };
            let Some(handle) = all.handles.get(reference.handle as usize) else {
                continue;
            };
            let Some(target) = assignment.target(handle.operator) else {
                continue;
            };
            let (Some(from), Some(to)) = (
                request.snapshot.operators.get(handle.operator as usize),
                request.job.operators.get(target as usize),
            ) else {
                continue;
            };
            let rescaled = from.parallelism != to.parallelism;
            if need(handle, reference.role, rescaled, to.backend).is_err() {
                continue;
            }
            let first = start(handle, from.max_parallelism, rescaled, to);
            if assignment
                .holders(reference.handle)
                .any(|run| run.contains(&first))
            {
                copiers.push((target, first));
            }
        }
        copiers.sort_unstable();
        copiers.dedup();
        match copiers.len() {
            0 => sum.without_copier += 1,
            1 => {}
            _ => sum.several_copiers += 1,
        }
        for (target, subtask) in &copiers {
            let operator = request.job.operators.get(*target as usize);
            let worker = operator.map_or(*subtask, |o| o.worker(*subtask));
            let load = loads.entry(worker).or_default();
            *load = load.saturating_add(cost);
        }
    }
    sum.slowest_ns = loads.into_values().max().unwrap_or(0);
    sum
}

/// The subtask that gets the first key group of a handle.
fn start(handle: &Handle, key_groups: u32, rescaled: bool, to: &TargetOperator) -> u32 {
    match handle.key_groups {
        Some(range) if rescaled => subtask_of(key_groups, to.parallelism, range.first()),
        _ => handle.subtask,
    }
}
