//! Deletion: who depends on what, and may it go?
//!
//! [`survey()`] collects the evidence, [`Lineage`] turns it around, [`judge`] answers for one snapshot.
//! Everything but the survey is a pure function. Nothing here knows how a fork is made or what a command prints.

mod access;
mod changes;
mod claim;
mod claimant;
mod classify;
pub mod clean;
mod conflict;
mod evidence;
mod family_tree;
mod giving_up;
mod guess;
mod identity;
mod layout;
mod lineage;
mod names;
mod need;
mod origin;
mod outlook;
mod pin;
mod record;
mod registry;
mod release;
mod retention;
mod survey;
mod usage;
mod verdict;

pub use access::Access;
pub use claim::{ClaimReport, ClaimRequest, Claimed, claim};
pub(crate) use classify::NO_RULE;
pub use classify::{
    Cause, Class, Classified, CleanPolicy, Doubt, Fate, MIN_AGE_MS, StayReason, classify,
};
pub use conflict::{Conflict, find_conflicts};
pub(crate) use evidence::incomplete_error;
pub use evidence::{MissingEvidence, MissingReason};
pub use family_tree::{Branch, FamilyTree, Growth, SnapshotSummary, StartedFrom, family_tree};
pub(crate) use giving_up::{GivingUp, SETTLE, is_given_up, refuse_given_up, remove_earlier};
pub use guess::{guess_root, lies_in_job, needs_named_roots};
pub use identity::{SnapshotId, short_job};
pub use layout::{Place, common_root, root_of, wider_root_of};
pub(crate) use layout::{inside_of_snapshot, is_job_id};
pub use lineage::{Amount, GrowthEvidence, Lineage, Parent};
pub use names::{Names, ObjectId, is_odd};
pub use need::NeedReason;
pub use outlook::{CleanOutlook, ObjectOutlook, clean_outlook, object_outlook};
pub use pin::{PinRequest, is_pinned_as, pin, pins, refuse_destination, snapshot_is_there, unpin};
pub(crate) use pin::{announce, is_pinned_by};
pub(crate) use record::{BEING_GIVEN_UP, marks_in};
pub use record::{Claim, MARK_MARGIN_MS, Mark, MarkedFork, Pin, PinningFork, Restore};
pub use registry::{Handed, RegistryError, SharedObject, SharedStateRegistry, Subsumed};
pub use release::{claimed_with, release};
pub use retention::{Candidate, Keep, KeepRule, RetentionReason, parse_millis, retain};
pub use survey::{Fact, Node, Records, Survey, survey};
pub use usage::{Usage, usage};
pub use verdict::{
    Answer, Independence, ObjectVerdict, Verdict, human_millis, independence, judge, judge_object,
};
