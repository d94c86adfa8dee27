//! Which objects must be duplicated, and why or why not: one pure decision per reference.

use serde::{Deserialize, Serialize};

use crate::snapshot::{FileRole, Handle, StateKind};

use super::mode::BackendCapability;

/// Why an object must be duplicated. If there are several reasons the first of these counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DuplicateReason {
    /// The job's first snapshot will refer to this file of a database.
    DatabaseFile,
    /// The job's first snapshot will refer to this part of a changelog's base.
    ChangelogBase,
    /// The job's first snapshot will refer to these changes.
    Changes,
    /// The fork is made while no job runs, so it needs everything.
    Fork,
}

impl DuplicateReason {
    /// The reason as a fragment for people.
    pub fn as_str(self) -> &'static str {
        match self {
            DuplicateReason::DatabaseFile => "the first snapshot refers to this database file",
            DuplicateReason::ChangelogBase => "the first snapshot refers to this changelog's base",
            DuplicateReason::Changes => "the first snapshot refers to these changes",
            DuplicateReason::Fork => "a fork needs everything",
        }
    }
}

/// Why an object need not be duplicated. If there are several reasons the first of these counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SkipReason {
    /// After a rescale the databases are built anew, and so are their files (RocksDB reuses none).
    RebuiltAfterRescale,
    /// The backend writes all keyed state anew at its first snapshot.
    FirstSnapshotIsFull,
    /// Each snapshot of a database writes its own version of this file.
    PrivateToEachSnapshot,
    /// The changes are applied at the restore, and no changelog goes on.
    ChangesAreApplied,
    /// Keyed state in one stream is written anew with each snapshot.
    FullStateIsWrittenAnew,
    /// State without keys is written anew with each snapshot.
    OperatorStateIsWrittenAnew,
    /// Records in flight are processed after the restore.
    RecordsAreProcessed,
    /// No subtask gets anything of it.
    NobodyGetsIt,
}

impl SkipReason {
    /// The reason as a fragment for people.
    pub fn as_str(self) -> &'static str {
        match self {
            SkipReason::RebuiltAfterRescale => "databases are built anew after a rescale",
            SkipReason::FirstSnapshotIsFull => "the first snapshot writes all keyed state",
            SkipReason::PrivateToEachSnapshot => "each snapshot writes its own version of it",
            SkipReason::ChangesAreApplied => "the changes are applied at the restore",
            SkipReason::FullStateIsWrittenAnew => "each snapshot writes this state in full",
            SkipReason::OperatorStateIsWrittenAnew => "each snapshot writes operator state anew",
            SkipReason::RecordsAreProcessed => "records in flight are processed after the restore",
            SkipReason::NobodyGetsIt => "no subtask gets anything of it",
        }
    }
}

/// Whether the first snapshot of a live job refers to an object, seen from one reference: by its
/// handle and role, whether the parallelism changes, and what the backend can do.
///
/// # Errors
///
/// The reason why not.
pub(super) fn need(
    handle: &Handle,
    role: FileRole,
    rescaled: bool,
    backend: BackendCapability,
) -> Result<DuplicateReason, SkipReason> {
    match handle.kind {
        StateKind::Operator => return Err(SkipReason::OperatorStateIsWrittenAnew),
        StateKind::InputChannel | StateKind::OutputChannel => {
            return Err(SkipReason::RecordsAreProcessed);
        }
        StateKind::KeyedIncremental | StateKind::KeyedFull | StateKind::Changes => {}
    }
    if handle.raw {
        return Err(SkipReason::FullStateIsWrittenAnew);
    }
    match backend {
        BackendCapability::CannotBeIndependent | BackendCapability::WritesEverything => {
            return Err(SkipReason::FirstSnapshotIsFull);
        }
        BackendCapability::ReusesAlways if handle.in_changelog => {
            // A changelog refers to its base as it is until the next one is made.
            return Ok(match handle.kind {
                StateKind::Changes => DuplicateReason::Changes,
                _ => DuplicateReason::ChangelogBase,
            });
        }
        BackendCapability::ReusesAtSameParallelism | BackendCapability::ReusesAlways => {}
    }
    match (handle.kind, role) {
        (StateKind::Changes, _) => Err(SkipReason::ChangesAreApplied),
        (StateKind::KeyedIncremental, FileRole::DatabaseShared) => {
            if rescaled && backend == BackendCapability::ReusesAtSameParallelism {
                Err(SkipReason::RebuiltAfterRescale)
            } else {
                Ok(DuplicateReason::DatabaseFile)
            }
        }
        (StateKind::KeyedIncremental, _) => Err(SkipReason::PrivateToEachSnapshot),
        _ => Err(SkipReason::FullStateIsWrittenAnew),
    }
}
