//! Relieves the most loaded worker, again and again: by a move, a swap, or a chain of moves.

use std::collections::VecDeque;

use super::tree::Tree;
use super::{Distribution, Order, WorkerReason, Workload};

/// Elementary steps, so that the time is bounded without a clock.
const STEPS: u64 = 20_000_000;
/// Workers of one group with whom swaps are tried.
const PARTNERS: u32 = 64;
/// Jobs of the most loaded worker for which swaps are tried.
const CANDIDATES: usize = 256;
/// Jobs of a partner that are looked at around the ideal cost.
const NEIGHBOURS: usize = 4;
/// Above this number of jobs, half a thousandth above the bound is good enough.
const LARGE_JOBS: usize = 20_000;

/// Improves `best` until its most loaded worker cannot be relieved, or is as good as the lower
/// bound `least`. Returns the workers that the jobs of the most loaded one could get to.
pub(super) fn improve(
    workload: &Workload,
    order: &Order,
    least: u64,
    best: &mut Distribution,
) -> Vec<bool> {
    let mut search = Search::new(workload, order, best);
    let enough = match order.jobs.len() {
        n if n > LARGE_JOBS => least + least / 2000,
        _ => least,
    };
    while search.steps < STEPS {
        let Some(worker) = search.tree.most_loaded() else {
            break;
        };
        let load = search.tree.load(worker);
        if load <= enough || !(search.pair(worker, load) || search.chain(worker, load)) {
            break;
        }
    }
    search.reachable()
}

/// Jobs are named by their rank here: their place in the order of falling costs.
struct Search<'a> {
    workload: &'a Workload,
    order: &'a Order,
    best: &'a mut Distribution,
    tree: Tree,
    /// The ranks of each worker's jobs, rising: costs fall.
    on: Vec<Vec<u32>>,
    steps: u64,
    /// When a group was last met, in stamps.
    met: Vec<u64>,
    stamp: u64,
}

/// What to do for the most loaded worker.
#[derive(Clone, Copy)]
struct Relief {
    /// The larger load of the two workers afterwards.
    worst: u64,
    give: u32,
    to: u32,
    take: Option<u32>,
}

impl<'a> Search<'a> {
    fn new(workload: &'a Workload, order: &'a Order, best: &'a mut Distribution) -> Search<'a> {
        let mut on = vec![Vec::new(); workload.workers as usize];
        for (rank, job) in (0u32..).zip(&order.jobs) {
            let worker = best.worker_of.get(*job as usize).copied().unwrap_or(0);
            if let Some(jobs) = on.get_mut(worker as usize) {
                jobs.push(rank);
            }
        }
        Search {
            workload,
            order,
            tree: Tree::new(&best.loads),
            best,
            on,
            steps: 0,
            met: vec![0; workload.groups.len()],
            stamp: 0,
        }
    }

    fn job(&self, rank: u32) -> u32 {
        self.order.jobs.get(rank as usize).copied().unwrap_or(0)
    }

    fn cost(&self, rank: u32) -> u64 {
        self.order.costs.get(rank as usize).copied().unwrap_or(0)
    }

    fn group(&self, rank: u32) -> u32 {
        self.order.groups.get(rank as usize).copied().unwrap_or(0)
    }

    fn jobs(&self, worker: u32) -> &[u32] {
        self.on.get(worker as usize).map_or(&[], Vec::as_slice)
    }

    /// True the first time that the group is met under the current stamp.
    fn meet(&mut self, group: u32) -> bool {
        match self.met.get_mut(group as usize) {
            Some(last) if *last != self.stamp => {
                *last = self.stamp;
                true
            }
            _ => false,
        }
    }

    fn shift(&mut self, rank: u32, from: u32, to: u32) {
        let cost = self.cost(rank);
        self.tree.set(from, self.tree.load(from) - cost);
        self.tree.set(to, self.tree.load(to) + cost);
        if let Some(jobs) = self.on.get_mut(from as usize)
            && let Ok(at) = jobs.binary_search(&rank)
        {
            jobs.remove(at);
        }
        if let Some(jobs) = self.on.get_mut(to as usize)
            && let Err(at) = jobs.binary_search(&rank)
        {
            jobs.insert(at, rank);
        }
        let job = self.job(rank);
        self.best.shift(job, to, cost, WorkerReason::Relieves);
    }

    /// The best single move or swap. False if none helps.
    fn pair(&mut self, worker: u32, load: u64) -> bool {
        let mut best: Option<Relief> = None;
        let consider = |best: &mut Option<Relief>, relief: Relief| {
            if relief.worst < best.map_or(load, |b| b.worst) {
                *best = Some(relief);
            }
        };
        let jobs = self.jobs(worker).to_vec();
        self.steps += jobs.len() as u64;
        // Moves: for each group the least loaded worker is the best place.
        self.stamp += 1;
        let mut groups = Vec::new();
        for rank in &jobs {
            let group = self.group(*rank);
            if self.meet(group) {
                groups.push((group, self.tree.least_loaded(self.workload.runs(group))));
            }
        }
        groups.sort_unstable();
        let place = |group: u32| {
            let at = groups.binary_search_by_key(&group, |(g, _)| *g).ok()?;
            groups.get(at).and_then(|(_, place)| *place)
        };
        for rank in &jobs {
            let Some(to) = place(self.group(*rank)).filter(|to| *to != worker) else {
                continue;
            };
            let (cost, there) = (self.cost(*rank), self.tree.load(to));
            if cost > 0 && there + cost < load {
                let relief = Relief {
                    worst: (load - cost).max(there + cost),
                    give: *rank,
                    to,
                    take: None,
                };
                consider(&mut best, relief);
            }
        }
        // Swaps.
        let stride = jobs.len().div_ceil(CANDIDATES).max(1);
        for (group, least) in &groups {
            let chosen = jobs
                .iter()
                .step_by(stride)
                .filter(|rank| self.group(**rank) == *group);
            let chosen: Vec<u32> = chosen.copied().collect();
            let partners = self.partners(*group, *least);
            for to in partners.into_iter().filter(|to| *to != worker) {
                let there = self.tree.load(to);
                if there + 1 >= load {
                    continue;
                }
                for give in &chosen {
                    if let Some(relief) = self.swap(worker, load, *give, to, there) {
                        consider(&mut best, relief);
                    }
                }
                self.steps += chosen.len() as u64 * 2 * NEIGHBOURS as u64;
            }
        }
        let Some(relief) = best else { return false };
        self.shift(relief.give, worker, relief.to);
        if let Some(take) = relief.take {
            self.shift(take, relief.to, worker);
        }
        true
    }

    /// All workers of a group, or the least loaded one and others spread evenly.
    fn partners(&self, group: u32, least: Option<u32>) -> Vec<u32> {
        let stride = (self.workload.width(group) / PARTNERS).max(1) as usize;
        let all = self
            .workload
            .runs(group)
            .iter()
            .flat_map(|(first, end)| *first..*end);
        let mut partners: Vec<u32> = all.step_by(stride).collect();
        partners.extend(least);
        partners
    }

    /// The best job of `to` to take in exchange for `give`: one that is cheaper by half the
    /// difference of the loads.
    fn swap(&self, worker: u32, load: u64, give: u32, to: u32, there: u64) -> Option<Relief> {
        let cost = self.cost(give);
        let gap = load - there;
        let wanted = cost.saturating_sub(gap / 2);
        let jobs = self.jobs(to);
        let at = jobs.partition_point(|rank| self.cost(*rank) > wanted);
        let near = jobs.get(at.saturating_sub(NEIGHBOURS)..jobs.len().min(at + NEIGHBOURS))?;
        near.iter()
            .filter_map(|take| {
                let less = cost.checked_sub(self.cost(*take))?;
                let helps = less > 0 && less < gap;
                (helps && self.workload.can(self.group(*take), worker)).then(|| Relief {
                    worst: (load - less).max(there + less),
                    give,
                    to,
                    take: Some(*take),
                })
            })
            .min_by_key(|relief| (relief.worst, relief.take))
    }

    /// A chain of moves, each onto a worker that passes something on, until one has room. Found by
    /// a breadth-first search, so it is a short one.
    fn chain(&mut self, start: u32, load: u64) -> bool {
        let workers = self.workload.workers as usize;
        // How each worker was reached: from whom, and by which job.
        let mut reached: Vec<Option<(u32, u32)>> = vec![None; workers];
        let mut queue = VecDeque::from([(start, 1u64)]);
        while let Some((worker, must_go)) = queue.pop_front() {
            if self.steps > STEPS {
                return false;
            }
            // The cheapest job of each group that is large enough.
            self.stamp += 1;
            let enough = self
                .jobs(worker)
                .partition_point(|rank| self.cost(*rank) >= must_go);
            let mut passed: Vec<u32> = Vec::new();
            for at in (0..enough).rev() {
                let Some(rank) = self.jobs(worker).get(at).copied() else {
                    break;
                };
                let group = self.group(rank);
                if self.meet(group) {
                    passed.push(rank);
                }
            }
            self.steps += enough as u64 + 1;
            for rank in passed {
                let (group, cost) = (self.group(rank), self.cost(rank));
                let runs = self.workload.runs(group);
                if let Some(to) = self.tree.least_loaded(runs)
                    && self.tree.load(to) + cost < load
                    && to != worker
                    && to != start
                    && reached.get(to as usize).is_some_and(Option::is_none)
                {
                    if let Some(slot) = reached.get_mut(to as usize) {
                        *slot = Some((worker, rank));
                    }
                    self.follow(&reached, start, to);
                    return true;
                }
                for to in runs.iter().flat_map(|(first, end)| *first..*end) {
                    self.steps += 1;
                    if to == start || !reached.get(to as usize).is_some_and(Option::is_none) {
                        continue;
                    }
                    let must_go = (self.tree.load(to) + cost + 1).saturating_sub(load);
                    let largest = self.jobs(to).first().map_or(0, |rank| self.cost(*rank));
                    if must_go <= largest {
                        if let Some(slot) = reached.get_mut(to as usize) {
                            *slot = Some((worker, rank));
                        }
                        if must_go == 0 {
                            self.follow(&reached, start, to);
                            return true;
                        }
                        queue.push_back((to, must_go));
                    }
                }
            }
        }
        false
    }

    fn follow(&mut self, reached: &[Option<(u32, u32)>], start: u32, end: u32) {
        let mut to = end;
        while to != start {
            let Some(Some((from, rank))) = reached.get(to as usize).copied() else {
                break;
            };
            self.shift(rank, from, to);
            to = from;
        }
    }

    /// The workers that the jobs of the most loaded worker could get to, and theirs, and so on.
    fn reachable(&mut self) -> Vec<bool> {
        let mut reached = vec![false; self.workload.workers as usize];
        let mut queue: Vec<u32> = self.tree.most_loaded().into_iter().collect();
        for worker in &queue {
            if let Some(slot) = reached.get_mut(*worker as usize) {
                *slot = true;
            }
        }
        self.stamp += 1;
        while let Some(worker) = queue.pop() {
            for rank in self.jobs(worker).to_vec() {
                let group = self.group(rank);
                if !self.meet(group) {
                    continue;
                }
                for to in self
                    .workload
                    .runs(group)
                    .iter()
                    .flat_map(|(first, end)| *first..*end)
                {
                    match reached.get_mut(to as usize) {
                        Some(slot) if !*slot => {
                            *slot = true;
                            queue.push(to);
                        }
                        _ => {}
                    }
                }
            }
        }
        reached
    }
}
