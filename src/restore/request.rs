//! What a restore is planned from.

use std::borrow::Cow;

use crate::snapshot::Snapshot;
use crate::store::{Method, Stat};

use super::cost::CostModel;
use super::destination::Layout;
use super::mode::TargetJob;
use crate::snapshot::RestoreMode;

/// What is known of an object besides what the metadata says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectFacts {
    /// Size and tags, as the store says.
    pub stat: Stat,
    /// How it will be copied.
    pub method: Method,
    /// Why so.
    pub reason: Cow<'static, str>,
}

/// Everything that a plan is made from.
#[derive(Debug, Clone, Copy)]
pub struct RestoreRequest<'a> {
    /// The snapshot, read with its references.
    pub snapshot: &'a Snapshot,
    /// SHA-256 of its commit object, in hex.
    pub metadata_sha256: &'a str,
    /// The job.
    pub job: &'a TargetJob,
    /// Who will own the snapshot.
    pub mode: RestoreMode,
    /// Where duplicates go. Needed for [`RestoreMode::NoClaim`] only.
    pub layout: Option<&'a Layout>,
    /// What duplicates cost.
    pub cost: &'a CostModel,
}
