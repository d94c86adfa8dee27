//! What a fork would find at its destination, before it is begun.

use crate::error::Result;
use crate::progress::Progress;
use crate::restore::{CostModel, Done};
use crate::store::Stores;

use super::PlannedFork;
use super::site::prove;
use super::workers::{plan_the_rest, plan_unseen};

/// What lies at the destination of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// The fork is there and whole: run again, it is only proved again.
    Committed,
    /// It is not there yet; this much an earlier run has done.
    Open(Done),
}

/// Looks what the fork would find at its destination, and refuses what the fork would refuse. Writes nothing.
///
/// Costs two requests and one listing if the destination is empty, else one listing per 1,000 objects and the reading of
/// the journal or of the commit object. On local disk, a folder or a link in the way of a file is not seen.
///
/// # Errors
///
/// `Refused` if another snapshot or another fork is there, or if something that is not ours lies at a destination;
/// `Corrupt` if the fork is committed and damaged.
pub async fn look_ahead(
    stores: &Stores,
    planned: &PlannedFork,
    progress: &dyn Progress,
) -> Result<Outlook> {
    let site = planned.site(stores)?;
    if site.is_committed(|| Ok(planned.metadata.clone())).await? {
        prove(stores, &planned.plan, progress).await?;
        return Ok(Outlook::Committed);
    }
    if !site.is_under_way().await? {
        site.refuse_taken(&planned.places()).await?;
        return Ok(Outlook::Open(Done::default()));
    }
    let whole = plan_unseen(planned, 1, &CostModel::default())?;
    let plan = plan_the_rest(stores, &site, whole, 1, progress).await?;
    Ok(Outlook::Open(
        plan.terms.map(|t| t.done).unwrap_or_default(),
    ))
}
