//! The state handles of a `_metadata` file: what the file says about each piece of state.
//!
//! All of them borrow from the file. They are kept small, as large jobs have a million of them:
//! texts and offsets stay in the file's bytes, and what is large or rare is boxed.

use super::utf::Utf;

/// A list of 64-bit file offsets, left in the file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offsets<'a>(pub(super) &'a [u8]);

impl<'a> Offsets<'a> {
    /// How many offsets there are.
    pub fn len(self) -> usize {
        self.0.len() / 8
    }

    /// True where there are none.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The offsets in bytes, in the order of the file.
    pub fn iter(self) -> impl Iterator<Item = i64> + 'a {
        self.0
            .chunks_exact(8)
            .filter_map(|chunk| chunk.first_chunk().copied().map(i64::from_be_bytes))
    }

    pub(super) fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

/// A range of key groups. At most 32768 key groups exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyGroupRange {
    /// The first key group; meaningless where `count` is 0.
    pub first: i32,
    /// How many key groups there are, 0 for the empty range.
    pub count: i32,
}

/// State that is in the metadata itself (tag 1, Flink's `ByteStreamStateHandle`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InlineState<'a> {
    /// The path the file would have had. No such file exists; the name is an identity only.
    pub name: Utf<'a>,
    /// The state.
    pub data: &'a [u8],
}

/// Where the bytes of a piece of state are (Flink's `StreamStateHandle`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamHandle<'a> {
    /// In the metadata (tag 1).
    Inline(InlineState<'a>),
    /// A whole file (tag 2, Flink's `FileStateHandle`).
    File {
        /// The size in bytes as the writer knew it, -1 for unknown.
        size: i64,
        /// The path text as it stands in the file; see [`FlinkPath`](super::FlinkPath).
        path: Utf<'a>,
    },
    /// A file beside the `_metadata` file (tag 6, Flink's `RelativeFileStateHandle`).
    Relative {
        /// The path below the directory that holds `_metadata`. May try to leave it with `..`.
        path: Utf<'a>,
        /// The size in bytes as the writer knew it, -1 for unknown.
        size: i64,
    },
    /// State of several key groups in any other handle (tag 3 in stream position).
    KeyGroups(Box<StreamKeyGroups<'a>>),
    /// A part of a file that holds many (tag 15, Flink's `SegmentFileStateHandle`).
    Segment(Box<Segment<'a>>),
    /// No state and no file (tag 16, Flink's `EmptySegmentFileStateHandle`).
    EmptySegment,
}

/// A handle with the offset of each key group in it (tag 3 in stream position).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamKeyGroups<'a> {
    /// The key groups.
    pub range: KeyGroupRange,
    /// One offset for each key group.
    pub offsets: Offsets<'a>,
    /// Where the bytes are.
    pub delegate: StreamHandle<'a>,
}

/// Who may share a segment's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SegmentScope {
    /// Files below `taskowned/`, for private state.
    Exclusive,
    /// Files below `shared/`, for state that several checkpoints use.
    Shared,
}

/// A part of a physical file that holds many segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment<'a> {
    /// The offset of the first byte within the physical file.
    pub start: i64,
    /// The size of this segment in bytes; the file is larger.
    pub size: i64,
    /// Who may share the file.
    pub scope: SegmentScope,
    /// The path text of the physical file.
    pub path: Utf<'a>,
    /// The identity of the segment in Flink's shared state registry.
    pub logical_file_id: Utf<'a>,
}

/// State of one operator that is partitioned by key (Flink's `KeyedStateHandle`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyedHandle<'a> {
    /// One file with all key groups (tags 3, 7 and 12).
    KeyGroups(Box<KeyGroupsHandle<'a>>),
    /// RocksDB or ForSt files (tags 5 and 11).
    Incremental(Box<IncrementalHandle<'a>>),
    /// A base and the changes since (tags 8 and 14).
    Changelog(Box<ChangelogHandle<'a>>),
    /// Changes that are in the metadata (tag 9).
    ChangelogMemory(Box<ChangelogMemory<'a>>),
    /// Changes that are in files (tags 10 and 13).
    ChangelogFiles(Box<ChangelogFiles<'a>>),
}

/// Which of the three forms a [`KeyGroupsHandle`] has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyGroupsForm<'a> {
    /// Tag 3, up to Flink 1.14.
    First,
    /// Tag 12, since Flink 1.15, with the state handle id.
    Second(Utf<'a>),
    /// Tag 7: a canonical savepoint.
    Savepoint,
}

/// Full keyed state (Flink's `KeyGroupsStateHandle`, `KeyGroupsSavepointStateHandle`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyGroupsHandle<'a> {
    /// Which tag it has, and what that tag adds.
    pub form: KeyGroupsForm<'a>,
    /// The key groups.
    pub range: KeyGroupRange,
    /// One offset for each key group.
    pub offsets: Offsets<'a>,
    /// Where the bytes are.
    pub delegate: StreamHandle<'a>,
}

/// One file of an incremental checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedHandle<'a> {
    /// The file name in the local database such as `000012.sst` (before Flink 1.16 a handle id).
    /// Not a path of the storage.
    pub name: Utf<'a>,
    /// Where the bytes are.
    pub handle: StreamHandle<'a>,
}

/// Keyed state as the files of a local database
/// (Flink's `IncrementalRemoteKeyedStateHandle`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncrementalHandle<'a> {
    /// The checkpoint that wrote it; after a claim not the one that holds it.
    pub checkpoint_id: i64,
    /// The text of a UUID, or free text in files of Flink 1.3.
    pub backend_id: Utf<'a>,
    /// The key groups.
    pub range: KeyGroupRange,
    /// The list of states, nearly always inline.
    pub meta: Option<StreamHandle<'a>>,
    /// Files that several checkpoints share.
    pub shared: Vec<NamedHandle<'a>>,
    /// Files of this checkpoint alone. Their directory may still be `shared/`.
    pub private: Vec<NamedHandle<'a>>,
    /// What tag 11 adds; none for tag 5.
    pub second_form: Option<IncrementalSecondForm<'a>>,
}

/// What the second form of an [`IncrementalHandle`] adds (tag 11, since Flink 1.15).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IncrementalSecondForm<'a> {
    /// Bytes that this checkpoint wrote anew, -1 for unknown.
    pub checkpointed_size: i64,
    /// A UUID.
    pub state_handle_id: Utf<'a>,
}

/// A materialized base and the changes since
/// (Flink's `ChangelogStateBackendHandleImpl`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangelogHandle<'a> {
    /// The key groups.
    pub range: KeyGroupRange,
    /// The base: any keyed handles. Flink drops empty entries with a warning.
    pub materialized: Vec<Option<KeyedHandle<'a>>>,
    /// The changes: [`KeyedHandle::ChangelogMemory`] or [`KeyedHandle::ChangelogFiles`].
    pub non_materialized: Vec<Option<KeyedHandle<'a>>>,
    /// Bytes written anew, -1 for unknown; 0 where Flink 1.14 wrote the file.
    pub checkpointed_size: i64,
    /// Which materialization the base is from; 0 where Flink 1.14 wrote the file.
    pub materialization_id: i64,
    /// The checkpoint (tag 14); none for tag 8.
    pub checkpoint_id: Option<i64>,
    /// A UUID; empty where Flink 1.14 wrote the file.
    pub state_handle_id: Utf<'a>,
}

/// Changes within the metadata (Flink's `InMemoryChangelogStateHandle`, tag 9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangelogMemory<'a> {
    /// The key groups.
    pub range: KeyGroupRange,
    /// The sequence number of the first change.
    pub from: i64,
    /// The sequence number after the last change.
    pub to: i64,
    /// The changes.
    pub changes: Vec<Change<'a>>,
    /// A UUID; empty where Flink 1.14 wrote the file.
    pub state_handle_id: Utf<'a>,
}

/// One change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change<'a> {
    /// The key group, -1 for a change of the state's description.
    pub key_group: i32,
    /// The change, opaque.
    pub data: &'a [u8],
}

/// Changes in files (Flink's `ChangelogStateHandleStreamImpl`, tags 10 and 13).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangelogFiles<'a> {
    /// The key groups.
    pub range: KeyGroupRange,
    /// The parts. One file may occur many times, with other offsets.
    pub parts: Vec<ChangelogPart<'a>>,
    /// The bytes of all parts.
    pub state_size: i64,
    /// Bytes written anew, -1 for unknown; 0 where Flink 1.14 wrote the file.
    pub checkpointed_size: i64,
    /// A UUID; empty where Flink 1.14 wrote the file.
    pub state_handle_id: Utf<'a>,
    /// Which changelog storage wrote them (tag 13); none for tag 10.
    pub storage_identifier: Option<Utf<'a>>,
}

/// A part of a changelog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangelogPart<'a> {
    /// Where the part starts in the file, in bytes.
    pub offset: i64,
    /// The file.
    pub handle: StreamHandle<'a>,
}

/// How a partitionable state is distributed when the parallelism changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DistributionMode {
    /// Each element goes to one subtask.
    SplitDistribute,
    /// Each subtask gets everything.
    Union,
    /// Each subtask has the same.
    Broadcast,
}

/// One named state of an [`OperatorHandle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionableState<'a> {
    /// The name that the job gave it.
    pub name: Utf<'a>,
    /// How it is distributed.
    pub mode: DistributionMode,
    /// Where each element starts. A list state of a million elements has a million.
    pub offsets: Offsets<'a>,
}

/// State of one operator that is not keyed (Flink's `OperatorStreamStateHandle`, tag 4, and
/// `FileMergingOperatorStreamStateHandle`, tag 17).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorHandle<'a> {
    /// The states, in the hash order of the writer.
    pub states: Vec<PartitionableState<'a>>,
    /// What tag 17 adds; none for tag 4.
    pub file_merging: Option<Box<FileMergingDirectories<'a>>>,
    /// Where the bytes are.
    pub delegate: StreamHandle<'a>,
}

/// Directories that a handle keeps alive (tag 17). Flink deletes each *recursively* once the last
/// handle that names it is gone, so a copy must never name the directories of the original.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMergingDirectories<'a> {
    /// The directory of the task manager's exclusive files.
    pub task_owned: Utf<'a>,
    /// The directory of the subtask's shared files.
    pub shared: Utf<'a>,
    /// Not 0: there is no state, the handle only keeps the directories. The raw byte.
    pub empty: u8,
}

/// Records in flight (unaligned checkpoints).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelHandle<'a> {
    /// The subtask that the records belong to; none where Flink 1.11 wrote the file.
    pub subtask: Option<i32>,
    /// Bytes of these channels.
    pub size: i64,
    /// Where in the delegate the channels are.
    pub channels: Channels<'a>,
    /// Where the bytes are: one file for all channels of a subtask. Only a merged handle may have
    /// none.
    pub delegate: Option<StreamHandle<'a>>,
}

/// The channels that a [`ChannelHandle`] describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channels<'a> {
    /// One channel (`InputChannelStateHandle`, `ResultSubpartitionStateHandle`).
    One {
        /// Gate and channel of an input, partition and subpartition of an output.
        index: (i32, i32),
        /// Where the records start, in bytes.
        offsets: Offsets<'a>,
    },
    /// All channels of the subtask (`MergedInputChannelStateHandle`,
    /// `MergedResultSubpartitionStateHandle`): an encoded list that Flink itself decodes late.
    Merged(&'a [u8]),
}
