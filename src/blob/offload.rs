//! Large messages through the blob store: uploaded once for many receivers, each of which acknowledges when it has
//! downloaded and decoded it.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

use super::cache::JobGuard;
use super::client::{BlobClient, Content, Upload};
use super::key::{BlobKey, JobId, ReceiverId};
use super::lifecycle::Class;

/// When a message goes through the blob store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffloadRule {
    /// `blob.offload.minsize` in bytes: smaller ones never do. 1 MiB.
    pub min_bytes: u64,
    /// Nor do those that make fewer bytes than this for all receivers together. 4 MiB.
    pub min_total: u64,
    /// Larger ones always do: the transport's largest frame. 10 MiB.
    pub largest_inline: u64,
}

impl Default for OffloadRule {
    fn default() -> Self {
        OffloadRule {
            min_bytes: 1 << 20,
            min_total: 4 << 20,
            largest_inline: 10 << 20,
        }
    }
}

impl OffloadRule {
    /// True if a message of `bytes` bytes to so many receivers goes through the blob store.
    pub fn offloads(&self, bytes: u64, receivers: usize) -> bool {
        let total = bytes.saturating_mul(receivers as u64);
        bytes > self.largest_inline || (bytes >= self.min_bytes && total >= self.min_total)
    }
}

/// What is sent to the receivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The message itself.
    Inline(Bytes),
    /// Where it is.
    Blob(Offloaded),
}

/// A message in the blob store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offloaded {
    /// The blob.
    pub key: BlobKey,
    /// Who must acknowledge it.
    pub receivers: BTreeSet<ReceiverId>,
}

/// A message that has been decoded.
#[derive(Debug)]
pub struct Received<T> {
    /// What it was decoded into.
    pub value: T,
    /// Whether the server knows: an error leaves this receiver among the holders until its job fails or ends, or
    /// until [`BlobClient::acknowledge`] is repeated. The value is good in any case.
    pub acknowledged: Result<()>,
}

impl BlobClient {
    /// Puts a message into the blob store, with one holder for each receiver, or gives it back to be sent as it
    /// is, as `rule` says. Up to four requests.
    ///
    /// # Errors
    ///
    /// `Invalid` without receivers; as [`BlobClient::upload`].
    pub async fn offload(
        &self,
        job: &JobId,
        bytes: Bytes,
        receivers: &BTreeSet<ReceiverId>,
        rule: OffloadRule,
    ) -> Result<Message> {
        if receivers.is_empty() {
            return Err(Error::invalid("a message without receivers")
                .during("off-load")
                .hint("name at least one receiver"));
        }
        if !rule.offloads(bytes.len() as u64, receivers.len()) {
            return Ok(Message::Inline(bytes));
        }
        let upload = Upload {
            name: None,
            class: Class::Recreatable,
            content: Content::Bytes(bytes),
        };
        let report = self.upload(job, &[upload]).await?;
        let [digest] = report.digests[..] else {
            return Err(Error::corrupt("one message came back as several").during("off-load"));
        };
        let key = BlobKey {
            job: job.clone(),
            digest,
        };
        // It is staged: it stays for the retention interval although nobody holds it yet.
        self.acquire_for_receivers(&key, receivers).await?;
        Ok(Message::Blob(Offloaded {
            key,
            receivers: receivers.clone(),
        }))
    }
}

impl JobGuard {
    /// Gets a message, decodes it, and acknowledges it for `me`: in this order, so that a receiver that dies in between
    /// finds it again.
    ///
    /// # Errors
    ///
    /// `Invalid` for a message of another job, or to others; as [`JobGuard::get`]; what `decode` says. Nothing is
    /// acknowledged then.
    pub async fn receive<T>(
        &self,
        client: &BlobClient,
        message: &Message,
        me: &ReceiverId,
        decode: impl FnOnce(&Bytes) -> Result<T>,
    ) -> Result<Received<T>> {
        let offloaded = match message {
            Message::Inline(bytes) => {
                return Ok(Received {
                    value: decode(bytes)?,
                    acknowledged: Ok(()),
                });
            }
            Message::Blob(offloaded) => offloaded,
        };
        let key = &offloaded.key;
        let wrong = match () {
            _ if key.job != *self.job() => Some(format!("it belongs to job {}", key.job)),
            _ if !offloaded.receivers.contains(me) => Some(format!("it is not meant for {me}")),
            _ => None,
        };
        if let Some(why) = wrong {
            return Err(Error::invalid(why).during("receive").at(key));
        }
        let bytes = self.read(&key.digest, Class::Recreatable).await?;
        let value = decode(&bytes)?;
        drop(bytes);
        let acknowledged = client.acknowledge(key, me).await;
        self.acknowledged(&key.digest);
        Ok(Received {
            value,
            acknowledged,
        })
    }
}
