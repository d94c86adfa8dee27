//! What is not known: each missing piece is named, says what it keeps from being decided, and how to
//! supply it.

use std::fmt;

use serde::Serialize;

use crate::error::{Error, ErrorKind};
use crate::store::Location;

/// A piece of evidence that could not be had. While there is one, nothing is called deletable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MissingEvidence {
    /// What it is about.
    pub location: Location,
    /// Which kind of evidence.
    pub reason: MissingReason,
    /// What happened, as a fragment for people.
    pub detail: String,
}

/// Why a piece of evidence is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MissingReason {
    /// The listing of a root failed or ended early.
    IncompleteListing,
    /// There is nothing below a root: a mistyped name looks the same.
    NothingThere,
    /// A commit object cannot be read or is damaged.
    UnreadableMetadata,
    /// A commit object is of a newer version or has a handle that is not known.
    UnknownFormat,
    /// A pin, claim or mark cannot be read.
    UnreadableRecord,
    /// A fork into this place is under way, or was left half done.
    ForkUnderWay,
    /// A snapshot refers to objects that no root that was looked at holds.
    ReferenceLeavesRoots,
    /// A snapshot went or came while it was looked at: what was listed no longer holds.
    ChangedMeanwhile,
}

impl MissingReason {
    /// The next step for the person who reads it.
    pub fn next_step(self) -> &'static str {
        match self {
            MissingReason::IncompleteListing => {
                "repeat it; if it fails again, see to what it names: a right, a credential, a link"
            }
            MissingReason::NothingThere => "check the name of the root",
            MissingReason::UnreadableMetadata => {
                "check it with `forkpoint verify`; if the snapshot is lost for good, remove its `_metadata` or `_forkpoint.json` by hand, \
                 which says that nobody restores from it"
            }
            MissingReason::UnknownFormat => "use a newer forkpoint",
            MissingReason::UnreadableRecord => {
                "use a newer forkpoint, or look at the object and remove it if nobody needs it"
            }
            MissingReason::ForkUnderWay => {
                "wait for it, or finish it: the same `forkpoint fork` again, or `run` and `commit` of its plan; \
                 `forkpoint abandon PLAN` gives a planned fork up, and for one that nobody will finish remove this note"
            }
            MissingReason::ReferenceLeavesRoots => {
                "name the root that holds these objects with --also; if another tool has moved the snapshot here, \
                 make it stand alone with `forkpoint fork --moved-from` first"
            }
            MissingReason::ChangedMeanwhile => "repeat it",
        }
    }
}

impl MissingEvidence {
    /// The evidence that an error kept from being had.
    pub(crate) fn of_error(
        location: &Location,
        reason: MissingReason,
        e: &Error,
    ) -> MissingEvidence {
        let reason = match e.kind() {
            ErrorKind::Unsupported if reason == MissingReason::UnreadableMetadata => {
                MissingReason::UnknownFormat
            }
            _ => reason,
        };
        MissingEvidence {
            location: location.clone(),
            reason,
            detail: e.message().to_string(),
        }
    }
}

impl fmt::Display for MissingEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.reason {
            MissingReason::IncompleteListing => "the listing is incomplete",
            MissingReason::NothingThere => "nothing lies here",
            MissingReason::UnreadableMetadata => "the metadata cannot be read",
            MissingReason::UnknownFormat => "the metadata is not understood",
            MissingReason::UnreadableRecord => "the record cannot be read",
            MissingReason::ForkUnderWay => "a fork is under way or was left half done",
            MissingReason::ReferenceLeavesRoots => "references leave the roots that were looked at",
            MissingReason::ChangedMeanwhile => "it changed while it was looked at",
        };
        write!(f, "{}: {what}", self.location)?;
        match self.detail.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", self.detail),
        }
    }
}

/// The error for a decision that a missing piece of evidence keeps from being made.
pub(crate) fn incomplete_error(missing: &[MissingEvidence]) -> Error {
    let first = missing.first();
    let more = match missing.len() {
        0 | 1 => String::new(),
        n => format!("; and {} more", n - 1),
    };
    let text = first.map_or_else(String::new, ToString::to_string);
    let error = Error::new(ErrorKind::Incomplete, format!("{text}{more}"));
    match first {
        Some(first) => error.hint(first.reason.next_step()),
        None => error,
    }
}
