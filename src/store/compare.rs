//! Are two objects equal, byte for byte?

use object_store::{ObjectStore, ObjectStoreExt};

use crate::error::Result;

use super::duplicate::CopyOrder;
use super::errors;
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

    async fn range(&self, at: &Location, size: u64, start: u64, end: u64) -> Result<bytes::Bytes> {
        let order = CopyOrder {
            source: at,
            destination: at,
            size,
            source_tag: None,
            source_etag: None,
            create_only: false,
        };
        relay::read_range(self, &order, start, end).await
    }
}

/// Reads source and destination of a copy, both of the source's size, and compares them.
pub(crate) async fn same_bytes(
    order: &CopyOrder<'_>,
    from: &dyn ObjectStore,
    to: &dyn ObjectStore,
) -> Result<bool> {
    let (one, other) = (
        order.source.object_path()?,
        order.destination.object_path()?,
    );
    let mut start = 0;
    while start < order.size {
        let end = (start + STEP_BYTES).min(order.size);
        let (a, b) = tokio::join!(
            from.get_range(&one, start..end),
            to.get_range(&other, start..end)
        );
        let a = a.map_err(|e| errors::from_client(e, "read", order.source))?;
        let b = b.map_err(|e| errors::from_client(e, "read", order.destination))?;
        if a != b || a.len() as u64 != end - start {
            return Ok(false);
        }
        start = end;
    }
    Ok(true)
}
