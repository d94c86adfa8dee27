//! Objects whose bytes come in pieces, in bounded memory.

use std::ops::Range;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::ObjectStoreExt;

use crate::error::{Error, ErrorKind, Result};

use super::location::Location;
use super::open::Stores;
use super::{errors, local};

impl Stores {
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
