//! How services are reached: one HTTP client for object_store's requests to a bucket and for our own.
//!
//! One client means one pool of connections, one reading of the machine's certificates (milliseconds of each
//! start), and one set of settings: a proxy or a certificate that the user has named holds for copies too.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpResponse, HttpResponseBody, HttpService, ReqwestConnector,
};
use object_store::{ClientOptions, RetryConfig};
use tokio::time::Sleep;

use crate::error::Result;

use super::errors;

/// How long object_store's requests wait for an answer, and for each further piece of it, unless the
/// setting `timeout` of the service says otherwise. Our own have a patience of their own: a copy may take longer.
const PATIENCE: Duration = Duration::from_secs(120);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How the clients of one bucket reach its service.
#[derive(Debug, Clone)]
pub(crate) struct Reach {
    pub(crate) client: ClientOptions,
    pub(crate) retry: RetryConfig,
    pub(crate) connector: BucketConnector,
}

impl Reach {
    /// For one bucket, by the clients that others of the same program use too.
    pub(crate) fn by(shared: &SharedClients) -> Reach {
        Reach {
            client: ClientOptions::new()
                .with_timeout(PATIENCE)
                .with_connect_timeout(CONNECT_TIMEOUT),
            retry: RetryConfig {
                max_retries: 6,
                retry_timeout: Duration::from_secs(90),
                ..RetryConfig::default()
            },
            connector: BucketConnector {
                shared: shared.clone(),
                last: Arc::default(),
            },
        }
    }
}

/// Are the machine's certificates of no use for a bucket? Reading them takes milliseconds of each start, and there may
/// be none: a small container that talks plain HTTP to a server beside it needs none. `asks_others`: whether
/// credentials come from a service of their own. Pure but for the proxies that the environment names.
pub(crate) fn needs_no_certificates(
    endpoint: &str,
    asks_others: bool,
    proxy: Option<&str>,
) -> bool {
    let proxies = ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
    endpoint.starts_with("http://")
        && !asks_others
        && proxy.is_none_or(|url| url.starts_with("http://"))
        && proxies.iter().all(|name| std::env::var_os(name).is_none())
}

/// The HTTP clients of one program, one for each way of reaching services.
#[derive(Clone, Default)]
pub(crate) struct SharedClients(Arc<Mutex<HashMap<String, HttpClient>>>);

// Not what the options say: a proxy's address may hold a password.
impl std::fmt::Debug for SharedClients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedClients")
    }
}

impl SharedClients {
    /// A client without a total timeout: a copy may take as long as it takes.
    fn patient(&self, options: ClientOptions) -> object_store::Result<HttpClient> {
        let options = options.with_timeout_disabled();
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Options have no equality of their own. All of one program come from its settings, so what the text
        // leaves out (the content of certificates) is the same for all.
        let reached = format!("{options:?}");
        if let Some(client) = clients.get(&reached) {
            return Ok(client.clone());
        }
        let client = ReqwestConnector::default().connect(&options)?;
        clients.insert(reached, client.clone());
        Ok(client)
    }
}

/// Makes the clients of one bucket, and remembers the one for our own requests.
#[derive(Debug, Clone)]
pub(crate) struct BucketConnector {
    shared: SharedClients,
    last: Arc<Mutex<Option<HttpClient>>>,
}

impl BucketConnector {
    /// The client for our own requests to the bucket, once object_store's client of it is built.
    ///
    /// # Errors
    ///
    /// `Invalid` if the settings do not make one.
    pub(crate) fn client(&self) -> Result<HttpClient> {
        // The builders connect those of their credentials first and that of the bucket at the end.
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = last.as_ref() {
            return Ok(client.clone());
        }
        self.shared
            .patient(ClientOptions::new().with_connect_timeout(CONNECT_TIMEOUT))
            .map_err(|e| errors::from_client(e, "open", "the HTTP client"))
    }
}

impl HttpConnector for BucketConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let patience = options
            .get_config_value(&ClientConfigKey::Timeout)
            .and_then(|text| humantime::parse_duration(&text).ok())
            .unwrap_or(PATIENCE);
        let client = self.shared.patient(options.clone())?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(client.clone());
        Ok(HttpClient::new(Impatient { client, patience }))
    }
}

/// A client whose requests fail when nothing comes for a while.
#[derive(Debug)]
struct Impatient {
    client: HttpClient,
    patience: Duration,
}

#[async_trait]
impl HttpService for Impatient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let patience = self.patience;
        match tokio::time::timeout(patience, self.client.execute(request)).await {
            Ok(answer) => Ok(answer?.map(|body| {
                HttpResponseBody::new(ImpatientBody {
                    body,
                    patience,
                    waiting: None,
                })
            })),
            Err(_) => Err(nothing_came(patience)),
        }
    }
}

fn nothing_came(patience: Duration) -> HttpError {
    let text = format!("nothing came for {} s", patience.as_secs_f32());
    HttpError::new(HttpErrorKind::Timeout, std::io::Error::other(text))
}

/// An answer that fails when its next piece does not come. Time in which nobody asks for one does not count.
struct ImpatientBody {
    body: HttpResponseBody,
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Body for ImpatientBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.waiting = None;
            return Poll::Ready(frame);
        }
        let patience = this.patience;
        let waiting = this
            .waiting
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        match waiting.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Some(Err(nothing_came(patience)))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers after `before`, with a first piece, and with the second one after `between`.
    #[derive(Debug)]
    struct Slow {
        before: Duration,
        between: Duration,
    }

    struct TwoPieces {
        left: usize,
        between: Pin<Box<Sleep>>,
    }

    impl Body for TwoPieces {
        type Data = Bytes;
        type Error = HttpError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
            if self.left == 1 && self.between.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if self.left == 0 {
                return Poll::Ready(None);
            }
            self.left -= 1;
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"piece")))))
        }
    }

    #[async_trait]
    impl HttpService for Slow {
        async fn call(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
            tokio::time::sleep(self.before).await;
            Ok(http::Response::new(HttpResponseBody::new(TwoPieces {
                left: 2,
                between: Box::pin(tokio::time::sleep(self.between)),
            })))
        }
    }

    async fn ask(before: u64, between: u64) -> Result<Bytes, HttpError> {
        let client = HttpClient::new(Slow {
            before: Duration::from_secs(before),
            between: Duration::from_secs(between),
        });
        let patience = Duration::from_secs(100);
        let client = HttpClient::new(Impatient { client, patience });
        let request = http::Request::new(Vec::new().into());
        client.execute(request).await?.into_body().bytes().await
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_may_take_long_in_all_but_not_stop() {
        assert_eq!(ask(90, 90).await.unwrap(), "piecepiece");
        for (before, between) in [(110, 0), (0, 110)] {
            let e = ask(before, between).await.unwrap_err();
            assert_eq!(e.kind(), HttpErrorKind::Timeout);
            assert!(format!("{e:?}").contains("nothing came for 100 s"), "{e:?}");
        }
    }

    #[test]
    fn certificates_are_read_where_one_may_be_shown() {
        let (plain, secure) = (
            "http://127.0.0.1:9000",
            "https://s3.eu-west-1.amazonaws.com",
        );
        assert!(needs_no_certificates(plain, false, None));
        assert!(needs_no_certificates(plain, false, Some("http://proxy")));
        assert!(!needs_no_certificates(plain, false, Some("https://proxy")));
        assert!(!needs_no_certificates(plain, true, None));
        assert!(!needs_no_certificates(secure, false, None));
    }

    #[test]
    fn one_client_for_all_that_is_reached_alike_and_settings_hold_for_our_own_requests() {
        let shared = SharedClients::default();
        let connect = |options: &ClientOptions| {
            let reach = Reach::by(&shared);
            reach.connector.connect(options).unwrap();
            reach.connector.client().unwrap();
            shared.0.lock().unwrap().len()
        };
        let plain = Reach::by(&shared).client;
        assert_eq!(connect(&plain), 1);
        assert_eq!(connect(&plain), 1);
        assert_eq!(
            connect(&plain.clone().with_timeout(Duration::from_secs(5))),
            1
        );
        let secret = plain.with_proxy_url("http://user:secret@proxy:1");
        assert_eq!(connect(&secret), 2);
        assert_eq!(format!("{shared:?}"), "SharedClients");
    }
}
