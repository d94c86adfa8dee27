//! References, events of jobs, listings.

use std::collections::BTreeSet;

use super::super::fail;
use super::super::key::{BlobKey, Digest, JobId, LeaseId, Moment, ReceiverId};
use super::super::lifecycle::{Holder, JobEvent, JobState, Refusal};
use super::super::registry::Registry;
use super::super::wire::{BlobList, JobList, WhyAnswer};
use super::{BlobServer, Failure, Mode};

impl BlobServer {
    /// Where a job stands, if anything is known of it, and which of these blobs somebody holds.
    pub(crate) fn standing(
        &self,
        job: &JobId,
        digests: &BTreeSet<Digest>,
    ) -> (Option<JobState>, BTreeSet<Digest>) {
        let Ok(Some(cell)) = self.0.cell(job) else {
            return (None, BTreeSet::new());
        };
        let work = cell.work();
        let Some(known) = work.registry.job(job) else {
            return (None, BTreeSet::new());
        };
        let held = |d: &&Digest| known.blobs.get(d).is_some_and(|b| !b.holders.is_empty());
        let held = digests.iter().filter(held).copied().collect();
        (Some(known.state), held)
    }

    /// Something happened to a job. Repeating an event changes nothing.
    ///
    /// # Errors
    ///
    /// `JobOver`, `NoJob`; for a registration `NotFound` or `Lost`, and then none of its blobs is held; an HA
    /// store that does not answer.
    pub async fn job_event(&self, job: &JobId, event: JobEvent) -> Result<(), Failure> {
        let of = job.clone();
        let ends = matches!(event, JobEvent::Terminal { .. });
        let left = self.0.cell(job)?.map(|cell| {
            let names = cell.work().registry.in_flight(job);
            names.into_iter().collect::<Vec<_>>()
        });
        let change = move |r: &mut Registry, now| Ok(((), r.job_event(&of, &event, now)?));
        self.0.change(job, change).await?;
        if ends && let Some(cell) = self.0.cell(job)? {
            self.0.orphan(&cell, job, left.unwrap_or_default());
            fail::point("terminal-written");
            // What fails here is tried again by every sweep.
            if let Err(failure) = self.0.sweep_job(job, &cell, Mode::Apply).await {
                tracing::warn!(%job, %failure, "an ended job's blobs are not all gone yet");
            }
        }
        Ok(())
    }

    async fn on_blob(
        &self,
        key: &BlobKey,
        event: impl FnOnce(
            &mut Registry,
            Moment,
        ) -> Result<Vec<super::super::registry::Effect>, Refusal>
        + Send
        + 'static,
    ) -> Result<(), Failure> {
        self.0.check_owner()?;
        if self.0.cell(&key.job)?.is_none() && !key.digest.is_empty_blob() {
            return Err(Refusal::NotFound(key.clone()).into());
        }
        let event = move |r: &mut Registry, now: Moment| Ok(((), event(r, now)?));
        self.0.change(&key.job, event).await
    }

    /// Adds receivers of a message: the blob stays until each has acknowledged.
    ///
    /// # Errors
    ///
    /// `NotFound`, `JobOver`, `Lost`.
    pub async fn acquire_for(
        &self,
        key: &BlobKey,
        receivers: Vec<ReceiverId>,
    ) -> Result<(), Failure> {
        let of = key.clone();
        let event = move |r: &mut Registry, _| {
            r.acquire(&of, receivers.into_iter().map(Holder::Receiver), None)
        };
        self.on_blob(key, event).await
    }

    /// Holds a blob for a client for so many milliseconds, or moves the end of its lease.
    ///
    /// # Errors
    ///
    /// `NotFound`, `JobOver`, `Lost`.
    pub async fn acquire_lease(
        &self,
        key: &BlobKey,
        lease: LeaseId,
        millis: u64,
    ) -> Result<(), Failure> {
        let of = key.clone();
        let event = move |r: &mut Registry, now: Moment| {
            let end = now.after(std::time::Duration::from_millis(millis));
            r.acquire(&of, [Holder::Lease(lease)], Some(end))
        };
        self.on_blob(key, event).await
    }

    /// Moves the end of a lease; it never comes nearer.
    ///
    /// # Errors
    ///
    /// `LeaseEnded`, `NotFound`, `JobOver`, `Lost`.
    pub async fn renew(&self, key: &BlobKey, lease: LeaseId, millis: u64) -> Result<(), Failure> {
        let of = key.clone();
        let event = move |r: &mut Registry, now: Moment| {
            let end = now.after(std::time::Duration::from_millis(millis));
            r.renew(&of, &Holder::Lease(lease), end)
        };
        self.on_blob(key, event).await
    }

    /// Takes a holder off. One that is unknown or gone changes nothing.
    ///
    /// # Errors
    ///
    /// An HA store that does not answer.
    pub async fn release(&self, key: &BlobKey, holder: Holder) -> Result<(), Failure> {
        self.0.check_owner()?;
        if self.0.cell(&key.job)?.is_none() {
            return Ok(());
        }
        let of = key.clone();
        let event = move |r: &mut Registry, now| {
            fail::point("ack-received");
            Ok(r.release(&of, &holder, now))
        };
        self.on_blob(key, event).await
    }

    /// Fails unless the blob can be read. Opens nothing.
    ///
    /// # Errors
    ///
    /// `NotFound`, `JobOver`, `Lost`.
    pub fn look(&self, key: &BlobKey) -> Result<(), Failure> {
        self.0.check_owner()?;
        match self.0.cell(&key.job)? {
            Some(cell) if key.digest.is_empty_blob() => {
                cell.work().registry.live_job(&key.job)?;
            }
            Some(cell) => {
                cell.work().registry.visible(key)?;
            }
            None if key.digest.is_empty_blob() => {}
            None => return Err(Refusal::NotFound(key.clone()).into()),
        }
        Ok(())
    }

    /// All jobs, those included that are over and still remembered.
    ///
    /// # Errors
    ///
    /// Not the owner any more.
    pub fn list_jobs(&self) -> Result<JobList, Failure> {
        self.0.check_owner()?;
        let now = self.0.now();
        let mut jobs = Vec::new();
        for (_, cell) in self.0.all_cells() {
            jobs.extend(cell.work().registry.list_jobs(now).jobs);
        }
        Ok(JobList { now, jobs })
    }

    /// The blobs of a job.
    ///
    /// # Errors
    ///
    /// `NoJob`.
    pub fn list_blobs(&self, job: &JobId) -> Result<BlobList, Failure> {
        self.0.check_owner()?;
        let cell = self
            .0
            .cell(job)?
            .ok_or_else(|| Refusal::NoJob(job.clone()))?;
        let listed = cell.work().registry.list_blobs(job, self.0.now());
        Ok(listed?)
    }

    /// One blob, and why it stays or goes.
    ///
    /// # Errors
    ///
    /// `NotFound`, `JobOver`.
    pub fn why(&self, key: &BlobKey) -> Result<WhyAnswer, Failure> {
        self.0.check_owner()?;
        let cell = self.0.cell(&key.job)?;
        let cell = cell.ok_or_else(|| Refusal::NotFound(key.clone()))?;
        let explained = cell.work().registry.explain(key, self.0.now());
        Ok(explained?)
    }
}
