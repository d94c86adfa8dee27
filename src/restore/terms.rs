//! What a fork that many workers share is understood by, besides who does what.

use serde::{Deserialize, Serialize};

use crate::snapshot::LookupRules;
use crate::store::Location;

use super::destination::Naming;

/// What a worker needs to derive the fork again from the snapshot's own metadata, so that it need
/// not trust the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkTerms {
    /// The commit object of the snapshot that is forked.
    pub commit: Location,
    /// Where its files are, if not where the metadata says.
    #[serde(default)]
    pub lookup: LookupRules,
    /// How the duplicates are named.
    #[serde(default)]
    pub naming: Naming,
    /// What an earlier attempt had done when the plan was made. It is not among the tasks.
    #[serde(default)]
    pub done: Done,
}

/// What is done already of a fork.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Objects that a receipt proves.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that are there without a receipt that fits. They are among the tasks: their worker
    /// compares the contents.
    pub unproven: u64,
}
