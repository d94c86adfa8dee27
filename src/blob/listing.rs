//! What there is, for people and for whoever looks for a name: listings of jobs and of a job's blobs.

use super::key::{BlobKey, Digest, JobId, Moment};
use super::lifecycle::Refusal;
use super::manifest::Held;
use super::registry::{Blob, Registry};
use super::wire::{BlobEntry, BlobList, JobEntry, JobList, WhyAnswer};

fn entry(digest: Digest, blob: &Blob) -> BlobEntry {
    let holders = blob.holders.iter().map(|(by, lease_end)| Held {
        by: by.clone(),
        lease_end: *lease_end,
    });
    BlobEntry {
        digest,
        class: blob.class,
        state: blob.state(),
        name: blob.display.clone(),
        holders: holders.collect(),
        keep_until: blob.keep_until,
        readers: blob.pins,
        object: blob.object,
    }
}

impl Registry {
    /// All jobs, those included that are over and still remembered.
    pub fn list_jobs(&self, now: Moment) -> JobList {
        let jobs = self.jobs().map(|(id, job)| {
            let sizes = job.blobs.keys().map(|d| d.size);
            let sessions = self.sessions().filter(|(_, s)| s.job == *id);
            JobEntry {
                job: id.clone(),
                state: job.state,
                blobs: job.blobs.len() as u64,
                bytes: sizes.fold(0, u64::saturating_add),
                sessions: sessions.count() as u64,
            }
        });
        JobList {
            now,
            jobs: jobs.collect(),
        }
    }

    /// The blobs of a job, those included that wait for their last reader.
    ///
    /// # Errors
    ///
    /// `NoJob`.
    pub fn list_blobs(&self, job: &JobId, now: Moment) -> Result<BlobList, Refusal> {
        let found = self.job(job).ok_or_else(|| Refusal::NoJob(job.clone()))?;
        let blobs = found.blobs.iter().map(|(d, blob)| entry(*d, blob));
        Ok(BlobList {
            now,
            state: found.state,
            blobs: blobs.collect(),
        })
    }

    /// One blob and why it stays or goes.
    ///
    /// # Errors
    ///
    /// `JobOver` once its job is over and it is gone; `NotFound`.
    pub fn explain(&self, key: &BlobKey, now: Moment) -> Result<WhyAnswer, Refusal> {
        let blob = self.job(&key.job).and_then(|j| j.blobs.get(&key.digest));
        match (blob, self.why(key, now)) {
            (Some(blob), Some(decision)) => Ok(WhyAnswer {
                now,
                blob: entry(key.digest, blob),
                why: decision.reason,
            }),
            _ => {
                self.live_job(&key.job)?;
                Err(Refusal::NotFound(key.clone()))
            }
        }
    }
}
