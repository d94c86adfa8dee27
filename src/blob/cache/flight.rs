//! One fetch for many who wait. It is a task of its own: a caller that goes away does not stop it while others
//! wait, and the last one that leaves does. A failure is told to all who waited, and not remembered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::error::{Error, ErrorKind, Result};

use super::super::key::BlobKey;

type Outcome = Option<Result<bool, Arc<Error>>>;

/// A fetch under way; the task ends when the last waiter drops it.
#[derive(Debug)]
struct Flight {
    outcome: watch::Receiver<Outcome>,
    task: AbortHandle,
}

impl Drop for Flight {
    fn drop(&mut self) {
        // One that has ended does not mind.
        self.task.abort();
    }
}

/// All fetches under way, by blob.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<HashMap<BlobKey, Weak<Flight>>>);

impl Flights {
    fn all(&self) -> MutexGuard<'_, HashMap<BlobKey, Weak<Flight>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the fetch of `key` that is under way, or for a new one that `begin` gives. The second value is
    /// true for who joined.
    pub(super) async fn join<F>(
        &self,
        key: &BlobKey,
        begin: impl FnOnce() -> F,
    ) -> (Result<bool>, bool)
    where
        F: Future<Output = Result<bool>> + Send + 'static,
    {
        let (flight, joined) = {
            let mut all = self.all();
            let under_way = all.get(key).and_then(Weak::upgrade);
            // One that has ended but is not taken off yet is not joined: its failure is not remembered.
            match under_way.filter(|f| f.outcome.borrow().is_none()) {
                Some(flight) => (flight, true),
                None => {
                    let (tell, outcome) = watch::channel(None);
                    let work = begin();
                    let task = tokio::spawn(async move {
                        let done = work.await.map_err(Arc::new);
                        let _ = tell.send(Some(done));
                    });
                    let flight = Arc::new(Flight {
                        outcome,
                        task: task.abort_handle(),
                    });
                    all.insert(key.clone(), Arc::downgrade(&flight));
                    (flight, false)
                }
            }
        };
        let mut outcome = flight.outcome.clone();
        let done = match outcome.wait_for(Option::is_some).await {
            Ok(done) => match &*done {
                Some(Err(e)) => Err(again(e)),
                Some(Ok(fetched)) => Ok(*fetched),
                None => Ok(false),
            },
            Err(_) => Err(Error::new(ErrorKind::Internal, "a fetch ended without a word").at(key)),
        };
        drop(flight);
        let mut all = self.all();
        if all.get(key).is_some_and(|f| f.strong_count() == 0) {
            all.remove(key);
        }
        (done, joined)
    }
}

/// The same error for one more who waited.
fn again(e: &Error) -> Error {
    let copy = Error::new(e.kind(), e.message()).during(e.operation());
    let copy = match e.location() {
        Some(at) => copy.at(at),
        None => copy,
    };
    match e.next_step() {
        Some(hint) => copy.hint(hint),
        None => copy,
    }
}
