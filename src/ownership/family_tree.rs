//! Lineage as a forest: jobs, their snapshots in order, and the snapshot that each job grew from. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::snapshot::Kind;
use crate::store::Location;

use super::evidence::MissingEvidence;
use super::identity::SnapshotId;
use super::lineage::{Amount, GrowthEvidence, Lineage, Parent};
use super::need::NeedReason;
use super::origin::origins;
use super::verdict::{going_by, recorded_needs};

/// One snapshot as lists and trees show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SnapshotSummary {
    /// Which one.
    pub snapshot: SnapshotId,
    /// Its folder.
    pub directory: Location,
    /// Checkpoint or savepoint.
    pub kind: Kind,
    /// When its commit object was written, in milliseconds since 1970; 0 if that is not known.
    pub modified_unix_ms: u64,
    /// Objects of it that are not there as its metadata says; 0 for a whole one.
    pub missing_objects: u32,
    /// How many of these are there with another size than the metadata says.
    pub wrong_size_objects: u32,
    /// The plan of a clean that is deleting it at this moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub going: Option<String>,
    /// Objects of it outside of the roots that were looked at.
    pub outside_objects: u32,
    /// All its objects that are there.
    pub total: Amount,
    /// Those that another snapshot uses too.
    pub shared: Amount,
    /// Those that no other snapshot uses: what its deletion would free.
    pub exclusive: Amount,
    /// The other snapshots that use objects of it.
    pub used_by: Vec<SnapshotId>,
    /// What needs it besides.
    pub needs: Vec<NeedReason>,
    /// The job that has taken it over, if one has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed_by: Option<String>,
    /// The snapshot that it was forked from, where the names of its objects prove it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_from: Option<StartedFrom>,
}

/// The snapshot of another job that one was made from, and needs no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StartedFrom {
    /// Which one.
    pub snapshot: SnapshotId,
    /// Its folder.
    pub directory: Location,
    /// What says so.
    pub evidence: GrowthEvidence,
}

/// One job and its snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Branch {
    /// The root below which the job's folder is.
    pub root: Location,
    /// The job's folder below it; empty for snapshots in the root itself.
    pub job: String,
    /// The snapshot that its oldest one grew from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grew_from: Option<Growth>,
    /// By number.
    pub snapshots: Vec<SnapshotSummary>,
}

/// The snapshot that a job grew from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Growth {
    /// The branch of that snapshot.
    pub branch: usize,
    /// Its place there.
    pub snapshot: usize,
    /// How many objects the job's oldest snapshot shares with it; 0 where something else says so: then it is
    /// independent of it.
    pub shared_objects: u64,
    /// What says so.
    pub evidence: GrowthEvidence,
}

/// All jobs below some roots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FamilyTree {
    /// When it was looked at, in milliseconds since 1970.
    pub taken_at_unix_ms: u64,
    /// The jobs, by their names.
    pub branches: Vec<Branch>,
    /// What is not known.
    pub missing: Vec<MissingEvidence>,
}

/// Draws up the forest of what lies below `below`; all that was surveyed counts as a user.
pub fn family_tree(lineage: &Lineage<'_>, below: &[Location]) -> FamilyTree {
    let survey = lineage.survey();
    let origins = origins(lineage);
    let origin = |n: usize| origins.get(n).copied().flatten();
    let mut jobs: BTreeMap<(&Location, &str), Vec<usize>> = BTreeMap::new();
    for (n, node) in survey.nodes.iter().enumerate() {
        if below.iter().any(|root| root.contains(&node.directory)) {
            jobs.entry((&node.id.root, &node.id.job))
                .or_default()
                .push(n);
        }
    }
    let mut places: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    let mut branches = Vec::with_capacity(jobs.len());
    let mut firsts = Vec::with_capacity(jobs.len());
    for (branch, ((root, job), mut nodes)) in jobs.into_iter().enumerate() {
        nodes.sort_by_key(|n| {
            survey
                .nodes
                .get(*n)
                .map(|n| (n.id.number, n.directory.clone()))
        });
        for (place, node) in nodes.iter().enumerate() {
            places.insert(*node, (branch, place));
        }
        firsts.push(nodes.first().copied());
        branches.push(Branch {
            root: root.clone(),
            job: job.to_string(),
            grew_from: None,
            snapshots: nodes
                .iter()
                .filter_map(|n| summary(lineage, *n, origin(*n)))
                .collect(),
        });
    }
    for (own, (branch, first)) in branches.iter_mut().zip(firsts).enumerate() {
        // What it refers to comes first: then it is not independent. A name proves more than a record.
        let parent = first.and_then(|first| match lineage.parent(first) {
            Some(parent) if parent.shared > 0 => Some(parent),
            parent => origin(first).or(parent),
        });
        let place = parent.and_then(|parent| Some((parent, *places.get(&parent.node)?)));
        branch.grew_from =
            place
                .filter(|(_, (of, _))| *of != own)
                .map(|(parent, (of, snapshot))| Growth {
                    branch: of,
                    snapshot,
                    shared_objects: parent.shared,
                    evidence: parent.evidence,
                });
    }
    break_circles(&mut branches);
    FamilyTree {
        taken_at_unix_ms: survey.taken_at,
        branches,
        missing: survey.missing.clone(),
    }
}

/// Parents are older than their children, so that there is no circle; this is for times and records that lie. A
/// job in a circle is shown by itself.
fn break_circles(branches: &mut [Branch]) {
    for start in 0..branches.len() {
        let mut at = start;
        for _ in 0..branches.len() {
            let above = branches.get(at).and_then(|branch| branch.grew_from);
            match above {
                Some(growth) if growth.branch == start => {
                    if let Some(branch) = branches.get_mut(start) {
                        branch.grew_from = None;
                    }
                    break;
                }
                Some(growth) => at = growth.branch,
                None => break,
            }
        }
    }
}

impl FamilyTree {
    /// Branch and place of the snapshot in this folder.
    pub fn find(&self, directory: &Location) -> Option<(usize, usize)> {
        self.branches.iter().enumerate().find_map(|(n, branch)| {
            let mut own = branch.snapshots.iter();
            let place = own.position(|s| s.directory == *directory);
            place.map(|place| (n, place))
        })
    }
}

fn summary(lineage: &Lineage<'_>, n: usize, origin: Option<Parent>) -> Option<SnapshotSummary> {
    let survey = lineage.survey();
    let node = survey.nodes.get(n)?;
    let (total, exclusive) = (lineage.total(n), lineage.exclusive(n));
    let mut users = lineage.users_of_snapshot(n);
    users.sort_by_key(|u| survey.nodes.get(*u).map(|n| (n.id.number, n.id.clone())));
    let claims = &survey.records.claims;
    Some(SnapshotSummary {
        snapshot: node.id.clone(),
        directory: node.directory.clone(),
        kind: node.kind,
        modified_unix_ms: node.modified,
        missing_objects: node.missing,
        wrong_size_objects: node.wrong_size,
        going: going_by(survey, &node.directory).map(|mark| mark.plan.clone()),
        outside_objects: node.outside,
        total,
        shared: Amount {
            objects: total.objects - exclusive.objects,
            bytes: total.bytes - exclusive.bytes,
        },
        exclusive,
        used_by: users
            .into_iter()
            .filter_map(|u| Some(survey.nodes.get(u)?.id.clone()))
            .collect(),
        needs: recorded_needs(survey, node, survey.taken_at),
        claimed_by: claims
            .iter()
            .find(|(of, _)| *of == node.directory)
            .map(|(_, c)| c.job.clone()),
        started_from: origin.and_then(|origin| {
            let from = survey.nodes.get(origin.node)?;
            (!from.id.is_of_one_job_with(&node.id)).then(|| StartedFrom {
                snapshot: from.id.clone(),
                directory: from.directory.clone(),
                evidence: origin.evidence,
            })
        }),
    })
}
