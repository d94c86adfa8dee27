//! A store that is tampered with between a clean and what it sees.

use std::sync::Mutex;

use async_trait::async_trait;
use bytes::Bytes;
use forkpoint::ownership::Access;
use forkpoint::store::{Location, Stat, Stores};
use forkpoint::{Error, ErrorKind, Result};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

pub(crate) struct Tampered {
    inner: Stores,
    /// Listings end after so many objects, in the order of names, and say nothing.
    cut_after: Option<usize>,
    /// Happens once, when this object is about to be read or made.
    meanwhile: Option<(Location, Mutex<Option<BoxFuture<'static, ()>>>)>,
    /// This object cannot be read, or not listed if it is a root.
    failing: Option<(Location, ErrorKind)>,
}

impl Tampered {
    pub(crate) fn cut_after(inner: &Stores, objects: usize) -> Tampered {
        Tampered {
            inner: inner.clone(),
            cut_after: Some(objects),
            meanwhile: None,
            failing: None,
        }
    }

    pub(crate) fn before(
        inner: &Stores,
        at: Location,
        then: impl Future<Output = ()> + Send + 'static,
    ) -> Tampered {
        Tampered {
            inner: inner.clone(),
            cut_after: None,
            meanwhile: Some((at, Mutex::new(Some(Box::pin(then))))),
            failing: None,
        }
    }

    pub(crate) fn failing(inner: &Stores, at: Location, kind: ErrorKind) -> Tampered {
        Tampered {
            inner: inner.clone(),
            cut_after: None,
            meanwhile: None,
            failing: Some((at, kind)),
        }
    }

    async fn meanwhile(&self, at: &Location) {
        if let Some((place, then)) = &self.meanwhile
            && at == place
        {
            let then = then.lock().unwrap().take();
            if let Some(then) = then {
                then.await;
            }
        }
    }

    fn check(&self, at: &Location) -> Result<()> {
        match &self.failing {
            Some((place, kind)) if at == place => Err(Error::new(*kind, kind.as_str()).at(at)),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Access for Tampered {
    fn now(&self) -> u64 {
        self.inner.now()
    }
    fn random(&self) -> u64 {
        self.inner.random()
    }
    async fn wait(&self, time: std::time::Duration) {
        self.inner.wait(time).await;
    }
    fn list(&self, folder: &Location) -> Result<BoxStream<'static, Result<(Location, Stat)>>> {
        self.check(folder)?;
        let inner = Access::list(&self.inner, folder)?;
        let Some(after) = self.cut_after else {
            return Ok(inner);
        };
        let sorted = async move {
            let mut all: Vec<(Location, Stat)> = inner.map(|one| one.unwrap()).collect().await;
            all.sort_by(|a, b| a.0.cmp(&b.0));
            futures::stream::iter(all.into_iter().take(after).map(Ok::<_, Error>))
        };
        Ok(futures::stream::once(sorted).flatten().boxed())
    }
    async fn read(&self, at: &Location, limit: u64) -> Result<Bytes> {
        self.meanwhile(at).await;
        self.check(at)?;
        self.inner.read(at, limit).await
    }
    async fn find(&self, at: &Location) -> Result<Option<Stat>> {
        self.inner.find(at).await
    }
    async fn create(&self, at: &Location, bytes: Bytes) -> Result<()> {
        self.meanwhile(at).await;
        Access::create(&self.inner, at, bytes).await
    }
    async fn delete(&self, at: &Location) -> Result<()> {
        self.inner.delete(at).await
    }
    async fn delete_all(&self, objects: Vec<Location>) -> Vec<(Location, Result<()>)> {
        self.inner.delete_all(objects).await
    }
    async fn real(&self, at: &Location) -> Result<Location> {
        self.inner.real(at).await
    }
    async fn remove_empty_folders(&self, _: &Location, _: &Location) {}
}
