//! How the library reports on long work, and how it is asked to stop. It never draws.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use crate::error::{Error, ErrorKind, Result};

/// Receives reports. All methods may be called from several threads.
pub trait Progress: Send + Sync {
    /// A stage of the work begins, with so many objects and bytes to do (0: not known).
    fn begin(&self, stage: &'static str, objects: u64, bytes: u64);
    /// So many more objects and bytes are done.
    fn advance(&self, objects: u64, bytes: u64);
    /// The stage is over.
    fn end(&self);
}

/// Reports to nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _: &'static str, _: u64, _: u64) {}
    fn advance(&self, _: u64, _: u64) {}
    fn end(&self) {}
}

/// A request to stop: no new work is begun, what is under way is finished, the rest can be
/// resumed. Cheap to clone; clones are the same request.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<State>);

#[derive(Debug, Default)]
struct State {
    asked: AtomicBool,
    wake: Notify,
}

impl Cancel {
    /// Asks to stop.
    pub fn cancel(&self) {
        self.0.asked.store(true, Ordering::SeqCst);
        self.0.wake.notify_waiters();
    }

    /// True once somebody asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.asked.load(Ordering::SeqCst)
    }

    /// Ends when somebody asks.
    pub async fn cancelled(&self) {
        loop {
            let woken = self.0.wake.notified();
            if self.is_cancelled() {
                return;
            }
            woken.await;
        }
    }

    /// An error once somebody asked.
    ///
    /// # Errors
    ///
    /// `Cancelled`.
    pub fn check(&self) -> Result<()> {
        match self.is_cancelled() {
            true => Err(Error::new(ErrorKind::Cancelled, "stopped on request")),
            false => Ok(()),
        }
    }
}
