//! Space is reserved before it is written to, so that a full disk is an answer and not a surprise.

use std::sync::Arc;

use crate::error::{Error, Result};

use super::super::eviction::{CachedFile, Eviction, NoSpace, Space, make_room};
use super::super::key::{BlobKey, Moment};
use super::LocalStore;

/// Bytes that a transfer may write. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    store: Arc<LocalStore>,
    bytes: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut state = self.store.state();
        state.reserved = state.reserved.saturating_sub(self.bytes);
    }
}

/// By how much a reservation grows at a time.
pub(crate) const STEP_BYTES: u64 = 8 << 20;

impl Reserved {
    /// Whether what is written into it must be durable before it is used.
    pub(crate) fn durable(&self) -> bool {
        self.store.options.durable
    }

    /// How many bytes it is.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes another one part of it.
    pub(crate) fn join(&mut self, mut other: Reserved) {
        self.bytes = self.bytes.saturating_add(std::mem::take(&mut other.bytes));
    }

    /// Takes care that it is at least `bytes`.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<()> {
        if bytes <= self.bytes {
            return Ok(());
        }
        let more = (bytes - self.bytes).max(STEP_BYTES);
        let got = self.store.try_reserve(more)?;
        if !got {
            return Err(no_space(self.store.root().display(), more, ""));
        }
        self.bytes = self.bytes.saturating_add(more);
        Ok(())
    }
}

fn no_space(at: impl std::fmt::Display, wanted: u64, why: &str) -> Error {
    Error::refused(format!("there is no space for {wanted} bytes{why}"))
        .during("reserve")
        .at(at)
        .hint("raise blob.local.max-bytes, lower blob.local.min-free, or free some space")
}

/// What the directory holds, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalUse {
    /// In complete files.
    pub(crate) used: u64,
    /// In reservations.
    pub(crate) reserved: u64,
    /// Complete files.
    pub(crate) files: u64,
}

impl LocalStore {
    pub(crate) fn usage(&self) -> LocalUse {
        let state = self.state();
        LocalUse {
            used: state.used,
            reserved: state.reserved,
            files: state.files.len() as u64,
        }
    }

    pub(crate) fn free_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::statvfs(self.root())
            .map_err(|e| self.fails(e.into(), "look at", self.root()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn space(&self) -> Result<Space> {
        let free = self.free_bytes()?;
        let usage = self.usage();
        Ok(Space {
            used: usage.used,
            reserved: usage.reserved,
            free,
        })
    }

    /// Reserves if it fits without giving anything up.
    fn try_reserve(&self, bytes: u64) -> Result<bool> {
        let free = self.free_bytes()?;
        let mut state = self.state();
        let space = Space {
            used: state.used,
            reserved: state.reserved,
            free,
        };
        let fits = make_room(&[], space, self.options.space, bytes).is_ok_and(|e| e.bytes == 0);
        if fits {
            state.reserved = state.reserved.saturating_add(bytes);
        }
        Ok(fits)
    }

    /// Fails if `bytes` do not fit whatever is given up. Reserves nothing.
    ///
    /// # Errors
    ///
    /// `Refused`.
    pub(crate) fn could_fit(
        &self,
        bytes: u64,
        candidates: impl Fn() -> Vec<CachedFile>,
    ) -> Result<()> {
        let space = self.space()?;
        if make_room(&[], space, self.options.space, bytes).is_ok() {
            return Ok(());
        }
        match make_room(&candidates(), space, self.options.space, bytes) {
            Ok(_) => Ok(()),
            Err(lacking) => Err(self.lacks(bytes, &lacking)),
        }
    }

    fn lacks(&self, bytes: u64, lacking: &NoSpace) -> Error {
        let why = format!(
            ": {} bytes are lacking; readers hold {}, and of {} there is no other copy",
            lacking.missing, lacking.pinned, lacking.only_copies
        );
        no_space(self.root().display(), bytes, &why)
    }

    /// Reserves `bytes`. Where they do not fit, `candidates` says which files there are, and `evict` takes
    /// one off.
    ///
    /// # Errors
    ///
    /// `Refused` if it does not fit whatever is given up.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        bytes: u64,
        candidates: impl Fn() -> Vec<CachedFile>,
        evict: impl Fn(&BlobKey) -> Result<()>,
    ) -> Result<Reserved> {
        for _ in 0..8 {
            if self.try_reserve(bytes)? {
                return Ok(Reserved {
                    store: Arc::clone(self),
                    bytes,
                });
            }
            let room: std::result::Result<Eviction, NoSpace> =
                make_room(&candidates(), self.space()?, self.options.space, bytes);
            match room {
                Ok(eviction) => {
                    for (key, _) in &eviction.files {
                        evict(key)?;
                    }
                }
                Err(lacking) => return Err(self.lacks(bytes, &lacking)),
            }
        }
        Err(no_space(self.root().display(), bytes, ""))
    }

    /// When the file was last handed out.
    pub(crate) fn last_used(&self, key: &BlobKey) -> Moment {
        self.state()
            .files
            .get(key)
            .map_or(Moment(0), |k| k.last_used)
    }
}
