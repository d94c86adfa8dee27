//! What a new owner does with what it finds: a decision over listings and sealed manifests. Nothing is
//! downloaded. What no manifest names is staged and goes when it is old enough; what is no name of
//! ours is reported and left alone; of a job whose manifest cannot be read nothing is touched.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};

use super::key::{BlobKey, JobId, Moment, ObjectName};
use super::layout::{LocalPath, StorePath};
use super::lifecycle::Settings;
use super::manifest::Manifest;
use super::registry::Registry;

/// A name in a listing, relative to the cluster's folder or the local directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
    /// When it was written, by the clock of the store that lists it.
    pub modified: Moment,
}

/// A job that is not served, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedJob {
    /// The job.
    pub job: JobId,
    /// Why its manifest cannot be read.
    pub why: String,
}

/// What a new owner has found.
#[derive(Debug)]
pub struct Found {
    /// Its epoch.
    pub epoch: u64,
    /// The newest manifest of each job, after the seal; or why it cannot be read.
    pub manifests: BTreeMap<JobId, Result<Manifest>>,
    /// Everything below the cluster's folder.
    pub objects: Vec<Listed>,
    /// Everything in the local directory.
    pub local: Vec<Listed>,
    /// The jobs that are to be recovered.
    pub recover: BTreeSet<JobId>,
    /// The HA store's clock: when it says that this owner's latest write was made.
    pub store_now: Moment,
    /// This process's clock.
    pub now: Moment,
    /// `blob.orphan.min-age`.
    pub orphan_min_age: Duration,
}

/// What to do about one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// An object that no manifest names: a sweep may remove it once the HA store's clock says so.
    StageObject {
        /// Its job.
        job: JobId,
        /// Its name.
        name: ObjectName,
        /// By the HA store's clock.
        not_before: Moment,
    },
    /// The job is over, and the purge goes on.
    RemoveObject {
        /// The job.
        job: JobId,
        /// The object.
        name: ObjectName,
    },
    /// A local copy of a blob that is known. It must be verified before its first use.
    AdoptLocal(BlobKey),
    /// A local copy of an unknown blob: it may go at this moment of the process's clock.
    StageLocal {
        /// The blob it claims to be.
        key: BlobKey,
        /// When it may go.
        not_before: Moment,
    },
    /// The local copy of a job that is over, or what never was complete: goes at once.
    RemoveLocal(LocalPath),
    /// The local copy has another size than its name says: it is moved to the quarantine.
    QuarantineLocal {
        /// What it claims to be.
        key: BlobKey,
        /// Its size in bytes.
        size: u64,
    },
    /// The object is missing or has another size than its name says: it must be put again under a new
    /// name from the local copy, which is verified first.
    RepairObject(BlobKey),
    /// The object is missing or damaged and there is no local copy: the blob is lost.
    MarkLost(BlobKey),
    /// No name of ours: reported and left alone.
    LeaveForeign {
        /// True in the local directory, false in the HA store.
        local: bool,
        /// The name.
        path: String,
    },
    /// The job's manifest cannot be read: its blobs are not served, and nothing of it is touched.
    RefuseJob {
        /// The job.
        job: JobId,
        /// Why.
        why: String,
    },
    /// A job that is to be recovered has no manifest: it needs no retained blobs, or never had any.
    NothingKnown(JobId),
}

/// A registry of all jobs that are served, and what else is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// The owner's memory to start with.
    pub registry: Registry,
    /// Sorted by what they concern, as listed.
    pub actions: Vec<Action>,
}

/// Decides.
///
/// # Errors
///
/// `Conflict` if something was written by a later owner: step down. `Refused` if a job is not sealed
/// by this one.
pub fn recover(found: &Found, settings: Settings) -> Result<Recovery> {
    let mut registry = Registry::new(settings);
    let mut actions = Vec::new();
    let mut unreadable = BTreeSet::new();
    for (job, manifest) in &found.manifests {
        match manifest {
            Ok(m) if m.epoch > found.epoch => return Err(deposed(found.epoch, m.epoch)),
            Ok(m) if m.epoch < found.epoch => {
                return Err(Error::refused(format!(
                    "job {job} is sealed by epoch {}, not by {}",
                    m.epoch, found.epoch
                ))
                .hint("seal every job before the recovery"));
            }
            Ok(m) => registry.adopt(job, m, found.recover.contains(job), found.now),
            Err(e) => {
                unreadable.insert(job);
                actions.push(Action::RefuseJob {
                    job: job.clone(),
                    why: e.to_string(),
                });
            }
        }
    }
    let nothing = |j: &&JobId| !found.manifests.contains_key(j);
    let unknown = found.recover.iter().filter(nothing).cloned();
    actions.extend(unknown.map(Action::NothingKnown));

    let mut whole: BTreeSet<(&JobId, ObjectName)> = BTreeSet::new();
    let mut objects = Vec::new();
    for listed in &found.objects {
        match StorePath::parse(&listed.path) {
            Ok(StorePath::Object(job, _, name)) => objects.push((job, name, listed)),
            Ok(StorePath::Epoch(epoch)) if epoch > found.epoch => {
                return Err(deposed(found.epoch, epoch));
            }
            Ok(_) => {}
            Err(_) => actions.push(Action::LeaveForeign {
                local: false,
                path: listed.path.clone(),
            }),
        }
    }
    for (job, name, listed) in &objects {
        if name.epoch > found.epoch {
            return Err(deposed(found.epoch, name.epoch));
        }
        if unreadable.contains(job) {
            continue;
        }
        let known = registry.job(job);
        if known.is_some_and(|j| j.state.is_terminal()) {
            actions.push(Action::RemoveObject {
                job: job.clone(),
                name: *name,
            });
            continue;
        }
        let manifest = found.manifests.get(job).and_then(|m| m.as_ref().ok());
        if manifest.is_some_and(|m| m.objects().contains(name)) {
            if listed.size == name.digest.size {
                whole.insert((job, *name));
            }
            continue;
        }
        // By the store's clock alone: the age of what it wrote is not ours to measure.
        let due = listed.modified.after(found.orphan_min_age);
        actions.push(Action::StageObject {
            job: job.clone(),
            name: *name,
            not_before: due.max(found.store_now),
        });
    }

    let local = local_actions(found, &registry, &unreadable, &mut actions);
    for (id, job) in registry.jobs() {
        for (digest, blob) in &job.blobs {
            let key = BlobKey {
                job: id.clone(),
                digest: *digest,
            };
            let there = blob.object.is_some_and(|o| whole.contains(&(id, o)));
            match (there, local.contains(&key)) {
                (true, _) => {}
                (false, true) => actions.push(Action::RepairObject(key)),
                (false, false) => actions.push(Action::MarkLost(key)),
            }
        }
    }
    for action in &actions {
        if let Action::MarkLost(key) = action {
            registry.lost(key);
        }
    }
    Ok(Recovery { registry, actions })
}

fn deposed(ours: u64, theirs: u64) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("epoch {ours} has been taken over by epoch {theirs}"),
    )
    .hint("step down: the later owner serves this cluster")
}

/// Decides about the local directory; gives the copies that may be used after verification.
fn local_actions(
    found: &Found,
    registry: &Registry,
    unreadable: &BTreeSet<&JobId>,
    actions: &mut Vec<Action>,
) -> BTreeSet<BlobKey> {
    let mut usable = BTreeSet::new();
    for listed in &found.local {
        let path = match LocalPath::parse(&listed.path) {
            Ok(path) => path,
            Err(_) => {
                actions.push(Action::LeaveForeign {
                    local: true,
                    path: listed.path.clone(),
                });
                continue;
            }
        };
        if path.is_wiped_at_start() {
            actions.push(Action::RemoveLocal(path));
            continue;
        }
        let LocalPath::Blob(job, digest) = &path else {
            continue;
        };
        if unreadable.contains(job) {
            continue;
        }
        let key = BlobKey {
            job: job.clone(),
            digest: *digest,
        };
        let known = registry.job(job);
        if known.is_some_and(|j| j.state.is_terminal()) {
            actions.push(Action::RemoveLocal(path));
        } else if listed.size != digest.size {
            actions.push(Action::QuarantineLocal {
                key,
                size: listed.size,
            });
        } else if known.is_some_and(|j| j.blobs.contains_key(digest)) {
            actions.push(Action::AdoptLocal(key.clone()));
            usable.insert(key);
        } else {
            actions.push(Action::StageLocal {
                key,
                not_before: found.now.after(registry.settings.retention),
            });
        }
    }
    usable
}
