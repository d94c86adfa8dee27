//! What a snapshot consists of, whatever engine wrote it.

use serde::{Deserialize, Serialize};

use crate::store::Location;

use super::handle::References;

/// Who a piece of state belongs to, which decides when its file goes. Flink's terms.
///
/// The scope follows from the role of the handle, not from the folder: Flink writes the
/// private files of an incremental RocksDB checkpoint below `shared/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Belongs to this snapshot alone.
    Exclusive,
    /// Belongs to the tasks of the job: changelog files and what was materialized from them.
    TaskOwned,
    /// May belong to other snapshots of the job too.
    Shared,
}

impl Scope {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Exclusive => "exclusive",
            Scope::TaskOwned => "task-owned",
            Scope::Shared => "shared",
        }
    }
}

/// What kind of snapshot it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// Taken by the engine in its rhythm; owned by the job.
    Checkpoint,
    /// Asked for by a user, in the format that all state backends share.
    SavepointCanonical,
    /// Asked for by a user, in the state backend's own format.
    SavepointNative,
}

impl Kind {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Checkpoint => "checkpoint",
            Kind::SavepointCanonical => "savepoint-canonical",
            Kind::SavepointNative => "savepoint-native",
        }
    }
}

/// What the metadata says of an object's size, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeclaredSize {
    /// Nothing: the writer could not tell.
    Unknown,
    /// The object holds at least so much: references to parts of it end there.
    AtLeast(u64),
    /// The object is exactly so long.
    Exactly(u64),
    /// The metadata contradicts itself; the largest size that it names.
    Contradictory(u64),
}

impl DeclaredSize {
    /// Both statements together, in whichever order there are more. Two different exact sizes of one object contradict
    /// each other; then the larger one holds as a lower bound, and the check against the store decides.
    #[must_use]
    pub fn and(self, other: DeclaredSize) -> DeclaredSize {
        use DeclaredSize::{AtLeast, Contradictory, Exactly, Unknown};
        match (self, other) {
            (Unknown, x) | (x, Unknown) => x,
            (AtLeast(a), AtLeast(b)) => AtLeast(a.max(b)),
            (Exactly(a), Exactly(b)) if a == b => Exactly(a),
            (Exactly(a), AtLeast(b)) | (AtLeast(b), Exactly(a)) if b <= a => Exactly(a),
            (
                Exactly(a) | AtLeast(a) | Contradictory(a),
                Exactly(b) | AtLeast(b) | Contradictory(b),
            ) => Contradictory(a.max(b)),
        }
    }

    /// False for an object of `size` bytes that cannot be the one that is meant: too short, or, where the metadata
    /// says it exactly, of any other size.
    pub fn allows(self, size: u64) -> bool {
        match self {
            DeclaredSize::Unknown => true,
            DeclaredSize::AtLeast(n) | DeclaredSize::Contradictory(n) => size >= n,
            DeclaredSize::Exactly(n) => size == n,
        }
    }

    /// The number, if there is one.
    pub fn bytes(self) -> Option<u64> {
        match self {
            DeclaredSize::Unknown => None,
            DeclaredSize::AtLeast(n)
            | DeclaredSize::Exactly(n)
            | DeclaredSize::Contradictory(n) => Some(n),
        }
    }
}

/// Which part of the job holds a reference: the first one is kept for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// Index into [`Snapshot::operators`].
    pub operator: usize,
    /// 0-based; `None` for the operator's coordinator.
    pub subtask: Option<i32>,
}

/// One physical object, however many handles refer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Where it lies.
    pub location: Location,
    /// The widest scope of all its references.
    pub scope: Scope,
    /// What the metadata says of its size.
    pub size: DeclaredSize,
    /// How many handles refer to it.
    pub references: u64,
    /// The path by which relative handles refer to it, below the snapshot's own folder.
    pub relative: Option<String>,
    /// The first holder in the order of the metadata.
    pub holder: Holder,
}

/// A folder that the engine removes as a whole, with everything in it, when its last reference
/// goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    /// Where it lies.
    pub location: Location,
    /// What is kept in it.
    pub scope: Scope,
}

/// One operator of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Operator {
    /// The id by which the engine finds its state again, in hex.
    pub operator_id: String,
    /// Its name, if the metadata has one (Flink 2.0+).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its uid, if the metadata has one (Flink 2.0+).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Number of key groups.
    pub max_parallelism: u32,
    /// Subtasks that the metadata has an entry for.
    pub subtasks: u32,
    /// All subtasks had finished before the snapshot.
    pub finished: bool,
    /// Handles that refer to objects.
    pub references: u64,
    /// Bytes behind these handles, as the metadata declares them; an object that two operators
    /// use counts for both.
    pub referenced_bytes: u64,
    /// State kept inside the metadata itself, in bytes.
    pub inlined_bytes: u64,
}

/// A snapshot: a set of references to objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The folder that holds the commit object.
    pub directory: Location,
    /// Name of the format.
    pub format: &'static str,
    /// Version of the format.
    pub format_version: i32,
    /// Number of the snapshot in its job. Repeats across forks.
    pub checkpoint_id: i64,
    /// Checkpoint or savepoint.
    pub kind: Kind,
    /// The operators in the order of the metadata.
    pub operators: Vec<Operator>,
    /// The physical objects, each once, sorted by location.
    pub objects: Vec<Object>,
    /// Folders that go as a whole, each once, sorted by location.
    pub folders: Vec<Folder>,
    /// Handles whose state is inside the metadata, and its bytes.
    pub inlined: (u64, u64),
    /// Who refers to which object, if that was asked for
    /// ([`SnapshotFormat::read_with_references`](super::SnapshotFormat::read_with_references)).
    pub references: Option<References>,
}

#[cfg(test)]
mod tests {
    use super::DeclaredSize::*;

    #[test]
    fn statements_about_one_size_combine() {
        assert_eq!(Unknown.and(Exactly(3)), Exactly(3));
        assert_eq!(AtLeast(5).and(AtLeast(3)), AtLeast(5));
        assert_eq!(Exactly(5).and(AtLeast(3)), Exactly(5));
        assert_eq!(Exactly(5).and(AtLeast(7)), Contradictory(7));
        assert_eq!(Exactly(5).and(Exactly(7)), Contradictory(7));
        let some = |of: fn(u64) -> super::DeclaredSize| [1, 2, 3].map(of);
        let mut all = vec![Unknown];
        all.extend([some(AtLeast), some(Exactly), some(Contradictory)].concat());
        for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (*a, *b))) {
            assert_eq!(a.and(b), b.and(a), "{a:?} {b:?}");
            assert_eq!(a.and(a), a);
            for c in &all {
                assert_eq!(a.and(b).and(*c), a.and(b.and(*c)), "{a:?} {b:?} {c:?}");
            }
        }
    }

    #[test]
    fn a_size_is_held_against_what_was_said_of_it() {
        assert!(Unknown.allows(0) && Exactly(5).allows(5) && AtLeast(5).allows(6));
        assert!(!Exactly(5).allows(4) && !Exactly(5).allows(6) && !AtLeast(5).allows(4));
    }
}
