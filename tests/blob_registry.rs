//! References, batches and staged cleanup: the rules one by one, and random histories in which every
//! invariant is checked after every step.

// Helpers of tests fail by panicking, like the tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forkpoint::blob::invariants::{
    Copies, ended_jobs_are_closed, held_are_readable, no_change_by_fenced, one_fetch_at_a_time,
    only_reachable_remains, reads_match_keys, referenced_have_copies, within_limit,
};
use forkpoint::blob::{
    BlobKey, BlobState, Class, Digest, Effect, Holder, JobEvent, JobId, JobState, LeaseId, Moment,
    ObjectName, Outcome, Planned, ReceiverId, Refusal, Registry, SessionId, Settings, SweepReason,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const MINUTE: u64 = 60_000;
const INTERVAL: u64 = 30 * MINUTE;

fn job(name: &str) -> JobId {
    JobId::parse(name).unwrap()
}

fn digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

fn key(text: &str) -> BlobKey {
    BlobKey {
        job: job("a"),
        digest: digest(text),
    }
}

fn planned(text: &str, class: Class) -> Planned {
    Planned {
        digest: digest(text),
        class,
        display: None,
    }
}

fn object(text: &str, random: u64) -> ObjectName {
    ObjectName {
        digest: digest(text),
        epoch: 1,
        random,
    }
}

/// A registry in which job `a` has committed these blobs at moment 0.
fn with(blobs: &[(&str, Class)]) -> Registry {
    let mut registry = Registry::new(Settings::default());
    let plan: Vec<_> = blobs.iter().map(|(t, c)| planned(t, *c)).collect();
    let begun = registry
        .begin_upload(SessionId(1), &job("a"), &plan, Moment(0))
        .unwrap();
    assert_eq!(begun.missing.len(), blobs.len());
    for (at, (text, class)) in blobs.iter().enumerate() {
        let name = (*class == Class::Retained).then(|| object(text, at as u64));
        registry
            .member_arrived(
                SessionId(1),
                Some(digest(text)),
                planned(text, *class),
                name,
                Moment(0),
            )
            .unwrap();
        assert!(matches!(
            registry.visible(&key(text)),
            Err(Refusal::NotFound(_))
        ));
    }
    registry
        .commit_upload(SessionId(1), &job("a"), Moment(0))
        .unwrap();
    registry
}

fn registered(texts: &[&str]) -> JobEvent {
    JobEvent::Registered {
        digests: texts.iter().map(|t| digest(t)).collect(),
    }
}

fn sweep(registry: &mut Registry, now: u64) -> Vec<Effect> {
    let plan = registry.plan_sweep(Moment(now));
    registry.apply_sweep(&plan, Moment(now))
}

fn state(registry: &Registry, text: &str) -> Option<BlobState> {
    let blob = registry.job(&job("a"))?.blobs.get(&digest(text))?;
    Some(blob.state())
}

#[test]
fn a_batch_is_visible_as_a_whole_or_not_at_all() {
    let mut registry = Registry::new(Settings::default());
    let (id, a) = (SessionId(7), job("a"));
    let plan = [planned("x", Class::Retained), planned("y", Class::Retained)];
    registry.begin_upload(id, &a, &plan, Moment(0)).unwrap();
    let arrive = |r: &mut Registry, text: &str| {
        r.member_arrived(
            id,
            Some(digest(text)),
            planned(text, Class::Retained),
            Some(object(text, 1)),
            Moment(MINUTE),
        )
    };
    arrive(&mut registry, "x").unwrap();
    assert_eq!(
        registry.commit_upload(id, &a, Moment(MINUTE)),
        Err(Refusal::Incomplete(id, vec![digest("y")]))
    );
    assert!(registry.visible(&key("x")).is_err());
    arrive(&mut registry, "y").unwrap();
    let (staged, effects) = registry.commit_upload(id, &a, Moment(2 * MINUTE)).unwrap();
    assert_eq!(staged.keep_until, Moment(2 * MINUTE + INTERVAL));
    assert_eq!(effects, [Effect::Commit(a.clone())]);
    for text in ["x", "y"] {
        let blob = registry.visible(&key(text)).unwrap();
        assert_eq!(
            (blob.state(), blob.keep_until),
            (BlobState::Staged, Some(staged.keep_until))
        );
    }
    // The reply was lost: the same answer, and nothing to be done.
    let again = registry.commit_upload(id, &a, Moment(9 * MINUTE)).unwrap();
    assert_eq!(again, (staged, Vec::new()));
}

#[test]
fn bytes_with_another_digest_are_refused_and_the_session_goes_on() {
    let mut registry = Registry::new(Settings::default());
    let plan = [planned("x", Class::Retained)];
    registry
        .begin_upload(SessionId(1), &job("a"), &plan, Moment(0))
        .unwrap();
    let wrong = registry.member_arrived(
        SessionId(1),
        Some(digest("x")),
        planned("z", Class::Retained),
        None,
        Moment(1),
    );
    assert!(matches!(wrong, Err(Refusal::OtherContent { .. })));
    let begun = registry
        .begin_upload(SessionId(1), &job("a"), &plan, Moment(1))
        .unwrap();
    assert_eq!(begun.missing, [digest("x")]);
}

#[test]
fn an_abandoned_batch_goes_after_the_interval_and_never_before() {
    let mut registry = with(&[("x", Class::Retained), ("y", Class::Recreatable)]);
    assert_eq!(sweep(&mut registry, INTERVAL - 1), []);
    let effects = sweep(&mut registry, INTERVAL);
    assert_eq!(effects.len(), 3);
    assert_eq!(
        effects[0],
        Effect::Commit(job("a")),
        "the manifest comes first"
    );
    assert!(effects.contains(&Effect::Remove(key("x"), Some(object("x", 0)))));
    assert!(effects.contains(&Effect::Remove(key("y"), None)));
    // The job is remembered like an ended one, then forgotten.
    registry.removed(&job("a"), &object("x", 0));
    let week = 7 * 24 * 60 * MINUTE;
    assert_eq!(sweep(&mut registry, INTERVAL + MINUTE), []);
    assert_eq!(sweep(&mut registry, INTERVAL + week), []);
    assert_eq!(
        sweep(&mut registry, INTERVAL + MINUTE + week),
        [Effect::Forget(job("a"))]
    );
}

#[test]
fn a_new_reference_one_tick_before_the_deadline_clears_it() {
    let mut registry = with(&[("x", Class::Retained)]);
    let plan = registry.plan_sweep(Moment(INTERVAL));
    assert_eq!(
        plan[0].reason,
        SweepReason::DeadlinePassed {
            at: Moment(INTERVAL)
        }
    );
    // Held between the look and the act.
    registry
        .job_event(&job("a"), &registered(&["x"]), Moment(INTERVAL))
        .unwrap();
    assert_eq!(registry.apply_sweep(&plan, Moment(INTERVAL)), []);
    assert_eq!(sweep(&mut registry, 100 * INTERVAL), []);
    let why = registry.why(&key("x"), Moment(100 * INTERVAL)).unwrap();
    assert_eq!(why.reason, SweepReason::Held { holders: 1 });
}

#[test]
fn registration_holds_all_blobs_or_none() {
    let mut registry = with(&[("x", Class::Retained)]);
    let before = registry.clone();
    let refused = registry.job_event(&job("a"), &registered(&["x", "nowhere"]), Moment(1));
    assert!(matches!(refused, Err(Refusal::NotFound(_))));
    assert_eq!(registry, before);
    let once = registry
        .job_event(&job("a"), &registered(&["x"]), Moment(1))
        .unwrap();
    assert_eq!(once, [Effect::Commit(job("a"))]);
    let twice = registry
        .job_event(&job("a"), &registered(&["x"]), Moment(2))
        .unwrap();
    assert_eq!(twice, [], "repeating it changes nothing");
}

#[test]
fn a_failure_takes_holders_from_recreatable_blobs_only() {
    let mut registry = with(&[("x", Class::Retained), ("y", Class::Recreatable)]);
    let a = job("a");
    registry
        .job_event(&a, &registered(&["x", "y"]), Moment(1))
        .unwrap();
    registry
        .job_event(&a, &JobEvent::Failed, Moment(10))
        .unwrap();
    assert_eq!(state(&registry, "x"), Some(BlobState::Referenced));
    assert_eq!(state(&registry, "y"), Some(BlobState::Expiring));
    assert_eq!(registry.job(&a).unwrap().state, JobState::Failed);
    // It is in no manifest: nothing is committed.
    assert_eq!(
        sweep(&mut registry, 10 + INTERVAL),
        [Effect::Remove(key("y"), None)]
    );
    registry
        .job_event(&a, &registered(&["x"]), Moment(20 + INTERVAL))
        .unwrap();
    assert_eq!(registry.visible(&key("x")).unwrap().holders.len(), 1);
}

#[test]
fn a_suspended_job_keeps_its_objects_and_drops_local_copies() {
    let mut registry = with(&[("x", Class::Retained), ("y", Class::Recreatable)]);
    let a = job("a");
    registry
        .job_event(&a, &registered(&["x", "y"]), Moment(1))
        .unwrap();
    let effects = registry
        .job_event(&a, &JobEvent::Suspended, Moment(2))
        .unwrap();
    assert_eq!(effects, [Effect::Commit(a), Effect::DropLocal(key("x"))]);
    assert_eq!(sweep(&mut registry, 2), [Effect::Remove(key("y"), None)]);
    assert_eq!(state(&registry, "x"), Some(BlobState::Referenced));
}

#[test]
fn the_end_of_a_job_takes_everything_at_once_and_readers_may_finish() {
    let mut registry = with(&[("x", Class::Retained), ("y", Class::Retained)]);
    let (a, end) = (
        job("a"),
        JobEvent::Terminal {
            outcome: Outcome::Finished,
        },
    );
    registry
        .job_event(&a, &registered(&["x", "y"]), Moment(1))
        .unwrap();
    registry.pin(&key("x")).unwrap();
    let effects = registry.job_event(&a, &end, Moment(2)).unwrap();
    assert_eq!(
        effects,
        [
            Effect::Commit(a.clone()),
            Effect::Remove(key("y"), Some(object("y", 1)))
        ]
    );
    assert!(matches!(registry.pin(&key("x")), Err(Refusal::JobOver(..))));
    assert_eq!(
        registry.unpin(&key("x")),
        [Effect::Remove(key("x"), Some(object("x", 0)))]
    );
    assert_eq!(registry.job_event(&a, &end, Moment(3)).unwrap(), []);
    for refused in [
        registry
            .job_event(&a, &registered(&[]), Moment(3))
            .unwrap_err(),
        registry
            .begin_upload(SessionId(9), &a, &[], Moment(3))
            .unwrap_err(),
    ] {
        assert_eq!(refused, Refusal::JobOver(a.clone(), Outcome::Finished));
    }
}

#[test]
fn an_acknowledgement_counts_once_and_a_strangers_never() {
    let mut registry = with(&[("m", Class::Recreatable)]);
    let receiver = |n: u32| Holder::Receiver(ReceiverId::parse(&format!("tm-{n}")).unwrap());
    registry
        .acquire(&key("m"), (0..3).map(receiver), None)
        .unwrap();
    for who in [0, 0, 9, 1, 1] {
        registry.release(&key("m"), &receiver(who), Moment(5));
    }
    assert_eq!(registry.visible(&key("m")).unwrap().holders.len(), 1);
    registry.release(&key("m"), &receiver(2), Moment(6));
    assert_eq!(
        registry.visible(&key("m")).unwrap().keep_until,
        Some(Moment(6 + INTERVAL))
    );
    registry.release(&key("m"), &receiver(2), Moment(900));
    assert_eq!(
        registry.visible(&key("m")).unwrap().keep_until,
        Some(Moment(6 + INTERVAL))
    );
}

#[test]
fn a_lease_ends_by_itself_and_never_comes_nearer() {
    let mut registry = with(&[("x", Class::Retained)]);
    let lease = Holder::Lease(LeaseId::parse("l-1").unwrap());
    registry
        .acquire(&key("x"), [lease.clone()], Some(Moment(100)))
        .unwrap();
    assert_eq!(registry.renew(&key("x"), &lease, Moment(50)).unwrap(), []);
    assert_eq!(registry.tick(Moment(99)), []);
    registry.renew(&key("x"), &lease, Moment(200)).unwrap();
    assert_eq!(registry.tick(Moment(150)), []);
    assert_eq!(registry.tick(Moment(200)), [Effect::Commit(job("a"))]);
    assert_eq!(
        registry.renew(&key("x"), &lease, Moment(300)),
        Err(Refusal::LeaseEnded(key("x")))
    );
    assert_eq!(state(&registry, "x"), Some(BlobState::Expiring));
}

#[test]
fn what_a_session_was_told_is_there_stays_until_the_session_ends() {
    let mut registry = with(&[("x", Class::Retained)]);
    let (id, a) = (SessionId(2), job("a"));
    let plan = [
        planned("x", Class::Retained),
        planned("new", Class::Retained),
    ];
    let begun = registry
        .begin_upload(id, &a, &plan, Moment(INTERVAL - 1))
        .unwrap();
    assert_eq!(begun.missing, [digest("new")]);
    // The upload takes longer than the interval; bytes flow all the time.
    for minute in 30..100 {
        registry.bytes_came(id, Moment(minute * MINUTE)).unwrap();
        registry.tick(Moment(minute * MINUTE));
        assert_eq!(sweep(&mut registry, minute * MINUTE), []);
    }
    // They stop: the session lapses, and the promise with it.
    registry.tick(Moment(99 * MINUTE + 15 * MINUTE));
    assert_eq!(
        registry.bytes_came(id, Moment(115 * MINUTE)),
        Err(Refusal::NoSession(id))
    );
    assert_eq!(sweep(&mut registry, 120 * MINUTE).len(), 2);
}

#[test]
fn a_promised_blob_that_is_damaged_meanwhile_must_be_sent_after_all() {
    let mut registry = with(&[("x", Class::Retained)]);
    let (id, a) = (SessionId(2), job("a"));
    let plan = [planned("x", Class::Retained)];
    assert!(
        registry
            .begin_upload(id, &a, &plan, Moment(1))
            .unwrap()
            .missing
            .is_empty()
    );
    registry.lost(&key("x"));
    assert_eq!(
        registry.commit_upload(id, &a, Moment(2)),
        Err(Refusal::Incomplete(id, vec![digest("x")]))
    );
    registry
        .member_arrived(
            id,
            Some(digest("x")),
            planned("x", Class::Retained),
            Some(object("x", 5)),
            Moment(3),
        )
        .unwrap();
    let (_, effects) = registry.commit_upload(id, &a, Moment(4)).unwrap();
    let replaced = Effect::RemoveObject(a.clone(), object("x", 0));
    assert_eq!(effects, [Effect::Commit(a), replaced]);
    assert_eq!(
        registry.visible(&key("x")).unwrap().object,
        Some(object("x", 5))
    );
}

#[test]
fn what_takes_the_place_of_a_lost_blob_survives_as_that_one_had_to() {
    for lost_first in [true, false] {
        let mut registry = with(&[("x", Class::Retained)]);
        let (id, a) = (SessionId(2), job("a"));
        let plan = [planned("x", Class::Recreatable)];
        if lost_first {
            registry.lost(&key("x"));
        }
        registry.begin_upload(id, &a, &plan, Moment(1)).unwrap();
        if !lost_first {
            registry.lost(&key("x"));
        }
        assert_eq!(
            registry.commit_upload(id, &a, Moment(2)),
            Err(Refusal::Incomplete(id, vec![digest("x")]))
        );
        let arrived = planned("x", Class::Retained);
        let object = Some(object("x", 5));
        registry
            .member_arrived(id, Some(digest("x")), arrived, object, Moment(3))
            .unwrap();
        let (_, effects) = registry.commit_upload(id, &a, Moment(4)).unwrap();
        assert_eq!(effects[0], Effect::Commit(a), "it is in the manifest");
        let blob = registry.visible(&key("x")).unwrap();
        assert_eq!((blob.class, blob.object), (Class::Retained, object));
    }
}

#[test]
fn a_blob_that_was_lost_by_mistake_is_found_again() {
    let mut registry = with(&[("x", Class::Retained)]);
    registry.lost(&key("x"));
    assert_eq!(registry.found(&key("x"), Some(object("x", 9))), []);
    assert!(registry.visible(&key("x")).is_err(), "another object");
    let effects = registry.found(&key("x"), Some(object("x", 0)));
    assert_eq!(effects, [Effect::Commit(job("a"))]);
    assert!(registry.visible(&key("x")).is_ok());
}

#[test]
fn the_empty_blob_is_always_there() {
    let mut registry = with(&[]);
    let (id, a) = (SessionId(2), job("a"));
    let begun = registry.begin_upload(id, &a, &[planned("", Class::Retained)], Moment(0));
    assert!(begun.unwrap().missing.is_empty());
    registry.commit_upload(id, &a, Moment(0)).unwrap();
    registry
        .job_event(&a, &registered(&[""]), Moment(1))
        .unwrap();
    registry.acquire(&key(""), [Holder::Job], None).unwrap();
}

#[test]
fn limits_are_refused_before_anything_changes() {
    let settings = Settings {
        largest_blob: 3,
        job_quota: 5,
        most_members: 2,
        most_sessions: 1,
        ..Settings::default()
    };
    let mut registry = Registry::new(settings);
    let begin = |r: &mut Registry, id: u64, texts: &[&str]| {
        let plan: Vec<_> = texts.iter().map(|t| planned(t, Class::Retained)).collect();
        r.begin_upload(SessionId(id), &job("a"), &plan, Moment(0))
            .unwrap_err()
    };
    assert!(matches!(
        begin(&mut registry, 1, &["long"]),
        Refusal::TooLarge(_, 3)
    ));
    assert!(matches!(
        begin(&mut registry, 1, &["abc", "def"]),
        Refusal::Quota(_, 5)
    ));
    assert!(matches!(
        begin(&mut registry, 1, &["a", "b", "c"]),
        Refusal::TooMany(_, 2)
    ));
    assert_eq!(registry, Registry::new(settings));
    registry
        .begin_upload(SessionId(1), &job("a"), &[], Moment(0))
        .unwrap();
    assert!(matches!(
        begin(&mut registry, 2, &["a"]),
        Refusal::TooMany(_, 1)
    ));
    let other = registry.begin_upload(SessionId(1), &job("b"), &[], Moment(0));
    assert_eq!(other, Err(Refusal::SessionTaken(SessionId(1))));
}

/// The stores beside the registry, and what was acknowledged.
struct World {
    registry: Registry,
    copies: Copies,
    acked: BTreeSet<BlobKey>,
    pins: Vec<BlobKey>,
    now: u64,
    next: u64,
    seen: BTreeMap<&'static str, u64>,
}

impl World {
    fn apply(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Remove(key, object) => {
                    self.count("removed");
                    self.copies.local.remove(&key);
                    if let Some(object) = object {
                        self.copies.objects.remove(&(key.job.clone(), object));
                        self.registry.removed(&key.job, &object);
                    }
                }
                Effect::RemoveObject(job, object) => {
                    self.count("replaced");
                    self.copies.objects.remove(&(job.clone(), object));
                    self.registry.removed(&job, &object);
                }
                Effect::DropLocal(key) => {
                    self.copies.local.remove(&key);
                }
                Effect::Forget(_) => self.count("forgotten"),
                Effect::Commit(_) => {}
            }
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// What listing the HA store and comparing would find.
    fn remove_orphans(&mut self) {
        let mut objects = BTreeSet::new();
        for (id, job) in self.registry.jobs() {
            let in_flight = self.registry.in_flight(id);
            let known = job.blobs.values().filter_map(|b| b.object);
            objects.extend(in_flight.into_iter().chain(known).map(|o| (id.clone(), o)));
        }
        self.copies.objects.retain(|o| objects.contains(o));
    }

    fn upload(&mut self, random: &mut StdRng, texts: &[String]) {
        let id = SessionId(self.next);
        self.next += 1;
        let job = job(["a", "b", "c", "d"][random.random_range(0..4)]);
        let class = [Class::Retained, Class::Recreatable][random.random_range(0..2)];
        let now = Moment(self.now);
        let members = random.random_range(1..4);
        let plan: Vec<Planned> = (0..members)
            .map(|_| planned(&texts[random.random_range(0..texts.len())], class))
            .collect();
        let Ok(begun) = self.registry.begin_upload(id, &job, &plan, now) else {
            return self.count("refused");
        };
        for digest in begun.missing {
            if random.random_bool(0.1) {
                continue;
            }
            let object = (class == Class::Retained).then_some(ObjectName {
                digest,
                epoch: 1,
                random: self.next,
            });
            self.next += 1;
            self.copies.objects.extend(object.map(|o| (job.clone(), o)));
            self.copies.local.insert(BlobKey {
                job: job.clone(),
                digest,
            });
            let arrived = Planned {
                digest,
                class,
                display: None,
            };
            self.registry
                .member_arrived(id, Some(digest), arrived, object, now)
                .unwrap();
        }
        match self.registry.commit_upload(id, &job, now) {
            Ok((_, effects)) => {
                self.count("committed");
                self.apply(effects);
            }
            Err(Refusal::Incomplete(..)) => {
                self.count("incomplete");
                if random.random_bool(0.5) {
                    let effects = self.registry.abort_upload(id);
                    self.apply(effects);
                }
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn some_key(&self, random: &mut StdRng, texts: &[String]) -> BlobKey {
        let keys: Vec<BlobKey> = self
            .registry
            .jobs()
            .flat_map(|(id, j)| {
                j.blobs.keys().map(|d| BlobKey {
                    job: id.clone(),
                    digest: *d,
                })
            })
            .collect();
        match keys.is_empty() || random.random_bool(0.05) {
            true => key(&texts[random.random_range(0..texts.len())]),
            false => keys[random.random_range(0..keys.len())].clone(),
        }
    }

    fn step(&mut self, random: &mut StdRng, texts: &[String]) {
        self.now += random.random_range(0..6 * MINUTE);
        let now = Moment(self.now);
        let picked = self.some_key(random, texts);
        let holder = match random.random_range(0..3) {
            0 => Holder::Job,
            1 => Holder::Receiver(
                ReceiverId::parse(&format!("r{}", random.random_range(0..3))).unwrap(),
            ),
            _ => Holder::Lease(LeaseId::parse("l").unwrap()),
        };
        match random.random_range(0..12) {
            0..3 => self.upload(random, texts),
            3 | 4 => {
                let end =
                    matches!(holder, Holder::Lease(_)).then(|| now.after(Duration::from_secs(900)));
                if let Ok(effects) = self.registry.acquire(&picked, [holder.clone()], end) {
                    self.count("acquired");
                    if self.registry.visible(&picked).unwrap().class == Class::Retained {
                        self.acked.insert(picked);
                    }
                    self.apply(effects);
                }
            }
            5 => {
                let effects = self.registry.release(&picked, &holder, now);
                self.apply(effects);
            }
            6 => {
                let digests = self
                    .registry
                    .job(&picked.job)
                    .map(|j| j.blobs.keys().copied().collect());
                let event = match random.random_range(0..9) {
                    0..4 => JobEvent::Registered {
                        digests: digests.unwrap_or_default(),
                    },
                    4 | 5 => JobEvent::Failed,
                    6 | 7 => JobEvent::Suspended,
                    _ => JobEvent::Terminal {
                        outcome: Outcome::Cancelled,
                    },
                };
                if let Ok(effects) = self.registry.job_event(&picked.job, &event, now) {
                    self.apply(effects);
                    self.count("job event");
                }
            }
            7 => {
                // A suspended job's local copies went; a reader fetches from the HA store.
                if self.registry.pin(&picked).is_ok() {
                    self.pins.push(picked);
                }
            }
            8 if !self.pins.is_empty() => {
                let pinned = self
                    .pins
                    .swap_remove(random.random_range(0..self.pins.len()));
                let effects = self.registry.unpin(&pinned);
                self.apply(effects);
            }
            9 => {
                let Some(copy) = self.registry.visible(&picked).ok().and_then(|b| b.object) else {
                    return;
                };
                if random.random_bool(0.3) {
                    self.count("lost");
                    let effects = self.registry.lost(&picked);
                    return self.apply(effects);
                }
                let object = ObjectName {
                    random: self.next,
                    ..copy
                };
                self.next += 1;
                self.copies.objects.insert((picked.job.clone(), object));
                let effects = self.registry.repaired(&picked, object);
                self.apply(effects);
            }
            _ => self.sweep(),
        }
    }

    /// An acknowledged holder that has gone again promises nothing.
    fn forget_released(&mut self) {
        let held = |k: &BlobKey| {
            self.registry
                .visible(k)
                .is_ok_and(|b| !b.holders.is_empty())
        };
        self.acked = self.acked.iter().filter(|k| held(k)).cloned().collect();
    }

    fn sweep(&mut self) {
        let effects = self.registry.tick(Moment(self.now));
        self.apply(effects);
        let effects = sweep(&mut self.registry, self.now);
        self.apply(effects);
        self.remove_orphans();
    }

    fn check(&self) {
        let mut violated = held_are_readable(&self.registry, &self.acked, &self.copies);
        violated.extend(referenced_have_copies(&self.registry, &self.copies));
        violated.extend(ended_jobs_are_closed(&self.registry));
        assert!(violated.is_empty(), "{violated:?}");
    }
}

#[test]
fn random_histories_keep_every_invariant() {
    let texts: Vec<String> = (0..6).map(|n| format!("content {n}")).collect();
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..400 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut world = World {
            registry: Registry::new(Settings::default()),
            copies: Copies::default(),
            acked: BTreeSet::new(),
            pins: Vec::new(),
            now: 0,
            next: 1,
            seen: BTreeMap::new(),
        };
        for _ in 0..120 {
            // Never before its deadline, never while held: the look says so for every blob.
            for decision in world.registry.plan_sweep(Moment(world.now)) {
                let blob =
                    &world.registry.job(&decision.key.job).unwrap().blobs[&decision.key.digest];
                if let SweepReason::DeadlinePassed { at } = decision.reason {
                    assert!(at.0 <= world.now && blob.holders.is_empty() && blob.pins == 0);
                }
            }
            world.step(&mut random, &texts);
            world.forget_released();
            world.check();
        }
        // Quiet: readers go, time passes, two sweeps.
        for pinned in std::mem::take(&mut world.pins) {
            let effects = world.registry.unpin(&pinned);
            world.apply(effects);
        }
        for _ in 0..3 {
            world.now += INTERVAL;
            world.sweep();
        }
        let violated = only_reachable_remains(&world.registry, &world.copies, Moment(world.now));
        assert!(violated.is_empty(), "seed {seed}: {violated:?}");
        assert!(world.registry.jobs().all(|(_, j)| j.going.is_empty()));
        for (what, count) in world.seen {
            *seen.entry(what).or_default() += count;
        }
    }
    for what in [
        "removed",
        "committed",
        "incomplete",
        "acquired",
        "job event",
        "refused",
        "replaced",
    ] {
        assert!(seen[what] > 300, "{seen:?}");
    }
}

#[test]
fn the_checks_of_observations_find_what_is_wrong() {
    let (x, other) = (key("x"), digest("y"));
    assert!(reads_match_keys([(&x, &x.digest)]).is_empty());
    assert_eq!(reads_match_keys([(&x, &other)]).len(), 1);
    let fetch = |cache, from, to| (cache, key("x"), Moment(from), Moment(to));
    assert!(one_fetch_at_a_time(&[fetch(1, 0, 5), fetch(1, 5, 9), fetch(2, 3, 4)]).is_empty());
    assert_eq!(
        one_fetch_at_a_time(&[fetch(1, 0, 9), fetch(1, 4, 5), fetch(1, 6, 7)]).len(),
        2
    );
    assert!(within_limit(5, 5, 10).is_none());
    assert!(within_limit(6, 5, 10).is_some() && within_limit(u64::MAX, 1, 10).is_some());
    assert!(no_change_by_fenced(&[(1, 1), (2, 1), (5, 2)]).is_empty());
    assert_eq!(
        no_change_by_fenced(&[(1, 1), (2, 2), (3, 1), (3, 1)]).len(),
        2
    );
    // A copy that vanishes under its holder or reader is seen.
    let mut registry = with(&[("x", Class::Retained)]);
    let mut copies = Copies::default();
    assert!(referenced_have_copies(&registry, &copies).is_empty());
    registry.pin(&key("x")).unwrap();
    assert_eq!(referenced_have_copies(&registry, &copies).len(), 1);
    assert_eq!(
        held_are_readable(&registry, &BTreeSet::from([key("x")]), &copies).len(),
        1
    );
    copies.objects.insert((job("a"), object("x", 0)));
    assert!(referenced_have_copies(&registry, &copies).is_empty());
    copies.objects.insert((job("a"), object("x", 77)));
    assert_eq!(
        only_reachable_remains(&registry, &copies, Moment(1)).len(),
        1
    );
}
