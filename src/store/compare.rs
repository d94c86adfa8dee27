//! Are two objects equal, byte for byte? And what is the digest of one?

use crate::error::Result;
use crate::progress::Cancel;

use super::digest::{RunningSha256, Sha256Sum};
use super::duplicate::{CopyOrder, Preserve};
use super::location::Location;
use super::open::Stores;
use super::relay;

/// Bytes of each side that are compared at once.
const STEP_BYTES: u64 = 8 * 1024 * 1024;

impl Stores {
    /// Reads both objects and compares them. Both must be `size` bytes long. One request per 8 MiB
    /// and side; stops at the first difference.
    ///
    /// # Errors
    ///
    /// If one of them cannot be read, or is not `size` bytes long.
    pub async fn same_content(&self, one: &Location, other: &Location, size: u64) -> Result<bool> {
        let mut start = 0;
        while start < size {
            let end = (start + STEP_BYTES).min(size);
            let _memory = self.relay_budget(2 * (end - start)).await;
            let (a, b) = tokio::try_join!(
                self.range(one, size, start, end),
                self.range(other, size, start, end)
            )?;
            if a != b {
                return Ok(false);
            }
            start = end;
        }
        Ok(true)
    }

    /// Reads an object of `size` bytes and gives the digest of it. One request per 8 MiB.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is not `size` bytes long.
    pub async fn sha256_of(&self, at: &Location, size: u64) -> Result<Sha256Sum> {
        let mut sum = RunningSha256::default();
        let mut start = 0;
        while start < size {
            let end = (start + STEP_BYTES).min(size);
            let _memory = self.relay_budget(end - start).await;
            sum = sum.feed(&self.range(at, size, start, end).await?).await?;
            start = end;
        }
        Ok(sum.sum())
    }

    async fn range(&self, at: &Location, size: u64, start: u64, end: u64) -> Result<bytes::Bytes> {
        let order = CopyOrder {
            source: at,
            destination: at,
            size,
            source_tag: None,
            source_etag: None,
            storage_class: None,
            create_only: false,
            preserve: Preserve::NONE,
            sync: false,
            cancel: &Cancel::default(),
        };
        relay::read_range(self, &order, start, end).await
    }
}
