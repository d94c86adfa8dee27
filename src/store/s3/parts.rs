//! Copies in parts: many UploadPartCopy requests at once, for what one CopyObject cannot take or
//! would take too long for.

use std::collections::HashMap;

use futures::{StreamExt, TryStreamExt};
use http::Method as HttpMethod;
use http::header::{HeaderMap, HeaderValue};

use crate::error::{Error, ErrorKind, Result};

use super::super::duplicate::{Copied, CopyOrder};
use super::super::errors;
use super::super::http::{Asking, Attempt, Wire, answered_badly, encode_part, patience};
use super::super::method::Method;
use super::super::open::Stores;
use super::super::relay;
use super::super::unfinished::{Unfinished, UnfinishedLog};
use super::bucket::S3Bucket;
use super::xml::{self, CopyResult};

const MIB: u64 = 1024 * 1024;
/// Largest part that AWS takes, in bytes.
const LARGEST_PART: u64 = 5 * 1024 * MIB;
/// Parts that an upload can have.
const MOST_PARTS: u64 = 10_000;
/// Parts of one object asked for at once; the pacer of the bucket decides how many really go.
const PARTS_IN_FLIGHT: usize = 512;

/// How a copy in parts is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartOptions {
    /// Size of a part in bytes, before it is fitted to the limits.
    pub(crate) part_size: u64,
    /// Use the source's own part boundaries, so that the ETags are comparable.
    pub(crate) keep_layout: bool,
}

/// A part size within the limits: at least `wanted`, whole MiB, all parts but the last equal (some
/// services demand it), at most 10,000 of them.
pub(crate) fn fit_part_size(size: u64, wanted: u64) -> u64 {
    wanted
        .max(size.div_ceil(MOST_PARTS))
        .div_ceil(MIB)
        .saturating_mul(MIB)
        .clamp(5 * MIB, LARGEST_PART)
}

/// Where the parts of an upload come from.
pub(crate) enum PartSource<'a> {
    /// Another bucket of the service, which copies them itself.
    Bucket(&'a S3Bucket, PartOptions),
    /// This process, which reads and sends them.
    Relay(&'a Stores),
}

impl PartSource<'_> {
    fn method(&self) -> Method {
        match self {
            PartSource::Bucket(..) => Method::S3PartCopy,
            PartSource::Relay(_) => Method::Relay,
        }
    }
}

impl S3Bucket {
    /// Makes one object of this bucket in parts.
    ///
    /// Costs, between buckets, one look at the source (one more for tags), one request to begin, one per part, one to
    /// complete; and where a log remembers an upload, one listing per 1,000 parts that are there.
    pub(crate) async fn copy_in_parts(
        &self,
        wire: Wire<'_>,
        from: &PartSource<'_>,
        order: &CopyOrder<'_>,
        log: &dyn UnfinishedLog,
    ) -> Result<Copied> {
        let (id, part_size, done) = match self.resume(wire, order, log).await? {
            Some(open) => open,
            None => self.begin(wire, from, order, log).await?,
        };
        match self
            .fill_and_complete(wire, from, order, &id, part_size, done)
            .await
        {
            Ok(copied) => {
                log.closed(order.destination).await?;
                Ok(copied)
            }
            // Asked to stop: the upload is kept for the next run.
            Err(e) if e.kind() == ErrorKind::Cancelled => Err(e),
            Err(e) => {
                match self.abort_upload(wire, order.destination, &id).await {
                    Ok(()) => log.closed(order.destination).await?,
                    // The log still knows it.
                    Err(abort) => {
                        tracing::warn!(at = %order.destination, error = %abort, "an upload stays open")
                    }
                }
                Err(e)
            }
        }
    }

    /// The upload that an earlier run began for this very source, and the parts it has.
    async fn resume(
        &self,
        wire: Wire<'_>,
        order: &CopyOrder<'_>,
        log: &dyn UnfinishedLog,
    ) -> Result<Option<(String, u64, HashMap<u32, String>)>> {
        let Some(known) = log.find(order.destination).await? else {
            return Ok(None);
        };
        let at = order.destination;
        let Some(id) = &known.token else {
            // Noted and perhaps begun, but its id was never heard of.
            for id in self.open_uploads(wire, at).await? {
                self.abort_upload(wire, at, &id).await?;
            }
            return Ok(None);
        };
        if known.source_tag.as_deref() != order.source_tag {
            self.abort_upload(wire, at, id).await?;
            return Ok(None);
        }
        let Some(listed) = self.parts(wire, at, id).await? else {
            return Ok(None);
        };
        let expected = |number: u32| {
            let start = u64::from(number - 1) * known.part_size;
            known.part_size.min(order.size.saturating_sub(start))
        };
        let done = listed
            .into_iter()
            .filter(|p| p.number > 0 && p.size == expected(p.number))
            .map(|p| (p.number, p.e_tag))
            .collect();
        Ok(Some((id.clone(), known.part_size, done)))
    }

    async fn begin(
        &self,
        wire: Wire<'_>,
        from: &PartSource<'_>,
        order: &CopyOrder<'_>,
        log: &dyn UnfinishedLog,
    ) -> Result<(String, u64, HashMap<u32, String>)> {
        let (headers, part_size) = match from {
            PartSource::Bucket(from, options) => {
                let properties = from.properties(wire, order, options.keep_layout).await?;
                let part_size = match properties.part_size {
                    Some(size) if size >= 5 * MIB && order.size.div_ceil(size) <= MOST_PARTS => {
                        size
                    }
                    _ => fit_part_size(order.size, options.part_size),
                };
                (properties.headers, part_size)
            }
            PartSource::Relay(_) => (HeaderMap::new(), relay::part_size(order.size)),
        };
        let mut upload = Unfinished {
            destination: order.destination.clone(),
            source_tag: order.source_tag.map(str::to_string),
            token: None,
            part_size,
        };
        // Noted before it is begun: whatever happens, a later run knows to look for it.
        log.opened(&upload).await?;
        let id = self.begin_upload(wire, order, &headers).await?;
        upload.token = Some(id.clone());
        log.opened(&upload).await?;
        Ok((id, part_size, HashMap::new()))
    }

    async fn fill_and_complete(
        &self,
        wire: Wire<'_>,
        from: &PartSource<'_>,
        order: &CopyOrder<'_>,
        id: &str,
        part_size: u64,
        done: HashMap<u32, String>,
    ) -> Result<Copied> {
        let mut parts = match from {
            PartSource::Bucket(from, _) => {
                self.copy_parts(wire, from, order, id, part_size, done)
                    .await?
            }
            PartSource::Relay(stores) => {
                relay::fill_upload(stores, wire, self, order, id, part_size, &done).await?
            }
        };
        parts.sort_unstable_by_key(|(number, _)| *number);
        self.complete_upload(wire, order, id, &parts, from.method())
            .await
    }

    async fn copy_parts(
        &self,
        wire: Wire<'_>,
        from: &S3Bucket,
        order: &CopyOrder<'_>,
        id: &str,
        part_size: u64,
        done: HashMap<u32, String>,
    ) -> Result<Vec<(u32, String)>> {
        let count = order.size.div_ceil(part_size).max(1);
        let numbers = 1..=u32::try_from(count).unwrap_or(u32::MAX);
        futures::stream::iter(numbers)
            .map(|number| {
                let known = done.get(&number).cloned();
                async move {
                    order.cancel.check()?;
                    let tag = match known {
                        Some(tag) => tag,
                        None => {
                            self.copy_part(wire, from, order, id, number, part_size)
                                .await?
                        }
                    };
                    Ok::<_, Error>((number, tag))
                }
            })
            .buffer_unordered(PARTS_IN_FLIGHT)
            .try_collect()
            .await
    }

    async fn copy_part(
        &self,
        wire: Wire<'_>,
        from: &S3Bucket,
        order: &CopyOrder<'_>,
        id: &str,
        number: u32,
        part_size: u64,
    ) -> Result<String> {
        let start = u64::from(number - 1) * part_size;
        let end = (start + part_size).min(order.size);
        let query = &format!("partNumber={number}&uploadId={}", encode_part(id));
        let outcome = wire.ask(
            Asking {
                operation: "copy a part to",
                at: order.destination,
                patience: patience(end - start),
            },
            |_| async move {
                let mut request = self.request(HttpMethod::PUT, order.destination.key(), query)?;
                self.add_source(&mut request, from, order)?;
                // A range must not be empty, and one of the whole object is none.
                if end > start && (start > 0 || end < order.size) {
                    let range = HeaderValue::from_str(&format!("bytes={start}-{}", end - 1))
                        .map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
                    request
                        .headers_mut()
                        .insert("x-amz-copy-source-range", range);
                }
                self.signed(request).await
            },
            move |answer, _| async move {
                match answer.status {
                    200 => match xml::parse::<CopyResult>(&answer.body, "CopyPartResult") {
                        Some(result) if !result.e_tag.is_empty() => Attempt::Done(result.e_tag),
                        _ => answered_badly(&answer, "copy a part to", order.destination),
                    },
                    412 => Attempt::Failed(order.source_changed()),
                    404 if !String::from_utf8_lossy(&answer.body).contains("NoSuchUpload") => {
                        Attempt::Failed(errors::from_answer(
                            404,
                            &answer.body,
                            "copy",
                            order.source,
                        ))
                    }
                    _ => answered_badly(&answer, "copy a part to", order.destination),
                }
            },
        );
        outcome.await.map(|o| o.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_sizes_fit_the_limits() {
        const GIB: u64 = 1024 * MIB;
        assert_eq!(fit_part_size(64 * GIB, 128 * MIB), 128 * MIB);
        assert_eq!(fit_part_size(1, 1), 5 * MIB);
        // 50 TB in 10,000 parts.
        let size = 50_000 * GIB;
        let part = fit_part_size(size, 128 * MIB);
        assert!(size.div_ceil(part) <= MOST_PARTS && part <= LARGEST_PART);
    }
}
