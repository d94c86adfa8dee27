//! Where the server is, how a client shows who it is, and how patient it is.

use std::fmt;
use std::time::Duration;

use reqwest::{Certificate, Client, Identity, redirect};
use url::Url;

use crate::error::{Error, ErrorKind, Result};

use super::waiting::OnWait;

/// Settings of a [`BlobClient`](super::BlobClient).
#[derive(Clone)]
pub struct ClientConfig {
    /// The server, such as `https://blobs.example:7878`; a path in it is a prefix of all calls.
    pub server: Url,
    /// The bearer token that is sent with every call.
    pub token: Option<String>,
    /// Certificates in PEM: only what they signed is believed. Without them the system's are used.
    pub trusted: Option<Vec<u8>>,
    /// The client's own certificate chain and key in PEM, for mutual TLS.
    pub identity: Option<Vec<u8>>,
    /// With `trusted` only: the name in the server's certificate is not compared, for clusters in
    /// which all processes share one certificate.
    pub any_name: bool,
    /// `blob.client.connect.timeout`: 10 s.
    pub connect_timeout: Duration,
    /// How long nothing may move in either direction: 60 s.
    pub idle_timeout: Duration,
    /// `blob.fetch.retries`: how often a call is repeated that is safe to repeat: 5.
    pub retries: u32,
    /// The first pause before a repetition; it doubles, with jitter, up to 10 s: 100 ms.
    pub backoff: Duration,
    /// Is told before each wait; nobody.
    pub on_wait: Option<OnWait>,
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("server", &self.server.as_str())
            .field("token", &self.token.as_ref().map(|_| "(secret)"))
            .field("identity", &self.identity.as_ref().map(|_| "(secret)"))
            .field("idle_timeout", &self.idle_timeout)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}

impl ClientConfig {
    /// Defaults for the server at `url`.
    ///
    /// # Errors
    ///
    /// `Invalid` unless it is an http or https URL without user, query and fragment.
    pub fn new(url: &str) -> Result<ClientConfig> {
        Ok(ClientConfig {
            server: parse_server(url)?,
            token: None,
            trusted: None,
            identity: None,
            any_name: false,
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            retries: 5,
            backoff: Duration::from_millis(100),
            on_wait: None,
        })
    }

    /// The HTTP client. Proxies of the environment are not used and redirects are not followed: a
    /// token goes to nobody but the server.
    pub(super) fn connect(&self) -> Result<Client> {
        let bad = |what: &str, e: reqwest::Error| {
            Error::invalid(format!("{what}: {}", super::transport::chain(&e)))
                .during("open the blob client")
        };
        let mut builder = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .http1_only()
            .connect_timeout(self.connect_timeout)
            .user_agent(concat!("forkpoint/", env!("CARGO_PKG_VERSION")));
        if let Some(pem) = &self.trusted {
            let found = Certificate::from_pem_bundle(pem);
            let found = found.map_err(|e| bad("the trusted certificates cannot be read", e))?;
            if found.is_empty() {
                return Err(Error::invalid("the file of trusted certificates has none")
                    .during("open the blob client")
                    .hint("it must be PEM: -----BEGIN CERTIFICATE-----"));
            }
            builder = builder
                .tls_certs_only(found)
                .tls_danger_accept_invalid_hostnames(self.any_name);
        } else if self.any_name {
            return Err(Error::invalid(
                "names of servers can be left unchecked only where the trusted certificates are given",
            )
            .during("open the blob client"));
        }
        if let Some(pem) = &self.identity {
            let own = Identity::from_pem(pem)
                .map_err(|e| bad("the client's certificate and key cannot be read", e))?;
            builder = builder.identity(own);
        }
        let local = match self.server.host() {
            Some(url::Host::Domain(name)) => name == "localhost",
            Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
            Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
            None => false,
        };
        if self.token.is_some() && self.server.scheme() == "http" && !local {
            tracing::warn!(server = %self.server, "the token is sent over a connection without TLS");
        }
        builder
            .build()
            .map_err(|e| bad("no HTTP client can be made", e).with_kind(ErrorKind::Invalid))
    }
}

/// Checks a server's address.
pub(super) fn parse_server(text: &str) -> Result<Url> {
    let bad = |what: &str| {
        Error::invalid(format!("`{text}` is no address of a blob server: {what}"))
            .hint("write http://HOST:PORT or https://HOST:PORT")
    };
    let url = Url::parse(text).map_err(|e| bad(&e.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(bad("it is no http or https URL"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            Error::invalid("the address of a blob server holds a user or password")
                .hint("give a token instead"),
        );
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(bad("it has a query or fragment"));
    }
    Ok(url)
}
