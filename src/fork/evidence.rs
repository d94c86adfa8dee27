//! What shows that an object of a fork is there and is the duplicate of its source.

use std::collections::{BTreeMap, HashMap};

use futures::{StreamExt, TryStreamExt};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::restore::{Evidence, RestoreTask, Task, TaskState, judge};
use crate::store::{Journal, Location, Stat, Stores, plain_hashes};

/// Contents compared at once.
const COMPARED_AT_ONCE: usize = 8;

/// Who copied objects that have no receipts of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Copier {
    /// A job of S3 Batch Operations.
    S3Batch,
    /// A job of Google's Storage Transfer Service.
    GcsTransfer,
    /// Another tool.
    Other,
}

impl Copier {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Copier::S3Batch => "s3-batch",
            Copier::GcsTransfer => "gcs-transfer",
            Copier::Other => "another tool",
        }
    }
}

/// What will do for objects that have no receipt. By default only equal contents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trust {
    /// They were copied by this one, as the caller says: then the size will do, and the checksum where
    /// both services tell one.
    pub copied_by: Option<Copier>,
    /// Compare the contents all the same.
    pub compare_contents: bool,
}

/// What shows that an object of the fork is the duplicate of its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Proof {
    /// The receipt of a worker for this very object and its very source.
    Receipt,
    /// Source and duplicate were read and compared, byte for byte.
    Content,
    /// The services' own hashes of both are equal.
    Checksum,
    /// The size, and the word of whoever ran the copier.
    Size,
}

impl Proof {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Proof::Receipt => "receipt",
            Proof::Content => "content",
            Proof::Checksum => "checksum",
            Proof::Size => "size",
        }
    }
}

pub(super) type Stats = HashMap<Location, Option<Stat>>;

/// What is at the places of `tasks`.
pub(super) async fn look_at_places(
    stores: &Stores,
    tasks: &[RestoreTask],
    progress: &dyn Progress,
) -> Result<Stats> {
    let places: Vec<Location> = tasks
        .iter()
        .map(|t| t.duplicate.destination.clone())
        .collect();
    progress.begin("looking for finished objects", places.len() as u64, 0);
    let there = stores.stat_all(&places).await;
    progress.end();
    there
}

/// What the evidence says of each task. Without `sources` the tasks are taken to be of just now.
pub(super) fn judge_all(
    tasks: &[RestoreTask],
    sources: Option<&Stats>,
    there: &Stats,
    journal: &Journal,
) -> Vec<TaskState> {
    tasks
        .iter()
        .map(|task| {
            let of = |stats: &'_ Stats, at: &Location| stats.get(at).cloned().flatten();
            let source = match sources {
                Some(sources) => of(sources, &task.duplicate.source),
                None => Some(task.duplicate.source_stat()),
            };
            let destination = of(there, &task.duplicate.destination);
            let receipt = journal.receipt(&task.duplicate.destination);
            let evidence = Evidence {
                source: source.as_ref(),
                destination: destination.as_ref(),
                receipt: receipt.as_ref(),
            };
            judge(task, &evidence)
        })
        .collect()
}

pub(super) fn refuse_strangers(tasks: &[RestoreTask], states: &[TaskState]) -> Result<()> {
    for (task, state) in tasks.iter().zip(states) {
        match state {
            TaskState::Stranger => {
                return Err(Error::refused(
                    "an object that is not this fork's is at a destination",
                )
                .at(&task.duplicate.destination)
                .hint("it was left as it is; move it away, or choose another destination"));
            }
            TaskState::SourceChanged => return Err(source_changed(&task.duplicate)),
            _ => {}
        }
    }
    Ok(())
}

/// Finds out whether the objects without receipts are duplicates, and returns what proved how many.
pub(super) async fn settle(
    stores: &Stores,
    tasks: &[RestoreTask],
    states: &mut [TaskState],
    sources: &Stats,
    there: &Stats,
    trust: Trust,
    progress: &dyn Progress,
) -> Result<BTreeMap<Proof, u64>> {
    let mut proofs = BTreeMap::new();
    let mut open: Vec<usize> = Vec::new();
    for (index, state) in states.iter().enumerate() {
        match state {
            TaskState::Proven => *proofs.entry(Proof::Receipt).or_default() += 1,
            TaskState::Unproven => open.push(index),
            _ => {}
        }
    }
    progress.begin("comparing objects without receipts", open.len() as u64, 0);
    let open = open
        .into_iter()
        .filter_map(|index| Some((index, &tasks.get(index)?.duplicate)));
    let mut answers = futures::stream::iter(open)
        .map(|(index, task)| async move {
            let tag = |stats: &Stats, at: &Location| stats.get(at).cloned().flatten()?.tag;
            let (a, b) = (tag(sources, &task.source), tag(there, &task.destination));
            let hashes = plain_hashes(a.as_deref(), b.as_deref());
            // Hashes that differ prove nothing: encryption may have its part in them.
            let proof = match (trust.copied_by, hashes) {
                (Some(_), Some(true)) if !trust.compare_contents => Some(Proof::Checksum),
                (Some(_), None) if !trust.compare_contents => Some(Proof::Size),
                _ => stores
                    .same_content(&task.source, &task.destination, task.size)
                    .await?
                    .then_some(Proof::Content),
            };
            Ok::<_, Error>((index, proof))
        })
        .buffer_unordered(COMPARED_AT_ONCE);
    while let Some((index, proof)) = answers.try_next().await? {
        progress.advance(1, 0);
        if let Some(proof) = proof {
            *proofs.entry(proof).or_default() += 1;
        }
        if let Some(state) = states.get_mut(index) {
            *state = match proof {
                Some(_) => TaskState::Proven,
                None => TaskState::Stranger,
            };
        }
    }
    progress.end();
    Ok(proofs)
}

/// A source that is no longer what was planned.
pub(super) fn source_changed(task: &Task) -> Error {
    Error::refused("the object has changed since the plan was made")
        .during("copy")
        .at(&task.source)
        .hint("files of a snapshot never change: find out who wrote it, then make a new plan")
}
