//! What a clean by given rules would do about one snapshot or object, for whoever asks whether it may go. Pure.
//!
//! [`judge`](super::judge()) asks whether a snapshot can go with everything that it refers to. A clean decides object
//! by object, and lets rules and ages speak first. So the two may differ, and this says when and why.

use serde::Serialize;

use crate::store::Location;

use super::classify::{Class, CleanPolicy, StayReason, classify};
use super::lineage::{Amount, Lineage};
use super::names::ObjectId;
use super::retention::KeepRule;

/// What a clean would do about a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CleanOutlook {
    /// The rules of the clean.
    pub keep: Vec<String>,
    /// Nothing younger goes, in milliseconds.
    pub min_age_ms: u64,
    /// It lets the snapshot go.
    pub goes: bool,
    /// Why the snapshot stays; empty if it goes.
    pub stays: Vec<StayReason>,
    /// Objects of it that would be deleted.
    pub deleted: Amount,
    /// Objects of a snapshot that goes which stay, since others need them.
    pub left: Amount,
    /// Nothing at all is deleted, since evidence is missing.
    pub blocked: bool,
}

/// What a clean would do about an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ObjectOutlook {
    /// The rules of the clean.
    pub keep: Vec<String>,
    /// Nothing younger goes, in milliseconds.
    pub min_age_ms: u64,
    /// It deletes the object.
    pub goes: bool,
    /// What the object is to it.
    pub class: Class,
    /// Nothing at all is deleted, since evidence is missing.
    pub blocked: bool,
}

/// What a clean of `roots` by `policy` at the time `now` would do about the snapshot at `node` in
/// [`Survey::nodes`](super::Survey::nodes).
pub fn clean_outlook(
    lineage: &Lineage<'_>,
    roots: &[Location],
    node: usize,
    policy: &CleanPolicy,
    now: u64,
) -> Option<CleanOutlook> {
    let survey = lineage.survey();
    let own = survey.nodes.get(node)?;
    let classified = classify(lineage, roots, policy, now);
    let stays = classified.fates.get(node)?.stays.clone();
    let (mut deleted, mut left) = (Amount::default(), Amount::default());
    for id in own.objects.iter().filter(|id| survey.fact(**id).listed) {
        let class = classified.classes.get(*id as usize);
        match class.is_some_and(|class| class.goes()) {
            true => deleted.add(survey.fact(*id).size),
            false => left.add(survey.fact(*id).size),
        }
    }
    let goes = stays.is_empty();
    Some(CleanOutlook {
        keep: rules(policy),
        min_age_ms: policy.min_age_ms,
        goes,
        stays,
        deleted,
        left: if goes { left } else { Amount::default() },
        blocked: !survey.missing.is_empty(),
    })
}

/// The same for one object, by its number.
pub fn object_outlook(
    lineage: &Lineage<'_>,
    roots: &[Location],
    id: ObjectId,
    policy: &CleanPolicy,
    now: u64,
) -> Option<ObjectOutlook> {
    let classified = classify(lineage, roots, policy, now);
    let class = *classified.classes.get(id as usize)?;
    Some(ObjectOutlook {
        keep: rules(policy),
        min_age_ms: policy.min_age_ms,
        goes: class.goes(),
        class,
        blocked: !lineage.survey().missing.is_empty(),
    })
}

fn rules(policy: &CleanPolicy) -> Vec<String> {
    policy.keep.iter().map(KeepRule::to_string).collect()
}
