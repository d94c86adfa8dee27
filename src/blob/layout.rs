//! Where things lie: in the HA store below `prefix/cluster id/`, and in the local directory. Paths
//! are printed from types and parsed back strictly: a name that does not print to the very text it
//! was read from is not ours, so that no `..`, no other case and no encoding gets through.

use std::fmt;

use crate::error::{Error, Result};

use super::key::{Digest, JobId, ObjectName, hex, hex_u64, parse_sha256, shortened};
use super::lifecycle::Class;

/// The version of the layout, in `format.json` and in the local `VERSION`.
pub const LAYOUT_VERSION: u32 = 1;

/// An object in the HA store, relative to the cluster's folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StorePath {
    /// `format.json`: version of the layout and digest algorithm.
    Format,
    /// `epoch/<20 digits>.json`: created once; the largest number is the owner.
    Epoch(u64),
    /// `jobs/<job>/manifest/<20 digits>.json`: created once; the largest number is the truth.
    Manifest(JobId, u64),
    /// `jobs/<job>/retained/<object name>` or `jobs/<job>/recreatable/<object name>`.
    Object(JobId, Class, ObjectName),
}

/// 20 digits and `.json`.
fn numbered(text: &str) -> Option<u64> {
    let digits = text.strip_suffix(".json")?;
    let number: u64 = digits.parse().ok()?;
    (format!("{number:020}") == digits).then_some(number)
}

impl StorePath {
    /// Reads what `Display` writes.
    ///
    /// # Errors
    ///
    /// `Invalid` for anything else, with the name.
    pub fn parse(text: &str) -> Result<StorePath> {
        Self::read(text).filter(|p| p.to_string() == text).ok_or_else(|| {
            Error::invalid(format!("`{}` is no name of the blob store", shortened(text)))
                .hint("nothing else may lie below the cluster's folder; move it away, it is left alone")
        })
    }

    fn read(text: &str) -> Option<StorePath> {
        let parts: Vec<&str> = text.split('/').collect();
        Some(match parts.as_slice() {
            ["format.json"] => StorePath::Format,
            ["epoch", number] => StorePath::Epoch(numbered(number)?),
            ["jobs", job, "manifest", number] => {
                StorePath::Manifest(JobId::parse(job).ok()?, numbered(number)?)
            }
            ["jobs", job, class, name] => StorePath::Object(
                JobId::parse(job).ok()?,
                Class::parse(class)?,
                ObjectName::parse(name).ok()?,
            ),
            _ => return None,
        })
    }
}

impl fmt::Display for StorePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StorePath::Format => f.write_str("format.json"),
            StorePath::Epoch(number) => write!(f, "epoch/{number:020}.json"),
            StorePath::Manifest(job, number) => {
                write!(f, "jobs/{job}/manifest/{number:020}.json")
            }
            StorePath::Object(job, class, name) => {
                write!(f, "jobs/{job}/{}/{name}", class.as_str())
            }
        }
    }
}

/// A file in the local directory, relative to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LocalPath {
    /// `LOCK`: keeps a second process out.
    Lock,
    /// `VERSION`.
    Version,
    /// `HA`: the HA folders on local disk that were used with it, one a line.
    HaFolders,
    /// `tmp/<16 hex digits>.part`: bytes under way; wiped at start.
    Part(u64),
    /// `jobs/<job>/<2 hex digits>/<digest>`: complete and verified when it was published.
    Blob(JobId, Digest),
    /// `trash/<16 hex digits>`: on its way out; wiped at start.
    Trash(u64),
    /// `quarantine/<SHA-256>.<milliseconds>`: a damaged copy that was moved away.
    Quarantine([u8; 32], u64),
}

impl LocalPath {
    /// Reads what `Display` writes.
    ///
    /// # Errors
    ///
    /// `Invalid` for anything else, with the name.
    pub fn parse(text: &str) -> Result<LocalPath> {
        Self::read(text)
            .filter(|p| p.to_string() == text)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "`{}` is no name of the local blob directory",
                    shortened(text)
                ))
                .hint("nothing else may lie in this directory; move it away, it is left alone")
            })
    }

    fn read(text: &str) -> Option<LocalPath> {
        let parts: Vec<&str> = text.split('/').collect();
        Some(match parts.as_slice() {
            ["LOCK"] => LocalPath::Lock,
            ["VERSION"] => LocalPath::Version,
            ["HA"] => LocalPath::HaFolders,
            ["tmp", name] => LocalPath::Part(hex_u64(name.strip_suffix(".part")?)?),
            ["trash", name] => LocalPath::Trash(hex_u64(name)?),
            ["jobs", job, _, name] => {
                LocalPath::Blob(JobId::parse(job).ok()?, Digest::parse(name).ok()?)
            }
            ["quarantine", name] => {
                let (sha256, time) = name.split_once('.')?;
                LocalPath::Quarantine(parse_sha256(sha256)?, time.parse().ok()?)
            }
            _ => return None,
        })
    }

    /// True for what a start may remove unseen: parts and trash.
    pub fn is_wiped_at_start(&self) -> bool {
        matches!(self, LocalPath::Part(_) | LocalPath::Trash(_))
    }
}

impl fmt::Display for LocalPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LocalPath::Lock => f.write_str("LOCK"),
            LocalPath::Version => f.write_str("VERSION"),
            LocalPath::HaFolders => f.write_str("HA"),
            LocalPath::Part(random) => write!(f, "tmp/{random:016x}.part"),
            LocalPath::Blob(job, digest) => {
                write!(f, "jobs/{job}/{:02x}/{digest}", digest.sha256[0])
            }
            LocalPath::Trash(random) => write!(f, "trash/{random:016x}"),
            LocalPath::Quarantine(sha256, time) => {
                write!(f, "quarantine/{}.{time}", hex(sha256))
            }
        }
    }
}
