//! Contents of objects that need no memory: bytes are a function of a seed and a position.
//!
//! A copied object keeps seed and positions, so a copy of 64 GiB in parts is recognised as equal to
//! its source by comparing a few numbers. A client that reads such bytes and writes them back is
//! recognised too. Everything else that clients write is kept as it came.

use std::ops::Range;

use bytes::Bytes;
use md5::{Digest, Md5};

/// Bytes come in blocks of this size: seed and block number, little endian.
const BLOCK: u64 = 16;
/// Shorter bodies are kept as they are: too little to recognise a seed by.
const RECOGNISED_FROM_BYTES: usize = 64;
/// Up to this size the digest is the true MD5 of the bytes, above it one of their description.
pub const TRUE_MD5_UP_TO_BYTES: u64 = 32 * 1024 * 1024;

/// A run of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Virtual { seed: u64, offset: u64, len: u64 },
    Real(Bytes),
}

impl Piece {
    fn len(&self) -> u64 {
        match self {
            Piece::Virtual { len, .. } => *len,
            Piece::Real(bytes) => bytes.len() as u64,
        }
    }

    fn slice(&self, range: Range<u64>) -> Piece {
        match self {
            Piece::Virtual { seed, offset, .. } => Piece::Virtual {
                seed: *seed,
                offset: offset + range.start,
                len: range.end - range.start,
            },
            Piece::Real(bytes) => {
                Piece::Real(bytes.slice(range.start as usize..range.end as usize))
            }
        }
    }

    fn write_into(&self, out: &mut Vec<u8>) {
        match self {
            Piece::Virtual { seed, offset, len } => generate(*seed, *offset, *len, out),
            Piece::Real(bytes) => out.extend_from_slice(bytes),
        }
    }
}

/// The bytes of an object, as pieces that follow each other.
#[derive(Debug, Clone, Default)]
pub struct Content {
    pieces: Vec<Piece>,
    len: u64,
}

impl Content {
    /// `len` bytes that `seed` describes.
    pub fn of_seed(seed: u64, len: u64) -> Content {
        let mut content = Content::default();
        content.push(Piece::Virtual {
            seed,
            offset: 0,
            len,
        });
        content
    }

    /// What a client wrote. Bytes that were read from a content of a seed are recognised.
    pub fn of_bytes(bytes: Bytes) -> Content {
        let mut content = Content::default();
        content.push(recognise(&bytes).unwrap_or(Piece::Real(bytes)));
        content
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// How many runs describe the bytes: one for a whole copy of an object made from a seed.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// How many bytes are held in memory for it.
    pub fn real_bytes(&self) -> u64 {
        let real = |p: &Piece| matches!(p, Piece::Real(_)).then(|| p.len());
        self.pieces.iter().filter_map(real).sum()
    }

    fn push(&mut self, piece: Piece) {
        let added = piece.len();
        if added == 0 {
            return;
        }
        self.len += added;
        if let Some(Piece::Virtual { seed, offset, len }) = self.pieces.last_mut() {
            let continues = match &piece {
                Piece::Virtual {
                    seed: s, offset: o, ..
                } => s == seed && *o == *offset + *len,
                // The short last part of what a client read and wrote back.
                Piece::Real(bytes) if bytes.len() < RECOGNISED_FROM_BYTES => {
                    let mut expected = Vec::new();
                    generate(*seed, *offset + *len, added, &mut expected);
                    expected == *bytes
                }
                Piece::Real(_) => false,
            };
            if continues {
                *len += added;
                return;
            }
        }
        self.pieces.push(piece);
    }

    /// Adds the bytes of `other` at the end.
    pub fn append(&mut self, other: &Content) {
        for piece in &other.pieces {
            self.push(piece.clone());
        }
    }

    /// Part of the bytes. `range` must lie inside.
    pub fn slice(&self, range: Range<u64>) -> Content {
        let mut out = Content::default();
        let mut start = 0;
        for piece in &self.pieces {
            let end = start + piece.len();
            let (a, b) = (range.start.max(start), range.end.min(end));
            if a < b {
                out.push(piece.slice(a - start..b - start));
            }
            start = end;
        }
        out
    }

    /// Part of the bytes themselves.
    pub fn read(&self, range: Range<u64>) -> Bytes {
        let part = self.slice(range);
        if let [Piece::Real(bytes)] = &part.pieces[..] {
            return bytes.clone();
        }
        let mut out = Vec::with_capacity(part.len as usize);
        for piece in &part.pieces {
            piece.write_into(&mut out);
        }
        out.into()
    }

    /// Sixteen bytes that equal contents share, however they were put together.
    pub fn digest(&self) -> [u8; 16] {
        let mut md5 = Md5::new();
        if self.len <= TRUE_MD5_UP_TO_BYTES {
            md5.update(self.read(0..self.len));
            return md5.finalize().into();
        }
        for piece in &self.pieces {
            match piece {
                Piece::Virtual { seed, offset, len } => {
                    for number in [seed, offset, len] {
                        md5.update(number.to_le_bytes());
                    }
                }
                Piece::Real(bytes) => md5.update(bytes),
            }
        }
        md5.finalize().into()
    }
}

/// Equal bytes, however they are put together.
impl PartialEq for Content {
    fn eq(&self, other: &Content) -> bool {
        if self.len != other.len {
            return false;
        }
        if self.pieces == other.pieces {
            return true;
        }
        let (mut mine, mut theirs) = (self.pieces.iter(), other.pieces.iter());
        let (mut a, mut b) = (mine.next().cloned(), theirs.next().cloned());
        while let (Some(x), Some(y)) = (&a, &b) {
            let step = x.len().min(y.len());
            if !same_bytes(&x.slice(0..step), &y.slice(0..step)) {
                return false;
            }
            let rest = |p: &Piece| (p.len() > step).then(|| p.slice(step..p.len()));
            let (x, y) = (rest(x), rest(y));
            a = x.or_else(|| mine.next().cloned());
            b = y.or_else(|| theirs.next().cloned());
        }
        true
    }
}

/// Two pieces of one length.
fn same_bytes(x: &Piece, y: &Piece) -> bool {
    match (x, y) {
        (a, b) if a == b => true,
        // Blocks name seed and position: long runs that differ in these differ in bytes.
        (Piece::Virtual { len, .. }, Piece::Virtual { .. }) if *len >= 2 * BLOCK => false,
        _ => {
            let (mut a, mut b) = (Vec::new(), Vec::new());
            x.write_into(&mut a);
            y.write_into(&mut b);
            a == b
        }
    }
}

fn generate(seed: u64, offset: u64, len: u64, out: &mut Vec<u8>) {
    let (start, end) = (out.len(), offset + len);
    let skipped = (offset % BLOCK) as usize;
    out.reserve(len as usize + 2 * BLOCK as usize);
    for block in offset / BLOCK..end.div_ceil(BLOCK) {
        out.extend_from_slice(&seed.to_le_bytes());
        out.extend_from_slice(&block.to_le_bytes());
    }
    if skipped > 0 {
        out.drain(start..start + skipped);
    }
    out.truncate(start + len as usize);
}

/// The seed and position that `bytes` were generated from.
fn recognise(bytes: &[u8]) -> Option<Piece> {
    if bytes.len() < RECOGNISED_FROM_BYTES {
        return None;
    }
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    for shift in 0..BLOCK as usize {
        let (seed, block) = (number(shift)?, number(shift + 8)?);
        let Some(offset) = block
            .checked_mul(BLOCK)
            .and_then(|o| o.checked_sub(shift as u64))
        else {
            continue;
        };
        if offset.checked_add(bytes.len() as u64 + BLOCK).is_none() {
            continue;
        }
        // The next block first: a wrong guess should cost little.
        if number(shift + 16)? != seed || number(shift + 24)? != block + 1 {
            continue;
        }
        let mut expected = Vec::new();
        generate(seed, offset, bytes.len() as u64, &mut expected);
        if expected == bytes {
            return Some(Piece::Virtual {
                seed,
                offset,
                len: bytes.len() as u64,
            });
        }
    }
    None
}
