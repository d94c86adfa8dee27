//! Collects the evidence: lists roots, reads every commit object and every record below them. I/O.
//!
//! Objects are listed before metadata is read. A snapshot that a job completes in between is not
//! seen, but builds on the newest one that is; one that went in between makes the evidence incomplete.

mod records;

pub use records::Records;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use futures::StreamExt;
use tokio::sync::Semaphore;

use crate::error::{ErrorKind, Result};
use crate::progress::Progress;
use crate::snapshot::{
    CommitObject, DeclaredSize, Kind, METADATA_LIMIT_BYTES, Snapshot, format_of,
};
use crate::store::{Location, Sha256Sum, Stat};

use super::access::Access;
use super::evidence::{MissingEvidence, MissingReason};
use super::identity::{SnapshotId, job_of_savepoint};
use super::layout::Place;
use super::names::{Names, ObjectId, is_odd, split};

/// Commit objects read at once.
const READS_AT_ONCE: usize = 16;
/// And so many bytes of them, in units of 64 KiB; a larger one is read alone.
const READ_BUDGET_UNITS: usize = 1024;
const READ_UNIT_BYTES: u64 = 64 * 1024;
/// How many of the objects that a listing does not show, or shows with another size than the metadata says, are
/// looked at, to find out whether the listing or the snapshot is at fault.
const LOOKS_AT_MISSING: usize = 64;
/// How many objects with odd names are named.
const ODD_NAMED: usize = 16;

/// What is known of an object from its listing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fact {
    /// Size in bytes.
    pub size: u64,
    /// When it was written, in milliseconds since 1970; 0 if the store did not say.
    pub modified: u64,
    /// A digest of size, time and tag: another object under the same name has another one.
    pub fingerprint: u64,
    /// A listing showed it.
    pub listed: bool,
}

/// One snapshot and what it refers to.
#[derive(Debug, Clone)]
pub struct Node {
    /// Root, job and number.
    pub id: SnapshotId,
    /// Its folder.
    pub directory: Location,
    /// Checkpoint or savepoint.
    pub kind: Kind,
    /// When its commit object was written, in milliseconds since 1970.
    pub modified: u64,
    /// Its commit object.
    pub commit: ObjectId,
    /// The digest of its commit object.
    pub commit_sha256: Sha256Sum,
    /// All objects it needs, its commit object among them; sorted, each once.
    pub objects: Box<[ObjectId]>,
    /// Folders that the engine removes as a whole when the last snapshot that names them goes, by
    /// number.
    pub folders: Box<[u32]>,
    /// How many of its objects no listing shows, or shows with another size than its metadata says: it cannot be
    /// restored.
    pub missing: u32,
    /// How many of these are there, and are too short or too long.
    pub wrong_size: u32,
    /// Objects that it most likely means by relative references that lead nowhere.
    pub meant: Box<[ObjectId]>,
    /// Objects that lie outside of all roots that were looked at.
    pub outside: u32,
}

/// All that is known of some roots.
#[derive(Debug, Default)]
pub struct Survey {
    /// What was looked at; none lies in another.
    pub roots: Vec<Location>,
    /// When the look began, in milliseconds since 1970.
    pub taken_at: u64,
    /// Names of all objects that are listed or referred to.
    pub names: Names,
    /// What is known of each, by number.
    pub facts: Vec<Fact>,
    /// The snapshots, sorted by identity.
    pub nodes: Vec<Node>,
    /// Pins, claims and the like.
    pub records: Records,
    /// What is not known.
    pub missing: Vec<MissingEvidence>,
}

impl Survey {
    /// The snapshot in this folder.
    pub fn find(&self, directory: &Location) -> Option<usize> {
        self.nodes.iter().position(|n| n.directory == *directory)
    }

    /// What is known of an object.
    pub fn fact(&self, id: ObjectId) -> Fact {
        self.facts.get(id as usize).copied().unwrap_or_default()
    }
}

/// Looks at everything below `roots`.
///
/// # Cost
///
/// One request per 1,000 objects, one read per commit object and record, and up to 64 looks at
/// objects that snapshots refer to and no listing shows. About 120 bytes of memory an object, four a
/// reference, and the largest commit object decoded.
///
/// # Errors
///
/// Only for more objects than can be counted; what could not be looked at is in [`Survey::missing`].
pub async fn survey(
    access: &dyn Access,
    roots: &[Location],
    progress: &dyn Progress,
) -> Result<Survey> {
    let mut surveyor = Surveyor {
        access,
        aliases: HashMap::new(),
        last: None,
        wrong: Vec::new(),
        commits: Vec::new(),
        records: Vec::new(),
        s: Survey {
            taken_at: access.now(),
            ..Survey::default()
        },
    };
    surveyor.set_roots(roots).await?;
    progress.begin("listing", 0, 0);
    for number in 0..surveyor.s.roots.len() {
        surveyor.list(number, progress).await?;
    }
    progress.end();
    surveyor.read_records().await?;
    progress.begin("reading metadata", surveyor.commits.len() as u64, 0);
    let relative = surveyor.read_commits(progress).await?;
    progress.end();
    surveyor.look_at_missing().await;
    surveyor.resolve_meant(&relative);
    surveyor.name_jobs();
    let mut survey = surveyor.s;
    survey.nodes.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(survey)
}

struct Surveyor<'a> {
    access: &'a dyn Access,
    /// Folders as they are spelled, and their numbers as they really are.
    aliases: HashMap<Location, u32>,
    last: Option<(Location, u32)>,
    /// The first objects that are there with a size that the metadata does not allow.
    wrong: Vec<(ObjectId, DeclaredSize)>,
    commits: Vec<(usize, Location, Stat)>,
    records: Vec<Location>,
    s: Survey,
}

impl Surveyor<'_> {
    async fn set_roots(&mut self, roots: &[Location]) -> Result<()> {
        let mut real = Vec::with_capacity(roots.len());
        for root in roots {
            real.push(self.access.real(root).await?);
        }
        real.sort();
        for root in real {
            if !self.s.roots.iter().any(|r| r.contains(&root)) {
                self.s.roots.retain(|r| !root.contains(r));
                self.s.roots.push(root);
            }
        }
        Ok(())
    }

    async fn intern(&mut self, at: &Location) -> Result<ObjectId> {
        let known = self.last.as_ref().and_then(|(folder, id)| {
            let name = folder.strip(at)?;
            (!name.is_empty() && !name.contains('/') && !is_odd(at.key())).then_some((*id, name))
        });
        let id = match known {
            Some((folder, name)) => self.s.names.intern(folder, name)?,
            None => {
                let (folder, name) = split(at);
                let number = match self.aliases.get(&folder) {
                    Some(number) => *number,
                    None => {
                        let real = self.access.real(&folder).await?;
                        let number = self.s.names.folder(&real)?;
                        self.aliases.insert(folder.clone(), number);
                        number
                    }
                };
                let id = self.s.names.intern(number, name)?;
                self.last = (!is_odd(at.key())).then_some((folder, number));
                id
            }
        };
        if self.s.facts.len() < self.s.names.len() {
            self.s.facts.resize(self.s.names.len(), Fact::default());
        }
        Ok(id)
    }

    fn miss(&mut self, at: &Location, reason: MissingReason, e: &crate::Error) {
        self.s
            .missing
            .push(MissingEvidence::of_error(at, reason, e));
    }

    async fn list(&mut self, number: usize, progress: &dyn Progress) -> Result<()> {
        let Some(root) = self.s.roots.get(number).cloned() else {
            return Ok(());
        };
        let mut listing = match self.access.list(&root) {
            Ok(listing) => listing,
            Err(e) => {
                self.miss(&root, MissingReason::IncompleteListing, &e);
                return Ok(());
            }
        };
        let (mut objects, mut odd) = (0u64, 0);
        let mut folders_for_commits = BTreeSet::new();
        while let Some(next) = listing.next().await {
            let (at, stat) = match next {
                Ok(next) => next,
                Err(e) => {
                    self.miss(&root, MissingReason::IncompleteListing, &e);
                    return Ok(());
                }
            };
            objects += 1;
            progress.advance(1, 0);
            let id = self.intern(&at).await?;
            if let Some(fact) = self.s.facts.get_mut(id as usize) {
                *fact = Fact {
                    size: stat.size,
                    modified: stat.modified.unwrap_or(0),
                    fingerprint: fingerprint(&stat),
                    listed: true,
                };
            }
            match Place::of(&root, &at, stat.size) {
                Place::Commit(_) => self.commits.push((number, at, stat)),
                Place::Record => self.records.push(at),
                Place::BelowCommit(folder) => {
                    folders_for_commits.insert(folder);
                }
                Place::Odd if odd < ODD_NAMED => {
                    odd += 1;
                    let missing = MissingEvidence::new(at, MissingReason::OddName, "");
                    self.s.missing.push(missing);
                }
                _ => {}
            }
        }
        for location in folders_for_commits {
            self.s.missing.push(MissingEvidence::new(
                location,
                MissingReason::UnreadableMetadata,
                "it is a folder",
            ));
        }
        if objects == 0 {
            self.s
                .missing
                .push(MissingEvidence::new(root, MissingReason::NothingThere, ""));
        }
        Ok(())
    }

    /// Reads all commit objects; returns the relative references that lead nowhere, by node.
    async fn read_commits(&mut self, progress: &dyn Progress) -> Result<Vec<(usize, ObjectId)>> {
        let commits = std::mem::take(&mut self.commits);
        let budget = Arc::new(Semaphore::new(READ_BUDGET_UNITS));
        let access = self.access;
        let mut reads = futures::stream::iter(commits)
            .map(|(root, at, stat)| {
                let budget = Arc::clone(&budget);
                async move {
                    let units = (stat.size / READ_UNIT_BYTES + 1).min(READ_BUDGET_UNITS as u64);
                    let permit = budget
                        .acquire_many_owned(u32::try_from(units).unwrap_or(1))
                        .await;
                    let bytes = access.read(&at, limit_bytes(&at)).await;
                    (root, at, stat, bytes, permit)
                }
            })
            .buffer_unordered(READS_AT_ONCE);
        let mut relative = Vec::new();
        while let Some((root, at, stat, bytes, permit)) = reads.next().await {
            progress.advance(1, 0);
            let bytes = match bytes {
                Ok(bytes) => bytes,
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    self.miss(&at, MissingReason::ChangedMeanwhile, &e);
                    continue;
                }
                Err(e) => {
                    self.miss(&at, MissingReason::UnreadableMetadata, &e);
                    continue;
                }
            };
            let (sum, is_whole) = (Sha256Sum::of(&bytes), bytes.len() as u64 == stat.size);
            match decode(&at, bytes) {
                Ok(snapshot) => {
                    let found = (&stat, sum);
                    self.add(root, &at, found, &snapshot, &mut relative).await?;
                }
                // Somebody has written it anew since it was listed, or is still at it.
                Err(e) if !is_whole => self.miss(&at, MissingReason::ChangedMeanwhile, &e),
                Err(e) => self.miss(&at, MissingReason::DamagedMetadata, &e),
            }
            drop(permit);
        }
        Ok(relative)
    }

    async fn add(
        &mut self,
        root: usize,
        at: &Location,
        (stat, commit_sha256): (&Stat, Sha256Sum),
        snapshot: &Snapshot,
        relative: &mut Vec<(usize, ObjectId)>,
    ) -> Result<()> {
        let Some(root) = self.s.roots.get(root).cloned() else {
            return Ok(());
        };
        let node = self.s.nodes.len();
        let commit = self.intern(at).await?;
        let mut objects = Vec::with_capacity(snapshot.objects.len() + 1);
        objects.push(commit);
        let (mut missing, mut wrong_size) = (0, 0);
        let (mut outside, mut first_outside) = (0, None);
        for object in &snapshot.objects {
            let id = self.intern(&object.location).await?;
            objects.push(id);
            let fact = self.s.fact(id);
            if fact.listed {
                if !object.size.allows(fact.size) {
                    (missing, wrong_size) = (missing + 1, wrong_size + 1);
                    if self.wrong.len() < LOOKS_AT_MISSING {
                        self.wrong.push((id, object.size));
                    }
                }
                continue;
            }
            if object.relative.is_some() {
                relative.push((node, id));
            }
            match self.is_inside(id) {
                true => missing += 1,
                false => {
                    outside += 1;
                    first_outside.get_or_insert_with(|| object.location.clone());
                }
            }
        }
        objects.sort_unstable();
        objects.dedup();
        let mut folders = Vec::with_capacity(snapshot.folders.len());
        for folder in &snapshot.folders {
            let real = self.access.real(&folder.location).await?;
            folders.push(self.s.names.folder(&real)?);
        }
        folders.sort_unstable();
        folders.dedup();
        let directory = self
            .s
            .names
            .location(commit)
            .and_then(|at| at.parent())
            .unwrap_or_else(|| snapshot.directory.clone());
        if let Some(first) = first_outside {
            self.s.missing.push(MissingEvidence::new(
                directory.clone(),
                MissingReason::ReferenceLeavesRoots,
                format!("{outside} of its objects, such as {first}"),
            ));
        }
        self.s.nodes.push(Node {
            id: SnapshotId::new(&root, &directory, snapshot.checkpoint_id),
            directory,
            kind: snapshot.kind,
            modified: stat.modified.unwrap_or(0),
            commit,
            commit_sha256,
            objects: objects.into_boxed_slice(),
            folders: folders.into_boxed_slice(),
            missing,
            wrong_size,
            meant: Box::default(),
            outside,
        });
        Ok(())
    }

    fn is_inside(&self, id: ObjectId) -> bool {
        let folder = self
            .s
            .names
            .folders()
            .get(self.s.names.folder_of(id) as usize);
        folder.is_some_and(|folder| self.s.roots.iter().any(|root| root.contains(folder)))
    }

    /// An object that a snapshot needs, that is there, and that its listing did not show, proves that
    /// the listing is incomplete. One that had another size when it was listed, and has the right one now, was
    /// still being written.
    async fn look_at_missing(&mut self) {
        self.look_at_unseen().await;
        for (id, declared) in std::mem::take(&mut self.wrong) {
            let Some(at) = self.s.names.location(id) else {
                continue;
            };
            match self.access.find(&at).await {
                Ok(Some(stat)) if declared.allows(stat.size) => {
                    self.s.missing.push(MissingEvidence::new(
                        at,
                        MissingReason::ChangedMeanwhile,
                        "it had another size when it was listed",
                    ));
                    return;
                }
                Ok(_) => {}
                Err(e) => return self.miss(&at, MissingReason::IncompleteListing, &e),
            }
        }
    }

    async fn look_at_unseen(&mut self) {
        let unseen: Vec<Location> = self
            .s
            .nodes
            .iter()
            .filter(|node| node.missing > 0)
            .flat_map(|node| node.objects.iter())
            .filter(|id| !self.s.fact(**id).listed && self.is_inside(**id))
            .take(LOOKS_AT_MISSING)
            .filter_map(|id| self.s.names.location(*id))
            .collect();
        for at in unseen {
            match self.access.find(&at).await {
                Ok(None) => {}
                Ok(Some(_)) => {
                    self.s.missing.push(MissingEvidence::new(
                        at,
                        MissingReason::IncompleteListing,
                        "it is there, and the listing did not show it",
                    ));
                    return;
                }
                Err(e) => {
                    self.miss(&at, MissingReason::IncompleteListing, &e);
                    return;
                }
            }
        }
    }

    /// A relative reference that leads nowhere most likely means the object of that name in the
    /// snapshot that its job had claimed (FLINK-39964).
    fn resolve_meant(&mut self, relative: &[(usize, ObjectId)]) {
        if relative.is_empty() {
            return;
        }
        let wanted: HashMap<&str, Vec<usize>> =
            relative
                .iter()
                .fold(HashMap::new(), |mut wanted, (node, id)| {
                    wanted
                        .entry(self.s.names.name(*id))
                        .or_default()
                        .push(*node);
                    wanted
                });
        let mut found: HashMap<usize, Vec<ObjectId>> = HashMap::new();
        for (id, fact) in (0u32..).zip(&self.s.facts) {
            if let (true, Some(nodes)) = (fact.listed, wanted.get(self.s.names.name(id))) {
                for node in nodes {
                    found.entry(*node).or_default().push(id);
                }
            }
        }
        for (number, mut ids) in found {
            ids.dedup();
            if let Some(node) = self.s.nodes.get_mut(number) {
                node.meant = ids.into_boxed_slice();
            }
        }
    }

    /// Savepoints lie in folders of their own; their names tell their jobs.
    fn name_jobs(&mut self) {
        let mut jobs: Vec<String> = self.s.nodes.iter().map(|n| n.id.job.clone()).collect();
        jobs.sort();
        jobs.dedup();
        for node in &mut self.s.nodes {
            if let Some(job) = job_of_savepoint(&node.id.name, jobs.iter().map(String::as_str)) {
                node.id.job = job.to_string();
            }
        }
    }
}

/// Largest commit object of this name that is read.
fn limit_bytes(at: &Location) -> u64 {
    format_of(at.name()).map_or(METADATA_LIMIT_BYTES, |f| f.limit_bytes())
}

fn decode(at: &Location, bytes: bytes::Bytes) -> Result<Snapshot> {
    let directory = at.parent().unwrap_or_else(|| at.clone());
    let format = format_of(at.name())
        .ok_or_else(|| crate::Error::new(ErrorKind::Unsupported, "no known format").at(at))?;
    let commit = CommitObject {
        directory,
        location: at.clone(),
        bytes,
        format,
    };
    commit.snapshot()
}

/// FNV-1a of what tells one object from another under the same name.
fn fingerprint(stat: &Stat) -> u64 {
    let tag = stat.tag.as_deref().unwrap_or_default().bytes();
    let size = stat.size.to_le_bytes();
    let time = stat.modified.unwrap_or(0).to_le_bytes();
    let all = tag.chain(size).chain(time);
    all.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
