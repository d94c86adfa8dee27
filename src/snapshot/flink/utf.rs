//! Java's modified UTF-8, the one text encoding of the format.
//!
//! `DataOutputStream.writeUTF` encodes UTF-16 code units, not characters: NUL takes two bytes, and a
//! character beyond the basic plane is two surrogates of three bytes each. Not every such text is
//! valid Unicode, and not every accepted byte sequence is the one Java would write. [`Utf`] thus
//! keeps the bytes, so that an untouched text is written back as it was.

use std::borrow::Cow;
use std::fmt;

use crate::{Error, Result};

/// The longest text that fits into the format, in encoded bytes (a 16-bit length precedes it).
pub const MAX_UTF_BYTES: usize = u16::MAX as usize;

/// A text of the file: bytes that Java's `readUTF` accepts, borrowed from the file.
///
/// Equality is that of the bytes; two encodings of one text differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Utf<'a>(&'a [u8]);

impl<'a> Utf<'a> {
    /// Checks `bytes` by the rules of `DataInputStream.readUTF`.
    ///
    /// # Errors
    /// The position of the first byte that `readUTF` would refuse.
    pub(super) fn new(bytes: &'a [u8]) -> std::result::Result<Self, usize> {
        if !bytes.is_ascii() {
            check(bytes)?;
        }
        Ok(Utf(bytes))
    }

    /// The encoded bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// True for the empty text.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The text where it is valid Unicode; borrowed for plain ASCII.
    ///
    /// # Errors
    /// `Corrupt` where the text holds half a surrogate pair: Java has such strings, Rust and
    /// object stores don't.
    pub fn to_str(self) -> Result<Cow<'a, str>> {
        self.convert().map_err(|lossy| {
            Error::corrupt(format!(
                "the text {lossy:?} holds an unpaired surrogate and cannot be a Unicode string"
            ))
        })
    }

    /// The text, with U+FFFD in place of each unpaired surrogate. For messages and reports.
    pub fn to_str_lossy(self) -> Cow<'a, str> {
        self.convert().unwrap_or_else(Cow::Owned)
    }

    /// `Err` holds the text with replacements.
    fn convert(self) -> std::result::Result<Cow<'a, str>, String> {
        // Plain ASCII is the same in both encodings, even where Java would write NUL in two bytes.
        if self.0.is_ascii()
            && let Ok(text) = std::str::from_utf8(self.0)
        {
            return Ok(Cow::Borrowed(text));
        }
        let mut text = String::with_capacity(self.0.len());
        let mut whole = true;
        for unit in char::decode_utf16(Units(self.0)) {
            text.push(unit.unwrap_or_else(|_| {
                whole = false;
                char::REPLACEMENT_CHARACTER
            }));
        }
        if whole {
            Ok(Cow::Owned(text))
        } else {
            Err(text)
        }
    }

    /// The UTF-16 code units, as a Java string holds them.
    pub fn code_units(self) -> impl Iterator<Item = u16> + 'a {
        Units(self.0)
    }
}

impl fmt::Display for Utf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_str_lossy())
    }
}

impl fmt::Debug for Utf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_str_lossy())
    }
}

/// Finds the first byte that `readUTF` refuses. Overlong forms and a plain NUL pass, as in Java.
fn check(bytes: &[u8]) -> std::result::Result<(), usize> {
    let mut at = 0;
    while let Some(&lead) = bytes.get(at) {
        let more = match lead {
            0x00..=0x7F => 0,
            0xC0..=0xDF => 1,
            0xE0..=0xEF => 2,
            _ => return Err(at),
        };
        for next in at + 1..=at + more {
            match bytes.get(next) {
                Some(byte) if byte & 0xC0 == 0x80 => {}
                _ => return Err(at),
            }
        }
        at += more + 1;
    }
    Ok(())
}

/// Decodes checked bytes into UTF-16 code units.
struct Units<'a>(&'a [u8]);

impl Iterator for Units<'_> {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        let (unit, rest) = match *self.0 {
            [a @ 0x00..=0x7F, ref rest @ ..] => (u16::from(a), rest),
            [a @ 0xC0..=0xDF, b, ref rest @ ..] => {
                ((u16::from(a & 0x1F) << 6) | u16::from(b & 0x3F), rest)
            }
            [a, b, c, ref rest @ ..] => (
                (u16::from(a & 0x0F) << 12) | (u16::from(b & 0x3F) << 6) | u16::from(c & 0x3F),
                rest,
            ),
            _ => return None,
        };
        self.0 = rest;
        Some(unit)
    }
}

/// The bytes that Java's `writeUTF` makes of `text`, without the length.
///
/// # Errors
/// `Invalid` where they are more than [`MAX_UTF_BYTES`]: the format has no way to write them.
pub fn encode_utf(text: &str) -> Result<Cow<'_, [u8]>> {
    let encoded = if text.bytes().all(|b| matches!(b, 0x01..=0x7F)) {
        Cow::Borrowed(text.as_bytes())
    } else {
        let mut bytes = Vec::with_capacity(text.len() + text.len() / 2);
        for unit in text.encode_utf16() {
            let [high, low] = unit.to_be_bytes();
            match unit {
                0x01..=0x7F => bytes.push(low),
                0x00 | 0x80..=0x7FF => {
                    bytes.push(0xC0 | (high << 2) | (low >> 6));
                    bytes.push(0x80 | (low & 0x3F));
                }
                _ => {
                    bytes.push(0xE0 | (high >> 4));
                    bytes.push(0x80 | ((high & 0x0F) << 2) | (low >> 6));
                    bytes.push(0x80 | (low & 0x3F));
                }
            }
        }
        Cow::Owned(bytes)
    };
    if encoded.len() > MAX_UTF_BYTES {
        let start: String = text.chars().take(60).collect();
        return Err(Error::invalid(format!(
            "the text that starts with {start:?} takes {} bytes; Flink's metadata cannot hold more \
             than {MAX_UTF_BYTES}",
            encoded.len()
        )));
    }
    Ok(encoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn text(bytes: &[u8]) -> String {
        Utf::new(bytes).unwrap().to_str().unwrap().into_owned()
    }

    #[test]
    fn text_survives_encoding_and_decoding() {
        for sample in [
            "",
            "a",
            "\0",
            "é",
            "\u{7ff}",
            "\u{800}",
            "中",
            "\u{ffff}",
            "😀x\0é中",
        ] {
            let bytes = encode_utf(sample).unwrap();
            assert_eq!(text(&bytes), sample);
        }
    }

    #[test]
    fn nul_and_astral_characters_are_encoded_as_java_does() {
        assert_eq!(encode_utf("\0").unwrap().as_ref(), [0xC0, 0x80]);
        assert_eq!(
            encode_utf("😀").unwrap().as_ref(),
            [0xED, 0xA0, 0xBD, 0xED, 0xB8, 0x80]
        );
        assert_eq!(encode_utf("é").unwrap().as_ref(), [0xC3, 0xA9]);
    }

    #[test]
    fn what_read_utf_accepts_is_accepted() {
        assert_eq!(text(b"a\0b"), "a\0b");
        assert_eq!(text(&[0xC1, 0x81]), "A");
        assert_eq!(text(&[0xE0, 0x81, 0x81]), "A");
        assert_eq!(text(&[0xC0, 0x80, 0x00]), "\0\0");
    }

    #[test]
    fn what_read_utf_refuses_is_refused() {
        assert_eq!(Utf::new(&[b'a', 0x80]), Err(1));
        assert_eq!(Utf::new(&[0xF0, 0x9F, 0x98, 0x80]), Err(0));
        assert_eq!(Utf::new(&[0xC3]), Err(0));
        assert_eq!(Utf::new(&[0xC3, 0x41]), Err(0));
        assert_eq!(Utf::new(&[b'x', b'y', 0xE4, 0xB8]), Err(2));
        assert_eq!(Utf::new(&[0xE4, 0xB8, 0xC0]), Err(0));
        assert_eq!(Utf::new(&[0xFF]), Err(0));
    }

    #[test]
    fn half_a_surrogate_pair_is_no_strict_text() {
        let half = Utf::new(&[b'a', 0xED, 0xA0, 0x80, b'b']).unwrap();
        assert_eq!(half.to_str().unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(half.to_str_lossy(), "a\u{FFFD}b");
        assert_eq!(half.code_units().collect::<Vec<_>>(), [0x61, 0xD800, 0x62]);
    }

    #[test]
    fn the_limit_counts_encoded_bytes() {
        assert!(encode_utf(&"a".repeat(MAX_UTF_BYTES)).is_ok());
        assert!(encode_utf(&"a".repeat(MAX_UTF_BYTES + 1)).is_err());
        let error = encode_utf(&"\0".repeat(32_768)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("65536 bytes"), "{error}");
    }
}
