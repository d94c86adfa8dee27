//! Plans the restore of a job as a whole: which object is duplicated, by whom, to where, and why.
//! Pure: no I/O, no clock, no chance.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use crate::error::{Error, Result};
use crate::snapshot::{Object, References, RestoreMode, Snapshot, StateKind};
use crate::store::Location;

use super::balance::{Balanced, Workload, balance};
use super::destination::Layout;
use super::eligible::{Groups, HolderRun, Workers};
use super::holders::{Assignment, assign_state, references};
use super::mode::{BackendCapability, Execution, TargetJob};
use super::need::{DuplicateReason, SkipReason, need};
use super::outcome::{balance_report, dropped_operators, fresh_operators, kept, loads};
use super::overlap::{Ground, refuse_overlap};
use super::plan::{FolderMove, Task};
use super::request::{ObjectFacts, RestoreRequest};
use super::restore_plan::{RESTORE_PLAN_VERSION, RestorePlan, RestoreTask, Skipped, SourceFate};
use super::segments::live_part;
use super::start_of_range::start_of_range;

/// How many operators an error message names.
const NAMED_IN_ERRORS: usize = 5;

/// Plans a restore. `facts` says how big each object is that will be duplicated to the given place,
/// and how; its errors end the planning.
///
/// The plan depends on what is asked alone, not on the order of references, operators of the
/// snapshot or groups. n objects on w workers take O(n log n + n log w).
///
/// # Errors
///
/// As [`assign_state`]. `Refused` if a live job is to become independent and one of its backends
/// cannot, if the destination lies where the source does, or if two objects would get one name.
/// `Invalid` without a place for duplicates, or without workers.
pub fn plan_restore(
    request: &RestoreRequest<'_>,
    facts: &mut dyn FnMut(&Object, &Location) -> Result<ObjectFacts>,
) -> Result<RestorePlan> {
    let snapshot = request.snapshot;
    let references = references(snapshot)?;
    let assignment = assign_state(snapshot, request.job)?;
    let mut plan = empty_plan(request, &assignment, references);
    if request.mode != RestoreMode::NoClaim {
        plan.kept = kept(snapshot, references, &assignment, request.mode);
        return Ok(plan);
    }
    refuse_incapable(snapshot, references, &assignment, request.job)?;
    let layout = request.layout.ok_or_else(|| {
        Error::invalid("a restore without claim needs a place for duplicates")
            .at(&snapshot.directory)
    })?;
    refuse_overlap(&Ground::of_source(snapshot), &Ground::of_fork(layout)?)?;
    let workers = match request.job.execution {
        Execution::Live => Workers::of(request.job)?,
        Execution::Offline { workers } => Workers::numbered(workers),
    };
    if workers.numbers().is_empty() {
        return Err(Error::invalid("there is no worker"));
    }
    let by_object = ByObject::new(references, snapshot.objects.len());
    let mut order: Vec<u32> = (0u32..).zip(&snapshot.objects).map(|(i, _)| i).collect();
    let place_of = |index: &u32| snapshot.objects.get(*index as usize).map(|o| &o.location);
    if !order.is_sorted_by_key(place_of) {
        order.sort_by_key(place_of);
    }

    let mut groups = Groups::default();
    let everybody = groups.with_workers(vec![(0, workers.numbers().len() as u32)]);
    let mut workload = Workload {
        workers: workers.numbers().len() as u32,
        ..Workload::default()
    };
    // Of each task the object, and the number of its holders.
    let mut planned: Vec<(u32, u32)> = Vec::with_capacity(order.len());
    plan.tasks.reserve_exact(order.len());
    workload.costs.reserve_exact(order.len());
    workload.group_of.reserve_exact(order.len());
    let mut holders: Vec<HolderRun> = Vec::new();
    for index in order {
        let Some(object) = snapshot.objects.get(index as usize) else {
            continue;
        };
        let own = by_object.of(index);
        let needed = match look(request, references, &assignment, own, &mut holders) {
            Verdict::Needed(reason) => reason,
            Verdict::Skipped(reason) => {
                plan.skipped.push(Skipped {
                    source: object.location.clone(),
                    size: object.size.bytes().unwrap_or(0),
                    reason,
                });
                continue;
            }
            // Listed with its operator.
            Verdict::Dropped => continue,
        };
        let (number, group) = match request.job.execution {
            Execution::Live => groups.of(&workers, &holders),
            Execution::Offline { .. } => (0, everybody),
        };
        let task = make_task(
            request,
            layout,
            object,
            needed,
            references,
            by_object.of(index),
            facts,
        )?;
        workload.costs.push(task.cost_ns);
        workload.group_of.push(group);
        plan.bytes = plan.bytes.saturating_add(task.duplicate.size);
        plan.tasks.push(task);
        planned.push((index, number));
    }
    plan.tasks.shrink_to_fit();
    refuse_collisions(&plan.tasks, snapshot, layout.root())?;
    let (runs, numbers) = groups.finish();
    workload.groups = runs;
    for group in &mut workload.group_of {
        *group = numbers.get(*group as usize).copied().unwrap_or(0);
    }
    let balanced = balance(&workload)?;
    let chosen = balanced.worker_of.iter().zip(&balanced.reason_of);
    for ((task, (place, reason)), (_, number)) in plan.tasks.iter_mut().zip(chosen).zip(&planned) {
        task.worker = workers.numbers().get(*place as usize).copied().unwrap_or(0);
        task.chosen = *reason;
        task.holder = workers.holder_on(*place, groups.holders(*number));
    }

    plan.objects = plan.tasks.len() as u64;
    plan.folders = layout
        .folders()
        .iter()
        .map(|(source, destination)| FolderMove {
            source: source.clone(),
            destination: destination.clone(),
        })
        .collect();
    plan.workers = loads(workers.numbers(), &plan.tasks);
    plan.balance = balance_report(&workload, &balanced);
    if request.job.execution == Execution::Live {
        let costs = workload
            .costs
            .iter()
            .zip(&planned)
            .map(|(cost, (index, _))| (*cost, by_object.of(*index)));
        plan.balance.start_of_range = Some(start_of_range(request, references, &assignment, costs));
    }
    Ok(plan)
}

fn empty_plan(
    request: &RestoreRequest<'_>,
    assignment: &Assignment,
    references: &References,
) -> RestorePlan {
    let layout = request
        .layout
        .filter(|_| request.mode == RestoreMode::NoClaim);
    RestorePlan {
        version: RESTORE_PLAN_VERSION,
        mode: request.mode,
        execution: request.job.execution,
        source: request.snapshot.directory.clone(),
        checkpoint_id: request.snapshot.checkpoint_id,
        metadata_sha256: request.metadata_sha256.to_string(),
        source_fate: match (request.mode, request.job.execution) {
            (RestoreMode::Claim, _) => SourceFate::OwnedByJob,
            (RestoreMode::Legacy, _) => SourceFate::NeededForEver,
            (RestoreMode::NoClaim, Execution::Live) => SourceFate::NeededUntilFirstSnapshot,
            (RestoreMode::NoClaim, Execution::Offline { .. }) => SourceFate::NeededUntilCommit,
        },
        fork_id: layout.map(|l| l.id().to_string()),
        destination: layout.map(|l| l.root().clone()),
        snapshot: layout.map(|l| l.snapshot().clone()),
        objects: 0,
        bytes: 0,
        balance: balance_report(&Workload::default(), &Balanced::nothing()),
        workers: Vec::new(),
        tasks: Vec::new(),
        folders: Vec::new(),
        skipped: Vec::new(),
        kept: Vec::new(),
        dropped: dropped_operators(request.snapshot, references, assignment),
        fresh: fresh_operators(request.job, assignment),
        terms: None,
        unknown: serde_json::Map::new(),
    }
}

/// A job whose backend cannot write a first snapshot of its own would run until that snapshot and
/// then fail; so it must not start.
fn refuse_incapable(
    snapshot: &Snapshot,
    references: &References,
    assignment: &Assignment,
    job: &TargetJob,
) -> Result<()> {
    if job.execution != Execution::Live {
        return Ok(());
    }
    let mut incapable: Vec<&str> = Vec::new();
    for handle in &references.handles {
        let keyed = !matches!(
            handle.kind,
            StateKind::Operator | StateKind::InputChannel | StateKind::OutputChannel
        );
        let target = assignment
            .target(handle.operator)
            .and_then(|target| job.operators.get(target as usize));
        if let Some(operator) = target
            && keyed
            && operator.backend == BackendCapability::CannotBeIndependent
            && !incapable.contains(&operator.operator_id.as_str())
        {
            incapable.push(&operator.operator_id);
        }
    }
    if incapable.is_empty() {
        return Ok(());
    }
    let more = incapable.len().saturating_sub(NAMED_IN_ERRORS);
    let mut names = incapable
        .into_iter()
        .take(NAMED_IN_ERRORS)
        .collect::<Vec<_>>()
        .join(", ");
    if more > 0 {
        names = format!("{names} and {more} more");
    }
    Err(Error::refused(format!(
        "the state backend of operator {names} cannot make a snapshot that is independent of the restored one: the job would start and fail at its first snapshot"
    ))
    .during("restore")
    .at(&snapshot.directory)
    .hint("fork the snapshot offline, and let the job claim the fork"))
}

/// The references of each object.
pub(super) struct ByObject {
    starts: Vec<u32>,
    references: Vec<u32>,
}

impl ByObject {
    fn new(references: &References, objects: usize) -> ByObject {
        let mut starts = vec![0u32; objects + 1];
        for reference in &references.references {
            if let Some(count) = starts.get_mut(reference.object as usize + 1) {
                *count += 1;
            }
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        let mut free = starts.clone();
        let mut sorted = vec![0; sum as usize];
        for (number, reference) in (0u32..).zip(&references.references) {
            if let Some(place) = free.get_mut(reference.object as usize) {
                if let Some(slot) = sorted.get_mut(*place as usize) {
                    *slot = number;
                }
                *place += 1;
            }
        }
        ByObject {
            starts,
            references: sorted,
        }
    }

    /// Indices of the references to an object.
    fn of(&self, object: u32) -> &[u32] {
        let at = |index: usize| self.starts.get(index).copied().unwrap_or(0) as usize;
        let range = at(object as usize)..at(object as usize + 1);
        self.references.get(range).unwrap_or_default()
    }
}

enum Verdict {
    Needed(DuplicateReason),
    Skipped(SkipReason),
    Dropped,
}

/// Looks at all references to one object. For a live job `holders` becomes who holds it and will
/// refer to it, sorted.
fn look(
    request: &RestoreRequest<'_>,
    all: &References,
    assignment: &Assignment,
    own: &[u32],
    holders: &mut Vec<HolderRun>,
) -> Verdict {
    let mut needed: Option<DuplicateReason> = None;
    let mut skipped: Option<SkipReason> = None;
    holders.clear();
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
        if request.job.execution != Execution::Live {
            needed = Some(DuplicateReason::Fork);
            break;
        }
        let Some(to) = request.job.operators.get(target as usize) else {
            continue;
        };
        let from = request.snapshot.operators.get(handle.operator as usize);
        let rescaled = from.is_none_or(|from| from.parallelism != to.parallelism);
        let mut decision = need(handle, reference.role, rescaled, to.backend);
        if decision.is_ok() {
            let before = holders.len();
            let runs = assignment.holders(reference.handle);
            holders.extend(runs.map(|run| (target, run.start, run.end)));
            if holders.len() == before {
                decision = Err(SkipReason::NobodyGetsIt);
            }
        }
        match decision {
            Ok(reason) => needed = Some(needed.map_or(reason, |other| other.min(reason))),
            Err(reason) => skipped = Some(skipped.map_or(reason, |other| other.min(reason))),
        }
    }
    holders.sort_unstable();
    holders.dedup();
    match (needed, skipped) {
        (Some(reason), _) => Verdict::Needed(reason),
        (None, Some(reason)) => Verdict::Skipped(reason),
        (None, None) => Verdict::Dropped,
    }
}

/// Everything but the worker.
fn make_task(
    request: &RestoreRequest<'_>,
    layout: &Layout,
    object: &Object,
    needed: DuplicateReason,
    all: &References,
    own: &[u32],
    facts: &mut dyn FnMut(&Object, &Location) -> Result<ObjectFacts>,
) -> Result<RestoreTask> {
    let destination = layout.place(object)?;
    let facts = facts(object, &destination)?;
    let (live_bytes, ranges, cost_ns) =
        live_part(request.cost, facts.method, facts.stat.size, all, own);
    Ok(RestoreTask {
        duplicate: Task {
            source: object.location.clone(),
            destination,
            size: facts.stat.size,
            method: facts.method,
            reason: facts.reason,
            scope: object.scope,
            source_tag: facts.stat.tag,
            source_version: facts.stat.version,
            storage_class: facts.stat.storage_class,
        },
        needed,
        worker: 0,
        chosen: super::balance::WorkerReason::LeastLoaded,
        holder: None,
        cost_ns,
        live_bytes,
        ranges,
    })
}

/// No two objects may get one name, and none the name of an object of the source. Compares 64-bit
/// hashes first.
fn refuse_collisions(tasks: &[RestoreTask], snapshot: &Snapshot, root: &Location) -> Result<()> {
    // Destinations are in one bucket.
    let hash = |location: &Location| {
        let mut hasher = DefaultHasher::new();
        location.key().hash(&mut hasher);
        hasher.finish()
    };
    let mut hashes: Vec<(u64, u32)> = (0u32..)
        .zip(tasks)
        .map(|(index, task)| (hash(&task.duplicate.destination), index))
        .collect();
    hashes.sort_unstable();
    let at = |index: u32| tasks.get(index as usize).map(|t| &t.duplicate);
    for pair in hashes.windows(2) {
        if let [(a, first), (b, second)] = pair
            && a == b
            && let (Some(first), Some(second)) = (at(*first), at(*second))
            && first.destination == second.destination
        {
            return Err(Error::refused(format!(
                "two objects would get the name {}: this one and {}",
                first.destination, second.source
            ))
            .at(&first.source));
        }
    }
    for object in snapshot
        .objects
        .iter()
        .filter(|o| root.contains(&o.location))
    {
        let wanted = hash(&object.location);
        let from = hashes.partition_point(|(hash, _)| *hash < wanted);
        let same = hashes.get(from..).unwrap_or_default().iter();
        for (_, index) in same.take_while(|(hash, _)| *hash == wanted) {
            if at(*index).is_some_and(|task| task.destination == object.location) {
                return Err(
                    Error::refused("an object of the source would be overwritten")
                        .at(&object.location),
                );
            }
        }
    }
    Ok(())
}
