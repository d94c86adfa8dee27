//! Staged cleanup: what may go and why the rest stays. Looking changes nothing, so that a dry run is
//! the first half of a sweep; applying looks at holders, pins and promises again.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::key::{BlobKey, JobId, Moment};
use super::lifecycle::{BlobState, Class, JobState};
use super::registry::{Blob, Effect, Registry};

/// What a sweep says of one blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "reason")]
pub enum SweepReason {
    /// Stays: somebody holds it.
    Held {
        /// How many.
        holders: usize,
    },
    /// Stays: readers are under way.
    Pinned {
        /// How many.
        readers: u32,
    },
    /// Stays: an open session was told that it is there, or has just sent it.
    Promised,
    /// Stays: its time has not come.
    KeptUntil {
        /// When it may go at the earliest.
        until: Moment,
    },
    /// Stays: it is damaged, and whoever holds it must be told.
    Lost,
    /// Goes: its deadline has passed.
    DeadlinePassed {
        /// The deadline.
        at: Moment,
    },
    /// Goes: the job is over and its last reader has gone.
    JobOver,
}

impl SweepReason {
    /// True if the blob may go.
    pub fn goes(self) -> bool {
        matches!(
            self,
            SweepReason::DeadlinePassed { .. } | SweepReason::JobOver
        )
    }
}

/// A blob and what a sweep says of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SweepDecision {
    /// The blob.
    pub key: BlobKey,
    /// Where it stands.
    pub state: BlobState,
    /// Why it stays or goes.
    #[serde(flatten)]
    pub reason: SweepReason,
}

impl Registry {
    /// Why the blob stays or goes at `now`.
    pub fn why(&self, key: &BlobKey, now: Moment) -> Option<SweepDecision> {
        let blob = self.jobs.get(&key.job)?.blobs.get(&key.digest)?;
        Some(SweepDecision {
            key: key.clone(),
            state: blob.state(),
            reason: self.reason(key, blob, now),
        })
    }

    fn reason(&self, key: &BlobKey, blob: &Blob, now: Moment) -> SweepReason {
        if blob.pins > 0 {
            return SweepReason::Pinned { readers: blob.pins };
        }
        if blob.deleting {
            return SweepReason::JobOver;
        }
        if !blob.holders.is_empty() {
            return match blob.lost {
                true => SweepReason::Lost,
                false => SweepReason::Held {
                    holders: blob.holders.len(),
                },
            };
        }
        if self.is_promised(key) {
            return SweepReason::Promised;
        }
        match blob.keep_until {
            Some(at) if at <= now => SweepReason::DeadlinePassed { at },
            Some(until) => SweepReason::KeptUntil { until },
            // Without holder and deadline something is amiss; it is kept, and invariant I4 shows it.
            None => SweepReason::KeptUntil {
                until: Moment(u64::MAX),
            },
        }
    }

    /// What a sweep at `now` would do, blob by blob. Changes nothing.
    pub fn plan_sweep(&self, now: Moment) -> Vec<SweepDecision> {
        let mut decisions = Vec::new();
        for (id, job) in &self.jobs {
            for (digest, blob) in &job.blobs {
                let key = BlobKey {
                    job: id.clone(),
                    digest: *digest,
                };
                decisions.push(SweepDecision {
                    state: blob.state(),
                    reason: self.reason(&key, blob, now),
                    key,
                });
            }
        }
        decisions
    }

    /// Drops what a plan lets go and what may still go at `now`. Per job the manifest is committed
    /// first; only then are copies removed.
    pub fn apply_sweep(&mut self, plan: &[SweepDecision], now: Moment) -> Vec<Effect> {
        let mut commits: BTreeSet<JobId> = BTreeSet::new();
        let mut removals = Vec::new();
        for decision in plan.iter().filter(|d| d.reason.goes()) {
            let key = &decision.key;
            if !self.why(key, now).is_some_and(|d| d.reason.goes()) {
                continue;
            }
            let retained = self
                .blob_mut(key)
                .is_some_and(|b| b.class == Class::Retained);
            removals.extend(self.take_out(key));
            if retained {
                commits.insert(key.job.clone());
            }
        }
        let mut effects: Vec<Effect> = commits.into_iter().map(Effect::Commit).collect();
        effects.extend(removals);
        effects.extend(self.forget_empty(now));
        effects
    }

    /// Jobs of which nothing is left: first remembered for the time of a tombstone, since a name that
    /// is free again lets a stalled writer believe it won; then forgotten.
    fn forget_empty(&mut self, now: Moment) -> Vec<Effect> {
        let keep = self.settings.tombstone_keep;
        let busy: BTreeSet<&JobId> = self.sessions.values().map(|s| &s.job).collect();
        let mut forgotten = Vec::new();
        self.jobs.retain(|id, job| {
            let over = job.state.is_terminal() || job.state == JobState::Staging;
            let empty = job.blobs.is_empty() && job.going.is_empty() && !busy.contains(id);
            if !over || !empty {
                return true;
            }
            let until = *job.remembered_until.get_or_insert(now.after(keep));
            if until > now {
                return true;
            }
            forgotten.push(Effect::Forget(id.clone()));
            false
        });
        forgotten
    }
}
