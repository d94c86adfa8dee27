//! Manifests, the chain with real manifests, recovery, eviction.

// Helpers of tests fail by panicking, like the tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forkpoint::ErrorKind;
use forkpoint::blob::{
    Action, Ask, BlobKey, BlobState, CachedFile, Claim, Class, Commit, Digest, EvictionReason,
    Found, Holder, JobEvent, JobId, JobState, LeaseId, Ledger, Listed, LocalPath, MANIFEST_VERSION,
    Manifest, Moment, ObjectName, Outcome, Planned, ReceiverId, Registry, Reply, SessionId,
    Settings, Space, SpaceRule, StorePath, Sweep, Verdict, make_room, recover,
};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

const INTERVAL: u64 = 30 * 60_000;

fn job(name: &str) -> JobId {
    JobId::parse(name).unwrap()
}

fn digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

fn key(job_name: &str, text: &str) -> BlobKey {
    BlobKey {
        job: job(job_name),
        digest: digest(text),
    }
}

fn object(text: &str, epoch: u64) -> ObjectName {
    ObjectName {
        digest: digest(text),
        epoch,
        random: 7,
    }
}

/// A job with committed retained blobs `x` and `y`, `x` held by the job and by a lease.
fn registry() -> Registry {
    let mut registry = Registry::new(Settings::default());
    let (id, a) = (SessionId(1), job("a"));
    registry.begin_upload(id, &a, &[], Moment(0)).unwrap();
    for (text, class) in [
        ("x", Class::Retained),
        ("y", Class::Retained),
        ("z", Class::Recreatable),
    ] {
        let planned = Planned {
            digest: digest(text),
            class,
            display: None,
        };
        let name = (class == Class::Retained).then(|| object(text, 1));
        registry
            .member_arrived(id, None, planned, name, Moment(0))
            .unwrap();
    }
    registry.commit_upload(id, &a, Moment(5)).unwrap();
    let digests = BTreeSet::from([digest("x")]);
    let event = JobEvent::Registered { digests };
    registry.job_event(&a, &event, Moment(6)).unwrap();
    let lease = Holder::Lease(LeaseId::parse("l").unwrap());
    registry
        .acquire(&key("a", "x"), [lease], Some(Moment(99)))
        .unwrap();
    registry
}

fn manifest(registry: &Registry, epoch: u64) -> Manifest {
    let content = registry.content(&job("a")).unwrap();
    Manifest::next(None, 3, epoch, Some((SessionId(1), &content)))
}

#[test]
fn a_manifest_is_read_back_and_a_damaged_one_is_refused() {
    let written = manifest(&registry(), 1);
    assert_eq!(
        written.content.entries.len(),
        2,
        "re-creatable blobs are not in it"
    );
    let bytes = written.to_json().unwrap();
    assert_eq!(Manifest::from_json(&bytes, 3).unwrap(), written);
    let text = String::from_utf8(bytes.clone()).unwrap();
    let refused =
        |text: &str, sequence: u64| Manifest::from_json(text.as_bytes(), sequence).unwrap_err();
    assert_eq!(refused(&text, 4).kind(), ErrorKind::Corrupt);
    let later = text.replace(
        &format!("\"version\": {MANIFEST_VERSION}"),
        "\"version\": 99",
    );
    assert_eq!(refused(&later, 3).kind(), ErrorKind::Unsupported);
    let swapped = text.replace(&object("x", 1).to_string(), &object("y", 1).to_string());
    assert!(refused(&swapped, 3).to_string().contains("has object"));
    let twice = text.replace(&digest("y").to_string(), &digest("x").to_string());
    assert!(refused(&twice, 3).to_string().contains("listed twice"));
    let over = text.replace("\"active\"", "{\"terminal\": \"finished\"}");
    assert!(refused(&over, 3).to_string().contains("over and has blobs"));
    for end in (0..bytes.len()).step_by(7) {
        assert!(Manifest::from_json(&bytes[..end], 3).is_err());
    }
}

/// A store of one job, in memory.
#[derive(Default)]
struct Memory {
    epochs: BTreeSet<u64>,
    manifests: BTreeMap<u64, Manifest>,
    objects: BTreeSet<ObjectName>,
}

impl Memory {
    fn serve(&mut self, ask: &Ask<Manifest>) -> Reply<Manifest> {
        match ask {
            Ask::ListEpochs => Reply::Numbers(self.epochs.iter().copied().collect()),
            Ask::CreateEpoch(n) if !self.epochs.insert(*n) => Reply::Taken,
            Ask::CreateEpoch(_) => Reply::Created,
            Ask::ListManifests => Reply::Numbers(self.manifests.keys().copied().collect()),
            Ask::ReadManifest(n) => Reply::Manifest(
                self.manifests
                    .get(n)
                    .map(|m| Manifest::from_json(&m.to_json().unwrap(), *n).unwrap()),
            ),
            Ask::CreateManifest(n, _) if self.manifests.contains_key(n) => Reply::Taken,
            Ask::CreateManifest(n, m) => {
                self.manifests.insert(*n, m.clone());
                Reply::Created
            }
            Ask::RemoveManifest(n) => {
                self.manifests.remove(n);
                Reply::Removed
            }
            Ask::ListObjects => Reply::Names(self.objects.clone()),
            Ask::CopyInFlight => Reply::Names(BTreeSet::from([object("in flight", 1)])),
            Ask::RemoveObject(n) => {
                self.objects.remove(n);
                Reply::Removed
            }
        }
    }

    fn claim(&mut self) -> u64 {
        let mut claim = Claim::default();
        while claim.epoch().is_none() {
            let reply = self.serve(&claim.ask());
            claim.answer(reply);
        }
        claim.epoch().unwrap()
    }

    /// Loses the reply to the first create if `lossy`.
    fn commit(&mut self, mut commit: Commit<Manifest>, mut lossy: bool) -> Verdict {
        while let Some(ask) = commit.ask() {
            let mut reply = self.serve(&ask);
            if matches!(ask, Ask::CreateManifest(..)) && std::mem::take(&mut lossy) {
                reply = Reply::Unknown;
            }
            commit.answer(reply);
        }
        commit.verdict().unwrap()
    }

    fn sweep(&mut self, epoch: u64) -> Verdict {
        let mut sweep = Sweep::new(epoch);
        while let Some(ask) = sweep.asks().pop() {
            let reply = self.serve(&ask);
            sweep.answer(&ask, reply);
        }
        sweep.verdict().unwrap()
    }
}

#[test]
fn two_owners_move_one_chain_and_the_older_is_fenced_off() {
    let mut store = Memory::default();
    let content = registry().content(&job("a")).unwrap();
    let commit = |epoch, session| Commit::new(epoch, SessionId(session), content.clone());
    let first = store.claim();
    assert_eq!(first, 1);
    for session in 1..=4 {
        assert_eq!(
            store.commit(commit(first, session), session == 2),
            Verdict::Done
        );
    }
    // The client repeats a commit whose reply it never saw.
    assert_eq!(store.commit(commit(first, 2), false), Verdict::Done);
    assert_eq!(
        store.manifests.len(),
        4,
        "a repeated commit and a lost reply add nothing"
    );
    store
        .objects
        .extend(["x", "y", "orphan", "in flight"].map(|t| object(t, 1)));
    assert_eq!(store.sweep(first), Verdict::Done);
    let left: BTreeSet<_> = ["x", "y", "in flight"].map(|t| object(t, 1)).into();
    assert_eq!(store.objects, left);
    assert_eq!(store.manifests.keys().copied().collect::<Vec<_>>(), [3, 4]);

    let second = store.claim();
    assert_eq!(store.commit(Commit::seal(second), true), Verdict::Done);
    assert_eq!(store.manifests[&5].epoch, second);
    assert_eq!(store.manifests[&5].content, content);
    assert_eq!(store.commit(Commit::seal(second), false), Verdict::Done);
    assert_eq!(
        store.manifests.len(),
        3,
        "what is sealed is not sealed again"
    );
    assert_eq!(store.commit(commit(first, 9), false), Verdict::Fenced);
    assert_eq!(store.sweep(first), Verdict::Fenced);
    // At the new owner a session of the old one has its answer.
    assert_eq!(store.commit(commit(second, 4), false), Verdict::Done);
    assert_eq!(store.manifests.len(), 3);
}

#[test]
fn a_commit_after_the_purge_of_its_job_is_not_acknowledged() {
    let mut store = Memory::default();
    let content = registry().content(&job("a")).unwrap();
    for session in 1..=3 {
        let commit = Commit::new(1, SessionId(session), content.clone());
        assert_eq!(store.commit(commit, false), Verdict::Done);
    }
    let mut stalled = Commit::new(1, SessionId(4), content);
    while !matches!(stalled.ask(), Some(Ask::CreateManifest(..))) {
        let reply = store.serve(&stalled.ask().unwrap());
        stalled.answer(reply);
    }
    store.manifests.clear();
    assert_eq!(store.commit(stalled, false), Verdict::Fenced);
}

#[test]
fn an_adopted_job_has_what_was_committed_and_its_deadlines_only_get_longer() {
    let before = registry();
    let mut after = Registry::new(Settings::default());
    after.adopt(&job("a"), &manifest(&before, 1), true, Moment(1000));
    let x = after.visible(&key("a", "x")).unwrap();
    assert_eq!(x.state(), BlobState::Referenced);
    let leases: Vec<_> = x.holders.values().collect();
    assert_eq!(leases, [&None, &Some(Moment(1000 + INTERVAL))]);
    let y = after.visible(&key("a", "y")).unwrap();
    assert_eq!(
        (y.state(), y.keep_until),
        (BlobState::Staged, Some(Moment(1000 + INTERVAL)))
    );
    assert!(after.visible(&key("a", "z")).is_err());
    // The reply to the commit was lost with the old owner: the same answer here.
    let again = after
        .commit_upload(SessionId(1), &job("a"), Moment(2000))
        .unwrap();
    let first = before.job(&job("a")).unwrap().committed[0].1.clone();
    assert_eq!(again, (first, Vec::new()));

    let mut orphaned = Registry::new(Settings::default());
    orphaned.adopt(&job("a"), &manifest(&before, 1), false, Moment(1000));
    assert_eq!(
        orphaned.visible(&key("a", "x")).unwrap().holders.len(),
        1,
        "the lease"
    );
}

#[test]
fn what_is_adopted_from_a_manifest_writes_the_same_manifest() {
    let mut random = StdRng::seed_from_u64(5);
    for seed in 0..200 {
        let mut before = registry();
        let who = |n: u32| Holder::Receiver(ReceiverId::parse(&format!("r{n}")).unwrap());
        for _ in 0..random.random_range(0..8) {
            let picked = key("a", ["x", "y"][random.random_range(0..2)]);
            let holder = [Holder::Job, who(0), who(1)][random.random_range(0..3)].clone();
            match random.random_range(0..3) {
                0 => drop(before.acquire(&picked, [holder], None)),
                1 => drop(before.release(&picked, &holder, Moment(seed))),
                _ => drop(before.tick(Moment(random.random_range(0..200)))),
            }
        }
        let mut after = Registry::new(Settings::default());
        after.adopt(&job("a"), &manifest(&before, 1), true, Moment(0));
        let (mut was, mut is) = (
            before.content(&job("a")).unwrap(),
            after.content(&job("a")).unwrap(),
        );
        for (w, i) in was.entries.iter_mut().zip(&mut is.entries) {
            assert!(i.keep_until >= w.keep_until.map(|t| t.min(Moment(INTERVAL))));
            (w.keep_until, i.keep_until) = (None, None);
            for held in w.holders.iter_mut().chain(&mut i.holders) {
                held.lease_end = None;
            }
        }
        assert_eq!(was, is);
    }
}

fn listed(path: impl ToString, size: u64) -> Listed {
    Listed {
        path: path.to_string(),
        size,
        modified: Moment(100),
    }
}

fn in_store(job_name: &str, name: ObjectName) -> Listed {
    let path = StorePath::Object(job(job_name), Class::Retained, name);
    listed(path, name.digest.size)
}

fn on_disk(job_name: &str, text: &str, size: u64) -> Listed {
    listed(LocalPath::Blob(job(job_name), digest(text)), size)
}

fn found(manifests: BTreeMap<JobId, forkpoint::Result<Manifest>>) -> Found {
    Found {
        epoch: 2,
        manifests,
        objects: Vec::new(),
        local: Vec::new(),
        recover: BTreeSet::from([job("a")]),
        store_now: Moment(5000),
        now: Moment(1000),
        orphan_min_age: Duration::from_millis(INTERVAL),
    }
}

fn sealed() -> BTreeMap<JobId, forkpoint::Result<Manifest>> {
    BTreeMap::from([(job("a"), Ok(manifest(&registry(), 2)))])
}

#[test]
fn recovery_stages_orphans_and_adopts_what_is_known() {
    let mut found = found(sealed());
    found.objects = vec![
        listed(StorePath::Format, 10),
        listed(StorePath::Epoch(2), 10),
        in_store("a", object("x", 1)),
        in_store("a", object("y", 1)),
        in_store("a", object("x", 2)),
        in_store("nobody", object("x", 1)),
        listed("jobs/a/retained/../../../etc/passwd", 3),
    ];
    found.local = vec![
        listed(LocalPath::Lock, 0),
        listed(LocalPath::Part(1), 3),
        listed(LocalPath::Trash(1), 3),
        on_disk("a", "x", 1),
        on_disk("a", "y", 0),
        on_disk("a", "z", 1),
        listed("jobs/a/README", 3),
    ];
    let recovery = recover(&found, Settings::default()).unwrap();
    let not_before = Moment(100 + INTERVAL);
    let staged = |job_name: &str, name| Action::StageObject {
        job: job(job_name),
        name,
        not_before,
    };
    let foreign = |local, path: &str| Action::LeaveForeign {
        local,
        path: path.to_string(),
    };
    let expected = [
        foreign(false, "jobs/a/retained/../../../etc/passwd"),
        staged("a", object("x", 2)),
        staged("nobody", object("x", 1)),
        Action::RemoveLocal(LocalPath::Part(1)),
        Action::RemoveLocal(LocalPath::Trash(1)),
        Action::AdoptLocal(key("a", "x")),
        Action::QuarantineLocal {
            key: key("a", "y"),
            size: 0,
        },
        Action::StageLocal {
            key: key("a", "z"),
            not_before: Moment(1000 + INTERVAL),
        },
        foreign(true, "jobs/a/README"),
    ];
    assert_eq!(recovery.actions, expected);
    assert_eq!(
        recovery.registry.job(&job("a")).unwrap().state,
        JobState::Active
    );
}

#[test]
fn the_order_of_listings_does_not_matter_to_what_is_done() {
    let mut found = found(sealed());
    let texts = ["x", "y", "z", "w"];
    found.objects = texts.iter().map(|t| in_store("a", object(t, 1))).collect();
    found.local = texts.iter().map(|t| on_disk("a", t, 1)).collect();
    let sorted = |f: &Found| {
        let mut actions: Vec<String> = recover(f, Settings::default())
            .unwrap()
            .actions
            .iter()
            .map(|a| format!("{a:?}"))
            .collect();
        actions.sort();
        actions
    };
    let expected = sorted(&found);
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..20 {
        found.objects.shuffle(&mut random);
        found.local.shuffle(&mut random);
        assert_eq!(sorted(&found), expected);
    }
}

#[test]
fn what_is_missing_in_the_ha_store_is_repaired_from_disk_or_shown_as_lost() {
    let mut found = found(sealed());
    found.objects = vec![Listed {
        size: 0,
        ..in_store("a", object("x", 1))
    }];
    found.local = vec![on_disk("a", "x", 1)];
    let recovery = recover(&found, Settings::default()).unwrap();
    assert_eq!(
        recovery.actions,
        [
            Action::AdoptLocal(key("a", "x")),
            Action::RepairObject(key("a", "x")),
            Action::MarkLost(key("a", "y")),
        ]
    );
    let blobs = &recovery.registry.job(&job("a")).unwrap().blobs;
    assert_eq!(blobs[&digest("y")].state(), BlobState::Lost);
}

#[test]
fn nothing_of_a_job_with_a_damaged_manifest_is_touched() {
    let damaged = Manifest::from_json(b"{\"version\": 1", 3);
    let mut found = found(BTreeMap::from([(job("a"), damaged)]));
    found.objects = vec![in_store("a", object("x", 1))];
    found.local = vec![on_disk("a", "x", 0)];
    let recovery = recover(&found, Settings::default()).unwrap();
    let [Action::RefuseJob { job: refused, why }] = recovery.actions.as_slice() else {
        panic!("{:?}", recovery.actions);
    };
    assert!(*refused == job("a") && why.contains("manifest 3"));
}

#[test]
fn the_purge_of_an_ended_job_goes_on() {
    let mut ended = registry();
    let outcome = Outcome::Finished;
    ended
        .job_event(&job("a"), &JobEvent::Terminal { outcome }, Moment(9))
        .unwrap();
    let mut found = found(BTreeMap::from([(job("a"), Ok(manifest(&ended, 2)))]));
    found.objects = vec![in_store("a", object("x", 1))];
    found.local = vec![on_disk("a", "x", 1)];
    let recovery = recover(&found, Settings::default()).unwrap();
    let local = LocalPath::Blob(job("a"), digest("x"));
    let name = object("x", 1);
    assert_eq!(
        recovery.actions,
        [
            Action::RemoveObject {
                job: job("a"),
                name
            },
            Action::RemoveLocal(local)
        ]
    );
    let mut registry = recovery.registry;
    assert!(
        registry
            .begin_upload(SessionId(5), &job("a"), &[], Moment(0))
            .is_err()
    );
}

#[test]
fn a_deposed_or_hasty_owner_recovers_nothing() {
    let mut unsealed = found(BTreeMap::from([(job("a"), Ok(manifest(&registry(), 1)))]));
    let kind = |f: &Found| recover(f, Settings::default()).unwrap_err().kind();
    assert_eq!(kind(&unsealed), ErrorKind::Refused);
    unsealed.manifests = BTreeMap::from([(job("a"), Ok(manifest(&registry(), 3)))]);
    assert_eq!(kind(&unsealed), ErrorKind::Conflict);
    unsealed.manifests.clear();
    unsealed.objects = vec![listed(StorePath::Epoch(3), 1)];
    assert_eq!(kind(&unsealed), ErrorKind::Conflict);
    unsealed.objects = vec![in_store("a", object("x", 3))];
    assert_eq!(kind(&unsealed), ErrorKind::Conflict);
    unsealed.objects.clear();
    let recovery = recover(&unsealed, Settings::default()).unwrap();
    assert_eq!(recovery.actions, [Action::NothingKnown(job("a"))]);
}

fn file(text: &str, size: u64, used: u64) -> CachedFile {
    CachedFile {
        key: BlobKey {
            job: job("a"),
            digest: Digest {
                size,
                ..digest(text)
            },
        },
        pins: 0,
        job_references: 1,
        refetchable: true,
        last_used: Moment(used),
        unused_since: None,
    }
}

#[test]
fn unused_jobs_go_first_then_what_was_used_longest_ago_and_no_more_than_needed() {
    let unused = |text, used| CachedFile {
        job_references: 0,
        unused_since: Some(Moment(used)),
        ..file(text, 10, 900)
    };
    let files = [
        file("old", 10, 1),
        file("new", 10, 5),
        unused("u2", 2),
        unused("u1", 1),
    ];
    let space = Space {
        used: 40,
        reserved: 5,
        free: 1000,
    };
    let rule = SpaceRule {
        max_bytes: 50,
        min_free: 0,
    };
    let names = |wanted| {
        let eviction = make_room(&files, space, rule, wanted).unwrap();
        eviction
            .files
            .iter()
            .map(|(k, r)| (k.digest.sha256, *r))
            .collect::<Vec<_>>()
    };
    let (unused, least) = (EvictionReason::JobUnused, EvictionReason::LeastRecentlyUsed);
    let all = [
        (digest("u1").sha256, unused),
        (digest("u2").sha256, unused),
        (digest("old").sha256, least),
        (digest("new").sha256, least),
    ];
    assert_eq!(names(5), []);
    assert_eq!(names(6), all[..1]);
    assert_eq!(names(16), all[..2]);
    assert_eq!(names(45), all);
    assert_eq!(make_room(&files, space, rule, 46).unwrap_err().missing, 1);
    // The floor of free space counts reservations as taken.
    let tight = SpaceRule {
        max_bytes: 1000,
        min_free: 990,
    };
    assert_eq!(make_room(&files, space, tight, 5).unwrap().files.len(), 0);
    assert_eq!(make_room(&files, space, tight, 6).unwrap().files.len(), 1);
}

#[test]
fn random_caches_never_give_up_what_is_pinned_or_the_only_copy() {
    let mut random = StdRng::seed_from_u64(8);
    let (mut evicted, mut refused) = (0, 0);
    for _ in 0..3000 {
        let files: Vec<CachedFile> = (0..random.random_range(0..12))
            .map(|n| CachedFile {
                pins: random.random_range(0..3u32).saturating_sub(1),
                job_references: random.random_range(0..2),
                refetchable: random.random_bool(0.7),
                ..file(
                    &n.to_string(),
                    random.random_range(1..20),
                    random.random_range(0..9),
                )
            })
            .collect();
        let used: u64 = files.iter().map(|f| f.key.digest.size).sum();
        let space = Space {
            used,
            reserved: random.random_range(0..20),
            free: random.random_range(0..200),
        };
        let rule = SpaceRule {
            max_bytes: random.random_range(0..150),
            min_free: random.random_range(0..50),
        };
        let wanted = random.random_range(0..60);
        let fits = |freed: u64| {
            used - freed + space.reserved + wanted <= rule.max_bytes
                && space.free + freed >= rule.min_free + space.reserved + wanted
        };
        let may_go = |f: &&CachedFile| f.pins == 0 && f.refetchable;
        match make_room(&files, space, rule, wanted) {
            Ok(eviction) => {
                for (key, _) in &eviction.files {
                    let file = files.iter().find(|f| f.key == *key).unwrap();
                    assert!(may_go(&file));
                }
                assert!(fits(eviction.bytes));
                if let Some((last, _)) = eviction.files.last() {
                    assert!(!fits(eviction.bytes - last.digest.size), "more than needed");
                    evicted += 1;
                }
            }
            Err(no_space) => {
                let all: u64 = files.iter().filter(may_go).map(|f| f.key.digest.size).sum();
                assert!(!fits(all) && no_space.missing > 0);
                refused += 1;
            }
        }
    }
    assert!(evicted > 200 && refused > 200, "{evicted} {refused}");
}
