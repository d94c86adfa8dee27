//! What ownership needs of a store, as a trait: the same protocols run on real stores, and on a
//! simulated one that stops between any two calls.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::clock;
use crate::error::{ErrorKind, Result};
use crate::store::{Location, Stat, Stores};

/// Access to objects, to the time and to chance.
///
/// # Guarantees wanted
///
/// Strong consistency, which all supported stores have: a listing or read that begins after a write
/// has ended sees it.
#[async_trait]
pub trait Access: Send + Sync {
    /// Milliseconds since 1970. Never from the store.
    fn now(&self) -> u64;

    /// 64 random bits.
    fn random(&self) -> u64;

    /// Waits for `time`.
    async fn wait(&self, time: Duration);

    /// All objects below a folder, folder markers too. One request per 1,000 objects.
    ///
    /// # Errors
    ///
    /// Any error, here or in the stream, makes the listing incomplete.
    fn list(&self, folder: &Location) -> Result<BoxStream<'static, Result<(Location, Stat)>>>;

    /// The whole of an object of at most `limit` bytes. One request.
    ///
    /// # Errors
    ///
    /// `NotFound` if it is not there.
    async fn read(&self, at: &Location, limit: u64) -> Result<Bytes>;

    /// Size and tag of one object, or `None` if it is not there. One request.
    ///
    /// # Errors
    ///
    /// If the store does not say.
    async fn find(&self, at: &Location) -> Result<Option<Stat>>;

    /// Writes a small object, unless one is there. One request.
    ///
    /// # Errors
    ///
    /// `AlreadyExists`.
    async fn create(&self, at: &Location, bytes: Bytes) -> Result<()>;

    /// Creates an object where there is none, and says whether it did. False: something is there, perhaps our own of an
    /// attempt whose reply was lost. One request, or what [`Access::create`] takes.
    ///
    /// # Errors
    ///
    /// If the store refuses.
    async fn create_if_absent(&self, at: &Location, bytes: Bytes) -> Result<bool> {
        match self.create(at, bytes).await {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Removes one object; one that is not there is fine. One request.
    ///
    /// # Errors
    ///
    /// If the store refuses.
    async fn delete(&self, at: &Location) -> Result<()>;

    /// Removes objects of one bucket in batches; the outcome of each.
    async fn delete_all(&self, objects: Vec<Location>) -> Vec<(Location, Result<()>)>;

    /// Where a place really is: symbolic links followed, accounts written out.
    ///
    /// # Errors
    ///
    /// If it cannot be found out.
    async fn real(&self, at: &Location) -> Result<Location>;

    /// Removes folders that are empty now, from that of `at` up to and without `stop`; nothing where
    /// there are no folders.
    async fn remove_empty_folders(&self, at: &Location, stop: &Location);
}

#[async_trait]
impl Access for Stores {
    fn now(&self) -> u64 {
        u64::try_from(clock::unix_millis()).unwrap_or(u64::MAX)
    }

    async fn wait(&self, time: Duration) {
        clock::sleep(time).await;
    }

    fn random(&self) -> u64 {
        clock::random_id()
    }

    fn list(&self, folder: &Location) -> Result<BoxStream<'static, Result<(Location, Stat)>>> {
        self.inventory_stream(folder)
    }

    async fn read(&self, at: &Location, limit: u64) -> Result<Bytes> {
        Stores::read(self, at, limit).await
    }

    async fn find(&self, at: &Location) -> Result<Option<Stat>> {
        Stores::find(self, at).await
    }

    async fn create(&self, at: &Location, bytes: Bytes) -> Result<()> {
        self.put(at, bytes, true).await.map(|_| ())
    }

    async fn create_if_absent(&self, at: &Location, bytes: Bytes) -> Result<bool> {
        self.put_if_absent(at, bytes).await
    }

    async fn delete(&self, at: &Location) -> Result<()> {
        Stores::delete(self, at).await
    }

    async fn delete_all(&self, objects: Vec<Location>) -> Vec<(Location, Result<()>)> {
        Stores::delete_all(self, objects).await
    }

    async fn real(&self, at: &Location) -> Result<Location> {
        Stores::real(self, at).await
    }

    async fn remove_empty_folders(&self, at: &Location, stop: &Location) {
        Stores::remove_empty_folders(self, at, stop).await;
    }
}
