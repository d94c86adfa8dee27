//! The manifest as the rest of the crate sees it.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::snapshot::{Lookup, NewPlace, Snapshot, SnapshotFormat};
use crate::store::{Location, split_text};

use super::manifest::{COMMIT_OBJECT, MANIFEST_LIMIT_BYTES, Manifest, check_head, no_manifest};
use super::read::{locate, path_from, snapshot};

/// The manifests of this crate's own snapshots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NativeFormat;

impl NativeFormat {
    /// How a location is written in the manifest of a snapshot in the folder `directory`: below it and
    /// beside it relative, so that a job's folder can be moved as a whole; elsewhere absolute.
    pub fn path_from(directory: &Location, at: &Location) -> String {
        path_from(directory, at)
    }
}

/// The paths alone, as they stand in the text where it can be pointed into.
#[derive(Deserialize)]
struct Paths<'a> {
    #[serde(borrow)]
    files: Vec<PathOf<'a>>,
}

#[derive(Deserialize)]
struct PathOf<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
}

impl SnapshotFormat for NativeFormat {
    fn name(&self) -> &'static str {
        "native"
    }

    fn commit_object(&self) -> &'static str {
        COMMIT_OBJECT
    }

    fn limit_bytes(&self) -> u64 {
        MANIFEST_LIMIT_BYTES
    }

    fn read(&self, bytes: &[u8], lookup: &Lookup) -> Result<Snapshot> {
        snapshot(&Manifest::decode(bytes)?, lookup, false)
    }

    fn read_with_references(&self, bytes: &[u8], lookup: &Lookup) -> Result<Snapshot> {
        snapshot(&Manifest::decode(bytes)?, lookup, true)
    }

    fn rewrite(
        &self,
        bytes: &[u8],
        lookup: &Lookup,
        to: &Location,
        new_place: &NewPlace<'_>,
    ) -> Result<Vec<u8>> {
        Manifest::decode(bytes)?;
        let Paths { files } = serde_json::from_slice(bytes).map_err(|e| no_manifest(bytes, &e))?;
        let mut new = Vec::with_capacity(files.len());
        for file in &files {
            let (old, _) = locate(&file.path, lookup)?;
            new.push(path_from(to, &new_place(&old)?));
        }
        splice(bytes, &files, &new).map_or_else(|| rewrite_value(bytes, &new), Ok)
    }

    fn absolute_paths(&self, bytes: &[u8], limit: usize) -> Result<Vec<String>> {
        check_head(bytes)?;
        let Paths { files } = serde_json::from_slice(bytes).map_err(|e| no_manifest(bytes, &e))?;
        let absolute = |path: &str| split_text(path).0.is_some() || path.starts_with('/');
        let paths = files.into_iter().map(|file| file.path.into_owned());
        Ok(paths.filter(|path| absolute(path)).take(limit).collect())
    }
}

/// The same text with new paths, every other byte as it was. `None` if a path stands there with escapes,
/// so that the text cannot be pointed into.
fn splice(bytes: &[u8], files: &[PathOf<'_>], new: &[String]) -> Option<Vec<u8>> {
    let mut made = Vec::with_capacity(bytes.len());
    let mut done = 0;
    for (file, new) in files.iter().zip(new) {
        let Cow::Borrowed(old) = file.path else {
            return None;
        };
        // Inside the quotes.
        let start = (old.as_ptr() as usize).checked_sub(bytes.as_ptr() as usize)?;
        made.extend_from_slice(bytes.get(done..start)?);
        let quoted = serde_json::to_string(new).ok()?;
        made.extend_from_slice(quoted.get(1..quoted.len() - 1)?.as_bytes());
        done = start + old.len();
    }
    made.extend_from_slice(bytes.get(done..)?);
    Some(made)
}

/// The same document with new paths, written anew.
fn rewrite_value(bytes: &[u8], new: &[String]) -> Result<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(bytes).map_err(|e| no_manifest(bytes, &e))?;
    let files = value.get_mut("files").and_then(Value::as_array_mut);
    for (file, new) in files.into_iter().flatten().zip(new) {
        if let Some(path) = file.get_mut("path") {
            *path = Value::String(new.clone());
        }
    }
    let mut made = serde_json::to_vec_pretty(&value).map_err(|e| {
        Error::new(
            ErrorKind::Internal,
            "the manifest cannot be written as JSON",
        )
        .caused_by(e)
    })?;
    made.push(b'\n');
    Ok(made)
}
