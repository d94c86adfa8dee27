//! Between different stores: read here, write there, in bounded memory.
//!
//! The source is read with its tag as a precondition, in parts of 8 MiB, and at most
//! [`super::open::RELAY_BUDGET_BYTES`] of them are in memory at once for the whole process, however
//! many objects are under way.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use object_store::{
    GetOptions, GetRange, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload,
};

use crate::error::{Error, ErrorKind, Result};

use super::duplicate::{Copied, CopyOrder};
use super::location::{Location, Provider};
use super::method::Method;
use super::open::{Backend, Stores};
use super::{errors, local};

/// Size of a part, and of the largest object that is written with one request, in bytes.
const PART_BYTES: u64 = 8 * 1024 * 1024;
/// S3 takes at most this many parts; larger objects get larger parts.
const MAX_PARTS: u64 = 10_000;
/// Parts of one object on their way at once.
const PARTS_IN_FLIGHT: usize = 4;

fn part_size(size: u64) -> u64 {
    // Whole MiB, so that all parts but the last are equal: some stores demand it.
    const MIB: u64 = 1024 * 1024;
    PART_BYTES.max(size.div_ceil(MAX_PARTS).div_ceil(MIB) * MIB)
}

/// Streams one object from store to store.
pub(crate) async fn copy(stores: &Stores, order: &CopyOrder<'_>) -> Result<Copied> {
    let to = stores.open(order.destination)?;
    let tag = match &to.backend {
        Backend::Local => into_file(stores, order).await?,
        _ if order.size <= PART_BYTES => whole(stores, order).await?,
        _ => in_parts(stores, order).await?,
    };
    Ok(Copied::new(Method::Relay, tag))
}

/// Reads bytes `start..end` of the source, and insists on getting all of them.
pub(crate) async fn read_range(
    stores: &Stores,
    order: &CopyOrder<'_>,
    start: u64,
    end: u64,
) -> Result<Bytes> {
    let from = stores.open(order.source)?;
    if start == end {
        return Ok(Bytes::new());
    }
    let bytes = match from.objects() {
        None => {
            let at = order.source.clone();
            let pin = order.source_tag.map(str::to_string);
            super::blocking(move || read_file_range(&at, pin.as_deref(), start, end)).await?
        }
        Some(store) => {
            let options = GetOptions {
                range: Some(GetRange::Bounded(start..end)),
                // Google's XML interface ignores this; the generation below pins it there.
                if_match: (order.source.provider() != Provider::Gcs)
                    .then(|| order.source_tag.map(str::to_string))
                    .flatten(),
                version: (order.source.provider() == Provider::Gcs)
                    .then(|| order.source_tag.map(str::to_string))
                    .flatten(),
                ..Default::default()
            };
            let fail = |e| errors::from_client(e, "read", order.source);
            let result = store
                .get_opts(&order.source.object_path()?, options)
                .await
                .map_err(fail)?;
            if result.meta.size != order.size {
                return Err(order.source_changed());
            }
            result.bytes().await.map_err(fail)?
        }
    };
    if bytes.len() as u64 != end - start {
        return Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "{} bytes came where {} were asked for",
                bytes.len(),
                end - start
            ),
        )
        .during("read")
        .at(order.source));
    }
    Ok(bytes)
}

fn read_file_range(at: &Location, pin: Option<&str>, start: u64, end: u64) -> Result<Bytes> {
    use std::io::{Read, Seek, SeekFrom};
    let stat = local::stat(at)?;
    if pin.is_some() && pin != stat.tag.as_deref() {
        return Err(Error::new(
            ErrorKind::Conflict,
            "the file changed since it was looked at",
        )
        .during("read")
        .at(at));
    }
    let fail = |e| local::from_io(e, "read", at);
    let mut file = std::fs::File::open(local::path_of(at)).map_err(fail)?;
    file.seek(SeekFrom::Start(start)).map_err(fail)?;
    let mut bytes = Vec::with_capacity(usize::try_from(end - start).unwrap_or(0));
    file.take(end - start)
        .read_to_end(&mut bytes)
        .map_err(fail)?;
    Ok(bytes.into())
}

async fn whole(stores: &Stores, order: &CopyOrder<'_>) -> Result<Option<String>> {
    let _memory = stores.relay_budget(order.size).await;
    let bytes = read_range(stores, order, 0, order.size).await?;
    let stat = stores
        .put(order.destination, bytes, order.create_only)
        .await?;
    Ok(stat.pin(order.destination.provider()).map(str::to_string))
}

async fn into_file(stores: &Stores, order: &CopyOrder<'_>) -> Result<Option<String>> {
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
    let part = part_size(order.size);
    let mut start = 0;
    while start < order.size {
        let end = (start + part).min(order.size);
        let _memory = stores.relay_budget(end - start).await;
        let bytes = read_range(stores, order, start, end).await?;
        let at = order.destination.clone();
        staged = super::blocking(move || {
            staged
                .file()
                .write_all(&bytes)
                .map_err(|e| local::from_io(e, "write", &at))?;
            Ok(staged)
        })
        .await?;
        start = end;
    }
    let (at, create_only, sync) = (order.destination.clone(), order.create_only, order.sync);
    let stat = super::blocking(move || staged.publish(&at, create_only, sync)).await?;
    Ok(stat.tag)
}

/// A multipart upload. The store client completes it unconditionally, so `create_only` is looked
/// after just before: a writer in between would be overwritten.
async fn in_parts(stores: &Stores, order: &CopyOrder<'_>) -> Result<Option<String>> {
    let taken = || {
        Error::new(ErrorKind::AlreadyExists, "an object is already there")
            .during("write")
            .at(order.destination)
    };
    if order.create_only && stores.find(order.destination).await?.is_some() {
        return Err(taken());
    }
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
            Err(taken())
        }
        other => other,
    };
    match sent {
        Ok(()) => match upload.complete().await {
            Ok(result) => Ok(match order.destination.provider() {
                Provider::Gcs => result.version,
                _ => result.e_tag,
            }),
            Err(e) => Err(fail(e)),
        },
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
    let part = part_size(order.size);
    let ranges =
        (0..order.size.div_ceil(part)).map(|n| (n * part, ((n + 1) * part).min(order.size)));
    let mut parts = futures::stream::iter(ranges)
        .map(|(start, end)| async move {
            let memory = stores.relay_budget(end - start).await;
            let bytes = read_range(stores, order, start, end).await?;
            Ok::<_, Error>((bytes, memory))
        })
        // In order, because the upload numbers its parts as they come.
        .buffered(PARTS_IN_FLIGHT);
    let mut writing = futures::stream::FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some(done) = writing.next(), if !writing.is_empty() => {
                let done: std::result::Result<(), object_store::Error> = done;
                done.map_err(|e| errors::from_client(e, "write", order.destination))?;
            }
            next = parts.next(), if writing.len() < PARTS_IN_FLIGHT => match next {
                None if writing.is_empty() => return Ok(()),
                None => {
                    let done: std::result::Result<(), object_store::Error> =
                        writing.next().await.unwrap_or(Ok(()));
                    done.map_err(|e| errors::from_client(e, "write", order.destination))?;
                }
                Some(part) => {
                    let (bytes, memory) = part?;
                    let put = upload.put_part(PutPayload::from_bytes(bytes));
                    writing.push(async move {
                        let result = put.await;
                        drop(memory);
                        result
                    });
                }
            }
        }
    }
}

/// Writes a small object whole, with the store client's own precondition.
pub(crate) async fn put_object(
    store: &Arc<dyn ObjectStore>,
    at: &Location,
    bytes: Bytes,
    create_only: bool,
) -> Result<super::Stat> {
    let size = bytes.len() as u64;
    let options = PutOptions {
        mode: if create_only {
            PutMode::Create
        } else {
            PutMode::Overwrite
        },
        ..Default::default()
    };
    let result = store
        .put_opts(
            &at.object_path()?,
            PutPayload::from_bytes(bytes.clone()),
            options,
        )
        .await;
    match result {
        Ok(put) => Ok(super::Stat {
            size,
            tag: put.e_tag,
            version: put.version,
            ..super::Stat::default()
        }),
        // The first of several attempts may have worked and its reply been lost: look before
        // saying that somebody else was there.
        Err(object_store::Error::AlreadyExists { .. }) if same_content(store, at, &bytes).await => {
            let meta = store
                .head(&at.object_path()?)
                .await
                .map_err(|e| errors::from_client(e, "look at", at))?;
            Ok(meta.into())
        }
        Err(e) => Err(errors::from_client(e, "write", at)),
    }
}

async fn same_content(store: &Arc<dyn ObjectStore>, at: &Location, bytes: &Bytes) -> bool {
    let Ok(path) = at.object_path() else {
        return false;
    };
    match store.get(&path).await {
        Ok(there) if there.meta.size == bytes.len() as u64 => {
            there.bytes().await.is_ok_and(|there| there == *bytes)
        }
        _ => false,
    }
}
