//! References: what a checkpoint is made of.

pub mod flink;
mod format;
mod lookup;
mod model;
mod read;

pub use format::{NewPlace, SnapshotFormat};
pub use lookup::{Lookup, Moved, Prefix};
pub use model::{DeclaredSize, Folder, Holder, Kind, Object, Operator, Scope, Snapshot};
pub use read::{CommitObject, METADATA_LIMIT_BYTES, formats};
