//! Between different stores: read here, write there, in bounded memory, under checksums.
//!
//! The source is read with its tag as a precondition, in parts of 8 MiB, and at most
//! [`super::open::RELAY_BUDGET_BYTES`] of them are in memory at once for the whole process, however
//! many objects are under way. What was read is compared with the source's tag where that is a
//! checksum; what is written goes with a checksum that the service checks. Objects appear whole, under
//! a condition that nothing is there, or not at all.

mod buffers;
mod put;
mod read;

use std::collections::HashMap;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::header::HeaderMap;
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};

use crate::error::{Error, ErrorKind, Result};

use super::azure::{AzureContainer, block_ids, block_size};
use super::duplicate::{Copied, CopyOrder};
use super::gcs::{Chunk, GcsBucket, unfinished};
use super::http::Wire;
use super::method::Method;
use super::open::{Backend, Stores};
use super::s3::{PartSource, S3Bucket};
use super::stat::Put;
use super::unfinished::UnfinishedLog;
use super::{errors, local};

pub(crate) use buffers::{Buffer, Buffers};
pub(crate) use read::{parts, read_range};

/// Size of a part, and of the largest object that is written with one request, in bytes.
pub(crate) const PART_BYTES: u64 = 8 * 1024 * 1024;
/// S3 takes at most this many parts; larger objects get larger parts.
pub(crate) const MAX_PARTS: u64 = 10_000;
/// Parts of one object on their way to a store at once.
const WRITES_IN_FLIGHT: usize = 4;

/// Size of each part but the last, in bytes.
pub(crate) fn part_size(size: u64) -> u64 {
    // Whole MiB, so that all parts but the last are equal: some stores demand it.
    const MIB: u64 = 1024 * 1024;
    PART_BYTES.max(size.div_ceil(MAX_PARTS).div_ceil(MIB) * MIB)
}

/// Size of each chunk of a resumable upload but the last, in bytes: each is a round trip of its own, so they
/// are as large as lets some be in memory at once. Google takes multiples of 256 KiB only. Source: the page
/// Resumable uploads of Cloud Storage's documentation.
fn chunk_size(memory: u64) -> u64 {
    const MIB: u64 = 1024 * 1024;
    (memory / 4 / MIB * MIB).clamp(PART_BYTES, 4 * PART_BYTES)
}

/// Streams one object from store to store.
pub(crate) async fn copy(
    stores: &Stores,
    order: &CopyOrder<'_>,
    log: &dyn UnfinishedLog,
) -> Result<Copied> {
    let to = stores.open(order.destination)?;
    match &to.backend {
        Backend::Local => into_file(stores, order).await,
        _ if order.size <= PART_BYTES => whole(stores, order).await,
        // An upload in parts is visible only when it is completed, which fails at the latest then.
        _ if order.create_only && stores.find(order.destination).await?.is_some() => {
            Err(order.refused())
        }
        Backend::S3(s3) if !s3.customer_keys => {
            let source = PartSource::Relay(stores);
            s3.copy_in_parts(stores.wire(&to)?, &source, order, log)
                .await
        }
        Backend::Azure(azure) => in_blocks(stores, stores.wire(&to)?, azure, order).await,
        Backend::Gcs(gcs) => in_chunks(stores, stores.wire(&to)?, gcs, order).await,
        Backend::S3(_) | Backend::Memory(_) => by_client(stores, order).await,
    }
}

async fn whole(stores: &Stores, order: &CopyOrder<'_>) -> Result<Copied> {
    let _memory = stores.relay_budget(order.size).await;
    let bytes = read_range(stores, order, 0, order.size).await?;
    let mut check = read::Check::begin(stores, order, true)?;
    check.feed(&bytes).await?;
    check.finish(stores, order).await?;
    let provider = order.destination.provider();
    let put = stores.try_put(order.destination, &bytes, order.create_only);
    match put.await? {
        Put::Written(stat) => {
            let tag = stat.pin(provider).map(str::to_string);
            Ok(Copied::new(Method::Relay, tag))
        }
        // Perhaps our own, of an attempt whose reply was lost.
        Put::Taken { uncertain: true } => {
            let there = stores.stat(order.destination).await?;
            if there.size != order.size {
                return Err(order.refused());
            }
            let tag = there.pin(provider).map(str::to_string);
            Ok(Copied {
                to_compare: true,
                ..Copied::new(Method::Relay, tag)
            })
        }
        Put::Taken { uncertain: false } => Err(order.refused()),
    }
}

async fn into_file(stores: &Stores, order: &CopyOrder<'_>) -> Result<Copied> {
    use std::io::Write;
    let at = order.destination.clone();
    if order.create_only && stores.find(&at).await?.is_some() {
        return Err(
            Error::new(ErrorKind::AlreadyExists, "a file is already there")
                .during("write")
                .at(&at),
        );
    }
    let mut staged = super::blocking(move || local::Staged::begin(&at)).await?;
    let mut check = read::Check::begin(stores, order, true)?;
    let mut parts = std::pin::pin!(read::parts(stores, order, part_size(order.size), |_| false));
    while let Some(part) = parts.next().await {
        let part = part?;
        check.feed(&part.bytes).await?;
        let at = order.destination.clone();
        staged = super::blocking(move || {
            staged
                .file()
                .write_all(&part.bytes)
                .map_err(|e| local::from_io(e, "write", &at))?;
            drop(part);
            Ok(staged)
        })
        .await?;
    }
    check.finish(stores, order).await?;
    let (at, create_only, sync) = (order.destination.clone(), order.create_only, order.sync);
    let stat = super::blocking(move || staged.publish(&at, create_only, sync)).await?;
    Ok(Copied::new(Method::Relay, stat.tag))
}

/// The parts of an S3 upload that are not `done`: their numbers and ETags. The source is checked when
/// all of it was read in one go.
pub(crate) async fn fill_upload(
    stores: &Stores,
    wire: Wire<'_>,
    s3: &S3Bucket,
    order: &CopyOrder<'_>,
    upload: &str,
    part_size: u64,
    done: &HashMap<u32, String>,
) -> Result<Vec<(u32, String)>> {
    let number_of = |n: u64| u32::try_from(n + 1).unwrap_or(u32::MAX);
    let mut check = read::Check::begin(stores, order, done.is_empty())?;
    let mut parts = std::pin::pin!(read::parts(stores, order, part_size, |n| {
        done.contains_key(&number_of(n))
    }));
    let mut writing = FuturesUnordered::new();
    let mut written: Vec<(u32, String)> = done.iter().map(|(n, t)| (*n, t.clone())).collect();
    loop {
        tokio::select! {
            biased;
            Some(part) = writing.next(), if !writing.is_empty() => written.push(part?),
            next = parts.next(), if writing.len() < WRITES_IN_FLIGHT => match next {
                Some(part) => {
                    let part = part?;
                    check.feed(&part.bytes).await?;
                    writing.push(async move {
                        let number = number_of(part.number);
                        let at = order.destination;
                        let tag = s3.upload_part(wire, at, upload, number, &part.bytes).await?;
                        drop(part);
                        Ok::<_, Error>((number, tag))
                    });
                }
                None => break,
            }
        }
    }
    while let Some(part) = writing.next().await {
        written.push(part?);
    }
    check.finish(stores, order).await?;
    Ok(written)
}

/// Blocks that a list makes a blob. Those that an earlier run has written of this very source are known
/// by their names and not sent again.
async fn in_blocks(
    stores: &Stores,
    wire: Wire<'_>,
    azure: &AzureContainer,
    order: &CopyOrder<'_>,
) -> Result<Copied> {
    let at = order.destination;
    let block = block_size(order.size, PART_BYTES);
    let ids = block_ids(order, block);
    let there = azure.uncommitted(wire, at).await?;
    let length = |n: u64| block.min(order.size - n * block);
    let id_of = |n: u64| usize::try_from(n).ok().and_then(|n| ids.get(n));
    let is_there = |n: u64| id_of(n).and_then(|id| there.get(id)) == Some(&length(n));
    let missing = |n: &u64| !is_there(*n);
    let complete = (0..ids.len() as u64).all(|n| missing(&n));
    let mut check = read::Check::begin(stores, order, complete)?;
    let mut parts = std::pin::pin!(read::parts(stores, order, block, is_there));
    let mut writing = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some(part) = writing.next(), if !writing.is_empty() => part?,
            next = parts.next(), if writing.len() < WRITES_IN_FLIGHT => match next {
                Some(part) => {
                    let part = part?;
                    check.feed(&part.bytes).await?;
                    let id = id_of(part.number);
                    writing.push(async move {
                        if let Some(id) = id {
                            azure.put_block(wire, at, id, &part.bytes).await?;
                        }
                        drop(part);
                        Ok::<_, Error>(())
                    });
                }
                None => break,
            }
        }
    }
    while let Some(part) = writing.next().await {
        part?;
    }
    check.finish(stores, order).await?;
    azure
        .put_block_list(wire, order, &ids, &HeaderMap::new(), Method::Relay)
        .await
}

/// A resumable upload: one chunk after the other, the next ones being read meanwhile.
async fn in_chunks(
    stores: &Stores,
    wire: Wire<'_>,
    gcs: &GcsBucket,
    order: &CopyOrder<'_>,
) -> Result<Copied> {
    let session = gcs.begin_upload(wire, order, Some(order.size)).await?;
    let mut check = read::Check::summing(stores, order)?;
    let mut sum = None;
    let chunk = chunk_size(stores.relay_memory());
    let mut parts = std::pin::pin!(read::parts(stores, order, chunk, |_| false));
    while let Some(part) = parts.next().await {
        let part = part?;
        let end = part.start + part.bytes.len() as u64;
        check.feed(&part.bytes).await?;
        // The last chunk makes the object: only when the source is known to be right.
        if end == order.size {
            sum = check.finish(stores, order).await?;
        }
        let sent = gcs.put_all(
            wire,
            order,
            &session,
            part.start,
            &part.bytes,
            Some(order.size),
        );
        match (sent.await?, sum) {
            (Chunk::Stored(_), _) => {}
            (Chunk::Done(made), Some(sum)) => return gcs.accept(wire, order, made, sum).await,
            (Chunk::Taken { uncertain }, _) => return gcs.taken(order, uncertain).await,
            (Chunk::Done(_), None) => break,
        }
    }
    Err(unfinished(order.destination))
}

/// By object_store's own client, for what our requests do not do: customer-provided keys, and memory.
/// It completes unconditionally, so `create_only` is looked after just before.
async fn by_client(stores: &Stores, order: &CopyOrder<'_>) -> Result<Copied> {
    let to = stores.open(order.destination)?;
    let store = to
        .objects()
        .ok_or_else(|| Error::new(ErrorKind::Internal, "not an object store"))?;
    let path = order.destination.object_path()?;
    let fail = |e| errors::from_client(e, "write", order.destination);
    let mut upload = store.put_multipart(&path).await.map_err(fail)?;
    let sent = send_parts(stores, order, upload.as_mut()).await;
    let sent = match sent {
        Ok(()) if order.create_only && stores.find(order.destination).await?.is_some() => {
            Err(order.refused())
        }
        other => other,
    };
    match sent {
        Ok(()) => {
            let made = upload.complete().await.map_err(fail)?;
            Ok(Copied::new(Method::Relay, made.e_tag))
        }
        Err(e) => {
            // Best effort: the error that led here matters more than one from cleaning up.
            if let Err(abort) = upload.abort().await {
                tracing::warn!(at = %order.destination, error = %abort, "an upload could not be aborted");
            }
            Err(e)
        }
    }
}

async fn send_parts(
    stores: &Stores,
    order: &CopyOrder<'_>,
    upload: &mut dyn MultipartUpload,
) -> Result<()> {
    let mut check = read::Check::begin(stores, order, true)?;
    let mut parts = std::pin::pin!(read::parts(stores, order, part_size(order.size), |_| false));
    while let Some(part) = parts.next().await {
        let part = part?;
        check.feed(&part.bytes).await?;
        upload
            .put_part(PutPayload::from_bytes(part.bytes))
            .await
            .map_err(|e| errors::from_client(e, "write", order.destination))?;
    }
    check.finish(stores, order).await.map(drop)
}
