//! What says whose a directory is: `LOCK`, `VERSION`, and the list of HA folders that were used with it.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};

use super::super::key::shortened;
use super::super::layout::{LAYOUT_VERSION, LocalPath};
use super::{LocalStore, io_error, sync_folder};

/// Folders that a start makes in its directory.
pub(super) const FOLDERS: [&str; 4] = ["tmp", "jobs", "trash", "quarantine"];

/// Fails if the directory is somebody else's. Changes nothing; one that is not there, or empty, is anybody's.
///
/// # Errors
///
/// `Refused` for one that holds something else; `Unsupported` for a later layout; what the file system answers.
pub(crate) fn check_directory(root: &Path) -> Result<()> {
    let gone = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
    match fs::metadata(root) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => {
            return Err(Error::refused("it is a file, not a folder")
                .during("open")
                .at(root.display())
                .hint("give the blob store a directory of its own"));
        }
        Err(e) if gone(&e) => return Ok(()),
        Err(e) => return Err(io_error(e, "open", root)),
    }
    if is_marked(root)? {
        return Ok(());
    }
    for entry in fs::read_dir(root).map_err(|e| io_error(e, "list", root))? {
        let name = entry.map_err(|e| io_error(e, "list", root))?.file_name();
        let named = |path: LocalPath| name == *path.to_string();
        if named(LocalPath::Lock) || named(LocalPath::Version) {
            continue;
        }
        // A start that died before it wrote the version has left empty folders.
        let folder = root.join(&name);
        let ours = FOLDERS.iter().any(|o| name == *o);
        let mut within = match ours {
            true => fs::read_dir(&folder).map_err(|e| io_error(e, "list", &folder))?,
            false => return Err(strange(root, &format!("{name:?}"))),
        };
        if within.next().is_some() {
            return Err(strange(root, &format!("something in {name:?}")));
        }
    }
    Ok(())
}

fn strange(root: &Path, what: &str) -> Error {
    Error::refused(format!(
        "it holds {what}, and no VERSION of a blob store: it is somebody else's"
    ))
    .during("open")
    .at(root.display())
    .hint("give the blob store a directory of its own; nothing was made or changed in this one")
}

/// True if the directory is one of this version; false if it is not marked yet.
fn is_marked(root: &Path) -> Result<bool> {
    let path = root.join(LocalPath::Version.to_string());
    match fs::read_to_string(&path) {
        Ok(text) if text.trim() == LAYOUT_VERSION.to_string() => Ok(true),
        // A process that died between making the file and filling it.
        Ok(text) if text.is_empty() => Ok(false),
        Ok(text) => Err(Error::new(
            ErrorKind::Unsupported,
            format!("its layout has version `{}`", shortened(text.trim())),
        )
        .during("open")
        .at(root.display())
        .hint(format!(
            "this program knows version {LAYOUT_VERSION}: use another directory, or a later program"
        ))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(io_error(e, "read", &path)),
    }
}

/// Marks a directory that is ours.
pub(super) fn mark(root: &Path) -> Result<()> {
    if is_marked(root)? {
        return Ok(());
    }
    let path = root.join(LocalPath::Version.to_string());
    fs::write(&path, format!("{LAYOUT_VERSION}\n")).map_err(|e| io_error(e, "write", &path))
}

pub(super) fn take_lock(root: &Path) -> Result<File> {
    let path = root.join(LocalPath::Lock.to_string());
    let fail = |e| io_error(e, "lock", &path);
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    let mut file = opened.map_err(fail)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = holder.trim();
            return Err(Error::refused(format!("another process has it ({holder})"))
                .during("lock")
                .at(root.display())
                .hint("stop that process, or give this one a directory of its own"));
        }
        Err(fs::TryLockError::Error(e)) => return Err(fail(e)),
    }
    file.set_len(0).map_err(fail)?;
    writeln!(file, "process {}", std::process::id()).map_err(fail)?;
    Ok(file)
}

impl LocalStore {
    /// The HA folders on local disk that this directory was used with, by their names then.
    ///
    /// # Errors
    ///
    /// What the file system answers.
    pub(crate) fn known_ha_folders(&self) -> Result<BTreeSet<String>> {
        let path = self.path(&LocalPath::HaFolders);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(text.lines().map(str::to_string).collect()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(e) => Err(io_error(e, "read", &path)),
        }
    }

    /// Remembers HA folders that are there now, so that a later start knows them when they are not.
    ///
    /// # Errors
    ///
    /// What the file system answers.
    pub(crate) fn remember_ha_folders(&self, names: &BTreeSet<String>) -> Result<()> {
        let mut known = self.known_ha_folders()?;
        if names.is_subset(&known) {
            return Ok(());
        }
        known.extend(names.iter().cloned());
        let mut text = String::new();
        for name in known {
            text.push_str(&name);
            text.push('\n');
        }
        let path = self.path(&LocalPath::HaFolders);
        let part = self.path(&LocalPath::Part(crate::clock::random_id()));
        let fail = |e| io_error(e, "write", &path);
        let mut file = File::create_new(&part).map_err(fail)?;
        let mut part = super::Temporary::new(part);
        file.write_all(text.as_bytes()).map_err(fail)?;
        file.sync_all().map_err(fail)?;
        fs::rename(part.path(), &path).map_err(fail)?;
        part.give_away();
        sync_folder(self.root())
    }
}

#[cfg(test)]
mod tests {
    use super::super::LocalOptions;
    use super::*;

    fn names(root: &Path) -> Vec<String> {
        let entries = fs::read_dir(root).unwrap();
        let mut names: Vec<String> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn nothing_is_made_in_somebody_elses_folder() {
        let dir = tempfile::tempdir().unwrap();
        for (case, file) in [
            ("plain", "notes.txt"),
            ("alike", "tmp/report"),
            ("deep", "jobs/a/b"),
        ] {
            let root = dir.path().join(case);
            let file = root.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, b"mine").unwrap();
            let before = names(&root);
            for refused in [
                check_directory(&root),
                LocalStore::open(LocalOptions::new(&root)).map(drop),
            ] {
                let e = refused.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Refused, "{case}: {e}");
                assert!(e.next_step().is_some(), "{case}");
            }
            assert_eq!(names(&root), before, "{case}");
            assert_eq!(fs::read(&file).unwrap(), b"mine");
        }
        let file = dir.path().join("plain/notes.txt");
        assert_eq!(
            check_directory(&file).unwrap_err().kind(),
            ErrorKind::Refused
        );
    }

    #[test]
    fn a_start_that_died_before_the_mark_is_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("data");
        check_directory(&root).unwrap();
        assert!(!root.exists());
        fs::create_dir_all(root.join("tmp")).unwrap();
        fs::write(root.join("LOCK"), b"process 1\n").unwrap();
        fs::write(root.join("VERSION"), b"").unwrap();
        let (store, _) = LocalStore::open(LocalOptions::new(&root)).unwrap();
        let ha = BTreeSet::from(["file:/ha/default".to_string()]);
        store.remember_ha_folders(&ha).unwrap();
        store.remember_ha_folders(&ha).unwrap();
        drop(store);
        let (store, listed) = LocalStore::open(LocalOptions::new(&root)).unwrap();
        assert_eq!(store.known_ha_folders().unwrap(), ha);
        assert!(
            listed.iter().all(|l| LocalPath::parse(&l.path).is_ok()),
            "{listed:?}"
        );
    }
}
