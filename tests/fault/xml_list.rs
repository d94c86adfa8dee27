//! Listings by the XML interface: objects (both versions), unfinished uploads, buckets.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::reply::{Reply, escape, iso_date, now};
use super::server::Context;
use super::state::{Bucket, Object};
use super::xml::tag_and_date;

const KEPT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// One page of a listing.
pub struct Page {
    pub objects: Vec<(String, Arc<Object>)>,
    pub prefixes: Vec<String>,
    /// Where the next page begins: after this key or prefix.
    pub next: Option<String>,
}

/// Where a page begins.
#[derive(Debug, Clone, Copy)]
pub enum Start<'a> {
    /// After this key or folded prefix; after nothing is at the beginning.
    After(&'a str),
    At(&'a str),
}

/// The entries from `start` on that begin with `prefix`, folded at `delimiter`.
pub fn page(
    objects: &BTreeMap<String, Arc<Object>>,
    prefix: &str,
    delimiter: &str,
    start: Start<'_>,
    most: usize,
) -> Page {
    let mut page = Page {
        objects: Vec::new(),
        prefixes: Vec::new(),
        next: None,
    };
    let mut last = String::new();
    // A prefix that was listed hides all keys below it.
    let folded = |key: &str| {
        let rest = key.strip_prefix(prefix)?;
        let at = (!delimiter.is_empty()).then(|| rest.find(delimiter))??;
        Some(key[..prefix.len() + at + delimiter.len()].to_string())
    };
    let mut from = match start {
        Start::At(key) => Bound::Included(key.max(prefix).to_string()),
        Start::After(key) if key.is_empty() || key < prefix => Bound::Included(prefix.to_string()),
        Start::After(key) if folded(key).as_deref() == Some(key) => Bound::Included(end_of(key)),
        Start::After(key) => Bound::Excluded(key.to_string()),
    };
    loop {
        let mut range = objects.range::<String, _>((from.clone(), Bound::Unbounded));
        let mut jump = None;
        for (key, object) in range.by_ref() {
            if !key.starts_with(prefix) {
                return page;
            }
            if page.objects.len() + page.prefixes.len() >= most {
                page.next = Some(last);
                return page;
            }
            match folded(key) {
                Some(fold) => {
                    last.clone_from(&fold);
                    jump = Some(end_of(&fold));
                    page.prefixes.push(fold);
                    break;
                }
                None => {
                    last.clone_from(key);
                    page.objects.push((key.clone(), Arc::clone(object)));
                }
            }
        }
        match jump {
            Some(next) => from = Bound::Included(next),
            None => return page,
        }
    }
}

/// The first text after all that begin with `prefix`.
fn end_of(prefix: &str) -> String {
    format!("{prefix}{}", char::MAX)
}

pub fn objects(context: &Context, bucket: &Bucket) -> Reply {
    let call = &context.call;
    let param = |name: &str| call.param(name).unwrap_or("");
    let second = param("list-type") == "2";
    let most = param("max-keys").parse().unwrap_or(1000).min(1000);
    let token = param("continuation-token");
    let after = match (second, token) {
        (false, _) => param("marker").to_string(),
        (true, "") => param("start-after").to_string(),
        // Opaque to clients: hexadecimal, so that none is tempted to read it.
        (true, token) => decode_token(token),
    };
    let (prefix, delimiter) = (param("prefix"), param("delimiter"));
    let page = page(
        &bucket.objects(),
        prefix,
        delimiter,
        Start::After(&after),
        most,
    );
    let encoded = param("encoding-type") == "url";
    let name = |text: &str| match encoded {
        true => utf8_percent_encode(text, KEPT).to_string(),
        false => escape(text),
    };
    let mut text = format!(
        "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>{}</Name><Prefix>{}</Prefix><MaxKeys>{most}</MaxKeys><KeyCount>{}</KeyCount><IsTruncated>{}</IsTruncated>",
        escape(&call.bucket),
        name(prefix),
        page.objects.len() + page.prefixes.len(),
        page.next.is_some(),
    );
    if encoded {
        text.push_str("<EncodingType>url</EncodingType>");
    }
    if !delimiter.is_empty() {
        text.push_str(&format!("<Delimiter>{}</Delimiter>", name(delimiter)));
    }
    match &page.next {
        Some(next) if second => text.push_str(&format!(
            "<NextContinuationToken>{}</NextContinuationToken>",
            encode_token(next)
        )),
        Some(next) => text.push_str(&format!("<NextMarker>{}</NextMarker>", name(next))),
        None => {}
    }
    for (key, object) in &page.objects {
        text.push_str(&format!(
            "<Contents><Key>{}</Key>{}<Size>{}</Size><StorageClass>{}</StorageClass></Contents>",
            name(key),
            tag_and_date(object),
            object.content.len(),
            object.meta.class.as_deref().unwrap_or("STANDARD"),
        ));
    }
    for prefix in &page.prefixes {
        text.push_str(&format!(
            "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>",
            name(prefix)
        ));
    }
    text.push_str("</ListBucketResult>");
    Reply::xml(200, text)
}

pub fn encode_token(key: &str) -> String {
    key.bytes().map(|b| format!("{b:02x}")).collect()
}

pub fn decode_token(token: &str) -> String {
    let digits = token.as_bytes().chunks(2);
    let bytes = digits.filter_map(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok());
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

/// All in one page: tests do not leave many.
/// Uploads on one page of a listing.
const MOST_UPLOADS: usize = 1000;

pub fn uploads(context: &Context, bucket: &Bucket) -> Reply {
    let call = &context.call;
    let prefix = call.param("prefix").unwrap_or("");
    let mut open: Vec<(String, String)> = bucket
        .uploads()
        .iter()
        .filter(|(_, upload)| upload.key.starts_with(prefix))
        .map(|(id, upload)| (upload.key.clone(), id.clone()))
        .collect();
    open.sort();
    let after = (
        call.param("key-marker").unwrap_or("").to_string(),
        call.param("upload-id-marker").unwrap_or("").to_string(),
    );
    open.retain(|upload| *upload > after);
    let more = open.len() > MOST_UPLOADS;
    open.truncate(MOST_UPLOADS);
    let (next_key, next_id) = open.last().cloned().unwrap_or_default();
    let mut text = format!(
        "<ListMultipartUploadsResult><Bucket>{}</Bucket><Prefix>{}</Prefix><MaxUploads>{MOST_UPLOADS}</MaxUploads><NextKeyMarker>{}</NextKeyMarker><NextUploadIdMarker>{next_id}</NextUploadIdMarker><IsTruncated>{more}</IsTruncated>",
        escape(&call.bucket),
        escape(prefix),
        escape(&next_key)
    );
    for (key, id) in open {
        text.push_str(&format!(
            "<Upload><Key>{}</Key><UploadId>{id}</UploadId><Initiated>{}</Initiated><StorageClass>STANDARD</StorageClass></Upload>",
            escape(&key),
            iso_date(now())
        ));
    }
    text.push_str("</ListMultipartUploadsResult>");
    Reply::xml(200, text)
}

pub fn buckets(context: &Context) -> Reply {
    let mut text = String::from("<ListAllMyBucketsResult><Owner><ID>0</ID></Owner><Buckets>");
    for name in context.state().bucket_names(context.call.service) {
        text.push_str(&format!(
            "<Bucket><Name>{}</Name><CreationDate>{}</CreationDate></Bucket>",
            escape(&name),
            iso_date(now())
        ));
    }
    text.push_str("</Buckets></ListAllMyBucketsResult>");
    Reply::xml(200, text)
}
