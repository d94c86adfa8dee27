//! The owner's memory: which blobs there are, who holds them, which uploads are under way. Every
//! event is a function of this state and a moment; it either changes the state and says what must
//! be done ([`Effect`]), or is refused and changes nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::key::{BlobKey, Digest, DisplayName, JobId, Moment, ObjectName, SessionId};
use super::lifecycle::{BlobState, Class, Holder, JobEvent, JobState, Refusal, Settings};
use super::uploads::{Session, Staged};

/// What the caller must do after an event, in this order, before it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Commit the job's manifest: what must survive has changed.
    Commit(JobId),
    /// Every copy may go: the local one leaves its path before the next event is applied, the object
    /// is removed after the commit, and repeated until it is gone ([`Registry::removed`]).
    Remove(BlobKey, Option<ObjectName>),
    /// An object that another has replaced may go, after the commit; repeated until it is gone.
    RemoveObject(JobId, ObjectName),
    /// The local copy may go; an object is not touched.
    DropLocal(BlobKey),
    /// Nothing of the job is left and its tombstone has had its time: remove its manifests.
    Forget(JobId),
}

/// One visible blob, or one that waits for its last reader to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// Whether it must survive the server.
    pub class: Class,
    /// Its object in the HA store.
    pub object: Option<ObjectName>,
    /// The name people know it by.
    pub display: Option<DisplayName>,
    /// Who needs it, with the end of the lease where there is one.
    pub holders: BTreeMap<Holder, Option<Moment>>,
    /// Without holders: when it may go at the earliest.
    pub keep_until: Option<Moment>,
    /// Readers under way.
    pub pins: u32,
    pub(crate) ever_held: bool,
    pub(crate) deleting: bool,
    pub(crate) lost: bool,
}

impl Blob {
    /// Where it stands.
    pub fn state(&self) -> BlobState {
        match self {
            b if b.deleting => BlobState::Deleting,
            b if b.lost => BlobState::Lost,
            b if !b.holders.is_empty() => BlobState::Referenced,
            b if b.ever_held => BlobState::Expiring,
            _ => BlobState::Staged,
        }
    }

    /// The count rose: nothing is due any more.
    fn hold(&mut self, holder: Holder, lease_end: Option<Moment>) -> bool {
        let changed = self.keep_until.take().is_some();
        self.ever_held = true;
        self.holders.insert(holder, lease_end) != Some(lease_end) || changed
    }

    /// Called after holders went.
    fn start_expiry(&mut self, until: Moment) {
        if self.holders.is_empty() && self.keep_until.is_none() {
            self.keep_until = Some(until);
        }
    }
}

/// A job and its blobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Where it stands.
    pub state: JobState,
    /// Its blobs.
    pub blobs: BTreeMap<Digest, Blob>,
    /// Sessions committed lately, with what was answered; the oldest first.
    pub committed: VecDeque<(SessionId, Staged)>,
    /// Objects that are in no manifest any more and not gone yet.
    pub going: BTreeSet<ObjectName>,
    /// When nothing is left: until when the job is remembered.
    pub remembered_until: Option<Moment>,
}

impl Job {
    pub(crate) fn new(state: JobState) -> Job {
        Job {
            state,
            blobs: BTreeMap::new(),
            committed: VecDeque::new(),
            going: BTreeSet::new(),
            remembered_until: None,
        }
    }
}

/// The owner's memory: jobs, their blobs, open upload sessions. Every event is a function of this state
/// and a moment; it either changes the state and says what must be done ([`Effect`]), or is refused
/// and changes nothing. Nothing here survives the process but what [`content`](Registry::content) gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registry {
    pub(crate) settings: Settings,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
}

impl Registry {
    /// Without jobs.
    pub fn new(settings: Settings) -> Registry {
        Registry {
            settings,
            jobs: BTreeMap::new(),
            sessions: BTreeMap::new(),
        }
    }

    /// What is known of a job.
    pub fn job(&self, job: &JobId) -> Option<&Job> {
        self.jobs.get(job)
    }

    /// All jobs.
    pub fn jobs(&self) -> impl Iterator<Item = (&JobId, &Job)> {
        self.jobs.iter()
    }

    /// Sessions that are open.
    pub fn sessions(&self) -> impl Iterator<Item = (&SessionId, &Session)> {
        self.sessions.iter()
    }

    pub(crate) fn live_job(&self, job: &JobId) -> Result<Option<&Job>, Refusal> {
        match self.jobs.get(job) {
            Some(Job {
                state: JobState::Terminal(outcome),
                ..
            }) => Err(Refusal::JobOver(job.clone(), *outcome)),
            other => Ok(other),
        }
    }

    /// The blob, if it is visible. The blob without bytes has no entry.
    ///
    /// # Errors
    ///
    /// `JobOver`, `NotFound`, `Lost`.
    pub fn visible(&self, key: &BlobKey) -> Result<&Blob, Refusal> {
        let job = self.live_job(&key.job)?;
        let blob = job.and_then(|j| j.blobs.get(&key.digest));
        match blob.map(Blob::state) {
            None | Some(BlobState::Deleting) => Err(Refusal::NotFound(key.clone())),
            Some(BlobState::Lost) => Err(Refusal::Lost(key.clone())),
            _ => blob.ok_or_else(|| Refusal::NotFound(key.clone())),
        }
    }

    fn visible_mut(&mut self, key: &BlobKey) -> Result<&mut Blob, Refusal> {
        self.visible(key)?;
        let blob = self.blob_mut(key);
        blob.ok_or_else(|| Refusal::NotFound(key.clone()))
    }

    pub(crate) fn blob_mut(&mut self, key: &BlobKey) -> Option<&mut Blob> {
        self.jobs.get_mut(&key.job)?.blobs.get_mut(&key.digest)
    }

    /// Adds holders to a visible blob; its deadline is void. Adding a holder again renews its lease.
    ///
    /// # Errors
    ///
    /// `NotFound`, `JobOver`, `Lost`.
    pub fn acquire(
        &mut self,
        key: &BlobKey,
        holders: impl IntoIterator<Item = Holder>,
        lease_end: Option<Moment>,
    ) -> Result<Vec<Effect>, Refusal> {
        self.live_job(&key.job)?;
        if key.digest.is_empty_blob() {
            return Ok(Vec::new());
        }
        let blob = self.visible_mut(key)?;
        let mut changed = false;
        for holder in holders {
            changed |= blob.hold(holder, lease_end);
        }
        Ok(commit_if(
            changed && blob.class == Class::Retained,
            &key.job,
        ))
    }

    /// Moves the end of a holder's lease. It never comes nearer.
    ///
    /// # Errors
    ///
    /// `LeaseEnded` if the holder is gone; `NotFound`, `JobOver`, `Lost`.
    pub fn renew(
        &mut self,
        key: &BlobKey,
        holder: &Holder,
        lease_end: Moment,
    ) -> Result<Vec<Effect>, Refusal> {
        let ended = Refusal::LeaseEnded(key.clone());
        let blob = self.visible_mut(key)?;
        let lease = blob.holders.get_mut(holder).and_then(Option::as_mut);
        let lease = lease.ok_or(ended)?;
        let later = lease_end > *lease;
        *lease = lease_end.max(*lease);
        Ok(commit_if(later && blob.class == Class::Retained, &key.job))
    }

    /// Takes a holder off: a release, or a receiver's acknowledgement. One that is unknown or has
    /// gone already changes nothing, and neither does one of a blob or job that is gone.
    pub fn release(&mut self, key: &BlobKey, holder: &Holder, now: Moment) -> Vec<Effect> {
        let until = now.after(self.settings.retention);
        let Some(blob) = self.blob_mut(key) else {
            return Vec::new();
        };
        if blob.holders.remove(holder).is_none() {
            return Vec::new();
        }
        blob.start_expiry(until);
        commit_if(blob.class == Class::Retained && !blob.deleting, &key.job)
    }

    /// A reader begins: the copies stay until [`unpin`](Registry::unpin).
    ///
    /// # Errors
    ///
    /// `NotFound`, `JobOver`, `Lost`.
    pub fn pin(&mut self, key: &BlobKey) -> Result<(), Refusal> {
        let blob = self.visible_mut(key)?;
        blob.pins = blob.pins.saturating_add(1);
        Ok(())
    }

    /// A reader has gone.
    pub fn unpin(&mut self, key: &BlobKey) -> Vec<Effect> {
        let Some(blob) = self.blob_mut(key) else {
            return Vec::new();
        };
        blob.pins = blob.pins.saturating_sub(1);
        match blob.deleting && blob.pins == 0 {
            true => self.take_out(key).into_iter().collect(),
            false => Vec::new(),
        }
    }

    /// Takes an entry out; its object is on its way from now on.
    pub(crate) fn take_out(&mut self, key: &BlobKey) -> Option<Effect> {
        let job = self.jobs.get_mut(&key.job)?;
        let blob = job.blobs.remove(&key.digest)?;
        job.going.extend(blob.object);
        Some(Effect::Remove(key.clone(), blob.object))
    }

    /// An object that [`Effect::Remove`] named is gone.
    pub fn removed(&mut self, job: &JobId, object: &ObjectName) {
        if let Some(job) = self.jobs.get_mut(job) {
            job.going.remove(object);
        }
    }

    /// Every copy of a blob is damaged: it is shown as lost, never dropped silently.
    pub fn lost(&mut self, key: &BlobKey) -> Vec<Effect> {
        match self.blob_mut(key) {
            Some(blob) if !blob.lost && !blob.deleting => {
                blob.lost = true;
                commit_if(blob.class == Class::Retained, &key.job)
            }
            _ => Vec::new(),
        }
    }

    /// A lost blob is good after all: the object that was looked at, or the local copy of a blob that has none.
    /// A good local copy beside a damaged object is no reason to say so, see [`repaired`](Registry::repaired).
    pub fn found(&mut self, key: &BlobKey, object: Option<ObjectName>) -> Vec<Effect> {
        match self.blob_mut(key) {
            Some(blob) if blob.lost && !blob.deleting && blob.object == object => {
                blob.lost = false;
                commit_if(blob.class == Class::Retained, &key.job)
            }
            _ => Vec::new(),
        }
    }

    /// The object was damaged and a good copy was put under a new name.
    pub fn repaired(&mut self, key: &BlobKey, object: ObjectName) -> Vec<Effect> {
        let Some(job) = self.jobs.get_mut(&key.job) else {
            return Vec::new();
        };
        let Some(blob) = job.blobs.get_mut(&key.digest).filter(|b| !b.deleting) else {
            // Nobody waits for it: it is an orphan, which a sweep finds.
            return Vec::new();
        };
        let replaced = blob.object.filter(|o| *o != object);
        job.going.extend(replaced);
        (blob.object, blob.lost) = (Some(object), false);
        let mut effects = commit_if(blob.class == Class::Retained, &key.job);
        effects.extend(replaced.map(|o| Effect::RemoveObject(key.job.clone(), o)));
        effects
    }

    /// A job without manifest gets one, whether something is known of it or not. One of which nothing is known is
    /// forgotten like any of which nothing is left.
    pub(crate) fn hold_place(&mut self, job: &JobId) -> Vec<Effect> {
        let entry = self.jobs.entry(job.clone());
        entry.or_insert_with(|| Job::new(JobState::Staging));
        vec![Effect::Commit(job.clone())]
    }

    /// Something happened to a job. Repeating an event changes nothing.
    ///
    /// # Errors
    ///
    /// `JobOver`, except for the end of a job that is over; `NoJob`; for a registration `NotFound`
    /// or `Lost` for the first blob that is not visible, and then none is held.
    pub fn job_event(
        &mut self,
        id: &JobId,
        event: &JobEvent,
        now: Moment,
    ) -> Result<Vec<Effect>, Refusal> {
        if let JobEvent::Terminal { outcome } = event {
            return Ok(self.end_job(id, JobState::Terminal(*outcome), now));
        }
        let known = self.live_job(id)?.is_some();
        let until = now.after(self.settings.retention);
        if let JobEvent::Registered { digests } = event {
            let keys = digests.iter().filter(|d| !d.is_empty_blob());
            for digest in keys {
                self.visible(&BlobKey {
                    job: id.clone(),
                    digest: *digest,
                })?;
            }
        } else if !known {
            return Err(Refusal::NoJob(id.clone()));
        }
        let job = self.jobs.entry(id.clone());
        let job = job.or_insert_with(|| Job::new(JobState::Active));
        let mut changed = !known;
        let mut effects = Vec::new();
        let state = match event {
            JobEvent::Registered { digests } => {
                for (digest, blob) in &mut job.blobs {
                    if digests.contains(digest) {
                        let newly = blob.hold(Holder::Job, None);
                        changed |= newly && blob.class == Class::Retained;
                    }
                }
                job.remembered_until = None;
                JobState::Active
            }
            JobEvent::Failed | JobEvent::Suspended => {
                let suspended = *event == JobEvent::Suspended;
                // A suspended job's re-creatable blobs are no use to anybody: the next sweep takes them.
                let until = if suspended { now } else { until };
                for (digest, blob) in &mut job.blobs {
                    if blob.class == Class::Recreatable {
                        let had = !std::mem::take(&mut blob.holders).is_empty();
                        if had || suspended {
                            blob.keep_until = Some(blob.keep_until.unwrap_or(until).min(until));
                        }
                    } else if suspended && blob.pins == 0 && blob.object.is_some() {
                        effects.push(Effect::DropLocal(BlobKey {
                            job: id.clone(),
                            digest: *digest,
                        }));
                    }
                }
                if suspended {
                    JobState::Suspended
                } else {
                    JobState::Failed
                }
            }
            JobEvent::Terminal { .. } => job.state,
        };
        changed |= std::mem::replace(&mut job.state, state) != state;
        if changed {
            effects.insert(0, Effect::Commit(id.clone()));
        }
        Ok(effects)
    }

    fn end_job(&mut self, id: &JobId, state: JobState, now: Moment) -> Vec<Effect> {
        let job = self.jobs.entry(id.clone());
        let job = job.or_insert_with(|| Job::new(JobState::Staging));
        if job.state.is_terminal() {
            return Vec::new();
        }
        job.state = state;
        job.remembered_until = Some(now.after(self.settings.tombstone_keep));
        let mut idle = Vec::new();
        for (digest, blob) in &mut job.blobs {
            blob.deleting = true;
            blob.holders.clear();
            if blob.pins == 0 {
                idle.push(*digest);
            }
        }
        let mut effects = vec![Effect::Commit(id.clone())];
        effects.extend(self.end_sessions(|s| s.job == *id));
        effects.extend(idle.into_iter().filter_map(|digest| {
            self.take_out(&BlobKey {
                job: id.clone(),
                digest,
            })
        }));
        effects
    }

    /// Ends leases and sessions whose time has come.
    pub fn tick(&mut self, now: Moment) -> Vec<Effect> {
        let until = now.after(self.settings.retention);
        let idle = self.settings.upload_idle;
        let mut effects = self.end_sessions(|s| s.last_byte.after(idle) <= now);
        for (id, job) in &mut self.jobs {
            let mut changed = false;
            for blob in job.blobs.values_mut() {
                let before = blob.holders.len();
                blob.holders.retain(|_, end| end.is_none_or(|e| e > now));
                if blob.holders.len() < before {
                    blob.start_expiry(until);
                    changed |= blob.class == Class::Retained && !blob.deleting;
                }
            }
            effects.extend(commit_if(changed, id));
        }
        effects
    }
}

fn commit_if(changed: bool, job: &JobId) -> Vec<Effect> {
    match changed {
        true => vec![Effect::Commit(job.clone())],
        false => Vec::new(),
    }
}
