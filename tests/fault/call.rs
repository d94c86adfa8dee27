//! A request, taken apart.

use bytes::Bytes;
use hyper::header::HeaderMap;
use percent_encoding::percent_decode_str;

use super::log::Service;

/// One request with its whole body.
#[derive(Debug)]
pub struct Call {
    pub service: Service,
    pub method: String,
    /// The path as it was sent, without the query.
    pub path: String,
    /// For Azure `account/container`.
    pub bucket: String,
    pub key: String,
    pub query: Vec<(String, String)>,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Call {
    pub fn new(
        service: Service,
        method: &str,
        path: &str,
        query: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Call {
        let segments = if service == Service::Azure { 2 } else { 1 };
        let (bucket, key) = split_path(path, segments);
        Call {
            service,
            method: method.to_string(),
            path: path.to_string(),
            bucket,
            key,
            query: url::form_urlencoded::parse(query.as_bytes())
                .into_owned()
                .collect(),
            headers,
            body,
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub fn param(&self, name: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }

    pub fn has(&self, name: &str) -> bool {
        self.param(name).is_some()
    }

    pub fn is(&self, method: &str) -> bool {
        self.method == method
    }

    /// The bytes `a..b` that a `bytes=` header asks for, of an object of `len` bytes.
    /// `Err` if it asks for nothing that is there.
    pub fn range(&self, header: &str, len: u64) -> Result<Option<(u64, u64)>, ()> {
        let Some(range) = self.header(header).and_then(|v| v.strip_prefix("bytes=")) else {
            return Ok(None);
        };
        let (first, last) = range.split_once('-').ok_or(())?;
        let (start, end) = match (first, last) {
            ("", last) => {
                let suffix: u64 = last.parse().map_err(|_| ())?;
                (len.saturating_sub(suffix), len)
            }
            (first, "") => (first.parse().map_err(|_| ())?, len),
            (first, last) => {
                let last: u64 = last.parse().map_err(|_| ())?;
                (first.parse().map_err(|_| ())?, last.saturating_add(1))
            }
        };
        if start >= len || start >= end {
            return Err(());
        }
        Ok(Some((start, end.min(len))))
    }
}

/// Bucket (of `segments` path segments) and key.
pub fn split_path(path: &str, segments: usize) -> (String, String) {
    let path = path.trim_start_matches('/');
    let at = path
        .match_indices('/')
        .nth(segments - 1)
        .map_or(path.len(), |(at, _)| at);
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    (
        decode(&path[..at]),
        decode(path.get(at + 1..).unwrap_or("")),
    )
}

/// A body in the chunks of AWS's streamed signatures, without their frames.
pub fn unframed(body: &Bytes) -> Option<Bytes> {
    let mut out = Vec::with_capacity(body.len());
    let mut rest = &body[..];
    loop {
        let line_end = rest.windows(2).position(|w| w == b"\r\n")?;
        let line = std::str::from_utf8(&rest[..line_end]).ok()?;
        let size = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        rest = &rest[line_end + 2..];
        if size == 0 {
            return Some(out.into());
        }
        out.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size + 2..)?;
    }
}
