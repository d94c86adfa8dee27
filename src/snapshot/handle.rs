//! Who refers to which object, and through what: the part of a snapshot that a restore needs and a
//! plain copy does not.

use serde::{Deserialize, Serialize};

use super::key_group::KeyGroupRange;

/// All handles of a snapshot's subtasks and the objects behind them.
///
/// The sizes matter, large jobs have a million references: 24 bytes a handle, 40 a reference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct References {
    /// The handles in the order of the metadata, also those whose state is inside the metadata.
    pub handles: Vec<Handle>,
    /// The objects behind the handles, in the order of the metadata.
    pub references: Vec<StateReference>,
    /// What the handles of kind [`StateKind::Operator`] hold.
    pub operator_states: Vec<OperatorStatePart>,
}

/// A piece of state that a restore hands to subtasks as a whole or by its key groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    /// Index into [`Snapshot::operators`](super::Snapshot::operators).
    pub operator: u32,
    /// The subtask that had it, 0-based.
    pub subtask: u32,
    /// What it is.
    pub kind: StateKind,
    /// An operator wrote it as a stream, past the state backend.
    pub raw: bool,
    /// It is the base of a changelog, or changes.
    pub in_changelog: bool,
    /// Its key groups, for keyed state. Wider than the subtask's own where an earlier restore at
    /// another parallelism left it so.
    pub key_groups: Option<KeyGroupRange>,
    /// The key groups of the changelog that it is a part of. Its own may reach past them.
    pub changelog_key_groups: Option<KeyGroupRange>,
}

/// What a handle is, which decides who gets it in a restore and whether the first snapshot after
/// it can refer to its objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum StateKind {
    /// State without keys: lists that are split, united or the same everywhere.
    Operator,
    /// Records in flight towards the subtask.
    InputChannel,
    /// Records in flight from the subtask.
    OutputChannel,
    /// Keyed state as the files of a database.
    KeyedIncremental,
    /// Keyed state in one stream with an offset for each key group.
    KeyedFull,
    /// Changes since a base.
    Changes,
}

/// What an object is to its handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileRole {
    /// All there is, or one of equal parts.
    Content,
    /// A file of a database that later snapshots may use as well.
    DatabaseShared,
    /// A file of a database that each snapshot has its own version of.
    DatabasePrivate,
    /// The list of states of a database.
    DatabaseMeta,
}

/// Which bytes of the object are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All, or what offsets in the handle say.
    Whole,
    /// From this byte on.
    From(u64),
    /// These bytes; others of the object belong to other handles or to nobody any more.
    Segment {
        /// The first byte.
        start: u64,
        /// How many bytes.
        length: u64,
    },
}

/// One handle refers to one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateReference {
    /// Index into [`Snapshot::objects`](super::Snapshot::objects).
    pub object: u32,
    /// Index into [`References::handles`].
    pub handle: u32,
    /// What the object is to the handle.
    pub role: FileRole,
    /// Which bytes.
    pub part: Part,
}

/// How a state without keys is spread over subtasks when it is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// Each element goes to one subtask.
    Split,
    /// Each subtask gets all elements.
    Union,
    /// Each subtask had the same, and gets one of them.
    Broadcast,
}

/// A named state without keys, as far as one handle holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperatorStatePart {
    /// Index into [`References::handles`].
    pub handle: u32,
    /// Number of the name within the snapshot: equal names have equal numbers.
    pub name: u32,
    /// Where the name comes in the order in which the engine goes through names.
    pub order: u32,
    /// How it is spread.
    pub distribution: Distribution,
    /// How many elements the handle has of it.
    pub elements: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_small() {
        assert_eq!(std::mem::size_of::<Handle>(), 24);
        assert_eq!(std::mem::size_of::<StateReference>(), 40);
        assert!(std::mem::size_of::<OperatorStatePart>() <= 24);
    }
}
