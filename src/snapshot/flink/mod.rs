//! Flink's `_metadata` file: read it, describe it, rewrite it.
//!
//! The file of a checkpoint or savepoint says which files its state is in. [`decode`] reads versions
//! 1 to 6 (Flink 1.2 to 2.3) into a [`Metadata`] tree that borrows from the bytes.
//! [`Metadata::walk`] shows every reference, [`Metadata::encode`] writes the same bytes again, and
//! [`Metadata::encode_with`] writes them with other locations. [`FlinkPath`] says what a path text
//! means. All of this is pure: nothing here reads or writes files.
//!
//! ```
//! # fn main() -> forkpoint::Result<()> {
//! use forkpoint::snapshot::flink::{self, Location};
//!
//! // An empty snapshot of version 3: magic number, version, checkpoint id, two empty lists.
//! let file = [&[0x49, 0x60, 0x67, 0x2D, 0, 0, 0, 3][..], &[0; 16]].concat();
//! let metadata = flink::decode(&file)?;
//! let mut files = 0;
//! metadata.walk(&mut |reference| {
//!     files += usize::from(matches!(reference.location, Location::Absolute { .. }));
//! });
//! assert_eq!(files, 0);
//! assert_eq!(metadata.encode()?, file);
//! # Ok(())
//! # }
//! ```

mod decode;
mod decode_handles;
mod encode;
mod encode_handles;
mod format;
mod handles;
mod java;
mod metadata;
mod path;
mod properties;
mod references;
mod rewrite;
mod table;
mod tags;
mod utf;
mod wire;

pub use decode::{decode, is_metadata};
pub use format::FlinkFormat;
pub use handles::{
    Change, ChangelogFiles, ChangelogHandle, ChangelogMemory, ChangelogPart, ChannelHandle,
    Channels, DistributionMode, FileMergingDirectories, IncrementalHandle, IncrementalSecondForm,
    InlineState, KeyGroupRange, KeyGroupsForm, KeyGroupsHandle, KeyedHandle, NamedHandle, Offsets,
    OperatorHandle, PartitionableState, Segment, SegmentScope, StreamHandle, StreamKeyGroups,
};
pub use metadata::{
    Dialect, MasterState, Metadata, NEWEST_VERSION, OLDEST_VERSION, Operator, OperatorId,
    OperatorStates, Subtask, SubtaskState,
};
pub use path::FlinkPath;
pub use properties::{PostAction, Properties, SavepointFormat, SharingStrategy, SnapshotKind};
pub use references::{Location, Reference, Role};
pub use rewrite::NewPath;
pub use utf::{MAX_UTF_BYTES, Utf, encode_utf};
