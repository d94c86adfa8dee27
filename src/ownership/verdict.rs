//! May it go? The answer with its reasons, for a snapshot and for an object. Pure.

use serde::Serialize;

use crate::snapshot::{Kind, RestoreMode};
use crate::store::Location;

use super::changes::changes;
use super::evidence::{MissingEvidence, next_steps};
use super::identity::SnapshotId;
use super::layout::checkpoint_number;
use super::lineage::{Amount, Lineage};
use super::names::ObjectId;
use super::need::NeedReason;
use super::record::Mark;
use super::survey::{Node, Survey};

/// May it go?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Yes: nothing that is known of needs it, and all that must be known is.
    Deletable,
    /// No: something needs it, whatever else there may be.
    Kept,
    /// Evidence is missing.
    Unknown,
}

impl Answer {
    /// The answer in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Answer::Deletable => "deletable",
            Answer::Kept => "kept",
            Answer::Unknown => "unknown",
        }
    }
}

/// The answer for a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Which snapshot.
    pub snapshot: SnapshotId,
    /// Its folder.
    pub directory: Location,
    /// May it go?
    pub answer: Answer,
    /// What needs it.
    pub reasons: Vec<NeedReason>,
    /// What is not known.
    pub missing: Vec<MissingEvidence>,
    /// All its objects that were seen below the roots, its commit object among them.
    pub total: Amount,
    /// How many objects it consists of, wherever they are, its commit object among them.
    pub refers_to: u64,
    /// How many of them lie outside of the roots that were looked at.
    pub outside: u64,
    /// How many of them should lie below the roots and are not there, or not with the size that the metadata says.
    pub lost: u64,
    /// How many of these are there with another size.
    pub wrong_size: u64,
    /// Those that no other snapshot uses: what its deletion would free.
    pub freed: Amount,
    /// The job that has taken it over, if one has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed_by: Option<String>,
    /// What should be known besides.
    pub notes: Vec<String>,
    /// What would change the answer.
    pub changes: Vec<String>,
}

impl Verdict {
    /// The answer when this is not known either: what was deletable is unknown then. A need that was found stays one.
    #[must_use]
    pub fn without(mut self, missing: MissingEvidence) -> Verdict {
        withhold(
            &mut self.answer,
            &mut self.missing,
            &mut self.changes,
            missing,
        );
        self
    }
}

/// The answer for an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ObjectVerdict {
    /// Which object.
    pub object: Location,
    /// Its size in bytes, if a listing showed it.
    pub bytes: Option<u64>,
    /// May it go?
    pub answer: Answer,
    /// The snapshots that refer to it.
    pub used_by: Vec<SnapshotId>,
    /// What is not known.
    pub missing: Vec<MissingEvidence>,
    /// What should be known besides.
    pub notes: Vec<String>,
    /// What would change the answer.
    pub changes: Vec<String>,
}

impl ObjectVerdict {
    /// As [`Verdict::without`].
    #[must_use]
    pub fn without(mut self, missing: MissingEvidence) -> ObjectVerdict {
        withhold(
            &mut self.answer,
            &mut self.missing,
            &mut self.changes,
            missing,
        );
        self
    }
}

/// Takes back that something is deletable, for want of `missing`.
fn withhold(
    answer: &mut Answer,
    all: &mut Vec<MissingEvidence>,
    changes: &mut Vec<String>,
    missing: MissingEvidence,
) {
    if *answer != Answer::Kept {
        *answer = Answer::Unknown;
        changes.push(missing.next_step().to_string());
        all.push(missing);
    }
}

/// Is a restored job independent of what it was restored from?
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Independence {
    /// Yes, since this checkpoint of it.
    Since {
        /// The first one that refers to nothing of it.
        snapshot: SnapshotId,
    },
    /// Not yet: it has no completed checkpoint. Savepoints do not count.
    NoCheckpoint,
    /// Not yet: this one refers to objects of it.
    StillUses {
        /// Its newest checkpoint that does.
        snapshot: SnapshotId,
        /// How much.
        #[serde(flatten)]
        amount: Amount,
    },
}

/// Whether `job` still needs the snapshot `source`, from the metadata of the job's completed
/// checkpoints alone.
pub fn independence(lineage: &Lineage<'_>, source: usize, job: &str) -> Independence {
    let survey = lineage.survey();
    let used_by = lineage.used_by(source);
    let mut own: Vec<(usize, &Node)> = survey
        .nodes
        .iter()
        .enumerate()
        .filter(|(n, node)| *n != source && node.id.is_of_job(job) && node.kind == Kind::Checkpoint)
        .collect();
    own.sort_by_key(|(_, node)| node.id.number);
    let last_use = own
        .iter()
        .rev()
        .find_map(|(n, node)| Some((node, used_by.get(n)?)));
    match (last_use, own.first()) {
        (Some((node, amount)), _) => Independence::StillUses {
            snapshot: node.id.clone(),
            amount: *amount,
        },
        (None, Some((_, first))) => Independence::Since {
            snapshot: first.id.clone(),
        },
        (None, None) => Independence::NoCheckpoint,
    }
}

/// True if a job that was started from `source` at `started` has since completed a checkpoint of
/// its own. From then on its metadata says what it needs.
pub(crate) fn has_completed(survey: &Survey, source: &Node, job: &str, started: u64) -> bool {
    survey.nodes.iter().any(|node| {
        node.id.is_of_job(job)
            && node.kind == Kind::Checkpoint
            && node.id.number > source.id.number
            && node.modified >= started
    })
}

/// The mark of a clean that is deleting the snapshot in this folder at the time of the survey.
pub(crate) fn going_by<'s>(survey: &'s Survey, directory: &Location) -> Option<&'s Mark> {
    let home = directory.parent()?;
    let is_of_it = |mark: &Mark| {
        mark.is_active(survey.taken_at) && mark.snapshots.iter().any(|n| n == directory.name())
    };
    let mut marks = survey.records.marks.iter();
    marks
        .find(|(of, _, mark)| *of == home && is_of_it(mark))
        .map(|(_, _, mark)| mark)
}

/// What needs a snapshot besides the references of other snapshots, at the time `now`.
pub(crate) fn recorded_needs(survey: &Survey, node: &Node, now: u64) -> Vec<NeedReason> {
    let records = &survey.records;
    let mut needs = Vec::new();
    let of = |directory: &Location| *directory == node.directory;
    for (_, pin) in records.pins.iter().filter(|(d, _)| of(d)) {
        match &pin.fork {
            _ if !pin.is_active(now) => {}
            Some(fork) => needs.push(NeedReason::ForkedTo {
                fork_id: fork.fork_id.clone(),
                destination: fork.destination.clone(),
                pin: Some(pin.name.clone()),
                plan: fork.plan.clone(),
                given_up: records.giving_up(&fork.fork_id, fork.plan.as_ref()),
            }),
            None => needs.push(NeedReason::Pinned {
                name: pin.name.clone(),
                owner: pin.owner.clone(),
                why: pin.reason.clone(),
                expires_unix_ms: pin.expires_unix_ms,
            }),
        }
    }
    for (to, fork) in records.forks.iter().filter(|(_, fork)| of(&fork.source)) {
        let pinned = needs.iter().any(
            |need| matches!(need, NeedReason::ForkedTo { fork_id, .. } if *fork_id == fork.fork_id),
        );
        if !pinned {
            needs.push(NeedReason::ForkedTo {
                fork_id: fork.fork_id.clone(),
                destination: to.parent().unwrap_or_else(|| to.clone()),
                pin: None,
                plan: fork.plan.clone(),
                given_up: records.giving_up(&fork.fork_id, fork.plan.as_ref()),
            });
        }
    }
    let claims = records.claims.iter().filter(|(d, _)| of(d));
    let claims = claims.map(|(_, c)| (&c.job, RestoreMode::Claim, c.created_unix_ms));
    let restores = records.restores.iter().filter(|(d, _)| of(d));
    let restores = restores.map(|(_, r)| (&r.job, r.mode, r.created_unix_ms));
    for (job, mode, started) in claims.chain(restores) {
        if !has_completed(survey, node, job, started) {
            needs.push(NeedReason::Restoring {
                job: job.clone(),
                mode,
            });
        }
    }
    needs
}

/// The answer for the snapshot at `node` in [`Survey::nodes`], at the time `now` in milliseconds since
/// 1970.
///
/// A need is certain whatever else is not known, so one of them makes the answer *kept*; only without
/// any does missing evidence make it *unknown*.
pub fn judge(lineage: &Lineage<'_>, node: usize, now: u64) -> Option<Verdict> {
    let survey = lineage.survey();
    let own = survey.nodes.get(node)?;
    let mut reasons = Vec::new();
    for (other, amount) in lineage.used_by(node) {
        let Some(other) = survey.nodes.get(other) else {
            continue;
        };
        let meant = own
            .objects
            .iter()
            .filter(|id| other.meant.contains(id))
            .count() as u64;
        let (snapshot, directory) = (other.id.clone(), other.directory.clone());
        let theirs =
            |id: &&ObjectId| survey.fact(**id).listed && other.objects.binary_search(id).is_ok();
        reasons.push(match meant {
            0 => NeedReason::UsedBy {
                snapshot,
                directory,
                amount,
                seen_objects: own.objects.iter().filter(theirs).count() as u64,
            },
            objects => NeedReason::MeantBy {
                snapshot,
                directory,
                objects,
            },
        });
    }
    reasons.extend(recorded_needs(survey, own, now));
    let missing = survey.missing.clone();
    let answer = match (reasons.is_empty(), missing.is_empty()) {
        (false, _) => Answer::Kept,
        (true, false) => Answer::Unknown,
        (true, true) => Answer::Deletable,
    };
    let claimed_by = survey
        .records
        .claims
        .iter()
        .find(|(of, _)| *of == own.directory)
        .map(|(_, claim)| claim.job.clone());
    Some(Verdict {
        snapshot: own.id.clone(),
        directory: own.directory.clone(),
        answer,
        changes: changes(own, &reasons, &missing),
        notes: notes(lineage, node, own),
        reasons,
        missing,
        total: lineage.total(node),
        refers_to: own.objects.len() as u64,
        outside: own.outside.into(),
        lost: own.missing.into(),
        wrong_size: own.wrong_size.into(),
        freed: lineage.exclusive(node),
        claimed_by,
    })
}

/// How the job's newest checkpoint that can be restored is called; nothing for any other one.
fn newest_text(survey: &Survey, own: &Node) -> Option<&'static str> {
    if own.kind != Kind::Checkpoint || own.missing > 0 {
        return None;
    }
    let is_newer = |n: &&Node| {
        n.id.is_of_one_job_with(&own.id)
            && n.kind == Kind::Checkpoint
            && n.id.number > own.id.number
    };
    let mut newer = survey.nodes.iter().filter(is_newer).peekable();
    let unread = survey.missing.iter().any(|m| {
        m.unread_snapshot().is_some_and(|folder| {
            folder.parent() == own.directory.parent()
                && checkpoint_number(folder.name()).is_some_and(|n| n > own.id.number)
        })
    });
    match (newer.peek().is_some(), unread) {
        (false, false) => Some("newest checkpoint"),
        _ if newer.all(|n| n.missing > 0) => Some("newest intact checkpoint"),
        _ => None,
    }
}

/// Why a snapshot with lost objects cannot be restored.
pub(crate) fn lost_text(own: &Node) -> String {
    match own.wrong_size {
        0 => format!(
            "{} of its objects are not there: it cannot be restored",
            own.missing
        ),
        wrong => format!(
            "{} of its objects are lost, {wrong} of which are there with another size than the metadata says: it cannot \
             be restored; `forkpoint verify` names them",
            own.missing
        ),
    }
}

fn notes(lineage: &Lineage<'_>, node: usize, own: &Node) -> Vec<String> {
    let survey = lineage.survey();
    let mut notes = Vec::new();
    if let Some(mark) = going_by(survey, &own.directory) {
        notes.push(format!(
            "plan {} of a clean is deleting it: objects of it may go at any moment",
            mark.plan
        ));
    }
    if let Some(newest) = newest_text(survey, own) {
        notes.push(format!(
            "it is the {newest} of job {}: a job that still runs starts from it after a failure",
            own.id.job_name()
        ));
    }
    if own.missing > 0 {
        notes.push(lost_text(own));
    }
    if let Some(oldest) = own
        .objects
        .iter()
        .map(|id| survey.fact(*id))
        .filter(|fact| fact.listed && fact.modified > 0)
        .map(|fact| fact.modified)
        .min()
        && own.modified.saturating_sub(oldest) > 60_000
    {
        notes.push(format!(
            "its oldest object was written {} before it: age says nothing about use, so no bucket rule may expire objects by age",
            human_millis(own.modified - oldest)
        ));
    }
    if lineage.total(node).objects == 0 {
        notes.push("nothing of it is left".into());
    }
    notes
}

/// A span of time for people: the largest unit, rounded down.
pub fn human_millis(millis: u64) -> String {
    let seconds = millis / 1000;
    let (n, unit) = match seconds {
        0..120 => (seconds, "second"),
        120..7200 => (seconds / 60, "minute"),
        7200..172_800 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{n} {unit}{}", if n == 1 { "" } else { "s" })
}

/// The answer for one object, by its number.
pub fn judge_object(lineage: &Lineage<'_>, id: ObjectId) -> Option<ObjectVerdict> {
    let survey = lineage.survey();
    let object = survey.names.location(id)?;
    let fact = survey.fact(id);
    let nodes = lineage
        .users(id)
        .iter()
        .filter_map(|n| survey.nodes.get(*n as usize));
    let used_by: Vec<SnapshotId> = nodes.map(|n| n.id.clone()).collect();
    let missing = survey.missing.clone();
    let root = survey.roots.iter().find(|root| root.contains(&object));
    let place = root.map(|root| super::layout::Place::of(root, &object, fact.size));
    let named = matches!(
        place,
        Some(
            super::layout::Place::Shared { named: true, .. }
                | super::layout::Place::TaskOwned { named: true, .. }
                | super::layout::Place::OfCheckpoint { named: true, .. }
        )
    );
    let answer = match (used_by.is_empty(), missing.is_empty() && named) {
        (false, _) => Answer::Kept,
        (true, false) => Answer::Unknown,
        (true, true) => Answer::Deletable,
    };
    let mut notes = Vec::new();
    let mut changes = Vec::new();
    if !fact.listed {
        notes.push("it is not there".to_string());
    }
    if used_by.is_empty() && !named {
        notes
            .push("no engine writes an object of this name here: whose it is, is not known".into());
    }
    if used_by.is_empty() && named && fact.listed {
        notes.push("no snapshot refers to it; a task may have written it for a checkpoint that is not complete yet".into());
    }
    if !used_by.is_empty() {
        changes.push("it goes with the last snapshot that refers to it".into());
    }
    changes.extend(next_steps(&missing));
    Some(ObjectVerdict {
        object,
        bytes: fact.listed.then_some(fact.size),
        answer,
        used_by,
        missing,
        notes,
        changes,
    })
}
