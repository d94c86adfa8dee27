//! Which server a verb talks to, and how it shows who it is.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::blob::client::{BlobClient, ClientConfig, OnWait, Waiting};
use crate::error::{Error, ErrorKind, Result, printable};

use super::super::ui::Ui;

/// Options of every verb that talks to a server.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "The server, and who asks")]
pub(super) struct Remote {
    /// The blob server, such as https://blobs.example:7878.
    #[arg(long, value_name = "URL", env = "FORKPOINT_BLOB_SERVER")]
    server: String,
    /// File with the bearer token to send; FORKPOINT_BLOB_TOKEN can hold the token itself.
    #[arg(
        long,
        value_name = "FILE",
        env = "FORKPOINT_BLOB_TOKEN_FILE",
        hide_env_values = true
    )]
    token_file: Option<PathBuf>,
    /// PEM file: only servers that these certificates signed are believed [default: the system's].
    #[arg(
        long,
        value_name = "FILE",
        env = "FORKPOINT_BLOB_TRUSTED",
        hide_env_values = true
    )]
    trusted: Option<PathBuf>,
    /// PEM file with this client's certificate chain and key, for mutual TLS.
    #[arg(
        long,
        value_name = "FILE",
        env = "FORKPOINT_BLOB_IDENTITY",
        hide_env_values = true
    )]
    identity: Option<PathBuf>,
    /// Leave the name in the server's certificate unchecked, where all processes share one.
    #[arg(long, requires = "trusted")]
    any_name: bool,
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| {
        let kind = match e.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Denied,
        };
        Error::new(kind, e.to_string())
            .during("read")
            .at(path.display())
    })
}

impl Remote {
    /// A client that says on stderr what it waits for, unless it must be quiet.
    pub(super) fn client(&self, ui: &Ui) -> Result<BlobClient> {
        let mut config = ClientConfig::new(&self.server)?;
        config.on_wait = on_wait(ui);
        config.token = match &self.token_file {
            Some(path) => Some(String::from_utf8_lossy(&read(path)?).trim().to_string()),
            None => std::env::var("FORKPOINT_BLOB_TOKEN").ok(),
        };
        config.trusted = self.trusted.as_deref().map(read).transpose()?;
        config.identity = self.identity.as_deref().map(read).transpose()?;
        config.any_name = self.any_name;
        BlobClient::new(config)
    }
}

/// Waits that make less than this in all are not talked about.
const SHORT: Duration = Duration::from_secs(3);

/// Says on stderr what is waited for, unless it must be quiet.
pub(super) fn on_wait(ui: &Ui) -> Option<OnWait> {
    (!ui.is_quiet()).then(|| OnWait::new(waits()))
}

fn waits() -> impl Fn(&Waiting) {
    let waited = Mutex::new(Duration::ZERO);
    move |waiting| {
        let long = match waiting {
            Waiting::Repeats { pause, .. } => {
                let mut waited = waited.lock().unwrap_or_else(PoisonError::into_inner);
                *waited = waited.saturating_add(*pause);
                *waited >= SHORT
            }
            _ => true,
        };
        if long {
            let line = format!("waiting: {}\n", printable(&waiting.to_string()));
            let _ = std::io::stderr().lock().write_all(line.as_bytes());
        }
    }
}

/// `A-B`, `A-` or `-N`, as in HTTP: bytes of something of `size` bytes.
pub(super) fn range(text: &str, size: u64) -> Result<std::ops::Range<u64>> {
    use crate::blob::wire::{Asked, parse_range};
    match parse_range(Some(&format!("bytes={text}")), size) {
        Asked::Part(part) => Ok(part.start..part.end),
        Asked::Unsatisfiable => Err(Error::invalid(format!(
            "the range `{text}` begins after the end: there are {size} bytes"
        ))),
        Asked::Whole => Err(Error::invalid(format!("`{text}` is no range of bytes"))
            .hint("write FIRST-LAST, FIRST- or -COUNT")),
    }
}
