//! Azure Blob Storage: single blobs and listings. Buckets are `account/container`.

use std::sync::Arc;

use bytes::Bytes;

use super::call::Call;
use super::content::Content;
use super::log::{Kind, Service};
use super::reply::{Reply, Text, escape, http_date};
use super::server::{Context, error, not_known};
use super::state::{Bucket, Meta, Object};
use super::xml::{KEPT_HEADERS, same_tag, tags_of_xml, xml_of_tags};
use super::xml_list::{Start, decode_token, encode_token, page};
use super::{azure_blocks, azure_copy};

pub fn classify(call: &Call) -> Kind {
    let comp = call.param("comp").unwrap_or("");
    let from_url = call.header("x-ms-copy-source").is_some();
    match (call.method.as_str(), comp, call.key.is_empty()) {
        ("GET", "list", true) => Kind::List,
        ("POST", "batch", true) => Kind::DeleteMany,
        (_, _, true) => Kind::Bucket,
        ("PUT", "block", _) if from_url => Kind::CopyPart,
        ("PUT", "block", _) => Kind::PutPart,
        ("PUT", "blocklist", _) => Kind::CompleteUpload,
        ("GET", "blocklist", _) => Kind::ListParts,
        ("PUT", "copy", _) => Kind::AbortCopy,
        ("GET", "tags", _) => Kind::GetTags,
        ("PUT", "tags", _) => Kind::PutTags,
        ("PUT", "", _) if from_url && call.header("x-ms-blob-type").is_some() => Kind::PutFromUrl,
        ("PUT", "", _) if from_url => Kind::Copy,
        ("PUT", "", _) => Kind::Put,
        ("GET", "", _) => Kind::Get,
        ("HEAD", _, _) => Kind::Head,
        ("DELETE", "", _) => Kind::Delete,
        _ => Kind::Other,
    }
}

pub async fn execute(context: &Context, kind: Kind) -> Reply {
    let call = &context.call;
    if let Err(refused) = let_in(context) {
        return refused;
    }
    let bucket = context.state().bucket(Service::Azure, &call.bucket);
    if kind == Kind::Bucket {
        return match (call.method.as_str(), bucket) {
            ("PUT", None) => {
                context.state().create_bucket(Service::Azure, &call.bucket);
                Reply::new(201)
            }
            ("PUT", Some(_)) => fail(409, "ContainerAlreadyExists"),
            (_, None) => fail(404, "ContainerNotFound"),
            (_, Some(_)) => Reply::new(200).with("etag", "\"0x1\""),
        };
    }
    let Some(bucket) = bucket else {
        return fail(404, "ContainerNotFound");
    };
    let result = match kind {
        Kind::Put => put(context, &bucket),
        Kind::Get | Kind::Head => get(context, &bucket),
        Kind::Delete => delete(&bucket, &call.key).map(|()| Reply::new(202)),
        Kind::DeleteMany => delete_many(call, &bucket),
        Kind::List => Ok(list(call, &bucket)),
        Kind::Copy => azure_copy::copy(context, &bucket).await,
        Kind::PutFromUrl => azure_copy::put_from_url(context, &bucket).await,
        Kind::AbortCopy => azure_copy::abort(context, &bucket),
        Kind::PutPart => azure_blocks::put_block(context, &bucket),
        Kind::CopyPart => azure_blocks::put_block_from_url(context, &bucket).await,
        Kind::CompleteUpload => azure_blocks::put_block_list(context, &bucket),
        Kind::ListParts => azure_blocks::get_block_list(context, &bucket),
        Kind::GetTags => {
            blob(context, &bucket).map(|b| Reply::xml(200, xml_of_tags("Tags", &b.meta.tags)))
        }
        Kind::PutTags => put_tags(context, &bucket),
        _ => Ok(not_known(call)),
    };
    result.unwrap_or_else(|refused| refused)
}

pub fn fail(status: u16, code: &str) -> Reply {
    error(Service::Azure, status, code)
}

/// Is the caller known to the account? Signatures are not checked.
fn let_in(context: &Context) -> Result<(), Reply> {
    let (call, known) = (&context.call, &context.shared.known);
    let account = call.bucket.split('/').next().unwrap_or("");
    let authorization = call.header("authorization").unwrap_or("");
    let by_key = authorization.strip_prefix("SharedKey ").map(|a| {
        let signer = a.split(':').next().unwrap_or("");
        signer == account
    });
    let allowed = by_key.unwrap_or_else(|| authorization.starts_with("Bearer ") || call.has("sig"));
    if !known.accounts.iter().any(|a| a == account) || !allowed {
        return Err(fail(403, "AuthenticationFailed"));
    }
    Ok(())
}

/// The blob that a request names, its pending copy looked after.
pub fn blob(context: &Context, bucket: &Bucket) -> Result<Arc<Object>, Reply> {
    let key = &context.call.key;
    azure_copy::settle(context.state(), bucket, key);
    bucket.get(key).ok_or_else(|| fail(404, "BlobNotFound"))
}

/// Every write gives another ETag, whatever was written.
pub fn tag_of(object: &Object) -> String {
    format!("\"0x8D{:X}\"", object.generation)
}

/// What the headers of a write say to be kept with the blob.
pub fn meta_of(call: &Call) -> Meta {
    let mut meta = Meta {
        tags: call.header("x-ms-tags").unwrap_or("").to_string(),
        class: call.header("x-ms-access-tier").map(str::to_string),
        ..Meta::default()
    };
    for (name, value) in &call.headers {
        let Ok(value) = value.to_str() else { continue };
        if let Some(name) = name.as_str().strip_prefix("x-ms-meta-") {
            meta.headers.insert(format!("meta-{name}"), value.into());
        } else if let Some(name) = name.as_str().strip_prefix("x-ms-blob-")
            && KEPT_HEADERS.contains(&name)
        {
            meta.headers.insert(name.into(), value.into());
        }
    }
    meta
}

/// What the headers of a write demand of the blob that is there.
pub fn on_destination(call: &Call) -> impl Fn(Option<&Object>) -> Result<(), Reply> + use<> {
    let none = call.header("if-none-match") == Some("*");
    let tag = call.header("if-match").map(str::to_string);
    move |there| match (there, &tag) {
        (Some(_), _) if none => Err(fail(409, "BlobAlreadyExists")),
        (Some(blob), Some(tag)) if !same_tag(tag, &tag_of(blob)) => {
            Err(fail(412, "ConditionNotMet"))
        }
        (None, Some(_)) => Err(fail(412, "ConditionNotMet")),
        (Some(blob), _) if azure_copy::is_pending(blob) => Err(fail(409, "PendingCopyOperation")),
        _ => Ok(()),
    }
}

pub fn written(status: u16, object: &Object) -> Reply {
    Reply::new(status)
        .with("etag", tag_of(object))
        .with("last-modified", http_date(object.modified))
        .with("x-ms-request-server-encrypted", "true")
}

fn put(context: &Context, bucket: &Bucket) -> Result<Reply, Reply> {
    let call = &context.call;
    if call.header("x-ms-blob-type") != Some("BlockBlob") {
        return Err(fail(400, "MissingRequiredHeader"));
    }
    azure_copy::settle(context.state(), bucket, &call.key);
    let mut meta = meta_of(call);
    if let Some(kind) = call.header("content-type") {
        let kept = meta.headers.entry("content-type".into());
        kept.or_insert_with(|| kind.to_string());
    }
    let content = Content::of_bytes(call.body.clone());
    let object = Object::new(Arc::new(content), Arc::new(meta));
    let object = context
        .state()
        .put(bucket, &call.key, object, on_destination(call))?;
    bucket.blocks().remove(&call.key);
    Ok(written(201, &object))
}

fn get(context: &Context, bucket: &Bucket) -> Result<Reply, Reply> {
    let call = &context.call;
    let blob = blob(context, bucket)?;
    let tag = tag_of(&blob);
    if call.header("if-match").is_some_and(|t| !same_tag(t, &tag)) {
        return Err(fail(412, "ConditionNotMet"));
    }
    if call
        .header("if-none-match")
        .is_some_and(|t| same_tag(t, &tag))
    {
        return Err(Reply::new(304));
    }
    let len = blob.content.len();
    // Its own header is taken before the standard one.
    let header = match call.header("x-ms-range") {
        Some(_) => "x-ms-range",
        None => "range",
    };
    let range = call
        .range(header, len)
        .map_err(|()| fail(416, "InvalidRange"))?;
    let mut reply = Reply::new(if range.is_some() { 206 } else { 200 })
        .with("etag", tag)
        .with("last-modified", http_date(blob.modified))
        .with("accept-ranges", "bytes")
        .with("x-ms-blob-type", "BlockBlob");
    if !blob.meta.headers.contains_key("content-type") {
        reply = reply.with("content-type", "application/octet-stream");
    }
    for (name, value) in &blob.meta.headers {
        reply = match name.strip_prefix("meta-") {
            Some(user) => reply.with(&format!("x-ms-meta-{user}"), value),
            None => reply.with(name, value),
        };
    }
    if let Some(tier) = &blob.meta.class {
        reply = reply.with("x-ms-access-tier", tier);
    }
    reply = azure_copy::describe(reply, &blob);
    if let Some((start, end)) = range {
        reply = reply.with("content-range", format!("bytes {start}-{}/{len}", end - 1));
    }
    let (start, end) = range.unwrap_or((0, len));
    Ok(if call.is("HEAD") {
        reply.body(Text::Head(end - start))
    } else {
        reply.body(Text::Object {
            content: Arc::clone(&blob.content),
            range: start..end,
            flipped: None,
        })
    })
}

fn delete(bucket: &Bucket, key: &str) -> Result<(), Reply> {
    match bucket.objects().remove(key) {
        Some(_) => {
            bucket.blocks().remove(key);
            Ok(())
        }
        None => Err(fail(404, "BlobNotFound")),
    }
}

/// A batch of deletes: requests in the parts of the body, their answers in the parts of ours.
fn delete_many(call: &Call, bucket: &Bucket) -> Result<Reply, Reply> {
    let text = String::from_utf8_lossy(&call.body);
    let boundary = "batch_of_the_fault_server";
    let mut answer = String::new();
    let mut id = None;
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("Content-ID: ") {
            id = value.trim().parse::<u32>().ok();
        }
        let Some(path) = line.strip_prefix("DELETE ") else {
            continue;
        };
        let path = path.split([' ', '?']).next().unwrap_or("");
        let (_, key) = super::call::split_path(path, 2);
        let (status, reason) = match delete(bucket, &key) {
            Ok(()) => (202, "Accepted"),
            Err(_) => (404, "The specified blob does not exist."),
        };
        answer.push_str(&format!(
            "--{boundary}\r\nContent-Type: application/http\r\nContent-ID: {}\r\n\r\nHTTP/1.1 {status} {reason}\r\nx-ms-version: 2023-11-03\r\n\r\n",
            id.unwrap_or(0)
        ));
    }
    answer.push_str(&format!("--{boundary}--\r\n"));
    Ok(Reply::new(202)
        .with(
            "content-type",
            format!("multipart/mixed; boundary={boundary}"),
        )
        .body(Text::Bytes(Bytes::from(answer))))
}

fn put_tags(context: &Context, bucket: &Bucket) -> Result<Reply, Reply> {
    let tags = tags_of_xml(&context.call.body).ok_or_else(|| fail(400, "InvalidXmlDocument"))?;
    let old = blob(context, bucket)?;
    let object = Object {
        content: Arc::clone(&old.content),
        tag: old.tag,
        parts: None,
        meta: Arc::new(Meta {
            tags,
            ..(*old.meta).clone()
        }),
        generation: old.generation,
        modified: old.modified,
        copy: None,
    };
    let key = context.call.key.clone();
    bucket.objects().insert(key, Arc::new(object));
    Ok(Reply::new(204))
}

fn list(call: &Call, bucket: &Bucket) -> Reply {
    let param = |name: &str| call.param(name).unwrap_or("");
    let most = param("maxresults").parse().unwrap_or(5000).min(5000);
    let (prefix, delimiter) = (param("prefix"), param("delimiter"));
    let after = decode_token(param("marker"));
    // Unlike a marker, a name to start from is part of the page.
    let start = match (after.as_str(), param("startFrom")) {
        ("", from) if !from.is_empty() => Start::At(from),
        (after, _) => Start::After(after),
    };
    let page = page(&bucket.objects(), prefix, delimiter, start, most);
    let (account, container) = call.bucket.split_once('/').unwrap_or((&call.bucket, ""));
    let mut text = format!(
        "<EnumerationResults ServiceEndpoint=\"http://{}/\" ContainerName=\"{}\"><Prefix>{}</Prefix><MaxResults>{most}</MaxResults><Blobs>",
        escape(account),
        escape(container),
        escape(prefix)
    );
    for (key, blob) in &page.objects {
        let kind = blob.meta.headers.get("content-type");
        text.push_str(&format!(
            "<Blob><Name>{}</Name><Properties><Last-Modified>{}</Last-Modified><Etag>{}</Etag><Content-Length>{}</Content-Length><Content-Type>{}</Content-Type><BlobType>BlockBlob</BlobType></Properties></Blob>",
            escape(key),
            http_date(blob.modified),
            tag_of(blob).trim_matches('"'),
            blob.content.len(),
            escape(kind.map_or("application/octet-stream", String::as_str)),
        ));
    }
    for prefix in &page.prefixes {
        text.push_str(&format!(
            "<BlobPrefix><Name>{}</Name></BlobPrefix>",
            escape(prefix)
        ));
    }
    let next = page.next.map(|n| encode_token(&n)).unwrap_or_default();
    text.push_str(&format!(
        "</Blobs><NextMarker>{next}</NextMarker></EnumerationResults>"
    ));
    Reply::xml(200, text)
}
