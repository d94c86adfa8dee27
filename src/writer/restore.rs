//! From a snapshot to a job that runs again: who gets what, who duplicates what, and fetching it.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::ownership::{ClaimRequest, claim, guess_root, release};
use crate::progress::{Cancel, Silent};
use crate::restore::{
    Assignment, CostModel, ForkId, HolderOfTask, Layout, ObjectFacts, RestorePlan, RestoreRequest,
    Task, assign_state, plan_restore,
};
use crate::snapshot::native::{Manifest, ManifestScope, ManifestState, Partition};
use crate::snapshot::{KeyGroupRange, Lookup, RestoreMode, Snapshot, SnapshotFormat};
use crate::store::{Location, Stat, Stores};
use crate::verify;

use super::assemble::{OperatorShape, SubtaskKey, add_reusable};
use super::catalog::FoundSnapshot;
use super::job::JobDescription;
use super::names;
use super::order::{FileRef, ORDER_VERSION, ReusableFile, from_json, in_common, to_json};

/// What a job was started from.
#[derive(Debug, Clone, PartialEq)]
pub struct Restored {
    /// The folder of the snapshot.
    pub snapshot: Location,
    /// What its manifest says: number, attempt, metrics and what the user had written down among it.
    pub manifest: Manifest,
    /// Who owns it now. A job that goes on from its own snapshot has it in claim mode.
    pub mode: RestoreMode,
    /// The snapshot is the job's own: no record was needed.
    pub own: bool,
    /// What is duplicated, dropped, kept, and why.
    pub plan: RestorePlan,
    /// Why it could not be written down beside the snapshot that this job needs it, if it could not: then
    /// its owner may delete it before the first checkpoint of this job is complete.
    pub unrecorded: Option<String>,
    /// What each subtask gets.
    pub subtasks: Vec<SubtaskRestore>,
}

impl Restored {
    /// What one subtask gets.
    pub fn subtask(&self, operator: &str, subtask: u32) -> Option<&SubtaskRestore> {
        self.subtasks
            .iter()
            .find(|s| s.operator == operator && s.subtask == subtask)
    }
}

/// What one subtask gets: a document that any engine can carry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubtaskRestore {
    /// [`ORDER_VERSION`].
    pub version: u32,
    /// The operator.
    pub operator: String,
    /// The subtask, 0-based.
    pub subtask: u32,
    /// Its key groups: it takes no more of a state than these.
    pub key_groups: KeyGroupRange,
    /// Its states: all that have something for it. A state of keys may hold keys of others too. What several
    /// subtasks get, such as a union state, is held once.
    #[serde(with = "in_common")]
    pub states: Vec<Arc<RestoredState>>,
}

/// A state as its subtask of old has written it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredState {
    /// Its name.
    pub name: String,
    /// How it is spread over subtasks.
    pub partition: Partition,
    /// The subtask that has written it.
    pub from_subtask: u32,
    /// Its files.
    pub files: Vec<RestoredFile>,
    /// Bytes kept in the manifest, in base64; [`RestoredState::inline`] reads them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline_base64: Option<String>,
}

/// A file to fetch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredFile {
    /// The name by which its owner knows it. Chosen by whoever wrote the snapshot: no path.
    pub name: String,
    /// The file.
    pub file: FileRef,
    /// Who it belongs to.
    pub scope: ManifestScope,
}

/// A file that was fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedFile {
    /// The place of its state in [`SubtaskRestore::states`].
    pub state: usize,
    /// The name by which its owner knows it.
    pub name: String,
    /// Where it is on this machine.
    pub path: PathBuf,
}

/// What to do about a snapshot that cannot be restored from.
pub(super) const OTHER_SNAPSHOT: &str = "start from an older one by its folder: Start::from(Source::Snapshot(...)); `forkpoint ls` lists them";

/// Files fetched at once.
const FETCHES_AT_ONCE: usize = 4;

impl SubtaskRestore {
    /// Fetches all files into `folder`, each read in parts, several at once, and compared with its digest
    /// before it gets its name: `folder/STATE/FILE`, by their numbers. A file that two states have is
    /// fetched for each.
    ///
    /// Costs one request per 8 MiB.
    ///
    /// # Errors
    ///
    /// `NotFound` or `Corrupt` for a file that is not there or not what was written.
    pub async fn fetch(
        &self,
        stores: &Stores,
        folder: &Path,
        cancel: &Cancel,
    ) -> Result<Vec<FetchedFile>> {
        let absolute = std::path::absolute(folder)
            .map_err(|e| Error::invalid(e.to_string()).at(folder.display()))?;
        let text = absolute
            .to_str()
            .ok_or_else(|| Error::invalid("a folder whose name is no text").at(folder.display()))?;
        let root = Location::parse(text)?;
        let mut wanted = Vec::new();
        for (n, state) in self.states.iter().enumerate() {
            for (m, file) in state.files.iter().enumerate() {
                wanted.push((n, file, root.join(&format!("{n}/{m}"))?));
            }
        }
        futures::stream::iter(wanted)
            .map(|(state, file, to)| async move {
                let FileRef {
                    location,
                    size,
                    sha256,
                } = &file.file;
                let fetched = stores.download(location, *size, *sha256, &to, cancel);
                fetched.await.map_err(|e| e.during("restore"))?;
                Ok(FetchedFile {
                    state,
                    name: file.name.clone(),
                    path: to.local_path().unwrap_or_default(),
                })
            })
            .buffered(FETCHES_AT_ONCE)
            .try_collect()
            .await
    }

    /// The document, as JSON.
    ///
    /// # Errors
    ///
    /// `Internal` if it cannot be written as JSON.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        to_json(self)
    }

    /// Reads a document.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a newer version, `Corrupt` for anything else that is none.
    pub fn from_json(bytes: &[u8]) -> Result<SubtaskRestore> {
        from_json(bytes, "share of a restore")
    }
}

impl RestoredState {
    /// The bytes kept in the manifest.
    ///
    /// # Errors
    ///
    /// `Corrupt` if they are no base64.
    pub fn inline(&self) -> Result<Option<Vec<u8>>> {
        let text = self.inline_base64.as_deref();
        text.map(|text| ManifestState::decode_inline(&self.name, text))
            .transpose()
    }
}

impl RestoredFile {
    /// The whole of a small file, compared with its digest. One request.
    ///
    /// # Errors
    ///
    /// `NotFound` or `Corrupt` for a file that is not there or not what was written.
    pub async fn read(&self, stores: &Stores) -> Result<Bytes> {
        let file = &self.file;
        stores
            .read_verified(&file.location, file.size, file.sha256)
            .await
    }
}

/// The snapshot that a job was started from, as its coordinator remembers it.
#[derive(Debug)]
pub(super) struct JobSource {
    pub(super) snapshot: Location,
    pub(super) mode: RestoreMode,
    /// It is the job's own.
    pub(super) own: bool,
}

/// A planned restore, as the coordinator goes on with it.
#[derive(Debug)]
pub(super) struct PlannedRestore {
    pub(super) restored: Restored,
    pub(super) operators: Vec<OperatorShape>,
    pub(super) reusable: HashMap<SubtaskKey, Vec<Arc<ReusableFile>>>,
    pub(super) duplicates: HashMap<SubtaskKey, Vec<Task>>,
}

/// Plans the restore of `job` in the folder `home` from `found`: looks at every file, and writes nothing.
pub(super) async fn plan(
    stores: &Stores,
    home: &Location,
    job: &JobDescription,
    found: FoundSnapshot,
    mode: RestoreMode,
    own: bool,
) -> Result<PlannedRestore> {
    let FoundSnapshot {
        directory,
        manifest,
        sha256,
    } = found;
    let bytes = manifest.encode()?;
    let lookup = Lookup::new(directory.clone());
    let snapshot = crate::snapshot::native::NativeFormat.read_with_references(&bytes, &lookup)?;
    let stats = verify::look_at_objects(stores, &snapshot, &Silent).await?;
    let problems = verify::find_problems(&snapshot, &stats);
    if !problems.is_empty() {
        return Err(verify::damage(&snapshot, &problems)
            .during("restore")
            .hint(OTHER_SNAPSHOT));
    }
    let target = job.target();
    let assignment = assign_state(&snapshot, &target)?;
    let layout = match mode {
        RestoreMode::NoClaim => Some(layout(stores, home, &snapshot, &sha256.to_string())?),
        _ => None,
    };
    let cost = CostModel::default();
    let request = RestoreRequest {
        snapshot: &snapshot,
        metadata_sha256: &sha256.to_string(),
        job: &target,
        mode,
        layout: layout.as_ref(),
        cost: &cost,
    };
    let plan = plan_restore(&request, &mut |object, to| {
        let stat: Option<&Stat> = stats.get(&object.location).and_then(Option::as_ref);
        let Some(stat) = stat else {
            return Err(Error::corrupt("it is not there").at(&object.location));
        };
        let choice = stores.method(&object.location, to, stat.size)?;
        Ok(ObjectFacts {
            stat: stat.clone(),
            method: choice.method,
            reason: choice.reason.into(),
        })
    })?;
    let operators = shapes(job, &manifest, &assignment);
    let new_places: HashMap<Location, Location> = plan
        .tasks
        .iter()
        .map(|t| (t.duplicate.source.clone(), t.duplicate.destination.clone()))
        .collect();
    let (subtasks, reusable) = shares(
        &manifest,
        &directory,
        &assignment,
        &operators,
        mode,
        &new_places,
    )?;
    let mut duplicates: HashMap<SubtaskKey, Vec<Task>> = HashMap::new();
    for task in &plan.tasks {
        let HolderOfTask { operator, subtask } = task.holder.ok_or_else(|| {
            Error::new(ErrorKind::Internal, "nobody duplicates it").at(&task.duplicate.source)
        })?;
        let own = duplicates.entry((operator as usize, subtask)).or_default();
        own.push(task.duplicate.clone());
    }
    Ok(PlannedRestore {
        restored: Restored {
            snapshot: directory,
            manifest,
            mode,
            own,
            plan,
            unrecorded: None,
            subtasks,
        },
        operators,
        reusable,
        duplicates,
    })
}

/// Where duplicates go: as a fork of this snapshot to the job's folder would lay them, so that another try
/// at the same restore finds them.
fn layout(stores: &Stores, home: &Location, snapshot: &Snapshot, sha256: &str) -> Result<Layout> {
    let commit = stores.canonical(&names::commit_object(&snapshot.directory)?);
    let id = ForkId::new(&commit, sha256.as_bytes(), &stores.canonical(home));
    Layout::new(
        id,
        &snapshot.directory,
        snapshot.checkpoint_id,
        home,
        &snapshot.folders,
    )
}

/// The operators of the job: the number of key groups is that of the state.
fn shapes(
    job: &JobDescription,
    manifest: &Manifest,
    assignment: &Assignment,
) -> Vec<OperatorShape> {
    let mut shapes: Vec<OperatorShape> = fresh_shapes(job);
    for (old, operator) in (0u32..).zip(&manifest.operators) {
        let target = assignment.target(old).map(|target| target as usize);
        if let Some(shape) = target.and_then(|target| shapes.get_mut(target)) {
            // Without state the number may be chosen anew.
            let has_state = operator.subtasks.iter().any(|s| !s.states.is_empty());
            if has_state {
                shape.max_parallelism = operator.max_parallelism;
            }
        }
    }
    shapes
}

/// The operators of a job that starts empty.
pub(super) fn fresh_shapes(job: &JobDescription) -> Vec<OperatorShape> {
    let shape = |o: &super::job::OperatorDescription| OperatorShape {
        id: o.id.clone(),
        parallelism: o.parallelism,
        max_parallelism: o.key_groups(),
    };
    job.operators.iter().map(shape).collect()
}

type Shares = (
    Vec<SubtaskRestore>,
    HashMap<SubtaskKey, Vec<Arc<ReusableFile>>>,
);

/// What each subtask gets, and what its first snapshot may refer to. What goes to many is held once: a union
/// state of each of many subtasks goes to each of them.
fn shares(
    manifest: &Manifest,
    directory: &Location,
    assignment: &Assignment,
    operators: &[OperatorShape],
    mode: RestoreMode,
    new_places: &HashMap<Location, Location>,
) -> Result<Shares> {
    let mut states: HashMap<SubtaskKey, Vec<Arc<RestoredState>>> = HashMap::new();
    let mut reusable: HashMap<SubtaskKey, Vec<Arc<ReusableFile>>> = HashMap::new();
    let mut numbers: HashMap<FileRef, usize> = HashMap::new();
    let mut known: HashSet<(SubtaskKey, usize)> = HashSet::new();
    let moved = |file: Arc<ReusableFile>| {
        let mut file = Arc::unwrap_or_clone(file);
        file.file.location = new_places.get(&file.file.location)?.clone();
        Some(Arc::new(file))
    };
    // Handles are numbered as the states come in the manifest.
    let mut handle = 0u32;
    for (old, operator) in (0u32..).zip(&manifest.operators) {
        for subtask in &operator.subtasks {
            for state in &subtask.states {
                let own = handle;
                handle += 1;
                let Some(target) = assignment.target(old) else {
                    continue;
                };
                let written = restored_state(manifest, directory, state, subtask.subtask)?;
                let written = Arc::new(written);
                let mut shared = Vec::new();
                add_reusable(manifest, directory, state, &mut shared)?;
                if mode == RestoreMode::NoClaim {
                    shared = shared.into_iter().filter_map(moved).collect();
                }
                let shared: Vec<(usize, Arc<ReusableFile>)> = shared
                    .into_iter()
                    .map(|r| {
                        let next = numbers.len();
                        (*numbers.entry(r.file.clone()).or_insert(next), r)
                    })
                    .collect();
                let holders = assignment.holders(own).flatten();
                if let Partition::Split { elements: 2.. } = state.partition
                    && holders.count() > 1
                {
                    return Err(Error::refused(format!(
                        "the elements of state `{}` of subtask {} of {} would go to several subtasks, which \
                         could not tell whose they are",
                        state.name, subtask.subtask, operator.id
                    ))
                    .at(directory)
                    .hint("start the job with as many subtasks as have written it"));
                }
                for holder in assignment.holders(own).flatten() {
                    let key = (target as usize, holder);
                    states.entry(key).or_default().push(Arc::clone(&written));
                    let new = shared
                        .iter()
                        .filter(|(number, _)| known.insert((key, *number)))
                        .map(|(_, file)| Arc::clone(file));
                    reusable.entry(key).or_default().extend(new);
                }
            }
        }
    }
    let mut subtasks = Vec::new();
    for (n, operator) in operators.iter().enumerate() {
        for subtask in 0..operator.parallelism {
            subtasks.push(SubtaskRestore {
                version: ORDER_VERSION,
                operator: operator.id.clone(),
                subtask,
                key_groups: operator.key_groups(subtask),
                states: states.remove(&(n, subtask)).unwrap_or_default(),
            });
        }
    }
    Ok((subtasks, reusable))
}

fn restored_state(
    manifest: &Manifest,
    directory: &Location,
    state: &ManifestState,
    from_subtask: u32,
) -> Result<RestoredState> {
    let mut files = Vec::with_capacity(state.files.len());
    for used in &state.files {
        let Some(file) = manifest.files.get(used.file as usize) else {
            continue;
        };
        files.push(RestoredFile {
            name: used.name.clone(),
            file: FileRef {
                location: manifest.locate(file, directory)?,
                size: file.size,
                sha256: file.sha256,
            },
            scope: file.scope,
        });
    }
    Ok(RestoredState {
        name: state.name.clone(),
        partition: state.partition,
        from_subtask,
        files,
        inline_base64: state.inline.clone(),
    })
}

/// Writes down beside a snapshot that this job has taken it over or needs it. Says why it could not be, if
/// so: a claim must be.
pub(super) async fn record(
    stores: &Stores,
    home: &Location,
    snapshot: &Location,
    mode: RestoreMode,
    also: &[Location],
) -> Result<Option<String>> {
    let snapshot = stores.real(snapshot).await?;
    let mut roots = vec![guess_root(stores, &snapshot).await];
    roots.extend(also.iter().cloned());
    let request = ClaimRequest {
        snapshot,
        job: recorded_as(stores, home).await?,
        mode,
        chain: false,
        // Each job of the writer leaves a record beside what it was started from; `also` names others.
        guessed_roots: false,
    };
    match claim(stores, &roots, &request, &Silent).await {
        Ok(_) => Ok(None),
        Err(e) if mode != RestoreMode::Claim && e.kind() == ErrorKind::Denied => {
            tracing::warn!(snapshot = %request.snapshot, error = %e, "its owner is not told that this job needs it");
            Ok(Some(e.to_string()))
        }
        Err(e) => Err(e),
    }
}

/// The name of a job in records beside others' snapshots: the location of its folder, so that of two jobs
/// whose folders end alike each has a record of its own, and at most one takes a snapshot over.
async fn recorded_as(stores: &Stores, home: &Location) -> Result<String> {
    Ok(stores.real(home).await?.to_string())
}

/// Takes back that a job started without claim needs the snapshot.
pub(super) async fn release_source(stores: &Stores, home: &Location, of: &JobSource) {
    let result = match stores.real(&of.snapshot).await {
        Ok(snapshot) => match recorded_as(stores, home).await {
            Ok(job) => release(stores, &snapshot, &job, RestoreMode::NoClaim).await,
            Err(e) => Err(e),
        },
        Err(e) => Err(e),
    };
    if let Err(e) = result {
        // Its owner keeps it for longer than is needed; nothing is lost.
        tracing::warn!(snapshot = %of.snapshot, error = %e, "its owner is not told that it is needed no more");
    }
}
