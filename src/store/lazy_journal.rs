//! A journal that is looked for only when something needs it.
//!
//! Most trees are files that one request copies each: they leave nothing under way, and a listing to
//! learn that no earlier run has left anything either would be their only request besides.

use std::fmt;

use async_trait::async_trait;
use tokio::sync::OnceCell;

use crate::error::Result;

use super::journal::Journal;
use super::location::Location;
use super::open::Stores;
use super::unfinished::{Unfinished, UnfinishedLog};

/// The journal `id` below `root`, opened by the first copy that takes several requests.
pub struct LazyJournal {
    stores: Stores,
    root: Location,
    id: String,
    opened: OnceCell<Journal>,
}

impl fmt::Debug for LazyJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyJournal")
            .field("root", &self.root)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl LazyJournal {
    /// No request.
    pub fn new(stores: &Stores, root: &Location, id: &str) -> LazyJournal {
        LazyJournal {
            stores: stores.clone(),
            root: root.clone(),
            id: id.to_string(),
            opened: OnceCell::new(),
        }
    }

    /// The journal, opened now at the latest.
    ///
    /// # Errors
    ///
    /// Those of [`Journal::open`].
    pub async fn journal(&self) -> Result<&Journal> {
        self.opened
            .get_or_try_init(|| Journal::open(&self.stores, &self.root, &self.id))
            .await
    }

    /// Ends what is still under way and removes the journal. Nothing if it was never opened, unless
    /// `earlier` says that an earlier run was here: it may have left something.
    ///
    /// # Errors
    ///
    /// Those of [`Journal::open`], [`Stores::undo_unfinished`] and [`Journal::remove`].
    pub async fn finish(&self, earlier: bool) -> Result<()> {
        if !earlier && !self.opened.initialized() {
            return Ok(());
        }
        let journal = self.journal().await?;
        self.stores.undo_unfinished(journal).await?;
        journal.remove().await
    }
}

#[async_trait]
impl UnfinishedLog for LazyJournal {
    async fn find(&self, destination: &Location) -> Result<Option<Unfinished>> {
        self.journal().await?.find(destination).await
    }

    async fn opened(&self, unfinished: &Unfinished) -> Result<()> {
        self.journal().await?.opened(unfinished).await
    }

    async fn closed(&self, destination: &Location) -> Result<()> {
        self.journal().await?.closed(destination).await
    }
}
