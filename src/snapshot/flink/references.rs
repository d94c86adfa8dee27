//! The references of a `_metadata` file: every place that says where state is.

use super::encode::{Discard, Encoder, Visitor};
use super::handles::{KeyGroupRange, PartitionableState, SegmentScope};
use super::metadata::Metadata;
use super::rewrite::NewPath;
use super::utf::Utf;
use crate::Result;

/// What a piece of state is to its operator.
///
/// The role does not tell the directory, nor the directory the role: private files of incremental
/// checkpoints lie in `shared/`, for instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// State of the operator's coordinator. Inline, never a file.
    Coordinator,
    /// State without keys that the backend manages, or a directory of merged files.
    ManagedOperatorState,
    /// State without keys that the operator wrote as a stream, or a directory of merged files.
    RawOperatorState,
    /// A file of an incremental checkpoint that later checkpoints may use as well.
    KeyedShared,
    /// A file of this incremental checkpoint alone.
    KeyedPrivate,
    /// The list of states of an incremental checkpoint.
    KeyedMeta,
    /// Full keyed state.
    KeyGroups,
    /// Full keyed state in the form of canonical savepoints.
    SavepointKeyGroups,
    /// A part of a changelog.
    ChangelogFile,
    /// Records in flight towards a subtask.
    InputChannel,
    /// Records in flight from a subtask.
    OutputChannel,
}

/// Where a piece of state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location<'a> {
    /// A whole file.
    Absolute {
        /// The path text as it stands in the file; see [`FlinkPath`](super::FlinkPath).
        path: Utf<'a>,
        /// The size in bytes as the writer knew it, -1 for unknown.
        size: i64,
    },
    /// A file below the directory that holds the `_metadata` file.
    Relative {
        /// The path below that directory. May try to leave it with `..`.
        path: Utf<'a>,
        /// The size in bytes as the writer knew it, -1 for unknown.
        size: i64,
    },
    /// A part of a file that holds other state, too.
    Segment {
        /// The path text of the whole file.
        path: Utf<'a>,
        /// Where the segment starts, in bytes.
        start: i64,
        /// The size of the segment in bytes.
        size: i64,
        /// Who may share the file.
        scope: SegmentScope,
        /// The identity of the segment in Flink's shared state registry.
        logical_file_id: Utf<'a>,
    },
    /// A directory that Flink deletes *recursively* when the last handle that names it is gone.
    Directory {
        /// The path text.
        path: Utf<'a>,
        /// True for the task manager's directory, false for the shared one.
        task_owned: bool,
    },
    /// No file: the state is in the metadata.
    Inline {
        /// The path the file would have had; an identity only.
        name: Utf<'a>,
        /// The size of the state in bytes.
        size: usize,
    },
    /// No file and no state.
    Empty,
}

/// One reference, and what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference<'a> {
    /// The position of the operator in [`Metadata::operators`].
    pub operator: usize,
    /// The number of the subtask; none for the coordinator.
    pub subtask: Option<i32>,
    /// What it is.
    pub role: Role,
    /// It belongs to raw keyed state, which operators write as a stream.
    pub raw_keyed: bool,
    /// It belongs to a changelog: to its base, with the base's own role, or to its changes.
    pub in_changelog: bool,
    /// The number of the handle that holds it: references with one number belong to one handle.
    /// Counted through the file, so that it also tells handles of different subtasks apart.
    pub handle: u32,
    /// The key groups of the handle that holds it, where it has any.
    pub key_groups: Option<KeyGroupRange>,
    /// The key groups of the changelog that the handle is a part of.
    pub changelog_key_groups: Option<KeyGroupRange>,
    /// Where a part of a changelog starts in its file, in bytes.
    pub offset: Option<i64>,
    /// The named states of an operator's handle; empty for other roles.
    pub states: &'a [PartitionableState<'a>],
    /// The file name in the local database such as `000012.sst`, for roles
    /// [`Role::KeyedShared`] and [`Role::KeyedPrivate`].
    pub local_name: Option<Utf<'a>>,
    /// Where the state is.
    pub location: Location<'a>,
}

impl Metadata<'_> {
    /// Calls `each` for every reference, in the order of the file.
    ///
    /// Handles that are missing (tag 0) are passed over, as are the in-memory changes of a changelog
    /// (tag 9) and master states, which name no place. One file may come many times.
    pub fn walk<'m>(&'m self, each: &mut dyn FnMut(Reference<'m>)) {
        // Only writing can fail, and nothing is written.
        let walked = self.try_walk(&mut |reference| {
            each(reference);
            Ok(())
        });
        debug_assert!(walked.is_ok(), "{walked:?}");
    }

    /// Like [`Metadata::walk`], but ends at the first error.
    ///
    /// # Errors
    /// What `each` returns.
    pub fn try_walk<'m>(&'m self, each: &mut dyn FnMut(Reference<'m>) -> Result<()>) -> Result<()> {
        Encoder::new(self, Discard, Walker(each)).run().map(drop)
    }
}

struct Walker<'f, 'm>(&'f mut dyn FnMut(Reference<'m>) -> Result<()>);

impl<'m> Visitor<'m> for Walker<'_, 'm> {
    const LISTENS: bool = true;

    fn visit(&mut self, reference: Reference<'m>) -> Result<Option<NewPath>> {
        (self.0)(reference).map(|()| None)
    }
}
