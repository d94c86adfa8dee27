//! Fills worker after worker up to a limit, the jobs first whose last possible worker comes first,
//! of those the largest that fits; and bisects the limit.
//!
//! For equal costs and groups that are runs this finds the best distribution there is (Glover's
//! rule for convex bipartite graphs). For one group of all workers it is the MULTIFIT heuristic.

use std::collections::BTreeSet;

use super::{Distribution, Order, WorkerReason, Workload};

/// Limits that are tried.
const ROUNDS: u32 = 12;
/// The same for workloads above [`LARGE_JOBS`].
const ROUNDS_OF_LARGE: u32 = 2;
/// Jobs above which time matters more than the last two-thousandth.
const LARGE_JOBS: usize = 200_000;
/// Groups that are tried for the room left at one worker.
const GROUPS_PER_WORKER: usize = 64;

/// Replaces `best` by something better if there is any at or above the lower bound `least`.
pub(super) fn improve(workload: &Workload, order: &Order, least: u64, best: &mut Distribution) {
    let mut filler = Filler::new(workload, order);
    let rounds = if order.jobs.len() > LARGE_JOBS {
        ROUNDS_OF_LARGE
    } else {
        ROUNDS
    };
    // Most large workloads fill up to a two-thousandth above the bound.
    let (mut low, mut limit) = match order.jobs.len() {
        n if n > LARGE_JOBS => (least, (least + least / 2000).min(best.slowest() - 1)),
        _ => (least, least),
    };
    let enough = limit;
    for _ in 0..rounds {
        match filler.fill(limit) {
            Some(made) => *best = made,
            None => low = limit + 1,
        }
        let high = best.slowest();
        if low >= high || high <= enough {
            break;
        }
        limit = low + (high - 1 - low) / 2;
    }
}

struct Filler<'a> {
    workload: &'a Workload,
    /// The jobs by group, costliest first within each.
    jobs: Vec<u32>,
    /// For each group its first place in `jobs`; one more at the end.
    starts: Vec<u32>,
    /// Groups that begin a run at a worker, and groups that end one before it.
    begins: Vec<(u32, u32)>,
    ends: Vec<(u32, u32)>,
    /// For each place the next one whose job is still there, perhaps by way of others. Group `g`
    /// has a place of its own after its jobs, which stands for none left: its places are
    /// `starts[g] + g ..= starts[g + 1] + g`.
    next: Vec<u32>,
    smallest: u64,
}

impl<'a> Filler<'a> {
    fn new(workload: &'a Workload, order: &Order) -> Filler<'a> {
        let groups = workload.groups.len();
        let mut starts = vec![0u32; groups + 1];
        for group in &workload.group_of {
            if let Some(count) = starts.get_mut(*group as usize + 1) {
                *count += 1;
            }
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        let mut free = starts.clone();
        let mut jobs = vec![0; order.jobs.len()];
        for (job, _, group) in order.iter() {
            if let Some(place) = free.get_mut(group as usize) {
                if let Some(slot) = jobs.get_mut(*place as usize) {
                    *slot = job;
                }
                *place += 1;
            }
        }
        let mut filler = Filler {
            workload,
            jobs,
            starts,
            begins: Vec::new(),
            ends: Vec::new(),
            next: Vec::new(),
            smallest: order.costs.last().copied().unwrap_or(0),
        };
        for (group, runs) in (0u32..).zip(&workload.groups) {
            if filler.places(group).is_empty() {
                continue;
            }
            for (first, end) in runs {
                filler.begins.push((*first, group));
                filler.ends.push((*end, group));
            }
        }
        filler.begins.sort_unstable();
        filler.ends.sort_unstable();
        filler
    }

    /// Places of a group's jobs in `jobs`.
    fn places(&self, group: u32) -> std::ops::Range<u32> {
        let at = |index: usize| self.starts.get(index).copied().unwrap_or(0);
        at(group as usize)..at(group as usize + 1)
    }

    fn job(&self, group: u32, place: u32) -> Option<u32> {
        self.jobs.get((place - group) as usize).copied()
    }

    /// The first place from `place` on with a job.
    fn left(&mut self, place: u32) -> u32 {
        let mut root = place;
        while let Some(next) = self.next.get(root as usize).copied()
            && next != root
        {
            root = next;
        }
        let mut at = place;
        while at != root {
            match self.next.get_mut(at as usize) {
                Some(slot) => at = std::mem::replace(slot, root),
                None => break,
            }
        }
        root
    }

    /// The place of the group's costliest job that is left and costs at most `room`.
    fn fitting(&mut self, group: u32, room: u64) -> Option<u32> {
        let range = self.places(group);
        let jobs = self.jobs.get(range.start as usize..range.end as usize)?;
        let skip = jobs.partition_point(|job| self.workload.cost(*job) > room);
        let place = range.start + group + u32::try_from(skip).ok()?;
        let place = self.left(place);
        (place < range.end + group).then_some(place)
    }

    fn fill(&mut self, limit: u64) -> Option<Distribution> {
        let places = self.jobs.len() + self.workload.groups.len();
        self.next = (0..u32::try_from(places).ok()?).collect();
        let mut left_in: Vec<u32> = (0u32..)
            .zip(&self.workload.groups)
            .map(|(group, _)| self.places(group).len() as u32)
            .collect();
        let mut made = Distribution::new(self.workload);
        // By the end of the last run, then by number.
        let mut open: BTreeSet<(u32, u32)> = BTreeSet::new();
        let last_end = |group: u32| self.workload.runs(group).last().map_or(0, |(_, end)| *end);
        let (begins, ends) = (self.begins.clone(), self.ends.clone());
        let (mut begins, mut ends) = (begins.iter().peekable(), ends.iter().peekable());
        let mut emptied: Vec<(u32, u32)> = Vec::new();
        for worker in 0..self.workload.workers {
            while let Some((_, group)) = ends.next_if(|(at, _)| *at <= worker) {
                open.remove(&(last_end(*group), *group));
            }
            while let Some((_, group)) = begins.next_if(|(at, _)| *at <= worker) {
                if left_in.get(*group as usize).is_some_and(|left| *left > 0) {
                    open.insert((last_end(*group), *group));
                }
            }
            let mut room = limit;
            for (end, group) in open.iter().take(GROUPS_PER_WORKER) {
                if room < self.smallest {
                    break;
                }
                while let Some(place) = self.fitting(*group, room) {
                    let job = self.job(*group, place)?;
                    let cost = self.workload.cost(job);
                    let only = self.workload.width(*group) == 1;
                    let reason = if only {
                        WorkerReason::OnlyHolder
                    } else {
                        WorkerReason::RoomLeft
                    };
                    made.put(job, worker, cost, reason);
                    room -= cost;
                    if let Some(slot) = self.next.get_mut(place as usize) {
                        *slot = place + 1;
                    }
                    if let Some(left) = left_in.get_mut(*group as usize) {
                        *left -= 1;
                        if *left == 0 {
                            emptied.push((*end, *group));
                        }
                    }
                }
            }
            for group in emptied.drain(..) {
                open.remove(&group);
            }
            // Whoever has no worker after this one and still jobs, has lost.
            if open.first().is_some_and(|(end, _)| *end == worker + 1) {
                return None;
            }
        }
        Some(made)
    }
}
