//! Who does what so that the slowest is done soonest: jobs with costs, each of which only some
//! workers can do. Pure and deterministic.
//!
//! The problem is NP-hard (makespan of unrelated machines, all of one speed, restricted
//! assignment), so this searches: largest first onto the least loaded worker; filling workers up to
//! a bisected limit, most urgent first, which is exact for equal costs; then moves, swaps and chains
//! of moves off the most loaded worker; and for small cases a complete search. What it costs at
//! least comes from [`bound`], so that every answer says how far from the best it can be at most.

mod bound;
mod exact;
mod fill;
mod largest_first;
mod search;
mod tree;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

pub use bound::BoundReason;

/// Complete search up to so many jobs.
const EXACT_JOBS: usize = 48;
/// And up to so many workers.
const EXACT_WORKERS: u32 = 256;

/// What is to be balanced. Costs are in one unit of the caller's, such as nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workload {
    /// Number of workers.
    pub workers: u32,
    /// What each job costs.
    pub costs: Vec<u64>,
    /// For each job an index into `groups`.
    pub group_of: Vec<u32>,
    /// Who can do the jobs of a group: runs `(first, end)` of workers, sorted, apart from each other.
    pub groups: Vec<Vec<(u32, u32)>>,
}

/// How a job came to its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WorkerReason {
    /// Nobody else can do it.
    OnlyHolder,
    /// It was the least loaded of those who can, when the larger ones had been given away.
    LeastLoaded,
    /// It had room left below the limit, and of those who can it came first.
    RoomLeft,
    /// It was moved here to relieve a more loaded worker.
    Relieves,
    /// A complete search found no better distribution.
    BestOfAll,
}

impl WorkerReason {
    /// The reason as a fragment for people.
    pub fn as_str(self) -> &'static str {
        match self {
            WorkerReason::OnlyHolder => "nobody else holds it",
            WorkerReason::LeastLoaded => "the least loaded of its holders",
            WorkerReason::RoomLeft => "the first of its holders with room left",
            WorkerReason::Relieves => "relieves a more loaded holder",
            WorkerReason::BestOfAll => "part of the best distribution",
        }
    }
}

/// Who does what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Balanced {
    /// The worker of each job.
    pub worker_of: Vec<u32>,
    /// Why, for each job.
    pub reason_of: Vec<WorkerReason>,
    /// What each worker has to do, in the unit of the costs.
    pub loads: Vec<u64>,
    /// The largest of the loads.
    pub slowest: u64,
    /// No distribution has a slowest worker below this.
    pub lower_bound: u64,
    /// Where the bound comes from.
    pub bound_reason: BoundReason,
}

impl Balanced {
    /// Of no jobs and no workers.
    pub(super) fn nothing() -> Balanced {
        Balanced {
            worker_of: Vec::new(),
            reason_of: Vec::new(),
            loads: Vec::new(),
            slowest: 0,
            lower_bound: 0,
            bound_reason: BoundReason::Nothing,
        }
    }

    /// The slowest worker in relation to the lower bound: 1 is the best there is.
    pub fn ratio(&self) -> f64 {
        if self.lower_bound == 0 {
            1.0
        } else {
            self.slowest as f64 / self.lower_bound as f64
        }
    }
}

/// Distributes the jobs. The answer depends on the order of jobs of equal cost and group only in
/// which of them goes where.
///
/// n jobs and w workers take O(n log n + n r log w) for groups of r runs.
///
/// # Errors
///
/// `Invalid` for a job that nobody can do, runs that are unsorted or name workers that do not
/// exist, or loads of more than 2^63.
pub fn balance(workload: &Workload) -> Result<Balanced> {
    let order = check(workload)?;
    let bound = bound::lower_bound(workload, &order);
    let mut best = largest_first::distribute(workload, &order);
    if best.slowest() > bound.value {
        fill::improve(workload, &order, bound.value, &mut best);
    }
    let mut bound = bound;
    if best.slowest() > bound.value {
        let closed = search::improve(workload, &order, bound.value, &mut best);
        bound = bound.max(bound::closed_bound(workload, &order, &closed));
    }
    if best.slowest() > bound.value
        && order.jobs.len() <= EXACT_JOBS
        && workload.workers <= EXACT_WORKERS
        && exact::improve(workload, &order, &bound, &mut best)
    {
        bound.value = best.slowest();
        bound.reason = BoundReason::CompleteSearch;
    }
    let slowest = best.slowest();
    Ok(Balanced {
        worker_of: best.worker_of,
        reason_of: best.reason_of,
        loads: best.loads,
        slowest,
        lower_bound: bound.value.min(slowest),
        bound_reason: bound.reason,
    })
}

/// A complete distribution.
#[derive(Debug, Clone)]
struct Distribution {
    worker_of: Vec<u32>,
    reason_of: Vec<WorkerReason>,
    loads: Vec<u64>,
}

impl Distribution {
    fn new(workload: &Workload) -> Distribution {
        Distribution {
            worker_of: vec![0; workload.costs.len()],
            reason_of: vec![WorkerReason::LeastLoaded; workload.costs.len()],
            loads: vec![0; workload.workers as usize],
        }
    }

    fn slowest(&self) -> u64 {
        self.loads.iter().copied().max().unwrap_or(0)
    }

    /// Puts a job that has no worker yet.
    fn put(&mut self, job: u32, worker: u32, cost: u64, reason: WorkerReason) {
        if let Some(slot) = self.worker_of.get_mut(job as usize) {
            *slot = worker;
        }
        if let Some(slot) = self.reason_of.get_mut(job as usize) {
            *slot = reason;
        }
        if let Some(load) = self.loads.get_mut(worker as usize) {
            *load += cost;
        }
    }

    /// Moves a job that has a worker.
    fn shift(&mut self, job: u32, to: u32, cost: u64, reason: WorkerReason) {
        if let Some(from) = self.worker_of.get(job as usize)
            && let Some(load) = self.loads.get_mut(*from as usize)
        {
            *load -= cost;
        }
        self.put(job, to, cost, reason);
    }
}

impl Workload {
    fn cost(&self, job: u32) -> u64 {
        self.costs.get(job as usize).copied().unwrap_or(0)
    }

    fn group(&self, job: u32) -> u32 {
        self.group_of.get(job as usize).copied().unwrap_or(0)
    }

    fn runs(&self, group: u32) -> &[(u32, u32)] {
        self.groups.get(group as usize).map_or(&[], Vec::as_slice)
    }

    fn can(&self, group: u32, worker: u32) -> bool {
        let runs = self.runs(group);
        let after = runs.partition_point(|(first, _)| *first <= worker);
        after > 0 && runs.get(after - 1).is_some_and(|(_, end)| worker < *end)
    }

    /// How many workers can do the group's jobs.
    fn width(&self, group: u32) -> u32 {
        self.runs(group)
            .iter()
            .map(|(first, end)| end - first)
            .sum()
    }
}

/// The jobs, costliest first, of equal ones those with fewer workers first. Costs and groups stand
/// beside them, as going through a million jobs in another order than they are stored is slow.
struct Order {
    jobs: Vec<u32>,
    costs: Vec<u64>,
    groups: Vec<u32>,
}

impl Order {
    /// Job, cost and group, costliest first.
    fn iter(&self) -> impl Iterator<Item = (u32, u64, u32)> {
        let jobs = self.jobs.iter().zip(&self.costs).zip(&self.groups);
        jobs.map(|((job, cost), group)| (*job, *cost, *group))
    }
}

/// Checks the workload and sorts its jobs.
fn check(workload: &Workload) -> Result<Order> {
    let jobs = u32::try_from(workload.costs.len())
        .map_err(|_| Error::invalid("more than 4 billion jobs"))?;
    if workload.group_of.len() != workload.costs.len() {
        return Err(Error::invalid("not every job has a group"));
    }
    let mut used = vec![false; workload.groups.len()];
    let mut total = 0u64;
    for (cost, group) in workload.costs.iter().zip(&workload.group_of) {
        match used.get_mut(*group as usize) {
            Some(used) => *used = true,
            None => return Err(Error::invalid(format!("there is no group {group}"))),
        }
        total = total
            .checked_add(*cost)
            .filter(|total| *total < 1 << 63)
            .ok_or_else(|| Error::invalid("the work is more than can be counted"))?;
    }
    for (runs, used) in workload.groups.iter().zip(used) {
        if used && runs.is_empty() {
            return Err(Error::invalid("a job that no worker can do"));
        }
        let sorted = runs.windows(2).all(|pair| match pair {
            [(_, end), (first, _)] => end < first,
            _ => true,
        });
        let fit = runs
            .iter()
            .all(|(first, end)| first < end && *end <= workload.workers);
        if !sorted || !fit {
            return Err(Error::invalid(
                "runs of workers that are unsorted or do not exist",
            ));
        }
    }
    let widths: Vec<u32> = (0u32..)
        .zip(&workload.groups)
        .map(|(group, _)| workload.width(group))
        .collect();
    let mut order: Vec<(u64, u32, u32, u32)> = (0..jobs)
        .map(|job| {
            let group = workload.group(job);
            let width = widths.get(group as usize).copied().unwrap_or(0);
            (u64::MAX - workload.cost(job), width, group, job)
        })
        .collect();
    order.sort_unstable();
    Ok(Order {
        jobs: order.iter().map(|(.., job)| *job).collect(),
        costs: order.iter().map(|(cost, ..)| u64::MAX - cost).collect(),
        groups: order.iter().map(|(_, _, group, _)| *group).collect(),
    })
}
