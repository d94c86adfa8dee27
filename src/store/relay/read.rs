//! Reading a source that is pinned, in ranges, and checking that all of it is what its tag says.

use bytes::Bytes;
use futures::{Stream, StreamExt};
use object_store::{GetOptions, GetRange, ObjectStore};
use tokio::sync::OwnedSemaphorePermit;

use crate::error::{Error, ErrorKind, Result};

use super::super::checksum::{Md5Sum, Running};
use super::super::duplicate::CopyOrder;
use super::super::location::{Location, Provider};
use super::super::open::Stores;
use super::super::{errors, local};
use super::buffers::Buffer;

/// Ranges of one object on their way to us at once.
const READ_AHEAD: usize = 4;

/// One part of a source, and the permission to hold it in memory.
pub(crate) struct Part {
    /// From 0 on.
    pub(super) number: u64,
    pub(super) start: u64,
    pub(crate) bytes: Bytes,
    /// Held as long as the bytes are.
    pub(crate) memory: Option<OwnedSemaphorePermit>,
}

/// The parts of a source in their order, those left out for which `skip` says so.
pub(crate) fn parts<'a>(
    stores: &'a Stores,
    order: &'a CopyOrder<'a>,
    part_size: u64,
    skip: impl Fn(u64) -> bool + Send + 'a,
) -> impl Stream<Item = Result<Part>> + Send + 'a {
    let numbers = (0..order.size.div_ceil(part_size)).filter(move |n| !skip(*n));
    futures::stream::iter(numbers)
        .map(move |number| async move {
            order.cancel.check()?;
            let start = number * part_size;
            let end = (start + part_size).min(order.size);
            let memory = stores.relay_budget(end - start).await;
            let bytes = read_range(stores, order, start, end).await?;
            Ok(Part {
                number,
                start,
                bytes,
                memory,
            })
        })
        .buffered(READ_AHEAD)
}

/// Is what was read what the source's tag says, where that is a checksum of its content?
pub(super) struct Check {
    /// What the tag says; `None` if there is nothing to compare with.
    said: Option<Md5Sum>,
    /// The sum of what was read; `None` where nobody needs it.
    running: Option<Running>,
}

impl Check {
    /// Nothing read yet. `complete`: all of the source will be.
    pub(super) fn begin(stores: &Stores, order: &CopyOrder<'_>, complete: bool) -> Result<Check> {
        let trusted = stores.open(order.source)?.tags_are_checksums();
        let said = Md5Sum::of_tag(order.source_etag).filter(|_| trusted && complete);
        Ok(Check {
            running: said.map(|_| Running::default()),
            said,
        })
    }

    /// The same of a whole source, for a caller who needs the sum of it in any case.
    pub(super) fn summing(stores: &Stores, order: &CopyOrder<'_>) -> Result<Check> {
        Ok(Check {
            running: Some(Running::default()),
            ..Check::begin(stores, order, true)?
        })
    }

    /// Takes the next bytes of the source.
    pub(super) async fn feed(&mut self, bytes: &Bytes) -> Result<()> {
        if let Some(running) = self.running.take() {
            self.running = Some(running.feed(bytes).await?);
        }
        Ok(())
    }

    /// All was read: is it what the tag says? The sum of it, if it was taken.
    ///
    /// Where it is not, the source is read once more. Other bytes: one of the two was damaged on the
    /// way, which is an error. The same bytes: with some kinds of encryption a tag only looks like a
    /// checksum; from then on the tags of that store are not taken for any.
    pub(super) async fn finish(
        &mut self,
        stores: &Stores,
        order: &CopyOrder<'_>,
    ) -> Result<Option<Md5Sum>> {
        let Some(sum) = self.running.take().map(Running::sum) else {
            return Ok(None);
        };
        if self.said.is_none_or(|said| said == sum) {
            return Ok(Some(sum));
        }
        let mut again = Running::default();
        let mut parts = std::pin::pin!(parts(stores, order, AGAIN_BYTES, |_| false));
        while let Some(part) = parts.next().await {
            again = again.feed(&part?.bytes).await?;
        }
        if again.sum() == sum {
            tracing::info!(source = %order.source, "tags of this store are no checksums of the content");
            stores.open(order.source)?.learn_tags_are_no_checksums();
            return Ok(Some(sum));
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            "two reads gave different bytes: one was damaged on its way",
        )
        .during("read")
        .at(order.source)
        .hint("run the command again; nothing was written"))
    }
}

/// Ranges that are read for a second look, in bytes.
const AGAIN_BYTES: u64 = 8 * 1024 * 1024;

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
            let buffer = stores.buffer(end - start)?;
            super::super::blocking(move || read_file_range(&at, pin.as_deref(), start, end, buffer))
                .await?
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
            let pinned_by_version = options.version.is_some();
            let got = store.get_opts(&order.source.object_path()?, options).await;
            let result = match got.map_err(fail) {
                // That generation is gone; is there another?
                Err(e)
                    if pinned_by_version
                        && errors::is_missing_object(&e)
                        && stores.find(order.source).await?.is_some() =>
                {
                    return Err(order.source_changed());
                }
                got => got?,
            };
            if result.meta.size != order.size {
                return Err(order.source_changed());
            }
            let mut buffer = stores.buffer(end - start)?;
            let mut chunks = result.into_stream();
            while let Some(chunk) = chunks.next().await {
                let chunk = chunk.map_err(fail)?;
                let length = (buffer.as_ref().len() + chunk.len()) as u64;
                if length > end - start {
                    return Err(wrong_length(order, length, end - start));
                }
                buffer.bytes().extend_from_slice(&chunk);
            }
            buffer.freeze()
        }
    };
    if bytes.len() as u64 != end - start {
        return Err(wrong_length(order, bytes.len() as u64, end - start));
    }
    Ok(bytes)
}

fn wrong_length(order: &CopyOrder<'_>, came: u64, wanted: u64) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("{came} bytes came where {wanted} were asked for"),
    )
    .during("read")
    .at(order.source)
}

fn read_file_range(
    at: &Location,
    pin: Option<&str>,
    start: u64,
    end: u64,
    mut buffer: Buffer,
) -> Result<Bytes> {
    let stat = local::stat(at)?;
    if pin.is_some() && pin != stat.tag.as_deref() {
        return Err(Error::new(
            ErrorKind::Conflict,
            "the file changed since it was looked at",
        )
        .during("read")
        .at(at));
    }
    local::read_range_into(at, start, end, buffer.bytes())?;
    Ok(buffer.freeze())
}
