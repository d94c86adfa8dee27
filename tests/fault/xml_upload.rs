//! Uploads in parts, by the XML interface.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use serde::Deserialize;

use super::call::Call;
use super::content::Content;
use super::log::Service;
use super::reply::{Reply, escape, iso_date, now};
use super::server::{Context, error};
use super::state::{Bucket, Object, Part, Tag, Upload};
use super::xml::{meta_of, on_destination, payload, same_tag};

/// Every part but the last. Source: the page of S3's multipart upload limits.
const SMALLEST_PART_BYTES: u64 = 5 * 1024 * 1024;
const MOST_PARTS: u32 = 10_000;

pub fn create(context: &Context, bucket: &Bucket) -> Reply {
    let call = &context.call;
    let id = format!("upload{}", context.state().next_number());
    let upload = Upload {
        key: call.key.clone(),
        meta: Arc::new(meta_of(call)),
        parts: BTreeMap::new(),
    };
    bucket.uploads().insert(id.clone(), upload);
    let (name, key) = (escape(&call.bucket), escape(&call.key));
    Reply::xml(
        200,
        format!(
            "<InitiateMultipartUploadResult><Bucket>{name}</Bucket><Key>{key}</Key><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
        ),
    )
}

pub fn part_number(call: &Call) -> Result<u32, Reply> {
    call.param("partNumber")
        .and_then(|n| n.parse().ok())
        .filter(|n| (1..=MOST_PARTS).contains(n))
        .ok_or_else(|| error(call.service, 400, "InvalidArgument"))
}

/// Is the upload that the request names open?
pub fn check(call: &Call, bucket: &Bucket) -> Result<String, Reply> {
    let id = call.param("uploadId").unwrap_or("");
    match bucket.uploads().get(id) {
        Some(upload) if upload.key == call.key => Ok(id.to_string()),
        _ => Err(error(call.service, 404, "NoSuchUpload")),
    }
}

pub fn put_part(context: &Context, bucket: &Bucket) -> Result<Reply, Reply> {
    let call = &context.call;
    let number = part_number(call)?;
    let id = check(call, bucket)?;
    let content = Content::of_bytes(payload(call)?);
    let tag = Tag::of(&content);
    let part = Part {
        content: Arc::new(content),
        tag,
    };
    match bucket.uploads().get_mut(&id) {
        None => return Err(error(call.service, 404, "NoSuchUpload")),
        Some(upload) => upload.parts.insert(number, part),
    };
    Ok(Reply::new(200).with("etag", tag.to_string()))
}

pub fn list_parts(context: &Context, bucket: &Bucket) -> Result<Reply, Reply> {
    let call = &context.call;
    let id = check(call, bucket)?;
    let number = |name: &str| call.param(name).and_then(|n| n.parse::<u32>().ok());
    let after = number("part-number-marker").unwrap_or(0);
    let most = number("max-parts").unwrap_or(1000).min(1000) as usize;
    let uploads = bucket.uploads();
    let parts = uploads.get(&id).map(|u| &u.parts);
    let mut text = format!(
        "<ListPartsResult><Bucket>{}</Bucket><Key>{}</Key><UploadId>{id}</UploadId>",
        escape(&call.bucket),
        escape(&call.key)
    );
    let mut later = parts
        .into_iter()
        .flat_map(|p| p.range(after.saturating_add(1)..));
    let mut last = after;
    for (number, part) in later.by_ref().take(most) {
        last = *number;
        text.push_str(&format!(
            "<Part><PartNumber>{number}</PartNumber><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size></Part>",
            iso_date(now()),
            escape(&part.tag.to_string()),
            part.content.len()
        ));
    }
    let more = later.next().is_some();
    text.push_str(&format!(
        "<PartNumberMarker>{after}</PartNumberMarker><NextPartNumberMarker>{last}</NextPartNumberMarker><MaxParts>{most}</MaxParts><IsTruncated>{more}</IsTruncated></ListPartsResult>"
    ));
    Ok(Reply::xml(200, text))
}

#[derive(Deserialize)]
struct Complete {
    #[serde(rename = "Part", default)]
    parts: Vec<Named>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Named {
    part_number: u32,
    #[serde(rename = "ETag")]
    e_tag: String,
}

pub fn complete(context: &Context, bucket: &Bucket) -> Result<Reply, Reply> {
    let call = &context.call;
    let fail = |status, code| Err(error(call.service, status, code));
    let id = call.param("uploadId").unwrap_or("").to_string();
    let completed = || {
        bucket
            .completed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    };
    if context.shared.faults().complete_is_repeatable
        && let Some(tag) = completed().get(&id)
    {
        return Ok(answer(call, *tag, None));
    }
    let condition = on_destination(call);
    condition(bucket.get(&call.key).as_deref())?;
    check(call, bucket)?;
    let body = payload(call)?;
    let Ok(named) = quick_xml::de::from_reader::<_, Complete>(&body[..]) else {
        return fail(400, "MalformedXML");
    };
    if named.parts.is_empty() {
        return fail(400, "MalformedXML");
    }
    if !named
        .parts
        .is_sorted_by(|a, b| a.part_number < b.part_number)
    {
        return fail(400, "InvalidPartOrder");
    }
    let mut uploads = bucket.uploads();
    let Some(upload) = uploads.get(&id) else {
        return fail(404, "NoSuchUpload");
    };
    let mut parts = Vec::with_capacity(named.parts.len());
    for wanted in &named.parts {
        match upload.parts.get(&wanted.part_number) {
            Some(part) if same_tag(&wanted.e_tag, &part.tag.to_string()) => parts.push(part),
            _ => return fail(400, "InvalidPart"),
        }
    }
    let all_but_last = &parts[..parts.len() - 1];
    let too_small = |p: &&Part| p.content.len() < SMALLEST_PART_BYTES;
    if all_but_last.iter().any(too_small) {
        return fail(400, "EntityTooSmall");
    }
    let mut content = Content::default();
    for part in &parts {
        content.append(&part.content);
    }
    let tag = Tag::of_parts(parts.iter().map(|p| &p.tag));
    let mut object = Object::with_tag(Arc::new(content), tag, Arc::clone(&upload.meta));
    object.parts = Some(parts.iter().map(|p| p.content.len()).collect());
    let object = context.state().put(bucket, &call.key, object, condition)?;
    uploads.remove(&id);
    drop(uploads);
    completed().insert(id, tag);
    Ok(answer(call, tag, Some(object.generation)))
}

fn answer(call: &Call, tag: Tag, generation: Option<u64>) -> Reply {
    let reply = Reply::xml(
        200,
        format!(
            "<CompleteMultipartUploadResult><Location>/</Location><Bucket>{}</Bucket><Key>{}</Key><ETag>{}</ETag></CompleteMultipartUploadResult>",
            escape(&call.bucket),
            escape(&call.key),
            escape(&tag.to_string())
        ),
    );
    match generation {
        Some(g) if call.service == Service::Gcs => reply.with("x-goog-generation", g.to_string()),
        _ => reply,
    }
}

pub fn abort(context: &Context, bucket: &Bucket) -> Result<Reply, Reply> {
    let id = check(&context.call, bucket)?;
    bucket.uploads().remove(&id);
    Ok(Reply::new(204))
}
