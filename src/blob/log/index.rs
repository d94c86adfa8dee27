//! What a log is made of, and what a publication has to send. Pure functions over plain data.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

use super::super::key::{Digest, DisplayName, LeaseId, ReceiverId, shortened};

/// Longest name of a log file, in bytes.
pub(super) const LONGEST_FILE_NAME: usize = 80;
/// The version of the index.
const INDEX_VERSION: u32 = 1;
/// An index larger than this is not read: 16 MiB.
pub(super) const LARGEST_INDEX: u64 = 16 << 20;
/// Bytes at the beginning and at the end of what was published that tell whether the file is still the same.
pub(super) const MARK_BYTES: u64 = 4096;
/// With so many small parts at the end they are merged.
const MOST_PARTS: usize = 64;

/// Which log: a node and the name of its file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogName {
    /// The node, such as a task manager's id.
    pub node: ReceiverId,
    file: String,
}

impl LogName {
    /// Checks and takes the name of a file.
    ///
    /// # Errors
    ///
    /// `Invalid` if it is empty, longer than 80 bytes, or holds control characters.
    pub fn new(node: ReceiverId, file: &str) -> Result<LogName> {
        if file.is_empty() || file.len() > LONGEST_FILE_NAME || file.contains(char::is_control) {
            return Err(
                Error::invalid(format!("`{}` is no name of a log", shortened(file))).hint(format!(
                    "it has 1 to {LONGEST_FILE_NAME} bytes without control characters"
                )),
            );
        }
        Ok(LogName {
            node,
            file: file.to_string(),
        })
    }

    /// The name of the file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The lease that holds its parts.
    pub(super) fn lease(&self) -> Result<LeaseId> {
        let digest = Digest::of(self.to_string().as_bytes());
        LeaseId::parse(&format!("log-{}", digest.hex()))
    }
}

impl fmt::Display for LogName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.file)
    }
}

/// The display name of an index: `log:<node>/<file>:<incarnation>.<revision>`.
pub(super) fn display(name: &LogName, index: &LogIndex) -> Result<DisplayName> {
    DisplayName::parse(&format!(
        "log:{name}:{}.{}",
        index.incarnation, index.revision
    ))
}

/// Reads what [`display`] gives; nothing for other blobs.
pub(super) fn parse_display(text: &str) -> Option<(LogName, u64, u64)> {
    let (name, version) = text.strip_prefix("log:")?.rsplit_once(':')?;
    let (node, file) = name.split_once('/')?;
    let (incarnation, revision) = version.split_once('.')?;
    let name = LogName::new(ReceiverId::parse(node).ok()?, file).ok()?;
    Some((name, incarnation.parse().ok()?, revision.parse().ok()?))
}

/// A part of a log: bytes `start..end` of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogPart {
    /// The first byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// What they are.
    pub digest: Digest,
}

/// A log at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogIndex {
    version: u32,
    /// Counts how often the file began anew: rotated, truncated, replaced.
    pub incarnation: u64,
    /// Counts publications.
    pub revision: u64,
    /// The parts, without gaps from byte 0 on.
    pub parts: Vec<LogPart>,
    /// The digest of the first bytes, up to 4 KiB.
    pub head: Digest,
    /// The digest of the last bytes, up to 4 KiB.
    pub tail: Digest,
}

impl LogIndex {
    /// The first publication of a file.
    pub(super) fn first(incarnation: u64, revision: u64) -> LogIndex {
        LogIndex {
            version: INDEX_VERSION,
            incarnation,
            revision,
            parts: Vec::new(),
            head: Digest::of(b""),
            tail: Digest::of(b""),
        }
    }

    /// The length of the log in bytes.
    pub fn length(&self) -> u64 {
        self.parts.last().map_or(0, |p| p.end)
    }

    /// Where the marks lie: the first and the last bytes of what was published.
    pub(super) fn marks(length: u64) -> (Range<u64>, Range<u64>) {
        (
            0..length.min(MARK_BYTES),
            length.saturating_sub(MARK_BYTES)..length,
        )
    }

    /// What a file of `length` bytes needs beyond this index, in ranges of at most `largest` bytes; and how many
    /// parts of this index stay. Its tail alone, unless there are too many small parts at the end: then they are
    /// sent anew as large ones.
    pub(super) fn missing(&self, length: u64, largest: u64) -> (usize, Vec<Range<u64>>) {
        let largest = largest.max(1);
        // Full ones have reached their final size.
        let small = |p: &&LogPart| p.end - p.start < largest;
        let small = self.parts.iter().rev().take_while(small).count();
        let kept = match small >= MOST_PARTS {
            true => self.parts.len() - small,
            false => self.parts.len(),
        };
        let from = self
            .parts
            .get(..kept)
            .and_then(<[_]>::last)
            .map_or(0, |p| p.end);
        let mut ranges = Vec::new();
        let mut start = from;
        while start < length {
            let end = start.saturating_add(largest).min(length);
            ranges.push(start..end);
            start = end;
        }
        (kept, ranges)
    }

    /// The parts that hold bytes of `range`.
    pub(super) fn covering(&self, range: &Range<u64>) -> &[LogPart] {
        let first = self.parts.partition_point(|p| p.end <= range.start);
        let last = self.parts.partition_point(|p| p.start < range.end);
        self.parts.get(first..last.max(first)).unwrap_or_default()
    }

    pub(super) fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|e| {
            Error::new(
                ErrorKind::Internal,
                format!("an index cannot be written: {e}"),
            )
        })
    }

    /// Reads an index and checks that it is one.
    pub(super) fn from_json(bytes: &[u8]) -> Result<LogIndex> {
        let damaged = |what: String| Error::corrupt(format!("the index of a log: {what}"));
        let index: LogIndex = serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
        if index.version != INDEX_VERSION {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("the index of a log has version {}", index.version),
            )
            .hint(format!(
                "this program reads version {INDEX_VERSION}: use a later one"
            )));
        }
        let mut at = 0;
        for part in &index.parts {
            if part.start != at || part.end <= at || part.digest.size != part.end - part.start {
                return Err(damaged(format!(
                    "the part at byte {} does not follow byte {at}",
                    part.start
                )));
            }
            at = part.end;
        }
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(sizes: &[u64]) -> LogIndex {
        let mut index = LogIndex::first(0, 0);
        let mut at = 0;
        for size in sizes {
            let digest = Digest {
                sha256: [7; 32],
                size: *size,
            };
            index.parts.push(LogPart {
                start: at,
                end: at + size,
                digest,
            });
            at += size;
        }
        index
    }

    #[test]
    fn a_log_that_grew_costs_its_tail_and_many_small_parts_become_one() {
        let missing = |index: &LogIndex, length, largest| {
            let (kept, ranges) = index.missing(length, largest);
            let ranges: Vec<_> = ranges.iter().map(|r| (r.start, r.end)).collect();
            (kept, ranges)
        };
        let three = vec![(0, 10), (10, 20), (20, 25)];
        assert_eq!(missing(&index(&[]), 25, 10), (0, three));
        let some = index(&[10, 10, 5]);
        assert_eq!(missing(&some, 26, 10), (3, vec![(25, 26)]));
        assert_eq!(missing(&some, 25, 10), (3, vec![]));
        let mut many = vec![100, 100];
        many.extend([1; 64]);
        assert_eq!(missing(&index(&many), 265, 100), (2, vec![(200, 265)]));
        many.pop();
        assert_eq!(missing(&index(&many), 265, 100), (65, vec![(263, 265)]));
        let full = index(&[100; 100]);
        assert_eq!(missing(&full, 10_001, 100), (100, vec![(10_000, 10_001)]));
    }

    #[test]
    fn the_parts_of_a_range_are_those_that_hold_its_bytes() {
        let index = index(&[10, 10, 5]);
        let starts = |range| {
            index
                .covering(&range)
                .iter()
                .map(|p| p.start)
                .collect::<Vec<_>>()
        };
        assert_eq!(starts(0..25), [0, 10, 20]);
        assert_eq!(starts(9..10), [0]);
        assert_eq!(starts(9..11), [0, 10]);
        assert_eq!(starts(24..25), [20]);
        assert!(starts(10..10).is_empty() && starts(25..30).is_empty());
    }

    #[test]
    fn an_index_with_a_gap_is_damaged_and_names_are_read_back() {
        let good = index(&[3, 4]);
        let bytes = good.to_json().unwrap_or_default();
        assert_eq!(LogIndex::from_json(&bytes).ok(), Some(good.clone()));
        let mut bad = good.clone();
        bad.parts.remove(0);
        assert!(LogIndex::from_json(&bad.to_json().unwrap_or_default()).is_err());
        assert!(LogIndex::from_json(b"{}").is_err());
        let node = ReceiverId::parse("tm-1").unwrap_or_else(|e| unreachable!("{e}"));
        for file in ["a.log", "a:1.log", "x/y:2.3"] {
            let name = LogName::new(node.clone(), file).unwrap_or_else(|e| unreachable!("{e}"));
            let shown = display(&name, &good)
                .map(|d| d.to_string())
                .unwrap_or_default();
            assert_eq!(parse_display(&shown), Some((name, 0, 0)), "{shown}");
        }
        assert_eq!(parse_display("log:tm-1/a.log"), None);
        assert!(LogName::new(node, "a\nb").is_err());
    }
}
