//! The tree of a whole `_metadata` file.

use std::fmt;

use super::handles::{ChannelHandle, InlineState, KeyedHandle, OperatorHandle};
use super::properties::Properties;
use super::utf::Utf;

/// The oldest version of the format that can be read: Flink 1.2.
pub const OLDEST_VERSION: i32 = 1;

/// The newest version of the format that can be read: Flink 2.1 to 2.3.
///
/// Version 7 exists in Flink's development branch only. It lets a subtask refer to the state of
/// another checkpoint, so a reader that does not know the final meaning must not guess.
pub const NEWEST_VERSION: i32 = 6;

/// Which of its layouts a version 3 file has. The header does not tell; other versions have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// What every release writes, but for the two below.
    Modern,
    /// Flink 1.14 with a changelog: its handles lack some sizes and ids.
    OldChangelog,
    /// Flink 1.11: channel handles don't name their subtask.
    OldChannels,
}

/// A decoded `_metadata` file, borrowing from its bytes.
///
/// [`decode`](super::decode) makes it, [`Metadata::encode`] writes the same bytes again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata<'a> {
    /// The version of the format.
    pub version: i32,
    /// The layout within version 3.
    pub dialect: Dialect,
    /// The number of the checkpoint, as in `chk-N`.
    pub checkpoint_id: i64,
    /// State of job-wide hooks; none in version 1.
    pub master_states: Vec<MasterState<'a>>,
    /// The operators, in the order of the file. Version 1: the tasks.
    pub operators: Vec<Operator<'a>>,
    /// How the snapshot was made; none before version 4, and in savepoints of the State Processor
    /// API.
    pub properties: Option<Properties<'a>>,
    /// The Java serialization stream at the end, as it is; empty before version 4.
    pub(super) properties_stream: &'a [u8],
    /// The length of the file in bytes.
    pub(super) file_len: usize,
}

/// State of a hook of the checkpoint coordinator. Opaque.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MasterState<'a> {
    /// The version of the hook's own serializer.
    pub version: i32,
    /// The hook's name.
    pub name: Utf<'a>,
    /// The hook's state.
    pub data: &'a [u8],
}

/// The id of an operator; prints as the 32 hex digits that Flink shows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperatorId(pub [u8; 16]);

impl fmt::Display for OperatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for OperatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The state of one operator of the job (version 1: of one task with its chain of operators).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator<'a> {
    /// The name that people see; empty for none, and before version 5.
    pub name: Utf<'a>,
    /// The uid that the job gave it; empty for none, and before version 5.
    pub uid: Utf<'a>,
    /// The id. Damaged or tool-made files may hold one twice; Flink then takes the last.
    pub id: OperatorId,
    /// How many subtasks it had.
    pub parallelism: i32,
    /// How many it can have at most: its number of key groups.
    pub max_parallelism: i32,
    /// How many operators the task's chain has; means something in version 1 only, 1 elsewhere.
    pub chain_length: i32,
    /// State of the operator's coordinator, such as a source's list of splits.
    pub coordinator: Option<InlineState<'a>>,
    /// The subtasks that the file has; some may be missing, and one may occur twice.
    pub subtasks: Vec<Subtask<'a>>,
    /// The negative number in place of the count of subtasks, where all of them had finished.
    pub fully_finished: Option<i32>,
}

/// The state of one subtask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subtask<'a> {
    /// The number of the subtask, below the operator's parallelism.
    pub index: i32,
    /// Its state; none where it had finished.
    pub state: Option<Box<SubtaskState<'a>>>,
}

/// What a running subtask had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubtaskState<'a> {
    /// An unused field of versions 1 and 2, always written as -1; -1 for the others.
    pub duration: i64,
    /// State the backend manages, without keys.
    pub managed_operator: OperatorStates<'a>,
    /// State that operators wrote as a stream, without keys.
    pub raw_operator: OperatorStates<'a>,
    /// State the backend manages, by key.
    pub managed_keyed: Option<KeyedHandle<'a>>,
    /// State that operators wrote as a stream, by key.
    pub raw_keyed: Option<KeyedHandle<'a>>,
    /// Records in flight towards the subtask.
    pub input_channels: Vec<ChannelHandle<'a>>,
    /// Records in flight from the subtask.
    pub output_channels: Vec<ChannelHandle<'a>>,
}

/// The operator state handles of a subtask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperatorStates<'a> {
    /// Version 1: one entry for each operator of the chain.
    Chain(Vec<Option<Box<OperatorHandle<'a>>>>),
    /// Since version 2: one handle or none.
    One {
        /// The flag in front of it, not 0 where there is a handle. Flink writes 1.
        flag: i32,
        /// The handle.
        handle: Option<Box<OperatorHandle<'a>>>,
    },
}

impl<'a> OperatorStates<'a> {
    /// The handles that are there.
    pub fn handles(&self) -> impl Iterator<Item = &OperatorHandle<'a>> {
        let (chain, one) = match self {
            OperatorStates::Chain(chain) => (chain.as_slice(), None),
            OperatorStates::One { handle, .. } => (&[][..], handle.as_deref()),
        };
        chain.iter().filter_map(Option::as_deref).chain(one)
    }
}

impl<'a> Metadata<'a> {
    /// The length of the file in bytes.
    pub fn file_len(&self) -> usize {
        self.file_len
    }

    /// The Java serialization stream of the properties, opaque; empty before version 4.
    pub fn properties_stream(&self) -> &'a [u8] {
        self.properties_stream
    }
}
