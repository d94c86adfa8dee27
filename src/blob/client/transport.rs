//! One request and its answer; what is repeated, and after which pause.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, header};
use reqwest::Response;

use crate::clock;
use crate::error::{Error, ErrorKind, Result, chain_text};

use super::super::wire::{Call, Code, LARGEST_PROBLEM, Problem, Verb};
use super::BlobClient;
use super::waiting::{SILENCE, Waiting, longest_wait};

/// The longest pause before a repetition.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A server that asks for more patience than this is asked again earlier.
const LONGEST_WISH: Duration = Duration::from_secs(60);
/// An answer to a control call larger than this is not read: 64 MiB.
const LARGEST_ANSWER: usize = 64 << 20;

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server said so.
    Said(Box<Problem>),
    /// There was no answer, or none that is one.
    Silent(Error),
}

impl Failure {
    /// True where the same call may succeed in a moment.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Failure::Said(p) => matches!(p.code, Code::TooMany | Code::Busy | Code::NotOwner),
            Failure::Silent(e) => e.kind() == ErrorKind::Unavailable,
        }
    }

    /// As the library's error. Not a `From`: a second conversion into [`Error`] would leave the types of
    /// other code's `?` open.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Failure::Said(problem) => problem.into_error(),
            Failure::Silent(error) => error,
        }
    }

    fn why(&self) -> String {
        match self {
            Failure::Said(p) => p.detail.clone(),
            Failure::Silent(e) => e.to_string(),
        }
    }

    fn wish(&self) -> Option<Duration> {
        match self {
            Failure::Said(p) => p.retry_after.map(Duration::from_secs),
            Failure::Silent(_) => None,
        }
    }

    pub(crate) fn code(&self) -> Option<Code> {
        match self {
            Failure::Said(p) => Some(p.code),
            Failure::Silent(_) => None,
        }
    }
}

/// An error and its causes on one line; without the URL, which our own messages name.
pub(super) fn chain(e: &reqwest::Error) -> String {
    let mut text = chain_text(std::error::Error::source(e).map(|cause| cause as _));
    if text.is_empty() {
        text = match e {
            e if e.is_timeout() => "the time is over".to_string(),
            e if e.is_connect() => "no connection".to_string(),
            _ => "the exchange failed".to_string(),
        };
    }
    text
}

/// Remembers when bytes moved last, so that a long upload is not taken for a silent one.
#[derive(Debug, Clone)]
pub(super) struct Movement {
    began: Instant,
    moved: Arc<AtomicU64>,
    /// More patience, in milliseconds, where the server has work to do before it answers.
    extra: Arc<AtomicU64>,
}

impl Movement {
    pub(super) fn new() -> Movement {
        Movement {
            began: Instant::now(),
            moved: Arc::default(),
            extra: Arc::default(),
        }
    }

    pub(super) fn moved(&self) {
        let millis = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved.store(millis, Ordering::Relaxed);
    }

    /// The last of `size` bytes is on its way.
    pub(super) fn all_out(&self, size: u64) {
        self.expects(size);
        self.moved();
    }

    /// The other side has work to do on `size` bytes before it answers: at 20 MB/s it is still waited for.
    pub(super) fn expects(&self, size: u64) {
        self.extra.store(size / 20_000, Ordering::Relaxed);
    }

    /// Runs `work` until nothing has moved for `idle`. Says once that nothing has moved for a while, and how long it
    /// is still waited.
    async fn watch<T>(
        &self,
        idle: Duration,
        work: impl Future<Output = T>,
        silent: impl FnOnce(Duration),
    ) -> Option<T> {
        tokio::pin!(work);
        let mut silent = Some(silent).filter(|_| idle > SILENCE);
        loop {
            let extra = Duration::from_millis(self.extra.load(Ordering::Relaxed));
            let moved = Duration::from_millis(self.moved.load(Ordering::Relaxed));
            let expected = self.began + moved + extra;
            let (until, now) = (expected + idle, Instant::now());
            if until <= now {
                return None;
            }
            if expected + SILENCE <= now
                && let Some(tell) = silent.take()
            {
                tell(until - now);
            }
            let until = match silent {
                Some(_) => expected + SILENCE,
                None => until,
            };
            let wait = tokio::time::timeout_at(until.into(), work.as_mut());
            if let Ok(done) = wait.await {
                return Some(done);
            }
        }
    }
}

/// What is sent besides the call.
pub(super) struct Sending {
    pub(super) headers: HeaderMap,
    pub(super) body: Option<reqwest::Body>,
    pub(super) movement: Movement,
}

impl Sending {
    pub(super) fn nothing() -> Sending {
        Sending {
            headers: HeaderMap::new(),
            body: None,
            movement: Movement::new(),
        }
    }

    pub(super) fn json(bytes: Bytes) -> Sending {
        let mut headers = HeaderMap::new();
        let json = header::HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        Sending {
            headers,
            body: Some(bytes.into()),
            movement: Movement::new(),
        }
    }
}

fn method(verb: Verb) -> Method {
    match verb {
        Verb::Get => Method::GET,
        Verb::Head => Method::HEAD,
        Verb::Post => Method::POST,
        Verb::Put => Method::PUT,
        Verb::Delete => Method::DELETE,
    }
}

impl BlobClient {
    /// One attempt: the answer's head, if the call succeeded.
    pub(super) async fn attempt(&self, call: &Call, sending: Sending) -> Result<Response, Failure> {
        let shared = &self.0;
        let server = self.server();
        let no_answer = |kind, text: String| {
            let text = format!("{text} ({} {call})", call.verb().as_str());
            Failure::Silent(Error::new(kind, text).during("ask").at(&server))
        };
        let url = format!("{}{call}", server.as_str().trim_end_matches('/'));
        let mut request = shared.http.request(method(call.verb()), url);
        request = request.headers(sending.headers);
        if let Some(token) = &shared.config.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = sending.body {
            request = request.body(body);
        }
        let idle = shared.config.idle_timeout;
        let silent = |longest| {
            self.waits(&Waiting::Silent {
                call: format!("{} {call} ({server})", call.verb().as_str()),
                silent: SILENCE,
                longest,
            });
        };
        let answer = sending.movement.watch(idle, request.send(), silent).await;
        let response = match answer {
            None => {
                let text = format!("nothing moved for {} s", idle.as_secs_f64());
                return Err(no_answer(ErrorKind::Unavailable, text));
            }
            Some(Err(e)) if e.is_builder() => return Err(no_answer(ErrorKind::Invalid, chain(&e))),
            Some(Err(e)) => return Err(no_answer(ErrorKind::Unavailable, chain(&e))),
            Some(Ok(response)) => response,
        };
        let status = response.status().as_u16();
        if response.status().is_success() {
            return Ok(response);
        }
        let wish = response.headers().get(header::RETRY_AFTER);
        let wish = wish.and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
        let body = self.body(response, LARGEST_PROBLEM).await;
        let mut problem = match body.and_then(|b| Problem::from_json(&b, status)) {
            Ok(problem) => problem,
            // The answer to a HEAD has no body, and proxies have their own words.
            Err(e) => match code_of_status(status) {
                Some(code) => Problem {
                    status,
                    ..Problem::new(code, format!("the server answered {status}"))
                },
                None if status >= 500 => {
                    let text = format!("the server answered {status}");
                    return Err(no_answer(ErrorKind::Unavailable, text));
                }
                None => return Err(Failure::Silent(e.during("ask").at(&server))),
            },
        };
        problem.retry_after = problem.retry_after.or(wish);
        Err(Failure::Said(Box::new(problem)))
    }

    /// The whole body of an answer of at most `limit` bytes.
    pub(super) async fn body(&self, mut response: Response, limit: usize) -> Result<Bytes> {
        let server = self.server();
        let fail = |text: String| {
            Error::new(ErrorKind::Unavailable, text)
                .during("read the answer of")
                .at(&server)
        };
        let mut whole = BytesMut::new();
        loop {
            let idle = self.0.config.idle_timeout;
            match tokio::time::timeout(idle, response.chunk()).await {
                Err(_) => return Err(fail(format!("nothing moved for {} s", idle.as_secs_f64()))),
                Ok(Err(e)) => return Err(fail(chain(&e))),
                Ok(Ok(None)) => return Ok(whole.freeze()),
                Ok(Ok(Some(chunk))) if whole.len() + chunk.len() > limit => {
                    return Err(fail(format!("it is longer than {limit} bytes"))
                        .with_kind(ErrorKind::Corrupt));
                }
                Ok(Ok(Some(chunk))) => whole.extend_from_slice(&chunk),
            }
        }
    }

    /// After a failed attempt: pauses and lets the caller repeat it, or gives the failure back.
    pub(super) async fn again(&self, failure: Failure, failed: &mut u32) -> Result<(), Failure> {
        let config = &self.0.config;
        *failed += 1;
        if !failure.is_transient() || *failed > config.retries {
            return Err(failure);
        }
        tracing::debug!(failed, ?failure, "repeating a call to the blob server");
        if let Failure::Said(problem) = &failure
            && problem.code == Code::NotOwner
            && let Some(owner) = &problem.owner
            && self.follow(owner)
        {
            return Ok(());
        }
        let wish = failure.wish().unwrap_or_default().min(LONGEST_WISH);
        let pause = clock::backoff(*failed - 1, config.backoff, LONGEST_PAUSE).max(wish);
        let longest = longest_wait(*failed, config.retries, config.backoff, LONGEST_PAUSE, wish);
        self.waits(&Waiting::Repeats {
            why: failure.why(),
            pause,
            longest,
        });
        clock::sleep(pause).await;
        Ok(())
    }

    /// A call that is safe to repeat, as all calls of the protocol are: its whole answer.
    pub(super) async fn ask(&self, call: &Call, body: Option<Bytes>) -> Result<Bytes, Failure> {
        let mut failed = 0;
        loop {
            let sending = match &body {
                Some(bytes) => Sending::json(bytes.clone()),
                None => Sending::nothing(),
            };
            let tried = match self.attempt(call, sending).await {
                Ok(response) => self
                    .body(response, LARGEST_ANSWER)
                    .await
                    .map_err(Failure::Silent),
                Err(e) => Err(e),
            };
            match tried {
                Ok(bytes) => return Ok(bytes),
                Err(failure) => self.again(failure, &mut failed).await?,
            }
        }
    }
}

/// What a status means that comes without a problem document.
fn code_of_status(status: u16) -> Option<Code> {
    Some(match status {
        400 => Code::BadRequest,
        401 => Code::Unauthorized,
        403 => Code::Denied,
        404 => Code::NotFound,
        405 => Code::NoSuchMethod,
        410 => Code::JobOver,
        413 => Code::TooLarge,
        416 => Code::RangeNotSatisfiable,
        421 => Code::NotOwner,
        429 => Code::TooMany,
        503 => Code::Busy,
        507 => Code::NoSpace,
        _ => return None,
    })
}
