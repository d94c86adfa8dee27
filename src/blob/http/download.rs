//! Downloads: whole or a range, never a wrong byte.

use axum::body::Body;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::{StreamExt, TryStreamExt};
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
    IF_RANGE, RANGE,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::super::key::BlobKey;
use super::super::server::Failure;
use super::super::wire::{Asked, ByteRange, Code, Problem, parse_range};
use super::{Desk, answer};

/// Times that a copy which turns out damaged at its first byte is replaced.
const TRIES: u32 = 3;

fn headers(response: &mut Response, key: &BlobKey, length: u64) {
    let headers = response.headers_mut();
    let value = |text: String| HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""));
    headers.insert(ETAG, value(format!("\"{}\"", key.digest)));
    headers.insert(
        HeaderName::from_static("repr-digest"),
        value(format!("sha-256=:{}:", STANDARD.encode(key.digest.sha256))),
    );
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(
        CACHE_CONTROL,
        HeaderValue::from_static("private, max-age=3600, immutable"),
    );
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
}

/// Answers a download, or a look.
pub(super) async fn download(
    desk: &Desk,
    key: BlobKey,
    head: bool,
    request: &HeaderMap,
) -> Result<Response, Failure> {
    let text = |name: HeaderName| request.get(name).and_then(|v| v.to_str().ok());
    let tag = format!("\"{}\"", key.digest);
    let size = key.digest.size;
    let same = text(IF_RANGE).is_none_or(|t| t == tag);
    let asked = match parse_range(text(RANGE).filter(|_| same), size) {
        Asked::Unsatisfiable => {
            desk.server.look(&key)?;
            let what = format!("the blob has {size} bytes");
            let mut response =
                answer::problem(Problem::new(Code::RangeNotSatisfiable, what).of(key));
            if let Ok(value) = HeaderValue::from_str(&format!("bytes */{size}")) {
                response.headers_mut().insert(CONTENT_RANGE, value);
            }
            return Ok(response);
        }
        Asked::Whole => None,
        Asked::Part(part) => Some(part),
    };
    let mut range = 0..size;
    if let Some(ByteRange { start, end, .. }) = asked {
        range = start..end;
    }
    let length = range.end - range.start;
    if head {
        desk.server.look(&key)?;
        let mut response = Response::new(Body::empty());
        headers(&mut response, &key, size);
        return Ok(response);
    }
    if text(IF_NONE_MATCH).is_some_and(|t| t == tag) {
        desk.server.look(&key)?;
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return Ok(response);
    }
    let mut tried = 0;
    let body = loop {
        tried += 1;
        let handle = desk.server.get(&key).await?;
        let mut stream = handle.stream(range.clone());
        // The first block before the head: what is damaged there is replaced without anybody noticing.
        match stream.next().await {
            Some(Ok(first)) => {
                let first = futures::stream::once(async { Ok(first) });
                let stream = first.chain(stream).map_err(std::io::Error::other);
                break Body::from_stream(stream);
            }
            None => break Body::empty(),
            Some(Err(e)) if tried >= TRIES => return Err(e.into()),
            Some(Err(_)) => {}
        }
    };
    let mut response = Response::new(body);
    headers(&mut response, &key, length);
    if let Some(part) = asked {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        if let Ok(value) = HeaderValue::from_str(&part.to_string()) {
            response.headers_mut().insert(CONTENT_RANGE, value);
        }
    }
    Ok(response)
}
