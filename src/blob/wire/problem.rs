//! Problem documents (RFC 9457): what went wrong, in a form that a client can act on.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

use super::super::key::{BlobKey, Digest};
use super::super::lifecycle::Refusal;

/// The media type of a problem document.
pub const PROBLEM_MEDIA_TYPE: &str = "application/problem+json";
/// A document larger than this is not read: 1 MiB.
pub const LARGEST_PROBLEM: usize = 1 << 20;
/// Most missing members that a document names.
pub const MOST_MISSING_NAMED: usize = 1000;

/// A stable code for each way in which a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Code {
    /// 400: the request is not what it must be.
    BadRequest,
    /// 401: who asks is not known.
    Unauthorized,
    /// 403: who asks may not.
    Denied,
    /// 404: no such path.
    NoSuchCall,
    /// 404: no such blob.
    NotFound,
    /// 405: the path does not have this method.
    NoSuchMethod,
    /// 409: the batch is not complete.
    Incomplete,
    /// 409: the session id is another batch's.
    SessionTaken,
    /// 410: the job is over.
    JobOver,
    /// 410: every copy is damaged.
    Lost,
    /// 412: the lease or session has ended.
    LeaseEnded,
    /// 413: the blob or body is too large.
    TooLarge,
    /// 416: the range begins after the end.
    RangeNotSatisfiable,
    /// 421: this process is not the owner.
    NotOwner,
    /// 422: the bytes have another digest.
    DigestDiffers,
    /// 429: too many at once; with a time to wait.
    TooMany,
    /// 503: not now; with a time to wait.
    Busy,
    /// 507: no space, or over the job's quota.
    NoSpace,
}

impl Code {
    /// The HTTP status.
    pub fn status(self) -> u16 {
        match self {
            Code::BadRequest => 400,
            Code::Unauthorized => 401,
            Code::Denied => 403,
            Code::NoSuchCall | Code::NotFound => 404,
            Code::NoSuchMethod => 405,
            Code::Incomplete | Code::SessionTaken => 409,
            Code::JobOver | Code::Lost => 410,
            Code::LeaseEnded => 412,
            Code::TooLarge => 413,
            Code::RangeNotSatisfiable => 416,
            Code::NotOwner => 421,
            Code::DigestDiffers => 422,
            Code::TooMany => 429,
            Code::Busy => 503,
            Code::NoSpace => 507,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Code::BadRequest => "the request is malformed",
            Code::Unauthorized => "credentials are missing",
            Code::Denied => "not allowed",
            Code::NoSuchCall => "no such call",
            Code::NotFound => "no such blob",
            Code::NoSuchMethod => "no such method",
            Code::Incomplete => "the batch is not complete",
            Code::SessionTaken => "the session id is taken",
            Code::JobOver => "the job is over",
            Code::Lost => "every copy is damaged",
            Code::LeaseEnded => "the lease has ended",
            Code::TooLarge => "too large",
            Code::RangeNotSatisfiable => "the range begins after the end",
            Code::NotOwner => "not the owner",
            Code::DigestDiffers => "the bytes have another digest",
            Code::TooMany => "too many at once",
            Code::Busy => "busy",
            Code::NoSpace => "no space",
        }
    }

    fn kind(self) -> ErrorKind {
        match self {
            Code::BadRequest | Code::NoSuchCall | Code::NoSuchMethod => ErrorKind::Invalid,
            Code::RangeNotSatisfiable => ErrorKind::Invalid,
            Code::Unauthorized | Code::Denied => ErrorKind::Denied,
            Code::NotFound => ErrorKind::NotFound,
            Code::Incomplete | Code::SessionTaken | Code::LeaseEnded => ErrorKind::Conflict,
            Code::Lost | Code::DigestDiffers => ErrorKind::Corrupt,
            Code::JobOver | Code::TooLarge | Code::NoSpace => ErrorKind::Refused,
            Code::NotOwner | Code::TooMany | Code::Busy => ErrorKind::Unavailable,
        }
    }
}

/// While what it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WirePhase {
    /// Before a byte of a blob moved.
    Request,
    /// While bytes moved.
    Transfer,
    /// Afterwards: comparing, storing, committing.
    Finish,
}

/// A problem document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// `about:blank`: the status says it all, and `code` says it more exactly.
    #[serde(rename = "type")]
    pub kind: String,
    /// For people; the same for each code.
    pub title: String,
    /// The HTTP status, the same as in the response.
    pub status: u16,
    /// For people; this very case.
    pub detail: String,
    /// For programs.
    pub code: Code,
    /// The blob concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<BlobKey>,
    /// While what it happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<WirePhase>,
    /// Bytes of the blob that had moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_moved: Option<u64>,
    /// Members that must be sent; the first 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<Digest>,
    /// Seconds to wait, as in the header `Retry-After`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
    /// Where the owner is, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl Problem {
    /// A problem of `code`, with what is the case.
    pub fn new(code: Code, detail: impl Into<String>) -> Problem {
        Problem {
            kind: "about:blank".to_string(),
            title: code.title().to_string(),
            status: code.status(),
            detail: detail.into(),
            code,
            key: None,
            phase: None,
            bytes_moved: None,
            missing: Vec::new(),
            retry_after: None,
            owner: None,
        }
    }

    /// Names the blob.
    #[must_use]
    pub fn of(mut self, key: BlobKey) -> Problem {
        self.key = Some(key);
        self
    }

    /// Says when it happened, and after how many bytes.
    #[must_use]
    pub fn during(mut self, phase: WirePhase, bytes_moved: u64) -> Problem {
        (self.phase, self.bytes_moved) = (Some(phase), Some(bytes_moved));
        self
    }

    /// Says how long to wait; rounded up to seconds.
    #[must_use]
    pub fn retry_after(mut self, time: Duration) -> Problem {
        let more = u64::from(time.subsec_nanos() > 0);
        self.retry_after = Some(time.as_secs().saturating_add(more));
        self
    }

    /// The document.
    ///
    /// # Errors
    ///
    /// `Internal` if it cannot be written as JSON.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|e| {
            Error::new(
                ErrorKind::Internal,
                format!("a problem cannot be written: {e}"),
            )
        })
    }

    /// Reads the document of a response with `status`. Unknown members are ignored, as the RFC wants;
    /// the status of the response counts, not the document's.
    ///
    /// # Errors
    ///
    /// `Corrupt` for what is no such document, or an unknown code.
    pub fn from_json(bytes: &[u8], status: u16) -> Result<Problem> {
        let damaged = |what: String| {
            Error::corrupt(format!(
                "the answer with status {status} is no problem document: {what}"
            ))
            .hint("is there a proxy in between, or another service at this address?")
        };
        if bytes.len() > LARGEST_PROBLEM {
            return Err(damaged(format!("{} bytes are too many", bytes.len())));
        }
        let read: Problem = serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
        Ok(Problem { status, ..read })
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        let code = match &refusal {
            Refusal::NotFound(_) | Refusal::NoJob(_) => Code::NotFound,
            Refusal::JobOver(..) => Code::JobOver,
            Refusal::Lost(_) => Code::Lost,
            Refusal::NoSession(_) | Refusal::LeaseEnded(_) => Code::LeaseEnded,
            Refusal::SessionTaken(_) => Code::SessionTaken,
            Refusal::Incomplete(..) => Code::Incomplete,
            Refusal::TooLarge(..) => Code::TooLarge,
            Refusal::Quota(..) => Code::NoSpace,
            Refusal::TooMany(..) => Code::TooMany,
            Refusal::OtherContent { .. } => Code::DigestDiffers,
        };
        let mut problem = Problem::new(code, refusal.to_string());
        match refusal {
            Refusal::NotFound(key) | Refusal::Lost(key) | Refusal::LeaseEnded(key) => {
                problem.key = Some(key);
            }
            Refusal::Incomplete(_, mut missing) => {
                missing.truncate(MOST_MISSING_NAMED);
                problem.missing = missing;
            }
            _ => {}
        }
        problem
    }
}

impl Problem {
    /// For a client: the problem as the library's error.
    pub fn into_error(self) -> Error {
        let moved = self.bytes_moved;
        let after = moved
            .map(|n| format!(" after {n} bytes"))
            .unwrap_or_default();
        let error = Error::new(self.code.kind(), format!("{}{after}", self.detail));
        let error = match (self.retry_after, &self.owner) {
            (Some(seconds), _) => error.hint(format!("try again in {seconds} s")),
            (None, Some(owner)) => error.hint(format!("the owner is at {owner}")),
            (None, None) if self.code == Code::NotOwner => error.hint(
                "name the later server with --server; started with --advertise it is found without that",
            ),
            _ => error,
        };
        match self.key {
            Some(key) => error.at(key),
            None => error,
        }
    }
}
