//! The headline verb: an independent snapshot from an old one. Plan, duplicate, rewrite, commit,
//! prove.
//!
//! Guarantees, each with the test that holds it to them (in `tests/`):
//!
//! 1. A fork never writes or deletes a source object (`fork_local::the_original_is_never_touched`).
//! 2. The commit object is written last and create-if-absent; a fork that did not commit does not
//!    exist (`fork_kill::a_killed_fork_resumes`).
//! 3. After the commit no reference leaves the fork's root: proved from what was written
//!    (`fork_local::every_fixture_forks_and_survives_its_original`).
//! 4. An object at a destination that is not ours is an error, never overwritten
//!    (`fork_refusals::a_stranger_at_a_destination_is_refused`).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};
use crate::progress::{Cancel, Progress};
use crate::restore::{
    ExecuteOptions, Executed, ForkId, ForkPlan, Layout, execute, find_violations, plan_fork,
};
use crate::snapshot::{CommitObject, Lookup, Prefix, Snapshot};
use crate::store::{Journal, Location, Method, Stat, Stores};
use crate::verify;

/// How many references are tried when the new place of a moved prefix is looked for.
const MOVED_SAMPLE: usize = 8;

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
            execute: ExecuteOptions::default(),
        }
    }
}

/// An old place of a snapshot that another tool has copied.
#[derive(Debug, Clone)]
pub struct MovedFrom {
    /// The text as the user gave it, for messages.
    text: String,
    old: Prefix,
    new: Option<Location>,
}

impl MovedFrom {
    /// Reads `OLD` or `OLD=NEW`. Without a new place it is looked for among the folders above the
    /// snapshot.
    ///
    /// # Errors
    ///
    /// `Invalid` if the text names no place.
    pub fn parse(text: &str) -> Result<MovedFrom> {
        if let Some((old, new)) = text.rsplit_once('=')
            && let Ok(new) = Location::parse(new)
        {
            return Ok(MovedFrom {
                text: text.into(),
                old: Prefix::parse(old)?,
                new: Some(new),
            });
        }
        Ok(MovedFrom {
            text: text.into(),
            old: Prefix::parse(text)?,
            new: None,
        })
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
    let mut lookup = Lookup::new(commit.directory.clone());
    for moved in &request.moved_from {
        let new = match &moved.new {
            Some(new) => new.clone(),
            None => find_moved(stores, &commit, moved).await?,
        };
        lookup.add_moved(moved.old.clone(), new);
    }
    let mut source = commit.snapshot_by(&lookup)?;
    let mut stats = verify::look_at_objects(stores, &source, progress).await?;
    if !request.look_in.is_empty()
        && look_elsewhere(stores, &source, &stats, &request.look_in, &mut lookup).await?
    {
        source = commit.snapshot_by(&lookup)?;
        stats = verify::look_at_objects(stores, &source, progress).await?;
    }
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
    let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    let plan = plan_fork(&source, &layout, &hex, &stats, |from, to, size| {
        stores.method(from, to, size)
    })?;
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
    refuse_stranger(stores, &commit_at, &planned.metadata).await?;
    let journal = Arc::new(Journal::open(stores, &plan.destination, &plan.fork_id).await?);
    let executed = execute(stores, &plan.tasks, &journal, options, progress, cancel).await?;
    cancel.check()?;
    commit(stores, &commit_at, &planned.metadata).await?;
    prove(stores, planned, progress).await?;
    journal.remove().await?;
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
    })
}

/// A commit object at the destination is either the one we are about to write, or not ours.
async fn refuse_stranger(stores: &Stores, at: &Location, ours: &Bytes) -> Result<()> {
    let Some(stat) = stores.find(at).await? else {
        return Ok(());
    };
    if stat.size == ours.len() as u64 && stores.read(at, stat.size).await? == *ours {
        return Ok(());
    }
    Err(Error::refused("another snapshot is already there")
        .at(at)
        .hint("it was left as it is; choose another destination"))
}

async fn commit(stores: &Stores, at: &Location, metadata: &Bytes) -> Result<()> {
    match stores.put(at, metadata.clone(), true).await {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            refuse_stranger(stores, at, metadata).await
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

/// Finds the folder above the snapshot below which objects of the old place are found.
async fn find_moved(stores: &Stores, commit: &CommitObject, moved: &MovedFrom) -> Result<Location> {
    let below: Vec<String> = commit
        .format
        .absolute_paths(&commit.bytes, usize::MAX)
        .map_err(|e| e.during("read").at(&commit.location))?
        .iter()
        .filter_map(|path| moved.old.strip(path))
        .filter(|rest| !rest.is_empty())
        .take(MOVED_SAMPLE)
        .collect();
    if below.is_empty() {
        return Err(Error::invalid(format!(
            "no reference of the snapshot lies below {}",
            moved.text
        ))
        .during("look for the moved files of")
        .at(&commit.directory)
        .hint("`forkpoint show` prints where the metadata places each file"));
    }
    let mut tried = Vec::new();
    let mut candidate = Some(commit.directory.clone());
    while let Some(folder) = candidate {
        let wanted: Vec<Location> = below
            .iter()
            .map(|rest| folder.join(rest))
            .collect::<Result<_>>()?;
        if stores
            .stat_all(&wanted)
            .await?
            .values()
            .all(Option::is_some)
        {
            return Ok(folder);
        }
        candidate = folder.parent();
        tried.push(folder.to_string());
    }
    Err(Error::new(
        ErrorKind::NotFound,
        format!(
            "files of {} are not below any folder above the snapshot; looked for `{}` in {}",
            moved.text,
            below.first().map(String::as_str).unwrap_or_default(),
            tried.join(", ")
        ),
    )
    .during("look for the moved files of")
    .at(&commit.directory)
    .hint("name the new place yourself: --moved-from OLD_PREFIX=NEW_PREFIX"))
}

/// Looks for relative references that lead nowhere in other folders. True if any was found.
async fn look_elsewhere(
    stores: &Stores,
    source: &Snapshot,
    stats: &HashMap<Location, Option<Stat>>,
    folders: &[Location],
    lookup: &mut Lookup,
) -> Result<bool> {
    let mut any = false;
    for folder in folders {
        let lost: Vec<(&String, Location)> = source
            .objects
            .iter()
            .filter(|o| matches!(stats.get(&o.location), Some(None)))
            .filter_map(|o| o.relative.as_ref())
            .map(|relative| Ok((relative, folder.join(relative)?)))
            .collect::<Result<_>>()?;
        let wanted: Vec<Location> = lost.iter().map(|(_, at)| at.clone()).collect();
        let there = stores.stat_all(&wanted).await?;
        for (relative, at) in lost {
            if matches!(there.get(&at), Some(Some(_))) {
                lookup.add_elsewhere(relative.clone(), at);
                any = true;
            }
        }
    }
    Ok(any)
}
