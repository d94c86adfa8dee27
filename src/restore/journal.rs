//! The receipts of a fork under way, kept beside it, so that another run can prove what is done.
//!
//! Below `ROOT/.forkpoint/FORK_ID/` lie small objects of a few receipts each, one JSON document a
//! line; nothing is ever changed, only added. When the fork is proved, the folder is removed: a
//! finished fork holds nothing that its engine does not know.

use std::collections::HashMap;

use bytes::Bytes;

use crate::clock;
use crate::error::{ErrorKind, Result};
use crate::store::{Location, Receipt, Stores, remove_empty_folders};

/// Largest journal object that is read, in bytes.
const LIMIT_BYTES: u64 = 64 * 1024 * 1024;

/// The journal of one fork.
#[derive(Debug, Clone)]
pub struct Journal {
    root: Location,
    folder: Location,
}

impl Journal {
    /// The journal of the fork `fork_id` below `root`. No request.
    ///
    /// # Errors
    ///
    /// None for a well-formed id.
    pub fn new(root: &Location, fork_id: &str) -> Result<Journal> {
        let folder = root.join(&format!(".forkpoint/{fork_id}"))?;
        Ok(Journal {
            root: root.clone(),
            folder,
        })
    }

    /// All receipts written so far, by destination. One listing and one read per journal object.
    /// A line that does not parse proves nothing and is passed over.
    ///
    /// # Errors
    ///
    /// If the journal is there and cannot be read.
    pub async fn receipts(&self, stores: &Stores) -> Result<HashMap<Location, Receipt>> {
        let mut receipts = HashMap::new();
        for (at, _) in self.objects(stores).await? {
            let bytes = match stores.read(&at, LIMIT_BYTES).await {
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                other => other?,
            };
            for line in bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
                match serde_json::from_slice::<Receipt>(line) {
                    Ok(receipt) => {
                        receipts.insert(receipt.destination.clone(), receipt);
                    }
                    Err(e) => tracing::warn!(%at, %e, "a receipt is unreadable and proves nothing"),
                }
            }
        }
        Ok(receipts)
    }

    async fn objects(&self, stores: &Stores) -> Result<Vec<(Location, crate::store::Stat)>> {
        match stores.list(&self.folder).await {
            Err(e) if e.kind() == ErrorKind::NotFound && !e.message().contains("bucket") => {
                Ok(Vec::new())
            }
            other => other,
        }
    }

    /// Adds receipts. One request.
    ///
    /// # Errors
    ///
    /// Those of [`Stores::put`].
    pub async fn add(&self, stores: &Stores, receipts: &[Receipt]) -> Result<()> {
        if receipts.is_empty() {
            return Ok(());
        }
        let mut text = Vec::new();
        for receipt in receipts {
            serde_json::to_writer(&mut text, receipt)
                .map_err(|e| crate::Error::new(ErrorKind::Internal, e.to_string()))?;
            text.push(b'\n');
        }
        let at = self
            .folder
            .join(&format!("receipts-{:016x}.jsonl", clock::random_id()))?;
        stores.put(&at, Bytes::from(text), true).await?;
        Ok(())
    }

    /// Removes the journal. One listing and one request per journal object.
    ///
    /// # Errors
    ///
    /// Those of [`Stores::delete`].
    pub async fn remove(&self, stores: &Stores) -> Result<()> {
        for (at, _) in self.objects(stores).await? {
            stores.delete(&at).await?;
        }
        if self.folder.local_path().is_some() {
            remove_empty_folders(&self.folder, &self.root);
        }
        Ok(())
    }
}
