//! One piece of work for many who wait, each piece a task of its own. A failure is told to all who waited, and not
//! remembered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::error::{Error, ErrorKind};

use super::key::BlobKey;

/// A failure that can be told to several.
pub(crate) trait Told: Send + Sync + 'static {
    /// The same for one more who waited.
    fn again(&self) -> Self;
    /// The work ended without a word.
    fn unheard(key: &BlobKey) -> Self;
}

impl Told for Error {
    fn again(&self) -> Error {
        let copy = Error::new(self.kind(), self.message()).during(self.operation());
        let copy = match self.location() {
            Some(at) => copy.at(at),
            None => copy,
        };
        match self.next_step() {
            Some(hint) => copy.hint(hint),
            None => copy,
        }
    }

    fn unheard(key: &BlobKey) -> Error {
        Error::new(ErrorKind::Internal, "a fetch ended without a word").at(key)
    }
}

/// When work under way ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outlives {
    /// With the last who waits for it: nobody needs it any more.
    Nobody,
    /// When it is done, whoever has gone meanwhile: what they asked for again joins it.
    Callers,
}

type Outcome<T, E> = Option<Result<T, Arc<E>>>;

/// Work under way.
#[derive(Debug)]
struct Flight<T, E> {
    outcome: watch::Receiver<Outcome<T, E>>,
    task: OnceLock<AbortHandle>,
}

impl<T, E> Drop for Flight<T, E> {
    fn drop(&mut self) {
        // One that has ended does not mind.
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// All work under way, by blob.
#[derive(Debug)]
pub(crate) struct Flights<T, E> {
    under_way: Mutex<HashMap<BlobKey, Weak<Flight<T, E>>>>,
    outlives: Outlives,
}

impl<T: Clone + Send + Sync + 'static, E: Told> Flights<T, E> {
    pub(crate) fn new(outlives: Outlives) -> Flights<T, E> {
        Flights {
            under_way: Mutex::default(),
            outlives,
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<BlobKey, Weak<Flight<T, E>>>> {
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the work on `key` that is under way, or for a new one that `begin` gives. Calls `joins` before it
    /// waits for what others have begun.
    pub(crate) async fn join<F>(
        &self,
        key: &BlobKey,
        begin: impl FnOnce() -> F,
        joins: impl FnOnce(),
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let flight = {
            let mut all = self.all();
            let under_way = all.get(key).and_then(Weak::upgrade);
            // One that has ended but is not taken off yet is not joined: its failure is not remembered.
            match under_way.filter(|f| f.outcome.borrow().is_none()) {
                Some(flight) => {
                    joins();
                    flight
                }
                None => {
                    all.retain(|_, f| f.strong_count() > 0);
                    let (tell, outcome) = watch::channel(None);
                    let flight = Arc::new(Flight {
                        outcome,
                        task: OnceLock::new(),
                    });
                    let kept = (self.outlives == Outlives::Callers).then(|| Arc::clone(&flight));
                    let work = begin();
                    let task = tokio::spawn(async move {
                        let done = work.await.map_err(Arc::new);
                        let _ = tell.send(Some(done));
                        drop(kept);
                    });
                    let _ = flight.task.set(task.abort_handle());
                    all.insert(key.clone(), Arc::downgrade(&flight));
                    flight
                }
            }
        };
        let mut outcome = flight.outcome.clone();
        let done = match outcome.wait_for(Option::is_some).await {
            Ok(done) => match &*done {
                Some(Ok(done)) => Ok(done.clone()),
                Some(Err(e)) => Err(e.again()),
                None => Err(E::unheard(key)),
            },
            Err(_) => Err(E::unheard(key)),
        };
        drop(flight);
        let mut all = self.all();
        if all.get(key).is_some_and(|f| f.strong_count() == 0) {
            all.remove(key);
        }
        done
    }
}
