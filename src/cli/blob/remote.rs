//! Which server a verb talks to, and how it shows who it is.

use std::path::{Path, PathBuf};

use crate::blob::client::{BlobClient, ClientConfig};
use crate::error::{Error, ErrorKind, Result};

/// Options of every verb that talks to a server.
#[derive(Debug, clap::Args)]
pub(super) struct Remote {
    /// The blob server, such as https://blobs.example:6124.
    #[arg(long, value_name = "URL", env = "FORKPOINT_BLOB_SERVER")]
    server: String,
    /// A file with the bearer token that is sent with every call. The variable FORKPOINT_BLOB_TOKEN can hold the token
    /// itself.
    #[arg(long, value_name = "FILE", env = "FORKPOINT_BLOB_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// PEM file of certificates: only servers that they signed are believed. Left out: the system's.
    #[arg(long, value_name = "FILE", env = "FORKPOINT_BLOB_TRUSTED")]
    trusted: Option<PathBuf>,
    /// PEM file with this client's certificate chain and key, for mutual TLS.
    #[arg(long, value_name = "FILE", env = "FORKPOINT_BLOB_IDENTITY")]
    identity: Option<PathBuf>,
    /// Do not compare the name in the server's certificate, where all processes share one.
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
    pub(super) fn client(&self) -> Result<BlobClient> {
        let mut config = ClientConfig::new(&self.server)?;
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
