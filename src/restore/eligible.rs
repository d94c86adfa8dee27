//! Which workers may duplicate which object: from holders, by way of the workers they are on, to
//! groups of objects with the same workers.

use std::collections::HashMap;

use crate::error::{Error, Result};

use super::mode::TargetJob;
use super::restore_plan::HolderOfTask;

/// A run of subtasks of one operator of the job.
pub(super) type HolderRun = (u32, u32, u32);

/// The workers of a job, by place: their numbers are sorted, and all else speaks of places.
#[derive(Debug)]
pub(super) struct Workers {
    numbers: Vec<u32>,
    /// For each operator the place of each subtask's worker; none where subtask `i` is on the
    /// worker at place `i`.
    places: Vec<Option<Vec<u32>>>,
    /// For each of these operators (place, subtask), sorted.
    subtasks: Vec<Vec<(u32, u32)>>,
}

impl Workers {
    /// Workers 0 to `count` - 1, without a job.
    pub(super) fn numbered(count: u32) -> Workers {
        Workers {
            numbers: (0..count).collect(),
            places: Vec::new(),
            subtasks: Vec::new(),
        }
    }

    /// The workers that the job's subtasks are on.
    pub(super) fn of(job: &TargetJob) -> Result<Workers> {
        let mut numbers: Vec<u32> = Vec::new();
        for operator in &job.operators {
            match operator.workers.is_empty() {
                true => numbers.extend(0..operator.parallelism),
                false => numbers.extend(&operator.workers),
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        let place = |number: u32| {
            let place = numbers.binary_search(&number).ok();
            place
                .and_then(|place| u32::try_from(place).ok())
                .ok_or_else(|| Error::invalid("more than 4 billion workers"))
        };
        let mut places = Vec::with_capacity(job.operators.len());
        for operator in &job.operators {
            let own: Vec<u32> = (0..operator.parallelism)
                .map(|subtask| place(operator.worker(subtask)))
                .collect::<Result<_>>()?;
            let plain = (0u32..).zip(&own).all(|(subtask, place)| subtask == *place);
            places.push((!plain).then_some(own));
        }
        let subtasks = places.iter().map(by_place).collect();
        Ok(Workers {
            numbers,
            places,
            subtasks,
        })
    }

    /// The numbers, sorted.
    pub(super) fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// The places of a run's workers, as runs without order.
    fn add_places(&self, run: HolderRun, to: &mut Vec<(u32, u32)>) {
        let (operator, first, end) = run;
        match self.places.get(operator as usize) {
            Some(Some(places)) => {
                let places = places.get(first as usize..end as usize).unwrap_or_default();
                to.extend(places.iter().map(|place| (*place, place + 1)));
            }
            _ => to.push((first, end)),
        }
    }

    /// The first of the holders that is on the worker at `place`.
    pub(super) fn holder_on(&self, place: u32, runs: &[HolderRun]) -> Option<HolderOfTask> {
        runs.iter().find_map(|(operator, first, end)| {
            let found = match self.places.get(*operator as usize) {
                Some(Some(_)) => {
                    let own = self.subtasks.get(*operator as usize)?;
                    let from = own.partition_point(|entry| *entry < (place, *first));
                    let (at, subtask) = own.get(from).copied()?;
                    Some(subtask).filter(|subtask| at == place && subtask < end)
                }
                _ => Some(place).filter(|subtask| (*first..*end).contains(subtask)),
            };
            found.map(|subtask| HolderOfTask {
                operator: *operator,
                subtask,
            })
        })
    }
}

/// (place, subtask) of the subtasks at these places, sorted; nothing where they are plain.
fn by_place(places: &Option<Vec<u32>>) -> Vec<(u32, u32)> {
    let places = places.as_deref().unwrap_or_default();
    let mut sorted: Vec<(u32, u32)> = places.iter().copied().zip(0u32..).collect();
    sorted.sort_unstable();
    sorted
}

/// Groups of objects that the same workers may duplicate.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Holders that are one run, which are most, to number and group.
    by_run: HashMap<HolderRun, (u32, u32)>,
    /// Holders to their number.
    by_holders: HashMap<Vec<HolderRun>, u32>,
    /// By that number: the holders, and their group.
    holders: Vec<(Vec<HolderRun>, u32)>,
    by_workers: HashMap<Vec<(u32, u32)>, u32>,
    workers: Vec<Vec<(u32, u32)>>,
}

impl Groups {
    /// A number for these holders, sorted, and the group of the objects that they have.
    pub(super) fn of(&mut self, workers: &Workers, holders: &[HolderRun]) -> (u32, u32) {
        if let [run] = holders
            && let Some(known) = self.by_run.get(run)
        {
            return *known;
        }
        if let Some(number) = self.by_holders.get(holders) {
            let known = self.holders.get(*number as usize);
            return (*number, known.map_or(0, |(_, group)| *group));
        }
        let mut runs = Vec::new();
        for run in holders {
            workers.add_places(*run, &mut runs);
        }
        let group = self.with_workers(join(runs));
        let number = u32::try_from(self.holders.len()).unwrap_or(u32::MAX);
        match holders {
            [run] => {
                self.by_run.insert(*run, (number, group));
            }
            _ => {
                self.by_holders.insert(holders.to_vec(), number);
            }
        }
        self.holders.push((holders.to_vec(), group));
        (number, group)
    }

    /// The group of objects that these workers may duplicate: runs of places, sorted, apart.
    pub(super) fn with_workers(&mut self, runs: Vec<(u32, u32)>) -> u32 {
        if let Some(group) = self.by_workers.get(&runs) {
            return *group;
        }
        let group = u32::try_from(self.workers.len()).unwrap_or(u32::MAX);
        self.workers.push(runs.clone());
        self.by_workers.insert(runs, group);
        group
    }

    /// The holders of a number.
    pub(super) fn holders(&self, number: u32) -> &[HolderRun] {
        self.holders
            .get(number as usize)
            .map_or(&[], |(holders, _)| holders)
    }

    /// The workers of each group, in an order that does not depend on the order in which the
    /// groups were met; and the new number of each group.
    pub(super) fn finish(&mut self) -> (Vec<Vec<(u32, u32)>>, Vec<u32>) {
        let mut order: Vec<(Vec<(u32, u32)>, usize)> = std::mem::take(&mut self.workers)
            .into_iter()
            .enumerate()
            .map(|(old, runs)| (runs, old))
            .collect();
        order.sort_unstable();
        let mut numbers = vec![0; order.len()];
        for (new, (_, old)) in (0u32..).zip(&order) {
            if let Some(slot) = numbers.get_mut(*old) {
                *slot = new;
            }
        }
        (order.into_iter().map(|(runs, _)| runs).collect(), numbers)
    }
}

/// Sorts runs and unites those that touch.
pub(super) fn join(mut runs: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    runs.sort_unstable();
    let mut joined: Vec<(u32, u32)> = Vec::with_capacity(runs.len());
    for (first, end) in runs {
        match joined.last_mut() {
            Some(last) if first <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((first, end)),
        }
    }
    joined
}
