//! Objects whose bytes come or go in pieces, in bounded memory.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::{ObjectStoreExt, WriteMultipart};

use crate::error::{Error, ErrorKind, Result};

use super::location::Location;
use super::open::Stores;
use super::relay::{PART_BYTES, part_size};
use super::{errors, local};

/// Parts of one object on their way to the store at once.
const PARTS_IN_FLIGHT: usize = 2;

enum Writing {
    /// Not more than one part so far.
    Whole(BytesMut),
    Parts(Box<WriteMultipart>),
    File(Box<local::Staged>),
}

/// A new object that is written in pieces and visible only once it is complete.
///
/// Its name must be its writer's alone: an upload in parts is completed unconditionally. Dropped without
/// [`finish`](ObjectWriter::finish) or [`abort`](ObjectWriter::abort) it leaves parts behind that no listing shows.
pub struct ObjectWriter {
    stores: Stores,
    at: Location,
    size: u64,
    written: u64,
    writing: Writing,
}

impl std::fmt::Debug for ObjectWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectWriter")
            .field("at", &self.at)
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

impl ObjectWriter {
    /// Takes the next bytes; waits while too many are under way. A request for every 8 MiB.
    ///
    /// # Errors
    ///
    /// What the store answers; `Invalid` for more bytes than were announced.
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.written = self.written.saturating_add(bytes.len() as u64);
        if self.written > self.size {
            return Err(
                Error::invalid(format!("more than the {} bytes announced", self.size))
                    .during("write")
                    .at(&self.at),
            );
        }
        match &mut self.writing {
            Writing::Whole(buffer) => buffer.extend_from_slice(&bytes),
            Writing::Parts(upload) => {
                let fail = |e| errors::from_client(e, "write", &self.at);
                upload
                    .wait_for_capacity(PARTS_IN_FLIGHT)
                    .await
                    .map_err(fail)?;
                upload.put(bytes);
            }
            Writing::File(_) => {
                let Writing::File(mut staged) =
                    std::mem::replace(&mut self.writing, Writing::Whole(BytesMut::new()))
                else {
                    return Ok(());
                };
                let at = self.at.clone();
                let staged = super::blocking(move || {
                    std::io::Write::write_all(staged.file(), &bytes)
                        .map_err(|e| local::from_io(e, "write", &at))?;
                    Ok(staged)
                });
                self.writing = Writing::File(staged.await?);
            }
        }
        Ok(())
    }

    /// Makes the object visible; durable when this returns.
    ///
    /// # Errors
    ///
    /// What the store answers; `AlreadyExists` for an object of one part whose name is taken; `Invalid` if
    /// bytes are missing.
    pub async fn finish(self) -> Result<()> {
        if self.written != self.size {
            let error = Error::invalid(format!(
                "{} bytes came of {} announced",
                self.written, self.size
            ));
            let error = error.during("write").at(&self.at);
            self.abort().await;
            return Err(error);
        }
        let at = self.at;
        match self.writing {
            Writing::Whole(bytes) => {
                self.stores.put(&at, bytes.freeze(), true).await?;
            }
            Writing::Parts(upload) => {
                let fail = |e| errors::from_client(e, "write", &at);
                upload.finish().await.map_err(fail)?;
            }
            Writing::File(staged) => {
                super::blocking(move || staged.publish(&at, true, true)).await?;
            }
        }
        Ok(())
    }

    /// Gives it up: removes parts that were sent. An error here leaves an unfinished upload behind, which is
    /// logged.
    pub async fn abort(self) {
        if let Writing::Parts(upload) = self.writing
            && let Err(error) = upload.abort().await
        {
            tracing::warn!(at = %self.at, %error, "an upload could not be aborted");
        }
    }
}

impl Stores {
    /// Begins an object of `size` bytes whose name is nobody else's. Up to 8 MiB it is one request, above that
    /// one per part and two more.
    ///
    /// # Errors
    ///
    /// What the store answers to the beginning of an upload.
    pub async fn writer(&self, at: &Location, size: u64) -> Result<ObjectWriter> {
        let store = self.open(at)?;
        let writing = match store.objects() {
            None => {
                let at = at.clone();
                let staged = super::blocking(move || local::Staged::begin(&at)).await?;
                Writing::File(Box::new(staged))
            }
            Some(_) if size <= PART_BYTES => {
                Writing::Whole(BytesMut::with_capacity(usize::try_from(size).unwrap_or(0)))
            }
            Some(objects) => {
                let fail = |e| errors::from_client(e, "write", at);
                let upload = objects.put_multipart(&at.object_path()?).await;
                let part = usize::try_from(part_size(size)).unwrap_or(usize::MAX);
                let upload = WriteMultipart::new_with_chunk_size(upload.map_err(fail)?, part);
                Writing::Parts(Box::new(upload))
            }
        };
        Ok(ObjectWriter {
            stores: self.clone(),
            at: at.clone(),
            size,
            written: 0,
            writing,
        })
    }

    /// Bytes of an object, in pieces of at most `piece` bytes, `ahead` of them under way at once. A request for
    /// each. An object that is shorter gives an error, one that is longer is not told apart: look at its size
    /// first.
    pub fn pieces(
        &self,
        at: &Location,
        range: Range<u64>,
        piece: u64,
        ahead: usize,
    ) -> BoxStream<'static, Result<Bytes>> {
        let (stores, at) = (self.clone(), at.clone());
        let step = usize::try_from(piece.max(1)).unwrap_or(usize::MAX);
        futures::stream::iter((range.start..range.end).step_by(step))
            .map(move |start| {
                let (stores, at) = (stores.clone(), at.clone());
                let end = start.saturating_add(piece).min(range.end);
                async move { stores.read_piece(&at, start, end).await }
            })
            .buffered(ahead)
            .boxed()
    }

    /// Bytes `start..end` of an object, all of them. One request.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Unavailable` if fewer come.
    pub async fn read_piece(&self, at: &Location, start: u64, end: u64) -> Result<Bytes> {
        let store = self.open(at)?;
        let bytes = match store.objects() {
            None => {
                let at = at.clone();
                super::blocking(move || local::read_range(&at, start, end)).await?
            }
            Some(objects) => objects
                .get_range(&at.object_path()?, start..end)
                .await
                .map_err(|e| errors::from_client(e, "read", at))?,
        };
        if bytes.len() as u64 != end.saturating_sub(start) {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{} bytes came where {} were asked for",
                    bytes.len(),
                    end.saturating_sub(start)
                ),
            )
            .during("read")
            .at(at));
        }
        Ok(bytes)
    }
}
