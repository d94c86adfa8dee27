//! The words of a blob's life: classes, states, holders, events of jobs, refusals.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};

use super::key::{BlobKey, Digest, JobId, LeaseId, ReceiverId, SessionId};

/// Whether a blob must survive the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Can be made again: known in memory only.
    Recreatable,
    /// Needed for a recovery: in the HA store and its manifest.
    Retained,
}

impl Class {
    /// The word in paths and documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Recreatable => "recreatable",
            Class::Retained => "retained",
        }
    }

    /// Reads what [`as_str`](Class::as_str) gives.
    pub fn parse(text: &str) -> Option<Class> {
        [Class::Recreatable, Class::Retained]
            .into_iter()
            .find(|c| c.as_str() == text)
    }
}

/// Who needs a blob. References are a set of holders and the count is its size, so that a repeated
/// acknowledgement lowers nothing twice.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "id")]
pub enum Holder {
    /// The job itself.
    Job,
    /// A receiver that has not acknowledged a message yet.
    Receiver(ReceiverId),
    /// A client, until its lease ends.
    Lease(LeaseId),
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It came to its end.
    Finished,
    /// Somebody ended it.
    Cancelled,
    /// It failed and will not restart.
    Failed,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Finished => "finished",
            Outcome::Cancelled => "cancelled",
            Outcome::Failed => "failed",
        })
    }
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// Uploads are there, the job is not registered.
    Staging,
    /// It runs.
    Active,
    /// It failed and will restart.
    Failed,
    /// It is given up by this process and may come back here or elsewhere.
    Suspended,
    /// It is over; what is left is a tombstone.
    Terminal(Outcome),
}

impl JobState {
    /// True once the job is over.
    pub fn is_terminal(self) -> bool {
        matches!(self, JobState::Terminal(_))
    }
}

/// What happens to a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "event", deny_unknown_fields)]
pub enum JobEvent {
    /// The job was accepted, or came back: it holds these blobs.
    Registered {
        /// The blobs the job needs; all are held or none.
        digests: BTreeSet<Digest>,
    },
    /// It failed and will restart: re-creatable blobs lose all holders, retained ones keep them.
    Failed,
    /// It is given up by this process: retained blobs stay in the HA store, local copies go.
    Suspended,
    /// It is over: everything goes at once, whatever the counts say.
    Terminal {
        /// How it ended.
        outcome: Outcome,
    },
}

/// Where a blob stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlobState {
    /// Committed by a batch and not held yet.
    Staged,
    /// Somebody holds it.
    Referenced,
    /// The last holder went.
    Expiring,
    /// Invisible; its copies are being removed.
    Deleting,
    /// Every copy is damaged. It is shown until its holders have gone.
    Lost,
}

/// Times and limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// `blob.retention.interval`: how long an unheld blob stays at least. 30 minutes.
    pub retention: Duration,
    /// `blob.upload.idle-ttl`: how long a session lives without a byte. 15 minutes.
    pub upload_idle: Duration,
    /// `blob.tombstone.keep`: how long an ended job is remembered. 7 days.
    pub tombstone_keep: Duration,
    /// `blob.server.max-blob-size` in bytes. No limit.
    pub largest_blob: u64,
    /// `blob.job.quota` in bytes of committed and planned blobs of one job. No limit.
    pub job_quota: u64,
    /// Most members of one batch. 10,000.
    pub most_members: usize,
    /// Most sessions that one job may have open. 64.
    pub most_sessions: usize,
    /// Most committed sessions that a job remembers, so that a repeated commit gets its answer. 256.
    pub most_remembered: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            retention: Duration::from_secs(30 * 60),
            upload_idle: Duration::from_secs(15 * 60),
            tombstone_keep: Duration::from_secs(7 * 24 * 60 * 60),
            largest_blob: u64::MAX,
            job_quota: u64::MAX,
            most_members: 10_000,
            most_sessions: 64,
            most_remembered: 256,
        }
    }
}

impl Settings {
    /// `blob.sweep.period`: a quarter of the retention interval, at most a minute.
    pub fn sweep_period(&self) -> Duration {
        (self.retention / 4).min(Duration::from_secs(60))
    }
}

/// Why something was not done. Nothing has changed when one is returned.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// No such blob is visible.
    NotFound(BlobKey),
    /// The job is over, and so are its blobs.
    JobOver(JobId, Outcome),
    /// Nothing is known of the job.
    NoJob(JobId),
    /// Every copy of the blob is damaged.
    Lost(BlobKey),
    /// The session is not open: ended, lapsed, or never begun here.
    NoSession(SessionId),
    /// The session id is taken by another batch.
    SessionTaken(SessionId),
    /// The batch is not complete: these must be sent, or sent again.
    Incomplete(SessionId, Vec<Digest>),
    /// The blob is larger than allowed; the limit in bytes.
    TooLarge(Digest, u64),
    /// The job would have more than it may; the limit in bytes.
    Quota(JobId, u64),
    /// Too many members or open sessions; the limit.
    TooMany(&'static str, usize),
    /// Arrived bytes have another digest than was promised.
    OtherContent {
        /// The digest that was promised.
        promised: Digest,
        /// The digest of what arrived.
        arrived: Digest,
    },
    /// The holder has no lease that could be renewed, or it has ended.
    LeaseEnded(BlobKey),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotFound(key) => write!(f, "there is no blob {key}"),
            Refusal::JobOver(job, outcome) => {
                write!(f, "job {job} is over ({outcome}) and its blobs are gone")
            }
            Refusal::NoJob(job) => write!(f, "nothing is known of job {job}"),
            Refusal::Lost(key) => write!(f, "every copy of blob {key} is damaged"),
            Refusal::NoSession(id) => write!(f, "upload session {id} is not open"),
            Refusal::SessionTaken(id) => write!(f, "session id {id} is in use for another batch"),
            Refusal::Incomplete(id, missing) => write!(
                f,
                "upload session {id} lacks {} of its members",
                missing.len()
            ),
            Refusal::TooLarge(digest, limit) => {
                write!(f, "blob {digest} is larger than {limit} bytes")
            }
            Refusal::Quota(job, limit) => {
                write!(f, "job {job} would have more than its {limit} bytes")
            }
            Refusal::TooMany(what, limit) => write!(f, "more than {limit} {what}"),
            Refusal::OtherContent { promised, arrived } => {
                write!(f, "the bytes of {promised} have the digest {arrived}")
            }
            Refusal::LeaseEnded(key) => write!(f, "the lease on blob {key} has ended"),
        }
    }
}

impl Refusal {
    /// The refusal as the library's error, with the next step. Not a `From`: a second conversion into
    /// [`Error`] would leave the types of other code's `?` open.
    pub fn into_error(self) -> Error {
        let (kind, hint) = match &self {
            Refusal::NotFound(_) => (ErrorKind::NotFound, "upload it again"),
            Refusal::JobOver(..) => (ErrorKind::Refused, "use another job id"),
            Refusal::NoJob(_) => (ErrorKind::NotFound, "upload or register first"),
            Refusal::Lost(_) => (ErrorKind::Corrupt, "upload it again"),
            Refusal::NoSession(_) => (ErrorKind::Conflict, "begin a new upload session"),
            Refusal::SessionTaken(_) => (ErrorKind::Conflict, "choose another session id"),
            Refusal::Incomplete(..) => (ErrorKind::Conflict, "send what is missing, then commit"),
            Refusal::TooLarge(..) | Refusal::Quota(..) => {
                (ErrorKind::Refused, "raise the limit, or send less")
            }
            Refusal::TooMany(..) => (ErrorKind::Refused, "commit or abort others first"),
            Refusal::OtherContent { .. } => (ErrorKind::Corrupt, "send this member again"),
            Refusal::LeaseEnded(_) => (ErrorKind::Conflict, "acquire it again"),
        };
        Error::new(kind, self.to_string()).hint(hint)
    }
}
