//! What a key below a root is, by its name: pure. Only what engines name so may ever be called an
//! orphan; everything else is a stranger, and stays.

use crate::snapshot::format_of;
use crate::store::{Location, OWN_FOLDER, Provider};

use super::names::is_odd;

/// What a key is by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The commit object of the snapshot in this folder.
    Commit(Location),
    /// Something below the folder of a checkpoint, `chk-N`.
    OfCheckpoint {
        /// The folder of the job.
        home: Location,
        /// The folder of the checkpoint.
        folder: Location,
        /// Its number.
        number: i64,
        /// Named as the engine names files.
        named: bool,
    },
    /// Below `shared/`.
    Shared {
        /// The folder of the job.
        home: Location,
        /// Named as the engine names files.
        named: bool,
    },
    /// Below `taskowned/`, or `dstl/` of a changelog.
    TaskOwned {
        /// The folder of the job.
        home: Location,
        /// Named as the engine names files.
        named: bool,
    },
    /// One of this crate's own small objects.
    Record,
    /// An empty object that some tools make to mark a folder.
    Marker,
    /// Below a folder that has the name of a commit object. What this is nobody can say: a snapshot whose
    /// commit object is damaged, or was unpacked by some tool.
    BelowCommit(Location),
    /// A commit object, a record, or what lies below one, under a name that no engine's path leads to, or among the
    /// records of this crate: what it refers to cannot be followed, and may be anything.
    Odd,
    /// Anything else.
    Stranger,
}

impl Place {
    /// What the object at `at`, of `size` bytes, is below `root`.
    pub fn of(root: &Location, at: &Location, size: u64) -> Place {
        let key = at.key();
        if size == 0 && key.ends_with('/') && format_of(at.name()).is_some() {
            return Place::BelowCommit(at.clone());
        }
        if size == 0 && (key.ends_with('/') || key.is_empty()) {
            return Place::Marker;
        }
        let Some(below) = root.strip(at) else {
            return Place::Stranger;
        };
        let mut parts = below.split(['/', '\\']);
        let is_own = parts.clone().any(|part| part == OWN_FOLDER);
        let of_snapshot = parts.any(|part| format_of(part).is_some());
        match (is_odd(key), is_own) {
            (true, _) if is_own || of_snapshot => return Place::Odd,
            (true, _) => return Place::Stranger,
            (false, true) if of_snapshot => return Place::Odd,
            (false, true) => return Place::Record,
            (false, false) => {}
        }
        if format_of(at.name()).is_some() {
            return at.parent().map_or(Place::Stranger, Place::Commit);
        }
        if let Some(folder) = commit_folder(root, key, below) {
            return Place::BelowCommit(folder);
        }
        let named = engine_name(at.name());
        let mut end = key.len() - below.len();
        for part in below.split('/') {
            let home = || root.with_key(key.get(..end).unwrap_or_default().trim_end_matches('/'));
            let is_last = end + part.len() == key.len();
            match part {
                _ if is_last => break,
                "shared" => {
                    return Place::Shared {
                        home: home(),
                        named,
                    };
                }
                "taskowned" | "dstl" => {
                    return Place::TaskOwned {
                        home: home(),
                        named,
                    };
                }
                _ => {}
            }
            if let Some(number) = checkpoint_number(part) {
                let folder = root.with_key(key.get(..end + part.len()).unwrap_or_default());
                return Place::OfCheckpoint {
                    home: home(),
                    folder,
                    number,
                    named,
                };
            }
            end += part.len() + 1;
        }
        Place::Stranger
    }

    /// Every folder on the way to `at`, below `root` or that itself, that may be that of the job whose file it is,
    /// the outermost first. Several where a job, or the root of a fork, lies below a folder that is called `shared`
    /// or as that of a checkpoint is.
    pub(crate) fn homes(root: &Location, at: &Location) -> Vec<Location> {
        let (key, Some(below)) = (at.key(), root.strip(at)) else {
            return Vec::new();
        };
        let mut homes = Vec::new();
        let mut end = key.len() - below.len();
        for part in below.split('/') {
            let is_last = end + part.len() == key.len();
            let is_of_job = matches!(part, "shared" | "taskowned" | "dstl");
            if !is_last && (is_of_job || checkpoint_number(part).is_some()) {
                let home = key.get(..end).unwrap_or_default();
                homes.push(root.with_key(home.trim_end_matches('/')));
            }
            end += part.len() + 1;
        }
        homes
    }

    /// True for a name that engines give to files: it begins with a UUID.
    pub(crate) fn is_engine_name(name: &str) -> bool {
        engine_name(name)
    }

    /// The folder of the job that this belongs to, where the name tells.
    pub fn home(&self) -> Option<&Location> {
        match self {
            Place::OfCheckpoint { home, .. }
            | Place::Shared { home, .. }
            | Place::TaskOwned { home, .. } => Some(home),
            _ => None,
        }
    }
}

/// The innermost folder on the way to `key` that has the name of a commit object. Asked of every object of a
/// listing: it makes nothing where there is none.
fn commit_folder(root: &Location, key: &str, below: &str) -> Option<Location> {
    let mut end = key.len() - below.len();
    let mut found = format_of(root.name()).map(|_| root.clone());
    for part in below.split('/') {
        end += part.len();
        if end < key.len() && format_of(part).is_some() {
            found = Some(root.with_key(key.get(..end).unwrap_or_default()));
        }
        end += 1;
    }
    found
}

/// The number in `chk-42`, and in the folder of a native savepoint, `savepoint-42-` and 32 hex digits.
pub(crate) fn checkpoint_number(folder: &str) -> Option<i64> {
    let digits = match folder.strip_prefix("savepoint-") {
        Some(rest) => rest.split_once('-').filter(|(_, id)| is_job_id(id))?.0,
        None => folder.strip_prefix("chk-")?,
    };
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    (plain && !digits.is_empty())
        .then(|| digits.parse().ok())
        .flatten()
}

/// True for a name that begins with a UUID, as all files of Flink do; forks add a suffix to it.
fn engine_name(name: &str) -> bool {
    let Some(uuid) = name.as_bytes().get(..36) else {
        return false;
    };
    let well_formed = uuid.iter().enumerate().all(|(at, b)| match at {
        8 | 13 | 18 | 23 => *b == b'-',
        _ => b.is_ascii_hexdigit(),
    });
    well_formed && name.as_bytes().get(36).is_none_or(|b| *b == b'-')
}

/// True for the folder of a savepoint as Flink names it: `savepoint-`, six hex digits of the job, `-`, twelve.
fn is_savepoint(folder: &str) -> bool {
    let hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit())
    };
    folder
        .strip_prefix("savepoint-")
        .and_then(|rest| rest.split_once('-'))
        .is_some_and(|(job, id)| hex(job, 6) && hex(id, 12))
}

/// The topmost folder on the way to `at`, itself included, that has the name of a snapshot's folder, or of the one
/// in which this crate keeps its records: whatever lies in it goes with the snapshot, or is taken for a part of it.
pub(crate) fn inside_of_snapshot(at: &Location) -> Option<Location> {
    let is_taken = |folder: &Location| {
        let name = folder.name();
        name == OWN_FOLDER || checkpoint_number(name).is_some() || is_savepoint(name)
    };
    std::iter::successors(Some(at.clone()), Location::parent)
        .filter(is_taken)
        .last()
}

/// True for the name of a job's folder: 32 hex digits.
pub(crate) fn is_job_id(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The folder from which all of a job's siblings are seen: `at` itself, or the one above the
/// topmost folder on its path that is named by a job id.
///
/// One job's files may be needed by its sibling's snapshots, so a look at one job's folder alone
/// proves nothing.
pub fn common_root(at: &Location) -> Location {
    std::iter::successors(Some(at.clone()), Location::parent)
        .filter(|folder| is_job_id(folder.name()))
        .last()
        .and_then(|job| job.parent())
        .unwrap_or_else(|| at.clone())
}

/// The root from which all that may use a snapshot or an object is seen, as far as its name tells: the
/// folder above that of its job.
pub fn root_of(at: &Location) -> Location {
    let is_own = |folder: &Location| {
        let name = folder.name();
        matches!(name, "shared" | "taskowned" | "dstl")
            || checkpoint_number(name).is_some()
            || name.starts_with("savepoint-")
    };
    let topmost = std::iter::successors(Some(at.clone()), Location::parent)
        .filter(is_own)
        .last();
    let inside = topmost.as_ref().unwrap_or(at);
    common_root(&inside.parent().unwrap_or_else(|| inside.clone()))
}

/// The folder above [`root_of`] what lies in no folder named by a job id, as savepoints and forks mostly do not: jobs
/// that were started from it often lie beside its folder. `None` for anything else, and where that is a whole bucket,
/// or a folder in the root of a local disk.
pub fn wider_root_of(at: &Location) -> Option<Location> {
    let root = root_of(at);
    let inside = root.strip(at)?;
    if inside.is_empty() || inside.split('/').any(is_job_id) {
        return None;
    }
    let is_too_wide = |folder: &Location| match folder.provider() {
        Provider::Local => !folder.key().trim_matches('/').contains('/'),
        _ => folder.key().is_empty(),
    };
    root.parent().filter(|above| !is_too_wide(above))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "66ad2236-2236-4937-967c-7fc63083dab4";

    #[test]
    fn keys_are_told_apart_by_their_names() {
        let root = Location::parse("s3://b/root").unwrap();
        let place = |below: &str, size| Place::of(&root, &root.child(below), size);
        let job = root.child("job");
        for below in [
            "job/shared/U",
            "job/shared/job_x_op_y_0_2/U",
            "job/shared/U-0123456789abcdef",
        ] {
            let expected = Place::Shared {
                home: job.clone(),
                named: true,
            };
            assert_eq!(place(&below.replace('U', UUID), 1), expected, "{below}");
        }
        assert_eq!(
            place("job/shared/notes.txt", 1),
            Place::Shared {
                home: job.clone(),
                named: false
            }
        );
        assert_eq!(
            place(&format!("shared/{UUID}"), 1),
            Place::Shared {
                home: root.clone(),
                named: true
            }
        );
        assert_eq!(
            place(&format!("job/chk-42/{UUID}"), 1),
            Place::OfCheckpoint {
                home: job.clone(),
                folder: job.child("chk-42"),
                number: 42,
                named: true
            }
        );
        assert_eq!(
            place("job/chk-42/_metadata", 9),
            Place::Commit(job.child("chk-42"))
        );
        assert_eq!(
            place(&format!("job/dstl/{UUID}"), 1),
            Place::TaskOwned {
                home: job,
                named: true
            }
        );
        assert_eq!(place("job/shared/", 0), Place::Marker);
        assert_eq!(place(".forkpoint/chk-7.json", 9), Place::Record);
        for below in [
            "te\tam/job/chk-5/_metadata",
            "job//chk-5/_metadata",
            "job/we\\ird/chk-5/_metadata",
            "job/./chk-5/_forkpoint.json",
            "te\u{85}am/chk-5/_metadata/part",
            "te\u{1}am/.forkpoint/pins/chk-5/x.json",
            ".forkpoint/old/chk-5/_metadata",
        ] {
            assert_eq!(place(below, 9), Place::Odd, "{below:?}");
        }
        for below in [
            "job//shared/U",
            "job/./shared/U",
            "job/shared",
            "chk-x/U",
            "other/U",
            "job/shared/a\u{7}b",
        ] {
            assert_eq!(
                place(&below.replace('U', UUID), 1),
                Place::Stranger,
                "{below}"
            );
        }
    }

    #[test]
    fn a_file_may_be_of_every_job_on_the_way_to_it() {
        let root = Location::parse("s3://b").unwrap();
        for (below, homes) in [
            ("job/shared/x", &["s3://b/job"][..]),
            ("shared/x", &["s3://b"]),
            ("job/chk-7/x", &["s3://b/job"]),
            (
                "shared/jobs/a/shared/x",
                &["s3://b", "s3://b/shared/jobs/a"],
            ),
            ("chk-1/a/taskowned/x", &["s3://b", "s3://b/chk-1/a"]),
            ("job/shared", &[]),
            ("job/x", &[]),
        ] {
            let found = Place::homes(&root, &root.join(below).unwrap());
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(
                found
                    .iter()
                    .map(|h| h.trim_end_matches('/'))
                    .collect::<Vec<_>>(),
                homes,
                "{below}"
            );
        }
    }

    #[test]
    fn what_lies_in_a_snapshot_is_known_by_the_names_above_it() {
        let inside = |text: &str| {
            let found = inside_of_snapshot(&Location::parse(text).unwrap());
            found.map(|at| at.to_string())
        };
        for (home, folder) in [
            ("s3://b/orders/chk-7", "s3://b/orders/chk-7"),
            ("s3://b/orders/chk-7/x/chk-8", "s3://b/orders/chk-7"),
            (
                "s3://b/savepoint-ca3136-0123456789ab/x",
                "s3://b/savepoint-ca3136-0123456789ab",
            ),
            (
                "s3://b/savepoint-7-0123456789abcdef0123456789abcdef",
                "s3://b/savepoint-7-0123456789abcdef0123456789abcdef",
            ),
            ("s3://b/orders/.forkpoint/x", "s3://b/orders/.forkpoint"),
        ] {
            assert_eq!(inside(home).as_deref(), Some(folder), "{home}");
        }
        for free in [
            "s3://b/orders",
            "s3://b/chk-/orders",
            "s3://b/chk-7a/orders",
            "s3://b/savepoint-service/orders",
            "s3://b/shared/orders",
        ] {
            assert_eq!(inside(free), None, "{free}");
        }
    }

    #[test]
    fn one_job_is_looked_at_with_its_siblings() {
        let at = |text: &str| Location::parse(text).unwrap();
        let job = "0123456789abcdef0123456789abcdef";
        let common = |text: String| common_root(&at(&text)).to_string();
        assert_eq!(common(format!("s3://b/ckpt/{job}/chk-4")), "s3://b/ckpt");
        assert_eq!(common(format!("s3://b/ckpt/{job}")), "s3://b/ckpt");
        assert_eq!(common(format!("s3://b/{job}/x/{job}")), "s3://b");
        assert_eq!(common("s3://b/forks/chk-4".into()), "s3://b/forks/chk-4");
        let root = |text: String| root_of(&at(&text)).to_string();
        let wider = |text: &str| wider_root_of(&at(text)).map(|at| at.to_string());
        let savepoint = "savepoint-aba03a-0123456789ab";
        assert_eq!(
            wider(&format!("s3://b/x/savepoints/{savepoint}")),
            Some("s3://b/x".to_string())
        );
        for fork in ["chk-4", "shared/x", "chk-4/x"] {
            let text = format!("s3://b/x/fork/{fork}");
            assert_eq!(wider(&text), Some("s3://b/x".to_string()), "{text}");
        }
        assert_eq!(wider("/a/b/fork/chk-4"), Some("file:/a/b".to_string()));
        let job = "0".repeat(32);
        for text in [
            format!("s3://b/savepoints/{savepoint}"),
            format!("s3://b/x/{job}/{savepoint}"),
            format!("s3://b/x/{job}/chk-4"),
            format!("s3://b/x/{job}/shared/x"),
            format!("s3://b/x/{job}/fork/chk-4"),
            "s3://b/fork/chk-4".to_string(),
            "/tmp/fork/chk-4".to_string(),
        ] {
            assert_eq!(wider(&text), None, "{text}");
        }
        assert_eq!(root("s3://b/forks/chk-4".into()), "s3://b/forks");
        assert_eq!(
            root(format!("s3://b/forks/shared/job_a_op_b_0_1/{UUID}")),
            "s3://b/forks"
        );
        assert_eq!(
            root(format!("s3://b/ckpt/{job}/shared/{UUID}")),
            "s3://b/ckpt"
        );
        assert_eq!(root("s3://b/chk-4".into()), "s3://b");
    }
}
