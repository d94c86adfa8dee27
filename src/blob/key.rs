//! Names of things: jobs, contents, physical objects, sessions, holders. Each is parsed into a type
//! before any path is built, and nothing that does not print back to the same text is accepted.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};
use crate::store::Sha256Sum;

/// Longest job id, cluster id or holder id, in bytes.
pub const LONGEST_ID: usize = 128;
/// Longest display name of a blob, in bytes.
pub const LONGEST_DISPLAY_NAME: usize = 255;
/// Files are read in pieces of this size, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// Lower case only: on a file system that ignores case two jobs must not share a folder.
fn check_id(what: &str, text: &str) -> Result<()> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let fine = !text.is_empty()
        && text.len() <= LONGEST_ID
        && text.bytes().all(|b| plain(b) || b == b'-' || b == b'_')
        && text.bytes().next().is_some_and(plain);
    match fine {
        true => Ok(()),
        false => Err(
            Error::invalid(format!("`{}` is no {what}", shortened(text))).hint(format!(
                "a {what} is 1 to {LONGEST_ID} lower-case letters, digits, `-` and `_`, the first a letter or digit"
            )),
        ),
    }
}

/// The start of a text that others wrote, for messages.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_string(),
    }
}

/// A number in decimal as `Display` writes it: no sign, no leading zeros.
pub(crate) fn canonical_number(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// 16 lower-case hex digits.
pub(crate) fn hex_u64(text: &str) -> Option<u64> {
    let number = u64::from_str_radix(text, 16).ok()?;
    (format!("{number:016x}") == text).then_some(number)
}

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// Checks and takes `text`.
            ///
            /// # Errors
            ///
            /// `Invalid` unless it is 1 to 128 lower-case letters, digits, `-` and `_`, the first a
            /// letter or digit.
            pub fn parse(text: &str) -> Result<Self> {
                check_id($what, text)?;
                Ok($name(text.to_string()))
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl_text!($name);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

/// `FromStr` and serde by `parse` and `Display`.
macro_rules! impl_text {
    ($name:ident) => {
        impl FromStr for $name {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self> {
                $name::parse(text)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
                $name::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

id_type!(
    /// The scope of blobs: a job, or whatever the caller chooses to end as a whole.
    JobId,
    "job id"
);
id_type!(
    /// One installation below a common prefix: it has one owner at a time.
    ClusterId,
    "cluster id"
);
id_type!(
    /// Who must acknowledge a message: a task manager's id.
    ReceiverId,
    "receiver id"
);
id_type!(
    /// A reference that a client holds for a limited time.
    LeaseId,
    "lease id"
);

/// What a blob is: SHA-256 and size. Two blobs of one job with equal digests are the same blob.
///
/// Printed as `<64 hex digits>-<bytes>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest {
    /// The SHA-256 of the bytes.
    pub sha256: [u8; 32],
    /// The number of bytes.
    pub size: u64,
}

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Digest {
        let mut digester = Digester::default();
        digester.update(bytes);
        digester.finish()
    }

    /// The digest of all that `from` gives: a file, say. It blocks, and has 1 MiB in memory.
    ///
    /// # Errors
    ///
    /// What reading gives.
    pub fn read(mut from: impl Read) -> io::Result<Digest> {
        let mut digester = Digester::default();
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match from.read(&mut piece) {
                Ok(0) => return Ok(digester.finish()),
                Ok(n) => digester.update(piece.get(..n).unwrap_or_default()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Reads what `Display` writes.
    ///
    /// # Errors
    ///
    /// `Invalid` for anything else: upper-case digits, signs, leading zeros, other lengths.
    pub fn parse(text: &str) -> Result<Digest> {
        let bad = || {
            Error::invalid(format!("`{}` is no digest of a blob", shortened(text)))
                .hint("a digest is the SHA-256 in 64 lower-case hex digits, `-`, the size in bytes")
        };
        let (hex, size) = text.split_once('-').ok_or_else(bad)?;
        Ok(Digest {
            sha256: parse_sha256(hex).ok_or_else(bad)?,
            size: canonical_number(size).ok_or_else(bad)?,
        })
    }

    /// The blob without bytes: always there, never transferred.
    pub fn is_empty_blob(&self) -> bool {
        *self == Digest::of(b"")
    }

    /// The SHA-256 in lower-case hex digits.
    pub fn hex(&self) -> String {
        hex(&self.sha256)
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// 64 lower-case hex digits.
pub(crate) fn parse_sha256(text: &str) -> Option<[u8; 32]> {
    text.parse().ok().map(Sha256Sum::bytes)
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.hex(), self.size)
    }
}

impl_text!(Digest);

/// Computes a [`Digest`] while bytes stream by.
#[derive(Debug, Clone, Default)]
pub struct Digester {
    hasher: Sha256,
    size: u64,
}

impl Digester {
    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.size += bytes.len() as u64;
    }

    /// The digest of all bytes taken.
    pub fn finish(self) -> Digest {
        Digest {
            sha256: self.hasher.finalize().into(),
            size: self.size,
        }
    }
}

/// What a caller asks for: a content within a job.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlobKey {
    /// The job.
    pub job: JobId,
    /// The content.
    pub digest: Digest,
}

impl fmt::Display for BlobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.job, self.digest)
    }
}

/// The name of one physical object in the HA store: written once and never used again, so that a
/// delete that comes late hits nothing new.
///
/// Printed as `<digest>.<epoch>-<16 hex digits>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    /// What it holds.
    pub digest: Digest,
    /// The epoch of the owner that wrote it.
    pub epoch: u64,
    /// 64 random bits.
    pub random: u64,
}

impl ObjectName {
    /// Reads what `Display` writes.
    ///
    /// # Errors
    ///
    /// `Invalid` for anything else.
    pub fn parse(text: &str) -> Result<ObjectName> {
        let bad = || {
            Error::invalid(format!(
                "`{}` is no name of a blob's object",
                shortened(text)
            ))
            .hint("such a name is a digest, `.`, the owner's epoch, `-`, 16 hex digits")
        };
        let (digest, rest) = text.split_once('.').ok_or_else(bad)?;
        let (epoch, random) = rest.split_once('-').ok_or_else(bad)?;
        Ok(ObjectName {
            digest: Digest::parse(digest).map_err(|_| bad())?,
            epoch: canonical_number(epoch).ok_or_else(bad)?,
            random: hex_u64(random).ok_or_else(bad)?,
        })
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}-{:016x}", self.digest, self.epoch, self.random)
    }
}

impl_text!(ObjectName);

/// One batch of uploads: 64 random bits, chosen by whoever begins it. Printed as 16 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

impl SessionId {
    /// Reads what `Display` writes.
    ///
    /// # Errors
    ///
    /// `Invalid` for anything but 16 lower-case hex digits.
    pub fn parse(text: &str) -> Result<SessionId> {
        hex_u64(text).map(SessionId).ok_or_else(|| {
            Error::invalid(format!("`{}` is no session id", shortened(text)))
                .hint("a session id is 16 lower-case hex digits")
        })
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl_text!(SessionId);

/// The name people know a blob by, such as `job.jar`. It is shown and never part of a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DisplayName(String);

impl DisplayName {
    /// Checks and takes `text`.
    ///
    /// # Errors
    ///
    /// `Invalid` if it is empty, longer than 255 bytes, or holds control characters.
    pub fn parse(text: &str) -> Result<DisplayName> {
        if text.is_empty() || text.len() > LONGEST_DISPLAY_NAME || text.contains(char::is_control) {
            return Err(
                Error::invalid(format!("`{}` is no display name", shortened(text)))
                    .hint("a display name is 1 to 255 bytes without control characters"),
            );
        }
        Ok(DisplayName(text.to_string()))
    }
}

impl fmt::Display for DisplayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl_text!(DisplayName);

/// A moment: milliseconds on the clock of whoever passes it. Nothing in this module reads a clock.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Moment(pub u64);

impl Moment {
    /// `time` later; the end of time if that does not fit.
    #[must_use]
    pub fn after(self, time: std::time::Duration) -> Moment {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_add(millis))
    }
}
