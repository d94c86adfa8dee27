//! The plan of a fork: every object, where it is, where it goes, how. Pure and deterministic.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::snapshot::{Scope, Snapshot};
use crate::store::{Choice, Location, Method, OWN_FOLDER, Stat};

use super::destination::Layout;

/// The newest plan document that this version writes and reads.
pub const PLAN_VERSION: u32 = 1;

/// One object to duplicate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Where it is.
    pub source: Location,
    /// Where its duplicate goes.
    pub destination: Location,
    /// Its size in bytes, as the store says.
    pub size: u64,
    /// How it will be copied.
    pub method: Method,
    /// Why so.
    pub reason: Cow<'static, str>,
    /// Who it belongs to.
    pub scope: Scope,
    /// The source's ETag when it was looked at.
    pub source_tag: Option<String>,
    /// The source's version or generation when it was looked at.
    pub source_version: Option<String>,
    /// The source's storage class, where a listing told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
}

impl Task {
    /// What was seen of the source.
    pub fn source_stat(&self) -> Stat {
        Stat {
            size: self.size,
            tag: self.source_tag.clone(),
            version: self.source_version.clone(),
            storage_class: self.storage_class.clone(),
            ..Stat::default()
        }
    }
}

/// A folder that the engine removes as a whole, and its place in the fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderMove {
    /// Where it is.
    pub source: Location,
    /// Where it will be.
    pub destination: Location,
}

/// State that the fork does not carry over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftBehind {
    /// Whose state it is.
    pub operator_id: String,
    /// Objects left.
    pub objects: u64,
    /// Bytes left.
    pub bytes: u64,
}

/// What a fork will do, as a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkPlan {
    /// Version of this document.
    pub version: u32,
    /// The fork's id, as 32 hex digits.
    pub fork_id: String,
    /// The folder of the snapshot that is forked.
    pub source: Location,
    /// The root of the fork.
    pub destination: Location,
    /// The folder of the new snapshot.
    pub snapshot: Location,
    /// SHA-256 of the source's commit object, in hex.
    pub metadata_sha256: String,
    /// The objects, sorted by source.
    pub tasks: Vec<Task>,
    /// The folders that go as a whole, sorted by source.
    pub folders: Vec<FolderMove>,
    /// Number of tasks.
    pub objects: u64,
    /// Bytes of all tasks.
    pub bytes: u64,
    /// What is not carried over. A fork carries everything.
    pub left_behind: Vec<LeftBehind>,
}

/// Where the duplicate of each object of `snapshot` goes, in their order.
///
/// # Errors
///
/// `Refused` if two objects would get one name, or one the name of the commit object, of an object
/// of the source, or of what forkpoint itself keeps there.
pub fn places_of(
    snapshot: &Snapshot,
    layout: &Layout,
    commit_object: &str,
) -> Result<Vec<Location>> {
    let mut places: Vec<Location> = Vec::with_capacity(snapshot.objects.len());
    let reserved = [
        layout.snapshot().join(commit_object)?,
        layout.root().join(OWN_FOLDER)?,
    ];
    for object in &snapshot.objects {
        let destination = layout.place(object)?;
        if reserved.iter().any(|place| place.contains(&destination)) {
            return Err(Error::refused(format!(
                "the metadata names this as a file of state, whose place in the fork would be {destination}"
            ))
            .at(&object.location));
        }
        places.push(destination);
    }
    let mut taken: HashMap<&Location, &Location> = HashMap::with_capacity(places.len());
    for (object, place) in snapshot.objects.iter().zip(&places) {
        if let Some(other) = taken.insert(place, &object.location) {
            return Err(Error::refused(format!(
                "two objects would get the name {place}: this one and {other}"
            ))
            .at(&object.location));
        }
    }
    match snapshot
        .objects
        .iter()
        .find(|o| taken.contains_key(&o.location))
    {
        None => Ok(places),
        Some(object) => {
            Err(Error::refused("an object of the source would be overwritten").at(&object.location))
        }
    }
}

/// Makes the plan: `places` says where each object of `snapshot` goes ([`places_of`]), `stats` what
/// it is in its store, `choose` how a pair of locations is copied.
///
/// # Errors
///
/// `Corrupt` if `stats` knows nothing of an object; what `choose` answers.
pub fn plan_fork(
    snapshot: &Snapshot,
    layout: &Layout,
    places: &[Location],
    metadata_sha256: &str,
    stats: &HashMap<Location, Option<Stat>>,
    mut choose: impl FnMut(&Location, &Location, u64) -> Result<Choice>,
) -> Result<ForkPlan> {
    let mut tasks = Vec::with_capacity(snapshot.objects.len());
    let mut bytes = 0u64;
    for (object, destination) in snapshot.objects.iter().zip(places) {
        let Some(Some(stat)) = stats.get(&object.location) else {
            return Err(Error::corrupt("the object is not there").at(&object.location));
        };
        let choice = choose(&object.location, destination, stat.size)?;
        bytes = bytes.saturating_add(stat.size);
        tasks.push(Task {
            source: object.location.clone(),
            destination: destination.clone(),
            size: stat.size,
            method: choice.method,
            reason: choice.reason.into(),
            scope: object.scope,
            source_tag: stat.tag.clone(),
            source_version: stat.version.clone(),
            storage_class: stat.storage_class.clone(),
        });
    }
    Ok(ForkPlan {
        version: PLAN_VERSION,
        fork_id: layout.id().to_string(),
        source: snapshot.directory.clone(),
        destination: layout.root().clone(),
        snapshot: layout.snapshot().clone(),
        metadata_sha256: metadata_sha256.to_string(),
        objects: tasks.len() as u64,
        bytes,
        tasks,
        folders: layout
            .folders()
            .iter()
            .map(|(source, destination)| FolderMove {
                source: source.clone(),
                destination: destination.clone(),
            })
            .collect(),
        left_behind: Vec::new(),
    })
}
