//! Requests of our own, for what object_store's interface does not offer: copies with conditions
//! and with answers that are read to the end.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::HeaderMap;
use object_store::client::{HttpClient, HttpErrorKind, HttpRequest};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::clock;
use crate::error::{Error, ErrorKind, Result, chain_text};

use super::errors;
use super::location::Location;
use super::pacing::Pacer;

/// How often one request may fail before we give up.
const MAX_FAILURES: u32 = 6;
/// And how often it may be told to come back later.
const MAX_THROTTLES: u32 = 40;
const BACKOFF_BASE: Duration = Duration::from_millis(100);
const BACKOFF_CEILING: Duration = Duration::from_secs(15);
/// Answers to copies are short; more than this is not an answer to what we asked.
const ANSWER_LIMIT_BYTES: usize = 1024 * 1024;
/// A copy is given a minute plus the time it takes at this rate before it counts as lost.
const SLOWEST_COPY_BYTES_PER_SECOND: u64 = 5_000_000;

/// Everything but the unreserved characters of RFC 3986.
const KEY_PART: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
const KEY: &AsciiSet = &KEY_PART.remove(b'/');

/// A key as it stands in a URL path, slashes kept.
pub(crate) fn encode_key(key: &str) -> String {
    utf8_percent_encode(key, KEY).to_string()
}

/// A key as one part of a URL path, slashes encoded too.
pub(crate) fn encode_part(key: &str) -> String {
    utf8_percent_encode(key, KEY_PART).to_string()
}

/// A full answer of a service.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// The request did not get out: it has had no effect.
    NotSent(String),
    /// The request went out and the reply was lost: it may have had its effect.
    Lost(String),
}

/// What a request is to the service, and how long its answer may take therefore.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    time: Duration,
    bytes: u64,
}

/// That for an upload of `size` bytes: at 100 kB/s it is still let through.
pub(crate) fn upload_patience(size: u64) -> Patience {
    Patience {
        time: Duration::from_secs(120 + size / 100_000),
        bytes: size,
    }
}

/// That for a copy of `size` bytes.
pub(crate) fn patience(size: u64) -> Patience {
    Patience {
        time: Duration::from_secs(60 + size / SLOWEST_COPY_BYTES_PER_SECOND),
        bytes: size,
    }
}

/// Sends one request and reads its whole answer.
pub(crate) async fn send(
    client: &HttpClient,
    request: HttpRequest,
    patience: Duration,
) -> Result<Answer, NoAnswer> {
    let exchange = async {
        let response = client.execute(request).await.map_err(|e| match e.kind() {
            HttpErrorKind::Connect => NoAnswer::NotSent(chain_text(Some(&e))),
            _ => NoAnswer::Lost(chain_text(Some(&e))),
        })?;
        let (head, body) = response.into_parts();
        let mut bytes = BytesMut::new();
        let mut chunks = body.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|e| NoAnswer::Lost(chain_text(Some(&e))))?;
            if bytes.len() + chunk.len() > ANSWER_LIMIT_BYTES {
                return Err(NoAnswer::Lost("the answer does not end".into()));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body: bytes.freeze(),
        })
    };
    match tokio::time::timeout(patience, exchange).await {
        Ok(result) => result,
        Err(_) => Err(NoAnswer::Lost(format!(
            "no answer within {} s",
            patience.as_secs()
        ))),
    }
}

/// What one attempt came to.
pub(crate) enum Attempt<T> {
    /// It worked.
    Done(T),
    /// It failed, and would fail again.
    Failed(Error),
    /// It may work when repeated.
    Again(Again),
}

impl<T> Attempt<T> {
    /// The same with what it came to made into something else.
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Attempt<U> {
        match self {
            Attempt::Done(value) => Attempt::Done(change(value)),
            Attempt::Failed(e) => Attempt::Failed(e),
            Attempt::Again(again) => Attempt::Again(again),
        }
    }
}

/// Why an attempt is worth repeating.
pub(crate) struct Again {
    pub(crate) error: Error,
    /// It may also have worked already.
    pub(crate) uncertain: bool,
    /// The service asked us to slow down: not the request's fault.
    pub(crate) throttled: bool,
    /// How long the service asked us to wait.
    pub(crate) after: Option<Duration>,
}

/// What the attempts came to together.
pub(crate) struct Outcome<T> {
    pub(crate) value: T,
    pub(crate) attempts: u32,
}

/// What the attempts at one request came to so far.
#[derive(Default)]
struct Retries {
    failures: u32,
    throttles: u32,
    /// One of them may have had its effect.
    uncertain: bool,
}

impl Retries {
    /// The outcome, if there is one; else waits until it is time for the next attempt.
    async fn after<T>(&mut self, attempt: Attempt<T>) -> Result<Option<Outcome<T>>> {
        let again = match attempt {
            Attempt::Done(value) => {
                return Ok(Some(Outcome {
                    value,
                    attempts: self.failures + self.throttles + 1,
                }));
            }
            Attempt::Failed(error) => return Err(error),
            Attempt::Again(again) => again,
        };
        let counter = if again.throttled {
            &mut self.throttles
        } else {
            &mut self.failures
        };
        *counter += 1;
        let Retries {
            failures,
            throttles,
            ..
        } = *self;
        if failures >= MAX_FAILURES || throttles >= MAX_THROTTLES {
            let attempts = failures + throttles;
            return Err(again
                .error
                .hint(format!("gave up after {attempts} attempts")));
        }
        tracing::debug!(failures, throttles, again.uncertain, error = %again.error, "repeating a request");
        self.uncertain |= again.uncertain;
        // A throttled request waits for its turn anew anyway.
        let step = if again.throttled { 0 } else { failures - 1 };
        let wait = again
            .after
            .unwrap_or_else(|| clock::backoff(step, BACKOFF_BASE, BACKOFF_CEILING))
            .min(Duration::from_secs(60));
        clock::sleep(wait).await;
        Ok(None)
    }
}

/// What requests of our own to one bucket go through.
#[derive(Clone, Copy)]
pub(crate) struct Wire<'a> {
    pub(crate) http: &'a HttpClient,
    pub(crate) pacer: &'a Pacer,
}

impl Wire<'_> {
    /// One attempt: waits for its turn, makes and signs the request (only now, so that its date is
    /// fresh), sends it, and has `judge` say what the answer means. `operation` and `at` name it in
    /// errors.
    pub(crate) async fn attempt<T, F: Future<Output = Attempt<T>>>(
        self,
        request: impl Future<Output = Result<HttpRequest>>,
        patience: Patience,
        operation: &'static str,
        at: &Location,
        judge: impl FnOnce(Answer) -> F,
    ) -> Attempt<T> {
        let turn = self.pacer.begin(patience.bytes).await;
        let request = match request.await {
            Ok(request) => request,
            Err(e) => return Attempt::Failed(e),
        };
        match send(self.http, request, patience.time).await {
            Ok(answer) => {
                match errors::is_throttle(answer.status, &answer.body) {
                    true => turn.throttled(),
                    false => turn.answered(),
                }
                judge(answer).await
            }
            Err(why) => unanswered(why, operation, at),
        }
    }
}

/// One kind of request of our own, in words and in time.
#[derive(Clone, Copy)]
pub(crate) struct Asking<'a> {
    /// What it does, for errors.
    pub(crate) operation: &'static str,
    /// To which object.
    pub(crate) at: &'a Location,
    /// How long to wait for the answer.
    pub(crate) patience: Patience,
}

impl Wire<'_> {
    /// A request repeated until it is done, fails for good, or was tried often enough: made anew (and
    /// signed anew) by `request`, its answer judged by `judge`; both also learn whether an earlier
    /// attempt may have had its effect.
    pub(crate) async fn ask<T, R, J>(
        self,
        asking: Asking<'_>,
        request: impl Fn(bool) -> R,
        judge: impl Fn(Answer, bool) -> J,
    ) -> Result<Outcome<T>>
    where
        R: Future<Output = Result<HttpRequest>>,
        J: Future<Output = Attempt<T>>,
    {
        let Asking {
            operation,
            at,
            patience,
        } = asking;
        let mut retries = Retries::default();
        loop {
            let uncertain = retries.uncertain;
            let attempt = self
                .attempt(request(uncertain), patience, operation, at, |answer| {
                    judge(answer, uncertain)
                })
                .await;
            if let Some(outcome) = retries.after(attempt).await? {
                return Ok(outcome);
            }
        }
    }
}

/// The attempt that ended without an answer.
fn unanswered<T>(why: NoAnswer, operation: &'static str, at: &Location) -> Attempt<T> {
    let (text, uncertain) = match why {
        NoAnswer::NotSent(text) => (text, false),
        NoAnswer::Lost(text) => (text, true),
    };
    let hint = (!uncertain).then(|| errors::no_connection_hint(&text));
    let error = Error::new(ErrorKind::Unavailable, text)
        .during(operation)
        .at(at);
    Attempt::Again(Again {
        error: match hint {
            Some(hint) => error.hint(hint),
            None => error,
        },
        uncertain,
        throttled: false,
        after: None,
    })
}

/// The attempt that ended with a failure status, or an error inside a success.
pub(crate) fn answered_badly<T>(
    answer: &Answer,
    operation: &'static str,
    at: &Location,
) -> Attempt<T> {
    let error = errors::from_answer(answer.status, &answer.body, operation, at);
    if !errors::worth_repeating(answer.status, &answer.body) {
        return Attempt::Failed(error);
    }
    let after = answer
        .header("retry-after")
        .and_then(|v| v.parse().ok())
        .map(Duration::from_secs)
        .or_else(|| {
            let millis = answer.header("x-ms-retry-after-ms")?.parse().ok()?;
            Some(Duration::from_millis(millis))
        });
    Attempt::Again(Again {
        error: error.with_kind(ErrorKind::Unavailable),
        // A 5xx says nothing about what was done before it; "slow down" says that nothing was.
        uncertain: (answer.status >= 500 && answer.status != 503) || answer.status == 200,
        throttled: errors::is_throttle(answer.status, &answer.body),
        after,
    })
}
