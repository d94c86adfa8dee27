//! Reads the primitives of the format from a byte slice, and never past its end.
//!
//! Every error names the byte where it stands and what was being read. Counts are believed only as
//! far as the bytes for their elements are there, so that damage cannot make us allocate much more
//! than the file is long.

use super::utf::Utf;
use crate::{Error, Result};

/// How deep handles may contain handles. Real files nest four levels; Flink's own reader
/// overflows its stack near 2500.
pub(super) const MAX_DEPTH: usize = 64;

/// A position in the file.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Bytes that the elements still to come of the open lists need at the least. Without this,
    /// nested lists could each claim all the bytes that are left.
    claimed: usize,
    depth: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Cursor {
            bytes,
            at: 0,
            claimed: 0,
            depth: 0,
        }
    }

    /// The offset of the next byte.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    /// All bytes that were not read yet; does not move.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    pub(super) fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8]> {
        match self.rest().get(..n) {
            Some(taken) => {
                self.at += n;
                Ok(taken)
            }
            None => Err(self.end_of_file(n, what)),
        }
    }

    #[cold]
    fn end_of_file(&self, wanted: usize, what: &str) -> Error {
        Error::corrupt(format!(
            "unexpected end of file at byte {} while reading {what}: {wanted} bytes wanted, {} left",
            self.at,
            self.left()
        ))
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        match self.rest().first_chunk::<N>() {
            Some(taken) => {
                self.at += N;
                Ok(*taken)
            }
            None => Err(self.end_of_file(N, what)),
        }
    }

    pub(super) fn u8(&mut self, what: &str) -> Result<u8> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self, what: &str) -> Result<u16> {
        self.array(what).map(u16::from_be_bytes)
    }

    pub(super) fn i32(&mut self, what: &str) -> Result<i32> {
        self.array(what).map(i32::from_be_bytes)
    }

    pub(super) fn i64(&mut self, what: &str) -> Result<i64> {
        self.array(what).map(i64::from_be_bytes)
    }

    pub(super) fn id(&mut self, what: &str) -> Result<[u8; 16]> {
        self.array(what)
    }

    pub(super) fn utf(&mut self, what: &str) -> Result<Utf<'a>> {
        let len = self.u16(what)?;
        let start = self.at;
        let bytes = self.take(usize::from(len), what)?;
        Utf::new(bytes).map_err(|bad| {
            Error::corrupt(format!(
                "malformed modified UTF-8 at byte {} while reading {what}",
                start + bad
            ))
        })
    }

    pub(super) fn blob(&mut self, what: &str) -> Result<&'a [u8]> {
        let at = self.at;
        let len = self.i32(what)?;
        match usize::try_from(len) {
            Ok(len) => self.take(len, what),
            Err(_) => Err(corrupt(at, format_args!("negative length {len} of {what}"))),
        }
    }

    /// Reads the count of a list whose elements take at least `smallest` bytes each, and claims
    /// those bytes. The caller then calls [`Cursor::element`] before each element.
    pub(super) fn count(&mut self, smallest: usize, what: &str) -> Result<usize> {
        let at = self.at;
        let count = self.i32(what)?;
        self.believe(count, smallest, at, what)
    }

    /// Checks a `count` that was read at byte `at`, and claims the bytes of its elements.
    pub(super) fn believe(
        &mut self,
        count: i32,
        smallest: usize,
        at: usize,
        what: &str,
    ) -> Result<usize> {
        let Ok(elements) = usize::try_from(count) else {
            return Err(corrupt(
                at,
                format_args!("negative number {count} of {what}"),
            ));
        };
        let free = self.left().saturating_sub(self.claimed);
        match elements.checked_mul(smallest) {
            Some(least) if least <= free => {
                self.claimed += least;
                Ok(elements)
            }
            _ => Err(corrupt(
                at,
                format_args!(
                    "{count} {what} of at least {smallest} bytes each do not fit into the {free} \
                     bytes that are left for them"
                ),
            )),
        }
    }

    /// Gives the claim of one list element back, as the element is now read.
    pub(super) fn element(&mut self, smallest: usize) {
        self.claimed = self.claimed.saturating_sub(smallest);
    }

    /// Reads a list of `count` elements of one width as raw bytes.
    pub(super) fn raw_list(&mut self, count: usize, width: usize, what: &str) -> Result<&'a [u8]> {
        self.take(count.saturating_mul(width), what)
    }

    /// Enters one level of nesting; [`Cursor::leave`] ends it.
    pub(super) fn enter(&mut self) -> Result<()> {
        if self.depth >= MAX_DEPTH {
            return Err(corrupt(
                self.at,
                format_args!("handles are nested deeper than {MAX_DEPTH} levels"),
            ));
        }
        self.depth += 1;
        Ok(())
    }

    pub(super) fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }
}

/// A `Corrupt` error about the byte at offset `at`.
#[cold]
pub(super) fn corrupt(at: usize, message: std::fmt::Arguments<'_>) -> Error {
    Error::corrupt(format!("{message} at byte {at}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_reported_with_place_and_purpose() {
        let mut cursor = Cursor::new(&[0, 0, 0, 7, 1, 2]);
        assert_eq!(cursor.i32("a number").unwrap(), 7);
        let error = cursor.i64("the size of a file handle").unwrap_err();
        assert_eq!(
            error.message(),
            "unexpected end of file at byte 4 while reading the size of a file handle: 8 bytes \
             wanted, 2 left"
        );
    }

    #[test]
    fn nested_lists_cannot_claim_the_same_bytes() {
        let bytes = [0, 0, 0, 10, 0, 0, 0, 10, 9, 9, 9, 9, 9, 9, 9, 9];
        let mut cursor = Cursor::new(&bytes);
        assert_eq!(cursor.count(1, "outer elements").unwrap(), 10);
        cursor.element(1);
        // Eight bytes are left, but nine elements of the outer list wait for them.
        assert!(cursor.count(1, "inner elements").is_err());
    }

    #[test]
    fn lengths_and_counts_may_not_be_negative() {
        let bytes = [0xFF; 4];
        assert!(Cursor::new(&bytes).blob("data").is_err());
        assert!(Cursor::new(&bytes).count(0, "things").is_err());
    }

    #[test]
    fn nesting_is_limited() {
        let mut cursor = Cursor::new(&[]);
        for _ in 0..MAX_DEPTH {
            cursor.enter().unwrap();
        }
        assert!(cursor.enter().is_err());
        cursor.leave();
        assert!(cursor.enter().is_ok());
    }
}
