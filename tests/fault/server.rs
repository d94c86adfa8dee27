//! Listening, taking requests apart, misbehaving as told, and answering.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::call::Call;
use super::faults::{Action, Faults, Gate};
use super::log::{Kind, Log, Record, Service};
use super::reply::{Body, Reply, Text};
use super::state::State;
use super::{admin, azure, gcs, xml};

/// Larger bodies are refused: clients of this server write parts.
const BODY_LIMIT_BYTES: usize = 128 * 1024 * 1024;

/// What every request may need.
#[derive(Debug)]
pub struct Shared {
    pub state: State,
    pub log: Log,
    faults: Mutex<Faults>,
    pub known: Known,
}

/// The credentials that the server accepts.
#[derive(Debug, Clone)]
pub struct Known {
    pub access_key: String,
    pub accounts: [String; 2],
    /// With a bearer token here, Google's interface wants it.
    pub bearer: Option<String>,
}

impl Shared {
    pub fn new(known: Known) -> Shared {
        Shared {
            state: State::default(),
            log: Log::new(),
            faults: Mutex::default(),
            known,
        }
    }

    pub fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a copy that is under way is told to behave.
#[derive(Debug, Clone, Default)]
pub struct Pace {
    /// Longer than it would take.
    pub more: Duration,
    /// It ends when this lets it through.
    pub gate: Option<Gate>,
    /// A space comes this often meanwhile.
    pub trickle: Option<Duration>,
}

/// One request and where it came in.
#[derive(Debug)]
pub struct Context {
    pub shared: Arc<Shared>,
    pub call: Call,
    pub pace: Pace,
}

impl Context {
    pub fn state(&self) -> &State {
        &self.shared.state
    }

    /// Copies `bytes` in the time that they take: `finish` runs at the end of it, even if the
    /// client has gone away.
    pub async fn take_time(
        &self,
        bytes: u64,
        finish: impl FnOnce() -> Reply + Send + 'static,
    ) -> Reply {
        self.take_time_at(self.pace.clone(), bytes, finish).await
    }

    /// As [`Context::take_time`], at another pace.
    pub async fn take_time_at(
        &self,
        pace: Pace,
        bytes: u64,
        finish: impl FnOnce() -> Reply + Send + 'static,
    ) -> Reply {
        let time = self.shared.faults().copy_time(bytes) + pace.more;
        if time.is_zero() && pace.gate.is_none() {
            return finish();
        }
        let answer = tokio::spawn(async move {
            tokio::time::sleep(time).await;
            if let Some(gate) = pace.gate {
                gate.wait().await;
            }
            finish()
        });
        match pace.trickle {
            Some(every) => Reply::new(200)
                .with("content-type", "application/xml")
                .body(Text::Trickle { every, answer }),
            None => answer.await.unwrap_or_else(|_| Reply::new(500)),
        }
    }
}

/// A listener of one service. Stops when dropped.
#[derive(Debug)]
pub struct Listening {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Listens for requests to one service on `port` of the loopback address; 0 takes a free one.
pub async fn listen(shared: Arc<Shared>, service: Service, port: u16) -> io::Result<Listening> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    let task = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((stream, _)) = accepted else { continue };
                    // Small answers shall not wait for more.
                    let _ = stream.set_nodelay(true);
                    connections.spawn(serve(Arc::clone(&shared), service, stream));
                }
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
            }
        }
    });
    Ok(Listening { address, task })
}

async fn serve(shared: Arc<Shared>, service: Service, stream: tokio::net::TcpStream) {
    let answer = service_fn(move |request| answer(Arc::clone(&shared), service, request));
    // An error is a connection that was cut, by the client or by us on purpose.
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

/// Answers one request; an error cuts the connection.
async fn answer(
    shared: Arc<Shared>,
    service: Service,
    request: Request<Incoming>,
) -> io::Result<Response<Body>> {
    let started = Instant::now();
    let (head, body) = request.into_parts();
    let body = match Limited::new(body, BODY_LIMIT_BYTES).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let is_head = head.method == hyper::Method::HEAD;
    let mut headers = head.headers;
    if head.method == hyper::Method::PUT && shared.faults().ignore_put_conditions {
        for condition in ["if-none-match", "if-match", "x-goog-if-generation-match"] {
            headers.remove(condition);
        }
    }
    let call = Call::new(
        service,
        head.method.as_str(),
        head.uri.path(),
        head.uri.query().unwrap_or(""),
        headers,
        body,
    );
    if let Some(reply) = admin::answer(&shared, &call) {
        return Ok(reply.into_response(None, is_head));
    }
    let (kind, bucket, key) = classify(&call);
    // Rules know a listing by what it asks for.
    let named = match kind {
        Kind::List => call.param("prefix").unwrap_or("").to_string(),
        _ => key.clone(),
    };
    let plan = shared.faults().plan(service, kind, &bucket, &named);
    if !plan.latency.is_zero() {
        tokio::time::sleep(plan.latency).await;
    }
    let note = |status: u16| {
        let record = || Record {
            service,
            kind,
            method: head.method.to_string(),
            bucket: bucket.clone(),
            key: key.clone(),
            status,
            started,
        };
        shared.log.add(record, service, kind, status);
    };
    let speaks_json = service == Service::Gcs && gcs::classify(&call).is_some();
    let fail = |status, code: &str| match speaks_json {
        true => gcs::error(status, code),
        false => error(service, status, code),
    };
    if let Some(retry_after) = plan.throttled {
        note(503);
        let code = match service {
            Service::Azure => "ServerBusy",
            _ => "SlowDown",
        };
        let mut reply = fail(503, code);
        if let Some(seconds) = retry_after {
            reply = reply.with("retry-after", seconds.to_string());
        }
        return Ok(reply.into_response(None, is_head));
    }
    let mut pace = Pace::default();
    match &plan.action {
        Some(Action::Fail { status, code }) => {
            note(*status);
            return Ok(fail(*status, code).into_response(None, is_head));
        }
        Some(Action::FailInside { code }) => {
            note(200);
            return Ok(fail(200, code).into_response(None, is_head));
        }
        Some(Action::Reset) => {
            note(0);
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Some(Action::Delay(time)) if is_copy(kind) => pace.more = *time,
        Some(Action::Delay(time)) => tokio::time::sleep(*time).await,
        Some(Action::Hold { gate, trickle }) if is_copy(kind) => {
            pace.gate = Some(gate.clone());
            pace.trickle = *trickle;
        }
        Some(Action::Wait(gate) | Action::Hold { gate, .. }) => gate.wait().await,
        Some(Action::Trickle { every, total }) => {
            pace = Pace {
                more: *total,
                trickle: Some(*every),
                gate: None,
            }
        }
        _ => {}
    }
    if let Err(code) = arrives_whole(&call, matches!(plan.action, Some(Action::Damage))) {
        note(400);
        return Ok(fail(400, code).into_response(None, is_head));
    }
    let call = match plan.action {
        Some(Action::Damage) => damaged(call),
        _ => call,
    };
    let context = Context {
        shared: Arc::clone(&shared),
        call,
        pace,
    };
    let mut reply = execute(&context, kind).await;
    match plan.action {
        Some(Action::LoseReply { after: None }) => {
            note(0);
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Some(Action::LoseReply { after }) => {
            note(0);
            return Ok(reply.into_response(after, is_head));
        }
        Some(Action::DoneButFail { status, code }) => {
            note(status);
            return Ok(fail(status, code).into_response(None, is_head));
        }
        Some(Action::Flip { at }) => {
            if let Text::Object { flipped, .. } = &mut reply.body {
                *flipped = Some(at);
            }
        }
        _ => {}
    }
    note(reply.status);
    Ok(reply.into_response(None, is_head))
}

/// The body with its last byte changed.
fn damaged(call: Call) -> Call {
    let mut body = call.body.to_vec();
    if let Some(last) = body.last_mut() {
        *last ^= 0x01;
    }
    Call {
        body: body.into(),
        ..call
    }
}

/// Is the body what its checksum says? What was damaged on the way is not, if there is one.
fn arrives_whole(call: &Call, damage: bool) -> Result<(), &'static str> {
    use base64::Engine as _;
    use md5::Digest as _;
    let Some(said) = call.header("content-md5") else {
        return Ok(());
    };
    let sum = base64::engine::general_purpose::STANDARD.encode(md5::Md5::digest(&call.body));
    let untouched = !damage || call.body.is_empty();
    match untouched && said == sum {
        true => Ok(()),
        false if call.service == Service::Azure => Err("Md5Mismatch"),
        false => Err("BadDigest"),
    }
}

fn is_copy(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Copy | Kind::CopyPart | Kind::PutFromUrl | Kind::Rewrite
    )
}

/// Kind, bucket and key of a request.
fn classify(call: &Call) -> (Kind, String, String) {
    if call.service == Service::Gcs
        && let Some(of_json) = gcs::classify(call)
    {
        return of_json;
    }
    let kind = match call.service {
        Service::Azure => azure::classify(call),
        _ => xml::classify(call),
    };
    (kind, call.bucket.clone(), call.key.clone())
}

async fn execute(context: &Context, kind: Kind) -> Reply {
    match context.call.service {
        Service::Azure => azure::execute(context, kind).await,
        Service::Gcs if gcs::classify(&context.call).is_some() => gcs::execute(context, kind).await,
        _ => xml::execute(context, kind).await,
    }
}

/// An error in the form of the service.
pub fn error(service: Service, status: u16, code: &str) -> Reply {
    let text = format!(
        "<Error><Code>{code}</Code><Message>{}</Message><RequestId>0</RequestId></Error>",
        message(code)
    );
    let reply = Reply::xml(status, text);
    match service {
        Service::Azure => reply.with("x-ms-error-code", code),
        _ => reply,
    }
}

fn message(code: &str) -> &'static str {
    match code {
        "PreconditionFailed" => "At least one of the pre-conditions you specified did not hold",
        "SlowDown" => "Please reduce your request rate.",
        "NoSuchKey" => "The specified key does not exist.",
        "NoSuchBucket" => "The specified bucket does not exist",
        "NoSuchUpload" => "The specified multipart upload does not exist.",
        "AccessDenied" => "Access Denied",
        "InvalidAccessKeyId" => "The AWS Access Key Id you provided does not exist in our records.",
        "EntityTooLarge" => "Your proposed upload exceeds the maximum allowed object size.",
        "EntityTooSmall" => "Your proposed upload is smaller than the minimum allowed size",
        "InternalError" => "We encountered an internal error. Please try again.",
        _ => "The fault server says so.",
    }
}

/// Not what a server would say: a request that the double should learn.
pub fn not_known(call: &Call) -> Reply {
    let text = format!(
        "the fault server does not know {} {}",
        call.method, call.path
    );
    Reply::new(501)
        .with("content-type", "text/plain")
        .body(Text::Bytes(Bytes::from(text)))
}
