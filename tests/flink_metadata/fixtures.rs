//! Finds the samples below `tests/fixtures`.

// Each test program uses a part of this.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) struct Sample {
    pub name: String,
    pub bytes: Vec<u8>,
    /// What Flink reads in it, as JSON.
    pub dump: PathBuf,
}

impl Sample {
    /// False for files that Flink refuses, and for those it had better refused.
    pub(crate) fn must_load(&self) -> bool {
        !self.name.starts_with("bad-") && !self.name.starts_with("lax-")
    }
}

pub(crate) fn directory() -> PathBuf {
    root().join("metadata")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// All files below `directory`, in the order of their paths.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The generated and hand-made samples, with Flink's reading of them.
pub(crate) fn with_dumps() -> Vec<Sample> {
    files(&directory())
        .into_iter()
        .filter(|path| path.extension().is_some_and(|e| e == "metadata"))
        .map(|path| Sample {
            name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
            bytes: fs::read(&path).unwrap(),
            dump: path.with_extension("json"),
        })
        .collect()
}

/// The metadata of real checkpoints, with their paths.
pub(crate) fn real() -> Vec<(String, Vec<u8>)> {
    files(&root())
        .into_iter()
        .filter(|path| path.file_name().is_some_and(|name| name == "_metadata"))
        .map(|path| (path.display().to_string(), fs::read(&path).unwrap()))
        .collect()
}
