//! The headline verb: an independent snapshot from an old one. Plan, duplicate, rewrite, commit,
//! prove.
//!
//! Guarantees, each with the test that holds it to them (in `tests/`):
//!
//! 0. The source is pinned before the first copy, so that no clean deletes it meanwhile; the pin goes after the
//!    proof (`ownership_cli::a_fork_pins_its_source_while_it_runs`). Where the source cannot be written to, the
//!    fork goes on without and says so: nothing depends on the source once the fork is proved, and a source that
//!    goes before makes the fork fail, not lie.
//! 1. A fork never writes or deletes a source object (`fork_local::the_original_is_never_touched`).
//! 2. The commit object is written last and create-if-absent; a fork that did not commit does not
//!    exist (`fork_kill::a_killed_fork_on_local_disk_resumes` and its like).
//! 3. After the commit no reference leaves the fork's root: proved from what was written
//!    (`fork_local::every_fixture_forks_and_survives_its_original`).
//! 4. An object at a destination that is not ours is an error, never overwritten
//!    (`fork_refusals::a_stranger_at_a_destination_is_refused`).

mod pinning;
mod source;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};
use crate::ownership::refuse_destination;
use crate::progress::{Cancel, Progress};
use crate::restore::{
    Attempt, ExecuteOptions, Executed, ForkId, ForkPlan, Ground, Layout, execute, find_violations,
    plan_fork, refuse_overlap,
};
use crate::snapshot::{CommitObject, Lookup, Snapshot};
use crate::store::{Journal, Location, Method, Stat, Stores};
use crate::verify;

use source::refuse_other_services;
pub use source::{MovedFrom, understand};

/// What to fork, and where to.
#[derive(Debug, Clone)]
pub struct ForkRequest {
    /// The snapshot: its folder, or its commit object.
    pub snapshot: Location,
    /// The root of the fork.
    pub destination: Location,
    /// Where snapshots were before another tool copied them here.
    pub moved_from: Vec<MovedFrom>,
    /// Folders in which relative references are looked up that lead nowhere.
    pub look_in: Vec<Location>,
    /// Files on another service than the snapshot's own may be read, such as files of this machine
    /// for a snapshot in a bucket.
    pub other_services: bool,
    /// How the plan is run.
    pub execute: ExecuteOptions,
}

impl ForkRequest {
    /// A plain fork of `snapshot` to `destination`.
    pub fn new(snapshot: Location, destination: Location) -> ForkRequest {
        ForkRequest {
            snapshot,
            destination,
            moved_from: Vec::new(),
            look_in: Vec::new(),
            other_services: false,
            execute: ExecuteOptions::default(),
        }
    }
}

/// A fork that is ready to run.
#[derive(Debug, Clone)]
pub struct PlannedFork {
    /// What will be done.
    pub plan: ForkPlan,
    /// The snapshot that is forked.
    pub source: Snapshot,
    commit: CommitObject,
    metadata: Bytes,
}

/// What a fork came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkReport {
    /// The folder of the new snapshot.
    pub snapshot: Location,
    /// The folder of the snapshot that was forked.
    pub source: Location,
    /// The fork's id.
    pub fork_id: String,
    /// Objects of the new snapshot, without its commit object.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that this run copied.
    pub copied: u64,
    /// Objects that an earlier run had copied.
    pub reused: u64,
    /// How many objects this run copied by which method.
    pub methods: BTreeMap<Method, u64>,
    /// True: proved from what was written.
    pub independent: bool,
    /// Why the source could not be pinned while the fork ran, if it could not.
    pub unpinned: Option<String>,
}

/// Makes the plan of a fork: reads the metadata, looks at every object, chooses names and methods.
/// Writes nothing.
///
/// Costs one read, and one listing request per 1,000 objects or one look per object.
///
/// # Errors
///
/// `NotFound`: no snapshot. `Corrupt`: damaged metadata, or objects missing or too short.
/// `Refused`: the destination overlaps the source.
pub async fn plan(
    stores: &Stores,
    request: &ForkRequest,
    progress: &dyn Progress,
) -> Result<PlannedFork> {
    let mut commit = CommitObject::read(stores, &request.snapshot).await?;
    let (source, lookup, stats) = understand(stores, &commit, request, progress).await?;
    refuse_other_services(stores, &commit, &source, request)?;
    stores.check_bucket(&request.destination).await?;
    let problems = verify::find_problems(&source, &stats);
    if !problems.is_empty() {
        return Err(verify::damage_error(&source, &problems).during("fork"));
    }
    let digest = Sha256::digest(&commit.bytes);
    let id = ForkId::new(
        &stores.canonical(&commit.location),
        &digest,
        &stores.canonical(&request.destination),
    );
    let layout = Layout::new(
        id,
        &source.directory,
        source.checkpoint_id,
        &request.destination,
        &source.folders,
    )?;
    refuse_overlap(
        &Ground::of_source(&source).real(stores).await?,
        &Ground::of_fork(&layout)?.real(stores).await?,
    )
    .map_err(|e| e.during("fork to").at(&request.destination))?;
    let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    let plan = plan_fork(
        &source,
        &layout,
        commit.format.commit_object(),
        &hex,
        &stats,
        |from, to, size| stores.method(from, to, size),
    )?;
    let metadata = rewrite(&commit, &lookup, &plan)?;
    // What the plan needs of it is in `source` and `metadata` now.
    commit.bytes = Bytes::new();
    Ok(PlannedFork {
        plan,
        source,
        commit,
        metadata,
    })
}

/// The new commit object.
fn rewrite(commit: &CommitObject, lookup: &Lookup, plan: &ForkPlan) -> Result<Bytes> {
    let places: HashMap<&Location, &Location> = plan
        .tasks
        .iter()
        .map(|t| (&t.source, &t.destination))
        .chain(plan.folders.iter().map(|f| (&f.source, &f.destination)))
        .collect();
    commit
        .format
        .rewrite(
            &commit.bytes,
            lookup,
            &plan.snapshot,
            &|old| match places.get(old) {
                Some(new) => Ok((*new).clone()),
                None => {
                    Err(Error::new(ErrorKind::Internal, "a reference is not in the plan").at(old))
                }
            },
        )
        .map(Bytes::from)
        .map_err(|e| e.during("rewrite").at(&commit.location))
}

/// Runs a fork from the plan to the proof.
///
/// A fork that was stopped, by [`Cancel`] or by a crash, goes on where it was when it is run again
/// with the same source and destination.
///
/// Costs, besides those of [`plan`], one listing per 1,000 objects of the destination, one copy
/// request per object, one write per 500 receipts or second, one write for the commit object, and
/// for the proof one read and the looks of the plan once more.
///
/// # Errors
///
/// As [`plan`]; `Refused` if something that is not ours lies at a destination.
pub async fn fork(
    stores: &Stores,
    request: &ForkRequest,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<ForkReport> {
    let planned = plan(stores, request, progress).await?;
    run(stores, &planned, &request.execute, progress, cancel).await
}

/// Runs a planned fork.
///
/// # Errors
///
/// As [`fork`].
pub async fn run(
    stores: &Stores,
    planned: &PlannedFork,
    options: &ExecuteOptions,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<ForkReport> {
    let plan = &planned.plan;
    let commit_at = plan.snapshot.join(planned.commit.format.commit_object())?;
    let note_at = Attempt::location(&plan.destination, &plan.snapshot)?;
    let attempt = Attempt::new(&plan.fork_id, &plan.source);
    let under_way = attempt.is_under_way(stores, &note_at).await?;
    let committed = is_committed(stores, &commit_at, &planned.metadata).await?;
    let mut unpinned = None;
    let executed = match committed {
        true => Executed {
            reused: plan.objects,
            ..Executed::default()
        },
        false => {
            unpinned = pinning::pin_source(stores, plan).await?;
            if !under_way {
                let begun = begin(stores, planned, &attempt, &note_at, &commit_at).await;
                if begun.is_err() {
                    pinning::unpin_source(stores, plan).await?;
                }
                begun?;
            }
            let journal = match Journal::open(stores, &plan.destination, &plan.fork_id).await {
                Ok(journal) => Arc::new(journal),
                Err(e) => {
                    // Nothing was copied yet, so that nothing needs to be kept.
                    if !under_way {
                        pinning::unpin_source(stores, plan).await?;
                    }
                    return Err(e);
                }
            };
            let executed =
                execute(stores, &plan.tasks, &journal, options, progress, cancel).await?;
            cancel.check()?;
            commit(stores, &commit_at, &planned.metadata).await?;
            executed
        }
    };
    prove(stores, planned, progress).await?;
    if under_way || !committed {
        let journal = Journal::open(stores, &plan.destination, &plan.fork_id).await?;
        stores.undo_unfinished(&journal).await?;
        // The note last: while it is there, a rerun takes up where this one stopped.
        journal.remove().await?;
        if unpinned.is_none() {
            pinning::unpin_source(stores, plan).await?;
        }
        stores.delete(&note_at).await?;
    }
    stores
        .remove_empty_folders(&note_at, &plan.destination)
        .await;
    let Executed {
        copied,
        reused,
        methods,
    } = executed;
    Ok(ForkReport {
        snapshot: plan.snapshot.clone(),
        source: plan.source.clone(),
        fork_id: plan.fork_id.clone(),
        objects: plan.objects,
        bytes: plan.bytes,
        copied,
        reused,
        methods,
        independent: true,
        unpinned,
    })
}

/// Writes the note of a fork that is not under way yet, unless something is in the way.
async fn begin(
    stores: &Stores,
    planned: &PlannedFork,
    attempt: &Attempt,
    note_at: &Location,
    commit_at: &Location,
) -> Result<()> {
    refuse_taken(stores, &planned.plan).await?;
    attempt.begin(stores, note_at).await?;
    // A cleaner that has not seen the note has left a mark.
    if let Err(e) = refuse_destination(stores, &planned.plan.snapshot).await {
        stores.delete(note_at).await?;
        return Err(e);
    }
    // Another fork may have ended between the look and the note.
    is_committed(stores, commit_at, &planned.metadata)
        .await
        .map(|_| ())
}

/// Where no fork is under way, nothing may be at the destinations: an equal object there may be a
/// finished fork's, and belong to a running job by now.
async fn refuse_taken(stores: &Stores, plan: &ForkPlan) -> Result<()> {
    let destinations: Vec<Location> = plan.tasks.iter().map(|t| t.destination.clone()).collect();
    let there = stores.stat_all(&destinations).await?;
    match destinations
        .iter()
        .find(|at| matches!(there.get(at), Some(Some(_))))
    {
        None => Ok(()),
        Some(at) => Err(Error::refused(
            "an object is already there, and no fork to this place is under way: it may be in use",
        )
        .at(at)
        .hint("it was left as it is; choose another destination")),
    }
}

/// A commit object at the destination is either the one that we would write, or not ours.
async fn is_committed(stores: &Stores, at: &Location, ours: &Bytes) -> Result<bool> {
    let Some(stat) = stores.find(at).await? else {
        return Ok(false);
    };
    if stat.size == ours.len() as u64 && stores.read(at, stat.size).await? == *ours {
        return Ok(true);
    }
    Err(Error::refused("another snapshot is already there")
        .at(at)
        .hint("it was left as it is; choose another destination"))
}

async fn commit(stores: &Stores, at: &Location, metadata: &Bytes) -> Result<()> {
    match stores.put(at, metadata.clone(), true).await {
        Ok(_) => Ok(()),
        // Another run of the same fork was faster, or it is refused.
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            is_committed(stores, at, metadata).await.map(|_| ())
        }
        Err(e) => Err(e.during("commit")),
    }
}

/// Reads back what was written and proves from it alone that the fork stands alone.
async fn prove(stores: &Stores, planned: &PlannedFork, progress: &dyn Progress) -> Result<()> {
    let plan = &planned.plan;
    let fail = |why: String| {
        Err(
            Error::corrupt(format!("the fork was written but is not proved: {why}"))
                .during("prove")
                .at(&plan.snapshot),
        )
    };
    let written = CommitObject::read(stores, &plan.snapshot)
        .await?
        .snapshot()?;
    let places: HashSet<Location> = plan
        .tasks
        .iter()
        .map(|t| t.destination.clone())
        .chain(plan.folders.iter().map(|f| f.destination.clone()))
        .collect();
    if let Some(first) = find_violations(&written, &plan.destination, &places).first() {
        return fail(first.to_string());
    }
    if written.objects.len() as u64 != plan.objects {
        return fail(format!(
            "it refers to {} objects, not {}",
            written.objects.len(),
            plan.objects
        ));
    }
    let stats = verify::look_at_objects(stores, &written, progress).await?;
    for task in &plan.tasks {
        match stats.get(&task.destination) {
            Some(Some(Stat { size, .. })) if *size == task.size => {}
            Some(Some(Stat { size, .. })) => {
                return fail(format!(
                    "{} is {size} bytes long, not {}",
                    task.destination, task.size
                ));
            }
            _ => return fail(format!("{} is not there", task.destination)),
        }
    }
    match verify::find_problems(&written, &stats).first() {
        Some(problem) => fail(format!("{}: {}", problem.location, problem.problem)),
        None => Ok(()),
    }
}
