//! Where each object goes: pure functions of the fork's id and the object's identity, so that a
//! fork that was killed finds its own objects again, and two forks never write to one name.

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::snapshot::{Folder, Object, Scope};
use crate::store::{Location, Provider};

/// Names of duplicated objects begin with the source's name, cut to this many bytes: enough for
/// the UUIDs and folder names that Flink writes, short enough for every file system.
const NAME_LIMIT_BYTES: usize = 128;

/// How the objects of a fork are named.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Naming {
    /// As the engine would lay them: beside the commit object, and in `shared/` and `taskowned/`.
    #[default]
    Engine,
    /// Under their whole old keys below one folder, `shared/FORK_ID`. The bulk copiers of the cloud
    /// services can only put a prefix before a key. All references become absolute.
    WholeKeys,
}

/// The identity of one fork: of this very metadata, to this very place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ForkId(String);

impl ForkId {
    /// The id of forking the snapshot whose commit object lies at `commit` with the given SHA-256
    /// to the root `destination` (both canonical).
    pub fn new(commit: &Location, metadata_sha256: &[u8], destination: &Location) -> ForkId {
        ForkId::with_naming(commit, metadata_sha256, destination, Naming::Engine)
    }

    /// The same for a fork whose objects are named by `naming`: another fork.
    pub fn with_naming(
        commit: &Location,
        metadata_sha256: &[u8],
        destination: &Location,
        naming: Naming,
    ) -> ForkId {
        let mut hash = Sha256::new();
        hash.update(match naming {
            Naming::Engine => &b"forkpoint fork 1\0"[..],
            Naming::WholeKeys => b"forkpoint fork 1 whole keys\0",
        });
        identity(commit, &mut hash);
        hash.update([0]);
        hash.update(metadata_sha256);
        hash.update([0]);
        identity(destination, &mut hash);
        ForkId(hex(&hash.finalize()[..16]))
    }

    /// The 16 hex digits that end the name of the duplicate that this fork makes of the object or folder at
    /// `source`.
    pub(crate) fn digits_of(&self, source: &Location) -> String {
        Suffixes::new(self.clone(), source).of(source)
    }

    /// The id as 32 hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ForkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which object, however its scheme is spelled.
fn identity(at: &Location, hash: &mut Sha256) {
    bucket_identity(at, hash);
    hash.update(at.key());
}

/// Which bucket.
fn bucket_identity(at: &Location, hash: &mut Sha256) {
    let bucket = at.bucket();
    hash.update(match bucket.provider {
        Provider::Local => "Local",
        Provider::Memory => "Memory",
        Provider::S3 => "S3",
        Provider::Gcs => "Gcs",
        Provider::Azure => "Azure",
        Provider::Other => "Other",
    });
    hash.update([0]);
    hash.update(bucket.account.unwrap_or_default());
    hash.update([0]);
    hash.update(&bucket.name);
    hash.update([0]);
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(DIGITS[usize::from(digit)]));
        }
    }
    text
}

/// Tells the duplicates of one fork from all others.
#[derive(Debug, Clone)]
struct Suffixes {
    id: ForkId,
    /// A location in the bucket of most objects, and the hash of the id and that bucket.
    near: Location,
    begun: Sha256,
}

impl Suffixes {
    fn new(id: ForkId, near: &Location) -> Suffixes {
        let mut begun = Suffixes::begin(&id);
        bucket_identity(near, &mut begun);
        Suffixes {
            id,
            near: near.clone(),
            begun,
        }
    }

    fn begin(id: &ForkId) -> Sha256 {
        let mut hash = Sha256::new();
        hash.update(id.0.as_bytes());
        hash.update([0]);
        hash
    }

    /// 64 bits that tell this object's duplicate in this fork from all others, as 16 hex digits.
    fn of(&self, source: &Location) -> String {
        let mut hash = match self.near.same_bucket(source) {
            true => self.begun.clone(),
            false => {
                let mut hash = Suffixes::begin(&self.id);
                bucket_identity(source, &mut hash);
                hash
            }
        };
        hash.update(source.key());
        hex(&hash.finalize()[..8])
    }
}

/// The shape of a fork below its root: the snapshot's own folder with the commit object and the
/// exclusive files, `shared/` and `taskowned/` beside it, as the engine itself would lay them.
#[derive(Debug, Clone)]
pub struct Layout {
    suffixes: Suffixes,
    source: Location,
    root: Location,
    snapshot: Location,
    shared: Location,
    task_owned: Location,
    /// The folder below which objects have their whole old keys, if they are named so.
    whole_keys: Option<Location>,
    folders: Vec<(Location, Location)>,
    /// The same, for look-ups: merged files come with two folders for each subtask.
    places: HashMap<Location, Location>,
}

impl Layout {
    /// The layout of forking the snapshot in the folder `source` (its number is `checkpoint_id`)
    /// to `root`.
    ///
    /// # Errors
    ///
    /// `Refused` if one of `folders`, which go as a whole, holds the snapshot itself.
    pub fn new(
        id: ForkId,
        source: &Location,
        checkpoint_id: i64,
        root: &Location,
        folders: &[Folder],
    ) -> Result<Layout> {
        Layout::with_naming(id, source, checkpoint_id, root, folders, Naming::Engine)
    }

    /// The same with objects named by `naming`.
    ///
    /// # Errors
    ///
    /// As [`Layout::new`].
    pub fn with_naming(
        id: ForkId,
        source: &Location,
        checkpoint_id: i64,
        root: &Location,
        folders: &[Folder],
        naming: Naming,
    ) -> Result<Layout> {
        let snapshot = match source.name() {
            "" => root.join(&format!("chk-{checkpoint_id}"))?,
            name => root.join(name)?,
        };
        let (shared, task_owned) = (root.join("shared")?, root.join("taskowned")?);
        let whole_keys = match naming {
            Naming::Engine => None,
            Naming::WholeKeys => Some(shared.join(&id.0)?),
        };
        let suffixes = Suffixes::new(id, source);
        let mut moves = Vec::with_capacity(folders.len());
        for folder in folders {
            let is_source = folder.location == *source;
            if !is_source && folder.location.contains(source) {
                return Err(Error::refused(
                    "the metadata has the engine delete this folder as a whole, and the snapshot lies in it",
                )
                .at(&folder.location));
            }
            let to = if let Some(below) = &whole_keys {
                below.join(folder.location.key())?
            } else if is_source {
                snapshot.clone()
            } else {
                let above = match folder.scope {
                    Scope::Exclusive => &snapshot,
                    Scope::Shared => &shared,
                    Scope::TaskOwned => &task_owned,
                };
                above.with_owned_key(new_key(above, &suffixes, &folder.location))
            };
            moves.push((folder.location.clone(), to));
        }
        Ok(Layout {
            suffixes,
            source: source.clone(),
            root: root.clone(),
            snapshot,
            shared,
            task_owned,
            whole_keys,
            places: moves.iter().cloned().collect(),
            folders: moves,
        })
    }

    /// The fork's id.
    pub fn id(&self) -> &ForkId {
        &self.suffixes.id
    }

    /// The folder of the new commit object.
    pub fn snapshot(&self) -> &Location {
        &self.snapshot
    }

    /// The root below which everything of the fork lies.
    pub fn root(&self) -> &Location {
        &self.root
    }

    /// The folders that go as a whole: where they are, and where they will be.
    pub fn folders(&self) -> &[(Location, Location)] {
        &self.folders
    }

    /// The folder below which objects have their whole old keys, if they are named so.
    pub fn whole_keys(&self) -> Option<&Location> {
        self.whole_keys.as_ref()
    }

    /// Where the duplicate of `object` goes.
    ///
    /// What lies in the snapshot's own folder keeps its name there, so that relative references
    /// stay relative; what lies in a folder that goes as a whole stays in it; all else is placed by
    /// its scope, under its old name and 16 hex digits.
    ///
    /// # Errors
    ///
    /// `Invalid` for an object without a name.
    pub fn place(&self, object: &Object) -> Result<Location> {
        if let Some(below) = &self.whole_keys {
            return below.join(object.location.key());
        }
        if let Some(relative) = &object.relative {
            return self.snapshot.join(relative);
        }
        if let Some(inside) = self.source.strip(&object.location) {
            return self.snapshot.join(inside);
        }
        // The deepest folder that holds it.
        let mut above = match self.places.is_empty() {
            true => None,
            false => Some(object.location.clone()),
        };
        while let Some(folder) = above {
            if let Some(to) = self.places.get(&folder) {
                return match folder.strip(&object.location) {
                    Some("") | None => Ok(to.clone()),
                    Some(inside) => to.join(inside),
                };
            }
            above = folder.parent();
        }
        let above = match object.scope {
            Scope::Exclusive => &self.snapshot,
            Scope::Shared => &self.shared,
            Scope::TaskOwned => &self.task_owned,
        };
        Ok(above.with_owned_key(new_key(above, &self.suffixes, &object.location)))
    }
}

/// The key of a duplicate in a folder: the source's name, shortened, and 16 hex digits.
fn new_key(folder: &Location, suffixes: &Suffixes, source: &Location) -> String {
    let name = source.name();
    let mut end = name.len().min(NAME_LIMIT_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let name = name.get(..end).unwrap_or("");
    let suffix = suffixes.of(source);
    let folder = folder.key();
    let mut key = String::with_capacity(folder.len() + name.len() + suffix.len() + 2);
    if !folder.is_empty() {
        key.push_str(folder);
        key.push('/');
    }
    key.push_str(name);
    key.push('-');
    key.push_str(&suffix);
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{DeclaredSize, Holder};

    fn at(text: &str) -> Location {
        Location::parse(text).unwrap()
    }

    fn object(location: &str, scope: Scope) -> Object {
        Object {
            location: at(location),
            scope,
            size: DeclaredSize::Unknown,
            references: 1,
            relative: None,
            holder: Holder {
                operator: 0,
                subtask: None,
            },
        }
    }

    fn layout(root: &str) -> Layout {
        let id = ForkId::new(&at("s3://b/job/chk-7/_metadata"), &[1; 32], &at(root));
        let folders = [
            Folder {
                location: at("s3://b/job/taskowned/job_1_tm_2"),
                scope: Scope::TaskOwned,
            },
            Folder {
                location: at("s3://b/job/shared/job_1_op_3"),
                scope: Scope::Shared,
            },
        ];
        Layout::new(id, &at("s3://b/job/chk-7"), 7, &at(root), &folders).unwrap()
    }

    #[test]
    fn objects_are_placed_as_the_engine_would() {
        let layout = layout("s3a://c/fork");
        let place = |text: &str, scope| layout.place(&object(text, scope)).unwrap().to_string();
        assert_eq!(layout.snapshot().to_string(), "s3a://c/fork/chk-7");
        assert_eq!(
            place("s3://b/job/chk-7/x", Scope::Exclusive),
            "s3a://c/fork/chk-7/x"
        );
        assert!(place("s3://b/job/shared/x", Scope::Shared).starts_with("s3a://c/fork/shared/x-"));
        assert!(
            place("s3://b/job/shared/x", Scope::Exclusive).starts_with("s3a://c/fork/chk-7/x-")
        );
        assert!(place("s3://b/dstl/x", Scope::TaskOwned).starts_with("s3a://c/fork/taskowned/x-"));
        let inside = place("s3://b/job/taskowned/job_1_tm_2/x", Scope::Exclusive);
        assert!(inside.starts_with("s3a://c/fork/taskowned/job_1_tm_2-") && inside.ends_with("/x"));
    }

    #[test]
    fn names_are_the_same_at_each_run_and_differ_between_forks_and_sources() {
        let x = object("s3://b/job/shared/x", Scope::Shared);
        let y = object("s3://b/other/shared/x", Scope::Shared);
        let name = |root: &str, object| layout(root).place(object).unwrap().name().to_string();
        assert_eq!(name("s3://c/f", &x), name("s3://c/f", &x));
        assert_ne!(name("s3://c/f", &x), name("s3://c/f", &y));
        assert_ne!(name("s3://c/f", &x), name("s3://c/g", &x));
    }

    #[test]
    fn a_folder_that_holds_the_snapshot_is_refused() {
        let id = ForkId::new(&at("s3://b/job/chk-7/_metadata"), &[1; 32], &at("s3://c"));
        let folders = [Folder {
            location: at("s3://b/job"),
            scope: Scope::Shared,
        }];
        let e = Layout::new(id, &at("s3://b/job/chk-7"), 7, &at("s3://c"), &folders).unwrap_err();
        assert_eq!(e.kind(), crate::ErrorKind::Refused);
    }
}
