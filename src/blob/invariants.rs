//! What must be true after every step, as functions over plain observations, so that any test or a
//! running server's self-check can ask. Each gives what is violated, or nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::key::{BlobKey, Digest, JobId, Moment, ObjectName};
use super::lifecycle::Class;
use super::registry::Registry;

/// The invariants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// No reader saw bytes that do not hash to the key.
    I1,
    /// Every acknowledged retained blob of a live job with a holder is readable, or known as lost.
    I2,
    /// No referenced or pinned copy vanished.
    I3,
    /// After quiet time, interval and sweep only reachable data remains.
    I4,
    /// At most one fetch of a blob is under way in a cache.
    I5,
    /// Bytes on disk and reserved are within the limit.
    I6,
    /// Nothing of an ended job is readable.
    I7,
    /// An owner that was fenced off made no visible change.
    I8,
}

/// An invariant that does not hold, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violated {
    /// Which one.
    pub invariant: Invariant,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Violated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.invariant, self.what)
    }
}

fn violated(invariant: Invariant, what: impl fmt::Display) -> Violated {
    Violated {
        invariant,
        what: what.to_string(),
    }
}

/// What lies in the stores.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Copies {
    /// Local files at their paths.
    pub local: BTreeSet<BlobKey>,
    /// Objects in the HA store.
    pub objects: BTreeSet<(JobId, ObjectName)>,
}

impl Copies {
    fn has(&self, key: &BlobKey, object: Option<ObjectName>) -> bool {
        self.local.contains(key)
            || object.is_some_and(|o| self.objects.contains(&(key.job.clone(), o)))
    }
}

/// I1: reads as (key, digest of the bytes that were handed out).
pub fn reads_match_keys<'a>(
    reads: impl IntoIterator<Item = (&'a BlobKey, &'a Digest)>,
) -> Vec<Violated> {
    let wrong = reads.into_iter().filter(|(key, got)| key.digest != **got);
    wrong
        .map(|(key, got)| violated(Invariant::I1, format!("{key} was read as {got}")))
        .collect()
}

/// I2, for `acked`, the blobs whose commit and holder were acknowledged and not taken back since.
pub fn held_are_readable(
    registry: &Registry,
    acked: &BTreeSet<BlobKey>,
    copies: &Copies,
) -> Vec<Violated> {
    let mut found = Vec::new();
    for key in acked {
        let job = registry.job(&key.job);
        if job.is_none_or(|j| j.state.is_terminal()) {
            continue;
        }
        match job.and_then(|j| j.blobs.get(&key.digest)) {
            None => found.push(violated(Invariant::I2, format!("{key} is not known"))),
            Some(blob) if blob.lost || blob.class == Class::Recreatable => {}
            Some(blob) if copies.has(key, blob.object) => {}
            Some(_) => found.push(violated(Invariant::I2, format!("{key} has no copy"))),
        }
    }
    found
}

/// I3: of every blob that is held or pinned there is a copy, and of a retained one its object.
pub fn referenced_have_copies(registry: &Registry, copies: &Copies) -> Vec<Violated> {
    let mut found = Vec::new();
    for (id, job) in registry.jobs() {
        for (digest, blob) in &job.blobs {
            let key = BlobKey {
                job: id.clone(),
                digest: *digest,
            };
            let needed = blob.pins > 0 || !blob.holders.is_empty();
            if !needed || blob.lost {
                continue;
            }
            let object = blob.object.filter(|_| blob.class == Class::Retained);
            let gone = object.is_some_and(|o| !copies.objects.contains(&(id.clone(), o)));
            if gone || !copies.has(&key, blob.object) {
                found.push(violated(Invariant::I3, format!("a copy of {key} vanished")));
            }
        }
    }
    found
}

/// I4, to be asked after quiet time, interval and sweep at `now`: every copy belongs to a blob, and
/// every blob is held, pinned, promised, lost, or has a deadline ahead.
pub fn only_reachable_remains(registry: &Registry, copies: &Copies, now: Moment) -> Vec<Violated> {
    let mut found = Vec::new();
    let mut known = BTreeSet::new();
    let mut objects = BTreeSet::new();
    for (id, job) in registry.jobs() {
        objects.extend(registry.in_flight(id).into_iter().map(|o| (id.clone(), o)));
        for (digest, blob) in &job.blobs {
            let key = BlobKey {
                job: id.clone(),
                digest: *digest,
            };
            let ahead = blob.keep_until.is_some_and(|t| t > now);
            let reason = ahead || blob.pins > 0 || !blob.holders.is_empty();
            if !reason && !registry.is_promised(&key) {
                found.push(violated(Invariant::I4, format!("nothing keeps {key}")));
            }
            if !blob.holders.is_empty() && blob.keep_until.is_some() {
                found.push(violated(
                    Invariant::I4,
                    format!("{key} is held and has a deadline"),
                ));
            }
            objects.extend(blob.object.map(|o| (id.clone(), o)));
            known.insert(key);
        }
    }
    for key in copies.local.difference(&known) {
        if !registry.is_promised(key) {
            found.push(violated(
                Invariant::I4,
                format!("the local {key} is unreachable"),
            ));
        }
    }
    for (job, object) in copies.objects.difference(&objects) {
        found.push(violated(
            Invariant::I4,
            format!("{job}: {object} is unreachable"),
        ));
    }
    found
}

/// I5: fetches as (cache, key, begin, end), the end exclusive.
pub fn one_fetch_at_a_time(fetches: &[(u64, BlobKey, Moment, Moment)]) -> Vec<Violated> {
    let mut sorted: Vec<_> = fetches.iter().collect();
    sorted.sort_by(|a, b| (a.0, &a.1, a.2).cmp(&(b.0, &b.1, b.2)));
    let mut found = Vec::new();
    let mut busy: BTreeMap<(u64, &BlobKey), Moment> = BTreeMap::new();
    for (cache, key, begin, end) in sorted {
        let until = busy.entry((*cache, key)).or_default();
        if begin < until {
            found.push(violated(
                Invariant::I5,
                format!("cache {cache} fetches {key} twice at {}", begin.0),
            ));
        }
        *until = (*until).max(*end);
    }
    found
}

/// I6: all in bytes.
pub fn within_limit(used: u64, reserved: u64, limit: u64) -> Option<Violated> {
    let sum = used.saturating_add(reserved);
    (sum > limit).then(|| {
        violated(
            Invariant::I6,
            format!("{used} bytes and {reserved} reserved are more than {limit}"),
        )
    })
}

/// I7: no blob of an ended job is visible, and none gets a new reader or holder.
pub fn ended_jobs_are_closed(registry: &Registry) -> Vec<Violated> {
    let mut found = Vec::new();
    for (id, job) in registry.jobs().filter(|(_, j)| j.state.is_terminal()) {
        for (digest, blob) in &job.blobs {
            let key = BlobKey {
                job: id.clone(),
                digest: *digest,
            };
            if registry.visible(&key).is_ok() || !blob.holders.is_empty() || blob.pins == 0 {
                found.push(violated(Invariant::I7, format!("{key} outlives its job")));
            }
        }
        if registry.sessions().any(|(_, s)| s.job == *id) {
            found.push(violated(Invariant::I7, format!("{id} is over and uploads")));
        }
    }
    found
}

/// I8: the newest manifests in the order in which they became so, as (sequence, epoch): an owner
/// never follows a later one.
pub fn no_change_by_fenced(newest: &[(u64, u64)]) -> Vec<Violated> {
    let pairs = newest.iter().zip(newest.iter().skip(1));
    let backwards = pairs.filter(|(a, b)| b.1 < a.1 || b.0 <= a.0);
    backwards
        .map(|(a, b)| {
            violated(
                Invariant::I8,
                format!(
                    "manifest {} of epoch {} follows {} of epoch {}",
                    b.0, b.1, a.0, a.1
                ),
            )
        })
        .collect()
}
