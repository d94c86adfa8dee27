//! Receipts on their way to the journal, while the copies go on.

use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::error::{Error, ErrorKind, Result};

use super::journal::Journal;
use super::receipt::Receipt;

/// As soon as so many receipts have come together they are written...
const AT_ONCE: usize = 1_000;
/// ...and so many may wait for a write that takes long, before no further copy is begun.
const MOST_WAITING: usize = 10_000;

/// Collects receipts and writes them, one write at a time. Without a journal it takes none.
pub(super) struct JournalWriter {
    journal: Option<Arc<Journal>>,
    unwritten: Vec<Receipt>,
    writing: Option<JoinHandle<Result<()>>>,
}

impl JournalWriter {
    pub(super) fn new(journal: Option<Arc<Journal>>) -> JournalWriter {
        JournalWriter {
            journal,
            unwritten: Vec::new(),
            writing: None,
        }
    }

    /// Takes a receipt; a write begins when there are enough.
    pub(super) fn push(&mut self, receipt: Receipt) {
        if self.journal.is_some() {
            self.unwritten.push(receipt);
            if self.unwritten.len() >= AT_ONCE {
                self.begin();
            }
        }
    }

    /// There is something to write, and nothing under way.
    pub(super) fn may_begin(&self) -> bool {
        self.writing.is_none() && !self.unwritten.is_empty()
    }

    /// Begins to write what there is, unless a write is under way.
    pub(super) fn begin(&mut self) {
        if self.may_begin()
            && let Some(journal) = self.journal.clone()
        {
            let receipts = std::mem::take(&mut self.unwritten);
            // A task of its own goes on even while copies end faster than they can be looked at.
            self.writing = Some(tokio::spawn(async move { journal.add(receipts).await }));
        }
    }

    pub(super) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Writing is so slow that no more receipts should come.
    pub(super) fn is_full(&self) -> bool {
        self.unwritten.len() >= MOST_WAITING
    }

    /// Waits for the write under way, if one is. May be dropped and called again.
    pub(super) async fn written(&mut self) -> Result<()> {
        let Some(writing) = &mut self.writing else {
            return Ok(());
        };
        let ended = writing.await;
        self.writing = None;
        ended
            .map_err(|e| Error::new(ErrorKind::Internal, format!("writing receipts ended: {e}")))?
    }

    /// Writes all that is left.
    pub(super) async fn finish(&mut self) -> Result<()> {
        let before = self.written().await;
        self.begin();
        // Also after a failure: each receipt saves a copy.
        before.and(self.written().await)
    }
}
