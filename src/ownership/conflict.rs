//! What is in the way of a job that is to be started from a snapshot. Pure.

use std::fmt;

use serde::Serialize;

use crate::snapshot::RestoreMode;
use crate::store::Location;

use super::identity::{SnapshotId, same_job};
use super::lineage::Lineage;
use super::need::NeedReason;
use super::survey::{Node, Survey};
use super::verdict::{has_completed, recorded_needs};

/// Why a snapshot cannot be taken over, or no other job be started from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conflict {
    /// Another job has taken it over.
    ClaimedBy(String),
    /// Another job was started from it and still needs it.
    NeededByJob(String, RestoreMode),
    /// A snapshot of another job refers to objects of it.
    UsedBy(SnapshotId, u64),
    /// Somebody wants it kept, or a fork reads it.
    Needed(String),
    /// Another snapshot of its job shares so many objects with it, and this is in the way there: whoever has taken one of
    /// them over may delete what both need.
    Shared {
        /// Which one.
        snapshot: SnapshotId,
        /// Its folder.
        directory: Location,
        /// How many objects.
        objects: u64,
        /// What is in the way there.
        why: Box<Conflict>,
    },
}

impl Conflict {
    /// That somebody has pinned it.
    pub(super) fn pinned(owner: &str, name: &str, why: &str) -> Conflict {
        Conflict::Needed(format!("{owner} has pinned it as `{name}`: {why}"))
    }

    /// That `why` is in the way at `other`, with which so many objects are shared.
    pub(super) fn at_sharer(other: &Node, objects: u64, why: Conflict) -> Conflict {
        Conflict::Shared {
            snapshot: other.id.clone(),
            directory: other.directory.clone(),
            objects,
            why: Box::new(why),
        }
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Conflict::ClaimedBy(job) => write!(f, "job {job} has claimed it"),
            Conflict::NeededByJob(job, mode) => write!(
                f,
                "job {job} was started from it ({mode}) and still needs it"
            ),
            Conflict::UsedBy(snapshot, objects) => {
                write!(
                    f,
                    "{snapshot} of job {} refers to {objects} of its objects",
                    snapshot.job_name()
                )
            }
            Conflict::Needed(why) => f.write_str(why),
            Conflict::Shared {
                snapshot,
                objects,
                why,
                ..
            } => {
                write!(
                    f,
                    "it shares {objects} of its objects with {snapshot}: {why}"
                )
            }
        }
    }
}

/// What keeps `job` from being started from the snapshot at `node` in the given mode, at the time `now`.
///
/// Several jobs may depend on one snapshot as long as none has claimed it; a claim needs it alone. The same holds for all
/// snapshots of one job that share objects: a job that has taken one of them over deletes them, whoever else needs them.
pub fn find_conflicts(
    lineage: &Lineage<'_>,
    node: usize,
    job: &str,
    mode: RestoreMode,
    now: u64,
) -> Vec<Conflict> {
    let survey = lineage.survey();
    let Some(own) = survey.nodes.get(node) else {
        return Vec::new();
    };
    let mut conflicts = recorded(survey, own, job, mode, now);
    for (_, other, objects) in sharers(lineage, node) {
        if own.id.is_of_one_job_with(&other.id) {
            let there = recorded(survey, other, job, mode, now).into_iter();
            conflicts.extend(there.map(|why| Conflict::at_sharer(other, objects, why)));
        } else if mode == RestoreMode::Claim && !other.id.is_of_job(job) {
            conflicts.push(Conflict::UsedBy(other.id.clone(), objects));
        }
    }
    // Another job is the reason to name, before anybody's wish.
    conflicts.sort_by_key(|c| match c {
        Conflict::ClaimedBy(_) | Conflict::NeededByJob(..) | Conflict::UsedBy(..) => 0,
        Conflict::Shared { why, .. } if !matches!(**why, Conflict::Needed(_)) => 1,
        Conflict::Needed(_) => 2,
        Conflict::Shared { .. } => 3,
    });
    conflicts
}

/// The other snapshots that share objects with the one at `node`, by their place, and how many.
fn sharers<'s>(lineage: &Lineage<'s>, node: usize) -> impl Iterator<Item = (usize, &'s Node, u64)> {
    let nodes = &lineage.survey().nodes;
    let others = lineage.used_by(node).into_iter();
    others.filter_map(|(n, amount)| Some((n, nodes.get(n)?, amount.objects)))
}

/// Those of its own job.
pub(super) fn shared_with<'s>(lineage: &Lineage<'s>, node: usize) -> Vec<(usize, &'s Node, u64)> {
    let own = lineage.survey().nodes.get(node);
    sharers(lineage, node)
        .filter(|(_, other, _)| own.is_some_and(|own| own.id.is_of_one_job_with(&other.id)))
        .collect()
}

/// What others have written down about the snapshot `of`, as far as it is in the way.
fn recorded(survey: &Survey, of: &Node, job: &str, mode: RestoreMode, now: u64) -> Vec<Conflict> {
    let records = &survey.records;
    let claims = records.claims.iter().filter(|(at, _)| *at == of.directory);
    let mut conflicts: Vec<Conflict> = claims
        .filter(|(_, claim)| !same_job(&claim.job, job))
        .map(|(_, claim)| Conflict::ClaimedBy(claim.job.clone()))
        .collect();
    if mode != RestoreMode::Claim {
        return conflicts;
    }
    let restores = records
        .restores
        .iter()
        .filter(|(at, _)| *at == of.directory);
    for (_, restore) in restores {
        if !same_job(&restore.job, job)
            && !has_completed(survey, of, &restore.job, restore.created_unix_ms)
        {
            conflicts.push(Conflict::NeededByJob(restore.job.clone(), restore.mode));
        }
    }
    for need in recorded_needs(survey, of, now) {
        match need {
            NeedReason::Pinned {
                name, owner, why, ..
            } => conflicts.push(Conflict::pinned(&owner, &name, &why)),
            NeedReason::ForkedTo { destination, .. } => conflicts.push(Conflict::Needed(format!(
                "a fork to {destination} reads it"
            ))),
            _ => {}
        }
    }
    conflicts
}
