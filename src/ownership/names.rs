//! Names of objects as numbers: a million objects that two thousand snapshots refer to fit in
//! memory only if each name is kept once.
//!
//! A name is a folder and what stands below it. Keys that no engine writes (doubled slashes, `.` and
//! `..` parts, a slash in front) are kept whole below the root of the bucket, so that no two keys
//! become one name.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use crate::error::{Error, ErrorKind, Result};
use crate::store::Location;

/// The number of an object's name in [`Names`].
pub type ObjectId = u32;

#[derive(Debug, Clone, Copy)]
struct Entry {
    folder: u32,
    start: u32,
    len: u32,
    /// The next entry whose name has the same hash, plus one; 0 for none.
    next: u32,
}

/// All names, each once. 16 bytes a name, its last part, and 16 of an index.
#[derive(Debug, Default)]
pub struct Names {
    folders: Vec<Location>,
    folder_ids: HashMap<Location, u32>,
    text: String,
    entries: Vec<Entry>,
    index: HashMap<u64, u32>,
    hasher: RandomState,
}

/// Folder and name of a location, as [`Names`] keeps it.
pub(crate) fn split(at: &Location) -> (Location, &str) {
    let key = at.key();
    let folder = match key.rfind('/') {
        _ if is_odd(key) => return (at.with_key(""), key),
        Some(end) => at.with_key(key.get(..end).unwrap_or_default()),
        None => at.with_key(""),
    };
    (folder, at.name())
}

/// True for a key that no engine's path leads to: with an empty, `.` or `..` part, a control
/// character or a backslash. A slash at the end, as of a marker, is an empty part too.
pub fn is_odd(key: &str) -> bool {
    key.contains(|c: char| c.is_control() || c == '\\')
        || key.split('/').any(|part| matches!(part, "" | "." | ".."))
}

impl Names {
    /// How many names there are; their numbers are below it.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without any name.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The folders, by number.
    pub fn folders(&self) -> &[Location] {
        &self.folders
    }

    /// The number of a folder, new if need be.
    pub(crate) fn folder(&mut self, at: &Location) -> Result<u32> {
        if let Some(id) = self.folder_ids.get(at) {
            return Ok(*id);
        }
        let id = short(self.folders.len())?;
        self.folders.push(at.clone());
        self.folder_ids.insert(at.clone(), id);
        Ok(id)
    }

    /// The number of a known folder.
    pub fn find_folder(&self, at: &Location) -> Option<u32> {
        self.folder_ids.get(at).copied()
    }

    fn hash(&self, folder: u32, name: &str) -> u64 {
        self.hasher.hash_one((folder, name))
    }

    fn find_hashed(&self, hash: u64, folder: u32, name: &str) -> Option<ObjectId> {
        let mut next = self.index.get(&hash).map_or(0, |id| id + 1);
        while let Some(id) = next.checked_sub(1) {
            let entry = self.entries.get(id as usize)?;
            if entry.folder == folder && self.text_of(entry) == name {
                return Some(id);
            }
            next = entry.next;
        }
        None
    }

    fn text_of(&self, entry: &Entry) -> &str {
        let start = entry.start as usize;
        self.text
            .get(start..start + entry.len as usize)
            .unwrap_or_default()
    }

    /// The number of the object `name` in a folder, new if need be.
    pub(crate) fn intern(&mut self, folder: u32, name: &str) -> Result<ObjectId> {
        let hash = self.hash(folder, name);
        if let Some(id) = self.find_hashed(hash, folder, name) {
            return Ok(id);
        }
        let id = short(self.entries.len())?;
        let entry = Entry {
            folder,
            start: short(self.text.len())?,
            len: short(name.len())?,
            next: self.index.get(&hash).map_or(0, |id| id + 1),
        };
        self.text.push_str(name);
        self.entries.push(entry);
        self.index.insert(hash, id);
        Ok(id)
    }

    /// The number of a known object.
    pub fn find(&self, at: &Location) -> Option<ObjectId> {
        let (folder, name) = split(at);
        let folder = self.find_folder(&folder)?;
        self.find_hashed(self.hash(folder, name), folder, name)
    }

    /// The last part of an object's key; the whole key of an odd one.
    pub fn name(&self, id: ObjectId) -> &str {
        self.entries
            .get(id as usize)
            .map_or("", |entry| self.text_of(entry))
    }

    /// The number of the folder that an object is in.
    pub fn folder_of(&self, id: ObjectId) -> u32 {
        self.entries.get(id as usize).map_or(0, |e| e.folder)
    }

    /// Where an object lies; `None` for a number that was never given.
    pub fn location(&self, id: ObjectId) -> Option<Location> {
        let entry = self.entries.get(id as usize)?;
        let folder = self.folders.get(entry.folder as usize)?;
        Some(folder.child(self.text_of(entry)))
    }
}

fn short(n: usize) -> Result<u32> {
    u32::try_from(n)
        .ok()
        .filter(|n| *n < u32::MAX)
        .ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                "more than four billion objects, or as many bytes of names",
            )
            .hint("look at the job folders one by one")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_one_number_and_comes_back_as_it_was() {
        let root = Location::parse("s3://b/root").unwrap();
        let mut names = Names::default();
        let keys = [
            "root/shared/x",
            "root/shared/y",
            "root/shared",
            "root//shared/x",
            "/root/shared/x",
            "root/shared/",
            "root/./shared/x",
            "root/shared/x/",
            "x",
            "/x",
            "root/a\u{1}b",
            "root/a\\b",
        ];
        let mut add = |key: &str| {
            let at = root.with_key(key);
            let (folder, name) = split(&at);
            let folder = names.folder(&folder).unwrap();
            names.intern(folder, name).unwrap()
        };
        let ids: Vec<ObjectId> = keys.iter().map(|k| add(k)).collect();
        let again: Vec<ObjectId> = keys.iter().map(|k| add(k)).collect();
        assert_eq!(ids, again);
        assert_eq!(names.len(), keys.len());
        for (key, id) in keys.iter().zip(ids) {
            let at = names.location(id).unwrap();
            assert_eq!(at.key(), *key);
            assert_eq!(names.find(&at), Some(id));
            assert_eq!(
                is_odd(key),
                !matches!(
                    *key,
                    "root/shared/x" | "root/shared/y" | "root/shared" | "x"
                )
            );
        }
    }
}
