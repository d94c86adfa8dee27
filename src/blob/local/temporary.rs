//! A file whose name is only for the time until it is complete.

use std::fs;
use std::path::{Path, PathBuf};

/// A name that is removed unless it has been given away.
#[derive(Debug)]
pub(crate) struct Temporary(Option<PathBuf>);

impl Temporary {
    /// Takes care of a file that is there.
    pub(crate) fn new(path: PathBuf) -> Temporary {
        Temporary(Some(path))
    }

    /// Where it lies; empty once it has been given away.
    pub(crate) fn path(&self) -> &Path {
        self.0.as_deref().unwrap_or(Path::new(""))
    }

    /// The folder that it lies in: what messages name, since nobody knows the file.
    pub(crate) fn folder(&self) -> &Path {
        self.path().parent().unwrap_or(Path::new(""))
    }

    /// Leaves the file to the caller.
    pub(crate) fn give_away(&mut self) -> Option<PathBuf> {
        self.0.take()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let _ = fs::remove_file(path);
        }
    }
}
