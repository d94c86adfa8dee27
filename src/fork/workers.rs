//! A fork that many workers share: a plan for all of them, and a slice of it by each. `fork` is the
//! same with one worker and no document.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::progress::{Cancel, Progress};
use crate::restore::{
    CostModel, Done, ExecuteOptions, Executed, RestorePlan, Slice, Task, TaskState, distribute,
    execute_after, has_changed, look_for_finished, redistribute,
};
use crate::store::{Location, Method, Stores};

use super::PlannedFork;
use super::damage::refuse_lost;
use super::document::{refuse_part, understand_plan};
use super::evidence::{judge_all, look_at_places, refuse_strangers, source_changed};
use super::site::Site;
use super::turn::{asks_for_all, waits};

/// Spreads a planned fork over `workers` workers. What an earlier attempt has done, as its receipts
/// prove, is counted and left out. Writes nothing.
///
/// Costs, besides [`plan`](super::plan), the look that nothing is in the way: one listing request if
/// the destination is empty, else one listing per 1,000 objects, and the reading of the journal.
///
/// # Errors
///
/// `Refused` if the fork is committed already, if another one is under way, or if something that is
/// not ours lies at a destination. `Invalid` without workers.
pub async fn plan_workers(
    stores: &Stores,
    planned: &PlannedFork,
    workers: u32,
    cost: &CostModel,
    progress: &dyn Progress,
) -> Result<RestorePlan> {
    let site = planned.site(stores)?;
    if site.is_committed(|| Ok(planned.metadata.clone())).await? {
        return Err(Error::refused("this fork is committed already")
            .at(&planned.plan.snapshot)
            .hint("`forkpoint verify` checks it"));
    }
    let whole = plan_unseen(planned, workers, cost)?;
    // Also where the note has gone and the pin alone tells: whoever gives the fork up needs a plan.
    if !site.is_begun().await? {
        site.refuse_taken(&planned.places()).await?;
        return Ok(whole);
    }
    plan_the_rest(stores, &site, whole, workers, progress).await
}

/// What is left of the plan `whole` of a fork under way, spread over `workers` workers.
pub(super) async fn plan_the_rest(
    stores: &Stores,
    site: &Site<'_>,
    whole: RestorePlan,
    workers: u32,
    progress: &dyn Progress,
) -> Result<RestorePlan> {
    let journal = site.journal().await?;
    let there = look_at_places(stores, &whole.tasks, progress).await?;
    let states = judge_all(&whole.tasks, None, &there, &journal);
    refuse_strangers(&whole.tasks, &states)?;
    let mut done = Done::default();
    let mut left: Vec<u32> = Vec::new();
    for ((index, task), state) in (0u32..).zip(&whole.tasks).zip(&states) {
        match state {
            TaskState::Proven => {
                done.objects += 1;
                done.bytes = done.bytes.saturating_add(task.duplicate.size);
                continue;
            }
            TaskState::Unproven => done.unproven += 1,
            _ => {}
        }
        left.push(index);
    }
    let numbers: Vec<u32> = (0..workers).collect();
    let mut plan = redistribute(&whole, &left, &numbers)?;
    if let Some(terms) = &mut plan.terms {
        terms.done = done;
    }
    Ok(plan)
}

/// Spreads a planned fork over `workers` workers, without a look at its destination: for whoever gives it up. No request.
///
/// # Errors
///
/// `Invalid` without workers.
pub fn plan_unseen(planned: &PlannedFork, workers: u32, cost: &CostModel) -> Result<RestorePlan> {
    distribute(
        &planned.plan,
        planned.source.checkpoint_id,
        workers,
        cost,
        planned.terms.clone(),
    )
}

/// How a worker runs its slice.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// How many at once.
    pub execute: ExecuteOptions,
    /// As in [`ForkRequest`](super::ForkRequest). Not taken from the plan: whoever runs it decides.
    pub other_services: bool,
    /// Where the plan lies, if anybody can find it there: the fork's note and its pin name it.
    pub plan_at: Option<Location>,
}

/// What one worker's run came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunReport {
    /// The worker; none for all of them.
    pub worker: Option<u32>,
    /// The folder of the new snapshot, which is not there yet.
    pub snapshot: Location,
    /// The fork's id.
    pub fork_id: String,
    /// Objects of the slice.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that this run copied.
    pub copied: u64,
    /// Objects that were there already, as receipts or contents prove.
    pub reused: u64,
    /// How many objects this run copied by which method.
    pub methods: BTreeMap<Method, u64>,
    /// The fork was committed before this run had anything to do.
    pub committed: bool,
    /// Why the source could not be pinned while the fork runs, if this run began it and could not.
    pub unpinned: Option<String>,
}

/// Runs a slice of a plan: brings its objects to their places and leaves receipts. May be run
/// again, at the same time, and on another machine; what is there is not copied again. The tasks of others
/// need not be in `plan` ([`read_plan_for`](super::read_plan_for)), and are not checked: who does them checks them.
///
/// Where many workers start at once, the first begins the fork, and the others ask whether it has: the second for 0.7 s, the
/// twelfth and all after it for 2.7 to 3.7 s. Then they begin it.
///
/// Costs one read of the plan's metadata and one of each journal object, one listing per 1,000 objects
/// of the destination, one copy request per object, one write per second or 1,000 receipts.
///
/// # Errors
///
/// `Invalid` for a worker that the plan does not have. `Refused` for a plan that is not that of the
/// snapshot, for a destination that is taken, or if another fork is under way there. `Conflict`,
/// with its name, if an object of the source has changed since the plan was made.
pub async fn run_slice(
    stores: &Stores,
    plan: &RestorePlan,
    slice: Slice,
    options: &RunOptions,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<RunReport> {
    let worker = match slice {
        Slice::All => None,
        Slice::Worker(number) if plan.workers.iter().any(|w| w.worker == number) => Some(number),
        Slice::Worker(number) => return Err(no_such_worker(plan, number)),
    };
    let understood = understand_plan(stores, plan, options.other_services).await?;
    if slice == Slice::All {
        refuse_part(plan)?;
    }
    let tasks: Vec<Task> = plan
        .tasks
        .iter()
        .filter(|t| worker.is_none_or(|w| t.worker == w))
        .map(|t| t.duplicate.clone())
        .collect();
    let mut report = RunReport {
        worker,
        snapshot: understood.layout.snapshot().clone(),
        fork_id: understood.layout.id().to_string(),
        objects: tasks.len() as u64,
        bytes: tasks.iter().map(|t| t.size).sum(),
        copied: 0,
        reused: 0,
        methods: BTreeMap::new(),
        committed: false,
        unpinned: None,
    };
    let site = understood.site(stores)?.by_plan(options.plan_at.as_ref());
    let metadata = || understood.metadata();
    let look = || look_for_finished(stores, &tasks, progress);
    let mut waits = waits(&plan.workers, slice).peekable();
    let begins = waits.peek().is_none();
    // Whoever has just begun takes the note back where it finds the mark of a cleaner.
    let refuse_marked = async |has_waited| match has_waited {
        true => site.refuse_marked().await,
        false => site.refuse_given_up().await,
    };
    // At once: on a cloud each answer takes tens of milliseconds, and a fork may have thousands of workers.
    let look_at_all = async |has_waited| {
        tokio::join!(
            site.is_committed(metadata),
            site.is_under_way(),
            refuse_marked(has_waited),
            site.journal(),
            look(),
            async { begins && site.is_empty().await },
        )
    };
    // Most workers of a fork come at once, when there is nothing to see but that it has not begun.
    let (mut has_waited, mut seen, mut answer) = (false, None, Duration::ZERO);
    for wait in waits {
        if tasks.is_empty() {
            break;
        }
        let asked = Instant::now();
        // What else is wrong, the look tells.
        let has_not_begun = match asks_for_all(answer, &plan.workers) {
            false => matches!(site.is_under_way().await, Ok(false)),
            true => {
                let all = look_at_all(true).await;
                let nothing = matches!((&all.0, &all.1), (Ok(false), Ok(false)));
                seen = (!nothing).then_some(all);
                nothing
            }
        };
        if !has_not_begun {
            break;
        }
        has_waited = true;
        answer = asked.elapsed();
        tokio::select! {
            () = clock::sleep(wait.saturating_sub(answer)) => {}
            () = cancel.cancelled() => cancel.check()?,
        }
    }
    let (committed, under_way, marked, journal, there, is_empty) = match seen {
        Some(seen) => seen,
        None => look_at_all(has_waited).await,
    };
    if committed? {
        return found_committed(stores, &tasks, report).await;
    }
    if tasks.is_empty() {
        report.reused = report.objects;
        return Ok(report);
    }
    marked?;
    let (journal, there) = match under_way? {
        true => (journal?, there?),
        false => {
            // Looked at again: what was there before the fork began may have gone.
            let begun = match site.begin(&understood.places, is_empty, look).await {
                // What is in the way may be this very fork, which others have made and committed since the look.
                Err(e) if e.kind() == ErrorKind::Refused && site.is_committed(metadata).await? => {
                    return found_committed(stores, &tasks, report).await;
                }
                other => other?,
            };
            report.unpinned = begun.unpinned;
            (begun.journal?, begun.seen?)
        }
    };
    let result = execute_after(
        stores,
        &tasks,
        &there,
        &journal,
        &options.execute,
        progress,
        cancel,
    )
    .await;
    let executed = match result {
        Ok(executed) => executed,
        Err(e) => {
            site.note_again(&journal).await;
            return Err(name_what_changed(stores, &tasks, e).await);
        }
    };
    // Somebody else may have done this slice too, and committed meanwhile: then these receipts are of
    // no use to anybody.
    let (committed, under_way, given_up) = tokio::join!(
        site.is_committed(metadata),
        site.is_under_way(),
        site.refuse_given_up()
    );
    let under_way = under_way?;
    // Again where there is no note: it goes when the fork is committed, perhaps between the two answers.
    if committed? || (!under_way && site.is_committed(metadata).await?) {
        site.tidy(&journal).await?;
        site.remove_empty_folders().await;
    } else if !under_way {
        site.note_again(&journal).await;
        return Err(Error::refused(
            "the fork came to its end while this worker was at work, which has gone on copying: it was abandoned, or \
             committed, and its job has removed the commit object",
        )
        .at(understood.layout.snapshot())
        .hint(
            "if no job was ever started from it, `forkpoint abandon PLAN --apply --never-used` removes what was copied since; \
             or go on: run the workers again",
        ));
    } else {
        given_up?;
    }
    let Executed {
        copied,
        reused,
        methods,
    } = executed;
    Ok(RunReport {
        copied,
        reused,
        methods,
        ..report
    })
}

/// A worker whose fork is committed already has nothing to do.
///
/// # Errors
///
/// `Corrupt` if one of its objects has been lost since.
async fn found_committed(stores: &Stores, tasks: &[Task], report: RunReport) -> Result<RunReport> {
    refuse_lost(stores, &report.snapshot, tasks).await?;
    Ok(RunReport {
        committed: true,
        reused: report.objects,
        ..report
    })
}

fn no_such_worker(plan: &RestorePlan, number: u32) -> Error {
    let numbers = match plan.workers.as_slice() {
        [] => "none".into(),
        [first, .., last] => format!("{} to {}", first.worker, last.worker),
        [only] => only.worker.to_string(),
    };
    Error::invalid(format!(
        "the plan has no worker {number}; its workers are {numbers}"
    ))
    .hint("start as many workers as the plan was made for, numbered from 0")
}

/// A copy is refused when its source is no longer the one that was planned; says so, if that is why.
async fn name_what_changed(stores: &Stores, tasks: &[Task], e: Error) -> Error {
    if e.kind() != ErrorKind::Conflict {
        return e;
    }
    let named = e.location().map(str::to_string);
    let Some(task) = tasks.iter().find(|t| Some(t.source.to_string()) == named) else {
        return e;
    };
    match stores.find(&task.source).await {
        Ok(Some(now)) if has_changed(task, &now) => source_changed(task),
        _ => e,
    }
}
