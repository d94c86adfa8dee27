//! Largest job first, onto the least loaded worker that can do it.

use super::tree::Tree;
use super::{Distribution, WorkerReason, Workload};

pub(super) fn distribute(workload: &Workload, order: &[u32]) -> Distribution {
    let mut made = Distribution::new(workload);
    let mut tree = Tree::new(&made.loads);
    for job in order {
        let group = workload.group(*job);
        let Some(worker) = tree.least_loaded(workload.runs(group)) else {
            continue;
        };
        let cost = workload.cost(*job);
        tree.set(worker, tree.load(worker) + cost);
        let reason = match workload.runs(group) {
            [(first, end)] if end - first == 1 => WorkerReason::OnlyHolder,
            _ => WorkerReason::LeastLoaded,
        };
        made.put(*job, worker, cost, reason);
    }
    made
}
