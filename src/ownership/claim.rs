//! Claims and restores: which job was started from a snapshot, and whether it has taken it over. Decisions
//! are pure ([`find_conflicts`]); here is the I/O.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::progress::Progress;
use crate::snapshot::{Kind, RestoreMode};
use crate::store::{Location, shell_word};

use super::access::Access;
use super::claimant::resolve;
use super::conflict::{Conflict, find_conflicts, shared_with};
use super::evidence::{MissingEvidence, MissingReason, incomplete_error};
use super::guess::needs_named_roots;
use super::identity::{SnapshotId, is_called, same_job};
use super::lineage::{Amount, Lineage};
use super::pin::{list, refuse_going, snapshot_is_there, tidy};
use super::record::{
    self, Claim, Pin, RECORD_LIMIT_BYTES, RECORD_VERSION, RecordName, Restore, claim_at, nonce,
    own_folder, restore_at,
};
use super::survey::{Node, Survey, survey};
use super::verdict::lost_text;

/// A job is started from a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The folder of the snapshot.
    pub snapshot: Location,
    /// The job: the location of its folder, the path of that below the root, its last part, or any name.
    /// Only a location tells jobs whose folders end alike from each other. Of a job of the snapshot writer
    /// the last part is taken for the location if no other one below the roots ends alike.
    pub job: String,
    /// Whether it takes the snapshot over.
    pub mode: RestoreMode,
    /// It takes over the older checkpoints of the snapshot's job too.
    pub chain: bool,
    /// Nobody has named the roots: then what [`needs_named_roots`](super::needs_named_roots) says so of is not taken over, since jobs
    /// that were started from it may keep their checkpoints anywhere.
    pub guessed_roots: bool,
}

/// A snapshot that a job has taken over or depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Claimed {
    /// Which one.
    pub snapshot: SnapshotId,
    /// Its folder.
    pub directory: Location,
    /// What its deletion alone would free.
    pub freed: Amount,
}

/// What a claim came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClaimReport {
    /// The job.
    pub job: String,
    /// The mode.
    pub mode: RestoreMode,
    /// The snapshots that are its own from now on, or that it depends on.
    pub snapshots: Vec<Claimed>,
    /// Older checkpoints of the same job that nobody claimed: they stay forever unless somebody does.
    pub left_behind: Vec<Claimed>,
    /// What their deletion together would free.
    pub left_behind_freed: Amount,
    /// Newer checkpoints of the same job that share objects with what was claimed: the new job may delete those.
    pub endangered: Vec<Claimed>,
}

/// Older checkpoints of the snapshot's own job.
fn older_siblings<'s>(survey: &'s Survey, own: &Node) -> Vec<(usize, &'s Node)> {
    let is_sibling = |node: &Node| {
        node.id.is_of_one_job_with(&own.id)
            && node.directory.parent() == own.directory.parent()
            && node.kind == Kind::Checkpoint
            && node.id.number < own.id.number
    };
    survey
        .nodes
        .iter()
        .enumerate()
        .filter(|(_, n)| is_sibling(n))
        .collect()
}

/// Records that a job is started from a snapshot: takes it over, or depends on it.
///
/// # Guarantees
///
/// Of two jobs that claim one snapshot at the same moment, or two that share objects, at most one succeeds, and so of a claim
/// and a restore in another mode. The same job may repeat its claim.
///
/// # Cost
///
/// That of [`survey()`], for each snapshot a write and a listing, three listings more, and a read of each record beside them.
///
/// # Errors
///
/// `Refused` with the name of the holder, or with the jobs that may be meant, or for a snapshot that has lost objects;
/// `Incomplete` if something that may depend on it could not be read.
pub async fn claim(
    access: &dyn Access,
    roots: &[Location],
    request: &ClaimRequest,
    progress: &dyn Progress,
) -> Result<ClaimReport> {
    if request.job.trim().is_empty() {
        return Err(Error::invalid("a job has a name"));
    }
    if request.chain && request.mode != RestoreMode::Claim {
        return Err(Error::invalid(
            "only a claim can take older checkpoints over",
        ));
    }
    let survey = survey(access, roots, progress).await?;
    let lineage = Lineage::new(&survey);
    let Some(node) = survey.find(&request.snapshot) else {
        return Err(not_seen(access, &survey, &request.snapshot).await);
    };
    if request.mode == RestoreMode::Claim && !survey.missing.is_empty() {
        return Err(incomplete_error(&survey.missing).during("claim"));
    }
    let Some(own) = survey.nodes.get(node) else {
        return Err(Error::new(ErrorKind::Internal, "a snapshot was lost"));
    };
    let request = &ClaimRequest {
        job: resolve(&survey, own, &request.job)?,
        ..request.clone()
    };
    let siblings = older_siblings(&survey, own);
    let mut targets = vec![(node, own)];
    if request.chain {
        targets.extend(siblings.iter().rev().copied());
    }
    for (n, target) in &targets {
        let conflicts = find_conflicts(&lineage, *n, &request.job, request.mode, survey.taken_at);
        if let Some(first) = conflicts.first() {
            return Err(refused(target, first, conflicts.len(), &request.job));
        }
    }
    refuse_lost(&survey, own)?;
    if request.guessed_roots
        && request.mode == RestoreMode::Claim
        && needs_named_roots(&own.directory, own.kind)
    {
        let roots: Vec<String> = survey.roots.iter().map(Location::to_string).collect();
        let unknown = MissingEvidence::new(
            own.directory.clone(),
            MissingReason::GuessedRoots,
            format!("looked at: {}", roots.join(", ")),
        );
        return Err(incomplete_error(&[unknown]).during("claim"));
    }
    write_all(access, &lineage, request, &targets).await?;
    let claimed = |(n, node): &(usize, &Node)| Claimed {
        snapshot: node.id.clone(),
        directory: node.directory.clone(),
        freed: lineage.exclusive(*n),
    };
    let is_claimed = |node: &Node| {
        survey
            .records
            .claims
            .iter()
            .any(|(of, _)| *of == node.directory)
    };
    let left: Vec<(usize, &Node)> = match request.chain || request.mode != RestoreMode::Claim {
        true => Vec::new(),
        false => siblings
            .into_iter()
            .filter(|(_, n)| !is_claimed(n))
            .collect(),
    };
    let mut left_behind_freed = Amount::default();
    let left_nodes: Vec<u32> = left
        .iter()
        .filter_map(|(n, _)| u32::try_from(*n).ok())
        .collect();
    let mut ids: Vec<u32> = left
        .iter()
        .flat_map(|(_, n)| n.objects.iter().copied())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        let fact = survey.fact(id);
        if fact.listed
            && lineage
                .users(id)
                .iter()
                .all(|user| left_nodes.contains(user))
        {
            left_behind_freed.add(fact.size);
        }
    }
    let endangered = match request.mode {
        RestoreMode::Claim => shared_with(&lineage, node),
        _ => Vec::new(),
    };
    Ok(ClaimReport {
        endangered: endangered
            .into_iter()
            .filter(|(_, other, _)| other.id.number > own.id.number && !is_claimed(other))
            .map(|(n, other, _)| claimed(&(n, other)))
            .collect(),
        job: request.job.clone(),
        mode: request.mode,
        snapshots: targets.iter().map(claimed).collect(),
        left_behind: left.iter().map(claimed).collect(),
        left_behind_freed,
    })
}

/// No job can start from a snapshot that has lost objects.
fn refuse_lost(survey: &Survey, own: &Node) -> Result<()> {
    let uncertain = |m: &&MissingEvidence| {
        matches!(
            m.reason,
            MissingReason::IncompleteListing | MissingReason::ChangedMeanwhile
        )
    };
    match (own.missing, survey.missing.iter().find(uncertain)) {
        (0, _) => Ok(()),
        // What was not listed looks as if it were lost.
        (_, Some(missing)) => {
            Err(incomplete_error(std::slice::from_ref(missing)).during("claim"))
        }
        (_, None) => Err(Error::refused(lost_text(own))
            .during("claim")
            .at(&own.directory)
            .hint(
                "see what is lost with `forkpoint verify`; start the job from another snapshot, such as the one before it",
            )),
    }
}

/// Why a snapshot is not among those that were seen. That it is not there comes first: what else could not be read is
/// of no interest then.
async fn not_seen(access: &dyn Access, survey: &Survey, snapshot: &Location) -> Error {
    let error = match snapshot_is_there(access, snapshot).await {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            e.hint("name the folder that holds `_metadata`, such as .../chk-42")
        }
        _ if !survey.roots.iter().any(|root| root.contains(snapshot)) => {
            Error::invalid("it lies below none of the roots")
                .at(snapshot)
                .hint("name the root that holds it with --root")
        }
        _ => {
            let is_of_it = |m: &&MissingEvidence| {
                snapshot.contains(&m.location) || m.location.contains(snapshot)
            };
            let own: Vec<MissingEvidence> =
                survey.missing.iter().filter(is_of_it).cloned().collect();
            match own.is_empty() {
                true => incomplete_error(&survey.missing),
                false => incomplete_error(&own),
            }
        }
    };
    error.during("claim")
}

fn refused(target: &Node, first: &Conflict, conflicts: usize, job: &str) -> Error {
    let more = match conflicts {
        1 => String::new(),
        n => format!("; and {} more", n - 1),
    };
    let error = Error::refused(format!("{first}{more}"))
        .during("claim")
        .at(&target.directory);
    let (of, found) = match first {
        Conflict::Shared { directory, why, .. } => (directory, &**why),
        own => (&target.directory, own),
    };
    let error = match found {
        // It may have meant this very job, or another one whose folder will end alike.
        Conflict::ClaimedBy(holder) | Conflict::NeededByJob(holder, _) if is_called(job, holder) => {
            error.hint(format!(
                "`{holder}` is not the location of a folder, so that it may be another job; if it means this one, \
                 take that record back with `forkpoint claim --release {} --job {}` and name the job by its \
                 location, {job}",
                shell_word(of),
                shell_word(holder)
            ))
        }
        _ => error,
    };
    error.hint("make an independent snapshot with `forkpoint fork`, and start from that one")
}

/// Writes the records, and looks whether somebody else came at the same moment; if so takes its own back.
async fn write_all(
    access: &dyn Access,
    lineage: &Lineage<'_>,
    request: &ClaimRequest,
    targets: &[(usize, &Node)],
) -> Result<()> {
    let mut records: Vec<(&Node, Record)> = Vec::new();
    let result = write_each(access, lineage, request, targets, &mut records).await;
    if result.is_err() {
        for (node, Record { at, is_new }) in &records {
            if *is_new {
                access.delete(at).await?;
                tidy(access, &node.directory, at).await;
            }
        }
    }
    result
}

async fn write_each<'s>(
    access: &dyn Access,
    lineage: &Lineage<'_>,
    request: &ClaimRequest,
    targets: &[(usize, &'s Node)],
    records: &mut Vec<(&'s Node, Record)>,
) -> Result<()> {
    for (_, node) in targets {
        records.push((node, write(access, request, node).await?));
    }
    look_again(access, lineage, request, targets).await?;
    // Another run of the same claim that was refused meanwhile takes back what it has written.
    for (node, Record { at, is_new }) in records {
        if !*is_new && access.find(at).await?.is_none() {
            return Err(Error::new(
                ErrorKind::Conflict,
                "another run of the same claim has taken its record back",
            )
            .during("claim")
            .at(&node.directory)
            .hint("run the same command again"));
        }
    }
    Ok(())
}

/// A record that is there.
struct Record {
    at: Location,
    /// This run has written it.
    is_new: bool,
}

/// Writes one record, unless the same job's is there already.
async fn write(access: &dyn Access, request: &ClaimRequest, node: &Node) -> Result<Record> {
    let created_unix_ms = access.now();
    let (at, bytes) = match request.mode {
        RestoreMode::Claim => {
            let with =
                (node.directory != request.snapshot).then(|| request.snapshot.name().to_string());
            let claim = Claim {
                version: RECORD_VERSION,
                nonce: nonce(access),
                job: request.job.clone(),
                created_unix_ms,
                with,
            };
            (claim_at(&node.directory)?, record::encode(&claim)?)
        }
        mode => {
            let job = request.job.clone();
            let restore = Restore {
                version: RECORD_VERSION,
                nonce: nonce(access),
                job,
                mode,
                created_unix_ms,
            };
            (
                restore_at(&node.directory, &request.job)?,
                record::encode(&restore)?,
            )
        }
    };
    match access.create(&at, bytes).await {
        Ok(()) => Ok(Record { at, is_new: true }),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            let bytes = access.read(&at, RECORD_LIMIT_BYTES).await?;
            let holder = match request.mode {
                RestoreMode::Claim => record::decode::<Claim>(&bytes, &at)?.job,
                _ => record::decode::<Restore>(&bytes, &at)?.job,
            };
            match same_job(&holder, &request.job) {
                true => Ok(Record { at, is_new: false }),
                false => Err(refused(node, &Conflict::ClaimedBy(holder), 1, &request.job)),
            }
        }
        Err(e) => Err(e.during("claim")),
    }
}

/// A snapshot that shares so many objects with one that is claimed; none: that one itself.
type Sharer<'n> = Option<(&'n Node, u64)>;

/// Records that were written since the survey, by others who may not have seen ours: of the snapshots, of those of their
/// job that share objects with them, and of those that have come since. A listing of marks for each snapshot, three
/// listings for each folder of a job, and a read for each record.
async fn look_again(
    access: &dyn Access,
    lineage: &Lineage<'_>,
    request: &ClaimRequest,
    targets: &[(usize, &Node)],
) -> Result<()> {
    let survey = lineage.survey();
    let mut near: BTreeMap<&Location, (&Node, Sharer<'_>)> = BTreeMap::new();
    for (n, node) in targets {
        refuse_going(access, &node.directory)
            .await
            .map_err(|e| e.during("claim"))?;
        for (_, other, objects) in shared_with(lineage, *n) {
            near.insert(&other.directory, (node, Some((other, objects))));
        }
    }
    for (_, node) in targets {
        near.insert(&node.directory, (node, None));
    }
    let mut folders = BTreeSet::new();
    for of in near.keys() {
        let own = own_folder(of)?;
        folders.insert(own.child("claims"));
        if request.mode == RestoreMode::Claim {
            folders.extend(["restores", "pins"].map(|kind| own.child(kind)));
        }
    }
    for folder in folders {
        for at in list(access, &folder).await? {
            let (RecordName::Claim(of) | RecordName::Restore(of) | RecordName::Pin(of)) =
                RecordName::of(&at)
            else {
                continue;
            };
            let shared = near.get(&of);
            if shared.is_none() && survey.find(&of).is_some() {
                continue;
            }
            let Some(why) = written_since(access, survey, request, &at).await? else {
                continue;
            };
            match shared {
                Some((node, None)) => return Err(refused(node, &why, 1, &request.job)),
                Some((node, Some((other, objects)))) => {
                    let why = Conflict::at_sharer(other, *objects, why);
                    return Err(refused(node, &why, 1, &request.job));
                }
                None => {
                    return Err(Error::refused(format!(
                        "{of} has come since the roots were read, and may share objects with it: {why}"
                    ))
                    .during("claim")
                    .at(&request.snapshot)
                    .hint("run the same command again, which looks at that one too"));
                }
            }
        }
    }
    Ok(())
}

/// What others have written down in the record `at`, if it is in the way and the survey has not seen it. One read.
async fn written_since(
    access: &dyn Access,
    survey: &Survey,
    request: &ClaimRequest,
    at: &Location,
) -> Result<Option<Conflict>> {
    let bytes = match access.read(at, RECORD_LIMIT_BYTES).await {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let known = &survey.records;
    let is_other = |job: &str| !same_job(job, &request.job);
    Ok(match RecordName::of(at) {
        RecordName::Claim(_) => {
            let claim: Claim = record::decode(&bytes, at)?;
            let is_new = !known.claims.iter().any(|(_, c)| c.nonce == claim.nonce);
            (is_new && is_other(&claim.job)).then_some(Conflict::ClaimedBy(claim.job))
        }
        RecordName::Restore(_) => {
            let restore: Restore = record::decode(&bytes, at)?;
            let is_new = !known.restores.iter().any(|(_, r)| r.nonce == restore.nonce);
            (is_new && is_other(&restore.job))
                .then_some(Conflict::NeededByJob(restore.job, restore.mode))
        }
        _ => {
            let pin: Pin = record::decode(&bytes, at)?;
            let is_new = !known.pins.iter().any(|(_, p)| p.nonce == pin.nonce);
            // What is announced is not there yet.
            (is_new && !pin.announces && pin.is_active(access.now()))
                .then(|| Conflict::pinned(&pin.owner, &pin.name, &pin.reason))
        }
    })
}
