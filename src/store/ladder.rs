//! How sure are we that a duplicate is one: the verification ladder.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use crate::error::Result;

use super::location::Location;
use super::open::Stores;
use super::receipt::Receipt;

/// Contents compared at once.
const COMPARED_AT_ONCE: usize = 8;

/// A step of the ladder; each includes those below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// The service's answer was read to the end and is a success. No request.
    None,
    /// The destination is there with the right size: one listing per 1,000 objects.
    Size,
    /// The services' own hashes of both objects are equal; where they are not comparable, the
    /// contents are.
    Checksum,
    /// Both objects were read and compared, byte for byte.
    Content,
}

impl Level {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::None => "none",
            Level::Size => "size",
            Level::Checksum => "checksum",
            Level::Content => "content",
        }
    }
}

/// Remembers what should be at a destination, in 16 bytes an object, and finds out whether it is.
#[derive(Debug, Default)]
pub struct Expected {
    sizes: HashMap<u64, u64>,
}

impl Expected {
    /// Remembers one object.
    pub fn add(&mut self, at: &Location, size: u64) {
        self.sizes.insert(key_hash(at), size);
    }

    /// Lists `folder` and returns how many of the remembered objects are there with their size, and
    /// the others that the listing shows with a wrong one. One request per 1,000 objects.
    ///
    /// # Errors
    ///
    /// Those of [`Stores::list_stream`].
    pub async fn check(mut self, stores: &Stores, folder: &Location) -> Result<Checked> {
        let mut checked = Checked::default();
        let mut listing = stores.list_stream(folder)?;
        while let Some((at, stat)) = listing.try_next().await? {
            match self.sizes.remove(&key_hash(&at)) {
                Some(size) if size == stat.size => checked.right += 1,
                Some(size) => checked.wrong.push((at, size, stat.size)),
                None => {}
            }
        }
        checked.missing = self.sizes.len() as u64;
        Ok(checked)
    }
}

/// What a listing showed.
#[derive(Debug, Default)]
pub struct Checked {
    /// Objects that are there with the right size.
    pub right: u64,
    /// Objects of another size: where, the right size, the size found.
    pub wrong: Vec<(Location, u64, u64)>,
    /// Objects that the listing does not show.
    pub missing: u64,
}

fn key_hash(at: &Location) -> u64 {
    let mut hasher = DefaultHasher::new();
    at.key().hash(&mut hasher);
    hasher.finish()
}

impl Stores {
    /// Proves one duplicate up to `level` and returns the step reached: [`Level::Checksum`] where
    /// equal hashes of the whole content are known, else [`Level::Content`]. `None`: they differ.
    ///
    /// # Errors
    ///
    /// If the objects cannot be read.
    pub async fn prove(&self, receipt: &Receipt, level: Level) -> Result<Option<Level>> {
        if level == Level::Checksum {
            let (a, b) =
                tokio::try_join!(self.stat(&receipt.source), self.stat(&receipt.destination))?;
            match super::duplicate::plain_hashes(a.tag.as_deref(), b.tag.as_deref()) {
                Some(true) if a.size == b.size => return Ok(Some(Level::Checksum)),
                Some(_) => return Ok(None),
                None => {}
            }
        }
        let equal = self
            .same_content(&receipt.source, &receipt.destination, receipt.bytes)
            .await?;
        Ok(equal.then_some(Level::Content))
    }

    /// As [`Stores::prove`] for many; returns how many reached which step, and those that differ.
    ///
    /// # Errors
    ///
    /// The first error.
    pub async fn prove_all(
        &self,
        receipts: &[Receipt],
        level: Level,
    ) -> Result<(HashMap<Level, u64>, Vec<Location>)> {
        let mut reached = HashMap::new();
        let mut different = Vec::new();
        // Owned: the compiler does not see that what takes a reference may go to other threads.
        let mut proofs = futures::stream::iter(receipts.iter().cloned())
            .map(|receipt| async move {
                let step = self.prove(&receipt, level).await?;
                Ok::<_, crate::Error>((receipt.destination, step))
            })
            .buffer_unordered(COMPARED_AT_ONCE);
        while let Some((destination, step)) = proofs.try_next().await? {
            match step {
                Some(step) => *reached.entry(step).or_default() += 1,
                None => different.push(destination),
            }
        }
        Ok((reached, different))
    }
}
