//! What an object carries besides its bytes: read before a copy in parts, which keeps nothing by
//! itself.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method as HttpMethod, header};

use crate::error::Result;

use super::super::duplicate::CopyOrder;
use super::super::http::{Asking, Attempt, Wire, answered_badly, patience};
use super::super::location::Location;
use super::super::stat::Stat;
use super::bucket::S3Bucket;
use super::copy::header as header_value;
use super::xml::{self, Tagging};

/// Headers of a GetObject or HeadObject answer that CreateMultipartUpload takes back.
const CONTENT_HEADERS: [HeaderName; 6] = [
    header::CONTENT_TYPE,
    header::CACHE_CONTROL,
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::EXPIRES,
];

/// What a copy in parts must be told.
#[derive(Debug, Default)]
pub(super) struct Properties {
    /// Headers for CreateMultipartUpload.
    pub(super) headers: HeaderMap,
    /// Size of each part of the source but the last, if it was written in parts of equal size.
    pub(super) part_size: Option<u64>,
}

impl S3Bucket {
    /// Reads the properties of the source. One request; one more if it has tags, and one more if
    /// its part layout is asked for.
    pub(super) async fn properties(
        &self,
        wire: Wire<'_>,
        order: &CopyOrder<'_>,
        keep_layout: bool,
    ) -> Result<Properties> {
        let head = self.head(wire, order, "").await?;
        let mut headers = HeaderMap::new();
        if order.preserve.content_headers {
            for name in CONTENT_HEADERS {
                if let Some(value) = head.get(&name) {
                    headers.insert(name, value.clone());
                }
            }
        }
        if order.preserve.user_metadata {
            for (name, value) in &head {
                if name.as_str().starts_with("x-amz-meta-") {
                    headers.append(name.clone(), value.clone());
                }
            }
        }
        if order.preserve.storage_class
            && let Some(class) = head.get("x-amz-storage-class")
        {
            headers.insert("x-amz-storage-class", class.clone());
        }
        let tagged = head.get("x-amz-tagging-count").is_some_and(|n| n != "0");
        if order.preserve.tags && tagged {
            headers.insert("x-amz-tagging", self.tags(wire, order).await?);
        }
        if order.preserve.encryption {
            for name in [
                "x-amz-server-side-encryption",
                "x-amz-server-side-encryption-aws-kms-key-id",
                "x-amz-server-side-encryption-bucket-key-enabled",
            ] {
                if let Some(value) = head.get(name) {
                    headers.insert(HeaderName::from_static(name), value.clone());
                }
            }
        }
        let in_parts = head
            .get(header::ETAG)
            .and_then(|t| t.to_str().ok())
            .is_some_and(|t| t.trim_matches('"').contains('-'));
        let part_size = match keep_layout && in_parts {
            true => self
                .head(wire, order, "partNumber=1")
                .await?
                .get(header::CONTENT_LENGTH)
                .and_then(|v| v.to_str().ok())
                .and_then(|v| v.parse().ok()),
            false => None,
        };
        Ok(Properties { headers, part_size })
    }

    /// Size, tag, version and storage class of an object. One request.
    pub(crate) async fn stat(&self, wire: Wire<'_>, at: &Location) -> Result<Stat> {
        let outcome = wire.ask(
            Asking {
                operation: "look at",
                at,
                patience: patience(0),
            },
            |_| async move {
                self.signed(self.request(HttpMethod::HEAD, at.key(), "")?)
                    .await
            },
            move |answer, _| async move {
                let size = answer.header("content-length").and_then(|v| v.parse().ok());
                match (answer.status, size) {
                    (200, Some(size)) => Attempt::Done(Stat {
                        size,
                        tag: answer.header("etag").map(str::to_string),
                        version: answer.header("x-amz-version-id").map(str::to_string),
                        // Not named where it is the standard one.
                        storage_class: answer.header("x-amz-storage-class").map(str::to_string),
                        modified: answer
                            .header("last-modified")
                            .and_then(|text| chrono::DateTime::parse_from_rfc2822(text).ok())
                            .and_then(|time| u64::try_from(time.timestamp_millis()).ok()),
                    }),
                    _ => answered_badly(&answer, "look at", at),
                }
            },
        );
        outcome.await.map(|o| o.value)
    }

    async fn head(&self, wire: Wire<'_>, order: &CopyOrder<'_>, query: &str) -> Result<HeaderMap> {
        let outcome = wire.ask(
            Asking {
                operation: "look at",
                at: order.source,
                patience: patience(0),
            },
            |_| async move {
                let mut request = self.request(HttpMethod::HEAD, order.source.key(), query)?;
                if let Some(tag) = order.source_tag {
                    request
                        .headers_mut()
                        .insert(header::IF_MATCH, header_value(tag, order)?);
                }
                self.signed(request).await
            },
            move |answer, _| async move {
                match answer.status {
                    200 | 206 => Attempt::Done(answer.headers),
                    412 => Attempt::Failed(order.source_changed()),
                    _ => answered_badly(&answer, "look at", order.source),
                }
            },
        );
        outcome.await.map(|o| o.value)
    }

    /// The tags of the source as CreateMultipartUpload takes them.
    async fn tags(&self, wire: Wire<'_>, order: &CopyOrder<'_>) -> Result<HeaderValue> {
        let outcome = wire.ask(
            Asking {
                operation: "read the tags of",
                at: order.source,
                patience: patience(0),
            },
            |_| async move {
                let request = self.request(HttpMethod::GET, order.source.key(), "tagging=")?;
                self.signed(request).await
            },
            move |answer, _| async move {
                match xml::parse::<Tagging>(&answer.body, "Tagging") {
                    Some(tagging) if answer.status == 200 => Attempt::Done(tagging),
                    _ => answered_badly(&answer, "read the tags of", order.source),
                }
            },
        );
        let tagging: Tagging = outcome
            .await
            .map_err(|e| match e.kind() {
                // Better said before the first byte than lost silently.
                crate::ErrorKind::Denied => {
                    e.hint("grant s3:GetObjectTagging, or copy without tags: --preserve metadata")
                }
                _ => e,
            })?
            .value;
        let query = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(tagging.tags.tags.iter().map(|t| (&t.key, &t.value)))
            .finish();
        header_value(&query, order)
    }
}
