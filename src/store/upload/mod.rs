//! Writing what this process has: a new object from bytes, a file or a stream, in bounded memory, with its
//! digest computed on the way.
//!
//! One request for what fits into a part; larger contents go in parts that are on their way side by side
//! (S3, Azure) or one after the other (Google). An object appears whole, where nothing is, or not at all.
//! Every part goes with a checksum that the service checks, and counts against the memory that relays have.

mod content;
mod sink;

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use crate::error::{Error, ErrorKind, Result};
use crate::progress::Cancel;

use super::digest::{RunningSha256, Sha256Sum};
use super::duplicate::{Copied, CopyOrder, Preserve};
use super::local;
use super::location::{Location, Provider};
use super::open::Stores;
use super::relay::{self, MAX_PARTS, PART_BYTES};
use super::stat::Stat;

pub use content::Content;
use content::Reader;
#[cfg(feature = "blob")]
pub(crate) use content::of_file;

/// How an object is uploaded.
#[derive(Debug, Clone)]
pub struct UploadOptions {
    /// Size of a part in bytes, and of the largest object that is written with one request; rounded up to
    /// whole MiB, at least 5. Objects of more than 10,000 parts get larger ones.
    pub part_size: u64,
    /// Parts of one object on their way at once.
    pub parts_at_once: usize,
    /// Make a local file durable before it gets its name.
    pub sync: bool,
    /// The name has never been anybody's: what may be there is not looked for before the first byte is sent, which
    /// saves a request for an object in parts. The condition that nothing is there stays.
    pub fresh: bool,
    /// Asks to stop between parts.
    pub cancel: Cancel,
}

impl Default for UploadOptions {
    fn default() -> UploadOptions {
        UploadOptions {
            part_size: PART_BYTES,
            parts_at_once: 4,
            sync: true,
            fresh: false,
            cancel: Cancel::default(),
        }
    }
}

/// An object that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uploaded {
    /// Its size in bytes.
    pub size: u64,
    /// Its SHA-256.
    pub sha256: Sha256Sum,
}

/// An upload as the code for one kind of store sees it.
struct Upload<'a> {
    stores: &'a Stores,
    at: &'a Location,
    options: &'a UploadOptions,
    part_size: u64,
}

impl Upload<'_> {
    /// The same as an order for a copy, of `size` bytes, whose source is not another object.
    fn order(&self, size: u64) -> CopyOrder<'_> {
        CopyOrder {
            source: self.at,
            destination: self.at,
            size,
            source_tag: None,
            source_etag: None,
            storage_class: None,
            create_only: true,
            preserve: Preserve::NONE,
            sync: self.options.sync,
            cancel: &self.options.cancel,
        }
    }
}

impl Stores {
    /// Writes a new object with the bytes of `content`, and says what it wrote.
    ///
    /// Holds at most [`UploadOptions::parts_at_once`] + 1 parts in memory, and all uploads and relays of
    /// one [`Stores`] together at most [`RELAY_BUDGET_BYTES`](super::RELAY_BUDGET_BYTES).
    ///
    /// Costs one request up to one part; else one per part and two more (three on Google and Azure at
    /// most).
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if something is there; it stays as it is. `Invalid` if the content is not as long as
    /// it says, or longer than 10,000 parts. What was sent of an upload that fails is given up, on S3 by
    /// an explicit request.
    pub async fn upload(
        &self,
        at: &Location,
        content: Content,
        options: &UploadOptions,
    ) -> Result<Uploaded> {
        let mut reader = Reader::open(content)
            .await
            .map_err(|e| e.during("upload"))?;
        let part_size = part_size(options.part_size, reader.size());
        let upload = Upload {
            stores: self,
            at,
            options,
            part_size,
        };
        match upload.run(&mut reader).await {
            Ok(done) => {
                tracing::debug!(%at, bytes = done.size, "uploaded");
                Ok(done)
            }
            Err(e) => Err(e.during("upload").at(at)),
        }
    }

    /// Reads the object at `at`, of `size` bytes, into the local file `to`: in parts, several on their way
    /// at once, in bounded memory. The file appears whole, and only if the content is what `sha256` says.
    /// A file that is there is replaced.
    ///
    /// Costs one request per 8 MiB.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the object has another size or content; `NotFound` if it is not there; `Invalid` if `to`
    /// is not on this machine.
    pub async fn download(
        &self,
        at: &Location,
        size: u64,
        sha256: Sha256Sum,
        to: &Location,
        cancel: &Cancel,
    ) -> Result<()> {
        if to.local_path().is_none() {
            return Err(Error::invalid("a file of this machine is wanted").at(to));
        }
        let place = to.clone();
        let staged = super::blocking(move || local::Staged::begin(&place)).await?;
        let (sum, staged) = self.read_through(at, size, Some(staged), cancel).await?;
        if sum != sha256 {
            return Err(damaged(at, sha256, sum));
        }
        let to = to.clone();
        super::blocking(move || match staged {
            Some(staged) => staged.publish(&to, false, false).map(drop),
            None => Ok(()),
        })
        .await
    }

    /// The whole of an object of `size` bytes, if it is what `sha256` says. One request.
    ///
    /// # Errors
    ///
    /// As [`Stores::download`].
    pub async fn read_verified(
        &self,
        at: &Location,
        size: u64,
        sha256: Sha256Sum,
    ) -> Result<bytes::Bytes> {
        let bytes = self.read(at, size).await.map_err(|e| match e.kind() {
            // Longer than it should be.
            ErrorKind::Refused | ErrorKind::Invalid => e.with_kind(ErrorKind::Corrupt),
            _ => e,
        })?;
        if bytes.len() as u64 != size {
            return Err(wrong_size(at, size, bytes.len() as u64));
        }
        let sum = RunningSha256::default().feed(&bytes).await?.sum();
        match sum == sha256 {
            true => Ok(bytes),
            false => Err(damaged(at, sha256, sum)),
        }
    }

    /// The digest of an object of `size` bytes. One request per 8 MiB.
    pub(crate) async fn digest(
        &self,
        at: &Location,
        size: u64,
        cancel: &Cancel,
    ) -> Result<Sha256Sum> {
        let read = self.read_through(at, size, None, cancel).await?;
        Ok(read.0)
    }

    /// Reads all of an object, into a file if there is one.
    async fn read_through(
        &self,
        at: &Location,
        size: u64,
        mut file: Option<local::Staged>,
        cancel: &Cancel,
    ) -> Result<(Sha256Sum, Option<local::Staged>)> {
        use futures::StreamExt;
        let options = UploadOptions {
            cancel: cancel.clone(),
            ..UploadOptions::default()
        };
        let reading = Upload {
            stores: self,
            at,
            options: &options,
            part_size: PART_BYTES,
        };
        let order = reading.order(size);
        // The answer to a read tells the size of the whole; a file, and nothing, must be looked at.
        if size == 0 || at.provider() == Provider::Local {
            let there = self.stat(at).await?.size;
            if there != size {
                return Err(wrong_size(at, size, there));
            }
        }
        let mut running = RunningSha256::default();
        let mut parts = std::pin::pin!(relay::parts(self, &order, PART_BYTES, |_| false));
        while let Some(part) = parts.next().await {
            let part = match part {
                Ok(part) => part,
                // Of another size than it should be, as services say in several ways.
                Err(e) => {
                    return Err(match self.find(at).await? {
                        Some(there) if there.size != size => wrong_size(at, size, there.size),
                        _ => e,
                    });
                }
            };
            let place = at.clone();
            (running, file) = super::blocking(move || {
                use std::io::Write;
                running.add(&part.bytes);
                if let Some(file) = &mut file {
                    let written = file.file().write_all(&part.bytes);
                    written.map_err(|e| local::from_io(e, "write a copy of", &place))?;
                }
                drop(part.memory);
                Ok((running, file))
            })
            .await?;
        }
        Ok((running.sum(), file))
    }
}

impl Upload<'_> {
    async fn run(&self, reader: &mut Reader) -> Result<Uploaded> {
        let store = self.stores.open(self.at)?;
        self.options.cancel.check()?;
        if store.objects().is_none() {
            return self.write_file(reader).await;
        }
        // A part is in memory from here on.
        let memory = self.memory(reader.left()).await;
        let first = reader.next(self.part_size).await?;
        if (first.len() as u64) < self.part_size || reader.size() == Some(first.len() as u64) {
            reader.finish().await?;
            let size = first.len() as u64;
            let sha256 = self.stores.put_new(self.at, first).await?;
            return Ok(Uploaded { size, sha256 });
        }
        // An upload in parts is visible only when it is completed, which fails at the latest then.
        if !self.options.fresh && self.stores.find(self.at).await?.is_some() {
            return Err(self.order(0).refused());
        }
        let (copied, done) = self.in_parts(&store, reader, first, memory).await?;
        self.is_ours(&copied, &done).await?;
        Ok(done)
    }

    /// Waits until the next part may be in memory, where so many bytes are `left`.
    async fn memory(&self, left: Option<u64>) -> Option<OwnedSemaphorePermit> {
        let part = left.unwrap_or(u64::MAX).min(self.part_size);
        self.stores.relay_budget(part.max(1)).await
    }

    /// Where an answer was lost, an object of our size may be ours: its content tells.
    async fn is_ours(&self, copied: &Copied, done: &Uploaded) -> Result<()> {
        if !copied.to_compare {
            return Ok(());
        }
        let there = self
            .stores
            .digest(self.at, done.size, &self.options.cancel)
            .await?;
        match there == done.sha256 {
            true => Ok(()),
            false => Err(self.order(done.size).refused()),
        }
    }

    async fn write_file(&self, reader: &mut Reader) -> Result<Uploaded> {
        if !self.options.fresh && self.stores.find(self.at).await?.is_some() {
            return Err(self.order(0).refused());
        }
        let at = self.at.clone();
        let mut staged = super::blocking(move || local::Staged::begin(&at)).await?;
        let mut running = RunningSha256::default();
        let mut size = 0u64;
        loop {
            self.options.cancel.check()?;
            let memory = self.memory(reader.left()).await;
            let part = reader.next(self.part_size).await?;
            let last = (part.len() as u64) < self.part_size;
            size += part.len() as u64;
            let at = self.at.clone();
            (staged, running) = super::blocking(move || {
                use std::io::Write;
                running.add(&part);
                let written = staged.file().write_all(&part);
                written.map_err(|e| local::from_io(e, "write", &at))?;
                drop(memory);
                Ok((staged, running))
            })
            .await?;
            if last {
                break;
            }
        }
        reader.finish().await?;
        let (at, sync) = (self.at.clone(), self.options.sync);
        let _: Stat = super::blocking(move || staged.publish(&at, true, sync)).await?;
        let sha256 = running.sum();
        Ok(Uploaded { size, sha256 })
    }
}

fn part_size(wanted: u64, size: Option<u64>) -> u64 {
    const MIB: u64 = 1024 * 1024;
    const SMALLEST: u64 = 5 * MIB;
    wanted
        .max(size.unwrap_or(0).div_ceil(MAX_PARTS))
        .max(SMALLEST)
        .div_ceil(MIB)
        .saturating_mul(MIB)
}

fn wrong_size(at: &Location, wanted: u64, there: u64) -> Error {
    Error::corrupt(format!(
        "it has {there} bytes where the snapshot says {wanted}"
    ))
    .during("read")
    .at(at)
}

fn damaged(at: &Location, wanted: Sha256Sum, there: Sha256Sum) -> Error {
    Error::corrupt(format!(
        "its content is not what was written: its SHA-256 is {there}, not {wanted}"
    ))
    .during("read")
    .at(at)
}

/// A clone for a task of its own.
fn shared(stores: &Stores, at: &Location) -> (Stores, Arc<Location>) {
    (stores.clone(), Arc::new(at.clone()))
}
