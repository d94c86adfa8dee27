//! The manifest of a job: what must survive the owner. A JSON document; see [`chain`](super::Commit)
//! for how it moves forward.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

use super::chain::Ledger;
use super::key::{Digest, DisplayName, JobId, Moment, ObjectName, SessionId};
use super::lifecycle::{Class, Holder, JobState};
use super::registry::{Blob, Job, Registry};
use super::uploads::Staged;

/// The version written.
pub const MANIFEST_VERSION: u32 = 1;
/// A document larger than this is not read: 64 MiB.
pub const LARGEST_MANIFEST: usize = 64 << 20;
/// Most commits that a manifest lists. A writer that was overtaken by more is fenced.
const MOST_COMMITS: usize = 256;

/// What a job's blobs are, as of one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Content {
    /// Where the job stands.
    pub state: JobState,
    /// Its retained blobs.
    pub entries: Vec<Entry>,
    /// Names given out for uploads that go directly to the HA store.
    pub reservations: Vec<Reservation>,
    /// Batches committed lately and what was answered; the oldest first.
    pub batches: Vec<Batch>,
    /// When this was said, by the clock of the owner that said it: leases are counted from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<Moment>,
}

/// One retained blob.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The content.
    pub digest: Digest,
    /// The object that holds it.
    pub object: ObjectName,
    /// The name people know it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display: Option<DisplayName>,
    /// Who needs it.
    pub holders: Vec<Held>,
    /// Without holders: when it may go at the earliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_until: Option<Moment>,
    /// Every copy is damaged.
    #[serde(default)]
    pub lost: bool,
    /// It has been held before.
    #[serde(default)]
    pub ever_held: bool,
}

/// A holder and the end of its lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// Who.
    pub by: Holder,
    /// Until when, where there is a lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_end: Option<Moment>,
}

/// Names that a session may write itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reservation {
    /// The session.
    pub session: SessionId,
    /// The names.
    pub names: BTreeSet<ObjectName>,
    /// When it lapses.
    pub until: Moment,
}

/// A committed batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Its session.
    pub session: SessionId,
    /// Its members.
    pub digests: BTreeSet<Digest>,
    /// The deadline that was answered.
    pub keep_until: Moment,
}

/// One link of a job's chain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the document.
    pub version: u32,
    /// Its number.
    pub sequence: u64,
    /// The epoch of the owner that wrote it.
    pub epoch: u64,
    /// The program that wrote it.
    pub created_by: String,
    /// The commits it contains, as far as they are remembered; the newest last.
    pub commits: Vec<SessionId>,
    /// What it says.
    pub content: Content,
}

impl Manifest {
    /// The document.
    ///
    /// # Errors
    ///
    /// `Internal` if it cannot be written as JSON.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec_pretty(self).map_err(|e| {
            Error::new(
                ErrorKind::Internal,
                format!("a manifest cannot be written: {e}"),
            )
        })
    }

    /// Reads a document and checks that it can be what manifest `sequence` says.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a later version. `Corrupt` for what is no manifest, has another number, or
    /// contradicts itself; with line and column where it is not JSON.
    pub fn from_json(bytes: &[u8], sequence: u64) -> Result<Manifest> {
        let damaged = |what: String| {
            Error::corrupt(format!("manifest {sequence}: {what}"))
                .hint("nothing of this job is touched; restore the object, or end the job by hand")
        };
        if bytes.len() > LARGEST_MANIFEST {
            return Err(damaged(format!("{} bytes are too many", bytes.len())));
        }
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } =
            serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
        if version != MANIFEST_VERSION {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("manifest {sequence} has version {version}"),
            )
            .hint(format!(
                "this program reads version {MANIFEST_VERSION}: use a later one"
            )));
        }
        let read: Manifest = serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
        if read.sequence != sequence {
            return Err(damaged(format!("it says it is number {}", read.sequence)));
        }
        let mut digests = BTreeSet::new();
        for entry in &read.content.entries {
            if !digests.insert(entry.digest) {
                return Err(damaged(format!("blob {} is listed twice", entry.digest)));
            }
            if entry.object.digest != entry.digest {
                return Err(damaged(format!(
                    "blob {} has object {}",
                    entry.digest, entry.object
                )));
            }
        }
        if read.content.state.is_terminal() && !digests.is_empty() {
            return Err(damaged("the job is over and has blobs".to_string()));
        }
        Ok(read)
    }

    /// The objects it refers to, reservations included.
    pub fn objects(&self) -> BTreeSet<ObjectName> {
        let reserved = self.content.reservations.iter().flat_map(|r| &r.names);
        let entries = self.content.entries.iter().map(|e| &e.object);
        entries.chain(reserved).copied().collect()
    }
}

impl Ledger for Manifest {
    type Name = ObjectName;
    type Names = BTreeSet<ObjectName>;
    type Change = Content;

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn lists(&self, session: SessionId) -> bool {
        self.commits.contains(&session)
    }

    fn next(
        base: Option<&Manifest>,
        sequence: u64,
        epoch: u64,
        change: Option<(SessionId, &Content)>,
    ) -> Manifest {
        let empty = || Content {
            state: JobState::Staging,
            entries: Vec::new(),
            reservations: Vec::new(),
            batches: Vec::new(),
            as_of: None,
        };
        let content = match (change, base) {
            (Some((_, content)), _) => content.clone(),
            (None, Some(base)) => base.content.clone(),
            (None, None) => empty(),
        };
        let mut commits = base.map(|b| b.commits.clone()).unwrap_or_default();
        commits.extend(change.map(|(session, _)| session));
        let forgotten = commits.len().saturating_sub(MOST_COMMITS);
        commits.drain(..forgotten);
        Manifest {
            version: MANIFEST_VERSION,
            sequence,
            epoch,
            created_by: concat!("forkpoint ", env!("CARGO_PKG_VERSION")).to_string(),
            commits,
            content,
        }
    }

    fn garbage(
        &self,
        listed: &BTreeSet<ObjectName>,
        in_flight: &BTreeSet<ObjectName>,
    ) -> Vec<ObjectName> {
        let known = self.objects();
        let unknown = |o: &&ObjectName| !in_flight.contains(o) && !known.contains(o);
        listed.iter().filter(unknown).copied().collect()
    }
}

impl Registry {
    /// What must survive of a job: its retained blobs. Re-creatable ones are known in memory only.
    pub fn content(&self, job: &JobId) -> Option<Content> {
        let job = self.job(job)?;
        let retained = |b: &Blob| b.class == Class::Retained && !b.deleting;
        let entries = job.blobs.iter().filter(|(_, b)| retained(b));
        let entries = entries.filter_map(|(digest, blob)| {
            let holders = blob.holders.iter().map(|(by, lease_end)| Held {
                by: by.clone(),
                lease_end: *lease_end,
            });
            Some(Entry {
                digest: *digest,
                object: blob.object?,
                display: blob.display.clone(),
                holders: holders.collect(),
                keep_until: blob.keep_until,
                lost: blob.lost,
                ever_held: blob.ever_held,
            })
        });
        let batches = job.committed.iter().map(|(session, staged)| Batch {
            session: *session,
            digests: staged.digests.clone(),
            keep_until: staged.keep_until,
        });
        Some(Content {
            state: job.state,
            entries: entries.collect(),
            reservations: Vec::new(),
            batches: batches.collect(),
            as_of: None,
        })
    }

    /// Takes over a job from its sealed manifest. Deadlines start again in full, and leases with what was left of
    /// them when the manifest was made, at least one retention interval: the clocks of two owners may differ, or
    /// jump, and times only get longer. A job that is not to be recovered loses the holder "job", unless it is suspended.
    pub fn adopt(&mut self, id: &JobId, manifest: &Manifest, recovered: bool, now: Moment) {
        let until = now.after(self.settings.retention);
        let content = &manifest.content;
        let mut job = Job::new(content.state);
        if content.state.is_terminal() {
            job.remembered_until = Some(now.after(self.settings.tombstone_keep));
        }
        let kept = recovered || content.state == JobState::Suspended;
        let lease = |end: Moment| {
            let left = content.as_of.map_or(0, |at| end.0.saturating_sub(at.0));
            end.max(until).max(Moment(now.0.saturating_add(left)))
        };
        for entry in &content.entries {
            let holders = entry.holders.iter().filter(|h| kept || h.by != Holder::Job);
            let holders: BTreeMap<Holder, Option<Moment>> = holders
                .map(|h| (h.by.clone(), h.lease_end.map(lease)))
                .collect();
            let blob = Blob {
                class: Class::Retained,
                object: Some(entry.object),
                display: entry.display.clone(),
                keep_until: holders
                    .is_empty()
                    .then(|| entry.keep_until.unwrap_or(until).max(until)),
                holders,
                pins: 0,
                ever_held: entry.ever_held,
                deleting: false,
                lost: entry.lost,
            };
            job.blobs.insert(entry.digest, blob);
        }
        job.committed = content
            .batches
            .iter()
            .map(|b| {
                let staged = Staged {
                    digests: b.digests.clone(),
                    keep_until: b.keep_until,
                };
                (b.session, staged)
            })
            .collect();
        self.jobs.insert(id.clone(), job);
    }
}
