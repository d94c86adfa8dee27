//! SHA-256 of contents: what an object is, wherever it lies.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// From this size on hashing is work for another thread.
const OFF_THREAD_FROM_BYTES: usize = 256 * 1024;

/// A SHA-256 sum. As text, and in documents, 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sha256Sum([u8; 32]);

impl Sha256Sum {
    /// The sum of `bytes`.
    pub fn of(bytes: &[u8]) -> Sha256Sum {
        Sha256Sum(Sha256::digest(bytes).into())
    }

    /// The sum itself.
    pub fn bytes(self) -> [u8; 32] {
        self.0
    }
}

impl fmt::Display for Sha256Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Sha256Sum {
    type Err = Error;

    fn from_str(text: &str) -> Result<Sha256Sum> {
        let digits = text.as_bytes();
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut sum = [0; 32];
        let mut pairs = digits.chunks_exact(2);
        for (byte, pair) in sum.iter_mut().zip(&mut pairs) {
            match (value(pair[0]), value(pair[1])) {
                (Some(high), Some(low)) => *byte = high << 4 | low,
                _ => return Err(no_sum()),
            }
        }
        match digits.len() {
            64 => Ok(Sha256Sum(sum)),
            _ => Err(no_sum()),
        }
    }
}

fn no_sum() -> Error {
    Error::invalid("a SHA-256 sum has 64 lower-case hex digits")
}

impl Serialize for Sha256Sum {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha256Sum {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse()
            .map_err(|e: Error| serde::de::Error::custom(e.message()))
    }
}

/// The sum of bytes that come one after the other.
#[derive(Debug, Default, Clone)]
pub(crate) struct RunningSha256(Sha256);

impl RunningSha256 {
    /// Takes the next bytes.
    pub(crate) async fn feed(mut self, bytes: &Bytes) -> Result<RunningSha256> {
        if bytes.len() < OFF_THREAD_FROM_BYTES {
            self.add(bytes);
            return Ok(self);
        }
        let bytes = bytes.clone();
        super::blocking(move || {
            self.add(&bytes);
            Ok(self)
        })
        .await
    }

    /// The same on this thread.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The sum of all.
    pub(crate) fn sum(self) -> Sha256Sum {
        Sha256Sum(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_read_as_it_is_written() {
        // FIPS 180-2, appendix B.1.
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let sum = Sha256Sum::of(b"abc");
        assert_eq!(sum.to_string(), text);
        assert_eq!(text.parse::<Sha256Sum>().unwrap(), sum);
        let no_sums = [
            &text[1..],
            &text.to_uppercase(),
            &format!("{text}0"),
            &text.replace('b', "g"),
            &format!("{}é", &text[2..]),
            "",
        ];
        for no_sum in no_sums {
            assert!(no_sum.parse::<Sha256Sum>().is_err(), "{no_sum}");
        }
    }
}
