//! Who gets which state when a job is restored: old handles to new subtasks. Pure; the rules are
//! those of Flink's `StateAssignmentOperation`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use crate::error::{Error, ErrorKind, Result};
use crate::snapshot::{Handle, OperatorStatePart, References, Snapshot, StateKind};

use super::mode::{TargetJob, TargetOperator};
use super::operator_state::{OldHandle, spread};
use super::rescale::subtasks_of;

/// How many operators an error message names.
const NAMED_IN_ERRORS: usize = 5;

/// Which subtasks of the new job get which handles of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// For each operator of the snapshot the operator of the job that gets its state.
    targets: Vec<Option<u32>>,
    /// For each handle the end of its runs in `runs`.
    ends: Vec<u32>,
    /// Subtasks, sorted and without overlaps within each handle.
    runs: Vec<(u32, u32)>,
    /// Operators of the snapshot that the job does not have and that have state.
    dropped: Vec<u32>,
    /// Operators of the job that start empty.
    fresh: Vec<u32>,
}

impl Assignment {
    /// The operator of the job that gets the state of the snapshot's operator.
    pub fn target(&self, operator: u32) -> Option<u32> {
        self.targets.get(operator as usize).copied().flatten()
    }

    /// The subtasks of that operator that get something of the handle: runs without gaps, sorted,
    /// apart from each other.
    pub fn holders(&self, handle: u32) -> impl Iterator<Item = Range<u32>> + '_ {
        let handle = handle as usize;
        let start = match handle.checked_sub(1) {
            None => 0,
            Some(before) => self.ends.get(before).copied().unwrap_or(0),
        };
        let end = self.ends.get(handle).copied().unwrap_or(start);
        self.runs
            .get(start as usize..end as usize)
            .unwrap_or_default()
            .iter()
            .map(|(first, end)| *first..*end)
    }

    /// Operators of the snapshot with state that nobody gets, as indices.
    pub fn dropped(&self) -> &[u32] {
        &self.dropped
    }

    /// Operators of the job that find no state, as indices.
    pub fn fresh(&self) -> &[u32] {
        &self.fresh
    }
}

/// The references of a snapshot that was read with them.
///
/// # Errors
///
/// `Invalid` if it was read without.
pub(super) fn references(snapshot: &Snapshot) -> Result<&References> {
    snapshot.references.as_ref().ok_or_else(|| {
        Error::invalid("the snapshot was read without its references").at(&snapshot.directory)
    })
}

/// Finds out who gets what.
///
/// At the same parallelism every subtask gets the handles of its predecessor unchanged, however
/// wide their key groups. Otherwise it gets every handle that shares a key group with it; a part of
/// a changelog only if the changelog as a whole does, too.
///
/// # Errors
///
/// `Refused` if an operator's state would be dropped and that is not allowed, or if the numbers of
/// key groups do not fit. `Invalid` for a job or renaming that contradicts itself. `Corrupt` for
/// handles of subtasks that cannot be.
pub fn assign_state(snapshot: &Snapshot, job: &TargetJob) -> Result<Assignment> {
    let references = references(snapshot)?;
    check_job(job)?;
    let targets = find_targets(snapshot, job)?;
    let dropped = find_dropped(snapshot, job, &targets)?;
    check_key_groups(snapshot, job, &targets)?;

    let mut given: Vec<(u32, Range<u32>)> = Vec::with_capacity(references.handles.len());
    let mut without_keys: BTreeMap<(u32, bool), Vec<OldHandle<'_>>> = BTreeMap::new();
    let mut parts = references.operator_states.as_slice();
    for (number, handle) in (0u32..).zip(&references.handles) {
        let own: &[OperatorStatePart];
        (own, parts) = parts.split_at(parts.iter().take_while(|p| p.handle == number).count());
        let Some(target) = targets.get(handle.operator as usize).copied().flatten() else {
            continue;
        };
        let (Some(from), Some(to)) = (
            snapshot.operators.get(handle.operator as usize),
            job.operators.get(target as usize),
        ) else {
            continue;
        };
        if handle.subtask >= from.parallelism {
            return Err(Error::corrupt(format!(
                "operator {} has {} subtasks, but state of subtask {}",
                from.operator_id, from.parallelism, handle.subtask
            )));
        }
        if handle.kind == StateKind::Operator {
            without_keys
                .entry((handle.operator, handle.raw))
                .or_default()
                .push(OldHandle {
                    handle: number,
                    subtask: handle.subtask,
                    parts: own,
                });
        } else {
            let run = keyed_or_channel(handle, from.max_parallelism, from.parallelism, to);
            given.push((number, run));
        }
    }
    for ((operator, _), mut handles) in without_keys {
        let old = snapshot
            .operators
            .get(operator as usize)
            .map_or(0, |o| o.parallelism);
        let new = targets
            .get(operator as usize)
            .copied()
            .flatten()
            .and_then(|target| job.operators.get(target as usize))
            .map_or(0, |o| o.parallelism);
        handles.sort_by_key(|h| h.subtask);
        spread(&handles, old, new, &mut |handle, run| {
            given.push((handle, run))
        });
    }
    let (ends, runs) = merge(given, references.handles.len());
    let used: BTreeSet<u32> = targets.iter().copied().flatten().collect();
    let fresh = (0u32..)
        .zip(&job.operators)
        .map(|(index, _)| index)
        .filter(|index| !used.contains(index))
        .collect();
    Ok(Assignment {
        targets,
        ends,
        runs,
        dropped,
        fresh,
    })
}

fn keyed_or_channel(handle: &Handle, groups: u32, old: u32, to: &TargetOperator) -> Range<u32> {
    let new = to.parallelism;
    if old == new {
        return handle.subtask..handle.subtask + 1;
    }
    match handle.key_groups {
        Some(range) => {
            let own = subtasks_of(groups, new, range);
            match handle.changelog_key_groups {
                None => own,
                Some(whole) => {
                    let whole = subtasks_of(groups, new, whole);
                    own.start.max(whole.start)..own.end.min(whole.end)
                }
            }
        }
        None => to.channels.new_subtasks(handle.subtask, old, new),
    }
}

/// Sorts what was given by handle, and unites runs of one handle that touch.
fn merge(mut given: Vec<(u32, Range<u32>)>, handles: usize) -> (Vec<u32>, Vec<(u32, u32)>) {
    given.retain(|(_, run)| !run.is_empty());
    given.sort_unstable_by_key(|(handle, run)| (*handle, run.start, run.end));
    let mut runs: Vec<(u32, u32)> = Vec::with_capacity(given.len());
    let mut ends = Vec::with_capacity(handles);
    for (handle, run) in given {
        while ends.len() < handle as usize {
            ends.push(len(&runs));
        }
        let first_of_handle = ends.last().copied().unwrap_or(0) as usize;
        match runs
            .get_mut(first_of_handle..)
            .and_then(|own| own.last_mut())
        {
            Some(last) if run.start <= last.1 => last.1 = last.1.max(run.end),
            _ => runs.push((run.start, run.end)),
        }
    }
    while ends.len() < handles {
        ends.push(len(&runs));
    }
    (ends, runs)
}

fn len(runs: &[(u32, u32)]) -> u32 {
    u32::try_from(runs.len()).unwrap_or(u32::MAX)
}

fn check_job(job: &TargetJob) -> Result<()> {
    let mut ids = BTreeSet::new();
    for operator in &job.operators {
        let id = &operator.operator_id;
        if operator.parallelism == 0 {
            return Err(Error::invalid(format!("operator {id} has no subtask")));
        }
        if !operator.workers.is_empty() && operator.workers.len() != operator.parallelism as usize {
            return Err(Error::invalid(format!(
                "operator {id} has {} subtasks, but workers for {}",
                operator.parallelism,
                operator.workers.len()
            )));
        }
        for id in std::iter::once(id).chain(&operator.user_id) {
            if !ids.insert(id.as_str()) {
                return Err(Error::invalid(format!("two operators have the id {id}")));
            }
        }
    }
    Ok(())
}

/// A renamed operator goes where the renaming says; otherwise the id that the user set is looked
/// for first, then the other one. Of two operators of the snapshot with one id the last counts, as
/// in Flink.
fn find_targets(snapshot: &Snapshot, job: &TargetJob) -> Result<Vec<Option<u32>>> {
    let by_id: HashMap<&str, u32> = (0u32..)
        .zip(&job.operators)
        .flat_map(|(index, o)| {
            std::iter::once(&o.operator_id)
                .chain(&o.user_id)
                .map(move |id| (id.as_str(), index))
        })
        .collect();
    let last: BTreeMap<&str, usize> = snapshot
        .operators
        .iter()
        .enumerate()
        .map(|(index, o)| (o.operator_id.as_str(), index))
        .collect();
    for (old, new) in &job.renamed {
        if !last.contains_key(old.as_str()) {
            return Err(Error::invalid(format!(
                "the snapshot has no operator {old} to rename"
            )));
        }
        if !by_id.contains_key(new.as_str()) {
            return Err(Error::invalid(format!("the job has no operator {new}")));
        }
    }
    let mut targets = vec![None; snapshot.operators.len()];
    let mut taken: HashMap<u32, (&str, bool)> = HashMap::new();
    // Renamings first, then ids set by users, then the others.
    for rank in 0..3 {
        for (id, index) in &last {
            let renamed = job.renamed.get(*id);
            let wanted = renamed.map_or(*id, String::as_str);
            let Some(target) = by_id.get(wanted) else {
                continue;
            };
            let by_user = job
                .operators
                .get(*target as usize)
                .is_some_and(|o| o.user_id.as_deref() == Some(wanted));
            let own_rank = match (renamed.is_some(), by_user) {
                (true, _) => 0,
                (false, true) => 1,
                (false, false) => 2,
            };
            if own_rank != rank {
                continue;
            }
            match taken.get(target) {
                None => {
                    taken.insert(*target, (id, renamed.is_some()));
                    if let Some(slot) = targets.get_mut(*index) {
                        *slot = Some(*target);
                    }
                }
                Some((other, true)) if renamed.is_some() => {
                    let (a, b) = if *other < *id {
                        (*other, *id)
                    } else {
                        (*id, *other)
                    };
                    return Err(Error::invalid(format!(
                        "both {a} and {b} are renamed to operator {wanted}"
                    )));
                }
                // The state is found by a better id, this one's has no taker.
                Some(_) => {}
            }
        }
    }
    Ok(targets)
}

/// Operators with state and without a taker.
fn find_dropped(snapshot: &Snapshot, job: &TargetJob, targets: &[Option<u32>]) -> Result<Vec<u32>> {
    let dropped: Vec<u32> = (0u32..)
        .zip(&snapshot.operators)
        .zip(targets)
        .filter(|((_, o), target)| target.is_none() && (o.references > 0 || o.inlined_bytes > 0))
        .map(|((index, _), _)| index)
        .collect();
    if dropped.is_empty() || job.allow_dropped {
        return Ok(dropped);
    }
    let mut names: Vec<String> = dropped
        .iter()
        .filter_map(|index| snapshot.operators.get(*index as usize))
        .take(NAMED_IN_ERRORS)
        .map(|o| match &o.name {
            Some(name) => format!("{} ({name})", o.operator_id),
            None => o.operator_id.clone(),
        })
        .collect();
    if dropped.len() > names.len() {
        names.push(format!("{} more", dropped.len() - names.len()));
    }
    Err(Error::new(
        ErrorKind::Refused,
        format!(
            "the job has no operator for the state of {}",
            names.join(", ")
        ),
    )
    .at(&snapshot.directory)
    .hint("allow dropped state, or say what the operators are called now"))
}

fn check_key_groups(snapshot: &Snapshot, job: &TargetJob, targets: &[Option<u32>]) -> Result<()> {
    for (from, target) in snapshot.operators.iter().zip(targets) {
        let Some(to) = target.and_then(|t| job.operators.get(t as usize)) else {
            continue;
        };
        if from.references == 0 && from.inlined_bytes == 0 {
            continue;
        }
        let id = &from.operator_id;
        let has = from.max_parallelism;
        match to.max_parallelism {
            Some(wanted) if wanted != has => {
                return Err(Error::refused(format!(
                    "the state of operator {id} has {has} key groups, the job wants {wanted}"
                ))
                .hint("the number of key groups of existing state cannot change"));
            }
            _ if has < to.parallelism => {
                return Err(Error::refused(format!(
                    "the state of operator {id} has {has} key groups, too few for {} subtasks",
                    to.parallelism
                )));
            }
            _ => {}
        }
    }
    Ok(())
}
