//! References: what a checkpoint is made of.

pub mod flink;
mod format;
mod handle;
mod key_group;
mod lookup;
mod model;
pub mod native;
mod read;
mod restore_mode;

pub use format::{NewPlace, SnapshotFormat};
pub use handle::{
    Distribution, FileRole, Handle, OperatorStatePart, Part, References, StateKind, StateReference,
};
pub use key_group::{KeyGroupRange, MAX_KEY_GROUPS};
pub use lookup::{Lookup, LookupRules, Moved, MovedPlace, Prefix};
pub use model::{DeclaredSize, Folder, Holder, Kind, Object, Operator, Scope, Snapshot};
pub use read::{CommitObject, METADATA_LIMIT_BYTES, format_of, formats};
pub use restore_mode::RestoreMode;
