//! The proof that a snapshot stands alone: pure, over the references that were really written.

use std::collections::HashSet;
use std::fmt;

use crate::snapshot::Snapshot;
use crate::store::Location;

/// A reference that should not be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What is referred to.
    pub location: Location,
    /// Why it must not be.
    pub reason: ViolationReason,
}

/// Why a reference breaks independence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViolationReason {
    /// It leaves the root of the fork.
    OutsideRoot,
    /// It is none of the places that the plan wrote to.
    NotOfThePlan,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.reason {
            ViolationReason::OutsideRoot => "lies outside the root of the fork",
            ViolationReason::NotOfThePlan => "is none of the places the plan wrote to",
        };
        write!(f, "{} {why}", self.location)
    }
}

/// All references of `snapshot` that leave `root` or are not among `written`. An empty answer
/// proves that no object of another snapshot is needed, and that no folder of another snapshot
/// goes when this one does.
pub fn find_violations(
    snapshot: &Snapshot,
    root: &Location,
    written: &HashSet<Location>,
) -> Vec<Violation> {
    let objects = snapshot.objects.iter().map(|o| &o.location);
    let folders = snapshot.folders.iter().map(|f| &f.location);
    objects
        .chain(folders)
        .filter_map(|location| {
            let reason = if !root.contains(location) {
                ViolationReason::OutsideRoot
            } else if !written.contains(location) {
                ViolationReason::NotOfThePlan
            } else {
                return None;
            };
            Some(Violation {
                location: location.clone(),
                reason,
            })
        })
        .collect()
}
