//! What an engine's format must be able to do so that its snapshots can be forked.

use crate::error::Result;
use crate::store::Location;

use super::lookup::Lookup;
use super::model::Snapshot;
use super::read::METADATA_LIMIT_BYTES;

/// Answers where an object or folder lies after the fork, given where it lies now.
pub type NewPlace<'a> = dyn Fn(&Location) -> Result<Location> + 'a;

/// One engine's snapshot format: bytes in, bytes out, no I/O.
pub trait SnapshotFormat: std::fmt::Debug + Send + Sync {
    /// The name in reports.
    fn name(&self) -> &'static str;

    /// The object whose presence makes a snapshot exist.
    fn commit_object(&self) -> &'static str;

    /// How somebody who has a snapshot in this folder goes on, on one line.
    fn how_to_restore(&self, _snapshot: &Location) -> String {
        "restore from it with the engine that writes this format".to_string()
    }

    /// Largest commit object that is read, in bytes.
    fn limit_bytes(&self) -> u64 {
        METADATA_LIMIT_BYTES
    }

    /// Reads the commit object's `bytes` and lists what it refers to.
    ///
    /// # Errors
    ///
    /// `Corrupt` with a byte offset for damaged input, `Unsupported` for a newer version.
    fn read(&self, bytes: &[u8], lookup: &Lookup) -> Result<Snapshot>;

    /// Like [`SnapshotFormat::read`], and lists who refers to which object. A million references
    /// take 40 MB.
    ///
    /// # Errors
    ///
    /// As [`SnapshotFormat::read`]; `Corrupt` for key groups or subtasks that cannot be.
    fn read_with_references(&self, bytes: &[u8], lookup: &Lookup) -> Result<Snapshot>;

    /// The commit object's bytes with every location replaced by its new place, for a snapshot
    /// in the folder `to`; everything else stays as it was.
    ///
    /// # Errors
    ///
    /// As [`SnapshotFormat::read`]; and what `new_place` answers.
    fn rewrite(
        &self,
        bytes: &[u8],
        lookup: &Lookup,
        to: &Location,
        new_place: &NewPlace<'_>,
    ) -> Result<Vec<u8>>;

    /// Up to `limit` absolute paths of objects as they stand in the metadata.
    ///
    /// # Errors
    ///
    /// As [`SnapshotFormat::read`].
    fn absolute_paths(&self, bytes: &[u8], limit: usize) -> Result<Vec<String>>;
}
