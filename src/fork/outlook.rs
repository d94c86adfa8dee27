//! What a fork would find at its destination, before it is begun.

use crate::error::Result;
use crate::progress::Progress;
use crate::restore::{CostModel, Done};
use crate::store::Stores;

use super::PlannedFork;
use super::workers::plan_workers;

/// What lies at the destination of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// The fork is there: run again, it is only proved again.
    Committed,
    /// It is not there yet; this much an earlier run has done.
    Open(Done),
}

/// Looks what the fork would find at its destination, and refuses what the fork would refuse. Writes nothing.
///
/// Costs two requests and one listing if the destination is empty, else one listing per 1,000 objects and the reading of
/// the journal.
///
/// # Errors
///
/// `Refused` if another snapshot or another fork is there, or if something that is not ours lies at a destination.
pub async fn look_ahead(
    stores: &Stores,
    planned: &PlannedFork,
    progress: &dyn Progress,
) -> Result<Outlook> {
    let site = planned.site(stores)?;
    if site.is_committed(|| Ok(planned.metadata.clone())).await? {
        return Ok(Outlook::Committed);
    }
    let plan = plan_workers(stores, planned, 1, &CostModel::default(), progress).await?;
    Ok(Outlook::Open(
        plan.terms.map(|t| t.done).unwrap_or_default(),
    ))
}
