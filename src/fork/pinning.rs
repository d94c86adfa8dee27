//! The pin that keeps a source while its fork runs.

use crate::error::{ErrorKind, Result};
use crate::ownership::{PinRequest, pin, unpin};
use crate::restore::ForkPlan;
use crate::store::Stores;

/// Pins the source; where it cannot be written to, says why instead.
///
/// # Errors
///
/// `Refused` if a cleaner is about to delete the source, `NotFound` if it is gone.
pub(super) async fn pin_source(stores: &Stores, plan: &ForkPlan) -> Result<Option<String>> {
    let request = PinRequest::of_fork(&plan.fork_id, &plan.destination);
    match pin(stores, &plan.source, &request).await {
        Ok(_) => Ok(None),
        // Read-only sources are common, and a reader of them has no say in what is deleted there.
        Err(e)
            if matches!(
                e.kind(),
                ErrorKind::Denied | ErrorKind::Unsupported | ErrorKind::Invalid
            ) =>
        {
            Ok(Some(e.to_string()))
        }
        Err(e) => Err(e),
    }
}

/// Removes the pin; fine if there is none.
///
/// # Errors
///
/// If the store does not let it go; the pin then names the fork and how to remove it.
pub(super) async fn unpin_source(stores: &Stores, plan: &ForkPlan) -> Result<()> {
    let request = PinRequest::of_fork(&plan.fork_id, &plan.destination);
    match unpin(stores, &plan.source, &request.name).await {
        // There can be none where none could be written.
        Err(e)
            if matches!(
                e.kind(),
                ErrorKind::Denied | ErrorKind::Unsupported | ErrorKind::Invalid
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}
