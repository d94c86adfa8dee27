//! The client of the blob service: batches of uploads, downloads with ranges, references, events
//! of jobs, listings.
//!
//! Every call of the protocol is safe to repeat, and is repeated with a growing pause when there is no answer
//! or the server asks for it; a broken download goes on where it stopped. What the server refuses is
//! not repeated.

mod config;
mod download;
mod transport;
mod upload;
mod waiting;

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use url::Url;

use crate::error::{Error, ErrorKind, Result};

use super::key::{BlobKey, JobId, LeaseId, ReceiverId};
use super::lifecycle::JobEvent;
use super::wire::{AcquireBody, BlobList, Call, Code, JobList, RenewBody, WhyAnswer};

pub use config::ClientConfig;
pub use download::Download;
pub(crate) use transport::Failure;
pub use upload::{Content, Upload, UploadReport, UploadSession};
pub use waiting::{OnWait, Waiting};
#[cfg(unix)]
pub(crate) use waiting::{SILENCE, longest_wait};

/// A client of the blob service. Cheap to clone; clones share connections.
#[derive(Debug, Clone)]
pub struct BlobClient(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    config: ClientConfig,
    http: reqwest::Client,
    server: RwLock<Url>,
}

impl BlobClient {
    /// A client with these settings. No request.
    ///
    /// # Errors
    ///
    /// `Invalid` for certificates or keys that cannot be read.
    pub fn new(config: ClientConfig) -> Result<BlobClient> {
        Ok(BlobClient(Arc::new(Shared {
            http: config.connect()?,
            server: RwLock::new(config.server.clone()),
            config,
        })))
    }

    /// Where calls go to now.
    pub fn server(&self) -> Url {
        let server = self.0.server.read();
        server.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Calls go to this address from now on, those included that are repeated.
    ///
    /// # Errors
    ///
    /// As [`ClientConfig::new`].
    pub fn set_server(&self, url: &str) -> Result<()> {
        let url = config::parse_server(url)?;
        *self
            .0
            .server
            .write()
            .unwrap_or_else(PoisonError::into_inner) = url;
        Ok(())
    }

    /// The server named another one as the owner. A token does not follow to where there is no TLS.
    fn follow(&self, owner: &str) -> bool {
        let now = self.server();
        let same_kind = |u: &Url| u.scheme() == now.scheme() && *u != now;
        let Some(owner) = config::parse_server(owner).ok().filter(same_kind) else {
            return false;
        };
        tracing::info!(from = %now, to = %owner, "another server owns the blobs");
        *self
            .0
            .server
            .write()
            .unwrap_or_else(PoisonError::into_inner) = owner;
        true
    }

    /// Tells whoever wants to know.
    pub(crate) fn waits(&self, waiting: &Waiting) {
        if let Some(on_wait) = &self.0.config.on_wait {
            on_wait.tell(waiting);
        }
    }

    async fn told<T: DeserializeOwned>(&self, call: &Call, body: Option<Bytes>) -> Result<T> {
        let bytes = self.ask(call, body).await.map_err(Failure::into_error)?;
        self.read(call, &bytes)
    }

    async fn act(&self, call: &Call, body: Bytes) -> Result<Bytes> {
        let done = self.ask(call, Some(body)).await;
        done.map_err(Failure::into_error)
    }

    fn read<T: DeserializeOwned>(&self, call: &Call, bytes: &[u8]) -> Result<T> {
        serde_json::from_slice(bytes).map_err(|e| {
            Error::corrupt(format!("the answer cannot be read: {e} ({call})"))
                .during("ask")
                .at(self.server())
                .hint("is there a proxy in between, or a server of another version?")
        })
    }

    /// A holder for each receiver of a message. One request.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Corrupt` for a lost blob, `Refused` for a job that is over.
    pub async fn acquire_for_receivers(
        &self,
        key: &BlobKey,
        receivers: &BTreeSet<ReceiverId>,
    ) -> Result<()> {
        let body = AcquireBody::Receivers {
            receivers: receivers.iter().cloned().collect(),
        };
        self.acquire(key, &body).await
    }

    /// Holds a blob for a time, counted from the moment the server takes the call. One request.
    ///
    /// # Errors
    ///
    /// As [`acquire_for_receivers`](BlobClient::acquire_for_receivers).
    pub async fn acquire_lease(&self, key: &BlobKey, id: &LeaseId, time: Duration) -> Result<()> {
        let body = AcquireBody::Lease {
            id: id.clone(),
            millis: millis(time),
        };
        self.acquire(key, &body).await
    }

    async fn acquire(&self, key: &BlobKey, body: &AcquireBody) -> Result<()> {
        let call = Call::Acquire(key.job.clone(), key.digest);
        self.act(&call, json(body)?).await?;
        Ok(())
    }

    /// Moves the end of a lease. One request.
    ///
    /// # Errors
    ///
    /// `Conflict` if the lease has ended; as [`acquire_for_receivers`](BlobClient::acquire_for_receivers).
    pub async fn renew(&self, key: &BlobKey, id: &LeaseId, time: Duration) -> Result<()> {
        let call = Call::Renew(key.job.clone(), key.digest, id.clone());
        let body = RenewBody {
            millis: millis(time),
        };
        self.act(&call, json(&body)?).await?;
        Ok(())
    }

    /// A lease is given back; one that has ended is fine. One request.
    ///
    /// # Errors
    ///
    /// `Denied`, `Unavailable`.
    pub async fn release(&self, key: &BlobKey, id: &LeaseId) -> Result<()> {
        let call = Call::Release(key.job.clone(), key.digest, id.clone());
        self.gone_is_fine(&call).await
    }

    /// A receiver has what it needs of a message. Repeating it, or a message that is gone, is fine. One
    /// request.
    ///
    /// # Errors
    ///
    /// `Denied`, `Unavailable`.
    pub async fn acknowledge(&self, key: &BlobKey, who: &ReceiverId) -> Result<()> {
        let call = Call::Acknowledge(key.job.clone(), key.digest, who.clone());
        self.gone_is_fine(&call).await
    }

    async fn gone_is_fine(&self, call: &Call) -> Result<()> {
        match self.ask(call, None).await {
            Ok(_) => Ok(()),
            Err(f) if matches!(f.code(), Some(Code::NotFound | Code::JobOver)) => Ok(()),
            Err(f) => Err(f.into_error()),
        }
    }

    /// Something happened to a job. Repeating it is fine. One request.
    ///
    /// # Errors
    ///
    /// `Refused` for a job that is over; for a registration `NotFound` if a blob is not there, and then none
    /// is held.
    pub async fn job_event(&self, job: &JobId, event: &JobEvent) -> Result<()> {
        let call = Call::JobEvent(job.clone());
        self.act(&call, json(event)?).await?;
        Ok(())
    }

    /// The jobs that the server knows. One request.
    ///
    /// # Errors
    ///
    /// `Denied`, `Unavailable`.
    pub async fn jobs(&self) -> Result<JobList> {
        self.told(&Call::ListJobs, None).await
    }

    /// The blobs of a job. One request.
    ///
    /// # Errors
    ///
    /// `NotFound` for a job that is not known.
    pub async fn blobs(&self, job: &JobId) -> Result<BlobList> {
        self.told(&Call::ListBlobs(job.clone()), None).await
    }

    /// Why a blob stays or goes. One request.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Refused` for a job that is over.
    pub async fn why(&self, key: &BlobKey) -> Result<WhyAnswer> {
        self.told(&Call::Why(key.job.clone(), key.digest), None)
            .await
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn json(body: &impl Serialize) -> Result<Bytes> {
    let bytes = serde_json::to_vec(body);
    bytes.map(Bytes::from).map_err(|e| {
        Error::new(
            ErrorKind::Internal,
            format!("a request cannot be written: {e}"),
        )
    })
}
