//! A look at a cluster from outside: what its owner would find. Changes nothing and takes nothing over.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt;
use serde::Serialize;

use crate::clock;
use crate::error::Result;

use super::super::key::{Digest, JobId, Moment, ObjectName};
use super::super::layout::StorePath;
use super::super::lifecycle::JobState;
use super::super::recovery::RefusedJob;
use super::{HaStore, MANIFESTS_READ_AHEAD, Owner, readable};

/// What lies in a cluster's folder.
#[derive(Debug, Clone, Serialize)]
pub struct Inspection {
    /// The folder.
    pub folder: String,
    /// The newest epoch.
    pub epoch: u64,
    /// Who took it.
    pub owner: Owner,
    /// Jobs with a manifest.
    pub jobs: Vec<InspectedJob>,
    /// Jobs whose newest manifest cannot be read.
    pub refused: Vec<RefusedJob>,
    /// Objects that no manifest names. Of a server that runs they may be uploads under way.
    pub orphans: Vec<Orphan>,
    /// Names that are none of ours.
    pub foreign: Vec<String>,
}

/// A job as its newest manifest says.
#[derive(Debug, Clone, Serialize)]
pub struct InspectedJob {
    /// The job.
    pub job: JobId,
    /// Where it stands.
    pub state: String,
    /// Its retained blobs.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blobs without holder.
    pub unheld: u64,
    /// Blobs whose objects are missing or have another size.
    pub missing: Vec<Digest>,
    /// Blobs of which the owner found no good copy.
    pub lost: Vec<Digest>,
}

/// An object that no manifest names.
#[derive(Debug, Clone, Serialize)]
pub struct Orphan {
    /// Its job.
    pub job: JobId,
    /// Its name.
    pub object: ObjectName,
    /// Its size in bytes.
    pub bytes: u64,
    /// It is older than asked for, by this machine's clock.
    pub due: bool,
}

impl Inspection {
    /// True if an object is missing that a manifest names, or a blob is lost.
    pub fn is_damaged(&self) -> bool {
        let bad = |j: &InspectedJob| !j.missing.is_empty() || !j.lost.is_empty();
        self.jobs.iter().any(bad)
    }
}

fn word(state: JobState) -> String {
    match state {
        JobState::Staging => "staging".to_string(),
        JobState::Active => "active".to_string(),
        JobState::Failed => "failed".to_string(),
        JobState::Suspended => "suspended".to_string(),
        JobState::Terminal(outcome) => format!("over ({outcome})"),
    }
}

/// Looks. Two listings, and a read for each job.
///
/// # Errors
///
/// `NotFound` if no server ever owned the cluster; what the store answers.
pub async fn inspect(ha: &HaStore, orphan_min_age: Duration) -> Result<Inspection> {
    let epoch = ha.owned_epoch().await?;
    let owner = ha.owner(epoch).await?;
    let listed = ha.everything().await?;
    let now = Moment(u64::try_from(clock::unix_millis()).unwrap_or(0));
    let mut found = Inspection {
        folder: ha.folder().to_string(),
        epoch,
        owner,
        jobs: Vec::new(),
        refused: Vec::new(),
        orphans: Vec::new(),
        foreign: Vec::new(),
    };
    let mut named: BTreeSet<(JobId, ObjectName)> = BTreeSet::new();
    let mut unreadable = BTreeSet::new();
    let whole: BTreeSet<(JobId, ObjectName)> = listed
        .iter()
        .filter_map(|l| match StorePath::parse(&l.path) {
            Ok(StorePath::Object(job, _, name)) if l.size == name.digest.size => Some((job, name)),
            _ => None,
        })
        .collect();
    let jobs = HaStore::jobs(&listed);
    let mut manifests = pin!(ha.newest_manifests(&listed, jobs, MANIFESTS_READ_AHEAD));
    while let Some((job, manifest)) = manifests.try_next().await? {
        let Some(manifest) = readable(&job, manifest, &mut found.refused) else {
            unreadable.insert(job);
            continue;
        };
        named.extend(manifest.objects().into_iter().map(|o| (job.clone(), o)));
        let entries = &manifest.content.entries;
        let missing = entries
            .iter()
            .filter(|e| !whole.contains(&(job.clone(), e.object)));
        found.jobs.push(InspectedJob {
            state: word(manifest.content.state),
            blobs: entries.len() as u64,
            bytes: entries.iter().map(|e| e.digest.size).sum(),
            unheld: entries.iter().filter(|e| e.holders.is_empty()).count() as u64,
            missing: missing.map(|e| e.digest).collect(),
            lost: entries
                .iter()
                .filter(|e| e.lost)
                .map(|e| e.digest)
                .collect(),
            job,
        });
    }
    for l in listed {
        match StorePath::parse(&l.path) {
            Ok(StorePath::Object(job, _, object)) => {
                let key = (job, object);
                if !named.contains(&key) && !unreadable.contains(&key.0) {
                    found.orphans.push(Orphan {
                        job: key.0,
                        object,
                        bytes: l.size,
                        due: l.modified.after(orphan_min_age) <= now,
                    });
                }
            }
            Ok(_) => {}
            Err(_) => found.foreign.push(l.path),
        }
    }
    Ok(found)
}
