//! Reading a copy by runs of blocks, each compared before any of it is handed out.

use std::io::ErrorKind as ErrorOf;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::error::{Error, ErrorKind, Result};

use super::{Copy, io_error, is_medium};

/// When a file was changed last, which nobody can set: seconds and nanoseconds.
type Touched = (i64, i64);

impl Copy {
    /// The inode of the file that is open, whatever lies at its path by now.
    pub(crate) fn inode(&self) -> Option<u64> {
        self.file.metadata().map(|m| m.ino()).ok()
    }

    fn touched(&self) -> std::io::Result<Touched> {
        self.file.metadata().map(|m| (m.ctime(), m.ctime_nsec()))
    }

    /// The bytes of blocks `first..last`: where they begin, and how many there are.
    fn run(&self, first: u64, last: u64) -> (u64, usize) {
        let start = self.blocks.range(first).start;
        let stop = self.blocks.range(last.saturating_sub(1)).end;
        let length = usize::try_from(stop.saturating_sub(start)).unwrap_or(0);
        (start, length)
    }

    /// The same as [`read_blocks`](Copy::read_blocks) where it takes neither the disk nor a comparison: all
    /// bytes are in the page cache, and every block was compared not longer than `trust` ago. Does not wait;
    /// none if anything else is the case.
    #[cfg(target_os = "linux")]
    pub(crate) fn read_ready(&self, first: u64, last: u64, trust: Duration) -> Option<Bytes> {
        use rustix::io::{ReadWriteFlags, preadv2};
        let before = self.touched().ok()?;
        let trusted = |n| self.blocks.is_trusted(n, before, trust);
        if !(first..last).all(trusted) {
            return None;
        }
        let (start, length) = self.run(first, last);
        let mut bytes = BytesMut::zeroed(length);
        let mut piece = [std::io::IoSliceMut::new(&mut bytes)];
        let read = preadv2(&self.file, &mut piece, start, ReadWriteFlags::NOWAIT).ok()?;
        let same = self.touched().ok()? == before;
        (read == length && same).then(|| bytes.freeze())
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn read_ready(&self, _first: u64, _last: u64, _trust: Duration) -> Option<Bytes> {
        None
    }

    /// Blocks `first..last` in one piece, fewer at the end of the file. A block that was compared not longer than
    /// `trust` ago, in a file that has not been touched since, is taken as it is: whoever writes to a file, or
    /// changes its times, changes the time of its last change, which nobody can set. With no trust each
    /// block is compared now.
    ///
    /// # Errors
    ///
    /// `Corrupt` for a block that is not what it was, and for a medium that cannot be read; what else the file
    /// system answers says nothing of the copy.
    pub(crate) fn read_blocks(&self, first: u64, last: u64, trust: Duration) -> Result<Bytes> {
        let fail = |what: String| {
            Error::new(ErrorKind::Corrupt, what)
                .during("read")
                .at(self.path.display())
        };
        let (start, length) = self.run(first, last);
        let mut bytes = BytesMut::zeroed(length);
        let touched = || self.touched().map_err(|e| io_error(e, "read", &self.path));
        let before = touched()?;
        self.file.read_exact_at(&mut bytes, start).map_err(|e| {
            match is_medium(&e) || e.kind() == ErrorOf::UnexpectedEof {
                true => fail(format!("it cannot be read at byte {start}: {e}")),
                false => io_error(e, "read", &self.path),
            }
        })?;
        // Touched while it was read: nothing is concluded from the time.
        let touched = Some(touched()?).filter(|after| *after == before);
        let mut rest: &[u8] = &bytes;
        for number in first..last {
            let range = self.blocks.range(number);
            let length = usize::try_from(range.end - range.start).unwrap_or(0);
            let (block, after) = rest.split_at(length.min(rest.len()));
            rest = after;
            let trusted = touched.is_some_and(|at| self.blocks.is_trusted(number, at, trust));
            if block.is_empty() || trusted {
                continue;
            }
            if !self.blocks.fits(number, block) {
                return Err(fail(format!(
                    "bytes {range:?} have changed since they were verified"
                )));
            }
            if let Some(at) = touched {
                self.blocks.compared(number, at);
            }
        }
        Ok(bytes.freeze())
    }
}
