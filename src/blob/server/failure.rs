//! How a call of a server fails.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind};

use super::super::flight::Told;
use super::super::key::{BlobKey, JobId};
use super::super::lifecycle::Refusal;
use super::super::wire::{Code, Problem, WirePhase};
use super::Fenced;

/// Why a call was not done. What it was to change has not changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The state of things does not allow it.
    Refused(Refusal),
    /// Another owner has taken over.
    NotOwner {
        /// This one's epoch.
        epoch: u64,
        /// What is known of the other.
        fenced: Fenced,
    },
    /// Not now.
    Busy {
        /// How long to wait.
        wait: Duration,
        /// Why.
        why: String,
    },
    /// The local directory has no space.
    NoSpace(Error),
    /// The job's manifest cannot be read.
    JobRefused(JobId, String),
    /// The sender stopped, or sent what it must not.
    Transfer {
        /// What was wrong.
        why: String,
        /// Bytes that had come.
        bytes: u64,
    },
    /// A blob is larger than one may be.
    TooLarge {
        /// Bytes that a blob may have.
        limit: u64,
        /// Bytes that had come.
        bytes: u64,
    },
    /// What a store or the file system answered.
    Store(Error),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error.kind() {
            ErrorKind::Refused | ErrorKind::Full => Failure::NoSpace(error),
            ErrorKind::Unavailable | ErrorKind::Conflict => Failure::Busy {
                wait: Duration::from_secs(1),
                why: match error.next_step() {
                    Some(hint) => format!("{error}; {hint}"),
                    None => error.to_string(),
                },
            },
            _ => Failure::Store(error),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(refusal) => refusal.fmt(f),
            Failure::NotOwner { epoch, fenced } => match fenced.by {
                Some(by) => write!(
                    f,
                    "epoch {epoch} has been taken over by epoch {by}{}",
                    fenced.no_address()
                ),
                None => write!(f, "epoch {epoch} has been taken over"),
            },
            Failure::Busy { why, .. } => f.write_str(why),
            Failure::NoSpace(error) | Failure::Store(error) => error.fmt(f),
            Failure::JobRefused(job, why) => write!(f, "job {job} is not served: {why}"),
            Failure::Transfer { why, bytes } => write!(f, "after {bytes} bytes: {why}"),
            Failure::TooLarge { limit, .. } => {
                write!(f, "more than the {limit} bytes that a blob may have")
            }
        }
    }
}

impl std::error::Error for Failure {}

impl Told for Failure {
    fn again(&self) -> Failure {
        match self {
            Failure::Refused(refusal) => Failure::Refused(refusal.clone()),
            Failure::NotOwner { epoch, fenced } => Failure::NotOwner {
                epoch: *epoch,
                fenced: fenced.clone(),
            },
            Failure::Busy { wait, why } => Failure::Busy {
                wait: *wait,
                why: why.clone(),
            },
            Failure::NoSpace(error) => Failure::NoSpace(error.again()),
            Failure::JobRefused(job, why) => Failure::JobRefused(job.clone(), why.clone()),
            Failure::Transfer { why, bytes } => Failure::Transfer {
                why: why.clone(),
                bytes: *bytes,
            },
            Failure::TooLarge { limit, bytes } => Failure::TooLarge {
                limit: *limit,
                bytes: *bytes,
            },
            Failure::Store(error) => Failure::Store(error.again()),
        }
    }

    fn unheard(key: &BlobKey) -> Failure {
        Failure::Store(Error::unheard(key))
    }
}

impl Failure {
    /// The failure as a problem document.
    pub fn into_problem(self) -> Problem {
        let text = self.to_string();
        match self {
            Failure::Refused(refusal) => Problem::from(refusal),
            Failure::NotOwner { fenced, .. } => {
                let mut problem = Problem::new(Code::NotOwner, text);
                problem.owner = fenced.address;
                problem
            }
            Failure::Busy { wait, .. } => Problem::new(Code::Busy, text).retry_after(wait),
            Failure::NoSpace(_) => Problem::new(Code::NoSpace, text),
            Failure::Transfer { bytes, .. } => {
                Problem::new(Code::BadRequest, text).during(WirePhase::Transfer, bytes)
            }
            Failure::TooLarge { bytes, .. } => {
                Problem::new(Code::TooLarge, text).during(WirePhase::Transfer, bytes)
            }
            Failure::JobRefused(..) | Failure::Store(_) => {
                Problem::new(Code::Busy, text).retry_after(Duration::from_secs(30))
            }
        }
    }

    /// The failure as the library's error. Not a `From`, for the same reason as [`Refusal::into_error`].
    pub fn into_error(self) -> Error {
        let text = self.to_string();
        match self {
            Failure::Refused(refusal) => refusal.into_error(),
            Failure::NotOwner { fenced, .. } => {
                let hint = fenced.address.map_or_else(
                    || "repeat the call at the later owner".to_string(),
                    |at| format!("the owner is at {at}"),
                );
                Error::new(ErrorKind::Conflict, text).hint(hint)
            }
            Failure::Busy { .. } => {
                Error::new(ErrorKind::Unavailable, text).hint("try again later")
            }
            Failure::JobRefused(..) => Error::corrupt(text),
            Failure::TooLarge { .. } => {
                Error::refused(text).hint("raise blob.server.max-blob-size")
            }
            Failure::Transfer { .. } => Error::new(ErrorKind::Unavailable, text),
            Failure::NoSpace(error) | Failure::Store(error) => error,
        }
    }
}
