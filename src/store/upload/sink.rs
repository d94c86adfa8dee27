//! Uploads in parts, service by service.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::HeaderMap;
use object_store::{ObjectStoreExt, PutPayload};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use crate::clock;
use crate::error::{Error, ErrorKind, Result};

use super::super::digest::RunningSha256;
use super::super::duplicate::Copied;
use super::super::errors;
use super::super::gcs::{Chunk, unfinished};
use super::super::method::Method;
use super::super::open::{Backend, Store};
use super::super::relay::MAX_PARTS;
use super::content::Reader;
use super::{Upload, Uploaded, shared};

type Memory = Option<OwnedSemaphorePermit>;

/// What was read of a content so far.
#[derive(Default)]
struct Sum {
    running: RunningSha256,
    size: u64,
}

impl Sum {
    async fn feed(&mut self, part: &Bytes) -> Result<()> {
        self.running = std::mem::take(&mut self.running).feed(part).await?;
        self.size += part.len() as u64;
        Ok(())
    }

    fn done(self) -> Uploaded {
        Uploaded {
            size: self.size,
            sha256: self.running.sum(),
        }
    }
}

impl Upload<'_> {
    /// Uploads a content that does not fit into one part: `first`, and what the reader still has.
    pub(super) async fn in_parts(
        &self,
        store: &Store,
        reader: &mut Reader,
        first: Bytes,
        memory: Memory,
    ) -> Result<(Copied, Uploaded)> {
        match &store.backend {
            Backend::S3(s3) if !s3.customer_keys => {
                let wire = self.stores.wire(store)?;
                let order = self.order(0);
                let id = s3.begin_upload(wire, &order, &HeaderMap::new()).await?;
                let sent = async {
                    let mut parts = Vec::new();
                    let send = |number, bytes, memory| self.s3_part(&id, number, bytes, memory);
                    let done = self
                        .side_by_side(reader, first, memory, send, |part| parts.push(part))
                        .await?;
                    parts.sort_unstable_by_key(|(number, _)| *number);
                    let order = self.order(done.size);
                    let copied = s3
                        .complete_upload(wire, &order, &id, &parts, Method::Relay)
                        .await?;
                    Ok((copied, done))
                };
                let sent: Result<_> = sent.await;
                if sent.is_err()
                    && let Err(abort) = s3.abort_upload(wire, self.at, &id).await
                {
                    tracing::warn!(at = %self.at, error = %abort, "an upload stays open");
                }
                sent
            }
            Backend::Azure(azure) => {
                // Blocks of other tries at this name must not be taken for ours.
                let nonce = clock::random_id();
                let id = |number: u32| STANDARD.encode(format!("{nonce:016x}{number:08}"));
                let mut last = 0;
                let send = |number, bytes, memory| self.azure_block(id(number), bytes, memory);
                let done = self
                    .side_by_side(reader, first, memory, send, |()| last += 1)
                    .await?;
                let ids: Vec<String> = (1..=last).map(id).collect();
                let order = self.order(done.size);
                let wire = self.stores.wire(store)?;
                let copied = azure
                    .put_block_list(wire, &order, &ids, &HeaderMap::new(), Method::Relay)
                    .await?;
                Ok((copied, done))
            }
            Backend::Gcs(_) => self.in_chunks(store, reader, first, memory).await,
            _ => self.by_client(store, reader, first, memory).await,
        }
    }

    /// Reads part by part, sends several at once, and counts each that has arrived.
    async fn side_by_side<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        reader: &mut Reader,
        first: Bytes,
        memory: Memory,
        send: impl Fn(u32, Bytes, Memory) -> F,
        mut arrived: impl FnMut(T),
    ) -> Result<Uploaded> {
        let mut sum = Sum::default();
        // Tasks of their own, so that they go on while the next part is read and hashed. Dropped, they end.
        let mut sending: JoinSet<Result<T>> = JoinSet::new();
        let (mut number, mut part, mut memory) = (1, first, memory);
        loop {
            self.options.cancel.check()?;
            let last = (part.len() as u64) < self.part_size;
            // On its way while it is hashed.
            sending.spawn(send(number, part.clone(), memory));
            sum.feed(&part).await?;
            drop(part);
            while sending.len() >= self.options.parts_at_once.max(1) {
                take(&mut sending, &mut arrived).await?;
            }
            if last || reader.size() == Some(sum.size) {
                break;
            }
            memory = self.memory(reader.left()).await;
            part = reader.next(self.part_size).await?;
            if part.is_empty() {
                break;
            }
            number += 1;
            if u64::from(number) > MAX_PARTS {
                return Err(too_long(self.part_size));
            }
        }
        reader.finish().await?;
        while !sending.is_empty() {
            take(&mut sending, &mut arrived).await?;
        }
        Ok(sum.done())
    }

    fn s3_part(
        &self,
        id: &str,
        number: u32,
        bytes: Bytes,
        memory: Memory,
    ) -> impl Future<Output = Result<(u32, String)>> + Send + 'static {
        let (stores, at) = shared(self.stores, self.at);
        let id = id.to_string();
        async move {
            let store = stores.open(&at)?;
            let Backend::S3(s3) = &store.backend else {
                return Err(Error::new(ErrorKind::Internal, "not a bucket of S3"));
            };
            let wire = stores.wire(&store)?;
            let tag = s3.upload_part(wire, &at, &id, number, &bytes).await?;
            drop(memory);
            Ok((number, tag))
        }
    }

    fn azure_block(
        &self,
        id: String,
        bytes: Bytes,
        memory: Memory,
    ) -> impl Future<Output = Result<()>> + Send + 'static {
        let (stores, at) = shared(self.stores, self.at);
        async move {
            let store = stores.open(&at)?;
            let Backend::Azure(azure) = &store.backend else {
                return Err(Error::new(ErrorKind::Internal, "not a container of Azure"));
            };
            let wire = stores.wire(&store)?;
            azure.put_block(wire, &at, &id, &bytes).await?;
            drop(memory);
            Ok(())
        }
    }

    /// A resumable upload: one chunk after the other. The last one says how many bytes there are, so one
    /// is held back until it is known to be the last.
    async fn in_chunks(
        &self,
        store: &Store,
        reader: &mut Reader,
        first: Bytes,
        memory: Memory,
    ) -> Result<(Copied, Uploaded)> {
        let Backend::Gcs(gcs) = &store.backend else {
            return Err(Error::new(ErrorKind::Internal, "not a bucket of Google"));
        };
        let wire = self.stores.wire(store)?;
        // The part held back needs memory too. Both permits together, lest uploads wait for each other.
        drop(memory);
        let _memory = self.stores.relay_budget(2 * self.part_size).await;
        let session = gcs
            .begin_upload(wire, &self.order(0), reader.size())
            .await?;
        let mut sum = Sum::default();
        let mut md5 = super::super::checksum::Running::default();
        let mut part = first;
        loop {
            self.options.cancel.check()?;
            let start = sum.size;
            sum.feed(&part).await?;
            md5 = md5.feed(&part).await?;
            let next = match (part.len() as u64) < self.part_size {
                true => Bytes::new(),
                false => reader.next(self.part_size).await?,
            };
            let total = match next.is_empty() {
                true => {
                    reader.finish().await?;
                    Some(sum.size)
                }
                false => reader.size(),
            };
            let order = self.order(sum.size);
            let sent = gcs.put_all(wire, &order, &session, start, &part, total);
            match sent.await? {
                Chunk::Done(made) if next.is_empty() => {
                    let copied = gcs.accept(wire, &order, made, md5.sum()).await?;
                    return Ok((copied, sum.done()));
                }
                Chunk::Taken { uncertain } => {
                    return Ok((gcs.taken(&order, uncertain).await?, sum.done()));
                }
                Chunk::Stored(_) if !next.is_empty() => {}
                Chunk::Stored(_) | Chunk::Done(_) => return Err(unfinished(self.at)),
            }
            part = next;
        }
    }

    /// By object_store's own client, for customer-provided keys and for memory.
    async fn by_client(
        &self,
        store: &Store,
        reader: &mut Reader,
        first: Bytes,
        memory: Memory,
    ) -> Result<(Copied, Uploaded)> {
        let client = store
            .objects()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "not an object store"))?;
        let fail = |e| errors::from_client(e, "write", self.at);
        let mut upload = client
            .put_multipart(&self.at.object_path()?)
            .await
            .map_err(fail)?;
        let mut sum = Sum::default();
        let mut part = first;
        let sent = async {
            loop {
                self.options.cancel.check()?;
                sum.feed(&part).await?;
                let last = (part.len() as u64) < self.part_size;
                if !part.is_empty() {
                    let payload = PutPayload::from_bytes(part);
                    upload.put_part(payload).await.map_err(fail)?;
                }
                if last {
                    break;
                }
                part = reader.next(self.part_size).await?;
            }
            reader.finish().await?;
            match self.stores.find(self.at).await? {
                Some(_) => Err(self.order(0).refused()),
                None => Ok(()),
            }
        };
        let sent: Result<()> = sent.await;
        drop(memory);
        if let Err(e) = sent {
            if let Err(abort) = upload.abort().await {
                tracing::warn!(at = %self.at, error = %abort, "an upload could not be aborted");
            }
            return Err(e);
        }
        let made = upload.complete().await.map_err(fail)?;
        Ok((Copied::new(Method::Relay, made.e_tag), sum.done()))
    }
}

async fn take<T: Send + 'static>(
    sending: &mut JoinSet<Result<T>>,
    arrived: &mut impl FnMut(T),
) -> Result<()> {
    match sending.join_next().await {
        Some(Ok(part)) => {
            arrived(part?);
            Ok(())
        }
        Some(Err(e)) => Err(Error::new(
            ErrorKind::Internal,
            format!("a worker task ended: {e}"),
        )),
        None => Ok(()),
    }
}

fn too_long(part_size: u64) -> Error {
    Error::invalid(format!(
        "the content is longer than {MAX_PARTS} parts of {part_size} bytes"
    ))
    .hint("say how long it will be, or give a larger part size")
}
