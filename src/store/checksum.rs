//! MD5 as the services speak it: sent with what is written, so that the service refuses what the way
//! has changed, and compared with what they say of an object. A checksum against accidents, no proof
//! against an adversary.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::HeaderValue;
use md5::{Digest, Md5};

use crate::error::{Error, ErrorKind, Result};

use super::digest::{RunningSha256, Sha256Sum};

/// From this size on hashing is work for another thread.
const OFF_THREAD_FROM_BYTES: usize = 256 * 1024;

/// An MD5 sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Md5Sum([u8; 16]);

impl Md5Sum {
    /// The sum of `bytes`.
    pub(crate) async fn of(bytes: &Bytes) -> Result<Md5Sum> {
        if bytes.len() < OFF_THREAD_FROM_BYTES {
            return Ok(Md5Sum(Md5::digest(bytes).into()));
        }
        let bytes = bytes.clone();
        super::blocking(move || Ok(Md5Sum(Md5::digest(&bytes).into()))).await
    }

    /// The sum that an ETag is, if it looks like one (no multipart suffix). With some kinds of
    /// encryption ETags only look like sums.
    pub(crate) fn of_tag(tag: Option<&str>) -> Option<Md5Sum> {
        let tag = tag?.trim_matches('"');
        if tag.len() != 32 || !tag.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut sum = [0; 16];
        for (byte, pair) in sum.iter_mut().zip(tag.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Md5Sum(sum))
    }

    /// As it stands in `Content-MD5` and in JSON.
    pub(crate) fn base64(self) -> String {
        STANDARD.encode(self.0)
    }

    /// The value of a `Content-MD5` header.
    pub(crate) fn header(self) -> Result<HeaderValue> {
        HeaderValue::from_str(&self.base64())
            .map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))
    }
}

/// Both sums that a request to S3 has: one in its `Content-MD5`, one in its signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) md5: Md5Sum,
    pub(crate) sha256: Sha256Sum,
}

/// Both sums are fed with pieces of so many bytes, which stay in the processor's cache from one to the other.
const PIECE_BYTES: usize = 32 * 1024;

impl Sums {
    /// The sums of `bytes`, in one pass over them.
    pub(crate) async fn of(bytes: &Bytes) -> Result<Sums> {
        if bytes.len() < OFF_THREAD_FROM_BYTES {
            return Ok(Sums::at_once(bytes));
        }
        let bytes = bytes.clone();
        super::blocking(move || Ok(Sums::at_once(&bytes))).await
    }

    fn at_once(bytes: &[u8]) -> Sums {
        let (mut md5, mut sha256) = (Md5::new(), RunningSha256::default());
        for piece in bytes.chunks(PIECE_BYTES) {
            md5.update(piece);
            sha256.add(piece);
        }
        Sums {
            md5: Md5Sum(md5.finalize().into()),
            sha256: sha256.sum(),
        }
    }
}

/// The sum of bytes that come one after the other.
#[derive(Debug, Default)]
pub(crate) struct Running(Md5);

impl Running {
    /// Takes the next bytes.
    pub(crate) async fn feed(mut self, bytes: &Bytes) -> Result<Running> {
        let bytes = bytes.clone();
        super::blocking(move || {
            self.0.update(&bytes);
            Ok(self)
        })
        .await
    }

    /// The sum of all.
    pub(crate) fn sum(self) -> Md5Sum {
        Md5Sum(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn two_sums_of_one_pass_are_those_of_two() {
        for len in [
            0,
            1,
            PIECE_BYTES,
            PIECE_BYTES + 1,
            OFF_THREAD_FROM_BYTES + 7,
        ] {
            let bytes: Bytes = (0..len).map(|n| (n % 251) as u8).collect();
            let sums = Sums::of(&bytes).await.unwrap();
            assert_eq!(sums.md5, Md5Sum::of(&bytes).await.unwrap(), "{len}");
            assert_eq!(sums.sha256, Sha256Sum::of(&bytes), "{len}");
        }
    }

    #[tokio::test]
    async fn sums_and_tags_agree() {
        // RFC 1321, appendix A.5.
        let sum = Md5Sum::of(&Bytes::from_static(b"abc")).await.unwrap();
        let tag = "\"900150983cd24fb0d6963f7d28e17f72\"";
        assert_eq!(Md5Sum::of_tag(Some(tag)), Some(sum));
        assert_eq!(sum.base64(), "kAFQmDzST7DWlj99KOF/cg==");
        let running = Running::default()
            .feed(&Bytes::from_static(b"a"))
            .await
            .unwrap()
            .feed(&Bytes::from_static(b"bc"))
            .await
            .unwrap();
        assert_eq!(running.sum(), sum);
        for no_sum in [
            "\"900150983cd24fb0d6963f7d28e17f72-3\"",
            "0x8D123",
            "+00150983cd24fb0d6963f7d28e17f72x",
            "",
        ] {
            assert_eq!(Md5Sum::of_tag(Some(no_sum)), None, "{no_sum}");
        }
    }
}
