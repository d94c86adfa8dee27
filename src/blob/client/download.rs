//! Downloads: the bytes of a range as they come, checked against what was asked for.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use reqwest::Response;

use crate::error::{Error, ErrorKind, Result};

use super::super::key::BlobKey;
use super::super::wire::{ByteRange, Call};
use super::BlobClient;
use super::transport::{Failure, Sending, chain};

/// The bytes of a range, in order. Whether they are the right ones says only the digest of the whole.
#[derive(Debug)]
pub struct Download {
    key: BlobKey,
    response: Option<Response>,
    /// Where the next byte belongs.
    at: u64,
    end: u64,
    idle: Duration,
    server: String,
}

impl Download {
    /// The next bytes; `None` after the last one.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the connection breaks, ends early or is silent for too long: ask again from
    /// [`position`](Download::position) on. `Corrupt` if more comes than was asked for.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>> {
        let Some(response) = &mut self.response else {
            return Ok(None);
        };
        let next = tokio::time::timeout(self.idle, response.chunk()).await;
        let left = self.end - self.at;
        let wrong = match next {
            Ok(Ok(Some(chunk))) if chunk.len() as u64 <= left => {
                self.at += chunk.len() as u64;
                return Ok(Some(chunk));
            }
            Ok(Ok(None)) if left == 0 => {
                self.response = None;
                return Ok(None);
            }
            Ok(Ok(Some(_))) => self.fail(ErrorKind::Corrupt, "more bytes came than there are"),
            Ok(Ok(None)) => self.fail(
                ErrorKind::Unavailable,
                format!("the answer ended at byte {} of {}", self.at, self.end),
            ),
            Ok(Err(e)) => self.fail(
                ErrorKind::Unavailable,
                format!("the connection broke at byte {}: {}", self.at, chain(&e)),
            ),
            Err(_) => self.fail(
                ErrorKind::Unavailable,
                format!(
                    "nothing moved for {} s at byte {}",
                    self.idle.as_secs_f64(),
                    self.at
                ),
            ),
        };
        self.response = None;
        Err(wrong)
    }

    fn fail(&self, kind: ErrorKind, text: impl Into<String>) -> Error {
        let text = format!("{} (from {})", text.into(), self.server);
        Error::new(kind, text).during("download").at(&self.key)
    }

    /// Where the next byte belongs.
    pub fn position(&self) -> u64 {
        self.at
    }
}

impl BlobClient {
    /// Opens a download of `range`, or of the whole. One request, and one more for each repetition.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Refused` if the job is over; `Corrupt` for a lost blob, and for an answer that is not
    /// what was asked for; `Invalid` for a range that is not within the blob.
    pub async fn download(&self, key: &BlobKey, range: Option<Range<u64>>) -> Result<Download> {
        let mut failed = 0;
        loop {
            match self.open(key, range.clone()).await {
                Ok(download) => return Ok(download),
                Err(failure) => {
                    let again = self.again(failure, &mut failed).await;
                    again.map_err(Failure::into_error)?;
                }
            }
        }
    }

    /// As [`download`](BlobClient::download), in one attempt.
    pub(crate) async fn open(
        &self,
        key: &BlobKey,
        range: Option<Range<u64>>,
    ) -> Result<Download, Failure> {
        let size = key.digest.size;
        let range = range.unwrap_or(0..size);
        let fail =
            |kind, text: String| Failure::Silent(Error::new(kind, text).during("download").at(key));
        if range.start > range.end || range.end > size {
            let text = format!("bytes {range:?} are not within its {size}");
            return Err(fail(ErrorKind::Invalid, text));
        }
        let mut download = Download {
            key: key.clone(),
            response: None,
            at: range.start,
            end: range.end,
            idle: self.0.config.idle_timeout,
            server: self.server().to_string(),
        };
        if range.is_empty() && (size == 0 || range.start > 0) {
            return Ok(download);
        }
        let asked = ByteRange {
            start: range.start,
            end: range.end,
            size,
        };
        let whole = range == (0..size);
        let mut sending = Sending::nothing();
        // A server that has no local copy makes one first.
        sending.movement.expects(size);
        if !whole {
            sending.headers = range_headers(&asked).map_err(|e| fail(ErrorKind::Internal, e))?;
        }
        let call = Call::Download {
            job: key.job.clone(),
            digest: key.digest,
            head: false,
        };
        let response = self.attempt(&call, sending).await?;
        let header = |name: header::HeaderName| {
            let value = response.headers().get(name)?;
            value.to_str().ok().map(str::to_string)
        };
        let tag = format!("\"{}\"", key.digest);
        if let Some(other) = header(header::ETAG).filter(|t| *t != tag) {
            let text = format!("the server sends another content: its ETag is {other}");
            return Err(fail(ErrorKind::Corrupt, text));
        }
        let fits = match response.status().as_u16() {
            200 => whole,
            206 => {
                let got = header(header::CONTENT_RANGE);
                got.and_then(|v| ByteRange::parse_content_range(&v)) == Some(asked)
            }
            _ => false,
        };
        let length = response.content_length();
        if !fits || length.is_some_and(|l| l != asked.length()) {
            let text = format!(
                "the server answers {} with {length:?} bytes to the question for bytes {range:?}",
                response.status()
            );
            return Err(fail(ErrorKind::Corrupt, text));
        }
        download.response = Some(response);
        Ok(download)
    }
}

fn range_headers(asked: &ByteRange) -> Result<HeaderMap, String> {
    let value = HeaderValue::from_str(&asked.header()).map_err(|e| e.to_string())?;
    Ok(HeaderMap::from_iter([(header::RANGE, value)]))
}
