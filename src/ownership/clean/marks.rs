//! Ledger and marks of one clean: what others see of it. I/O.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, Result};
use crate::store::Location;

use super::super::access::Access;
use super::super::layout::Place;
use super::super::record::{
    self, Mark, RECORD_LIMIT_BYTES, RECORD_VERSION, ledger_at, marks_in, nonce,
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
        let place = root.map(|root| Place::of(root, &entry.object, entry.bytes.max(1)));
        if let Some(home) = place.as_ref().and_then(Place::home) {
            match homes.get_mut(home) {
                Some(known) => known.1 = true,
                None => {
                    homes.insert(home.clone(), (Vec::new(), true));
                }
            }
        }
    })?;
    Ok(homes)
}

/// The ledger's entry for the plan, opened by this run or by an earlier one.
pub(crate) async fn open_ledger(
    access: &dyn Access,
    header: &PlanHeader,
) -> Result<(Location, LedgerEntry)> {
    let Some(root) = header.roots.first() else {
        return Err(crate::Error::corrupt("a plan without a root"));
    };
    let at = ledger_at(root, &header.plan);
    loop {
        let entry = LedgerEntry {
            version: RECORD_VERSION,
            nonce: nonce(access),
            plan: header.plan.clone(),
            opened_unix_ms: access.now(),
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
