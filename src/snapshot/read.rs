//! From a location that a user names to a snapshot: finds the commit object and the format. I/O.

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::store::{Location, Stores, is_missing_object};

use super::flink::FlinkFormat;
use super::format::SnapshotFormat;
use super::lookup::Lookup;
use super::model::Snapshot;
use super::native::NativeFormat;

/// Largest commit object that is read, in bytes. The largest that Flink users report are some
/// hundred MB.
pub const METADATA_LIMIT_BYTES: u64 = 2 * 1024 * 1024 * 1024;

/// A commit object as it was read, and the format that understands it.
#[derive(Debug, Clone)]
pub struct CommitObject {
    /// The snapshot's folder.
    pub directory: Location,
    /// The commit object itself.
    pub location: Location,
    /// Its bytes.
    pub bytes: Bytes,
    /// Its format.
    pub format: &'static dyn SnapshotFormat,
}

/// The formats this crate understands.
pub fn formats() -> &'static [&'static dyn SnapshotFormat] {
    &[&FlinkFormat, &NativeFormat]
}

/// The format whose commit objects have this name.
pub fn format_of(name: &str) -> Option<&'static dyn SnapshotFormat> {
    formats()
        .iter()
        .copied()
        .find(|f| f.commit_object() == name)
}

impl CommitObject {
    /// Reads the commit object of the snapshot in the folder `at`, or at `at` itself if that is a
    /// commit object's name. One request.
    ///
    /// # Errors
    ///
    /// `NotFound` if no format finds its commit object there.
    pub async fn read(stores: &Stores, at: &Location) -> Result<CommitObject> {
        for format in formats() {
            let (directory, location) = match at.parent() {
                Some(parent) if at.name() == format.commit_object() => (parent, at.clone()),
                _ => (at.clone(), at.join(format.commit_object())?),
            };
            match stores.read(&location, format.limit_bytes()).await {
                Ok(bytes) => {
                    return Ok(CommitObject {
                        directory,
                        location,
                        bytes,
                        format: *format,
                    });
                }
                Err(e) if is_missing_object(&e) => {}
                Err(e) => return Err(e),
            }
        }
        stores.check_bucket(at).await?;
        Err(Error::new(
            ErrorKind::NotFound,
            "no snapshot here: there is no `_metadata` and no `_forkpoint.json`",
        )
        .during("read")
        .at(at)
        .hint("name the folder that holds `_metadata`, such as .../chk-42"))
    }

    /// What the snapshot refers to, by plain rules: relative paths below its own folder.
    ///
    /// # Errors
    ///
    /// As [`SnapshotFormat::read`], naming the commit object.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.snapshot_by(&Lookup::new(self.directory.clone()))
    }

    /// What the snapshot refers to, by the rules of `lookup`.
    ///
    /// # Errors
    ///
    /// As [`SnapshotFormat::read`], naming the commit object.
    pub fn snapshot_by(&self, lookup: &Lookup) -> Result<Snapshot> {
        self.format
            .read(&self.bytes, lookup)
            .map_err(|e| e.during("read").at(&self.location))
    }

    /// What the snapshot refers to, by the rules of `lookup`, and who refers to it: what a restore
    /// is planned from.
    ///
    /// # Errors
    ///
    /// As [`SnapshotFormat::read_with_references`], naming the commit object.
    pub fn snapshot_with_references(&self, lookup: &Lookup) -> Result<Snapshot> {
        self.format
            .read_with_references(&self.bytes, lookup)
            .map_err(|e| e.during("read").at(&self.location))
    }
}
