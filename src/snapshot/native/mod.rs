//! The format of this crate's own, for engines that have none: a JSON manifest, `_forkpoint.json`, whose
//! presence makes a snapshot exist. [`Manifest`] is the document, [`NativeFormat`] makes everything that
//! works on Flink's snapshots work on these. `README.md` in this folder describes it for other tools.

mod format;
mod free;
mod manifest;
mod read;

pub use format::NativeFormat;
pub use free::{FREE_TEXT_LIMIT_BYTES, FREE_VALUES_LIMIT};
pub use manifest::{
    COMMIT_OBJECT, FORMAT, INLINE_LIMIT_BYTES, MANIFEST_LIMIT_BYTES, MANIFEST_VERSION, Manifest,
    ManifestFile, ManifestKind, ManifestOperator, ManifestScope, ManifestState, ManifestSubtask,
    Partition, StateFile,
};
