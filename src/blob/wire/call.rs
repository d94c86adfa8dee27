//! Which call a method and a path are. Every part of a path is parsed into its type. No part of a
//! valid path needs percent-encoding, so that none is decoded: `%2e%2e` is simply no id.

use std::fmt;

use super::super::key::{Digest, JobId, LeaseId, ReceiverId, SessionId, shortened};
use super::problem::{Code, Problem};

/// Longest path that is looked at, in bytes.
pub const LONGEST_PATH: usize = 1024;

/// The method of a request, as far as the protocol uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// `GET`
    Get,
    /// `HEAD`
    Head,
    /// `POST`
    Post,
    /// `PUT`
    Put,
    /// `DELETE`
    Delete,
}

impl Verb {
    /// As it stands in a request.
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Head => "HEAD",
            Verb::Post => "POST",
            Verb::Put => "PUT",
            Verb::Delete => "DELETE",
        }
    }

    fn parse(text: &str) -> Option<Verb> {
        [Verb::Get, Verb::Head, Verb::Post, Verb::Put, Verb::Delete]
            .into_iter()
            .find(|v| v.as_str() == text)
    }
}

/// One call of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Call {
    /// `GET` or `HEAD /v1/jobs/{job}/blobs/{digest}`: download, or look.
    Download {
        /// The job.
        job: JobId,
        /// The content.
        digest: Digest,
        /// `HEAD`: the header only.
        head: bool,
    },
    /// `POST /v1/jobs/{job}/uploads`: begin a batch.
    BeginUpload(JobId),
    /// `PUT /v1/jobs/{job}/uploads/{session}/blobs/{digest or -}`: send one member.
    SendMember {
        /// The job.
        job: JobId,
        /// The batch.
        session: SessionId,
        /// The content, if it is known before it is sent.
        digest: Option<Digest>,
    },
    /// `POST /v1/jobs/{job}/uploads/{session}/commit`: all members become visible, or none.
    CommitUpload(JobId, SessionId),
    /// `DELETE /v1/jobs/{job}/uploads/{session}`: give the batch up.
    AbortUpload(JobId, SessionId),
    /// `POST /v1/jobs/{job}/events`: something happened to the job.
    JobEvent(JobId),
    /// `POST /v1/jobs/{job}/blobs/{digest}/refs`: acquire.
    Acquire(JobId, Digest),
    /// `POST /v1/jobs/{job}/blobs/{digest}/refs/{lease}/renew`: renew a lease.
    Renew(JobId, Digest, LeaseId),
    /// `POST /v1/jobs/{job}/blobs/{digest}/acks/{receiver}`: a receiver has what it needs.
    Acknowledge(JobId, Digest, ReceiverId),
    /// `DELETE /v1/jobs/{job}/blobs/{digest}/refs/{lease}`: release.
    Release(JobId, Digest, LeaseId),
    /// `GET /v1/jobs`: all jobs that are known.
    ListJobs,
    /// `GET /v1/jobs/{job}/blobs`: the blobs of a job.
    ListBlobs(JobId),
    /// `GET /v1/jobs/{job}/blobs/{digest}/why`: why a blob stays or goes.
    Why(JobId, Digest),
}

impl Call {
    /// Reads a method and a path without query.
    ///
    /// # Errors
    ///
    /// A problem: `404` for what is no path of the protocol, `405` for a method that the path does not
    /// have, `400` for a part that is not what it must be.
    pub fn parse(method: &str, path: &str) -> Result<Call, Box<Problem>> {
        let problem = |code, detail: String| Box::new(Problem::new(code, detail));
        let unknown = || {
            problem(
                Code::NoSuchCall,
                format!("there is no `{}`", shortened(path)),
            )
        };
        let not_allowed = || {
            problem(
                Code::NoSuchMethod,
                "the path does not have this method".to_string(),
            )
        };
        if path.len() > LONGEST_PATH {
            return Err(unknown());
        }
        if path == "/v1/jobs" {
            return match Verb::parse(method) {
                Some(Verb::Get) => Ok(Call::ListJobs),
                _ => Err(not_allowed()),
            };
        }
        let path = path.strip_prefix("/v1/jobs/").ok_or_else(unknown)?;
        let parts: Vec<&str> = path.split('/').collect();
        let bad = |e: crate::error::Error| problem(Code::BadRequest, e.to_string());
        let (first, rest) = parts.split_first().ok_or_else(unknown)?;
        let job = JobId::parse(first).map_err(bad)?;
        let digest = |text: &str| Digest::parse(text).map_err(bad);
        let session = |text: &str| SessionId::parse(text).map_err(bad);
        let verb = Verb::parse(method);
        let only = |wanted: Verb| match verb == Some(wanted) {
            true => Ok(()),
            false => Err(not_allowed()),
        };
        match rest {
            ["blobs", d] => {
                let head = match verb {
                    Some(Verb::Get) => false,
                    Some(Verb::Head) => true,
                    _ => return Err(not_allowed()),
                };
                let digest = digest(d)?;
                Ok(Call::Download { job, digest, head })
            }
            ["blobs"] => {
                only(Verb::Get)?;
                Ok(Call::ListBlobs(job))
            }
            ["blobs", d, "why"] => {
                only(Verb::Get)?;
                Ok(Call::Why(job, digest(d)?))
            }
            ["blobs", d, "refs"] => {
                only(Verb::Post)?;
                Ok(Call::Acquire(job, digest(d)?))
            }
            ["blobs", d, "refs", lease] => {
                only(Verb::Delete)?;
                Ok(Call::Release(
                    job,
                    digest(d)?,
                    LeaseId::parse(lease).map_err(bad)?,
                ))
            }
            ["blobs", d, "refs", lease, "renew"] => {
                only(Verb::Post)?;
                Ok(Call::Renew(
                    job,
                    digest(d)?,
                    LeaseId::parse(lease).map_err(bad)?,
                ))
            }
            ["blobs", d, "acks", receiver] => {
                only(Verb::Post)?;
                let receiver = ReceiverId::parse(receiver).map_err(bad)?;
                Ok(Call::Acknowledge(job, digest(d)?, receiver))
            }
            ["uploads"] => {
                only(Verb::Post)?;
                Ok(Call::BeginUpload(job))
            }
            ["uploads", s] => {
                only(Verb::Delete)?;
                Ok(Call::AbortUpload(job, session(s)?))
            }
            ["uploads", s, "commit"] => {
                only(Verb::Post)?;
                Ok(Call::CommitUpload(job, session(s)?))
            }
            ["uploads", s, "blobs", d] => {
                only(Verb::Put)?;
                let digest = match *d {
                    "-" => None,
                    known => Some(digest(known)?),
                };
                let session = session(s)?;
                Ok(Call::SendMember {
                    job,
                    session,
                    digest,
                })
            }
            ["events"] => {
                only(Verb::Post)?;
                Ok(Call::JobEvent(job))
            }
            _ => Err(unknown()),
        }
    }

    /// The job that the call is about; none for the list of all.
    pub fn job(&self) -> Option<&JobId> {
        match self {
            Call::Download { job, .. } | Call::SendMember { job, .. } => Some(job),
            Call::BeginUpload(job) | Call::JobEvent(job) | Call::ListBlobs(job) => Some(job),
            Call::CommitUpload(job, _) | Call::AbortUpload(job, _) => Some(job),
            Call::Acquire(job, _) | Call::Why(job, _) => Some(job),
            Call::Renew(job, ..) | Call::Acknowledge(job, ..) | Call::Release(job, ..) => Some(job),
            Call::ListJobs => None,
        }
    }

    /// The method.
    pub fn verb(&self) -> Verb {
        match self {
            Call::Download { head: false, .. } => Verb::Get,
            Call::Download { head: true, .. } => Verb::Head,
            Call::ListJobs | Call::ListBlobs(_) | Call::Why(..) => Verb::Get,
            Call::SendMember { .. } => Verb::Put,
            Call::AbortUpload(..) | Call::Release(..) => Verb::Delete,
            _ => Verb::Post,
        }
    }
}

/// The path.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Call::ListJobs {
            return f.write_str("/v1/jobs");
        }
        f.write_str("/v1/jobs/")?;
        match self {
            Call::ListJobs => Ok(()),
            Call::ListBlobs(job) => write!(f, "{job}/blobs"),
            Call::Why(job, digest) => write!(f, "{job}/blobs/{digest}/why"),
            Call::Download { job, digest, .. } => write!(f, "{job}/blobs/{digest}"),
            Call::BeginUpload(job) => write!(f, "{job}/uploads"),
            Call::SendMember {
                job,
                session,
                digest,
            } => match digest {
                Some(digest) => write!(f, "{job}/uploads/{session}/blobs/{digest}"),
                None => write!(f, "{job}/uploads/{session}/blobs/-"),
            },
            Call::CommitUpload(job, session) => write!(f, "{job}/uploads/{session}/commit"),
            Call::AbortUpload(job, session) => write!(f, "{job}/uploads/{session}"),
            Call::JobEvent(job) => write!(f, "{job}/events"),
            Call::Acquire(job, digest) => write!(f, "{job}/blobs/{digest}/refs"),
            Call::Renew(job, digest, lease) => write!(f, "{job}/blobs/{digest}/refs/{lease}/renew"),
            Call::Acknowledge(job, digest, who) => write!(f, "{job}/blobs/{digest}/acks/{who}"),
            Call::Release(job, digest, lease) => write!(f, "{job}/blobs/{digest}/refs/{lease}"),
        }
    }
}
