//! The HTTP service: connections with limits, who may ask what, and the calls of [`wire`](super::wire) passed
//! to a [`BlobServer`].

mod answer;
mod auth;
mod calls;
mod download;
mod stall;
mod tls;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::error::{Error, ErrorKind, Result};

use super::server::BlobServer;

use auth::Tokens;
use stall::StallGuard;

pub use auth::Right;

/// Times and sizes of connections.
#[derive(Debug, Clone)]
pub struct HttpLimits {
    /// Connections at once; one more is answered `503` and closed. 1,024.
    pub most_connections: usize,
    /// The head of a request, TLS included, must be there within this time, and so must the next one on a
    /// connection that is kept. 10 s.
    pub header_timeout: Duration,
    /// Bytes of a request's head. 64 KiB; at least 8 KiB.
    pub most_header_bytes: usize,
    /// Header fields of a request. 64.
    pub most_headers: usize,
    /// Within this time something must move in a direction in which something is to move. 60 s.
    pub idle_timeout: Duration,
    /// How long requests under way may go on once the service is to end. 10 s.
    pub drain: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        HttpLimits {
            most_connections: 1024,
            header_timeout: Duration::from_secs(10),
            most_header_bytes: 64 * 1024,
            most_headers: 64,
            idle_timeout: Duration::from_secs(60),
            drain: Duration::from_secs(10),
        }
    }
}

/// Certificates: PEM files.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's chain.
    pub certificates: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Clients must have a certificate of one of these authorities.
    pub client_authorities: Option<PathBuf>,
}

/// Settings of the service.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// `blob.server.bind`. Port 0: a free one.
    pub bind: SocketAddr,
    /// A second listener for `/livez`, `/readyz` and `/metrics` alone, without TLS and tokens.
    pub operations: Option<SocketAddr>,
    /// `blob.auth.tokens`: a JSON file of tokens, read again when it changes.
    pub tokens: Option<PathBuf>,
    /// `blob.tls.*`.
    pub tls: Option<TlsFiles>,
    /// Lets anybody in who reaches an address that is not a loopback one. Logged at every start.
    pub insecure: bool,
    /// Times and sizes.
    pub limits: HttpLimits,
}

impl HttpConfig {
    /// The defaults, on this address.
    pub fn new(bind: SocketAddr) -> HttpConfig {
        HttpConfig {
            bind,
            operations: None,
            tokens: None,
            tls: None,
            insecure: false,
            limits: HttpLimits::default(),
        }
    }

    /// May this address be served so?
    ///
    /// # Errors
    ///
    /// `Refused` for one that others reach without tokens or mutual TLS.
    pub fn check(&self) -> Result<()> {
        let mutual = self
            .tls
            .as_ref()
            .is_some_and(|t| t.client_authorities.is_some());
        if self.bind.ip().is_loopback() || mutual || self.tokens.is_some() {
            return Ok(());
        }
        if self.insecure {
            tracing::warn!(bind = %self.bind, "anybody who reaches this address may read, write and end jobs");
            return Ok(());
        }
        Err(
            Error::refused(format!("{} can be reached by others", self.bind))
                .during("listen")
                .hint("give tokens, or client authorities with TLS, or bind 127.0.0.1"),
        )
    }
}

/// Listens and has read its files, before there is a server: what is wrong with them is found out before another
/// owner of the cluster is fenced off.
pub struct HttpListener {
    config: HttpConfig,
    tokens: Option<Tokens>,
    tls: Option<tokio_rustls::TlsAcceptor>,
    listener: TcpListener,
    operations: Option<TcpListener>,
}

impl std::fmt::Debug for HttpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpListener")
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}

/// A service that listens.
pub struct HttpService {
    server: BlobServer,
    limits: HttpLimits,
    listener: TcpListener,
    operations: Option<TcpListener>,
    app: Router,
    tls: Option<tokio_rustls::TlsAcceptor>,
}

impl std::fmt::Debug for HttpService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpService")
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}

/// What every request needs.
pub(crate) struct Desk {
    pub(crate) server: BlobServer,
    pub(crate) tokens: Option<Tokens>,
    /// Where anybody on this machine may ask without more: only requests to its own names are taken, and to this one.
    pub(crate) hosts: Option<Option<String>>,
    pub(crate) idle_timeout: Duration,
}

async fn listen(at: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(at).await.map_err(|e| {
        Error::new(ErrorKind::Unavailable, e.to_string())
            .during("listen")
            .at(at)
            .hint("is another process there? choose another address with --bind")
    })
}

impl HttpListener {
    /// Reads the files and listens; answers nothing yet.
    ///
    /// # Errors
    ///
    /// `Refused` for an address that others reach without tokens or mutual TLS; `Invalid` for files that are
    /// none; what the system answers.
    pub async fn bind(config: HttpConfig) -> Result<HttpListener> {
        config.check()?;
        let tokens = config.tokens.as_deref().map(Tokens::read).transpose()?;
        let tls = config.tls.as_ref().map(tls::acceptor).transpose()?;
        if tokens.is_some() && tls.is_none() && !config.bind.ip().is_loopback() {
            tracing::warn!("tokens go over the network in the clear: give a certificate too");
        }
        let operations = match config.operations {
            Some(at) => Some(listen(at).await?),
            None => None,
        };
        Ok(HttpListener {
            listener: listen(config.bind).await?,
            operations,
            tokens,
            tls,
            config,
        })
    }

    /// The service of this server, which answers as soon as it runs.
    pub fn serve(self, server: BlobServer) -> HttpService {
        let HttpListener {
            config,
            tokens,
            tls,
            listener,
            operations: aside,
        } = self;
        let open = config.bind.ip().is_loopback() && tokens.is_none() && tls.is_none();
        let desk = Arc::new(Desk {
            hosts: open.then(|| server.config().advertise.clone()),
            server: server.clone(),
            tokens,
            idle_timeout: config.limits.idle_timeout,
        });
        let app = operations(Arc::clone(&desk))
            .fallback(calls::dispatch)
            .with_state(desk);
        HttpService {
            server,
            listener,
            operations: aside,
            limits: config.limits,
            app,
            tls,
        }
    }
}

impl HttpService {
    /// Listens; answers nothing yet.
    ///
    /// # Errors
    ///
    /// As [`HttpListener::bind`].
    pub async fn bind(server: BlobServer, config: HttpConfig) -> Result<HttpService> {
        Ok(HttpListener::bind(config).await?.serve(server))
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// What the system answers.
    pub fn address(&self) -> Result<SocketAddr> {
        address(&self.listener)
    }

    /// Where the second listener is, if there is one.
    ///
    /// # Errors
    ///
    /// What the system answers.
    pub fn operations_address(&self) -> Result<Option<SocketAddr>> {
        self.operations.as_ref().map(address).transpose()
    }

    /// Serves until `stop` is done; then requests under way get some time.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let (stopping, stopped) = watch::channel(());
        let turns = Arc::new(Semaphore::new(self.limits.most_connections.max(1)));
        let limits = Arc::new(self.limits);
        let mut connections = JoinSet::new();
        let aside = self.operations.map(|listener| {
            let plain = operations_only(self.server.clone());
            tokio::spawn(accept_operations(listener, plain, Arc::clone(&limits)))
        });
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = &mut stop => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, most likely: connections that end give some back.
                    tracing::warn!(%error, "a connection could not be taken");
                    crate::clock::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let _ = stream.set_nodelay(true);
            let Ok(turn) = Arc::clone(&turns).try_acquire_owned() else {
                self.server.metrics().rejected.add(1);
                let plain = self.tls.is_none();
                connections.spawn(turn_away(stream, plain));
                continue;
            };
            let (app, tls) = (self.app.clone(), self.tls.clone());
            let (limits, stopped) = (Arc::clone(&limits), stopped.clone());
            let server = self.server.clone();
            connections.spawn(async move {
                let _turn = turn;
                match tls {
                    None => converse(stream, app, &limits, stopped, server).await,
                    Some(tls) => {
                        let shaken =
                            tokio::time::timeout(limits.header_timeout, tls.accept(stream));
                        match shaken.await {
                            Ok(Ok(stream)) => converse(stream, app, &limits, stopped, server).await,
                            Ok(Err(error)) => {
                                server.metrics().rejected.add(1);
                                tracing::debug!(%error, "no TLS");
                            }
                            Err(_) => server.metrics().stalled.add(1),
                        }
                    }
                }
            });
        }
        drop(self.listener);
        let _ = stopping.send(());
        let drained = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(limits.drain, drained).await.is_err() {
            tracing::warn!("requests that were still under way are cut");
        }
        connections.shutdown().await;
        if let Some(aside) = aside {
            aside.abort();
        }
    }
}

fn address(listener: &TcpListener) -> Result<SocketAddr> {
    let at = listener.local_addr();
    at.map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()).during("listen"))
}

fn operations(desk: Arc<Desk>) -> Router<Arc<Desk>> {
    let metrics = desk.server.clone();
    let ready = desk.server.clone();
    let guarded = desk;
    Router::new()
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(move || answer::readiness(ready.clone())))
        .route(
            "/metrics",
            get(move |headers: http::HeaderMap| {
                let (metrics, desk) = (metrics.clone(), Arc::clone(&guarded));
                async move {
                    match auth::visitor(&desk, &headers) {
                        Ok(_) => answer::metrics(&metrics),
                        Err(problem) => answer::problem(*problem),
                    }
                }
            }),
        )
}

fn operations_only(server: BlobServer) -> Router {
    let metrics = server.clone();
    Router::new()
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(move || answer::readiness(server.clone())))
        .route(
            "/metrics",
            get(move || {
                let metrics = metrics.clone();
                async move { answer::metrics(&metrics) }
            }),
        )
}

async fn accept_operations(listener: TcpListener, app: Router, limits: Arc<HttpLimits>) {
    let turns = Arc::new(Semaphore::new(32));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            crate::clock::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Ok(turn) = Arc::clone(&turns).try_acquire_owned() else {
            continue;
        };
        let (app, limits) = (app.clone(), Arc::clone(&limits));
        tokio::spawn(async move {
            let _turn = turn;
            let service = TowerToHyperService::new(app);
            let io = TokioIo::new(StallGuard::new(stream, limits.idle_timeout, None));
            let _ = builder(&limits)
                .keep_alive(false)
                .serve_connection(io, service)
                .await;
        });
    }
}

/// Too many: says so at once, rather than to let somebody wait who would not know for what.
async fn turn_away(mut stream: TcpStream, plain: bool) {
    const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    if plain {
        let said = async {
            let _ = stream.write_all(BUSY).await;
            let _ = stream.shutdown().await;
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), said).await;
    }
}

fn builder(limits: &HttpLimits) -> hyper::server::conn::http1::Builder {
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(limits.most_header_bytes.max(8 * 1024))
        .max_headers(limits.most_headers);
    builder
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    app: Router,
    limits: &HttpLimits,
    mut stopped: watch::Receiver<()>,
    server: BlobServer,
) {
    let guarded = StallGuard::new(stream, limits.idle_timeout, Some(server));
    let service = TowerToHyperService::new(app);
    let connection = builder(limits).serve_connection(TokioIo::new(guarded), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}
