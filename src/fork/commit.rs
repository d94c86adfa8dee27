//! The end of a fork that many workers share: everything is there, as is proved, so commit.

use std::collections::{BTreeMap, HashMap};
use std::future::ready;

use serde::Serialize;

use crate::error::Result;
use crate::progress::Progress;
use crate::restore::{
    CostModel, Executed, RestorePlan, RestoreTask, TaskState, distribute, has_changed,
    redistribute, unassigned,
};
use crate::store::{Location, Stores};
use crate::verify;

use super::document::{refuse_part, understand_plan};
use super::evidence::{
    Copier, Proof, Trust, judge_all, look_at_places, refuse_strangers, settle, source_changed,
};
use super::site::prove;
use super::{ForkReport, PlannedFork, refuse_damaged};

/// How to commit.
#[derive(Debug, Clone, Default)]
pub struct CommitOptions {
    /// What will do for objects without receipts.
    pub trust: Trust,
    /// As in [`RunOptions`](super::RunOptions).
    pub other_services: bool,
    /// As in [`RunOptions`](super::RunOptions).
    pub plan_at: Option<Location>,
    /// If something is left, plan it for so many workers.
    pub redistribute: Option<u32>,
}

/// What committing came to.
#[derive(Debug, Clone, PartialEq)]
pub enum CommitOutcome {
    /// The fork is there, and proved.
    Committed(Box<CommitReport>),
    /// Objects are missing; nothing was committed.
    Left(Box<LeftReport>),
}

/// A committed fork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitReport {
    /// The fork; it counts no copies, which are the workers'.
    pub fork: ForkReport,
    /// It had been committed before.
    pub already: bool,
    /// What proved how many objects; empty if it had been committed before.
    pub proofs: BTreeMap<Proof, u64>,
    /// Who copied the objects without receipts, as the caller says.
    pub copied_by: Option<Copier>,
}

/// What is left of a fork.
#[derive(Debug, Clone, PartialEq)]
pub struct LeftReport {
    /// The folder of the new snapshot, which is not there yet.
    pub snapshot: Location,
    /// The fork's id.
    pub fork_id: String,
    /// No worker has begun.
    pub not_begun: bool,
    /// Objects that are there, as is proved.
    pub done: u64,
    /// Objects that are missing.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The missing by worker; those without one are not in this plan.
    pub workers: BTreeMap<Option<u32>, Left>,
    /// The missing planned for other workers, if that was asked for.
    pub plan: Option<RestorePlan>,
}

/// What one worker has left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Left {
    /// Objects.
    pub objects: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Commits a fork whose workers are done: everything that it needs must be there, as receipts prove or
/// the objects themselves. Then the commit object is written, and the fork is proved from what was
/// written. What it needs is derived from the snapshot's metadata, not from the plan.
///
/// Costs what [`plan`](super::plan) costs, one listing per 1,000 objects of the destination, one read
/// per journal object, the reading of both sides of objects without a receipt, and the proof.
///
/// # Errors
///
/// `Refused` for a plan that is not that of the snapshot, for objects that are not ours, or for a source
/// that has changed since the plan was made; as [`fork`](super::fork()).
pub async fn commit(
    stores: &Stores,
    plan: &RestorePlan,
    options: &CommitOptions,
    progress: &dyn Progress,
) -> Result<CommitOutcome> {
    let understood = understand_plan(stores, plan, options.other_services).await?;
    refuse_part(plan)?;
    let stats = verify::look_at_objects(stores, &understood.source, progress).await?;
    let stat_of = |at: &Location| stats.get(at).and_then(Option::as_ref);
    if let Some(changed) = plan
        .tasks
        .iter()
        .map(|t| &t.duplicate)
        .find(|task| stat_of(&task.source).is_some_and(|now| has_changed(task, now)))
    {
        return Err(source_changed(changed));
    }
    refuse_damaged(&understood.source, &stats)?;
    let cost = CostModel::default();
    let planned = PlannedFork::new(stores, understood, &stats)?;
    let site = planned.site(stores)?.by_plan(options.plan_at.as_ref());
    let under_way = site.is_under_way().await?;
    let already = site.is_committed(|| Ok(planned.metadata.clone())).await?;
    let mut proofs = BTreeMap::new();
    if !already {
        let by_source: HashMap<&Location, &RestoreTask> = plan
            .tasks
            .iter()
            .map(|t| (&t.duplicate.source, t))
            .collect();
        let tasks: Vec<RestoreTask> = planned
            .plan
            .tasks
            .iter()
            .map(|t| match by_source.get(&t.source) {
                // Pinned when it was planned.
                Some(given) => (*given).clone(),
                None => unassigned(t, &cost),
            })
            .collect();
        let begins = match (under_way, options.trust.copied_by) {
            (true, _) => {
                site.refuse_given_up().await?;
                false
            }
            (false, Some(_)) => true,
            // No worker has begun, or the fork is of metadata alone.
            (false, None) => {
                site.refuse_taken(&planned.places()).await?;
                tasks.is_empty()
            }
        };
        let journal = match begins {
            true => site.begin_anyway(|| ready(())).await?.journal?,
            false => site.journal().await?,
        };
        let there = look_at_places(stores, &tasks, progress).await?;
        let mut states = judge_all(&tasks, Some(&stats), &there, &journal);
        refuse_strangers(&tasks, &states)?;
        proofs = settle(
            stores,
            &tasks,
            &mut states,
            &stats,
            &there,
            options.trust,
            progress,
        )
        .await?;
        refuse_strangers(&tasks, &states)?;
        let missing: Vec<u32> = (0u32..)
            .zip(&states)
            .filter(|(_, state)| **state != TaskState::Proven)
            .map(|(index, _)| index)
            .collect();
        if !missing.is_empty() {
            if !under_way && options.trust.copied_by.is_some() {
                // Others copied it, without a note: it may have been committed, and its job have removed the commit object.
                journal.committing(site.commit_at()).await?;
            }
            let mut left = left_over(&planned, &tasks, &missing, &by_source);
            left.not_begun = !under_way && options.trust.copied_by.is_none();
            if let Some(workers) = options.redistribute {
                let whole = distribute(
                    &planned.plan,
                    planned.source.checkpoint_id,
                    workers,
                    &cost,
                    planned.terms.clone(),
                )?;
                let numbers: Vec<u32> = (0..workers).collect();
                left.plan = Some(redistribute(&whole, &missing, &numbers)?);
            }
            return Ok(CommitOutcome::Left(Box::new(left)));
        }
        site.commit(&journal, &planned.metadata).await?;
    }
    prove(stores, &planned.plan, progress).await?;
    match under_way || !already {
        true => site.tidy(&*site.journal().await?).await?,
        false => site.tidy_rest().await?,
    }
    site.remove_empty_folders().await;
    let executed = Executed {
        reused: planned.plan.objects,
        ..Executed::default()
    };
    Ok(CommitOutcome::Committed(Box::new(CommitReport {
        fork: ForkReport::of(&planned, executed),
        already,
        proofs,
        copied_by: options.trust.copied_by,
    })))
}

fn left_over(
    planned: &PlannedFork,
    tasks: &[RestoreTask],
    missing: &[u32],
    by_source: &HashMap<&Location, &RestoreTask>,
) -> LeftReport {
    let mut workers: BTreeMap<Option<u32>, Left> = BTreeMap::new();
    let mut bytes = 0u64;
    for task in missing
        .iter()
        .filter_map(|index| tasks.get(*index as usize))
    {
        let worker = by_source.get(&task.duplicate.source).map(|t| t.worker);
        let left = workers.entry(worker).or_default();
        left.objects += 1;
        left.bytes = left.bytes.saturating_add(task.duplicate.size);
        bytes = bytes.saturating_add(task.duplicate.size);
    }
    LeftReport {
        snapshot: planned.plan.snapshot.clone(),
        fork_id: planned.plan.fork_id.clone(),
        not_begun: false,
        done: (tasks.len() - missing.len()) as u64,
        objects: missing.len() as u64,
        bytes,
        workers,
        plan: None,
    }
}
