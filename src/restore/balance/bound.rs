//! What the slowest worker has to do at least, whatever the distribution.

use serde::{Deserialize, Serialize};

use super::{Order, Workload};

/// Why no distribution can be faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
#[non_exhaustive]
pub enum BoundReason {
    /// There is nothing to do.
    Nothing,
    /// One job takes so long.
    LargestJob {
        /// Its number.
        job: u32,
    },
    /// Work that only these workers can do, divided by their number.
    FewWorkers {
        /// The first of them.
        first: u32,
        /// The one after the last.
        end: u32,
    },
    /// So many jobs for the workers that can do them that one must do two or more large ones.
    Pigeonhole {
        /// How many workers there are for them.
        workers: u32,
    },
    /// Work that only a set of workers can do which is no run, divided by their number.
    ClosedSet {
        /// How many workers are in the set.
        workers: u32,
    },
    /// All distributions were tried.
    CompleteSearch,
}

impl BoundReason {
    /// The bound as a fragment for people.
    pub fn as_str(self) -> &'static str {
        match self {
            BoundReason::Nothing => "there is nothing to do",
            BoundReason::LargestJob { .. } => "one object takes so long",
            BoundReason::FewWorkers { .. } => "only these workers hold so much of it",
            BoundReason::Pigeonhole { .. } => "there are more large objects than holders",
            BoundReason::ClosedSet { .. } => "only these workers hold so much of it",
            BoundReason::CompleteSearch => "a complete search found nothing faster",
        }
    }
}

/// A lower bound and its reason.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub(super) value: u64,
    pub(super) reason: BoundReason,
}

impl Bound {
    pub(super) fn max(self, other: Bound) -> Bound {
        if other.value > self.value {
            other
        } else {
            self
        }
    }
}

/// The largest job; the densest run of workers; too many large jobs, overall, in the densest run,
/// and within each group.
pub(super) fn lower_bound(workload: &Workload, order: &Order) -> Bound {
    let mut bound = match order.iter().next() {
        None => Bound {
            value: 0,
            reason: BoundReason::Nothing,
        },
        Some((job, cost, _)) => Bound {
            value: cost,
            reason: BoundReason::LargestJob { job },
        },
    };
    let hulls: Vec<(u32, u32)> = workload
        .groups
        .iter()
        .map(|runs| match (runs.first(), runs.last()) {
            (Some((first, _)), Some((_, end))) => (*first, *end),
            _ => (0, 0),
        })
        .collect();
    let (dense, (first, end)) = densest_run(workload, &hulls);
    bound = bound.max(dense);
    let inside = |group: u32| {
        let hull = hulls.get(group as usize);
        hull.is_some_and(|(a, b)| *a >= first && *b <= end)
    };
    let costs = order
        .iter()
        .filter(|(_, _, group)| inside(*group))
        .map(|(_, cost, _)| cost);
    bound = bound.max(pigeonhole(costs, end - first));
    bound = bound.max(pigeonhole(order.costs.iter().copied(), workload.workers));
    let mut by_group: Vec<Vec<u64>> = vec![Vec::new(); workload.groups.len()];
    for (_, cost, group) in order.iter() {
        if let Some(costs) = by_group.get_mut(group as usize) {
            costs.push(cost);
        }
    }
    for (group, costs) in (0u32..).zip(by_group) {
        let width = workload.width(group);
        bound = bound.max(pigeonhole(costs.iter().copied(), width));
        if width > 0 {
            let total: u64 = costs.iter().sum();
            bound = bound.max(Bound {
                value: total.div_ceil(u64::from(width)),
                reason: BoundReason::ClosedSet { workers: width },
            });
        }
    }
    bound
}

/// The bound from a set of workers from which no job can go elsewhere: found by the search as what
/// can be reached from the most loaded worker.
pub(super) fn closed_bound(workload: &Workload, order: &Order, closed: &[bool]) -> Bound {
    let inside = |worker: u32| closed.get(worker as usize).copied().unwrap_or(false);
    let workers = u32::try_from(closed.iter().filter(|c| **c).count()).unwrap_or(u32::MAX);
    let stays: Vec<bool> = workload
        .groups
        .iter()
        .map(|runs| runs.iter().all(|(first, end)| (*first..*end).all(inside)))
        .collect();
    let costs = || {
        order
            .iter()
            .filter(|(_, _, group)| stays.get(*group as usize).copied().unwrap_or(false))
            .map(|(_, cost, _)| cost)
    };
    let total: u64 = costs().sum();
    let bound = Bound {
        value: total
            .checked_div(u64::from(workers))
            .map_or(0, |_| total.div_ceil(u64::from(workers))),
        reason: BoundReason::ClosedSet { workers },
    };
    bound.max(pigeonhole(costs(), workers))
}

/// Of k·m + 1 jobs on m workers one worker has k + 1, at best the k + 1 smallest of them. `costs`
/// falls.
fn pigeonhole(costs: impl Iterator<Item = u64>, workers: u32) -> Bound {
    let mut best = 0;
    let m = workers as usize;
    // Sums of all costs so far, so that those of the last k + 1 are differences.
    let mut sums: Vec<u64> = vec![0];
    for (index, cost) in costs.enumerate() {
        sums.push(sums.last().copied().unwrap_or(0) + cost);
        if m > 0 && index % m == 0 {
            let k = index / m;
            let end = sums.get(index + 1).copied().unwrap_or(0);
            best = best.max(end - sums.get(index - k).copied().unwrap_or(end));
        }
    }
    Bound {
        value: best,
        reason: BoundReason::Pigeonhole { workers },
    }
}

/// The run of workers with the most work per worker that only they can do. `hulls` are the
/// smallest runs that hold each group.
///
/// Where all groups are runs, this is what a fractional distribution would reach (Hall's condition
/// for intervals). Dinkelbach's method: guess a density, find the run that exceeds it most, take its
/// density as the next guess; each round is one sweep.
fn densest_run(workload: &Workload, hulls: &[(u32, u32)]) -> (Bound, (u32, u32)) {
    let workers = workload.workers;
    let mut work: Vec<u64> = vec![0; hulls.len()];
    for (cost, group) in workload.costs.iter().zip(&workload.group_of) {
        if let Some(slot) = work.get_mut(*group as usize) {
            *slot += cost;
        }
    }
    let mut by_end: Vec<(u32, u32, u64)> = hulls
        .iter()
        .zip(work)
        .filter(|(_, work)| *work > 0)
        .map(|((first, end), work)| (*end, *first, work))
        .collect();
    by_end.sort_unstable();
    let total: u64 = by_end.iter().map(|(_, _, work)| work).sum();
    // The density as a fraction: work over width.
    let (mut work, mut width, mut run) = (total, u64::from(workers.max(1)), (0, workers));
    loop {
        let mut sweep = Sweep::new(workers as usize);
        let mut next = by_end.iter().peekable();
        let mut found: Option<(i128, u32, u32)> = None;
        for end in 1..=workers {
            // One worker more: every run that ends here is one wider.
            sweep.add(end as usize, -i128::from(work));
            let mut any = false;
            while let Some((_, first, work)) = next.next_if(|(e, _, _)| *e == end) {
                sweep.add(*first as usize + 1, i128::from(*work) * i128::from(width));
                any = true;
            }
            if any {
                let (excess, first) = sweep.best();
                if excess > 0 && found.is_none_or(|(best, _, _)| excess > best) {
                    found = Some((excess, first, end));
                }
            }
        }
        let Some((_, first, end)) = found else { break };
        run = (first, end);
        width = u64::from(end - first);
        work = by_end
            .iter()
            .filter(|(e, f, _)| *f >= first && *e <= end)
            .map(|(_, _, work)| work)
            .sum();
    }
    let bound = Bound {
        value: work.div_ceil(width),
        reason: BoundReason::FewWorkers {
            first: run.0,
            end: run.1,
        },
    };
    (bound, run)
}

/// Values of runs by their first worker: adding to the first `count` of them, and the largest.
struct Sweep {
    leaves: usize,
    /// What is added to everything below a node.
    add: Vec<i128>,
    /// The largest below a node, its own addition included, and where.
    best: Vec<(i128, u32)>,
}

impl Sweep {
    fn new(workers: usize) -> Sweep {
        let leaves = workers.next_power_of_two().max(1);
        let mut best = vec![(i128::MIN / 2, 0); 2 * leaves];
        for worker in 0..workers {
            if let Some(slot) = best.get_mut(leaves + worker) {
                *slot = (0, u32::try_from(worker).unwrap_or(u32::MAX));
            }
        }
        let mut sweep = Sweep {
            leaves,
            add: vec![0; 2 * leaves],
            best,
        };
        for node in (1..leaves).rev() {
            sweep.pull(node);
        }
        sweep
    }

    fn best(&self) -> (i128, u32) {
        self.best.get(1).copied().unwrap_or((0, 0))
    }

    fn pull(&mut self, node: usize) {
        let (left, right) = (self.best.get(2 * node), self.best.get(2 * node + 1));
        let (Some(left), Some(right)) = (left, right) else {
            return;
        };
        let winner = if left.0 >= right.0 { *left } else { *right };
        let added = self.add.get(node).copied().unwrap_or(0);
        if let Some(slot) = self.best.get_mut(node) {
            *slot = (winner.0 + added, winner.1);
        }
    }

    fn apply(&mut self, node: usize, value: i128) {
        if let Some(slot) = self.add.get_mut(node) {
            *slot += value;
        }
        if let Some(slot) = self.best.get_mut(node) {
            slot.0 += value;
        }
    }

    /// Adds to the first `count` values.
    fn add(&mut self, count: usize, value: i128) {
        let mut high = self.leaves + count;
        if count == self.leaves {
            self.apply(1, value);
            return;
        }
        let leaf = high;
        while high > 1 {
            if high % 2 == 1 {
                self.apply(high - 1, value);
            }
            high /= 2;
        }
        let mut node = leaf / 2;
        while node > 0 {
            self.pull(node);
            node /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_densest_run_is_found() {
        let workload = Workload {
            workers: 6,
            costs: vec![10, 10, 10, 1, 1],
            group_of: vec![0, 0, 1, 2, 2],
            groups: vec![vec![(1, 3)], vec![(2, 4)], vec![(0, 6)]],
        };
        let hulls = [(1, 3), (2, 4), (0, 6)];
        let (bound, run) = densest_run(&workload, &hulls);
        // 20 on two workers, or 30 on three.
        assert_eq!((bound.value, run.1 - run.0), (10, run.1 - run.0));
        let heavy = Workload {
            costs: vec![10, 30, 10, 1, 1],
            ..workload
        };
        assert_eq!(densest_run(&heavy, &hulls).0.value, 20);
        assert_eq!(densest_run(&heavy, &hulls).1, (1, 3));
    }

    #[test]
    fn more_large_jobs_than_workers_add_up() {
        let bound = |costs: &[u64], m| pigeonhole(costs.iter().copied(), m).value;
        assert_eq!(bound(&[9, 8, 7], 2), 15);
        assert_eq!(bound(&[9, 8, 7, 6, 5], 2), 18);
        assert_eq!(bound(&[9, 8], 2), 9);
        assert_eq!(bound(&[9, 8], 0), 0);
    }
}
