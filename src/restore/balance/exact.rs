//! Complete search for small workloads: branch and bound, costliest job first.

use super::bound::Bound;
use super::{Distribution, Order, WorkerReason, Workload};

/// Branches that are looked at. Most small cases need a few hundred.
const BRANCHES: u32 = 200_000;

/// Improves `best` if something better exists. True if that is now certainly the best.
pub(super) fn improve(
    workload: &Workload,
    order: &Order,
    bound: &Bound,
    best: &mut Distribution,
) -> bool {
    let workers = workload.workers as usize;
    let mut left = vec![0u64; order.jobs.len() + 1];
    for (at, cost) in order.costs.iter().enumerate().rev() {
        let after = left.get(at + 1).copied().unwrap_or(0);
        if let Some(slot) = left.get_mut(at) {
            *slot = after + cost;
        }
    }
    let mut exact = Exact {
        workload,
        order,
        left,
        kinds: kinds(workload),
        loads: vec![0; workers],
        chosen: vec![0; order.jobs.len()],
        goal: bound.value,
        slowest: best.slowest(),
        found: None,
        branches: 0,
    };
    exact.branch(0, 0);
    let complete = exact.branches < BRANCHES;
    if let Some(found) = exact.found {
        let mut made = Distribution::new(workload);
        for (job, worker) in order.jobs.iter().zip(found) {
            let reason = match workload.width(workload.group(*job)) {
                1 => WorkerReason::OnlyHolder,
                _ => WorkerReason::BestOfAll,
            };
            made.put(*job, worker, workload.cost(*job), reason);
        }
        *best = made;
    }
    complete
}

/// Workers that can do the same groups have the same number: of those with one load only the first
/// need be tried.
fn kinds(workload: &Workload) -> Vec<u32> {
    let mut known: Vec<Vec<bool>> = Vec::new();
    (0..workload.workers)
        .map(|worker| {
            let can: Vec<bool> = (0u32..)
                .zip(&workload.groups)
                .map(|(group, _)| workload.can(group, worker))
                .collect();
            let at = known.iter().position(|k| *k == can).unwrap_or_else(|| {
                known.push(can);
                known.len() - 1
            });
            u32::try_from(at).unwrap_or(u32::MAX)
        })
        .collect()
}

struct Exact<'a> {
    workload: &'a Workload,
    order: &'a Order,
    /// The cost of all jobs from each place in the order on.
    left: Vec<u64>,
    kinds: Vec<u32>,
    loads: Vec<u64>,
    chosen: Vec<u32>,
    goal: u64,
    slowest: u64,
    found: Option<Vec<u32>>,
    branches: u32,
}

impl Exact<'_> {
    /// True if the search is over.
    fn branch(&mut self, at: usize, slowest: u64) -> bool {
        self.branches += 1;
        if self.branches >= BRANCHES {
            return true;
        }
        let Some(job) = self.order.jobs.get(at).copied() else {
            self.slowest = slowest;
            self.found = Some(self.chosen.clone());
            return slowest <= self.goal;
        };
        // What is left must fit below the best so far.
        let room: u64 = self
            .loads
            .iter()
            .map(|load| (self.slowest - 1).saturating_sub(*load))
            .sum();
        if room < self.left.get(at).copied().unwrap_or(0) {
            return false;
        }
        let cost = self.workload.cost(job);
        let runs = self.workload.runs(self.workload.group(job)).iter();
        let mut tries: Vec<(u64, u32, u32)> = runs
            .flat_map(|(first, end)| *first..*end)
            .map(|worker| {
                let at = worker as usize;
                let load = self.loads.get(at).copied().unwrap_or(0);
                (load, self.kinds.get(at).copied().unwrap_or(0), worker)
            })
            .collect();
        tries.sort_unstable();
        tries.dedup_by_key(|(load, kind, _)| (*load, *kind));
        for (load, _, worker) in tries {
            if load + cost >= self.slowest {
                break;
            }
            self.set(worker, load + cost);
            if let Some(slot) = self.chosen.get_mut(at) {
                *slot = worker;
            }
            if self.branch(at + 1, slowest.max(load + cost)) {
                return true;
            }
            self.set(worker, load);
        }
        false
    }

    fn set(&mut self, worker: u32, load: u64) {
        if let Some(slot) = self.loads.get_mut(worker as usize) {
            *slot = load;
        }
    }
}
