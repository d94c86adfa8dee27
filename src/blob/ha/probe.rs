//! What the HA store must really do, found out by trying: some servers ignore conditions.

use bytes::Bytes;
use serde::Serialize;

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Location;

use super::HaStore;

/// What the store does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StoreAbilities {
    /// A create-if-absent leaves an existing object as it is and says so.
    pub create_if_absent: bool,
    /// Of several creates of one name at once, one wins and its bytes are there.
    pub one_winner: bool,
    /// What was written is in the next listing, and what was removed is not.
    pub listing_is_current: bool,
    /// What was written is read back.
    pub reads_own_writes: bool,
}

impl StoreAbilities {
    /// The first thing that is lacking.
    pub fn lacking(&self) -> Option<&'static str> {
        match self {
            a if !a.reads_own_writes => Some("it does not give back what was written"),
            a if !a.create_if_absent => Some(
                "it ignores create-if-absent: a second create replaced the object of the first",
            ),
            a if !a.one_winner => Some("of several creates of one name more than one succeeded"),
            a if !a.listing_is_current => Some("its listings do not show what was just written"),
            _ => None,
        }
    }

    /// Fails if something is lacking.
    ///
    /// # Errors
    ///
    /// `Unsupported` with what is lacking.
    pub fn check(&self, at: &Location) -> Result<()> {
        match self.lacking() {
            None => Ok(()),
            Some(why) => Err(Error::new(
                ErrorKind::Unsupported,
                format!("this store cannot be an HA store: {why}"),
            )
            .during("probe")
            .at(at)
            .hint("two servers could both believe that they own the cluster; use a store that honours conditional writes")),
        }
    }
}

/// Creates at once of one name.
const RIVALS: usize = 4;

impl HaStore {
    /// Tries it out with objects of its own beside the cluster's folder, which are removed again. About a
    /// dozen requests.
    ///
    /// # Errors
    ///
    /// What reading, writing and listing give.
    pub async fn probe(&self) -> Result<StoreAbilities> {
        let name = format!("{}.probe-{:016x}", self.folder.name(), clock::random_id());
        let folder = match self.folder.parent() {
            Some(parent) => parent.join(&name)?,
            None => self.folder.join(&name)?,
        };
        let result = self.try_out(&folder).await;
        for (at, _) in self.stores.list(&folder).await? {
            self.stores.delete(&at).await?;
        }
        let inside = folder.join("x")?;
        let above = folder.parent().unwrap_or_else(|| folder.clone());
        self.stores.remove_empty_folders(&inside, &above).await;
        result
    }

    async fn try_out(&self, folder: &Location) -> Result<StoreAbilities> {
        let first = folder.join("first")?;
        let bytes = |n: usize| Bytes::from(format!("{n} {:016x}", clock::random_id()));
        let (one, two) = (bytes(1), bytes(2));
        self.stores.put(&first, one.clone(), true).await?;
        let reads_own_writes = self.stores.read(&first, 1024).await? == one;
        let refused = match self.stores.put(&first, two, true).await {
            Ok(_) => false,
            Err(e) if e.kind() == ErrorKind::AlreadyExists => true,
            Err(e) => return Err(e),
        };
        let create_if_absent = refused && self.stores.read(&first, 1024).await? == one;

        let contested = folder.join("contested")?;
        let all: Vec<Bytes> = (0..RIVALS).map(bytes).collect();
        let rivals = all
            .iter()
            .map(|b| self.stores.put(&contested, b.clone(), true));
        let mut winners = Vec::new();
        for (outcome, bytes) in futures::future::join_all(rivals)
            .await
            .into_iter()
            .zip(&all)
        {
            match outcome {
                Ok(_) => winners.push(bytes.clone()),
                Err(e) if matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::Conflict) => {}
                Err(e) => return Err(e),
            }
        }
        let there = self.stores.read(&contested, 1024).await?;
        let one_winner = winners == [there];

        let listed = self.stores.list(folder).await?;
        let shows = |at: &Location| listed.iter().any(|(found, _)| found == at);
        let shown = shows(&first) && shows(&contested) && listed.len() == 2;
        self.stores.delete(&contested).await?;
        let listed = self.stores.list(folder).await?;
        let gone = !listed.iter().any(|(found, _)| *found == contested);
        Ok(StoreAbilities {
            create_if_absent,
            one_winner,
            listing_is_current: shown && gone,
            reads_own_writes,
        })
    }
}
