//! Who may ask what: bearer tokens from a file, each for some jobs and some rights.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use http::header::AUTHORIZATION;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

use crate::clock;
use crate::error::{Error, Result};

use super::super::key::{JobId, parse_sha256};
use super::super::wire::{Call, Code, Problem};
use super::Desk;

/// A file larger than this is not read: 1 MiB.
const LARGEST_FILE: u64 = 1 << 20;
/// The file is looked at so often at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Right {
    /// Download, list, ask why.
    Read,
    /// Upload and commit batches.
    Upload,
    /// Acquire, renew, acknowledge, release.
    Refs,
    /// Events of jobs: register, fail, suspend, end.
    Admin,
}

/// As in the file of tokens.
impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Right::Read => "read",
            Right::Upload => "upload",
            Right::Refs => "refs",
            Right::Admin => "admin",
        })
    }
}

impl Right {
    fn needed(call: &Call) -> Right {
        match call {
            Call::Download { .. } | Call::ListJobs | Call::ListBlobs(_) | Call::Why(..) => {
                Right::Read
            }
            Call::BeginUpload(_) | Call::SendMember { .. } => Right::Upload,
            Call::CommitUpload(..) | Call::AbortUpload(..) => Right::Upload,
            Call::Acquire(..) | Call::Renew(..) => Right::Refs,
            Call::Acknowledge(..) | Call::Release(..) => Right::Refs,
            Call::JobEvent(_) => Right::Admin,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    /// For logs.
    name: String,
    /// The SHA-256 of the token in hex digits, so that the file need not hold the token...
    #[serde(default)]
    sha256: Option<String>,
    /// ...or the token itself.
    #[serde(default)]
    token: Option<String>,
    /// A job id, or the beginning of one and `*`.
    jobs: String,
    rights: Vec<Right>,
    #[serde(default)]
    expires_unix_ms: Option<u64>,
}

/// A token that is known. What was presented is hashed and compared with this.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    name: String,
    sha256: [u8; 32],
    jobs: String,
    rights: Vec<Right>,
    expires_unix_ms: Option<u64>,
}

impl Token {
    /// True for jobs that it is for.
    pub(crate) fn covers(&self, job: &JobId) -> bool {
        match self.jobs.strip_suffix('*') {
            Some(start) => job.as_str().starts_with(start),
            None => job.as_str() == self.jobs,
        }
    }
}

/// The tokens of a file, read again when it changes.
#[derive(Debug)]
pub(crate) struct Tokens {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tokens: Arc<Vec<Token>>,
    changed: Option<(SystemTime, u64)>,
    looked: Instant,
}

fn parse(path: &Path) -> Result<Vec<Token>> {
    let bad = |what: String| {
        Error::invalid(what)
            .during("read tokens")
            .at(path.display())
            .hint(
                "a JSON list of {\"name\": \"ci\", \"sha256\": \"...\", \"jobs\": \"orders-*\", \
                 \"rights\": [\"read\", \"upload\", \"refs\", \"admin\"]}; `printf %s TOKEN | sha256sum` gives the digest",
            )
    };
    let size = std::fs::metadata(path)
        .map_err(|e| bad(e.to_string()))?
        .len();
    if size > LARGEST_FILE {
        return Err(bad(format!("{size} bytes are too many")));
    }
    let text = std::fs::read(path).map_err(|e| bad(e.to_string()))?;
    let entries: Vec<TokenEntry> = serde_json::from_slice(&text).map_err(|e| bad(e.to_string()))?;
    let token = |entry: TokenEntry| {
        let named = |what: &str| bad(format!("token `{}`: {what}", entry.name));
        let sha256 = match (&entry.sha256, &entry.token) {
            (Some(hex), None) => {
                parse_sha256(hex).ok_or_else(|| named("no SHA-256 in 64 lower-case hex digits"))?
            }
            (None, Some(token)) if token.len() >= 16 => Sha256::digest(token).into(),
            (None, Some(_)) => return Err(named("shorter than 16 characters")),
            _ => return Err(named("either `sha256` or `token`")),
        };
        Ok(Token {
            name: entry.name,
            sha256,
            jobs: entry.jobs,
            rights: entry.rights,
            expires_unix_ms: entry.expires_unix_ms,
        })
    };
    entries.into_iter().map(token).collect()
}

fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

impl Tokens {
    /// Reads the file.
    pub(crate) fn read(path: &Path) -> Result<Tokens> {
        let changed = stamp(path);
        Ok(Tokens {
            path: path.to_path_buf(),
            state: Mutex::new(State {
                tokens: Arc::new(parse(path)?),
                changed,
                looked: Instant::now(),
            }),
        })
    }

    fn current(&self) -> Arc<Vec<Token>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() >= LOOK_EVERY {
            state.looked = Instant::now();
            let now = stamp(&self.path);
            if now != state.changed {
                match parse(&self.path) {
                    Ok(tokens) => (state.tokens, state.changed) = (Arc::new(tokens), now),
                    // Half written, perhaps: those that were good stay until it can be read.
                    Err(error) => tracing::error!(%error, "the tokens are not read again"),
                }
            }
        }
        Arc::clone(&state.tokens)
    }

    /// The token that was presented. All are compared, each in constant time.
    fn find(&self, presented: &str, now_unix_ms: u64) -> Option<Token> {
        let sha256: [u8; 32] = Sha256::digest(presented).into();
        let mut found = None;
        for token in self.current().iter() {
            if bool::from(token.sha256.ct_eq(&sha256)) {
                found = Some(token.clone());
            }
        }
        found.filter(|t| t.expires_unix_ms.is_none_or(|end| end > now_unix_ms))
    }
}

/// True for a `Host` that names this machine as no foreign page can: a loopback address, `localhost`, or the name
/// by which the server says that it can be reached.
fn is_here(host: &str, advertised: &Option<String>) -> bool {
    let named = |authority: &http::uri::Authority| {
        let name = authority.host();
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let address = bare.parse::<std::net::IpAddr>();
        address.is_ok_and(|a| a.is_loopback()) || name.eq_ignore_ascii_case("localhost")
    };
    let Ok(authority) = host.parse::<http::uri::Authority>() else {
        return false;
    };
    let ours = advertised
        .as_deref()
        .and_then(|a| a.parse::<http::Uri>().ok())
        .and_then(|a| a.host().map(str::to_string));
    named(&authority) || ours.is_some_and(|o| o.eq_ignore_ascii_case(authority.host()))
}

/// Who asks: nobody in particular where no tokens are asked for.
///
/// # Errors
///
/// `401` without a valid token, `403` for a browser's request, and, on a loopback address without tokens and TLS, for
/// one to a name that is not this machine's.
pub(crate) fn visitor(
    desk: &Desk,
    headers: &http::HeaderMap,
) -> std::result::Result<Option<Token>, Box<Problem>> {
    // A page in somebody's browser must not reach a server of that person's machine: neither from another site nor
    // by a name of its own that leads here.
    let site = headers.get("sec-fetch-site");
    let elsewhere = desk.hosts.as_ref().is_some_and(|advertised| {
        let host = headers.get(http::header::HOST);
        host.is_some_and(|h| h.to_str().map_or(true, |h| !is_here(h, advertised)))
    });
    if elsewhere || headers.contains_key(http::header::ORIGIN) || site.is_some_and(|s| s != "none")
    {
        desk.server.metrics().rejected.add(1);
        return Err(Box::new(Problem::new(
            Code::Denied,
            "requests of web pages are not taken",
        )));
    }
    let Some(tokens) = &desk.tokens else {
        return Ok(None);
    };
    let presented = headers
        .get(AUTHORIZATION)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim());
    let now = u64::try_from(clock::unix_millis()).unwrap_or(u64::MAX);
    match presented.and_then(|p| tokens.find(p, now)) {
        Some(token) => Ok(Some(token)),
        None => {
            desk.server.metrics().rejected.add(1);
            let what = match presented {
                Some(_) => "the token is not known, or has expired",
                None => "a bearer token is needed",
            };
            Err(Box::new(Problem::new(Code::Unauthorized, what)))
        }
    }
}

/// May the visitor make this call?
///
/// # Errors
///
/// `403`.
pub(crate) fn check(visitor: Option<&Token>, call: &Call) -> std::result::Result<(), Box<Problem>> {
    let Some(token) = visitor else { return Ok(()) };
    let right = Right::needed(call);
    let denied = |what: String| Err(Box::new(Problem::new(Code::Denied, what)));
    if !token.rights.contains(&right) {
        return denied(format!(
            "token `{}` does not have the right `{right}`",
            token.name
        ));
    }
    match call.job() {
        Some(job) if !token.covers(job) => {
            denied(format!("token `{}` is not for job {job}", token.name))
        }
        _ => Ok(()),
    }
}
