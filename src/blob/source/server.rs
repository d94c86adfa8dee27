//! The blob server as a source.

use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, stream};

use crate::error::Result;

use super::super::client::{BlobClient, Failure, Waiting};
use super::super::key::BlobKey;
use super::super::wire::Code;
use super::{BlobSource, ByteStream, SourceError};

/// Fetches from the server that a client talks to.
#[derive(Debug, Clone)]
pub struct ServerSource {
    client: BlobClient,
}

impl ServerSource {
    /// A source over this client.
    pub fn new(client: BlobClient) -> ServerSource {
        ServerSource { client }
    }
}

impl From<Failure> for SourceError {
    fn from(failure: Failure) -> SourceError {
        match &failure {
            Failure::Said(p) => match p.code {
                Code::NotFound => SourceError::Absent,
                Code::JobOver | Code::Lost => SourceError::Gone(failure.into_error()),
                Code::TooMany | Code::Busy | Code::NotOwner => {
                    let wish = p.retry_after.map(Duration::from_secs);
                    SourceError::Transient(failure.into_error(), wish)
                }
                _ => SourceError::Refused(failure.into_error()),
            },
            Failure::Silent(_) if failure.is_transient() => {
                SourceError::Transient(failure.into_error(), None)
            }
            Failure::Silent(_) => SourceError::Refused(failure.into_error()),
        }
    }
}

#[async_trait]
impl BlobSource for ServerSource {
    fn label(&self) -> &str {
        "server"
    }

    async fn open(&self, key: &BlobKey, range: Range<u64>) -> Result<ByteStream, SourceError> {
        let download = self.client.open(key, Some(range)).await?;
        let chunks = stream::unfold(Some(download), |download| async move {
            let mut download = download?;
            match download.chunk().await {
                Ok(Some(chunk)) => Some((Ok(chunk), Some(download))),
                Ok(None) => None,
                Err(e) => Some((Err(e), None)),
            }
        });
        Ok(chunks.boxed())
    }

    fn waits(&self, waiting: &Waiting) {
        self.client.waits(waiting);
    }
}
