//! A file that is arriving: hashed as it comes, durable before it gets its path.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::sync::Arc;

use bytes::Bytes;

use crate::clock;
use crate::error::Result;

use super::super::fail;
use super::super::key::{BlobKey, Digest, Moment};
use super::super::layout::LocalPath;
use super::blocks::{BlockDigester, Blocks};
use super::space::Reserved;
use super::{LocalStore, Stamp, Temporary, io_error, sync_folder};

/// Bytes under way into the directory. Dropped, its file goes.
#[derive(Debug)]
pub(crate) struct Incoming {
    file: File,
    path: Temporary,
    digester: BlockDigester,
    written: u64,
    reserved: Reserved,
}

/// All bytes are there and durable; no reader sees them yet. Dropped, its file goes.
#[derive(Debug)]
pub(crate) struct Complete {
    path: Temporary,
    stamp: Stamp,
    blocks: Arc<Blocks>,
    digest: Digest,
    _reserved: Reserved,
}

impl LocalStore {
    /// Begins a file in `tmp/`, into the space that has been reserved for it.
    ///
    /// # Errors
    ///
    /// What the file system answers.
    pub(crate) fn begin(&self, reserved: Reserved) -> Result<Incoming> {
        let path = self.path(&LocalPath::Part(clock::random_id()));
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let folder = || path.parent().unwrap_or(self.root());
        let file = made.map_err(|e| self.fails(e, "write", folder()))?;
        Ok(Incoming {
            file,
            path: Temporary::new(path),
            digester: BlockDigester::default(),
            written: 0,
            reserved,
        })
    }

    /// Gives a complete file its path. A copy that is there already is replaced: this one has just been
    /// verified, and readers of the other keep it.
    ///
    /// # Errors
    ///
    /// What the file system answers; the file may then be at its path or not.
    pub(crate) fn publish(
        &self,
        mut complete: Complete,
        job: &super::super::JobId,
        now: Moment,
    ) -> Result<BlobKey> {
        let key = BlobKey {
            job: job.clone(),
            digest: complete.digest,
        };
        let path = self.blob_path(&key);
        let Some(folder) = path.parent() else {
            return Ok(key);
        };
        let mut made = Vec::new();
        for ancestor in folder.ancestors().take(2) {
            if !ancestor.is_dir() {
                made.push(ancestor.to_path_buf());
            }
        }
        // A directory that went is not made again.
        fs::metadata(self.root()).map_err(|e| self.fails(e, "publish", &path))?;
        fs::create_dir_all(folder).map_err(|e| io_error(e, "make", folder))?;
        let Some(temporary) = complete.path.give_away() else {
            return Ok(key);
        };
        let moves = self.moves();
        let moved = fs::rename(&temporary, &path);
        if moved.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        moved.map_err(|e| io_error(e, "publish", &path))?;
        self.learn(&key, complete.stamp, Arc::clone(&complete.blocks), now);
        drop(moves);
        if self.options.durable {
            sync_folder(folder)?;
            for ancestor in made {
                if let Some(above) = ancestor.parent() {
                    sync_folder(above)?;
                }
            }
        }
        fail::point("published");
        Ok(key)
    }
}

impl Incoming {
    /// Takes the next bytes.
    ///
    /// # Errors
    ///
    /// `Refused` if there is no space.
    pub(crate) fn write(&mut self, pieces: &[Bytes]) -> Result<()> {
        for piece in pieces {
            self.written = self.written.saturating_add(piece.len() as u64);
            self.reserved.grow(self.written)?;
            self.digester.update(piece);
            let written = self.file.write_all(piece);
            written.map_err(|e| io_error(e, "write", self.path.folder()))?;
        }
        if self.written > 0 {
            fail::point("part-written");
        }
        Ok(())
    }

    /// How many bytes more than those written there is space for.
    pub(crate) fn room(&self) -> u64 {
        self.reserved.bytes().saturating_sub(self.written)
    }

    /// Bytes that are reserved for it.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.bytes()
    }

    /// There is space for more.
    pub(crate) fn extend(&mut self, reserved: Reserved) {
        self.reserved.join(reserved);
    }

    /// No more bytes come: makes the file durable.
    ///
    /// # Errors
    ///
    /// What the file system answers.
    pub(crate) fn complete(self) -> Result<Complete> {
        let fail = |e| io_error(e, "sync", self.path.folder());
        let read_only = Permissions::from_mode(0o444);
        self.file.set_permissions(read_only).map_err(fail)?;
        if self.reserved.durable() {
            self.file.sync_all().map_err(fail)?;
        }
        let stamp = Stamp::of(&self.file.metadata().map_err(fail)?);
        let (digest, blocks) = self.digester.finish();
        fail::point("part-complete");
        Ok(Complete {
            path: self.path,
            stamp,
            blocks: Arc::new(blocks),
            digest,
            _reserved: self.reserved,
        })
    }
}

impl Complete {
    /// What the bytes are.
    pub(crate) fn digest(&self) -> Digest {
        self.digest
    }
}
