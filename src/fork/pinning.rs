//! The pin that keeps a source while its fork runs.

use crate::error::{ErrorKind, Result};
use crate::ownership::{PinRequest, pin, unpin};
use crate::store::{Location, Stores};

/// Pins the source; where it cannot be written to, says why instead.
///
/// # Errors
///
/// `Refused` if a cleaner is about to delete the source, `NotFound` if it is gone.
pub(super) async fn pin_source(
    stores: &Stores,
    source: &Location,
    request: &PinRequest,
) -> Result<Option<String>> {
    match pin(stores, source, request).await {
        Ok(_) => Ok(None),
        // Read-only sources are common, and a reader of them has no say in what is deleted there.
        Err(e) if cannot_be_written(e.kind()) => Ok(Some(e.to_string())),
        Err(e) => Err(e),
    }
}

/// Removes the pin; fine if there is none.
///
/// # Errors
///
/// If the store does not let it go; the pin then names the fork and how to remove it.
pub(super) async fn unpin_source(
    stores: &Stores,
    source: &Location,
    request: &PinRequest,
) -> Result<()> {
    match unpin(stores, source, &request.name).await {
        // There can be none where none could be written.
        Err(e) if cannot_be_written(e.kind()) => {
            tracing::warn!(%source, error = %e, "a pin that may be there could not be removed");
            Ok(())
        }
        other => other,
    }
}

pub(super) fn cannot_be_written(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Denied | ErrorKind::Unsupported | ErrorKind::Invalid
    )
}
