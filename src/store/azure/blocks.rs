//! Between accounts: Put Block From URL, whose source is a signed URL or comes with a token, and a list
//! that makes the blob.
//!
//! The name of a block says which source, pinned by its tag, and which part of it the block is. So what
//! a killed copy has left is found again by looking; a week after the last block the service forgets it.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{StreamExt, TryStreamExt};
use http::Method as HttpMethod;
use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE,
    HeaderMap, HeaderName, HeaderValue,
};
use object_store::client::HttpRequest;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

use super::super::duplicate::{Copied, CopyOrder};
use super::super::errors;
use super::super::http::{Answer, Asking, Attempt, Wire, answered_badly, encode_part, patience};
use super::super::location::Location;
use super::super::method::Method;
use super::AzureContainer;

const MIB: u64 = 1024 * 1024;
/// Smallest block that is copied; small enough to repeat, large enough not to count.
const BLOCK_BYTES: u64 = 64 * MIB;
/// Largest block that the service copies, in bytes.
const LARGEST_BLOCK: u64 = 4000 * MIB;
/// Blocks that a blob can have.
const MOST_BLOCKS: u64 = 50_000;
/// Blocks of one blob asked for at once; the pacer of the container decides how many really go.
const BLOCKS_IN_FLIGHT: usize = 256;

const CONTENT_HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_TYPE, "x-ms-blob-content-type"),
    (CACHE_CONTROL, "x-ms-blob-cache-control"),
    (CONTENT_DISPOSITION, "x-ms-blob-content-disposition"),
    (CONTENT_ENCODING, "x-ms-blob-content-encoding"),
    (CONTENT_LANGUAGE, "x-ms-blob-content-language"),
];

/// Size of each block but the last, in bytes: at least `wanted`, whole MiB, at most 50,000 of them.
pub(crate) fn block_size(size: u64, wanted: u64) -> u64 {
    wanted
        .max(size.div_ceil(MOST_BLOCKS))
        .div_ceil(MIB)
        .saturating_mul(MIB)
        .clamp(MIB, LARGEST_BLOCK)
}

/// Names of the blocks of a copy: equal length, a function of the pinned source and the block size.
pub(crate) fn block_ids(order: &CopyOrder<'_>, block: u64) -> Vec<String> {
    let pin = Sha256::new()
        .chain_update(order.source.to_string())
        .chain_update([0])
        .chain_update(order.source_tag.unwrap_or_default())
        .chain_update([0])
        .chain_update(order.size.to_le_bytes())
        .chain_update(block.to_le_bytes())
        .finalize();
    (0..order.size.div_ceil(block))
        .map(|number| {
            let mut id = [0; 24];
            for (byte, value) in id.iter_mut().zip(pin.iter().take(16)) {
                *byte = *value;
            }
            id[16..].copy_from_slice(&number.to_be_bytes());
            STANDARD.encode(id)
        })
        .collect()
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BlockList {
    #[serde(default)]
    uncommitted_blocks: Blocks,
}

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Blocks {
    #[serde(default, rename = "Block")]
    blocks: Vec<Block>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Block {
    name: String,
    size: u64,
}

impl AzureContainer {
    /// Copies one blob of `from`, an account of another name, into this container.
    ///
    /// Costs one look at the source for its properties, one at the blocks that are there, one request
    /// per 64 MiB, one for the list.
    pub(crate) async fn copy_blocks(
        &self,
        wire: Wire<'_>,
        from: &AzureContainer,
        order: &CopyOrder<'_>,
    ) -> Result<Copied> {
        let block = block_size(order.size, BLOCK_BYTES);
        let ids = block_ids(order, block);
        let properties = from.properties(wire, order).await?;
        let there = &self.uncommitted(wire, order.destination).await?;
        let ids = &ids;
        let copies = (0..ids.len()).map(|number| async move {
            order.cancel.check()?;
            let start = number as u64 * block;
            let end = (start + block).min(order.size);
            match ids.get(number) {
                Some(id) if there.get(id) != Some(&(end - start)) => {
                    self.copy_block(wire, from, order, id, start..end).await
                }
                _ => Ok(()),
            }
        });
        futures::stream::iter(copies)
            .buffer_unordered(BLOCKS_IN_FLIGHT)
            .try_collect::<()>()
            .await?;
        self.put_block_list(wire, order, ids, &properties, Method::AzureBlockCopy)
            .await
    }

    async fn copy_block(
        &self,
        wire: Wire<'_>,
        from: &AzureContainer,
        order: &CopyOrder<'_>,
        id: &str,
        range: std::ops::Range<u64>,
    ) -> Result<()> {
        const DOING: &str = "copy a block to";
        let at = order.destination;
        let (start, end) = (range.start, range.end);
        let outcome = wire.ask(
            Asking {
                operation: DOING,
                at,
                patience: patience(end - start),
            },
            |_| self.block_request(from, order, id, start, end),
            move |answer, _| async move {
                match answer.status {
                    201 => Attempt::Done(()),
                    412 => Attempt::Failed(order.source_changed()),
                    404 => Attempt::Failed(errors::from_answer(
                        404,
                        &answer.body,
                        "copy",
                        order.source,
                    )),
                    _ if cannot_read_source(&answer) => Attempt::Failed(
                        errors::from_answer(answer.status, &answer.body, DOING, at)
                            .with_kind(crate::ErrorKind::Unsupported),
                    ),
                    _ => answered_badly(&answer, DOING, at),
                }
            },
        );
        outcome.await.map(|o| o.value)
    }

    async fn block_request(
        &self,
        from: &AzureContainer,
        order: &CopyOrder<'_>,
        id: &str,
        start: u64,
        end: u64,
    ) -> Result<HttpRequest> {
        let bad = |_| Error::invalid("a tag holds characters that no header can").at(order.source);
        let query = format!("comp=block&blockid={}", encode_part(id));
        let mut request = self.request(HttpMethod::PUT, order.destination.key(), &query)?;
        let (source, bearer) = from.as_source(order.source.key()).await?;
        let headers = request.headers_mut();
        headers.insert("x-ms-copy-source", source);
        if let Some(bearer) = bearer {
            headers.insert("x-ms-copy-source-authorization", bearer);
        }
        let range = HeaderValue::from_str(&format!("bytes={start}-{}", end - 1)).map_err(bad)?;
        headers.insert("x-ms-source-range", range);
        if let Some(tag) = order.source_tag {
            headers.insert(
                "x-ms-source-if-match",
                HeaderValue::from_str(tag).map_err(bad)?,
            );
        }
        self.signed(request).await
    }

    /// Headers for the block list that keep what the source has. One request.
    async fn properties(&self, wire: Wire<'_>, order: &CopyOrder<'_>) -> Result<HeaderMap> {
        let head = self.head(wire, "look at", order.source).await?.headers;
        let mut kept = HeaderMap::new();
        if order.preserve.content_headers {
            for (name, sent) in CONTENT_HEADERS {
                if let Some(value) = head.get(&name) {
                    kept.insert(sent, value.clone());
                }
            }
        }
        if order.preserve.user_metadata {
            for (name, value) in &head {
                if name.as_str().starts_with("x-ms-meta-") {
                    kept.append(name.clone(), value.clone());
                }
            }
        }
        if order.preserve.storage_class
            && let Some(tier) = head.get("x-ms-access-tier")
            && head.get("x-ms-access-tier-inferred").is_none()
        {
            kept.insert("x-ms-access-tier", tier.clone());
        }
        Ok(kept)
    }

    /// The blocks of a blob to be that are there already, with their sizes. One request.
    pub(crate) async fn uncommitted(
        &self,
        wire: Wire<'_>,
        at: &Location,
    ) -> Result<HashMap<String, u64>> {
        const DOING: &str = "list the blocks of";
        let outcome = wire.ask(
            Asking {
                operation: DOING,
                at,
                patience: patience(0),
            },
            |_| async move {
                let query = "comp=blocklist&blocklisttype=uncommitted";
                self.signed(self.request(HttpMethod::GET, at.key(), query)?)
                    .await
            },
            move |answer, _| async move {
                match answer.status {
                    404 => Attempt::Done(HashMap::new()),
                    200 => match quick_xml::de::from_reader::<_, BlockList>(&answer.body[..]) {
                        Ok(list) => {
                            let blocks = list.uncommitted_blocks.blocks.into_iter();
                            Attempt::Done(blocks.map(|b| (b.name, b.size)).collect())
                        }
                        Err(_) => answered_badly(&answer, DOING, at),
                    },
                    _ => answered_badly(&answer, DOING, at),
                }
            },
        );
        outcome.await.map(|o| o.value)
    }
}

/// The service may not reach the source's account (a firewall, a private network): from here it may.
fn cannot_read_source(answer: &Answer) -> bool {
    answer.header("x-ms-error-code") == Some("CannotVerifyCopySource")
        || answer.status == 403
            && answer
                .body
                .windows(22)
                .any(|w| w == b"CannotVerifyCopySource")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_fit_the_limits() {
        assert_eq!(block_size(1, BLOCK_BYTES), BLOCK_BYTES);
        // The largest blob: 50,000 blocks of 4,000 MiB.
        let largest = MOST_BLOCKS * LARGEST_BLOCK;
        assert_eq!(block_size(largest, BLOCK_BYTES), LARGEST_BLOCK);
    }
}
