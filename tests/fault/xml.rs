//! The XML interface that S3 and Google Cloud Storage share, but for the names of headers: single
//! objects and their tags.

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;

use super::call::{Call, unframed};
use super::content::Content;
use super::log::{Kind, Service};
use super::reply::{Reply, Text, escape, http_date, iso_date};
use super::server::{Context, error, not_known};
use super::state::{Bucket, Meta, Object};
use super::{xml_copy, xml_list, xml_upload};

/// Standard headers that are kept with an object.
pub const KEPT_HEADERS: [&str; 6] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
];

/// What both services begin their own headers with.
pub fn prefix(service: Service) -> &'static str {
    match service {
        Service::S3 => "x-amz-",
        Service::Gcs => "x-goog-",
        Service::Azure => "x-ms-",
    }
}

impl Call {
    /// A header of the service by the part of its name that the services share.
    pub fn own(&self, name: &str) -> Option<&str> {
        self.header(&format!("{}{name}", prefix(self.service)))
    }
}

pub fn classify(call: &Call) -> Kind {
    let upload = call.has("uploadId");
    match (call.method.as_str(), call.key.is_empty()) {
        ("GET", true) if call.bucket.is_empty() || call.has("location") => Kind::Bucket,
        ("GET", true) if call.has("uploads") => Kind::ListUploads,
        ("GET", true) if call.has("versioning") => Kind::Bucket,
        ("GET", true) => Kind::List,
        ("POST", true) if call.has("delete") => Kind::DeleteMany,
        ("PUT" | "HEAD", true) => Kind::Bucket,
        ("PUT", _) if upload && call.own("copy-source").is_some() => Kind::CopyPart,
        ("PUT", _) if upload => Kind::PutPart,
        ("PUT", _) if call.has("tagging") => Kind::PutTags,
        ("PUT", _) if call.own("copy-source").is_some() => Kind::Copy,
        ("PUT", _) => Kind::Put,
        ("POST", _) if call.has("uploads") => Kind::CreateUpload,
        ("POST", _) if upload => Kind::CompleteUpload,
        ("GET", _) if upload => Kind::ListParts,
        ("GET", _) if call.has("tagging") => Kind::GetTags,
        ("GET", _) => Kind::Get,
        ("HEAD", _) => Kind::Head,
        ("DELETE", false) if upload => Kind::AbortUpload,
        ("DELETE", false) => Kind::Delete,
        _ => Kind::Other,
    }
}

pub async fn execute(context: &Context, kind: Kind) -> Reply {
    let call = &context.call;
    if let Err(refused) = let_in(context) {
        return refused;
    }
    if kind == Kind::Bucket {
        return about_bucket(context);
    }
    let Some(bucket) = context.state().bucket(call.service, &call.bucket) else {
        return error(call.service, 404, "NoSuchBucket");
    };
    let result = match kind {
        Kind::Put => put(context, &bucket),
        Kind::Get | Kind::Head => get(context, &bucket),
        Kind::Delete => {
            let there = bucket.objects().remove(&call.key).is_some();
            // Google's answer to deleting nothing is an error, S3's is not.
            if there || call.service == Service::S3 {
                Ok(Reply::new(204))
            } else {
                Err(error(call.service, 404, "NoSuchKey"))
            }
        }
        Kind::DeleteMany => delete_many(context, &bucket),
        Kind::List => Ok(xml_list::objects(context, &bucket)),
        Kind::GetTags => {
            object(context, &bucket).map(|o| Reply::xml(200, xml_of_tags("Tagging", &o.meta.tags)))
        }
        Kind::PutTags => put_tags(context, &bucket),
        Kind::Copy => xml_copy::copy(context, &bucket).await,
        Kind::CreateUpload => Ok(xml_upload::create(context, &bucket)),
        Kind::PutPart => xml_upload::put_part(context, &bucket),
        Kind::CopyPart => xml_copy::copy_part(context, &bucket).await,
        Kind::ListParts => xml_upload::list_parts(context, &bucket),
        Kind::ListUploads => Ok(xml_list::uploads(context, &bucket)),
        Kind::CompleteUpload => xml_upload::complete(context, &bucket),
        Kind::AbortUpload => xml_upload::abort(context, &bucket),
        _ => Ok(not_known(call)),
    };
    result.unwrap_or_else(|refused| refused)
}

/// Is the caller known? Signatures are not checked: that they are there, and whose they are.
fn let_in(context: &Context) -> Result<(), Reply> {
    let (call, known) = (&context.call, &context.shared.known);
    let refuse = |code| Err(error(call.service, 403, code));
    let authorization = call.header("authorization").unwrap_or("");
    if call.service == Service::Gcs {
        return match &known.bearer {
            Some(token) if authorization != format!("Bearer {token}") => refuse("AccessDenied"),
            _ => Ok(()),
        };
    }
    let credential = authorization
        .strip_prefix("AWS4-HMAC-SHA256 Credential=")
        .or_else(|| call.param("X-Amz-Credential"));
    let signed = authorization.contains("Signature=") || call.has("X-Amz-Signature");
    match credential.and_then(|c| c.split('/').next()) {
        Some(key) if key == known.access_key && signed => Ok(()),
        Some(_) => refuse("InvalidAccessKeyId"),
        None => refuse("AccessDenied"),
    }
}

fn about_bucket(context: &Context) -> Reply {
    let call = &context.call;
    if call.bucket.is_empty() {
        return xml_list::buckets(context);
    }
    if call.is("PUT") {
        context.state().create_bucket(call.service, &call.bucket);
        return Reply::new(200).with("location", format!("/{}", call.bucket));
    }
    if context.state().bucket(call.service, &call.bucket).is_none() {
        return error(call.service, 404, "NoSuchBucket");
    }
    match call.method.as_str() {
        "GET" if call.has("location") => Reply::xml(
            200,
            "<LocationConstraint xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"/>",
        ),
        "GET" => Reply::xml(200, "<VersioningConfiguration/>"),
        _ => Reply::new(200).with("x-amz-bucket-region", "us-east-1"),
    }
}

/// The object that a request names, or the error that says that there is none.
pub fn object(context: &Context, bucket: &Bucket) -> Result<Arc<Object>, Reply> {
    bucket
        .get(&context.call.key)
        .ok_or_else(|| error(context.call.service, 404, "NoSuchKey"))
}

/// The body as the client meant it.
pub fn payload(call: &Call) -> Result<Bytes, Reply> {
    let streamed = call
        .header("x-amz-content-sha256")
        .is_some_and(|v| v.starts_with("STREAMING-"));
    if !streamed {
        return Ok(call.body.clone());
    }
    unframed(&call.body).ok_or_else(|| error(call.service, 400, "IncompleteBody"))
}

/// What the headers of a write say to be kept with the object.
pub fn meta_of(call: &Call) -> Meta {
    let mut meta = Meta {
        tags: call.own("tagging").unwrap_or("").to_string(),
        class: call
            .own("storage-class")
            .filter(|c| *c != "STANDARD")
            .map(str::to_string),
        ..Meta::default()
    };
    let user = format!("{}meta-", prefix(call.service));
    for (name, value) in &call.headers {
        let (name, Ok(value)) = (name.as_str(), value.to_str()) else {
            continue;
        };
        if let Some(name) = name.strip_prefix(&user) {
            meta.headers.insert(format!("meta-{name}"), value.into());
        } else if KEPT_HEADERS.contains(&name) && value != "aws-chunked" {
            meta.headers.insert(name.into(), value.into());
        }
    }
    meta
}

/// What the headers of a write demand of the object that is there.
pub fn on_destination(call: &Call) -> impl Fn(Option<&Object>) -> Result<(), Reply> + use<> {
    let service = call.service;
    let generation = call
        .header("x-goog-if-generation-match")
        .filter(|_| service == Service::Gcs)
        .and_then(|v| v.parse::<u64>().ok());
    let none = call.header("if-none-match") == Some("*");
    let tag = call.header("if-match").map(str::to_string);
    move |there| {
        let failed = || Err(error(service, 412, "PreconditionFailed"));
        if let Some(wanted) = generation
            && there.map_or(0, |o| o.generation) != wanted
        {
            return failed();
        }
        match (there, &tag) {
            (Some(_), _) if none => failed(),
            (None, Some(_)) => Err(error(service, 404, "NoSuchKey")),
            (Some(o), Some(tag)) if !same_tag(tag, &o.tag.to_string()) => failed(),
            _ => Ok(()),
        }
    }
}

/// ETags are written with and without quotes.
pub fn same_tag(one: &str, other: &str) -> bool {
    one == "*" || one.trim_matches('"') == other.trim_matches('"')
}

fn put(context: &Context, bucket: &Bucket) -> Result<Reply, Reply> {
    let call = &context.call;
    let content = Content::of_bytes(payload(call)?);
    let object = Object::new(Arc::new(content), Arc::new(meta_of(call)));
    let object = context
        .state()
        .put(bucket, &call.key, object, on_destination(call))?;
    Ok(written(call.service, &object))
}

/// The answer to a write.
pub fn written(service: Service, object: &Object) -> Reply {
    let reply = Reply::new(200).with("etag", object.tag.to_string());
    match service {
        Service::Gcs => reply.with("x-goog-generation", object.generation.to_string()),
        _ => reply,
    }
}

/// The headers that describe an object.
pub fn described(service: Service, status: u16, object: &Object) -> Reply {
    let own = prefix(service);
    let mut reply = Reply::new(status)
        .with("etag", object.tag.to_string())
        .with("last-modified", http_date(object.modified))
        .with("accept-ranges", "bytes");
    if !object.meta.headers.contains_key("content-type") {
        reply = reply.with("content-type", "application/octet-stream");
    }
    for (name, value) in &object.meta.headers {
        reply = match name.strip_prefix("meta-") {
            Some(user) => reply.with(&format!("{own}meta-{user}"), value),
            None => reply.with(name, value),
        };
    }
    if let Some(class) = &object.meta.class {
        reply = reply.with(&format!("{own}storage-class"), class);
    }
    if service == Service::Gcs {
        return reply.with("x-goog-generation", object.generation.to_string());
    }
    match object
        .meta
        .tags
        .split('&')
        .filter(|t| !t.is_empty())
        .count()
    {
        0 => reply,
        n => reply.with("x-amz-tagging-count", n.to_string()),
    }
}

fn get(context: &Context, bucket: &Bucket) -> Result<Reply, Reply> {
    let call = &context.call;
    let object = object(context, bucket)?;
    let tag = object.tag.to_string();
    if let Some(wanted) = call.param("generation")
        && wanted != object.generation.to_string()
    {
        return Err(error(call.service, 404, "NoSuchKey"));
    }
    if call.header("if-match").is_some_and(|t| !same_tag(t, &tag))
        // Google's XML interface knows generations only.
        && call.service == Service::S3
    {
        return Err(error(call.service, 412, "PreconditionFailed"));
    }
    if call
        .header("if-none-match")
        .is_some_and(|t| same_tag(t, &tag))
    {
        return Err(Reply::new(304));
    }
    let len = object.content.len();
    let (mut range, mut parts) = (call.range("range", len), None);
    if let Some(number) = call
        .param("partNumber")
        .and_then(|n| n.parse::<usize>().ok())
    {
        let sizes = object
            .parts
            .as_deref()
            .unwrap_or(std::slice::from_ref(&len));
        range = match number.checked_sub(1).and_then(|n| sizes.get(n)) {
            Some(size) => {
                let start = sizes[..number - 1].iter().sum();
                Ok(Some((start, start + size)))
            }
            None => Err(()),
        };
        parts = object.parts.as_ref().map(|p| p.len());
    }
    let Ok(range) = range else {
        return Err(error(call.service, 416, "InvalidRange")
            .with("content-range", format!("bytes */{len}")));
    };
    let mut reply = described(
        call.service,
        if range.is_some() { 206 } else { 200 },
        &object,
    );
    if let Some((start, end)) = range {
        let last = end.saturating_sub(1);
        reply = reply.with("content-range", format!("bytes {start}-{last}/{len}"));
    }
    if let Some(count) = parts {
        reply = reply.with("x-amz-mp-parts-count", count.to_string());
    }
    let (start, end) = range.unwrap_or((0, len));
    Ok(if call.is("HEAD") {
        reply.body(Text::Head(end - start))
    } else {
        reply.body(Text::Object {
            content: Arc::clone(&object.content),
            range: start..end,
            flipped: None,
        })
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Delete {
    #[serde(default)]
    quiet: bool,
    #[serde(rename = "Object", default)]
    objects: Vec<ToDelete>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ToDelete {
    key: String,
    #[serde(rename = "ETag")]
    e_tag: Option<String>,
}

fn delete_many(context: &Context, bucket: &Bucket) -> Result<Reply, Reply> {
    let call = &context.call;
    let malformed = |_| error(call.service, 400, "MalformedXML");
    let body = payload(call)?;
    let request: Delete = quick_xml::de::from_reader(&body[..]).map_err(malformed)?;
    if request.objects.len() > 1000 {
        return Err(error(call.service, 400, "MalformedXML"));
    }
    let mut text = String::from("<DeleteResult>");
    let mut objects = bucket.objects();
    for wanted in &request.objects {
        let key = escape(&wanted.key);
        let differs = |o: &Arc<Object>| match &wanted.e_tag {
            Some(tag) => !same_tag(tag, &o.tag.to_string()),
            None => false,
        };
        if objects.get(&wanted.key).is_some_and(differs) {
            text.push_str(&format!(
                "<Error><Key>{key}</Key><Code>PreconditionFailed</Code><Message>no</Message></Error>"
            ));
            continue;
        }
        objects.remove(&wanted.key);
        if !request.quiet {
            text.push_str(&format!("<Deleted><Key>{key}</Key></Deleted>"));
        }
    }
    text.push_str("</DeleteResult>");
    Ok(Reply::xml(200, text))
}

pub fn xml_of_tags(root: &str, tags: &str) -> String {
    let mut text = format!("<{root}><TagSet>");
    for (name, value) in url::form_urlencoded::parse(tags.as_bytes()) {
        let (name, value) = (escape(&name), escape(&value));
        text.push_str(&format!(
            "<Tag><Key>{name}</Key><Value>{value}</Value></Tag>"
        ));
    }
    text.push_str(&format!("</TagSet></{root}>"));
    text
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Tagging {
    tag_set: TagSet,
}

#[derive(Deserialize)]
struct TagSet {
    #[serde(rename = "Tag", default)]
    tags: Vec<KeyValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct KeyValue {
    key: String,
    value: String,
}

/// `Tagging` documents as they are sent, in the form that is kept.
pub fn tags_of_xml(body: &[u8]) -> Option<String> {
    let tagging: Tagging = quick_xml::de::from_reader(body).ok()?;
    let mut tags = url::form_urlencoded::Serializer::new(String::new());
    for tag in &tagging.tag_set.tags {
        tags.append_pair(&tag.key, &tag.value);
    }
    Some(tags.finish())
}

fn put_tags(context: &Context, bucket: &Bucket) -> Result<Reply, Reply> {
    let call = &context.call;
    let tags =
        tags_of_xml(&payload(call)?).ok_or_else(|| error(call.service, 400, "MalformedXML"))?;
    let old = object(context, bucket)?;
    let object = Object {
        content: Arc::clone(&old.content),
        tag: old.tag,
        parts: old.parts.clone(),
        meta: Arc::new(Meta {
            tags,
            ..(*old.meta).clone()
        }),
        generation: old.generation,
        modified: old.modified,
        copy: None,
    };
    bucket.objects().insert(call.key.clone(), Arc::new(object));
    Ok(Reply::new(200))
}

/// `<ETag>` and `<LastModified>`, as several answers have them.
pub fn tag_and_date(object: &Object) -> String {
    let (tag, date) = (escape(&object.tag.to_string()), iso_date(object.modified));
    format!("<LastModified>{date}</LastModified><ETag>{tag}</ETag>")
}
