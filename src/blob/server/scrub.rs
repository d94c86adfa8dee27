//! Scrubbing: reads every copy, and replaces damaged ones from the other place.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::clock;

use super::super::ha::Object;
use super::super::key::{BlobKey, Moment, ObjectName};
use super::super::local::{Look, Opened};
use super::cell::Cell;
use super::{BlobServer, Failure, Inner, Mode};

/// Where a copy lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// The local directory.
    Local,
    /// The HA store.
    Ha,
}

/// A damaged or missing copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The blob.
    pub key: BlobKey,
    /// Which copy.
    pub place: Place,
    /// What is wrong with it.
    pub what: String,
    /// It was replaced from the other place.
    pub repaired: bool,
}

/// What a scrub found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ScrubReport {
    /// Copies that were read.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What is damaged or missing.
    pub findings: Vec<Finding>,
    /// Blobs of which there is no good copy.
    pub lost: Vec<BlobKey>,
    /// Copies that could not be read for another reason; what was answered.
    pub unknown: Vec<(BlobKey, String)>,
}

impl BlobServer {
    /// Reads all copies, no faster than `blob.scrub.rate`. Applied, a damaged local copy goes into the
    /// quarantine and is fetched anew; a damaged or missing object is written again under a new name and the old
    /// one removed; a blob without a good copy is marked lost, and its holders are told when they ask for it.
    ///
    /// # Errors
    ///
    /// Not the owner any more.
    pub async fn scrub(&self, mode: Mode) -> Result<ScrubReport, Failure> {
        let inner = &self.0;
        inner.check_owner()?;
        let mut report = ScrubReport::default();
        for (job, cell) in inner.all_cells() {
            let keys: Vec<BlobKey> = {
                let work = cell.work();
                let blobs = work.registry.job(&job).map(|j| j.blobs.keys());
                let keys = blobs.into_iter().flatten().map(|digest| BlobKey {
                    job: job.clone(),
                    digest: *digest,
                });
                keys.collect()
            };
            for key in keys {
                match inner.scrub_blob(&cell, &key, mode, &mut report).await {
                    Ok(()) => {}
                    Err(failure @ Failure::NotOwner { .. }) => return Err(failure),
                    Err(failure) => report.unknown.push((key, failure.to_string())),
                }
            }
        }
        Ok(report)
    }
}

impl Inner {
    async fn scrub_blob(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        key: &BlobKey,
        mode: Mode,
        report: &mut ScrubReport,
    ) -> Result<(), Failure> {
        // It went meanwhile, or is known as lost.
        let Ok(pin) = self.pin(cell, key) else {
            return self.scrub_lost(cell, key, mode, report).await;
        };
        let rate = self.config.scrub_rate;
        let pause = move |bytes: u64| async move {
            if let Some(rate) = rate {
                clock::sleep(Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64)).await;
            }
        };
        let look = match mode {
            Mode::Apply => Look::Again,
            Mode::DryRun => Look::Only,
        };
        let local = self.open_local(key, look).await?;
        if !matches!(local, Opened::Absent) {
            report.copies += 1;
            report.bytes = report.bytes.saturating_add(key.digest.size);
            pause(key.digest.size).await;
        }
        let object = cell.work().registry.visible(key)?.object;
        let remote = match &object {
            Some(object) => {
                report.copies += 1;
                report.bytes = report.bytes.saturating_add(key.digest.size);
                Some(self.ha.examine(&key.job, object, pause).await?)
            }
            None => None,
        };
        let mut found = Vec::new();
        if let Opened::Damaged(what) = &local {
            found.push((Place::Local, what.clone()));
        }
        match &remote {
            Some(Object::Missing) => found.push((Place::Ha, "it is missing".to_string())),
            Some(Object::Damaged(what)) => found.push((Place::Ha, what.clone())),
            _ => {}
        }
        self.metrics
            .damaged_ha
            .add(found.iter().filter(|(p, _)| *p == Place::Ha).count() as u64);
        let good_local = matches!(local, Opened::Copy(_));
        let good_remote = remote == Some(Object::Good);
        for (place, what) in found {
            let repaired = match (mode, place) {
                (Mode::DryRun, _) => false,
                (Mode::Apply, Place::Local) if good_remote => {
                    drop(self.fetch(cell, key).await?);
                    true
                }
                (Mode::Apply, Place::Ha) if good_local => self.rewrite_object(cell, key).await?,
                _ => false,
            };
            self.metrics.repaired.add(u64::from(repaired));
            report.findings.push(Finding {
                key: key.clone(),
                place,
                what,
                repaired,
            });
        }
        if !good_local && !good_remote {
            if mode == Mode::Apply {
                let failure = self.all_copies_bad(key, object).await;
                if !matches!(failure, Failure::Refused(_)) {
                    return Err(failure);
                }
            }
            report.lost.push(key.clone());
        }
        drop(pin);
        Ok(())
    }

    /// A blob that was marked as lost, and of which a copy is good after all, is not lost any more: once its object is
    /// good, or has been written again from the local copy.
    async fn scrub_lost(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        key: &BlobKey,
        mode: Mode,
        report: &mut ScrubReport,
    ) -> Result<(), Failure> {
        let object = {
            let work = cell.work();
            let job = work.registry.job(&key.job);
            match job.and_then(|j| j.blobs.get(&key.digest)) {
                Some(blob) if blob.lost && !blob.deleting => blob.object,
                _ => return Ok(()),
            }
        };
        if mode == Mode::DryRun {
            report.lost.push(key.clone());
            return Ok(());
        }
        let is_good = match &object {
            Some(object) => {
                let seen = self.ha.examine(&key.job, object, |_| async {}).await?;
                seen == Object::Good
            }
            None => matches!(self.open_local(key, Look::Again).await?, Opened::Copy(_)),
        };
        // A good local copy alone is not enough: an upload that is committed next would count on the object.
        let is_back = if is_good {
            let of = key.clone();
            let found = move |r: &mut super::Registry, _| Ok(((), r.found(&of, object)));
            self.change(&key.job, found).await?;
            true
        } else {
            object.is_some() && self.rewrite_object(cell, key).await?
        };
        if !is_back {
            report.lost.push(key.clone());
        }
        Ok(())
    }

    /// Puts an object again under a new name from the local copy, which is verified as it is read. False if
    /// there is none.
    pub(super) async fn rewrite_object(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        key: &BlobKey,
    ) -> Result<bool, Failure> {
        let Opened::Copy(copy) = self.open_local(key, Look::Again).await? else {
            return Ok(false);
        };
        let name = ObjectName {
            digest: key.digest,
            epoch: self.epoch,
            random: clock::random_id(),
        };
        cell.work().writing.insert(name);
        let written = match self.ha.upload(&key.job, &name, &copy).await {
            Ok(()) => {
                let of = key.clone();
                let event = move |r: &mut super::Registry, _| Ok(((), r.repaired(&of, name)));
                self.change(&key.job, event).await
            }
            Err(e) => Err(e.into()),
        };
        let mut work = cell.work();
        work.writing.remove(&name);
        let job = work.registry.job(&key.job);
        let named = job.is_some_and(|j| j.blobs.values().any(|b| b.object == Some(name)));
        if !named {
            work.orphans.insert(name, Moment(0));
        }
        work.dirty = true;
        drop(work);
        written?;
        Ok(named)
    }
}
