//! The owner's memory: which blobs there are, who holds them, which uploads are under way. Every
//! event is a function of this state and a moment; it either changes the state and says what must
//! be done ([`Effect`]), or is refused and changes nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::key::{BlobKey, Digest, DisplayName, JobId, Moment, ObjectName, SessionId};
use super::lifecycle::{BlobState, Class, Holder, JobEvent, JobState, Refusal, Settings};

/// What the caller must do after an event, in this order, before it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Commit the job's manifest: what must survive has changed.
    Commit(JobId),
    /// Every copy may go: the local one leaves its path before the next event is applied, the object
    /// is removed after the commit, and repeated until it is gone ([`Registry::removed`]).
    Remove(BlobKey, Option<ObjectName>),
    /// The local copy may go; the object stays.
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

/// A member of a batch to be uploaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The content.
    pub digest: Digest,
    /// Whether it must survive the server.
    pub class: Class,
    /// The name people know it by.
    pub display: Option<DisplayName>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    class: Class,
    display: Option<DisplayName>,
    /// The object, once all bytes are there (`None` within: local only).
    arrived: Option<Option<ObjectName>>,
    /// It was visible when the session began, and is promised to stay.
    present: bool,
}

/// A batch under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The job it uploads for.
    pub job: JobId,
    members: BTreeMap<Digest, Member>,
    last_byte: Moment,
}

/// The answer to the beginning of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// What must be sent.
    pub missing: Vec<Digest>,
    /// When the session lapses if no byte comes.
    pub idle_until: Moment,
}

/// The answer to the commit of a batch; a repeated commit gets the same.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Staged {
    /// The members: all visible from now on.
    pub digests: BTreeSet<Digest>,
    /// Until when they stay although nobody holds them.
    pub keep_until: Moment,
}

/// See the [module](self).
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

    fn live_job(&self, job: &JobId) -> Result<Option<&Job>, Refusal> {
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

    /// True if an open session was told that the blob is there, or has sent it already.
    pub(crate) fn is_promised(&self, key: &BlobKey) -> bool {
        self.sessions.values().any(|s| {
            s.job == key.job
                && s.members
                    .get(&key.digest)
                    .is_some_and(|m| m.present || m.arrived.is_some())
        })
    }

    /// Objects of open sessions: complete, and in no manifest yet. A sweep leaves them alone.
    pub fn in_flight(&self, job: &JobId) -> BTreeSet<ObjectName> {
        let sessions = self.sessions.values().filter(|s| s.job == *job);
        sessions
            .flat_map(|s| s.members.values())
            .filter_map(|m| m.arrived.flatten())
            .collect()
    }

    /// Begins a batch. What is there already need not be sent, and is promised to stay until the
    /// session ends and at least one retention interval from now. Repeating it with the same plan
    /// gives the state of things.
    ///
    /// # Errors
    ///
    /// `JobOver`, `SessionTaken`, `TooMany`, `TooLarge`, `Quota`.
    pub fn begin_upload(
        &mut self,
        id: SessionId,
        job: &JobId,
        plan: &[Planned],
        now: Moment,
    ) -> Result<Begun, Refusal> {
        let idle_until = now.after(self.settings.upload_idle);
        if self
            .live_job(job)?
            .is_some_and(|j| j.committed.iter().any(|(s, _)| *s == id))
        {
            return Ok(Begun {
                missing: Vec::new(),
                idle_until,
            });
        }
        if let Some(open) = self.sessions.get_mut(&id) {
            let planned = |p: &Planned| open.members.contains_key(&p.digest);
            if open.job != *job || !plan.iter().all(planned) {
                return Err(Refusal::SessionTaken(id));
            }
            open.last_byte = open.last_byte.max(now);
            return Ok(Begun {
                missing: open.missing(),
                idle_until,
            });
        }
        if plan.len() > self.settings.most_members {
            return Err(Refusal::TooMany(
                "members in a batch",
                self.settings.most_members,
            ));
        }
        let open = self.sessions.values().filter(|s| s.job == *job).count();
        if open >= self.settings.most_sessions {
            return Err(Refusal::TooMany(
                "open sessions of a job",
                self.settings.most_sessions,
            ));
        }
        let known = self.jobs.get(job);
        let mut members: BTreeMap<Digest, Member> = BTreeMap::new();
        for planned in plan {
            self.fits(&planned.digest)?;
            let there = known.and_then(|j| j.blobs.get(&planned.digest));
            let present = planned.digest.is_empty_blob()
                || there.is_some_and(|b| !b.deleting && !b.lost && b.class >= planned.class);
            let member = Member {
                class: planned.class,
                display: planned.display.clone(),
                arrived: None,
                present,
            };
            // Twice in one plan: the stricter wish counts.
            match members.get_mut(&planned.digest) {
                Some(earlier) if member.class > earlier.class => *earlier = member,
                Some(_) => {}
                None => {
                    members.insert(planned.digest, member);
                }
            }
        }
        let more: u64 = members
            .iter()
            .filter(|(_, m)| !m.present)
            .fold(0, |sum, (d, _)| sum.saturating_add(d.size));
        if self.used(job).saturating_add(more) > self.settings.job_quota {
            return Err(Refusal::Quota(job.clone(), self.settings.job_quota));
        }
        let session = Session {
            job: job.clone(),
            members,
            last_byte: now,
        };
        let missing = session.missing();
        let until = now.after(self.settings.retention);
        let entry = self.jobs.entry(job.clone());
        let entry = entry.or_insert_with(|| Job::new(JobState::Staging));
        entry.remembered_until = None;
        for (digest, member) in &session.members {
            let blob = entry.blobs.get_mut(digest).filter(|_| member.present);
            if let Some(keep) = blob.and_then(|b| b.keep_until.as_mut()) {
                *keep = until.max(*keep);
            }
        }
        self.sessions.insert(id, session);
        Ok(Begun {
            missing,
            idle_until,
        })
    }

    fn fits(&self, digest: &Digest) -> Result<(), Refusal> {
        match digest.size > self.settings.largest_blob {
            true => Err(Refusal::TooLarge(*digest, self.settings.largest_blob)),
            false => Ok(()),
        }
    }

    /// Bytes that a job has and that its sessions have announced.
    pub fn used(&self, job: &JobId) -> u64 {
        let blobs = self.jobs.get(job).into_iter().flat_map(|j| j.blobs.keys());
        let coming = self.sessions.values().filter(|s| s.job == *job);
        let coming = coming.flat_map(|s| s.members.iter().filter(|(_, m)| !m.present));
        blobs
            .chain(coming.map(|(d, _)| d))
            .fold(0, |sum, d| sum.saturating_add(d.size))
    }

    /// Bytes are flowing: the session lives on.
    ///
    /// # Errors
    ///
    /// `NoSession`.
    pub fn bytes_came(&mut self, id: SessionId, now: Moment) -> Result<(), Refusal> {
        let session = self.sessions.get_mut(&id);
        let session = session.ok_or(Refusal::NoSession(id))?;
        session.last_byte = session.last_byte.max(now);
        Ok(())
    }

    /// All bytes of a member are there and durable, with the digest `arrived`. `promised` is the
    /// digest the sender announced; without one the content becomes a new member. Stays invisible.
    ///
    /// # Errors
    ///
    /// `NoSession`; `OtherContent` if the digests differ: the member must be sent again;
    /// `TooLarge`, `Quota`, `TooMany`.
    pub fn member_arrived(
        &mut self,
        id: SessionId,
        promised: Option<Digest>,
        arrived: Planned,
        object: Option<ObjectName>,
        now: Moment,
    ) -> Result<(), Refusal> {
        let session = self.sessions.get(&id).ok_or(Refusal::NoSession(id))?;
        if let Some(promised) = promised.filter(|p| *p != arrived.digest) {
            return Err(Refusal::OtherContent {
                promised,
                arrived: arrived.digest,
            });
        }
        if !session.members.contains_key(&arrived.digest) {
            self.fits(&arrived.digest)?;
            if session.members.len() >= self.settings.most_members {
                return Err(Refusal::TooMany(
                    "members in a batch",
                    self.settings.most_members,
                ));
            }
            let used = self.used(&session.job).saturating_add(arrived.digest.size);
            if used > self.settings.job_quota {
                return Err(Refusal::Quota(session.job.clone(), self.settings.job_quota));
            }
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            session.last_byte = session.last_byte.max(now);
            let member = session.members.entry(arrived.digest).or_insert(Member {
                class: arrived.class,
                display: arrived.display,
                arrived: None,
                present: false,
            });
            // Sent twice: the first object counts, the second is an orphan.
            if !member.present && member.arrived.is_none() {
                member.arrived = Some(object);
            }
        }
        Ok(())
    }

    /// Makes all members of a batch visible, with one common deadline, or none.
    ///
    /// # Errors
    ///
    /// `Incomplete` with what is missing: the session goes on. `NoSession`, `JobOver`.
    pub fn commit_upload(
        &mut self,
        id: SessionId,
        job: &JobId,
        now: Moment,
    ) -> Result<(Staged, Vec<Effect>), Refusal> {
        let known = self.live_job(job)?;
        let answered = known.and_then(|j| j.committed.iter().find(|(s, _)| *s == id));
        if let Some((_, staged)) = answered {
            return Ok((staged.clone(), Vec::new()));
        }
        let session = self.sessions.get(&id).filter(|s| s.job == *job);
        let session = session.ok_or(Refusal::NoSession(id))?;
        let mut missing = session.missing();
        for (digest, member) in session.members.iter().filter(|(_, m)| m.present) {
            let key = BlobKey {
                job: job.clone(),
                digest: *digest,
            };
            let there = self.visible(&key).is_ok_and(|b| b.class >= member.class);
            if !there && !digest.is_empty_blob() {
                missing.push(*digest);
            }
        }
        if !missing.is_empty() {
            // What was promised and is damaged since must be sent after all.
            if let Some(session) = self.sessions.get_mut(&id) {
                for digest in &missing {
                    if let Some(member) = session.members.get_mut(digest) {
                        member.present = false;
                    }
                }
            }
            return Err(Refusal::Incomplete(id, missing));
        }
        let Some(session) = self.sessions.remove(&id) else {
            return Err(Refusal::NoSession(id));
        };
        let keep_until = now.after(self.settings.retention);
        let staged = Staged {
            digests: session.members.keys().copied().collect(),
            keep_until,
        };
        let entry = self.jobs.entry(job.clone());
        let entry = entry.or_insert_with(|| Job::new(JobState::Staging));
        for (digest, member) in session.members {
            if digest.is_empty_blob() {
                continue;
            }
            let arrived = member.arrived.flatten();
            match entry.blobs.get_mut(&digest) {
                Some(blob) => {
                    if blob.lost || blob.deleting || blob.class < member.class {
                        // A new copy takes the place of the damaged or merely local one.
                        entry
                            .going
                            .extend(blob.object.filter(|o| Some(*o) != arrived));
                        blob.object = arrived;
                        blob.class = blob.class.max(member.class);
                        (blob.lost, blob.deleting) = (false, false);
                    }
                    blob.display = blob.display.take().or(member.display);
                    if blob.holders.is_empty() {
                        blob.keep_until = blob.keep_until.max(Some(keep_until));
                    }
                }
                None => {
                    let blob = Blob {
                        class: member.class,
                        object: arrived,
                        display: member.display,
                        holders: BTreeMap::new(),
                        keep_until: Some(keep_until),
                        pins: 0,
                        ever_held: false,
                        deleting: false,
                        lost: false,
                    };
                    entry.blobs.insert(digest, blob);
                }
            }
        }
        entry.committed.push_back((id, staged.clone()));
        while entry.committed.len() > self.settings.most_remembered {
            entry.committed.pop_front();
        }
        Ok((staged, vec![Effect::Commit(job.clone())]))
    }

    /// Ends a session without a commit; its objects become orphans. Repeating it changes nothing.
    pub fn abort_upload(&mut self, id: SessionId) {
        self.sessions.remove(&id);
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

    /// The object was damaged and a good copy was put under a new name.
    pub fn repaired(&mut self, key: &BlobKey, object: ObjectName) -> Vec<Effect> {
        let Some(job) = self.jobs.get_mut(&key.job) else {
            return Vec::new();
        };
        let Some(blob) = job.blobs.get_mut(&key.digest).filter(|b| !b.deleting) else {
            // Nobody waits for it: it is an orphan, which a sweep finds.
            return Vec::new();
        };
        job.going.extend(blob.object.filter(|o| *o != object));
        (blob.object, blob.lost) = (Some(object), false);
        commit_if(blob.class == Class::Retained, &key.job)
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
        self.sessions.retain(|_, s| s.job != *id);
        let mut idle = Vec::new();
        for (digest, blob) in &mut job.blobs {
            blob.deleting = true;
            blob.holders.clear();
            if blob.pins == 0 {
                idle.push(*digest);
            }
        }
        let mut effects = vec![Effect::Commit(id.clone())];
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
        self.sessions.retain(|_, s| s.last_byte.after(idle) > now);
        let mut effects = Vec::new();
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

impl Session {
    /// Members whose bytes have not come.
    pub fn missing(&self) -> Vec<Digest> {
        let missing = |m: &Member| !m.present && m.arrived.is_none();
        let members = self.members.iter().filter(|(_, m)| missing(m));
        members.map(|(d, _)| *d).collect()
    }
}

fn commit_if(changed: bool, job: &JobId) -> Vec<Effect> {
    match changed {
        true => vec![Effect::Commit(job.clone())],
        false => Vec::new(),
    }
}
