//! JSON bodies of control calls.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::super::key::{
    Digest, DisplayName, JobId, LeaseId, Moment, ObjectName, ReceiverId, SessionId,
};
use super::super::lifecycle::{BlobState, Class, JobState};
use super::super::manifest::Held;
use super::super::sweep::SweepReason;
use super::super::uploads::{Planned, Staged};
use super::problem::{Code, Problem};

/// A body of a control call larger than this is refused: 4 MiB.
pub const LARGEST_BODY: usize = 4 << 20;

/// The body of [`Call::BeginUpload`](super::Call::BeginUpload).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeginUpload {
    /// Chosen by the client, so that a repeated request is the same batch.
    pub session: SessionId,
    /// What will be sent, as far as it is known before.
    pub members: Vec<PlannedMember>,
}

/// A member of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedMember {
    /// The content.
    pub digest: Digest,
    /// Whether it must survive the server.
    pub class: Class,
    /// The name people know it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<DisplayName>,
}

impl From<PlannedMember> for Planned {
    fn from(member: PlannedMember) -> Planned {
        Planned {
            digest: member.digest,
            class: member.class,
            display: member.name,
        }
    }
}

/// The answer to [`BeginUpload`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadBegun {
    /// The batch.
    pub session: SessionId,
    /// What must be sent.
    pub missing: Vec<Digest>,
}

/// The answer to [`Call::SendMember`](super::Call::SendMember).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberArrived {
    /// The digest of what arrived.
    pub digest: Digest,
}

/// The answer to [`Call::CommitUpload`](super::Call::CommitUpload).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadCommitted {
    /// The members, and until when they stay although nobody holds them.
    #[serde(flatten)]
    pub staged: Staged,
    /// Where the job stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// Members that somebody holds: they stay longer.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub held: BTreeSet<Digest>,
}

/// The answer to [`Call::ListJobs`](super::Call::ListJobs).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobList {
    /// The server's clock; moments in answers are on it.
    pub now: Moment,
    /// Sorted by id; jobs that are over stay as long as they are remembered.
    pub jobs: Vec<JobEntry>,
}

/// One job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEntry {
    /// Its id.
    pub job: JobId,
    /// Where it stands.
    pub state: JobState,
    /// Its blobs.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Upload sessions that are open.
    pub sessions: u64,
}

/// The answer to [`Call::ListBlobs`](super::Call::ListBlobs).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobList {
    /// The server's clock; moments in answers are on it.
    pub now: Moment,
    /// Where the job stands.
    pub state: JobState,
    /// Sorted by digest.
    pub blobs: Vec<BlobEntry>,
}

/// One blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobEntry {
    /// The content.
    pub digest: Digest,
    /// Whether it must survive the server.
    pub class: Class,
    /// Where it stands.
    pub state: BlobState,
    /// The name people know it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<DisplayName>,
    /// Who needs it.
    pub holders: Vec<Held>,
    /// Without holders: when it may go at the earliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_until: Option<Moment>,
    /// Readers under way.
    pub readers: u32,
    /// Its object in the HA store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectName>,
}

/// The answer to [`Call::Why`](super::Call::Why).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyAnswer {
    /// The server's clock; moments in answers are on it.
    pub now: Moment,
    /// The blob.
    pub blob: BlobEntry,
    /// What a sweep says of it.
    pub why: SweepReason,
}

/// The body of [`Call::Acquire`](super::Call::Acquire).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
pub enum AcquireBody {
    /// Receivers of a message: each acknowledges by itself.
    Receivers {
        /// Who.
        receivers: Vec<ReceiverId>,
    },
    /// A client, for a time.
    Lease {
        /// Chosen by the client.
        id: LeaseId,
        /// How long, in milliseconds from the moment the server takes the call.
        millis: u64,
    },
}

/// The body of [`Call::Renew`](super::Call::Renew).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewBody {
    /// How long, in milliseconds from the moment the server takes the call.
    pub millis: u64,
}

impl RenewBody {
    /// The end of the lease, if the call is taken at `now`.
    pub fn end(&self, now: Moment) -> Moment {
        now.after(std::time::Duration::from_millis(self.millis))
    }
}

/// Reads the body of a control call.
///
/// # Errors
///
/// A problem: `413` for more than 4 MiB, `400` with line and column for what it must not be.
pub fn parse_body<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Box<Problem>> {
    if bytes.len() > LARGEST_BODY {
        let detail = format!(
            "a body of {} bytes; {LARGEST_BODY} are allowed",
            bytes.len()
        );
        return Err(Box::new(Problem::new(Code::TooLarge, detail)));
    }
    serde_json::from_slice(bytes)
        .map_err(|e| Box::new(Problem::new(Code::BadRequest, e.to_string())))
}
