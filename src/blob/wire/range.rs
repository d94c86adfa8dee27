//! One range of bytes, as RFC 9110 (14.1 to 14.4) writes it.

use std::fmt;

/// Longest header value that is looked at, in bytes.
const LONGEST_VALUE: usize = 128;

/// Bytes `start..end` of a blob of `size` bytes; never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// The first byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// The size of the whole.
    pub size: u64,
}

/// What a `Range` header asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Asked {
    /// The whole: no header, another unit, several ranges, or no valid header. All of these may be
    /// ignored.
    Whole,
    /// One range.
    Part(ByteRange),
    /// A range that begins at or after the end: `416`.
    Unsatisfiable,
}

fn digits(text: &str) -> Option<u64> {
    let fine = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    // More digits than fit: farther than any blob reaches.
    fine.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Reads the value of a `Range` header for a blob of `size` bytes.
pub fn parse_range(value: Option<&str>, size: u64) -> Asked {
    let Some(value) = value.filter(|v| v.len() <= LONGEST_VALUE) else {
        return Asked::Whole;
    };
    let Some((unit, spec)) = value.split_once('=') else {
        return Asked::Whole;
    };
    let Some((first, last)) = spec.trim_matches([' ', '\t']).split_once('-') else {
        return Asked::Whole;
    };
    if !unit.eq_ignore_ascii_case("bytes") {
        return Asked::Whole;
    }
    let (start, end) = match (digits(first), digits(last)) {
        (Some(first), None) if last.is_empty() => (first, size),
        (Some(first), Some(last)) if first <= last => (first, last.saturating_add(1).min(size)),
        // The last bytes.
        (None, Some(0)) if first.is_empty() => return Asked::Unsatisfiable,
        (None, Some(count)) if first.is_empty() => (size.saturating_sub(count), size),
        _ => return Asked::Whole,
    };
    match start < size {
        true => Asked::Part(ByteRange { start, end, size }),
        false => Asked::Unsatisfiable,
    }
}

impl ByteRange {
    /// The value of the `Range` header that asks for it.
    pub fn header(&self) -> String {
        format!("bytes={}-{}", self.start, self.end.saturating_sub(1))
    }

    /// The number of bytes.
    pub fn length(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Reads the value of a `Content-Range` header with a known size; nothing for anything else.
    pub fn parse_content_range(value: &str) -> Option<ByteRange> {
        let value = Some(value).filter(|v| v.len() <= LONGEST_VALUE)?;
        let (range, size) = value.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let (start, last, size) = (digits(first)?, digits(last)?, digits(size)?);
        (start <= last && last < size).then(|| ByteRange {
            start,
            end: last + 1,
            size,
        })
    }
}

/// The value of the `Content-Range` header.
impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.end.saturating_sub(1);
        write!(f, "bytes {}-{last}/{}", self.start, self.size)
    }
}
