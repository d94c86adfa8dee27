//! What needs a snapshot or an object.

use serde::Serialize;

use crate::snapshot::RestoreMode;
use crate::store::Location;

use super::identity::SnapshotId;
use super::lineage::Amount;

/// What needs a snapshot or an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum NeedReason {
    /// Another snapshot refers to so many of its objects.
    UsedBy {
        /// Which.
        snapshot: SnapshotId,
        /// Its folder.
        directory: Location,
        /// How much of this one it uses, by its references.
        #[serde(flatten)]
        amount: Amount,
        /// How many of these objects a listing of the roots showed.
        seen_objects: u64,
    },
    /// Another snapshot has relative references that lead nowhere; objects of this one have their
    /// names (FLINK-39964).
    MeantBy {
        /// Which.
        snapshot: SnapshotId,
        /// Its folder.
        directory: Location,
        /// How many of its references.
        objects: u64,
    },
    /// Somebody asked for it to be kept.
    Pinned {
        /// The name of the pin.
        name: String,
        /// Who.
        owner: String,
        /// Why.
        why: String,
        /// Until when, in milliseconds since 1970.
        #[serde(skip_serializing_if = "Option::is_none")]
        expires_unix_ms: Option<u64>,
    },
    /// A fork reads it, or was left half done.
    ForkedTo {
        /// The fork's id.
        fork_id: String,
        /// The fork's root.
        destination: Location,
        /// The name of the fork's pin, if it could write one.
        #[serde(skip_serializing_if = "Option::is_none")]
        pin: Option<String>,
        /// The plan that its workers go by, if that is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        plan: Option<Location>,
        /// How it is given up to its end, where somebody has begun to.
        #[serde(skip_serializing_if = "Option::is_none")]
        given_up: Option<String>,
    },
    /// A job was started from it and has not completed a checkpoint of its own since.
    Restoring {
        /// Which job.
        job: String,
        /// In which mode.
        mode: RestoreMode,
    },
}
