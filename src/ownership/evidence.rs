//! What is not known: each missing piece is named, says what it keeps from being decided, and how to
//! supply it.

use std::borrow::Cow;
use std::collections::BTreeSet;
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
    /// The kind of the error that kept it from being had, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<ErrorKind>,
    /// What happened, as a fragment for people.
    pub detail: String,
    /// How to supply it, where that is known better than from the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub way_on: Option<String>,
}

/// Why a piece of evidence is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MissingReason {
    /// The listing of a root failed or ended early.
    IncompleteListing,
    /// A snapshot or a record lies under a name that no engine's path leads to, as with a control character or an empty
    /// part, or among the records of this crate: nobody can follow what it refers to.
    OddName,
    /// There is nothing below a root: a mistyped name looks the same.
    NothingThere,
    /// A commit object could not be read: nobody knows what it says.
    UnreadableMetadata,
    /// A commit object was read, and its bytes are damaged.
    DamagedMetadata,
    /// A commit object is of a newer version or has a handle that is not known.
    UnknownFormat,
    /// A pin, claim or mark could not be read.
    UnreadableRecord,
    /// A pin, claim or mark was read, and its bytes are damaged.
    DamagedRecord,
    /// A fork into this place is under way, or was left half done.
    ForkUnderWay,
    /// A snapshot refers to objects that no root that was looked at holds.
    ReferenceLeavesRoots,
    /// A snapshot went or came while it was looked at: what was listed no longer holds.
    ChangedMeanwhile,
    /// Nobody has named the roots, and those that were guessed need not hold all that may use it.
    GuessedRoots,
}

/// The next steps for all that is missing, each once, sorted.
pub(super) fn next_steps(missing: &[MissingEvidence]) -> Vec<String> {
    let steps: BTreeSet<_> = missing.iter().map(MissingEvidence::next_step).collect();
    steps.into_iter().map(Cow::into_owned).collect()
}

/// Access is refused.
const GIVE_ACCESS: &str =
    "give read access to it and ask again; it may be intact, so that nothing may be removed";
/// It could not be read, for a reason that may pass.
const ASK_AGAIN: &str = "ask again; if it fails again, see to what it names: it may be intact, so that nothing may be removed";

impl MissingEvidence {
    /// A piece of evidence that is missing though nothing failed.
    pub fn new(
        location: Location,
        reason: MissingReason,
        detail: impl Into<String>,
    ) -> MissingEvidence {
        MissingEvidence {
            location,
            reason,
            cause: None,
            detail: detail.into(),
            way_on: None,
        }
    }

    /// The evidence that an error kept from being had. `reason` says whether bytes were read: an error alone does not
    /// tell, since a read that failed half way may look like damage.
    pub(crate) fn of_error(
        location: &Location,
        reason: MissingReason,
        e: &Error,
    ) -> MissingEvidence {
        let reason = match (reason, e.kind()) {
            (MissingReason::DamagedMetadata, ErrorKind::Unsupported) => {
                MissingReason::UnknownFormat
            }
            _ => reason,
        };
        MissingEvidence {
            location: location.clone(),
            reason,
            cause: Some(e.kind()),
            // Of a root whose listing failed the folder is named that did it.
            detail: match e.location() {
                Some(at) if at != location.to_string() => format!("{at}: {}", e.message()),
                _ => e.message().to_string(),
            },
            way_on: None,
        }
    }

    /// The folder of the snapshot whose commit object could not be read or understood, if that is what is missing.
    pub(crate) fn unread_snapshot(&self) -> Option<Location> {
        let is_commit = matches!(
            self.reason,
            MissingReason::UnreadableMetadata
                | MissingReason::DamagedMetadata
                | MissingReason::UnknownFormat
                | MissingReason::OddName
        );
        is_commit.then(|| self.location.parent()).flatten()
    }

    /// The next step for the person who reads it. Only of what was read, and is damaged, does it speak of removal.
    pub fn next_step(&self) -> Cow<'_, str> {
        match &self.way_on {
            Some(way_on) => Cow::Borrowed(way_on),
            None => Cow::Borrowed(self.usual_step()),
        }
    }

    fn usual_step(&self) -> &'static str {
        use MissingReason as R;
        match (self.reason, self.cause) {
            (R::UnreadableMetadata | R::UnreadableRecord, Some(ErrorKind::Denied)) => GIVE_ACCESS,
            (R::IncompleteListing, Some(ErrorKind::Denied)) => {
                "give the right to list and to read what is there, and ask again"
            }
            (R::DamagedRecord, Some(ErrorKind::Unsupported)) => "use a newer forkpoint",
            (R::UnreadableMetadata, None) => {
                "see what has made a folder here, where an engine writes a file: nobody can restore from this snapshot as it is"
            }
            (R::IncompleteListing, _) => {
                "repeat it; if it fails again, see to what it names: a right, a credential, a link"
            }
            (R::NothingThere, _) => "check the name of the root",
            (R::OddName, _) => {
                "if it is a snapshot, give its folder a name without control characters, backslashes, empty parts and \
                 `.forkpoint`; if it is none, remove it: until then nothing below the root may be removed"
            }
            (R::DamagedMetadata, Some(ErrorKind::Corrupt | ErrorKind::Invalid)) => {
                "ask again, since somebody may still be writing it; check it with `forkpoint verify`, and look for a good copy of it; \
                 only if the snapshot is lost for good, remove its `_metadata` or `_forkpoint.json` by hand, \
                 which says that nobody restores from it"
            }
            (R::UnknownFormat, _) => "use a newer forkpoint",
            (R::DamagedRecord, Some(ErrorKind::Corrupt)) => {
                "look at the object: it may be somebody's pin or claim; remove it only if nobody needs it"
            }
            (
                R::UnreadableMetadata | R::UnreadableRecord | R::DamagedMetadata | R::DamagedRecord,
                _,
            ) => ASK_AGAIN,
            (R::ForkUnderWay, _) => {
                "wait for it, or finish it: the same `forkpoint fork` again, or `run` and `commit PLAN` of its plan; \
                 `forkpoint abandon PLAN --apply` gives it up"
            }
            (R::ReferenceLeavesRoots, _) => {
                "name the root that holds these objects with --also; if another tool has moved the snapshot here, \
                 make it stand alone with `forkpoint fork --moved-from` first"
            }
            (R::ChangedMeanwhile, _) => "repeat it",
            (R::GuessedRoots, _) => {
                "name with --root the folders below which all jobs keep their checkpoints that may have been started from it"
            }
        }
    }
}

impl fmt::Display for MissingEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.reason {
            MissingReason::IncompleteListing => "the listing is incomplete",
            MissingReason::NothingThere => "nothing lies here",
            MissingReason::OddName => {
                "a snapshot or a record under a name that no engine writes, so that what it needs is not known"
            }
            MissingReason::UnreadableMetadata => "the metadata cannot be read",
            MissingReason::DamagedMetadata => "the metadata is damaged",
            MissingReason::UnknownFormat => "the metadata is not understood",
            MissingReason::UnreadableRecord => "the record cannot be read",
            MissingReason::DamagedRecord => "the record is not understood",
            MissingReason::ForkUnderWay => "a fork is under way or was left half done",
            MissingReason::ReferenceLeavesRoots => "references leave the roots that were looked at",
            MissingReason::ChangedMeanwhile => "it changed while it was looked at",
            MissingReason::GuessedRoots => {
                "jobs that use it may keep their checkpoints outside of the roots, which were guessed"
            }
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
        Some(first) => error.hint(first.next_step().into_owned()),
        None => error,
    }
}
