//! Copies that take several requests, and how a later run finds them again.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::Result;

use super::location::Location;

/// A copy under way: an S3 upload in parts, or a Google rewrite that needs more calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfinished {
    /// The object being written.
    pub destination: Location,
    /// What the source was pinned to.
    pub source_tag: Option<String>,
    /// The service's name for it: upload id or rewrite token. `None` in the note that is made
    /// before the service is asked for one.
    pub token: Option<String>,
    /// Size of each part but the last, in bytes; 0 where the service decides.
    pub part_size: u64,
}

/// Remembers copies under way, so that a run that was killed leaves nothing unknown behind.
#[async_trait]
pub trait UnfinishedLog: Send + Sync {
    /// What is remembered for a destination.
    ///
    /// # Errors
    ///
    /// If it is not known yet and could not be read.
    async fn find(&self, destination: &Location) -> Result<Option<Unfinished>>;

    /// Remembers, durably before it returns. A later note for the same destination replaces an
    /// earlier one.
    ///
    /// # Errors
    ///
    /// If it could not be written; the copy is then not begun.
    async fn opened(&self, unfinished: &Unfinished) -> Result<()>;

    /// Forgets: the copy is complete, or was undone.
    ///
    /// # Errors
    ///
    /// If it could not be written.
    async fn closed(&self, destination: &Location) -> Result<()>;
}

/// Remembers nothing: for single copies that are begun anew after a crash.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoLog;

#[async_trait]
impl UnfinishedLog for NoLog {
    async fn find(&self, _: &Location) -> Result<Option<Unfinished>> {
        Ok(None)
    }

    async fn opened(&self, _: &Unfinished) -> Result<()> {
        Ok(())
    }

    async fn closed(&self, _: &Location) -> Result<()> {
        Ok(())
    }
}
