//! What a cache knows of its files beside the files themselves: who uses them, and when they may go. Plain
//! data; moments are arguments.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::super::eviction::CachedFile;
use super::super::key::{BlobKey, JobId, Moment};
use super::super::lifecycle::Class;

#[derive(Debug, Default)]
struct JobUse {
    guards: u32,
    /// Since when nobody is attached, while nobody is.
    unused_since: Option<Moment>,
}

#[derive(Debug, Clone, Copy)]
struct BlobUse {
    pins: u32,
    class: Class,
    /// Its receiver here has acknowledged it: the server may have removed it.
    acknowledged: bool,
    /// A re-creatable blob without handles: when it may go.
    expires: Option<Moment>,
}

/// Counts of handles and guards.
#[derive(Debug, Default)]
pub(super) struct Uses {
    jobs: HashMap<JobId, JobUse>,
    blobs: HashMap<BlobKey, BlobUse>,
}

impl Uses {
    /// A file was found at the start: it counts as unused from now on.
    pub(super) fn adopt(&mut self, key: &BlobKey, now: Moment) {
        let job = self.jobs.entry(key.job.clone()).or_default();
        if job.guards == 0 {
            job.unused_since.get_or_insert(now);
        }
    }

    pub(super) fn attach(&mut self, job: &JobId) {
        let used = self.jobs.entry(job.clone()).or_default();
        used.guards = used.guards.saturating_add(1);
        used.unused_since = None;
    }

    pub(super) fn detach(&mut self, job: &JobId, now: Moment) {
        if let Some(used) = self.jobs.get_mut(job) {
            used.guards = used.guards.saturating_sub(1);
            if used.guards == 0 {
                used.unused_since = Some(now);
            }
        }
    }

    /// A handle, or somebody who waits for one.
    pub(super) fn pin(&mut self, key: &BlobKey, class: Class) {
        let used = self.blobs.entry(key.clone()).or_insert(BlobUse {
            pins: 0,
            class,
            acknowledged: false,
            expires: None,
        });
        used.pins = used.pins.saturating_add(1);
        used.class = used.class.max(class);
        used.expires = None;
    }

    pub(super) fn unpin(&mut self, key: &BlobKey, now: Moment, retention: Duration) {
        let Some(used) = self.blobs.get_mut(key) else {
            return;
        };
        used.pins = used.pins.saturating_sub(1);
        if used.pins > 0 {
            return;
        }
        match used.class {
            Class::Recreatable => used.expires = Some(now.after(retention)),
            Class::Retained => {
                self.blobs.remove(key);
            }
        }
    }

    pub(super) fn acknowledged(&mut self, key: &BlobKey) {
        if let Some(used) = self.blobs.get_mut(key) {
            used.acknowledged = true;
        }
    }

    pub(super) fn is_pinned(&self, key: &BlobKey) -> bool {
        self.blobs.get(key).is_some_and(|b| b.pins > 0)
    }

    /// The file is gone.
    pub(super) fn forget(&mut self, key: &BlobKey) {
        if self.blobs.get(key).is_some_and(|b| b.pins == 0) {
            self.blobs.remove(key);
        }
    }

    /// The file as the choice of what to evict sees it.
    pub(super) fn describe(&self, key: BlobKey, last_used: Moment) -> CachedFile {
        let job = self.jobs.get(&key.job);
        let blob = self.blobs.get(&key);
        CachedFile {
            pins: blob.map_or(0, |b| b.pins),
            job_references: job.map_or(0, |j| j.guards),
            refetchable: blob.is_none_or(|b| !b.acknowledged),
            last_used,
            unused_since: job.and_then(|j| j.unused_since),
            key,
        }
    }

    /// Of these files the ones whose time has come at `now`: those of jobs that nobody has been attached to
    /// for the retention interval, and re-creatable ones without handles for as long. Never a pinned one.
    pub(super) fn due(
        &self,
        keys: impl Iterator<Item = BlobKey>,
        now: Moment,
        retention: Duration,
    ) -> Vec<BlobKey> {
        let due = |key: &BlobKey| {
            if self.is_pinned(key) {
                return false;
            }
            let blob = self.blobs.get(key);
            let expired = blob.and_then(|b| b.expires).is_some_and(|at| at <= now);
            let job = self.jobs.get(&key.job);
            let unused = job.and_then(|j| j.unused_since);
            // A job that nobody ever attached to is unused as well; it is adopted at the start.
            expired || unused.is_some_and(|since| since.after(retention) <= now)
        };
        keys.filter(due).collect()
    }

    /// Forgets jobs that have no guard and no files, and blobs that have no handle and no file.
    pub(super) fn forget_others(&mut self, files: &HashSet<BlobKey>) {
        let with_files: HashSet<&JobId> = files.iter().map(|k| &k.job).collect();
        self.jobs
            .retain(|id, used| used.guards > 0 || with_files.contains(id));
        self.blobs
            .retain(|key, used| used.pins > 0 || files.contains(key));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::key::Digest;
    use super::*;

    const KEEP: Duration = Duration::from_millis(100);

    fn key(job: &str, text: &str) -> BlobKey {
        BlobKey {
            job: JobId::parse(job).unwrap_or_else(|e| unreachable!("{e}")),
            digest: Digest::of(text.as_bytes()),
        }
    }

    fn due(uses: &Uses, keys: &[&BlobKey], now: u64) -> usize {
        let keys = keys.iter().map(|k| (*k).clone());
        uses.due(keys, Moment(now), KEEP).len()
    }

    #[test]
    fn a_retained_file_stays_while_its_job_is_attached_and_an_interval_longer() {
        let (mut uses, blob) = (Uses::default(), key("j", "a"));
        uses.attach(&blob.job);
        uses.attach(&blob.job);
        uses.pin(&blob, Class::Retained);
        uses.unpin(&blob, Moment(1), KEEP);
        assert_eq!(due(&uses, &[&blob], 10_000), 0);
        uses.detach(&blob.job, Moment(5));
        assert_eq!(due(&uses, &[&blob], 10_000), 0);
        uses.detach(&blob.job, Moment(10));
        assert_eq!(
            (due(&uses, &[&blob], 109), due(&uses, &[&blob], 110)),
            (0, 1)
        );
        uses.attach(&blob.job);
        assert_eq!(due(&uses, &[&blob], 10_000), 0);
        // One detach too many is no second one.
        uses.detach(&blob.job, Moment(20));
        uses.detach(&blob.job, Moment(20));
        uses.attach(&blob.job);
        assert_eq!(due(&uses, &[&blob], 10_000), 0);
    }

    #[test]
    fn a_recreatable_file_has_its_own_time_and_a_pin_stops_it() {
        let (mut uses, blob) = (Uses::default(), key("j", "a"));
        uses.attach(&blob.job);
        uses.pin(&blob, Class::Recreatable);
        assert_eq!(due(&uses, &[&blob], 10_000), 0);
        uses.unpin(&blob, Moment(50), KEEP);
        assert_eq!(
            (due(&uses, &[&blob], 149), due(&uses, &[&blob], 150)),
            (0, 1)
        );
        uses.pin(&blob, Class::Recreatable);
        assert_eq!(due(&uses, &[&blob], 150), 0);
    }

    #[test]
    fn what_was_acknowledged_cannot_be_fetched_again() {
        let (mut uses, blob) = (Uses::default(), key("j", "a"));
        uses.pin(&blob, Class::Recreatable);
        assert!(uses.describe(blob.clone(), Moment(0)).refetchable);
        uses.acknowledged(&blob);
        uses.unpin(&blob, Moment(1), KEEP);
        let file = uses.describe(blob.clone(), Moment(0));
        assert!(!file.refetchable && file.pins == 0);
        uses.forget(&blob);
        assert!(uses.describe(blob, Moment(0)).refetchable);
    }
}
