//! What takes up the bytes below a root: sums by class, orphans by their likely cause. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::store::Location;

use super::classify::{Class, CleanPolicy, classify};
use super::evidence::MissingEvidence;
use super::lineage::{Amount, Lineage};

/// Objects and bytes below some roots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// What was looked at.
    pub roots: Vec<Location>,
    /// All objects.
    pub total: Amount,
    /// By class.
    pub classes: BTreeMap<&'static str, Amount>,
    /// Orphans, by their likely cause.
    pub orphans: BTreeMap<&'static str, Amount>,
    /// Objects of which it is not known whose they are, by the reason.
    pub unknown: BTreeMap<&'static str, Amount>,
    /// Some orphans and unknown objects, to look at.
    pub examples: Vec<(&'static str, Location)>,
    /// When the oldest object that is in use was written, in milliseconds since 1970: a rule of a bucket
    /// that expires objects by age would have destroyed it.
    pub oldest_live_unix_ms: Option<u64>,
    /// When it was looked at.
    pub taken_at_unix_ms: u64,
    /// What is not known.
    pub missing: Vec<MissingEvidence>,
}

/// Examples of each kind.
const EXAMPLES: usize = 3;

/// Sums up what lies below `roots`; nothing younger than `min_age_ms` counts as an orphan.
pub fn usage(lineage: &Lineage<'_>, roots: &[Location], min_age_ms: u64) -> Usage {
    let survey = lineage.survey();
    let policy = CleanPolicy {
        keep: Vec::new(),
        min_age_ms,
    };
    let classified = classify(lineage, roots, &policy, survey.taken_at);
    let mut usage = Usage {
        roots: roots.to_vec(),
        total: Amount::default(),
        classes: BTreeMap::new(),
        orphans: BTreeMap::new(),
        unknown: BTreeMap::new(),
        examples: Vec::new(),
        oldest_live_unix_ms: None,
        taken_at_unix_ms: survey.taken_at,
        missing: survey.missing.clone(),
    };
    let mut shown: BTreeMap<&str, usize> = BTreeMap::new();
    let folders = survey.names.folders();
    for ((id, class), fact) in (0u32..).zip(&classified.classes).zip(&survey.facts) {
        let folder = folders.get(survey.names.folder_of(id) as usize);
        let is_inside = |at: &Location| roots.iter().any(|root| root.contains(at));
        // Odd keys are kept whole, below the root of the bucket.
        let inside = folder.is_some_and(is_inside)
            || (folder.is_some_and(|folder| folder.key().is_empty())
                && survey.names.location(id).as_ref().is_some_and(is_inside));
        if !inside || !fact.listed {
            continue;
        }
        usage.total.add(fact.size);
        usage
            .classes
            .entry(class.as_str())
            .or_default()
            .add(fact.size);
        let detail = match class {
            Class::Orphan(cause) => {
                usage
                    .orphans
                    .entry(cause.as_str())
                    .or_default()
                    .add(fact.size);
                cause.as_str()
            }
            Class::Unknown(doubt) => {
                usage
                    .unknown
                    .entry(doubt.as_str())
                    .or_default()
                    .add(fact.size);
                doubt.as_str()
            }
            Class::Live | Class::NeededBy | Class::Pinned if fact.modified > 0 => {
                let oldest = usage.oldest_live_unix_ms.get_or_insert(fact.modified);
                *oldest = (*oldest).min(fact.modified);
                continue;
            }
            _ => continue,
        };
        let count = shown.entry(detail).or_default();
        if *count < EXAMPLES
            && let Some(at) = survey.names.location(id)
        {
            usage.examples.push((detail, at));
            *count += 1;
        }
    }
    usage
}
