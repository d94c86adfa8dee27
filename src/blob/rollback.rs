//! What an edge needs besides events: an event taken back because its commit failed, one job's share of the
//! memory, and whether a job has anything due.

use std::collections::BTreeMap;

use super::key::{Digest, DisplayName, JobId, Moment, SessionId};
use super::lifecycle::{Class, JobState};
use super::registry::{Job, Registry};

impl Registry {
    /// Takes back what an event did whose commit failed: everything is as in `before`, except for what readers
    /// and senders have done meanwhile. Between the two there was no other event that commits.
    pub(crate) fn take_back(&mut self, before: Registry) {
        for (id, session) in before.sessions {
            self.sessions.entry(id).or_insert(session);
        }
        let mut jobs = before.jobs;
        for (id, job) in &mut jobs {
            let now = self.jobs.get(id);
            for (digest, blob) in &mut job.blobs {
                let there = now.and_then(|j| j.blobs.get(digest));
                blob.pins = there.map_or(0, |b| b.pins);
                // A session that was begun meanwhile was promised more time.
                if let (Some(until), Some(promised)) =
                    (&mut blob.keep_until, there.and_then(|b| b.keep_until))
                {
                    *until = promised.max(*until);
                }
            }
            if let Some(now) = now {
                let blobs = &job.blobs;
                let known = |o: &&_| !blobs.values().any(|b| b.object == Some(**o));
                job.going.extend(now.going.iter().filter(known));
            }
        }
        // A job that the event made: it stays for the sessions that it has.
        for (id, _) in std::mem::take(&mut self.jobs) {
            let needed = self.sessions.values().any(|s| s.job == id);
            if needed && !jobs.contains_key(&id) {
                jobs.insert(id, Job::new(JobState::Staging));
            }
        }
        self.jobs = jobs;
    }

    /// The same memory, one for each job.
    pub(crate) fn by_job(self) -> BTreeMap<JobId, Registry> {
        let mut parts: BTreeMap<JobId, Registry> = BTreeMap::new();
        for (id, job) in self.jobs {
            let part = parts.entry(id.clone());
            let part = part.or_insert_with(|| Registry::new(self.settings));
            part.jobs.insert(id, job);
        }
        for (id, session) in self.sessions {
            let part = parts.entry(session.job.clone());
            let part = part.or_insert_with(|| Registry::new(self.settings));
            part.sessions.insert(id, session);
        }
        parts
    }

    /// What a session's plan says of a member.
    pub(crate) fn planned(
        &self,
        session: SessionId,
        digest: &Digest,
    ) -> Option<(Class, Option<DisplayName>)> {
        let member = self.sessions.get(&session)?.members.get(digest)?;
        Some((member.class, member.display.clone()))
    }

    /// True if a tick or a sweep at `now` would change something.
    pub(crate) fn is_due(&self, now: Moment) -> bool {
        let idle = self.settings.upload_idle;
        let lapsed = |end: &Option<Moment>| end.is_some_and(|e| e <= now);
        self.sessions
            .values()
            .any(|s| s.last_byte.after(idle) <= now)
            || self.jobs.values().any(|job| {
                let gone = job.blobs.is_empty() && job.going.is_empty();
                let over = job.state.is_terminal() || job.state == JobState::Staging;
                let forgettable = job.remembered_until.is_none_or(|until| until <= now);
                gone && over && forgettable
                    || job.blobs.values().any(|b| b.holders.values().any(lapsed))
            })
            || self.plan_sweep(now).iter().any(|d| d.reason.goes())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::key::{BlobKey, ObjectName};
    use super::super::lifecycle::{JobEvent, Outcome, Settings};
    use super::super::uploads::Planned;
    use super::*;

    fn begun() -> (Registry, JobId, Digest, SessionId) {
        let job = JobId::parse("a").unwrap();
        let digest = Digest::of(b"x");
        let mut registry = Registry::new(Settings::default());
        let planned = Planned {
            digest,
            class: Class::Retained,
            display: None,
        };
        let id = SessionId(1);
        registry
            .begin_upload(id, &job, std::slice::from_ref(&planned), Moment(0))
            .unwrap();
        let object = ObjectName {
            digest,
            epoch: 1,
            random: 1,
        };
        registry
            .member_arrived(id, Some(digest), planned, Some(object), Moment(0))
            .unwrap();
        (registry, job, digest, id)
    }

    #[test]
    fn a_commit_that_failed_leaves_the_session_open() {
        let (mut registry, job, digest, id) = begun();
        let before = registry.clone();
        registry.commit_upload(id, &job, Moment(1)).unwrap();
        registry.take_back(before.clone());
        assert_eq!(registry, before);
        assert!(
            registry
                .visible(&BlobKey {
                    job: job.clone(),
                    digest
                })
                .is_err()
        );
        let (staged, _) = registry.commit_upload(id, &job, Moment(2)).unwrap();
        assert_eq!(staged.digests, BTreeSet::from([digest]));
    }

    #[test]
    fn readers_that_came_and_went_meanwhile_are_counted() {
        let (mut registry, job, digest, id) = begun();
        registry.commit_upload(id, &job, Moment(1)).unwrap();
        let key = BlobKey {
            job: job.clone(),
            digest,
        };
        registry.pin(&key).unwrap();
        let before = registry.clone();
        let end = JobEvent::Terminal {
            outcome: Outcome::Finished,
        };
        registry.job_event(&job, &end, Moment(2)).unwrap();
        assert!(registry.pin(&key).is_err());
        registry.unpin(&key);
        registry.take_back(before);
        assert_eq!(registry.visible(&key).unwrap().pins, 0);
        // What the last reader sent on its way is needed again.
        assert!(registry.job(&job).unwrap().going.is_empty());
    }

    #[test]
    fn a_job_that_the_event_made_stays_for_its_sessions_only() {
        let (registry, job, ..) = begun();
        let mut later = registry.clone();
        later.take_back(Registry::new(Settings::default()));
        assert!(later.job(&job).is_some());
        let mut alone = Registry::new(Settings::default());
        let registered = JobEvent::Registered {
            digests: BTreeSet::new(),
        };
        alone.job_event(&job, &registered, Moment(0)).unwrap();
        alone.take_back(Registry::new(Settings::default()));
        assert!(alone.job(&job).is_none());
        assert_eq!(registry.clone().by_job()[&job], registry);
    }
}
