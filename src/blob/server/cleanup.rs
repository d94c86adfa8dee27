//! Staged cleanup: deadlines, leases, idle sessions, orphans; in the local directory and in the HA store.

use std::sync::Arc;

use serde::Serialize;

use super::super::chain::Verdict;
use super::super::fail;
use super::super::key::{BlobKey, JobId, ObjectName};
use super::super::registry::Effect;
use super::super::sweep::SweepDecision;
use super::cell::Cell;
use super::{BlobServer, Failure, Inner, unpoisoned};

/// Whether something is done, or only said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing changes.
    DryRun,
    /// It is done.
    Apply,
}

/// What a sweep found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SweepReport {
    /// Each blob and why it stays or goes.
    pub decisions: Vec<SweepDecision>,
    /// Objects that no manifest names and that are due, by job.
    pub orphans: Vec<(JobId, ObjectName)>,
    /// Objects that were removed.
    pub removed: u64,
    /// Objects whose removal got no answer: the next sweep tries again.
    pub failed: u64,
    /// Local files of no known blob that went, or would go.
    pub local_strays: Vec<BlobKey>,
}

impl Inner {
    /// One job's share of a sweep: what is due in memory is dropped, committed, and removed.
    pub(super) async fn sweep_job(
        self: &Arc<Self>,
        job: &JobId,
        cell: &Arc<Cell>,
        mode: Mode,
    ) -> Result<SweepReport, Failure> {
        let mut report = SweepReport::default();
        let now = self.now();
        {
            let work = cell.work();
            report.decisions = work.registry.plan_sweep(now);
            let due = work.orphans.iter().filter(|(_, at)| **at <= now);
            report.orphans = due.map(|(name, _)| (job.clone(), *name)).collect();
        }
        if mode == Mode::DryRun {
            return Ok(report);
        }
        let (me, cell, job) = (Arc::clone(self), Arc::clone(cell), job.clone());
        let done = tokio::spawn(async move {
            let _serial = cell.serial.lock().await;
            me.sweep_in_turn(&job, &cell, report).await
        });
        done.await.unwrap_or_else(|e| {
            let text = format!("a sweep came to no end: {e}");
            let kind = crate::error::ErrorKind::Internal;
            Err(Failure::Store(crate::error::Error::new(kind, text)))
        })
    }

    async fn sweep_in_turn(
        self: &Arc<Self>,
        job: &JobId,
        cell: &Arc<Cell>,
        mut report: SweepReport,
    ) -> Result<SweepReport, Failure> {
        let now = self.now();
        let (due, in_flight) = {
            let work = cell.work();
            (work.registry.is_due(now), work.registry.in_flight(job))
        };
        if due {
            let decisions = report.decisions.clone();
            let of = job.clone();
            let event = move |r: &mut super::Registry, now| {
                let mut effects = r.tick(now);
                effects.extend(r.apply_sweep(&decisions, now));
                // One commit for both.
                let commits = effects.iter().any(|e| matches!(e, Effect::Commit(_)));
                effects.retain(|e| !matches!(e, Effect::Commit(_)));
                if commits {
                    effects.insert(0, Effect::Commit(of));
                }
                Ok(((), effects))
            };
            self.change_in_turn(job, cell, event).await?;
            self.orphan(cell, job, in_flight.into_iter().collect());
            if report.decisions.iter().any(|d| d.reason.goes()) {
                fail::point("manifest-dropped");
            }
        }
        let needs = {
            let work = cell.work();
            let going = work.registry.job(job).is_some_and(|j| !j.going.is_empty());
            work.dirty || work.unsettled || going || work.orphans.values().any(|at| *at <= now)
        };
        if needs {
            let content = {
                let work = cell.work();
                let content = work.unsettled.then(|| work.registry.content(job));
                content.flatten()
            };
            // Nothing is removed by a manifest that may say something else than memory.
            if let Some(content) = content {
                self.commit(job, cell, content).await?;
            }
            self.seal_before_removals(job, cell).await?;
            self.sweep_objects(job, cell, &mut report).await?;
        }
        self.let_go_in_turn(job, cell);
        Ok(report)
    }

    /// Gives a job without a manifest of this owner one before anything of it is removed. Otherwise an earlier
    /// owner that does not know yet could write the first one, over objects that are gone by then. It is removed
    /// like that of any job of which nothing is left.
    async fn seal_before_removals(
        self: &Arc<Self>,
        job: &JobId,
        cell: &Arc<Cell>,
    ) -> Result<(), Failure> {
        let now = self.now();
        let open = {
            let work = cell.work();
            !work.sealed && work.orphans.values().any(|at| *at <= now)
        };
        if !open {
            return Ok(());
        }
        let of = job.clone();
        let event = move |r: &mut super::Registry, _| Ok(((), r.hold_place(&of)));
        self.change_in_turn(job, cell, event).await
    }

    /// Removes the job's garbage from the HA store.
    async fn sweep_objects(
        self: &Arc<Self>,
        job: &JobId,
        cell: &Arc<Cell>,
        report: &mut SweepReport,
    ) -> Result<(), Failure> {
        self.check_owner()?;
        let (going, due) = {
            let mut work = cell.work();
            work.dirty = false;
            let now = self.now();
            let going = work.registry.job(job).map(|j| j.going.clone());
            let due = work.orphans.iter().filter(|(_, at)| **at <= now);
            let due: Vec<ObjectName> = due.map(|(name, _)| *name).collect();
            (going.unwrap_or_default(), due)
        };
        let in_flight = || cell.work().in_flight(job, self.now());
        let swept = self.ha.sweep(job, self.epoch, in_flight).await;
        let (verdict, swept) = swept.inspect_err(|_| cell.work().dirty = true)?;
        if verdict == Verdict::Fenced {
            cell.work().dirty = true;
            self.look_for_successor().await?;
            return Ok(());
        }
        let failed = swept.failed;
        let removed = swept.removed.len() as u64;
        // What was due and not removed is gone, or named by the manifest.
        let mut work = cell.work();
        for object in going.iter().filter(|o| !failed.contains(o)) {
            work.registry.removed(job, object);
        }
        for object in due.iter().chain(&swept.removed) {
            if !failed.contains(object) {
                work.orphans.remove(object);
            }
        }
        work.dirty |= !failed.is_empty();
        drop(work);
        report.removed += removed;
        report.failed += failed.len() as u64;
        self.metrics.deletes.add(removed);
        self.metrics.deletes_failed.add(failed.len() as u64);
        Ok(())
    }
}

impl BlobServer {
    /// Drops what is past its deadline and removes what nothing needs, or says what would be.
    ///
    /// # Errors
    ///
    /// Not the owner any more; the first job whose manifest could not be committed: the others were done, and
    /// nothing was removed of that one.
    pub async fn sweep(&self, mode: Mode) -> Result<SweepReport, Failure> {
        let inner = &self.0;
        inner.check_owner()?;
        if mode == Mode::Apply {
            inner.look_for_successor().await?;
        }
        let mut all = SweepReport::default();
        let mut failed = None;
        for (job, cell) in inner.all_cells() {
            match inner.sweep_job(&job, &cell, mode).await {
                Ok(report) => {
                    all.decisions.extend(report.decisions);
                    all.orphans.extend(report.orphans);
                    all.removed += report.removed;
                    all.failed += report.failed;
                }
                Err(failure @ Failure::NotOwner { .. }) => return Err(failure),
                Err(failure) => {
                    tracing::warn!(%job, %failure, "a job could not be swept");
                    failed.get_or_insert(failure);
                }
            }
        }
        all.local_strays = inner.sweep_strays(mode);
        match failed {
            Some(failure) => Err(failure),
            None => {
                inner.metrics.sweeps.add(u64::from(mode == Mode::Apply));
                Ok(all)
            }
        }
    }
}

impl Inner {
    /// Local files that belong to no blob.
    fn sweep_strays(&self, mode: Mode) -> Vec<BlobKey> {
        let now = self.now();
        let mut strays = Vec::new();
        for (key, _) in self.local.keys() {
            if self.refused.contains_key(&key.job) {
                continue;
            }
            if unpoisoned(&self.strays)
                .get(&key)
                .is_some_and(|at| *at > now)
            {
                continue;
            }
            let Ok(cell) = self.cell(&key.job) else {
                continue;
            };
            let unknown = cell.as_ref().is_none_or(|c| {
                let work = c.work();
                let job = work.registry.job(&key.job);
                let known = job.is_some_and(|j| j.blobs.contains_key(&key.digest));
                !known
                    && !work.registry.is_promised(&key)
                    && !work.arriving.contains_key(&key.digest)
            });
            if !unknown {
                continue;
            }
            if mode == Mode::Apply {
                match &cell {
                    Some(cell) => self.remove_local(cell, &key),
                    None => {
                        // Nobody begins with this job meanwhile.
                        let cells = unpoisoned(&self.cells);
                        if cells.contains_key(&key.job) {
                            continue;
                        }
                        if let Err(error) = self.local.remove(&key) {
                            tracing::warn!(%key, %error, "a stray file could not be removed");
                        }
                    }
                }
                unpoisoned(&self.strays).remove(&key);
            }
            strays.push(key);
        }
        strays
    }
}
