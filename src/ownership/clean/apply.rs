//! Applies a reviewed plan: waits, marks, looks again, deletes what is in the plan and still dead. I/O.
//!
//! A run that stops anywhere leaves whole snapshots, or objects without a commit object; the same plan
//! applied again goes on. Two runs at once do the same work twice and no harm.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use serde::Serialize;

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::progress::{Cancel, Progress};
use crate::snapshot::formats;
use crate::store::Location;

use super::super::access::Access;
use super::super::classify::{Class, CleanPolicy, Doubt, StayReason, classify};
use super::super::evidence::{MissingEvidence, MissingReason, incomplete_error};
use super::super::layout::common_root;
use super::super::lineage::Lineage;
use super::super::names::ObjectId;
use super::super::record::{ledger_at, nonce};
use super::super::survey::{Survey, survey};
#[cfg(doc)]
use super::marks::remove_ended;
use super::marks::{homes, open_ledger, remove_marks, write_marks};
use super::plan::{PlanHeader, PlanSource};

/// How long after the ledger was opened the evidence is looked at again, unless another time is given: ten minutes.
/// A job that has begun a checkpoint on what shall go completes it meanwhile.
pub const GRACE_MS: u64 = 10 * 60_000;
/// How long a run may delete after the grace period, in milliseconds: then its marks end.
pub const LEASE_MS: u64 = 2 * 3_600_000;
/// Objects handed to the store at once; between two such lots the run may be stopped.
const LOT: usize = 8_000;
/// Failures that a report names.
const NAMED_AT_MOST: usize = 10;
/// How often what changes while it is looked at is looked at, and how long to wait between two looks.
const LOOKS_WHILE_CHANGING: u32 = 8;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
const LONGEST_BETWEEN_LOOKS: Duration = Duration::from_secs(5);
/// Objects of a plan that are looked at to find out whether it is over.
const LOOKS: usize = 4;

/// How a plan is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApplyOptions {
    /// Between the opening of the ledger and the second look, in milliseconds.
    pub grace_ms: u64,
    /// Refuse to delete more objects than this.
    pub max_delete: Option<u64>,
}

impl Default for ApplyOptions {
    fn default() -> ApplyOptions {
        ApplyOptions {
            grace_ms: GRACE_MS,
            max_delete: None,
        }
    }
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum Status {
    /// All that the plan names is gone, or is needed again and stays.
    Done,
    /// Begun; the second look may come from this moment on, in milliseconds since 1970.
    Waiting {
        /// The moment.
        until_unix_ms: u64,
    },
    /// Not all could be deleted; the same plan applied again goes on.
    Partly,
}

/// Why an object of the plan was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpareReason {
    /// It is needed again, or pinned, or claimed.
    NeededNow,
    /// Another object has its name now.
    Changed,
    /// The commit object of a snapshot that refers to it could not be deleted.
    SnapshotStillThere,
}

/// An object of the plan that was left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Left {
    /// The object.
    pub object: Location,
    /// What it is by now.
    pub class: Class,
    /// A snapshot that stays and needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<Location>,
    /// Why that snapshot stays.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub since: Vec<StayReason>,
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ApplyReport {
    /// The plan's id.
    pub plan: String,
    /// Where it stands.
    #[serde(flatten)]
    pub status: Status,
    /// Objects that this run deleted. Stores do not tell who was first: two runs at once both count what both
    /// deleted.
    pub deleted: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects of the plan that were gone already.
    pub gone: u64,
    /// Objects of the plan that were left, by reason.
    pub spared: BTreeMap<SpareReason, u64>,
    /// The first of those that are needed, or may not go, by now.
    pub left: Vec<Left>,
    /// Objects that could not be deleted.
    pub failed: u64,
    /// The first of them, with the reason.
    pub failures: Vec<String>,
    /// Objects that were not tried, since the run was stopped or its time was up.
    pub unattempted: u64,
}

/// Applies a plan as far as it may be applied now.
///
/// # Guarantees
///
/// Deletes only objects that the plan names, that are the same objects still, and that nothing needs at
/// the second look; nothing at all while evidence is missing. A snapshot's commit object goes before its
/// other objects. The ledger's entry goes last.
///
/// # Cost
///
/// That of [`survey()`]; two writes and two deletes per job concerned; one request per 1,000 objects deleted on
/// S3, 256 on Azure, one elsewhere.
///
/// # Errors
///
/// `Incomplete` while evidence is missing; `Refused` for more objects than allowed. Nothing is deleted then.
pub async fn apply_plan(
    access: &dyn Access,
    plan: &PlanSource,
    options: &ApplyOptions,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<ApplyReport> {
    apply(access, plan, options, None, progress, cancel).await
}

/// Applies a plan that nobody keeps: it is applied now, without a grace period, for at most `lease_ms`
/// milliseconds, and never again. If the run is killed, what it leaves is over then ([`remove_ended`]).
///
/// # Errors
///
/// Those of [`apply_plan`].
pub(crate) async fn apply_once(
    access: &dyn Access,
    plan: &PlanSource,
    lease_ms: u64,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<ApplyReport> {
    let options = ApplyOptions {
        grace_ms: 0,
        max_delete: None,
    };
    apply(access, plan, &options, Some(lease_ms), progress, cancel).await
}

async fn apply(
    access: &dyn Access,
    plan: &PlanSource,
    options: &ApplyOptions,
    once_ms: Option<u64>,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<ApplyReport> {
    let header = plan.checked()?;
    let mut report = ApplyReport {
        plan: header.plan.clone(),
        status: Status::Done,
        deleted: 0,
        bytes: 0,
        gone: 0,
        spared: BTreeMap::new(),
        left: Vec::new(),
        failed: 0,
        failures: Vec::new(),
        unattempted: 0,
    };
    if header.objects == 0 {
        return Ok(report);
    }
    refuse_many(header.objects, options)?;
    let homes = homes(&header, plan)?;
    if is_over(access, plan, &header, progress).await? {
        report.gone = header.objects;
        return Ok(report);
    }
    let (ledger, entry) = open_ledger(access, &header, once_ms).await?;
    let ready = entry.opened_unix_ms.saturating_add(options.grace_ms);
    if access.now() < ready {
        report.status = Status::Waiting {
            until_unix_ms: ready,
        };
        return Ok(report);
    }
    // Only now: until here a pin saves its snapshot. Marks of this run alone, so that no other run takes
    // them away while it deletes.
    let own = format!("{}-{}", header.plan, nonce(access));
    let until = access.now().saturating_add(once_ms.unwrap_or(LEASE_MS));
    write_marks(access, &header, &homes, &own, until).await?;
    let run = Run {
        access,
        header: &header,
        plan,
        options,
        until,
        cancel,
    };
    let result = run.delete(progress, &mut report).await;
    // Removed whatever came of it; if that fails they end by themselves, and the ledger stays open.
    let removed = remove_marks(access, &homes, &own).await;
    result?;
    if let Err(e) = &removed {
        report.failures.push(e.to_string());
    }
    if report.failed > 0 || report.unattempted > 0 || removed.is_err() {
        report.status = Status::Partly;
        return Ok(report);
    }
    access.delete(&ledger).await?;
    if let Some(root) = header.roots.first() {
        access.remove_empty_folders(&ledger, root).await;
    }
    Ok(report)
}

/// True for a plan that was applied to its end before: no run of it is open and nothing that it names is there.
/// A few looks; only when these find nothing, a survey.
async fn is_over(
    access: &dyn Access,
    plan: &PlanSource,
    header: &PlanHeader,
    progress: &dyn Progress,
) -> Result<bool> {
    if let Some(root) = header.roots.first()
        && access.find(&ledger_at(root, &header.plan)).await?.is_some()
    {
        return Ok(false);
    }
    for entry in plan.first(LOOKS)? {
        if access.find(&entry.object).await?.is_some() {
            return Ok(false);
        }
    }
    let survey = survey(access, &header.roots, progress).await?;
    let mut there = false;
    plan.each(|entry| {
        let found = survey.names.find(&entry.object);
        there |= found.is_some_and(|id| survey.fact(id).listed);
    })?;
    let listed = |m: &MissingEvidence| m.reason != MissingReason::IncompleteListing;
    Ok(!there && survey.missing.iter().all(listed))
}

fn refuse_many(objects: u64, options: &ApplyOptions) -> Result<()> {
    match options.max_delete {
        Some(most) if objects > most => Err(Error::refused(format!(
            "{objects} objects would be deleted, more than the {most} that are allowed"
        ))
        .during("clean")
        .hint("look at the plan; if it is right, allow more with --max-delete")),
        _ => Ok(()),
    }
}

struct Run<'a> {
    access: &'a dyn Access,
    header: &'a PlanHeader,
    plan: &'a PlanSource,
    options: &'a ApplyOptions,
    until: u64,
    cancel: &'a Cancel,
}

impl Run<'_> {
    async fn delete(&self, progress: &dyn Progress, report: &mut ApplyReport) -> Result<()> {
        let mut roots: Vec<Location> = self.header.roots.iter().map(common_root).collect();
        roots.extend(self.header.also.iter().cloned());
        let survey = self.settled(&roots, progress).await?;
        self.remove_ended_marks(&survey).await;
        if !survey.missing.is_empty() {
            return Err(incomplete_error(&survey.missing).during("clean"));
        }
        self.look_for_staying(&survey).await?;
        let lineage = Lineage::new(&survey);
        let dead = self.still_dead(&lineage, report)?;
        let all = dead.commits.len() + dead.others.len();
        refuse_many(all as u64, self.options)?;
        progress.begin("deleting", all as u64, 0);
        // What is half deleted must not look like a snapshot: commit objects first.
        let failed = self
            .delete_lots(&survey, &dead.commits, report, progress)
            .await;
        let standing: HashSet<u32> = failed
            .iter()
            .flat_map(|id| lineage.users(*id))
            .copied()
            .collect();
        let mut others = dead.others;
        if !standing.is_empty() {
            let before = others.len();
            others.retain(|id| {
                !lineage
                    .users(*id)
                    .iter()
                    .any(|user| standing.contains(user))
            });
            if before > others.len() {
                report.spared.insert(
                    SpareReason::SnapshotStillThere,
                    (before - others.len()) as u64,
                );
            }
        }
        self.delete_lots(&survey, &others, report, progress).await;
        progress.end();
        Ok(())
    }

    /// What is there. Again where it has changed while it was looked at, as it does while another clean deletes: what
    /// a look then shows holds for no moment, and the next one is as good as the first.
    async fn settled(&self, roots: &[Location], progress: &dyn Progress) -> Result<Survey> {
        let mut looked = 0;
        loop {
            let survey = survey(self.access, roots, progress).await?;
            let changes = |m: &MissingEvidence| m.reason == MissingReason::ChangedMeanwhile;
            if survey.missing.is_empty() || !survey.missing.iter().all(changes) {
                return Ok(survey);
            }
            looked += 1;
            if looked == LOOKS_WHILE_CHANGING || self.cancel.is_cancelled() {
                return Err(Error::new(
                    ErrorKind::Incomplete,
                    format!(
                        "snapshots come and go while they are looked at: another clean may be at work ({})",
                        incomplete_error(&survey.missing).message()
                    ),
                )
                .during("clean")
                .hint("nothing was deleted by this run; run the same command again once the other has ended"));
            }
            let chance = self.access.random();
            let pause = clock::backoff_by(chance, looked, BETWEEN_LOOKS, LONGEST_BETWEEN_LOOKS);
            self.access.wait(pause).await;
        }
    }

    /// A snapshot that stayed when the plan was made, and that is there and was not listed now, proves that
    /// the listing is incomplete. One look for each that is missed.
    async fn look_for_staying(&self, survey: &Survey) -> Result<()> {
        let seen: HashSet<&Location> = survey.nodes.iter().map(|node| &node.directory).collect();
        for directory in self.header.staying.iter().filter(|d| !seen.contains(d)) {
            for format in formats() {
                let at = directory.join(format.commit_object())?;
                if self.access.find(&at).await?.is_some() {
                    let missing = MissingEvidence::new(
                        at,
                        MissingReason::IncompleteListing,
                        "it is there, and the listing did not show it",
                    );
                    return Err(incomplete_error(&[missing]).during("clean"));
                }
            }
        }
        Ok(())
    }

    /// The objects of the plan that may go by the fresh evidence.
    fn still_dead(&self, lineage: &Lineage<'_>, report: &mut ApplyReport) -> Result<Dead> {
        let survey = lineage.survey();
        let mut keep = Vec::new();
        for rule in &self.header.keep {
            keep.push(rule.parse()?);
        }
        let policy = CleanPolicy {
            keep,
            min_age_ms: self.header.min_age_ms,
        };
        let classified = classify(lineage, &self.header.roots, &policy, self.access.now());
        let planned: HashSet<u32> = self
            .header
            .snapshots
            .iter()
            .filter_map(|s| u32::try_from(survey.find(&s.directory)?).ok())
            .collect();
        let commits: HashSet<ObjectId> = survey.nodes.iter().map(|node| node.commit).collect();
        let mut dead = Dead::default();
        let mut spare = |reason| *report.spared.entry(reason).or_insert(0) += 1;
        let mut gone = 0;
        let mut left = Vec::new();
        self.plan.each(|entry| {
            let Some(id) = survey
                .names
                .find(&entry.object)
                .filter(|id| survey.fact(*id).listed)
            else {
                gone += 1;
                return;
            };
            if format!("{:016x}", survey.fact(id).fingerprint) != entry.fingerprint {
                return spare(SpareReason::Changed);
            }
            let users = lineage.users(id);
            let class = classified.classes.get(id as usize).copied();
            let may_go = match class {
                // A snapshot that the plan does not know must not lose anything by it.
                Some(Class::Going) => users.iter().all(|user| planned.contains(user)),
                Some(Class::Orphan(_)) => true,
                // Its snapshot's commit object went in an earlier run of this plan.
                Some(
                    Class::TooYoung | Class::Unknown(Doubt::StrangeName | Doubt::SameNameElsewhere),
                ) => entry.of.is_some() && users.is_empty(),
                _ => false,
            };
            match may_go {
                false => {
                    if left.len() < NAMED_AT_MOST {
                        let stays = |n: &&u32| {
                            let fate = classified.fates.get(**n as usize);
                            fate.is_some_and(|fate| !fate.stays.is_empty())
                        };
                        let user = users.iter().find(stays).or(users.first());
                        let fate = user.and_then(|n| classified.fates.get(*n as usize));
                        left.push(Left {
                            since: fate.map_or_else(Vec::new, |fate| fate.stays.clone()),
                            object: entry.object,
                            class: class.unwrap_or(Class::Live),
                            by: user
                                .and_then(|n| survey.nodes.get(*n as usize))
                                .map(|node| node.directory.clone()),
                        });
                    }
                    spare(SpareReason::NeededNow);
                }
                true if commits.contains(&id) => dead.commits.push(id),
                true => dead.others.push(id),
            }
        })?;
        report.gone = gone;
        report.left = left;
        Ok(dead)
    }

    /// Deletes objects; those that could not be are returned.
    async fn delete_lots(
        &self,
        survey: &Survey,
        ids: &[ObjectId],
        report: &mut ApplyReport,
        progress: &dyn Progress,
    ) -> Vec<ObjectId> {
        let mut failed = Vec::new();
        for lot in ids.chunks(LOT) {
            if self.cancel.is_cancelled() || self.access.now() >= self.until {
                report.unattempted += lot.len() as u64;
                failed.extend_from_slice(lot);
                continue;
            }
            let mut left: HashSet<ObjectId> = lot.iter().copied().collect();
            for objects in by_bucket(survey, lot) {
                for (at, outcome) in self.access.delete_all(objects).await {
                    let id = survey.names.find(&at);
                    match (outcome, id) {
                        (Ok(()), Some(id)) => {
                            left.remove(&id);
                            report.deleted += 1;
                            report.bytes = report.bytes.saturating_add(survey.fact(id).size);
                            let root = self.header.roots.iter().find(|root| root.contains(&at));
                            if let Some(root) = root {
                                self.access.remove_empty_folders(&at, root).await;
                            }
                        }
                        (Err(e), _) if report.failures.len() < NAMED_AT_MOST => {
                            report.failures.push(e.to_string());
                        }
                        _ => {}
                    }
                }
            }
            report.failed += left.len() as u64;
            failed.extend(left);
            progress.advance(lot.len() as u64, 0);
        }
        failed
    }

    /// Marks of runs that were killed.
    async fn remove_ended_marks(&self, survey: &Survey) {
        for (_, at, mark) in &survey.records.marks {
            if !mark.is_active(self.access.now()) {
                // One that cannot be removed counts no more all the same.
                let _ = self.access.delete(at).await;
            }
        }
    }
}

#[derive(Default)]
struct Dead {
    commits: Vec<ObjectId>,
    others: Vec<ObjectId>,
}

/// The objects by bucket: a batch goes to one.
fn by_bucket(survey: &Survey, ids: &[ObjectId]) -> Vec<Vec<Location>> {
    let mut buckets: BTreeMap<crate::store::Bucket, Vec<Location>> = BTreeMap::new();
    for at in ids.iter().filter_map(|id| survey.names.location(*id)) {
        buckets.entry(at.bucket()).or_default().push(at);
    }
    buckets.into_values().collect()
}

impl ApplyReport {
    /// True if the same plan must be applied again.
    pub fn is_unfinished(&self) -> bool {
        self.status != Status::Done
    }
}
