//! The small JSON objects below `.forkpoint/` beside snapshots: pins, claims, restores, marks. Their
//! names, their fields, how they are read. `README.md` in this folder describes them for other tools.
//!
//! Records are created and removed, never changed, so that create-if-absent is all that two writers
//! need. Each has a random `nonce`: no two writers ever write equal bytes, hence a store that cannot
//! tell a repeated request from a second writer decides for one of them.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};
use crate::snapshot::RestoreMode;
use crate::store::{Location, OWN_FOLDER, shell_word};

use super::access::Access;

/// The newest version of every record that is written and read.
pub(crate) const RECORD_VERSION: u32 = 1;
/// Largest record that is read, in bytes.
pub(crate) const RECORD_LIMIT_BYTES: u64 = 1024 * 1024;

/// A named reason to keep a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// 1.
    pub version: u32,
    /// Random.
    pub nonce: String,
    /// The name: letters, digits, `.`, `_`, `-`. One pin of a name per snapshot.
    pub name: String,
    /// Who wants it kept.
    pub owner: String,
    /// Why.
    pub reason: String,
    /// When it was written, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// From when on it counts no more, in milliseconds since 1970; never, if it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_ms: Option<u64>,
    /// The fork that reads the snapshot, if it is one's pin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<PinningFork>,
    /// The snapshot is yet to come, and may refer to anything in the folder of its job: until it is there,
    /// nothing there is an orphan.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub announces: bool,
}

impl Pin {
    /// A pin that was listed and has been removed before it could be read. What it has kept may be used by what
    /// came after the listing, so that it counts once more.
    pub(crate) fn vanished(at: &Location, now: u64) -> Pin {
        Pin {
            version: RECORD_VERSION,
            nonce: String::new(),
            name: at.name().trim_end_matches(".json").to_string(),
            owner: "somebody".into(),
            reason: "it was removed while this was looked at; look again".into(),
            created_unix_ms: now,
            expires_unix_ms: None,
            fork: None,
            announces: true,
        }
    }

    /// True while it counts.
    pub(crate) fn is_active(&self, now: u64) -> bool {
        self.expires_unix_ms.is_none_or(|end| end > now)
    }
}

/// Which fork holds a pin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinningFork {
    /// Its id.
    pub fork_id: String,
    /// Its root.
    pub destination: Location,
    /// The plan that its workers go by, if there is one and its place is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Location>,
}

/// A job has taken a snapshot over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// 1.
    pub version: u32,
    /// Random.
    pub nonce: String,
    /// The job that took it over: the location of its folder, the path of that below the root, its last part,
    /// or any name.
    pub job: String,
    /// When it was written, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// The snapshot that was claimed, where this one was claimed with it as an older sibling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<String>,
}

/// A job was started from a snapshot without taking it over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restore {
    /// 1.
    pub version: u32,
    /// Random.
    pub nonce: String,
    /// The job that was started, named as in [`Claim::job`].
    pub job: String,
    /// `no-claim`: it needs the snapshot until a checkpoint of it stands alone. `legacy`: perhaps forever.
    pub mode: RestoreMode,
    /// When it was written, in milliseconds since 1970.
    pub created_unix_ms: u64,
}

/// A cleaner is about to delete snapshots or orphans of one job. Nobody may begin to use them, and no
/// fork may begin to write there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// 1.
    pub version: u32,
    /// Random.
    pub nonce: String,
    /// The id of the plan.
    pub plan: String,
    /// When it was written, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// The cleaner begins no deletion from then on, in milliseconds since 1970.
    pub until_unix_ms: u64,
    /// The names of the snapshots' folders.
    pub snapshots: Vec<String>,
    /// Objects that no snapshot refers to go too.
    pub orphans: bool,
    /// The fork that is given up, where it is one and not a cleaner that has left the mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<MarkedFork>,
}

/// What is said of a fork of which there is such a mark.
pub(crate) const BEING_GIVEN_UP: &str =
    "being given up: a `forkpoint abandon` is at work, or was stopped before its end";

/// Which fork is given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkedFork {
    /// Its id.
    pub fork_id: String,
    /// The folder of the snapshot that was to be forked.
    pub source: Location,
    /// Its root.
    pub destination: Location,
}

impl MarkedFork {
    /// The error of whoever meets its mark, which is `at`.
    pub(crate) fn given_up(&self, at: &Location) -> Error {
        Error::refused(format!("fork {} to here is {BEING_GIVEN_UP}", self.fork_id)).hint(format!(
            "{}; after that the place is free for a fork again",
            self.way_on(at, None)
        ))
    }

    /// How it is given up to its end, of which the mark `at` was found.
    pub(crate) fn way_on(&self, at: &Location, plan: Option<&Location>) -> String {
        let (source, destination) = (shell_word(&self.source), shell_word(&self.destination));
        let lost = match plan {
            Some(_) => String::new(),
            None => format!(
                "; if the plan is lost, `forkpoint plan {source} {destination} --workers 1 --out PLAN` makes one"
            ),
        };
        let plan = plan.map_or_else(|| "PLAN".to_string(), shell_word);
        format!(
            "wait until it has ended; if it was stopped, `forkpoint abandon {plan} --apply` (with --never-used, if it was run so) \
             goes on with it and removes its mark ({at}) last{lost}"
        )
    }
}

impl Mark {
    /// True while a deletion of its cleaner may be under way.
    pub fn is_active(&self, now: u64) -> bool {
        now < self.until_unix_ms.saturating_add(MARK_MARGIN_MS)
    }
}

/// How long after [`Mark::until_unix_ms`] a deletion that was begun before may still be under way, and how
/// far two clocks may be apart: 15 minutes.
pub const MARK_MARGIN_MS: u64 = 15 * 60_000;

/// What a record is, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RecordName {
    /// A pin of the snapshot in this folder.
    Pin(Location),
    /// The claim of the snapshot in this folder.
    Claim(Location),
    /// A restore from the snapshot in this folder.
    Restore(Location),
    /// A mark for snapshots in this folder of a job.
    Mark(Location),
    /// The note of a fork to the snapshot in this folder.
    ForkNote(Location),
    /// A ledger entry, a journal of a fork: nothing that decides what is kept.
    Other,
}

impl RecordName {
    pub(crate) fn of(at: &Location) -> RecordName {
        let key = at.key();
        let mark = format!("/{OWN_FOLDER}/");
        let own = match key.strip_prefix(mark.trim_start_matches('/')) {
            Some(below) => Some((at.with_key(""), below)),
            None => key.rfind(&mark).and_then(|found| {
                Some((
                    at.with_key(key.get(..found)?),
                    key.get(found + mark.len()..)?,
                ))
            }),
        };
        let Some((home, below)) = own else {
            return RecordName::Other;
        };
        let Some(stem) = below.strip_suffix(".json") else {
            return RecordName::Other;
        };
        match stem.split('/').collect::<Vec<_>>()[..] {
            ["pins", snapshot, _] => RecordName::Pin(home.child(snapshot)),
            ["claims", snapshot] => RecordName::Claim(home.child(snapshot)),
            ["restores", snapshot, _] => RecordName::Restore(home.child(snapshot)),
            ["going", _] => RecordName::Mark(home),
            [snapshot] => RecordName::ForkNote(home.child(snapshot)),
            _ => RecordName::Other,
        }
    }
}

/// The folder of records for the snapshots beside `snapshot`.
pub(crate) fn own_folder(snapshot: &Location) -> Result<Location> {
    match snapshot.parent() {
        Some(home) => Ok(home.child(OWN_FOLDER)),
        None => Err(Error::invalid("the root of a bucket is no folder of a snapshot").at(snapshot)),
    }
}

pub(crate) fn pin_at(snapshot: &Location, name: &str) -> Result<Location> {
    Ok(own_folder(snapshot)?.child(&format!("pins/{}/{name}.json", snapshot.name())))
}

pub(crate) fn claim_at(snapshot: &Location) -> Result<Location> {
    Ok(own_folder(snapshot)?.child(&format!("claims/{}.json", snapshot.name())))
}

pub(crate) fn restore_at(snapshot: &Location, job: &str) -> Result<Location> {
    let name = file_name(job);
    Ok(own_folder(snapshot)?.child(&format!("restores/{}/{name}.json", snapshot.name())))
}

/// Where marks for snapshots in the folder `home` of a job are.
pub(crate) fn marks_in(home: &Location) -> Location {
    home.child(&format!("{OWN_FOLDER}/going"))
}

pub(crate) fn ledger_at(root: &Location, plan: &str) -> Location {
    root.child(&format!("{OWN_FOLDER}/clean/{plan}.json"))
}

/// A file name for any text: what can stand in one, and a digest of the whole.
fn file_name(text: &str) -> String {
    let plain: String = text
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || ".-_".contains(c) {
                c
            } else {
                '_'
            }
        })
        .take(64)
        .collect();
    let digest: String = Sha256::digest(text.as_bytes())
        .iter()
        .take(4)
        .map(|b| format!("{b:02x}"))
        .collect();
    format!("{plain}-{digest}")
}

/// Refuses a name that could not be a file's everywhere.
///
/// # Errors
///
/// `Invalid`.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let well_formed = !name.is_empty()
        && name.len() <= 100
        && name.chars().all(allowed)
        && !name.starts_with('.');
    match well_formed {
        true => Ok(()),
        false => Err(
            Error::invalid(format!("`{name}` cannot be the name of a pin"))
                .hint("use letters, digits, `.`, `_` and `-`, at most 100"),
        ),
    }
}

pub(crate) fn nonce(access: &dyn Access) -> String {
    format!("{:016x}", access.random())
}

/// The bytes of a record.
pub(crate) fn encode(record: &impl Serialize) -> Result<Bytes> {
    let mut text = serde_json::to_vec_pretty(record)
        .map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
    text.push(b'\n');
    Ok(Bytes::from(text))
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Reads a record; a newer version is refused, since it may mean more than is understood.
///
/// # Errors
///
/// `Corrupt` for bytes that are none, `Unsupported` for a newer version.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8], at: &Location) -> Result<T> {
    let corrupt = |e: serde_json::Error| {
        Error::corrupt(format!(
            "this is no pin, claim or note as forkpoint writes them: {e}"
        ))
        .at(at)
    };
    let Versioned { version } = serde_json::from_slice(bytes).map_err(corrupt)?;
    if version > RECORD_VERSION {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("version {version}, newer than {RECORD_VERSION}, which this forkpoint knows"),
        )
        .at(at));
    }
    serde_json::from_slice(bytes).map_err(corrupt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_told_apart_by_their_names() {
        let snapshot = Location::parse("s3://b/ckpt/job/chk-42").unwrap();
        let name = |at: Result<Location>| RecordName::of(&at.unwrap());
        assert_eq!(
            name(pin_at(&snapshot, "audit")),
            RecordName::Pin(snapshot.clone())
        );
        assert_eq!(
            name(claim_at(&snapshot)),
            RecordName::Claim(snapshot.clone())
        );
        assert_eq!(
            name(restore_at(&snapshot, "a/b c")),
            RecordName::Restore(snapshot.clone())
        );
        assert_eq!(
            name(
                snapshot
                    .parent()
                    .map(|home| marks_in(&home).child("p.json"))
                    .ok_or(Error::invalid(""))
            ),
            RecordName::Mark(snapshot.parent().unwrap())
        );
        let note = own_folder(&snapshot).map(|f| f.child("chk-42.json"));
        assert_eq!(name(note), RecordName::ForkNote(snapshot.clone()));
        let root = snapshot.parent().unwrap();
        assert_eq!(RecordName::of(&ledger_at(&root, "p")), RecordName::Other);
        let top = Location::parse("s3://b/chk-1").unwrap();
        assert_eq!(name(claim_at(&top)), RecordName::Claim(top));
    }

    #[test]
    fn a_newer_record_is_refused_and_a_damaged_one_too() {
        let at = Location::parse("s3://b/x.json").unwrap();
        let kind = |text: &str| decode::<Mark>(text.as_bytes(), &at).unwrap_err().kind();
        assert_eq!(
            kind("{\"version\": 2, \"plan\": 5}"),
            ErrorKind::Unsupported
        );
        assert_eq!(kind("{\"version\": 1}"), ErrorKind::Corrupt);
        assert_eq!(kind("no"), ErrorKind::Corrupt);
    }

    #[test]
    fn names_of_jobs_become_names_of_files() {
        assert_ne!(file_name("a/b"), file_name("a_b"));
        assert!(check_name("audit-2026").is_ok());
        for bad in ["", "a/b", ".x", "a b"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
