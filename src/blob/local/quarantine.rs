//! Damaged copies: moved off their paths, kept for whoever wants to know why, and not for ever.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::error::Result;

use super::super::key::{BlobKey, Moment};
use super::super::layout::LocalPath;
use super::{LocalStore, Opened, io_error};

impl LocalStore {
    /// Moves a damaged copy into the quarantine: the file with this inode, if it is the one that was looked at and
    /// its path still has it; a file that has taken its place stays.
    ///
    /// # Errors
    ///
    /// What the file system answers; the copy may then still be at its path.
    pub(crate) fn damaged(&self, key: &BlobKey, what: &str, inode: Option<u64>) -> Result<Opened> {
        let path = self.blob_path(key);
        let moves = self.moves();
        let lies = fs::symlink_metadata(&path).map(|m| m.ino()).ok();
        if inode.is_some() && lies.is_some() && inode != lies {
            return Ok(Opened::Damaged(what.to_string()));
        }
        tracing::warn!(%key, what, "a local copy is damaged; it goes into the quarantine");
        let mut time = u64::try_from(crate::clock::unix_millis()).unwrap_or(0);
        let to = loop {
            let to = self.path(&LocalPath::Quarantine(key.digest.sha256, time));
            if !to.exists() {
                break to;
            }
            time = time.saturating_add(1);
        };
        match fs::rename(&path, &to) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(io_error(e, "quarantine", &path));
            }
            _ => {}
        }
        self.forget(key);
        drop(moves);
        self.limit_quarantine();
        Ok(Opened::Damaged(what.to_string()))
    }

    /// Removes the oldest beyond the limit.
    fn limit_quarantine(&self) {
        let Ok(entries) = fs::read_dir(self.root().join("quarantine")) else {
            return;
        };
        let mut kept: Vec<(Moment, std::path::PathBuf)> = entries
            .filter_map(|e| {
                let e = e.ok()?;
                let name = e.file_name();
                match LocalPath::parse(&format!("quarantine/{}", name.to_str()?)) {
                    Ok(LocalPath::Quarantine(_, time)) => Some((Moment(time), e.path())),
                    _ => None,
                }
            })
            .collect();
        kept.sort();
        let over = kept.len().saturating_sub(self.options.most_quarantined);
        for (_, path) in kept.into_iter().take(over) {
            let _ = fs::remove_file(path);
        }
    }

    /// How many damaged copies are kept.
    pub(crate) fn quarantined(&self) -> usize {
        fs::read_dir(self.root().join("quarantine")).map_or(0, Iterator::count)
    }
}
