//! A store in memory that stops between any two calls, and between two pages of a listing.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin as Pinned;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use forkpoint::ownership::Access;
use forkpoint::store::{Location, Stat};
use forkpoint::{Error, ErrorKind, Result};
use futures::StreamExt;
use futures::stream::BoxStream;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::reference::Model;

/// Keys of one page of a listing: small, so that much happens between two pages.
const PAGE: usize = 16;

#[derive(Debug, Clone)]
pub struct Object {
    pub bytes: Bytes,
    pub modified: u64,
    pub tag: u64,
}

#[derive(Debug)]
pub struct State {
    pub objects: BTreeMap<String, Object>,
    pub now: u64,
    pub model: Model,
    pub wrong: Vec<String>,
    rng: StdRng,
    tags: u64,
}

/// The store. Clones are the same store.
#[derive(Debug, Clone)]
pub struct Sim(Arc<Mutex<State>>);

/// The store as one party sees it; what a cleaner deletes is judged.
#[derive(Debug, Clone)]
pub struct Party {
    pub sim: Sim,
    pub cleaner: bool,
}

impl Sim {
    pub fn new(seed: u64, model: Model) -> Sim {
        Sim(Arc::new(Mutex::new(State {
            objects: BTreeMap::new(),
            now: 1_000_000_000_000,
            model,
            wrong: Vec::new(),
            rng: StdRng::seed_from_u64(seed ^ 0x5eed),
            tags: 0,
        })))
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn party(&self, cleaner: bool) -> Party {
        Party {
            sim: self.clone(),
            cleaner,
        }
    }
}

impl State {
    pub fn put(&mut self, key: &str, bytes: Bytes) {
        self.tags += 1;
        let object = Object {
            bytes,
            modified: self.now,
            tag: self.tags,
        };
        self.objects.insert(key.to_string(), object);
    }

    fn remove(&mut self, key: &str, cleaner: bool) {
        if cleaner
            && self.objects.contains_key(key)
            && !key.contains("/.forkpoint/")
            && let Err(why) = self.model.may_delete(key, &self.objects)
        {
            self.wrong.push(format!("{key} was deleted: {why}"));
        }
        if !cleaner {
            self.model.deleted_by_jobs.insert(key.to_string());
        }
        self.objects.remove(key);
    }
}

/// Lets others go first.
pub fn others_first() -> impl Future<Output = ()> + Send {
    let mut waited = false;
    std::future::poll_fn(move |context: &mut Context<'_>| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        // What polls several at once polls only those that have asked for it.
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

fn stat(object: &Object) -> Stat {
    Stat {
        size: object.bytes.len() as u64,
        tag: Some(object.tag.to_string()),
        modified: Some(object.modified),
        ..Stat::default()
    }
}

fn missing(at: &Location) -> Error {
    Error::new(ErrorKind::NotFound, "no such object").at(at)
}

#[async_trait]
impl Access for Party {
    fn now(&self) -> u64 {
        self.sim.state().now
    }

    async fn wait(&self, time: Duration) {
        self.sim.state().now += u64::try_from(time.as_millis()).unwrap();
        others_first().await;
    }

    fn random(&self) -> u64 {
        self.sim.state().rng.random()
    }

    fn list(&self, folder: &Location) -> Result<BoxStream<'static, Result<(Location, Stat)>>> {
        let prefix = format!("{}/", folder.key());
        let (sim, root) = (self.sim.clone(), folder.clone());
        let pages = futures::stream::unfold(Some(prefix.clone()), move |after| {
            let (sim, root, prefix) = (sim.clone(), root.clone(), prefix.clone());
            async move {
                let after = after?;
                others_first().await;
                let state = sim.state();
                let page: Vec<(String, Stat)> = state
                    .objects
                    .range(after..)
                    .take_while(|(key, _)| key.starts_with(&prefix))
                    .take(PAGE)
                    .map(|(key, object)| (key.clone(), stat(object)))
                    .collect();
                let next = (page.len() == PAGE).then(|| format!("{}\0", page.last().unwrap().0));
                let bucket = root.to_string();
                let bucket = bucket.strip_suffix(root.key()).unwrap().to_string();
                let found = page.into_iter().map(move |(key, stat)| {
                    Ok((Location::parse(&format!("{bucket}{key}"))?, stat))
                });
                Some((futures::stream::iter(found.collect::<Vec<_>>()), next))
            }
        });
        Ok(pages.flatten().boxed())
    }

    async fn read(&self, at: &Location, _: u64) -> Result<Bytes> {
        others_first().await;
        let state = self.sim.state();
        state
            .objects
            .get(at.key())
            .map(|o| o.bytes.clone())
            .ok_or_else(|| missing(at))
    }

    async fn find(&self, at: &Location) -> Result<Option<Stat>> {
        others_first().await;
        Ok(self.sim.state().objects.get(at.key()).map(stat))
    }

    async fn create(&self, at: &Location, bytes: Bytes) -> Result<()> {
        others_first().await;
        let mut state = self.sim.state();
        match state.objects.contains_key(at.key()) {
            true => Err(Error::new(ErrorKind::AlreadyExists, "an object is already there").at(at)),
            false => {
                state.put(at.key(), bytes);
                Ok(())
            }
        }
    }

    async fn delete(&self, at: &Location) -> Result<()> {
        others_first().await;
        self.sim.state().remove(at.key(), self.cleaner);
        Ok(())
    }

    async fn delete_all(&self, objects: Vec<Location>) -> Vec<(Location, Result<()>)> {
        let mut outcomes = Vec::new();
        for (n, at) in objects.into_iter().enumerate() {
            // A batch takes effect in pieces.
            if n % 4 == 0 {
                others_first().await;
            }
            self.sim.state().remove(at.key(), self.cleaner);
            outcomes.push((at, Ok(())));
        }
        outcomes
    }

    async fn real(&self, at: &Location) -> Result<Location> {
        Ok(at.clone())
    }

    async fn remove_empty_folders(&self, _: &Location, _: &Location) {}
}

/// Something under way: stopped between any two calls, or killed there.
pub type Actor = Pinned<Box<dyn Future<Output = ()> + Send>>;

impl Sim {
    /// What is there now.
    pub fn state_objects(&self) -> BTreeMap<String, Object> {
        self.state().objects.clone()
    }
}
