//! The snapshot writer beside others: jobs whose folders end alike, cleans that come in between, and what is left
//! when they are killed.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::Duration;

use forkpoint::ErrorKind;
use forkpoint::ownership::clean::Status;
use forkpoint::ownership::{Access, Lineage, NeedReason, judge, survey};
use forkpoint::progress::{Cancel, Silent};
use forkpoint::snapshot::{KeyGroupRange, RestoreMode};
use forkpoint::store::{Location, Stores};
use forkpoint::writer::{
    Acknowledgement, Details, Job, JobOptions, Restored, Retention, Source, Start, State,
    find_snapshots,
};
use serde_json::{Value, json};
use support::engine::{
    checkpoint, done, fetch_all, fresh, from, job, round, start, write_all, write_part,
};
use support::{Service, delete_all, emulator_stores, local_stores, temp};

async fn try_start(
    stores: &Stores,
    home: &Location,
    start: &Start,
) -> forkpoint::Result<(Job, Option<Restored>)> {
    Job::start(stores, home, &job(), start, JobOptions::default()).await
}

/// What keeps a snapshot, of all that is seen from `root`.
async fn needs(stores: &Stores, root: &Location, snapshot: &Location) -> Vec<NeedReason> {
    let root = stores.real(root).await.unwrap();
    let seen = survey(stores, &[root], &Silent).await.unwrap();
    let node = seen.find(&stores.real(snapshot).await.unwrap()).unwrap();
    let verdict = judge(&Lineage::new(&seen), node, seen.taken_at).unwrap();
    verdict.reasons
}

fn is_restoring(reasons: &[NeedReason]) -> bool {
    let restoring = |r: &NeedReason| matches!(r, NeedReason::Restoring { .. });
    reasons.iter().any(restoring)
}

/// Two jobs whose folders end alike, and a snapshot that both want.
async fn one_owner(stores: &Stores, root: &Location) {
    let source = root.join("source").unwrap();
    let running = fresh(stores, &source, &job()).await;
    let snapshot = checkpoint(stores, &running, round(1)).await.directory;
    let (prod, staging) = (
        root.join("prod/orders").unwrap(),
        root.join("staging/orders").unwrap(),
    );
    let claim = from(&snapshot, RestoreMode::Claim);
    try_start(stores, &prod, &claim).await.unwrap();
    for mode in [
        RestoreMode::Claim,
        RestoreMode::Legacy,
        RestoreMode::NoClaim,
    ] {
        let e = try_start(stores, &staging, &from(&snapshot, mode)).await;
        let e = e.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Refused, "{mode}: {e}");
        assert!(e.to_string().contains("prod/orders"), "{mode}: {e}");
    }
    // The same job may come again, before its first checkpoint.
    let (again, _) = try_start(stores, &prod, &claim).await.unwrap();
    assert_eq!(
        checkpoint(stores, &again, round(2)).await.reused_bytes,
        6_000
    );

    // Who owns one checkpoint may delete what it shares with the next.
    let newer = checkpoint(stores, &running, round(3)).await.directory;
    let legacy = from(&newer, RestoreMode::Legacy);
    let e = try_start(stores, &staging, &legacy).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Refused, "{e}");
    assert!(e.to_string().contains("it shares 2 of its objects"), "{e}");

    // Nobody owns it in legacy mode, and both need it: each by itself.
    let running = fresh(stores, &root.join("other").unwrap(), &job()).await;
    let newer = checkpoint(stores, &running, round(3)).await.directory;
    let legacy = from(&newer, RestoreMode::Legacy);
    let (qa, dev) = (
        root.join("qa/orders").unwrap(),
        root.join("dev/orders").unwrap(),
    );
    let (first, _) = try_start(stores, &qa, &legacy).await.unwrap();
    let (second, _) = try_start(stores, &dev, &legacy).await.unwrap();
    // Services tell times in whole seconds: a checkpoint of the same second may have been there before.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    checkpoint(stores, &first, round(4)).await;
    assert!(is_restoring(&needs(stores, root, &newer).await));
    checkpoint(stores, &second, round(4)).await;
    assert!(!is_restoring(&needs(stores, root, &newer).await));
}

#[tokio::test]
async fn of_jobs_whose_folders_end_alike_one_owns_a_snapshot() {
    let (_dir, root) = temp();
    one_owner(&local_stores(), &root).await;
    for service in Service::ALL {
        if service.is_there("jobs whose folders end alike") {
            let root = service.place(0, "alike");
            one_owner(&emulator_stores(), &root).await;
            delete_all(&emulator_stores(), &root).await;
        }
    }
}

#[tokio::test]
async fn a_short_name_is_taken_for_the_one_job_whose_folder_ends_so() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let home = |name: &str| root.join(name).unwrap();
    let at = |name: &str| home(name).to_string();
    let running = fresh(&stores, &home("source"), &job()).await;
    let snapshot = checkpoint(&stores, &running, round(1)).await.directory;
    let prod = fresh(&stores, &home("prod/orders"), &job()).await;
    checkpoint(&stores, &prod, round(1)).await;
    let (given, all) = (snapshot.to_string(), root.to_string());
    let claim = |more: &[&str]| {
        let args = ["claim", &given, "--root", &all];
        let output = support::run(&[&args, more, &["--format", "json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let document = serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default();
        (output.status.code().unwrap(), document, said)
    };

    // It is the job that the writer records: the job itself is let in, and another one is not.
    let (code, claimed, said) = claim(&["--job", "orders"]);
    assert_eq!(
        (code, &claimed["job"]),
        (0, &json!(at("prod/orders"))),
        "{said}"
    );
    let of = |mode| Start::from(Source::Snapshot(snapshot.clone()), mode);
    let taken = of(RestoreMode::Claim);
    try_start(&stores, &home("prod/orders"), &taken)
        .await
        .unwrap();
    let e = try_start(&stores, &home("other"), &taken)
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Refused, "{e}");
    let (code, released, _) = claim(&["--job", "orders", "--release"]);
    assert_eq!((code, &released["released"]), (0, &json!(true)));

    // Of two jobs it names neither; more of the location does.
    let staging = fresh(&stores, &home("staging/orders"), &job()).await;
    checkpoint(&stores, &staging, round(1)).await;
    let (code, _, said) = claim(&["--job", "orders"]);
    assert_eq!(code, 3, "{said}");
    for candidate in [at("prod/orders"), at("staging/orders")] {
        assert!(said.contains(&candidate), "{said}");
    }
    assert!(needs(&stores, &root, &snapshot).await.is_empty());
    for name in ["staging/orders", "prod/orders"] {
        let (code, started, said) = claim(&["--job", name, "--mode", "no-claim"]);
        assert_eq!((code, &started["job"]), (0, &json!(at(name))), "{said}");
    }
    let (code, _, said) = claim(&["--job", "orders", "--mode", "no-claim", "--release"]);
    assert_eq!(code, 3, "{said}");
    assert!(
        said.contains(&at("prod/orders")) && said.contains(&at("staging/orders")),
        "{said}"
    );
    for name in ["staging/orders", "orders"] {
        let (code, released, _) = claim(&["--job", name, "--mode", "no-claim", "--release"]);
        assert_eq!((code, &released["released"]), (0, &json!(true)), "{name}");
    }

    // The job that wrote the snapshot is not started from it by another.
    let (code, _, said) = claim(&["--job", "source"]);
    assert_eq!(code, 3, "{said}");

    // A job that has written nothing yet is recorded as it is named, and is told what to do about it.
    let (code, claimed, _) = claim(&["--job", "late"]);
    assert_eq!((code, &claimed["job"]), (0, &json!("late")));
    let e = try_start(&stores, &home("late"), &taken).await.unwrap_err();
    let hint = e.next_step().unwrap();
    assert!(
        hint.contains("--release") && hint.contains(&at("late")),
        "{hint}"
    );
}

#[tokio::test]
async fn checkpoints_of_the_source_are_not_taken_for_those_of_a_job_whose_folder_ends_alike() {
    let (_dir, root) = temp();
    let stores = local_stores();
    for mode in [
        RestoreMode::Claim,
        RestoreMode::Legacy,
        RestoreMode::NoClaim,
    ] {
        let source = root.join(&format!("payments-{mode}/checkpoints")).unwrap();
        let running = fresh(&stores, &source, &job()).await;
        let snapshot = checkpoint(&stores, &running, round(1)).await.directory;
        let home = root.join(&format!("orders-{mode}/checkpoints")).unwrap();
        let (started, restored) = start(&stores, &home, &job(), &from(&snapshot, mode)).await;
        // The source goes on.
        checkpoint(&stores, &running, round(2)).await;
        let reasons = needs(&stores, &root, &snapshot).await;
        assert!(is_restoring(&reasons), "{mode}: {reasons:?}");
        fetch_all(&stores, &restored.unwrap()).await;
        checkpoint(&stores, &started, round(2)).await;
        let reasons = needs(&stores, &root, &snapshot).await;
        assert!(!is_restoring(&reasons), "{mode}: {reasons:?}");
    }
}

async fn duplicates(stores: &Stores, root: &Location) {
    let (source, home) = (root.join("source").unwrap(), root.join("copy").unwrap());
    let running = fresh(stores, &source, &job()).await;
    let snapshot = checkpoint(stores, &running, round(1)).await.directory;
    let no_claim = from(&snapshot, RestoreMode::NoClaim);
    let (running, restored) = start(stores, &home, &job(), &no_claim).await;
    let tasks = restored.unwrap().plan.tasks;
    assert_eq!(tasks.len(), 2);
    let commit = home.join("chk-2/_forkpoint.json").unwrap();

    // Gone after the subtasks have acknowledged it.
    let mut attempt = running.checkpoint().await.unwrap();
    write_all(stores, &mut attempt, round(2)).await;
    let gone = &tasks[1].duplicate.destination;
    stores.delete(gone).await.unwrap();
    let e = attempt.commit(&Details::default()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
    assert!(e.to_string().contains(gone.name()), "{e}");
    assert!(stores.find(&commit).await.unwrap().is_none());
    drop(attempt);

    // Announced to go: not relied upon until the cleaner has ended.
    let mut attempt = running.checkpoint().await.unwrap();
    write_all(stores, &mut attempt, round(2)).await;
    let mark = put_mark(stores, &home, "clean", u64::MAX, true).await;
    let e = attempt.commit(&Details::default()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Refused, "{e}");
    assert!(stores.find(&commit).await.unwrap().is_none());
    stores.delete(&mark).await.unwrap();
    let first = done(attempt.commit(&Details::default()).await.unwrap());
    assert_eq!(first.manifest.number, 2);
    delete_all(stores, &source).await;
    let (_, restored) = start(stores, &home, &job(), &Start::newest()).await;
    fetch_all(stores, &restored.unwrap()).await;
}

#[tokio::test]
async fn a_duplicate_that_has_gone_makes_the_commit_fail() {
    let (_dir, root) = temp();
    duplicates(&local_stores(), &root).await;
    for service in Service::ALL {
        if service.is_there("duplicates that have gone") {
            let root = service.place(0, "gone");
            duplicates(&emulator_stores(), &root).await;
            delete_all(&emulator_stores(), &root).await;
        }
    }
}

#[tokio::test]
async fn retention_looks_where_the_jobs_own_checkpoints_refer_to() {
    let (_dir, root) = temp();
    let stores = local_stores();
    for mode in [RestoreMode::Claim, RestoreMode::Legacy] {
        let source = root.join(&format!("source-{mode}")).unwrap();
        let running = fresh(&stores, &source, &job()).await;
        let snapshot = checkpoint(&stores, &running, round(1)).await.directory;
        drop(running);
        let home = root.join(&format!("orders-{mode}")).unwrap();
        start(&stores, &home, &job(), &from(&snapshot, mode)).await;
        // Started again in between: what it was started from first is in its checkpoints alone.
        for n in 2..=4 {
            let start_from = from(&snapshot, mode);
            let (running, _) = start(&stores, &home, &job(), &start_from).await;
            checkpoint(&stores, &running, round(n)).await;
        }
        let (running, _) = start(&stores, &home, &job(), &Start::newest()).await;
        let cancel = Cancel::default();
        let report = running
            .retain(&Retention::newest(1), &Silent, &cancel)
            .await;
        let report = report.unwrap().unwrap();
        assert!(
            report.status == Status::Done && report.deleted > 0,
            "{report:?}"
        );
        let found = find_snapshots(&stores, &home).await.unwrap();
        assert_eq!(found.len(), 1);
        // The claimed snapshot is not its to remove.
        assert_eq!(find_snapshots(&stores, &source).await.unwrap().len(), 1);
        let (_, restored) = start(&stores, &home, &job(), &Start::newest()).await;
        fetch_all(&stores, &restored.unwrap()).await;
    }
}

#[tokio::test]
async fn key_groups_that_an_operator_does_not_have_are_refused_before_anything_is_sent() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let running = fresh(&stores, &home, &job()).await;
    let mut attempt = running.checkpoint().await.unwrap();
    let order = attempt.order("counts", 0).unwrap().clone();
    let beyond = KeyGroupRange::new(order.max_parallelism - 1, 2).unwrap();
    let state = State::keyed("counts", beyond).shared("x", vec![1; 1000]);
    let e = write_part(&stores, &order, vec![state]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    assert!(e.to_string().contains("counts"), "{e}");
    assert!(!home.local_path().unwrap().join("shared").exists());

    // And from a subtask that did not look.
    let ack = write_part(&stores, &order, round(1)(&order)).await.unwrap();
    let good: Value = serde_json::from_slice(&ack.to_json().unwrap()).unwrap();
    let most = u64::from(order.max_parallelism);
    for range in [(0, most + 1), (most, 1), (65_000, 1_000)] {
        let mut bad = good.clone();
        bad["states"][0]["partition"]["range"] = json!({"first": range.0, "count": range.1});
        let bad = Acknowledgement::from_json(&serde_json::to_vec(&bad).unwrap()).unwrap();
        let e = attempt.acknowledge(bad).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{range:?}: {e}");
    }
    assert!(attempt.acknowledge(ack).unwrap());
}

#[tokio::test]
async fn a_job_without_a_name_or_inside_a_snapshot_is_refused_before_anything_is_written() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let running = fresh(&stores, &home, &job()).await;
    let snapshot = checkpoint(&stores, &running, round(1)).await.directory;
    let mut savepoint = running.savepoint().await.unwrap();
    write_all(&stores, &mut savepoint, round(1)).await;
    let savepoint = done(savepoint.commit(&Details::default()).await.unwrap()).directory;
    // A folder that somebody has given another name, and one of a checkpoint that is not complete yet.
    let renamed = root.join("kept/before-the-release").unwrap();
    let written = snapshot.join("_forkpoint.json").unwrap();
    let manifest = stores.read(&written, 1 << 20).await.unwrap();
    let commit = renamed.join("_forkpoint.json").unwrap();
    stores.put(&commit, manifest, true).await.unwrap();
    let flink = root.join("kept/by-flink/_metadata").unwrap();
    stores.put(&flink, vec![1].into(), true).await.unwrap();
    let before = support::manifest(&stores, &root).await;
    for inside in [
        snapshot.clone(),
        snapshot.join("payments").unwrap(),
        snapshot.join("payments/eu").unwrap(),
        savepoint.join("payments").unwrap(),
        home.join("chk-2/payments").unwrap(),
        home.join(".forkpoint/payments").unwrap(),
        renamed.clone(),
        renamed.join("payments").unwrap(),
        root.join("kept/by-flink/a/b").unwrap(),
    ] {
        let e = try_start(&stores, &inside, &Start::newest()).await;
        let e = e.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{inside}: {e}");
        assert!(e.to_string().contains("of a snapshot"), "{inside}: {e}");
        assert!(e.next_step().unwrap().contains("beside"), "{inside}");
    }
    for name in ["", " ", "\n"] {
        let mut nameless = job();
        nameless.name = name.to_string();
        let at = root.join("nameless").unwrap();
        let e = Job::start(
            &stores,
            &at,
            &nameless,
            &Start::newest(),
            JobOptions::default(),
        )
        .await;
        let e = e.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{name:?}: {e}");
        assert!(e.to_string().contains("has a name"), "{name:?}: {e}");
    }
    assert_eq!(support::manifest(&stores, &root).await, before);
    // Beside them is no trouble.
    fresh(&stores, &root.join("kept/payments").unwrap(), &job()).await;
}

#[tokio::test]
async fn two_files_of_one_name_in_one_state_are_refused_before_anything_is_sent() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let running = fresh(&stores, &home, &job()).await;
    let mut attempt = running.checkpoint().await.unwrap();
    let order = attempt.order("counts", 0).unwrap().clone();
    let twice = State::keyed("counts", order.key_groups)
        .shared("x", vec![1; 1000])
        .exclusive("x", vec![2; 1000]);
    let e = write_part(&stores, &order, vec![twice]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    assert!(e.to_string().contains("two files of the name `x`"), "{e}");
    assert!(!home.local_path().unwrap().join("shared").exists());
    // Two states may each have one.
    let state = |n: u8| State::keyed("counts", order.key_groups).shared("x", vec![n; 1000]);
    let ack = write_part(&stores, &order, vec![state(1), state(2)]).await;
    let ack = ack.unwrap();
    // And from a subtask that did not look.
    let mut bad: Value = serde_json::from_slice(&ack.to_json().unwrap()).unwrap();
    let other = bad["states"][1]["files"][0].clone();
    bad["states"][0]["files"]
        .as_array_mut()
        .unwrap()
        .push(other);
    let bad = Acknowledgement::from_json(&serde_json::to_vec(&bad).unwrap()).unwrap();
    let e = attempt.acknowledge(bad).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    assert!(attempt.acknowledge(ack).unwrap());
}

/// A mark of a cleaner in the folder of a job.
async fn put_mark(
    stores: &Stores,
    home: &Location,
    name: &str,
    until: u64,
    orphans: bool,
) -> Location {
    let at = home
        .join(&format!(".forkpoint/going/{name}-1.json"))
        .unwrap();
    let mark = json!({"version": 1, "nonce": "00", "plan": name, "created_unix_ms": 0,
        "until_unix_ms": until, "snapshots": ["chk-999"], "orphans": orphans});
    put(stores, &at, &mark).await;
    at
}

async fn put(stores: &Stores, at: &Location, document: &Value) {
    let bytes = serde_json::to_vec(document).unwrap();
    stores.put(at, bytes.into(), false).await.unwrap();
}

async fn is_there(stores: &Stores, at: &Location) -> bool {
    stores.find(at).await.unwrap().is_some()
}

#[tokio::test]
async fn what_a_retention_that_was_killed_has_left_goes_when_it_is_over() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let running = fresh(&stores, &home, &job()).await;
    for n in 1..=3 {
        checkpoint(&stores, &running, round(n)).await;
    }
    // Stopped before it deletes anything: its entry in the ledger stays open, and says how long it means something.
    let stop = Cancel::default();
    stop.cancel();
    let stopped = running.retain(&Retention::newest(2), &Silent, &stop).await;
    assert_eq!(stopped.unwrap().unwrap().status, Status::Partly);
    let ledgers = stores.list(&home.join(".forkpoint/clean").unwrap()).await;
    let ledger = ledgers.unwrap().remove(0).0;
    let text = stores.read(&ledger, 1 << 20).await.unwrap();
    let mut entry: Value = serde_json::from_slice(&text).unwrap();
    let (opened, until) = (
        entry["opened_unix_ms"].as_u64().unwrap(),
        entry["until_unix_ms"].as_u64().unwrap(),
    );
    assert_eq!(until - opened, 600_000);

    let minute = 60_000;
    let now = stores.now();
    let active = put_mark(&stores, &home, "active", now - 10 * minute, false).await;
    checkpoint(&stores, &running, round(4)).await;
    assert!(is_there(&stores, &ledger).await, "it may be at work");

    // The same later, beside the ledger of a plan that somebody keeps: by a commit, and by a retention that has
    // nothing to do.
    let kept = home.join(".forkpoint/clean/0123456789abcdef.json").unwrap();
    let mut of_kept = entry.clone();
    of_kept.as_object_mut().unwrap().remove("until_unix_ms");
    of_kept["opened_unix_ms"] = json!(0);
    put(&stores, &kept, &of_kept).await;
    for by_commit in [true, false] {
        entry["until_unix_ms"] = json!(now - 16 * minute);
        put(&stores, &ledger, &entry).await;
        let ended = put_mark(&stores, &home, "ended", now - 16 * minute, false).await;
        if by_commit {
            checkpoint(&stores, &running, round(5)).await;
        } else {
            let all = Retention::newest(100);
            let report = running.retain(&all, &Silent, &Cancel::default()).await;
            assert_eq!(report.unwrap(), None);
        }
        assert!(!is_there(&stores, &ledger).await, "by commit: {by_commit}");
        assert!(!is_there(&stores, &ended).await, "by commit: {by_commit}");
        assert!(is_there(&stores, &active).await && is_there(&stores, &kept).await);
    }
    // What it had begun is done by the next one, which closes its own.
    let cancel = Cancel::default();
    let report = running
        .retain(&Retention::newest(2), &Silent, &cancel)
        .await;
    assert_eq!(report.unwrap().unwrap().status, Status::Done);
    assert_eq!(find_snapshots(&stores, &home).await.unwrap().len(), 2);
    let left = stores.list(&home.join(".forkpoint/clean").unwrap()).await;
    assert_eq!(left.unwrap().len(), 1);
}
