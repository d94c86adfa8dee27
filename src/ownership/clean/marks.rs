//! Ledger and marks of one clean: what others see of it. I/O.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, Result};
use crate::store::Location;

use super::super::access::Access;
use super::super::layout::Place;
use super::super::pin::list;
use super::super::record::{
    self, MARK_MARGIN_MS, Mark, RECORD_LIMIT_BYTES, RECORD_VERSION, ledger_at, marks_in, nonce,
};
use super::plan::{PlanHeader, PlanSource};

/// One root's entry in the ledger: a plan that is being applied. Written before all else, removed when all that the plan names is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LedgerEntry {
    version: u32,
    nonce: String,
    pub(crate) plan: String,
    /// When it was opened: the grace period begins.
    pub(crate) opened_unix_ms: u64,
    /// No run of the plan begins a deletion from then on, in milliseconds since 1970: of a plan that nobody keeps.
    /// The entry of one that is kept stays until the plan was applied to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until_unix_ms: Option<u64>,
    objects: u64,
    bytes: u64,
}

/// What is marked in the folder of one job: snapshots by name, and whether orphans go too.
pub(crate) type Homes = BTreeMap<Location, (Vec<String>, bool)>;

/// What a plan would mark.
pub(crate) fn homes(header: &PlanHeader, plan: &PlanSource) -> Result<Homes> {
    let mut homes = Homes::new();
    for snapshot in &header.snapshots {
        if let Some(home) = snapshot.directory.parent() {
            homes
                .entry(home)
                .or_default()
                .0
                .push(snapshot.directory.name().to_string());
        }
    }
    plan.each(|entry| {
        if entry.of.is_some() {
            return;
        }
        let root = header
            .roots
            .iter()
            .find(|root| root.contains(&entry.object));
        // Whoever writes to one of them looks for a mark in that one alone.
        for home in root.map_or_else(Vec::new, |root| Place::homes(root, &entry.object)) {
            homes.entry(home).or_default().1 = true;
        }
    })?;
    Ok(homes)
}

/// The ledger's entry for the plan, opened by this run or by an earlier one. `once_ms`: how long the only run of a
/// plan that nobody keeps may delete.
pub(crate) async fn open_ledger(
    access: &dyn Access,
    header: &PlanHeader,
    once_ms: Option<u64>,
) -> Result<(Location, LedgerEntry)> {
    let Some(root) = header.roots.first() else {
        return Err(crate::Error::corrupt("a plan without a root"));
    };
    let at = ledger_at(root, &header.plan);
    loop {
        let opened_unix_ms = access.now();
        let entry = LedgerEntry {
            version: RECORD_VERSION,
            nonce: nonce(access),
            plan: header.plan.clone(),
            opened_unix_ms,
            until_unix_ms: once_ms.map(|ms| opened_unix_ms.saturating_add(ms)),
            objects: header.objects,
            bytes: header.bytes,
        };
        match access.create(&at, record::encode(&entry)?).await {
            Ok(()) => return Ok((at, entry)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e.during("open the ledger")),
        }
        match access.read(&at, RECORD_LIMIT_BYTES).await {
            Ok(bytes) => {
                let entry = record::decode(&bytes, &at)?;
                return Ok((at, entry));
            }
            // Another run has closed it just now.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
}

/// Writes a mark of the name `name` for each job; one that is there stays.
pub(crate) async fn write_marks(
    access: &dyn Access,
    header: &PlanHeader,
    homes: &Homes,
    name: &str,
    until_unix_ms: u64,
) -> Result<()> {
    for (home, (snapshots, orphans)) in homes {
        let mark = Mark {
            version: RECORD_VERSION,
            nonce: nonce(access),
            plan: header.plan.clone(),
            created_unix_ms: access.now(),
            until_unix_ms,
            snapshots: snapshots.clone(),
            orphans: *orphans,
            fork: None,
        };
        let at = marks_in(home).child(&format!("{name}.json"));
        match access.create(&at, record::encode(&mark)?).await {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e.during("mark")),
            _ => {}
        }
    }
    Ok(())
}

/// Removes the marks of the name `name`.
pub(crate) async fn remove_marks(access: &dyn Access, homes: &Homes, name: &str) -> Result<()> {
    for home in homes.keys() {
        let at = marks_in(home).child(&format!("{name}.json"));
        access.delete(&at).await?;
        access.remove_empty_folders(&at, home).await;
    }
    Ok(())
}

/// Removes what runs that were killed have left for the folder `home` of a job: marks whose time is up, and the
/// ledger's entries of plans that nobody keeps, once no run of them can be at work. One or two listings, and a
/// read of each.
///
/// A mark whose time is not up stays, whoever left it: nobody can tell a run that was killed from one that is
/// only slow, and its deletions are announced by nothing else.
///
/// # Errors
///
/// If what is there cannot be listed. What cannot be read or removed stays, and means nothing.
pub(crate) async fn remove_ended(access: &dyn Access, home: &Location) -> Result<()> {
    let ledgers = ledger_at(home, "x").parent();
    for folder in std::iter::once(marks_in(home)).chain(ledgers) {
        for at in list(access, &folder).await? {
            if at.name().ends_with(".json") && is_over(access, &at, folder == marks_in(home)).await
            {
                if let Err(e) = access.delete(&at).await {
                    tracing::warn!(%at, error = %e, "it is over and could not be removed");
                    continue;
                }
                access.remove_empty_folders(&at, home).await;
            }
        }
    }
    Ok(())
}

async fn is_over(access: &dyn Access, at: &Location, is_mark: bool) -> bool {
    let Ok(bytes) = access.read(at, RECORD_LIMIT_BYTES).await else {
        return false;
    };
    let until = match is_mark {
        true => record::decode::<Mark>(&bytes, at).map(|mark| Some(mark.until_unix_ms)),
        false => record::decode::<LedgerEntry>(&bytes, at).map(|entry| entry.until_unix_ms),
    };
    let end = until
        .ok()
        .flatten()
        .map(|until| until.saturating_add(MARK_MARGIN_MS));
    end.is_some_and(|end| access.now() >= end)
}
