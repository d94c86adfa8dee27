//! ListObjectsV2 with our own parser: object_store's listing drops a whole page for one odd key, and
//! does not tell the storage class.

use http::Method as HttpMethod;

use crate::error::{Error, ErrorKind, Result};

use super::super::http::{Asking, Attempt, Wire, answered_badly, encode_part, patience};
use super::super::location::Location;
use super::super::stat::Stat;
use super::bucket::S3Bucket;
use super::xml::{self, ListBucketResult};

/// One page of a listing: objects, and where the next page begins.
pub(crate) struct Page {
    pub(crate) objects: Vec<(String, Stat)>,
    pub(crate) next: Option<String>,
}

impl S3Bucket {
    /// One page of the keys that begin with `prefix`, up to 1,000. One request.
    pub(crate) async fn page(
        &self,
        wire: Wire<'_>,
        folder: &Location,
        prefix: &str,
        token: Option<&str>,
    ) -> Result<Page> {
        let mut query = format!(
            "encoding-type=url&list-type=2&prefix={}",
            encode_part(prefix)
        );
        if let Some(token) = token {
            query = format!("continuation-token={}&{query}", encode_part(token));
        }
        let query = &query;
        let outcome = wire.ask(
            Asking {
                operation: "list",
                at: folder,
                patience: patience(0),
            },
            |_| async move { self.signed(self.request(HttpMethod::GET, "", query)?).await },
            move |answer, _| async move {
                match xml::parse::<ListBucketResult>(&answer.body, "ListBucketResult") {
                    Some(listed) if answer.status == 200 => Attempt::Done(listed),
                    _ => answered_badly(&answer, "list", folder),
                }
            },
        );
        let listed = outcome.await?.value;
        if listed.is_truncated && listed.next_continuation_token.is_none() {
            return Err(
                Error::new(ErrorKind::Incomplete, "the listing ends in the middle")
                    .during("list")
                    .at(folder),
            );
        }
        let encoded = listed.encoding_type.as_deref() == Some("url");
        let mut objects = Vec::with_capacity(listed.contents.len());
        for object in listed.contents {
            let key = match encoded {
                true => decode(&object.key).ok_or_else(|| {
                    Error::corrupt("a key of the listing is not UTF-8")
                        .during("list")
                        .at(folder)
                })?,
                false => object.key,
            };
            let stat = Stat {
                size: object.size,
                tag: object.e_tag,
                version: None,
                storage_class: object.storage_class,
            };
            objects.push((key, stat));
        }
        let next = listed
            .is_truncated
            .then_some(listed.next_continuation_token)
            .flatten();
        Ok(Page { objects, next })
    }
}

/// A key as S3 encodes it in a listing: percent-encoded, and a blank as `+`.
fn decode(key: &str) -> Option<String> {
    let plain = key.replace('+', " ");
    percent_encoding::percent_decode_str(&plain)
        .decode_utf8()
        .ok()
        .map(|k| k.into_owned())
}
