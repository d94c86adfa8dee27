//! From a request to a call of the server, and back.

use std::sync::Arc;
use std::time::Duration;

use axum::body::BodyDataStream;
use axum::extract::{Request, State};
use axum::response::Response;
use futures::{StreamExt, TryStreamExt};
use http::StatusCode;
use http::header::CONTENT_LENGTH;
use http::request::Parts;

use super::super::key::BlobKey;
use super::super::lifecycle::{Holder, JobEvent};
use super::super::server::Failure;
use super::super::uploads::Planned;
use super::super::wire::{
    AcquireBody, BeginUpload, Call, Code, LARGEST_BODY, MemberArrived, Problem, RenewBody,
    UploadBegun, UploadCommitted, parse_body,
};
use super::{Desk, answer, auth, download};

enum Ended {
    Problem(Box<Problem>),
    Failure(Failure),
}

impl From<Box<Problem>> for Ended {
    fn from(problem: Box<Problem>) -> Ended {
        Ended::Problem(problem)
    }
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Ended {
        Ended::Failure(failure)
    }
}

/// What is still read of a body whose request is refused already: a sender that is cut while it sends may never
/// see the answer.
const DRAINED_BYTES: usize = 1 << 20;
/// And for how long.
const DRAINED_FOR: Duration = Duration::from_secs(1);

/// Answers any request that is none about health.
pub(super) async fn dispatch(State(desk): State<Arc<Desk>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let mut stream = body.into_data_stream();
    let problem = match take(&desk, &head, &mut stream).await {
        Ok(response) => return response,
        Err(Ended::Problem(problem)) => {
            desk.server.metrics().rejected.add(1);
            *problem
        }
        Err(Ended::Failure(failure)) => failure.into_problem(),
    };
    let drain = async {
        let mut drained = 0;
        while let Some(Ok(piece)) = stream.next().await {
            drained += piece.len();
            if drained > DRAINED_BYTES {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(DRAINED_FOR, drain).await;
    answer::problem(problem)
}

async fn take(
    desk: &Desk,
    request: &Parts,
    stream: &mut BodyDataStream,
) -> Result<Response, Ended> {
    let visitor = auth::visitor(desk, &request.headers)?;
    if request.uri.query().is_some() {
        let problem = Problem::new(Code::BadRequest, "no call has a query");
        return Err(Ended::Problem(Box::new(problem)));
    }
    let call = Call::parse(request.method.as_str(), request.uri.path())?;
    auth::check(visitor.as_ref(), &call)?;
    let server = &desk.server;
    let done = |()| answer::nothing();
    Ok(match call {
        Call::Download { job, digest, head } => {
            let key = BlobKey { job, digest };
            download::download(desk, key, head, &request.headers).await?
        }
        Call::BeginUpload(job) => {
            let begin: BeginUpload = body(desk, stream).await?;
            let plan: Vec<Planned> = begin.members.into_iter().map(Planned::from).collect();
            let begun = server.begin_upload(&job, begin.session, &plan).await?;
            let begun = UploadBegun {
                session: begin.session,
                missing: begun.missing,
            };
            answer::json(StatusCode::CREATED, &begun)
        }
        Call::SendMember {
            job,
            session,
            digest,
        } => {
            let length = request
                .headers
                .get(CONTENT_LENGTH)
                .and_then(|v| v.to_str().ok())
                .and_then(|v| v.parse().ok());
            let stream = TryStreamExt::map_err(&mut *stream, std::io::Error::other);
            let digest = server.put(&job, session, digest, length, stream).await?;
            answer::json(StatusCode::OK, &MemberArrived { digest })
        }
        Call::CommitUpload(job, session) => {
            let staged = server.commit_upload(&job, session).await?;
            let (state, held) = server.standing(&job, &staged.digests);
            let committed = UploadCommitted {
                staged,
                state,
                held,
            };
            answer::json(StatusCode::OK, &committed)
        }
        Call::AbortUpload(job, session) => server.abort_upload(&job, session).await.map(done)?,
        Call::JobEvent(job) => {
            let event: JobEvent = body(desk, stream).await?;
            server.job_event(&job, event).await.map(done)?
        }
        Call::Acquire(job, digest) => {
            let key = BlobKey { job, digest };
            match body(desk, stream).await? {
                AcquireBody::Receivers { receivers } => {
                    server.acquire_for(&key, receivers).await.map(done)?
                }
                AcquireBody::Lease { id, millis } => {
                    server.acquire_lease(&key, id, millis).await.map(done)?
                }
            }
        }
        Call::Renew(job, digest, lease) => {
            let renew: RenewBody = body(desk, stream).await?;
            let key = BlobKey { job, digest };
            server.renew(&key, lease, renew.millis).await.map(done)?
        }
        Call::Acknowledge(job, digest, who) => {
            let key = BlobKey { job, digest };
            server
                .release(&key, Holder::Receiver(who))
                .await
                .map(done)?
        }
        Call::Release(job, digest, lease) => {
            let key = BlobKey { job, digest };
            server.release(&key, Holder::Lease(lease)).await.map(done)?
        }
        Call::ListJobs => {
            let mut list = server.list_jobs()?;
            if let Some(token) = &visitor {
                list.jobs.retain(|j| token.covers(&j.job));
            }
            answer::json(StatusCode::OK, &list)
        }
        Call::ListBlobs(job) => answer::json(StatusCode::OK, &server.list_blobs(&job)?),
        Call::Why(job, digest) => {
            answer::json(StatusCode::OK, &server.why(&BlobKey { job, digest })?)
        }
    })
}

/// The body of a control call, which has a limit in size and time.
async fn body<T: serde::de::DeserializeOwned>(
    desk: &Desk,
    stream: &mut BodyDataStream,
) -> Result<T, Ended> {
    let refused = |code, what: String| Ended::Problem(Box::new(Problem::new(code, what)));
    let collect = async {
        let mut bytes = Vec::new();
        while let Some(piece) = stream.next().await {
            let unfinished = |e| refused(Code::BadRequest, format!("the body came to no end: {e}"));
            bytes.extend_from_slice(&piece.map_err(unfinished)?);
            if bytes.len() > LARGEST_BODY {
                let what = format!("a body may have {LARGEST_BODY} bytes");
                return Err(refused(Code::TooLarge, what));
            }
        }
        Ok(bytes)
    };
    match tokio::time::timeout(desk.idle_timeout, collect).await {
        Ok(bytes) => Ok(parse_body(&bytes?)?),
        Err(_) => {
            desk.server.metrics().stalled.add(1);
            let what = "the body did not come in time".to_string();
            Err(refused(Code::BadRequest, what))
        }
    }
}
