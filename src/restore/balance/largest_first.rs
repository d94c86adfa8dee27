//! Largest job first, onto the least loaded worker that can do it.

use super::tree::Tree;
use super::{Distribution, Order, WorkerReason, Workload};

pub(super) fn distribute(workload: &Workload, order: &Order) -> Distribution {
    let mut made = Distribution::new(workload);
    let mut tree = Tree::new(&made.loads);
    for (job, cost, group) in order.iter() {
        let Some(worker) = tree.least_loaded(workload.runs(group)) else {
            continue;
        };
        tree.set(worker, tree.load(worker) + cost);
        let reason = match workload.runs(group) {
            [(first, end)] if end - first == 1 => WorkerReason::OnlyHolder,
            _ => WorkerReason::LeastLoaded,
        };
        made.put(job, worker, cost, reason);
    }
    made
}
