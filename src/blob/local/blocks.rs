//! Digests of a file's blocks, so that any part of it can be checked before it is sent, and not only the
//! whole after it was.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use super::super::key::{Digest, Digester};

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: u64 = 128 * 1024;

/// What times of comparisons count from.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

/// When a block was compared last, and when the file had been touched last by then.
#[derive(Debug, Default)]
struct Compared {
    /// Milliseconds; 0: never.
    at: AtomicU64,
    touched_seconds: AtomicI64,
    touched_nanoseconds: AtomicI64,
}

/// The digest of each block of a file whose digest as a whole was right when they were taken.
#[derive(Debug)]
pub(crate) struct Blocks {
    size: u64,
    digests: Vec<[u8; 32]>,
    compared: Vec<Compared>,
}

impl PartialEq for Blocks {
    fn eq(&self, other: &Blocks) -> bool {
        (self.size, &self.digests) == (other.size, &other.digests)
    }
}

impl Blocks {
    /// Where block `number` lies; empty behind the end.
    pub(crate) fn range(&self, number: u64) -> std::ops::Range<u64> {
        let start = number.saturating_mul(BLOCK_BYTES).min(self.size);
        start..start.saturating_add(BLOCK_BYTES).min(self.size)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.digests.len() as u64
    }

    /// True if the block was compared not longer than `trust` ago, and the file has not been touched since.
    pub(crate) fn is_trusted(&self, number: u64, touched: (i64, i64), trust: Duration) -> bool {
        let compared = usize::try_from(number)
            .ok()
            .and_then(|n| self.compared.get(n));
        let Some(compared) = compared.filter(|_| !trust.is_zero()) else {
            return false;
        };
        let at = compared.at.load(Ordering::Acquire);
        let then = (
            compared.touched_seconds.load(Ordering::Relaxed),
            compared.touched_nanoseconds.load(Ordering::Relaxed),
        );
        let age = millis().checked_sub(at);
        at > 0 && then == touched && age.is_some_and(|a| u128::from(a) < trust.as_millis())
    }

    /// The block has just been compared, in a file that was touched last at this time.
    pub(crate) fn compared(&self, number: u64, touched: (i64, i64)) {
        let compared = usize::try_from(number)
            .ok()
            .and_then(|n| self.compared.get(n));
        if let Some(compared) = compared {
            // Not to be trusted while it changes.
            compared.at.store(0, Ordering::Release);
            compared.touched_seconds.store(touched.0, Ordering::Relaxed);
            compared
                .touched_nanoseconds
                .store(touched.1, Ordering::Relaxed);
            compared.at.store(millis(), Ordering::Release);
        }
    }

    /// True if `bytes` are block `number`.
    pub(crate) fn fits(&self, number: u64, bytes: &[u8]) -> bool {
        let expected = usize::try_from(number)
            .ok()
            .and_then(|n| self.digests.get(n));
        expected.is_some_and(|e| Sha256::digest(bytes)[..] == e[..])
    }
}

/// Never 0.
fn millis() -> u64 {
    let millis = u64::try_from(BEGINNING.elapsed().as_millis());
    millis.unwrap_or(u64::MAX).saturating_add(1)
}

/// Computes the digest of a whole and of its blocks while bytes stream by.
#[derive(Debug, Default)]
pub(crate) struct BlockDigester {
    whole: Digester,
    block: Sha256,
    in_block: u64,
    size: u64,
    digests: Vec<[u8; 32]>,
}

impl BlockDigester {
    /// Takes the next bytes.
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        self.whole.update(bytes);
        self.size = self.size.saturating_add(bytes.len() as u64);
        while !bytes.is_empty() {
            let room = usize::try_from(BLOCK_BYTES - self.in_block).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.block.update(now);
            self.in_block += now.len() as u64;
            if self.in_block == BLOCK_BYTES {
                self.end_block();
            }
            bytes = later;
        }
    }

    fn end_block(&mut self) {
        let digest = std::mem::take(&mut self.block).finalize();
        self.digests.push(digest.into());
        self.in_block = 0;
    }

    /// The digest of all bytes taken, and those of the blocks.
    pub(crate) fn finish(mut self) -> (Digest, Blocks) {
        if self.in_block > 0 {
            self.end_block();
        }
        let mut compared = Vec::new();
        compared.resize_with(self.digests.len(), Compared::default);
        let blocks = Blocks {
            size: self.size,
            digests: self.digests,
            compared,
        };
        (self.whole.finish(), blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_the_same_however_the_bytes_come() {
        let bytes: Vec<u8> = (0..BLOCK_BYTES * 2 + 17).map(|n| (n % 251) as u8).collect();
        let digest = |step: usize| {
            let mut digester = BlockDigester::default();
            bytes.chunks(step).for_each(|c| digester.update(c));
            digester.finish()
        };
        let (whole, blocks) = digest(bytes.len());
        assert!(digest(1000) == (whole, digest(7777).1));
        assert_eq!(whole, Digest::of(&bytes));
        assert_eq!(blocks.count(), 3);
        for number in 0..3 {
            let range = blocks.range(number);
            let (start, end) = (range.start as usize, range.end as usize);
            assert!(blocks.fits(number, &bytes[start..end]));
            let mut other = bytes[start..end].to_vec();
            other[0] ^= 1;
            assert!(!blocks.fits(number, &other));
        }
        assert!(blocks.range(3).is_empty());
        assert!(!blocks.fits(3, b""));
        assert_eq!(BlockDigester::default().finish().1.count(), 0);
    }

    #[test]
    fn a_block_is_trusted_for_a_while_and_only_untouched() {
        let mut digester = BlockDigester::default();
        digester.update(b"abc");
        let blocks = digester.finish().1;
        let minute = Duration::from_secs(60);
        assert!(!blocks.is_trusted(0, (1, 1), minute));
        blocks.compared(0, (1, 1));
        assert!(blocks.is_trusted(0, (1, 1), minute));
        assert!(!blocks.is_trusted(0, (1, 2), minute));
        assert!(!blocks.is_trusted(0, (1, 1), Duration::ZERO));
        assert!(!blocks.is_trusted(1, (1, 1), minute));
        std::thread::sleep(Duration::from_millis(5));
        assert!(!blocks.is_trusted(0, (1, 1), Duration::from_millis(2)));
    }
}
