//! Writing what passes through this process: whole objects with a checksum that the service checks, and
//! resumable uploads, which unlike those in parts take a condition for the object that they make.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderValue, LOCATION};
use http::{Method as HttpMethod, Request};
use object_store::client::{HttpRequest, HttpRequestBody};
use serde::Deserialize;

use crate::error::{Error, ErrorKind, Result};

use super::super::checksum::Md5Sum;
use super::super::duplicate::{Copied, CopyOrder};
use super::super::http::{
    Answer, Asking, Attempt, Wire, answered_badly, encode_key, encode_part, patience,
    upload_patience,
};
use super::super::location::Location;
use super::super::method::Method;
use super::super::stat::{Put, Stat};
use super::GcsBucket;

/// What an upload came to by one chunk.
pub(crate) enum Chunk {
    /// So many bytes of the object are there.
    Stored(u64),
    /// The object is there.
    Done(Resource),
    /// It is done, but another object is there, or our own of an attempt whose reply was lost.
    Taken {
        /// An earlier attempt may have made it.
        uncertain: bool,
    },
}

/// What the service says of an object.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Resource {
    generation: Option<String>,
    md5_hash: Option<String>,
}

impl GcsBucket {
    async fn authorized(&self, mut request: HttpRequest) -> Result<HttpRequest> {
        self.authorize(&mut request).await?;
        Ok(request)
    }

    fn build(method: HttpMethod, url: &str, at: &Location) -> Result<HttpRequest> {
        Request::builder()
            .method(method)
            .uri(url)
            .header(CONTENT_LENGTH, "0")
            .body(HttpRequestBody::empty())
            .map_err(|e| Error::invalid(e.to_string()).at(at))
    }

    /// Writes an object in one request.
    pub(crate) async fn put(
        &self,
        wire: Wire<'_>,
        at: &Location,
        bytes: &Bytes,
        create_only: bool,
    ) -> Result<Put> {
        let size = bytes.len() as u64;
        let sum = Md5Sum::of(bytes).await?;
        let url = &format!(
            "{}/{}/{}",
            self.endpoint,
            encode_part(&self.bucket),
            encode_key(at.key())
        );
        let outcome = wire.ask(
            Asking {
                operation: "write",
                at,
                patience: upload_patience(size),
            },
            |_| async move {
                let mut request = GcsBucket::build(HttpMethod::PUT, url, at)?;
                let headers = request.headers_mut();
                headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
                headers.insert("content-md5", sum.header()?);
                if create_only {
                    headers.insert("x-goog-if-generation-match", HeaderValue::from_static("0"));
                }
                *request.body_mut() = bytes.clone().into();
                self.authorized(request).await
            },
            move |answer, uncertain| async move {
                match answer.status {
                    200 => Attempt::Done(Put::Written(Stat {
                        size,
                        tag: answer.header("etag").map(str::to_string),
                        version: answer.header("x-goog-generation").map(str::to_string),
                        ..Stat::default()
                    })),
                    412 if create_only => Attempt::Done(Put::Taken { uncertain }),
                    _ => answered_badly(&answer, "write", at),
                }
            },
        );
        outcome.await.map(|o| o.value)
    }

    /// Begins a resumable upload of `total` bytes, if that is known, and returns its URL, which is a secret
    /// of its own. One request.
    pub(crate) async fn begin_upload(
        &self,
        wire: Wire<'_>,
        order: &CopyOrder<'_>,
        total: Option<u64>,
    ) -> Result<String> {
        const DOING: &str = "begin an upload to";
        let at = order.destination;
        let condition = if order.create_only {
            "&ifGenerationMatch=0"
        } else {
            ""
        };
        let url = &format!(
            "{}/upload/storage/v1/b/{}/o?uploadType=resumable&name={}{condition}",
            self.endpoint,
            encode_part(&self.bucket),
            encode_part(at.key()),
        );
        let outcome = wire.ask(
            Asking {
                operation: DOING,
                at,
                patience: patience(0),
            },
            |_| async move {
                let mut request = GcsBucket::build(HttpMethod::POST, url, at)?;
                if let Some(total) = total {
                    let headers = request.headers_mut();
                    headers.insert("x-upload-content-length", HeaderValue::from(total));
                }
                self.authorized(request).await
            },
            move |answer, _| async move {
                match (answer.status, answer.header(LOCATION.as_str())) {
                    (200 | 201, Some(session)) => match self.own_url(session) {
                        Some(session) => Attempt::Done(session),
                        None => Attempt::Failed(
                            Error::new(ErrorKind::Unavailable, "the upload would go elsewhere")
                                .during(DOING)
                                .at(at),
                        ),
                    },
                    (412, _) => Attempt::Failed(order.refused()),
                    _ => answered_badly(&answer, DOING, at),
                }
            },
        );
        outcome.await.map(|o| o.value)
    }

    /// The path and query of a URL that the service named, at the endpoint that we were told: a token
    /// goes nowhere else.
    fn own_url(&self, session: &str) -> Option<String> {
        let base = url::Url::parse(&self.endpoint).ok()?;
        let url = base.join(session).ok()?;
        let query = url.query().map(|q| format!("?{q}")).unwrap_or_default();
        Some(format!("{}{}{query}", self.endpoint, url.path()))
    }

    /// Writes `bytes`, the next ones of an upload, from `start` on, however often the service takes only some of
    /// them: [`Chunk::Stored`] when it has them all. One request each time.
    pub(crate) async fn put_all(
        &self,
        wire: Wire<'_>,
        order: &CopyOrder<'_>,
        session: &str,
        start: u64,
        bytes: &Bytes,
        total: Option<u64>,
    ) -> Result<Chunk> {
        let end = start + bytes.len() as u64;
        let mut stored = start;
        while stored < end {
            let from = usize::try_from(stored - start).unwrap_or(usize::MAX);
            let rest = bytes.slice(from..);
            let chunk = self.put_chunk(wire, order, session, stored, &rest, total);
            match chunk.await? {
                Chunk::Stored(now) if now > stored && now <= end => stored = now,
                Chunk::Stored(_) => return Err(unfinished(order.destination)),
                over => return Ok(over),
            }
        }
        Ok(Chunk::Stored(stored))
    }

    /// Writes the next bytes of an upload, from `start` on. `total` is how many there will be, which is
    /// known with the last ones. One request; two if a reply was lost.
    async fn put_chunk(
        &self,
        wire: Wire<'_>,
        order: &CopyOrder<'_>,
        session: &str,
        start: u64,
        bytes: &Bytes,
        total: Option<u64>,
    ) -> Result<Chunk> {
        let at = order.destination;
        let end = start + bytes.len() as u64;
        let total = &total.map_or_else(|| "*".to_string(), |total| total.to_string());
        let outcome = wire.ask(
            Asking {
                operation: "write a part of",
                at,
                patience: upload_patience(end - start),
            },
            |uncertain| async move {
                let mut request = GcsBucket::build(HttpMethod::PUT, session, at)?;
                let range = if uncertain {
                    // What was sent may have arrived: ask how far it came.
                    format!("bytes */{total}")
                } else {
                    *request.body_mut() = bytes.clone().into();
                    let length = HeaderValue::from(end - start);
                    request.headers_mut().insert(CONTENT_LENGTH, length);
                    format!("bytes {start}-{}/{total}", end.saturating_sub(1))
                };
                let range = HeaderValue::from_str(&range)
                    .map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
                request.headers_mut().insert(CONTENT_RANGE, range);
                self.authorized(request).await
            },
            move |answer, uncertain| async move { judge_chunk(&answer, at, uncertain) },
        );
        outcome.await.map(|o| o.value)
    }

    /// What an upload has made, if the service's checksum of it is ours; else it is removed.
    pub(crate) async fn accept(
        &self,
        wire: Wire<'_>,
        order: &CopyOrder<'_>,
        made: Resource,
        sum: Md5Sum,
    ) -> Result<Copied> {
        if made
            .md5_hash
            .as_ref()
            .is_none_or(|hash| *hash == sum.base64())
        {
            return Ok(Copied::new(Method::Relay, made.generation));
        }
        if let Some(generation) = &made.generation {
            self.delete_generation(wire, order.destination, generation)
                .await?;
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            "what arrived is not what was sent; it was removed",
        )
        .during("write")
        .at(order.destination))
    }

    /// Another object is there, or our own of an attempt whose reply was lost. One request.
    pub(crate) async fn taken(&self, order: &CopyOrder<'_>, uncertain: bool) -> Result<Copied> {
        let looked = order.after_refusal(&self.store, Method::Relay, uncertain);
        match looked.await {
            Attempt::Done(copied) => Ok(copied),
            Attempt::Failed(e) => Err(e),
            Attempt::Again(again) => Err(again.error),
        }
    }

    async fn delete_generation(
        &self,
        wire: Wire<'_>,
        at: &Location,
        generation: &str,
    ) -> Result<()> {
        let url = &format!(
            "{}/storage/v1/b/{}/o/{}?ifGenerationMatch={}",
            self.endpoint,
            encode_part(&self.bucket),
            encode_part(at.key()),
            encode_part(generation),
        );
        let outcome = wire.ask(
            Asking {
                operation: "delete",
                at,
                patience: patience(0),
            },
            |_| async move {
                self.authorized(GcsBucket::build(HttpMethod::DELETE, url, at)?)
                    .await
            },
            move |answer, _| async move {
                match answer.status {
                    200 | 204 | 404 | 412 => Attempt::Done(()),
                    _ => answered_badly(&answer, "delete", at),
                }
            },
        );
        outcome.await.map(|o| o.value)
    }
}

/// The error for an upload whose service takes no more, or has made an object too early.
pub(crate) fn unfinished(at: &Location) -> Error {
    Error::new(ErrorKind::Unavailable, "the upload does not move on")
        .during("write")
        .at(at)
}

fn judge_chunk(answer: &Answer, at: &Location, uncertain: bool) -> Attempt<Chunk> {
    match answer.status {
        200 | 201 => match serde_json::from_slice::<Resource>(&answer.body) {
            Ok(resource) => Attempt::Done(Chunk::Done(resource)),
            Err(_) => answered_badly(answer, "write a part of", at),
        },
        // No range: nothing is there yet.
        308 => Attempt::Done(Chunk::Stored(
            answer
                .header("range")
                .and_then(|range| range.rsplit('-').next()?.parse::<u64>().ok())
                .map_or(0, |last| last.saturating_add(1)),
        )),
        412 => Attempt::Done(Chunk::Taken { uncertain }),
        _ => answered_badly(answer, "write a part of", at),
    }
}
