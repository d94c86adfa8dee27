//! Copies inside S3 and by Google's XML interface: whole objects, and ranges as parts of uploads.

use std::sync::Arc;

use super::content::Content;
use super::log::Service;
use super::reply::{Reply, escape, iso_date, now};
use super::server::{Context, error};
use super::state::{Bucket, Meta, Object, Part, Tag};
use super::xml::{meta_of, on_destination, same_tag, tag_and_date};
use super::{call, xml_upload};

/// The most that one request copies. Source: the CopyObject page of the S3 API reference.
const COPY_LIMIT_BYTES: u64 = 5 * 1024 * 1024 * 1024;
/// Parts can be copied out of larger objects only. Source: the UploadPartCopy page.
const RANGE_FROM_ABOVE_BYTES: u64 = 5 * 1024 * 1024;

/// The object that a copy reads, with the conditions on it checked.
fn source(context: &Context) -> Result<(String, String, Arc<Object>), Reply> {
    let call = &context.call;
    let fail = |status, code| Err(error(call.service, status, code));
    let name = call.own("copy-source").unwrap_or("");
    let name = name.split_once("?versionId=").map_or(name, |(n, _)| n);
    // Some clients encode the slash between bucket and key.
    let decoded = name.replace("%2F", "/").replace("%2f", "/");
    let (bucket, key) = call::split_path(&decoded, 1);
    let Some(in_bucket) = context.state().bucket(call.service, &bucket) else {
        return fail(404, "NoSuchBucket");
    };
    let Some(object) = in_bucket.get(&key) else {
        return fail(404, "NoSuchKey");
    };
    if !context.shared.faults().ignore_source_conditions {
        let tag = object.tag.to_string();
        let condition = |name: &str| call.own(&format!("copy-source-{name}"));
        if condition("if-match").is_some_and(|t| !same_tag(t, &tag))
            || condition("if-none-match").is_some_and(|t| same_tag(t, &tag))
            || condition("if-generation-match").is_some_and(|g| g != object.generation.to_string())
        {
            return fail(412, "PreconditionFailed");
        }
    }
    Ok((bucket, key, object))
}

pub async fn copy(context: &Context, bucket: &Arc<Bucket>) -> Result<Reply, Reply> {
    let call = &context.call;
    let service = call.service;
    let (from_bucket, from_key, source) = source(context)?;
    let len = source.content.len();
    if service == Service::S3 && len > COPY_LIMIT_BYTES {
        return Err(error(service, 400, "InvalidRequest"));
    }
    let says = |name: &str, value: &str| {
        call.own(name)
            .is_some_and(|v| v.eq_ignore_ascii_case(value))
    };
    let replace = says("metadata-directive", "REPLACE");
    let sent = meta_of(call);
    if (&from_bucket, &from_key) == (&call.bucket, &call.key)
        && !replace
        && sent.class == source.meta.class
    {
        return Err(error(service, 400, "InvalidRequest"));
    }
    let meta = Meta {
        headers: if replace {
            sent.headers
        } else {
            source.meta.headers.clone()
        },
        tags: if says("tagging-directive", "REPLACE") {
            sent.tags
        } else {
            source.meta.tags.clone()
        },
        // Not the source's: a copy without the header goes to the default class.
        class: sent.class,
    };
    let ignore = context.shared.faults().ignore_destination_conditions;
    let condition = on_destination(call);
    let admit = move |there: Option<&Object>| {
        if ignore { Ok(()) } else { condition(there) }
    };
    admit(bucket.get(&call.key).as_deref())?;
    let content = Arc::clone(&source.content);
    // A copy is one piece, whatever its source was made of.
    let tag = match source.parts {
        None => source.tag,
        Some(_) => Tag::of(&content),
    };
    let object = Object::with_tag(content, tag, Arc::new(meta));
    let (shared, bucket, key) = (
        Arc::clone(&context.shared),
        Arc::clone(bucket),
        call.key.clone(),
    );
    let finish = move || match shared.state.put(&bucket, &key, object, admit) {
        Err(refused) => refused,
        Ok(object) => {
            let reply = Reply::xml(
                200,
                format!(
                    "<CopyObjectResult>{}</CopyObjectResult>",
                    tag_and_date(&object)
                ),
            );
            match service {
                Service::Gcs => reply.with("x-goog-generation", object.generation.to_string()),
                _ => reply,
            }
        }
    };
    Ok(context.take_time(len, finish).await)
}

pub async fn copy_part(context: &Context, bucket: &Arc<Bucket>) -> Result<Reply, Reply> {
    let call = &context.call;
    let fail = |status, code| Err(error(call.service, status, code));
    if context.shared.faults().no_part_copy {
        return fail(501, "NotImplemented");
    }
    let number = xml_upload::part_number(call)?;
    let id = call.param("uploadId").unwrap_or("").to_string();
    xml_upload::check(call, bucket)?;
    let (_, _, source) = source(context)?;
    let len = source.content.len();
    let header = "x-amz-copy-source-range";
    let range = match (call.header(header), call.range(header, len)) {
        (_, Err(())) => return fail(416, "InvalidRange"),
        // Only a whole `bytes=first-last` inside the object is taken.
        (Some(text), Ok(Some((start, end)))) => {
            if len <= RANGE_FROM_ABOVE_BYTES {
                return fail(400, "InvalidRequest");
            }
            if text != format!("bytes={start}-{}", end - 1) {
                return fail(400, "InvalidArgument");
            }
            start..end
        }
        (Some(_), Ok(None)) => return fail(400, "InvalidArgument"),
        (None, Ok(_)) => 0..len,
    };
    let part_len = range.end - range.start;
    if part_len > COPY_LIMIT_BYTES {
        return fail(400, "EntityTooLarge");
    }
    let content: Content = source.content.slice(range);
    let part = Part {
        tag: Tag::of(&content),
        content: Arc::new(content),
    };
    let (service, bucket) = (call.service, Arc::clone(bucket));
    let finish = move || {
        let tag = part.tag;
        match bucket.uploads().get_mut(&id) {
            None => return error(service, 404, "NoSuchUpload"),
            Some(upload) => upload.parts.insert(number, part),
        };
        let (tag, date) = (escape(&tag.to_string()), iso_date(now()));
        Reply::xml(
            200,
            format!(
                "<CopyPartResult><LastModified>{date}</LastModified><ETag>{tag}</ETag></CopyPartResult>"
            ),
        )
    };
    Ok(context.take_time(part_len, finish).await)
}
