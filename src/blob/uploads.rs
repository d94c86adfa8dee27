//! Batches of uploads. The members of a batch stay invisible until all of them have arrived, then become
//! visible together with one deadline; what is there already need not be sent, and is promised to stay.

use std::collections::{BTreeMap, BTreeSet};

use super::key::{BlobKey, Digest, DisplayName, JobId, Moment, ObjectName, SessionId};
use super::lifecycle::{Class, JobState, Refusal};
use super::registry::{Blob, Effect, Job, Registry};

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
pub(crate) struct Member {
    pub(crate) class: Class,
    pub(crate) display: Option<DisplayName>,
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
    pub(crate) members: BTreeMap<Digest, Member>,
    pub(crate) last_byte: Moment,
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

impl Session {
    /// Members whose bytes have not come.
    pub fn missing(&self) -> Vec<Digest> {
        let missing = |m: &Member| !m.present && m.arrived.is_none();
        let members = self.members.iter().filter(|(_, m)| missing(m));
        members.map(|(d, _)| *d).collect()
    }
}

impl Registry {
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
            // What takes the place of a lost blob must survive as that one had to.
            let lost = there.filter(|b| b.lost || b.deleting);
            let member = Member {
                class: lost.map_or(planned.class, |b| b.class.max(planned.class)),
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
        // Lost since the session began: sent again, it must survive as the lost one had to.
        let lost: BTreeMap<Digest, Class> = known
            .into_iter()
            .flat_map(|j| j.blobs.iter().filter(|(_, b)| b.lost))
            .map(|(d, b)| (*d, b.class))
            .collect();
        let weak = |d: &Digest, m: &Member| {
            m.arrived.is_some() && lost.get(d).is_some_and(|class| *class > m.class)
        };
        let members = session.members.iter().filter(|(d, m)| weak(d, m));
        missing.extend(members.map(|(d, _)| *d));
        if !missing.is_empty() {
            // What was promised and is damaged since must be sent after all.
            if let Some(session) = self.sessions.get_mut(&id) {
                for digest in &missing {
                    if let Some(member) = session.members.get_mut(digest) {
                        (member.present, member.arrived) = (false, None);
                        if let Some(class) = lost.get(digest) {
                            member.class = member.class.max(*class);
                        }
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
        let mut replaced: Vec<ObjectName> = Vec::new();
        let mut durable = session.members.is_empty();
        for (digest, member) in session.members {
            durable |= member.class == Class::Retained;
            if digest.is_empty_blob() {
                continue;
            }
            let arrived = member.arrived.flatten();
            match entry.blobs.get_mut(&digest) {
                Some(blob) => {
                    if blob.lost || blob.deleting || blob.class < member.class {
                        // A new copy takes the place of the damaged or merely local one.
                        replaced.extend(blob.object.filter(|o| Some(*o) != arrived));
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
        entry.going.extend(&replaced);
        // Re-creatable blobs are in no manifest: a batch of them needs no HA store.
        let mut effects = Vec::new();
        if durable {
            effects.push(Effect::Commit(job.clone()));
        }
        let removals = replaced.into_iter();
        effects.extend(removals.map(|o| Effect::RemoveObject(job.clone(), o)));
        Ok((staged, effects))
    }

    /// Ends a session without a commit. Its local files go; its objects become orphans, which a sweep
    /// finds. Repeating it changes nothing.
    pub fn abort_upload(&mut self, id: SessionId) -> Vec<Effect> {
        let session = self.sessions.remove(&id);
        session.map_or_else(Vec::new, |s| self.left_behind(&s))
    }

    /// Ends the sessions that `ends` says.
    pub(crate) fn end_sessions(&mut self, ends: impl Fn(&Session) -> bool) -> Vec<Effect> {
        let ended: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, s)| ends(s))
            .map(|(id, _)| *id)
            .collect();
        let ended: Vec<Session> = ended
            .iter()
            .filter_map(|id| self.sessions.remove(id))
            .collect();
        ended.iter().flat_map(|s| self.left_behind(s)).collect()
    }

    /// Local files of a session that has ended, unless a blob or another session needs them.
    fn left_behind(&self, session: &Session) -> Vec<Effect> {
        let blobs = self.jobs.get(&session.job).map(|j| &j.blobs);
        let arrived = session.members.iter().filter(|(_, m)| m.arrived.is_some());
        let keys = arrived.map(|(digest, _)| BlobKey {
            job: session.job.clone(),
            digest: *digest,
        });
        keys.filter(|k| !blobs.is_some_and(|b| b.contains_key(&k.digest)) && !self.is_promised(k))
            .map(Effect::DropLocal)
            .collect()
    }
}
