//! Trust: does what a snapshot refers to exist, and is it as long as it should be? And is every byte of it what it
//! was?

mod content;

use std::collections::HashMap;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::progress::Progress;
use crate::snapshot::{CommitObject, DeclaredSize, Object, Snapshot};
use crate::store::{Location, Stat, Stores};

pub use content::{Compared, ReadSnapshot, verify_against, verify_content};

/// What is wrong with one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The object.
    pub location: Location,
    /// What is wrong, as a fragment for people.
    pub problem: String,
    /// True if the object is not there at all.
    pub missing: bool,
    /// True if a relative reference of the metadata leads to it.
    pub relative: bool,
}

/// What a check of one snapshot found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyReport {
    /// The snapshot's folder.
    pub snapshot: Location,
    /// Objects referred to, each once.
    pub objects: u64,
    /// Bytes of those that are there.
    pub bytes: u64,
    /// What is wrong; empty for a sound snapshot.
    pub problems: Vec<Problem>,
    /// What the contents of its objects were compared with.
    pub compared: Compared,
}

/// Checks that every object of the snapshot at `at` is there with the size that the metadata
/// says. One listing request per 1,000 objects of a folder, or one look per object. A byte that has changed within
/// an object is not seen: [`verify_content`] reads them.
///
/// Damaged metadata is a finding, not an error.
///
/// # Errors
///
/// `NotFound` if there is no snapshot; `Incomplete` if objects could not be looked at.
pub async fn verify(
    stores: &Stores,
    at: &Location,
    progress: &dyn Progress,
) -> Result<VerifyReport> {
    let commit = CommitObject::read(stores, at).await?;
    verify_commit(stores, &commit, progress).await
}

async fn verify_commit(
    stores: &Stores,
    commit: &CommitObject,
    progress: &dyn Progress,
) -> Result<VerifyReport> {
    let snapshot = match commit.snapshot() {
        Ok(snapshot) => snapshot,
        Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Invalid) => {
            return Ok(VerifyReport {
                snapshot: commit.directory.clone(),
                objects: 0,
                bytes: 0,
                problems: vec![Problem {
                    location: commit.location.clone(),
                    problem: e.message().to_string(),
                    missing: false,
                    relative: false,
                }],
                compared: Compared::Nothing,
            });
        }
        Err(e) => return Err(e),
    };
    check(stores, &snapshot, progress).await
}

/// As [`verify`], for a snapshot that was read already.
///
/// # Errors
///
/// `Incomplete` if objects could not be looked at.
pub async fn check(
    stores: &Stores,
    snapshot: &Snapshot,
    progress: &dyn Progress,
) -> Result<VerifyReport> {
    let stats = look_at_objects(stores, snapshot, progress)
        .await
        .map_err(incomplete)?;
    Ok(VerifyReport {
        snapshot: snapshot.directory.clone(),
        objects: snapshot.objects.len() as u64,
        bytes: stats.values().flatten().map(|s| s.size).sum(),
        problems: find_problems(snapshot, &stats),
        compared: Compared::Nothing,
    })
}

/// What could not be looked at is no finding.
fn incomplete(e: Error) -> Error {
    match e.kind() {
        ErrorKind::Denied | ErrorKind::Unavailable | ErrorKind::Unsupported => {
            e.with_kind(ErrorKind::Incomplete)
        }
        _ => e,
    }
}

/// What the stores say of each object of `snapshot`.
///
/// # Errors
///
/// Those of [`Stores::stat_all`].
pub async fn look_at_objects(
    stores: &Stores,
    snapshot: &Snapshot,
    progress: &dyn Progress,
) -> Result<HashMap<Location, Option<Stat>>> {
    let wanted: Vec<Location> = snapshot
        .objects
        .iter()
        .map(|o| o.location.clone())
        .collect();
    progress.begin("looking at objects", wanted.len() as u64, 0);
    let stats = stores.stat_all(&wanted).await;
    progress.end();
    stats
}

/// Compares what the metadata says with what the stores say. Pure.
pub fn find_problems(snapshot: &Snapshot, stats: &HashMap<Location, Option<Stat>>) -> Vec<Problem> {
    snapshot
        .objects
        .iter()
        .filter_map(|object| {
            let stat = stats.get(&object.location)?;
            let problem = match stat {
                None => Some(missing_text(snapshot, object)),
                Some(stat) => size_problem(object.size, stat.size),
            }?;
            Some(Problem {
                location: object.location.clone(),
                problem,
                missing: stat.is_none(),
                relative: object.relative.is_some(),
            })
        })
        .collect()
}

fn size_problem(declared: DeclaredSize, size: u64) -> Option<String> {
    if declared.allows(size) {
        return None;
    }
    let n = declared.bytes()?;
    let what = if size < n { "too short" } else { "wrong size" };
    Some(format!("{what}: {size} bytes where the metadata says {n}"))
}

fn missing_text(snapshot: &Snapshot, object: &Object) -> String {
    let operator = snapshot
        .operators
        .get(object.holder.operator)
        .map_or("unknown", |o| o.operator_id.as_str());
    let holder = match object.holder.subtask {
        Some(subtask) => format!("subtask {subtask} of operator {operator}"),
        None => format!("the coordinator of operator {operator}"),
    };
    match &object.relative {
        Some(relative) => format!(
            "missing: the relative reference `{relative}` of {holder} does not resolve; Flink before the fix \
             of FLINK-39964 wrote such references after claiming a native savepoint, whose folder then has the file"
        ),
        None => format!("missing: needed by {holder}"),
    }
}

/// How many of many findings a message names.
const NAMED_AT_MOST: usize = 3;

/// The findings as an error, without a next step.
pub(crate) fn damage(snapshot: &Snapshot, problems: &[Problem]) -> Error {
    let named: Vec<String> = problems
        .iter()
        .take(NAMED_AT_MOST)
        .map(|p| format!("{}: {}", p.location, p.problem))
        .collect();
    let more = match problems.len().saturating_sub(NAMED_AT_MOST) {
        0 => String::new(),
        n => format!("; and {n} more"),
    };
    Error::corrupt(format!(
        "{} of {} objects are not as the metadata says: {}{more}",
        problems.len(),
        snapshot.objects.len(),
        named.join("; ")
    ))
    .at(&snapshot.directory)
}

/// The findings as an error, with the next step of somebody at the command line.
pub fn damage_error(snapshot: &Snapshot, problems: &[Problem]) -> Error {
    let error = damage(snapshot, problems);
    if problems.iter().any(|p| p.missing && p.relative) {
        error.hint(
            "if you know the savepoint that holds the files, name it with --look-in SAVEPOINT",
        )
    } else if problems.iter().any(|p| p.missing) {
        error.hint(
            "if another tool copied the snapshot here, name its old place with --moved-from OLD_PREFIX",
        )
    } else {
        error
    }
}
