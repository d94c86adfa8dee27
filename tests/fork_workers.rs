//! A fork that many workers share: plan, run, commit, abandon.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// One of them measures.
#![allow(clippy::print_stdout)]

mod support;

use std::collections::{BTreeMap, HashMap};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forkpoint::ErrorKind;
use forkpoint::fork::{
    CommitOptions, CommitOutcome, ForkRequest, RunOptions, Slice, commit, fork, plan, plan_workers,
    run_slice,
};
use forkpoint::progress::{Cancel, Silent};
use forkpoint::restore::{CostModel, RestorePlan};
use forkpoint::snapshot::CommitObject;
use forkpoint::store::{BatchOptions, DuplicateOptions, Item, Journal, Location, Stores};
use forkpoint::verify::verify;
use serde_json::{Value, json};
use support::turns::{output_after, run_until};
use support::{
    Service, command, delete_all, emulator_stores, fixture, fixtures, local_stores, manifest, run,
    run_json, synthetic, temp,
};

/// A plan for `workers` workers.
async fn planned(stores: &Stores, snapshot: &Location, to: &Location, workers: u32) -> RestorePlan {
    let request = ForkRequest::new(snapshot.clone(), to.clone());
    let planned = plan(stores, &request, &Silent).await.unwrap();
    plan_workers(stores, &planned, workers, &CostModel::default(), &Silent)
        .await
        .unwrap()
}

async fn run_worker(
    stores: &Stores,
    plan: &RestorePlan,
    worker: u32,
) -> forkpoint::fork::RunReport {
    let slice = Slice::Worker(worker);
    run_slice(
        stores,
        plan,
        slice,
        &RunOptions::default(),
        &Silent,
        &Cancel::default(),
    )
    .await
    .unwrap()
}

/// Everything below `root` of a fork by one process, which is then removed again.
async fn by_one_process(
    stores: &Stores,
    snapshot: &Location,
    to: &Location,
) -> BTreeMap<String, String> {
    let request = ForkRequest::new(snapshot.clone(), to.clone());
    fork(stores, &request, &Silent, &Cancel::default())
        .await
        .unwrap();
    let whole = manifest(stores, to).await;
    delete_all(stores, to).await;
    whole
}

#[tokio::test]
async fn every_fixture_forked_by_workers_is_what_one_process_makes_of_it() {
    let stores = local_stores();
    for fixture in fixtures() {
        let (_dir, root) = temp();
        let (original, target) = (root.join("original").unwrap(), root.join("fork").unwrap());
        fixture.lay(&stores, &original).await;
        let snapshot = original.join(&fixture.newest()).unwrap();
        let expected = by_one_process(&stores, &snapshot, &target).await;
        let plan = planned(&stores, &snapshot, &target, 3).await;
        // Any engine can carry it.
        let plan = RestorePlan::from_json(&plan.to_json().unwrap()).unwrap();
        let mut copied = 0;
        for worker in [2, 0, 1] {
            copied += run_worker(&stores, &plan, worker).await.copied;
        }
        assert_eq!(copied, plan.objects, "{}", fixture.name);
        let outcome = commit(&stores, &plan, &CommitOptions::default(), &Silent)
            .await
            .unwrap();
        let CommitOutcome::Committed(report) = outcome else {
            panic!("{}: {outcome:?}", fixture.name);
        };
        assert!(report.fork.independent && !report.already);
        assert_eq!(
            manifest(&stores, &target).await,
            expected,
            "{}",
            fixture.name
        );
        delete_all(&stores, &original).await;
        let verified = verify(&stores, &report.fork.snapshot, &Silent)
            .await
            .unwrap();
        assert_eq!(verified.problems, [], "{}", fixture.name);
    }
}

#[tokio::test]
async fn log_files_of_several_operators_are_copied_once_each() {
    let stores = local_stores();
    let fixture = fixture("1.20.5-changelog-rocks-p2");
    let (_dir, root) = temp();
    let (original, target) = (root.join("original").unwrap(), root.join("fork").unwrap());
    fixture.lay(&stores, &original).await;
    let snapshot = original.join(&fixture.newest()).unwrap();
    let source = CommitObject::read(&stores, &snapshot)
        .await
        .unwrap()
        .snapshot()
        .unwrap();
    let plan = planned(&stores, &snapshot, &target, 4).await;
    let shared: Vec<&Location> = source
        .objects
        .iter()
        .filter(|o| o.references > 1)
        .map(|o| &o.location)
        .collect();
    assert!(
        !shared.is_empty(),
        "the fixture has files that several handles share"
    );
    for at in shared {
        let tasks = plan.tasks.iter().filter(|t| t.duplicate.source == *at);
        assert_eq!(tasks.count(), 1, "{at}");
    }
    let mut copied = 0;
    for worker in 0..4 {
        copied += run_worker(&stores, &plan, worker).await.copied;
    }
    assert_eq!(copied, source.objects.len() as u64);
    assert!(source.objects.iter().map(|o| o.references).sum::<u64>() > copied);
}

/// What a worker that is started as a process writes.
fn start(plan: &str, worker: u32) -> Child {
    start_with(plan, worker, 4)
}

fn start_with(plan: &str, worker: u32, concurrency: u32) -> Child {
    let at_once = concurrency.to_string();
    command(&["run", plan, "--concurrency", &at_once, "--format", "json"])
        .env("JOB_COMPLETION_INDEX", worker.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn finish(child: Child) -> Value {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(report: &Value, field: &str) -> usize {
    usize::try_from(
        report[field]
            .as_u64()
            .unwrap_or_else(|| panic!("{field}: {report}")),
    )
    .unwrap()
}

/// The receipts in a journal, by destination.
async fn receipts(stores: &Stores, target: &Location) -> HashMap<String, usize> {
    let mut found = HashMap::new();
    for (at, _) in stores
        .list(&target.join(".forkpoint").unwrap())
        .await
        .unwrap()
    {
        if !at.name().ends_with(".jsonl") {
            continue;
        }
        let bytes = stores.read(&at, u64::MAX).await.unwrap();
        for line in bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
            let entry: Value = serde_json::from_slice(line).unwrap();
            if let Some(to) = entry["receipt"]["destination"].as_str() {
                *found.entry(to.to_string()).or_default() += 1;
            }
        }
    }
    found
}

/// Four processes share a fork; two of them are killed, one is started twice.
async fn four_workers(stores: &Stores, root: &Location, plan_at: &Location, objects: usize) {
    const KILLED: [u32; 2] = [1, 2];
    const IN_FLIGHT: usize = 4 * KILLED.len();
    let snapshot = synthetic::lay(stores, &root.join("original").unwrap(), objects, 700).await;
    let target = root.join("fork").unwrap();
    let expected = by_one_process(stores, &snapshot, &target).await;

    let plan_text = plan_at.to_string();
    let (source, to) = (snapshot.to_string(), target.to_string());
    let args = ["plan", &source, &to, "--workers", "4", "--out", &plan_text];
    let (code, report) = run_json(&args);
    assert_eq!((code, number(&report, "objects")), (0, objects), "{report}");
    let document = stores.read(plan_at, u64::MAX).await.unwrap();
    let plan = RestorePlan::from_json(&document).unwrap();
    let killed: Vec<Location> = plan
        .tasks
        .iter()
        .filter(|t| KILLED.contains(&t.worker))
        .map(|t| t.duplicate.destination.clone())
        .collect();
    let there = async || {
        let stats = stores.stat_all(&killed).await.unwrap();
        stats.values().flatten().count()
    };

    let mut doomed: Vec<Child> = KILLED.iter().map(|w| start(&plan_text, *w)).collect();
    let others: Vec<Child> = [0, 3, 3].iter().map(|w| start(&plan_text, *w)).collect();
    run_until(&mut doomed, "a third is copied", async || {
        there().await >= killed.len() / 3
    })
    .await;
    for child in &mut doomed {
        child.kill().unwrap();
    }
    for child in doomed {
        child.wait_with_output().unwrap();
    }
    let before = there().await;
    assert!(before < killed.len(), "the kills came too late: {before}");
    let mut copied = 0;
    for child in others {
        copied += number(&finish(child), "copied");
    }
    assert_eq!(
        copied,
        objects - killed.len(),
        "each object of workers 0 and 3 once"
    );

    // Nothing is committed while something is missing.
    let (code, left) = run_json(&["commit", &plan_text]);
    assert_eq!((code, &left["committed"]), (6, &json!(false)), "{left}");
    let named: Vec<u64> = left["workers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| w["worker"].as_u64().unwrap())
        .collect();
    assert!(
        named.iter().all(|w| [1, 2].contains(w)) && !named.is_empty(),
        "{left}"
    );
    assert!(
        stores
            .find(&target.join("chk-7/_metadata").unwrap())
            .await
            .unwrap()
            .is_none()
    );

    let mut again = 0;
    let mut reused = 0;
    for worker in KILLED {
        let report = finish(start(&plan_text, worker));
        again += number(&report, "copied");
        reused += number(&report, "reused");
    }
    assert_eq!(again + reused, killed.len());
    // A service finishes the copies that were under way at the kill, seen or unseen by the look.
    assert!(
        (before..=before + IN_FLIGHT).contains(&reused),
        "{before} were there and {reused} were not copied again"
    );
    let receipts = receipts(stores, &target).await;
    assert!(
        receipts.values().all(|n| *n == 1),
        "an object has two receipts"
    );
    assert!(receipts.len() >= objects - reused);

    let (code, report) = run_json(&["commit", &plan_text]);
    assert_eq!(
        (code, &report["independent"]),
        (0, &json!(true)),
        "{report}"
    );
    assert_eq!(number(&report["proofs"], "receipt"), receipts.len());
    assert_eq!(manifest(stores, &target).await, expected);
}

#[tokio::test]
async fn workers_that_are_killed_or_doubled_on_local_disk_make_the_same_fork() {
    let (_dir, root) = temp();
    let plan_at = root.join("plan.json").unwrap();
    four_workers(&local_stores(), &root, &plan_at, 2000).await;
}

#[tokio::test]
async fn workers_that_are_killed_or_doubled_on_s3_make_the_same_fork() {
    if Service::S3.is_there("killed workers") {
        let root = Service::S3.place(0, "workers");
        // The plan may lie in a bucket too.
        let plan_at = root.join("plans/plan.json").unwrap();
        four_workers(&emulator_stores(), &root, &plan_at, 2000).await;
    }
}

#[tokio::test]
async fn workers_on_gcs_and_azure_make_the_fork_of_one_process() {
    for service in [Service::Gcs, Service::Azure] {
        if !service.is_there("workers") {
            continue;
        }
        let stores = emulator_stores();
        let root = service.place(0, "workers");
        let fixture = fixture("1.20.5-filemerge-p2");
        fixture.lay(&stores, &root.join("original").unwrap()).await;
        let snapshot = root
            .join("original")
            .unwrap()
            .join(&fixture.newest())
            .unwrap();
        let target = service.place(1, "fork");
        let expected = by_one_process(&stores, &snapshot, &target).await;
        let plan_at = root.join("plan.json").unwrap().to_string();
        let (source, to) = (snapshot.to_string(), target.to_string());
        let (code, _) = run_json(&["plan", &source, &to, "--workers", "2", "--out", &plan_at]);
        assert_eq!(code, 0);
        for worker in ["1", "0", "0"] {
            let (code, report) = run_json(&["run", &plan_at, "--worker", worker]);
            assert_eq!(code, 0, "{report}");
        }
        let (code, report) = run_json(&["commit", &plan_at]);
        assert_eq!(code, 0, "{report}");
        assert_eq!(manifest(&stores, &target).await, expected);
    }
}

#[tokio::test]
async fn what_is_left_can_be_given_to_others_and_planned_again() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = synthetic::lay(&stores, &root.join("original").unwrap(), 40, 100).await;
    let target = root.join("fork").unwrap();
    let expected = by_one_process(&stores, &snapshot, &target).await;
    let file = |name: &str| root.join(name).unwrap().to_string();
    let (one, two, three) = (file("1.json"), file("2.json"), file("3.json"));
    let (source, to) = (snapshot.to_string(), target.to_string());
    run_json(&["plan", &source, &to, "--workers", "4", "--out", &one]);
    run_json(&["run", &one, "--worker", "0"]);
    let (code, left) = run_json(&["commit", &one, "--redistribute", "2", "--out", &two]);
    assert_eq!(
        (code, number(&left, "objects"), number(&left, "done")),
        (6, 30, 10),
        "{left}"
    );
    let (code, report) = run_json(&["run", &two, "--worker", "1"]);
    assert_eq!((code, number(&report, "copied")), (0, 15), "{report}");

    // A second plan counts what receipts prove, and what is there without one.
    let first = planned(&stores, &snapshot, &target, 1).await;
    assert_eq!(first.terms.as_ref().unwrap().done.objects, 25);
    let task = &first.tasks[0].duplicate;
    let content = stores.read(&task.source, u64::MAX).await.unwrap();
    stores.put(&task.destination, content, true).await.unwrap();
    let (code, report) = run_json(&["plan", &source, &to, "--workers", "3", "--out", &three]);
    assert_eq!(code, 0);
    assert_eq!(
        report["done"],
        json!({"objects": 25, "bytes": 2500, "unproven": 1})
    );
    assert_eq!(number(&report, "objects"), 15);
    let text = String::from_utf8(run(&["plan", &source, &to, "--workers", "3"]).stdout).unwrap();
    assert!(
        text.contains("besides 25 objects") && text.contains("1 of those left"),
        "{text}"
    );

    let (code, report) = run_json(&["run", &three, "--all"]);
    assert_eq!(
        (code, number(&report, "copied"), number(&report, "reused")),
        (0, 14, 1),
        "{report}"
    );
    // The object without a receipt is proved by its content.
    let (code, report) = run_json(&["commit", &three]);
    assert_eq!(code, 0, "{report}");
    assert_eq!(report["proofs"], json!({"receipt": 39, "content": 1}));
    assert_eq!(manifest(&stores, &target).await, expected);
}

#[tokio::test]
async fn a_fork_of_metadata_alone_needs_no_worker() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = synthetic::lay(&stores, &root.join("original").unwrap(), 0, 0).await;
    let target = root.join("fork").unwrap();
    let plan = planned(&stores, &snapshot, &target, 2).await;
    let outcome = commit(&stores, &plan, &CommitOptions::default(), &Silent)
        .await
        .unwrap();
    assert!(
        matches!(outcome, CommitOutcome::Committed(_)),
        "{outcome:?}"
    );
    let names: Vec<String> = manifest(&stores, &target).await.into_keys().collect();
    assert_eq!(names, [target.join("chk-7/_metadata").unwrap().to_string()]);
}

#[tokio::test]
async fn a_worker_that_comes_after_the_commit_leaves_nothing() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = synthetic::lay(&stores, &root.join("original").unwrap(), 6, 10).await;
    let target = root.join("fork").unwrap();
    let plan = planned(&stores, &snapshot, &target, 2).await;
    for worker in 0..2 {
        run_worker(&stores, &plan, worker).await;
    }
    commit(&stores, &plan, &CommitOptions::default(), &Silent)
        .await
        .unwrap();
    let whole = manifest(&stores, &target).await;
    let (first, second) = (plan.tasks[0].worker, 1 - plan.tasks[0].worker);
    let report = run_worker(&stores, &plan, first).await;
    assert!(report.committed && report.copied == 0);
    // A job has claimed the fork and is about to remove it, or somebody else has removed a file: nobody is told that
    // all is done, and nothing is written into what may be in use.
    stores
        .delete(&plan.tasks[0].duplicate.destination)
        .await
        .unwrap();
    let options = RunOptions::default();
    let (slice, cancel) = (Slice::Worker(first), Cancel::default());
    let damaged = run_slice(&stores, &plan, slice, &options, &Silent, &cancel).await;
    assert_eq!(damaged.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(run_worker(&stores, &plan, second).await.committed);
    let left = manifest(&stores, &target).await;
    assert_eq!(left.len(), whole.len() - 1, "nothing was written");
}

/// Two runs of one worker copy one large object in parts at the same time: whoever is second finds it there.
#[tokio::test]
async fn a_large_object_that_two_runs_copy_at_once_is_there_once() {
    const MIB: usize = 1024 * 1024;
    if !Service::S3.is_there("two runs with one large object") {
        return;
    }
    let stores = emulator_stores();
    let root = Service::S3.place(0, "double");
    let from = root.join("large").unwrap();
    let content = Bytes::from((0..30 * MIB).map(|n| (n / 7) as u8).collect::<Vec<u8>>());
    stores.put(&from, content.clone(), true).await.unwrap();
    let stat = stores.stat(&from).await.unwrap();
    for round in 0..12u64 {
        let to = root.join(&format!("copy-{round}")).unwrap();
        let one = async |wait: u64| {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            let journal = Arc::new(
                Journal::open(&stores, &root, &format!("double-{round}"))
                    .await
                    .unwrap(),
            );
            let options = BatchOptions {
                duplicate: DuplicateOptions {
                    split_at: 6 * MIB as u64,
                    part_size: 5 * MIB as u64,
                    ..DuplicateOptions::default()
                },
                ..BatchOptions::default()
            };
            let item = Item {
                source: from.clone(),
                destination: to.clone(),
                stat: stat.clone(),
                existing: None,
            };
            let items = futures::stream::iter([Ok(item)]);
            stores
                .batch(
                    items,
                    Some(&journal),
                    &options,
                    &Silent,
                    &Cancel::default(),
                    |_, _| {},
                )
                .await
        };
        // The second comes when the first has begun, has noted its upload, or is done.
        let (a, b) = tokio::join!(one(0), one(round * 12));
        let (a, b) = (a.unwrap(), b.unwrap());
        let errors = [&a, &b].map(|r| r.first_error.as_ref().map(ToString::to_string));
        assert_eq!(errors, [None, None], "round {round}");
        // Both may have completed one upload, which is then the same object.
        assert_eq!(
            a.copied + b.copied + a.reused + b.reused,
            2,
            "round {round}"
        );
        assert_eq!(stores.read(&to, u64::MAX).await.unwrap(), content);
    }
}

/// As a pod is asked to before it is taken away.
#[cfg(unix)]
#[tokio::test]
async fn a_worker_that_is_asked_to_end_finishes_what_is_under_way() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let objects = 3000;
    let snapshot = synthetic::lay(&stores, &root.join("original").unwrap(), objects, 16).await;
    let target = root.join("fork").unwrap();
    let plan_at = root.join("plan.json").unwrap().to_string();
    let (source, to) = (snapshot.to_string(), target.to_string());
    run_json(&["plan", &source, &to, "--workers", "1", "--out", &plan_at]);
    let child = command(&["run", &plan_at, "--worker", "0", "--concurrency", "1"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let shared = target.join("shared").unwrap();
    let at_work = async || !stores.list(&shared).await.unwrap().is_empty();
    let output = output_after(child, "TERM", "the worker is at work", at_work).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains("run the same command again"), "{said}");
    // Every copy has its receipt.
    let there = stores.list(&shared).await.unwrap().len();
    assert_eq!(receipts(&stores, &target).await.len(), there);
    assert!(there < objects);
}

/// What it costs to share: one process that forks, one worker and four workers of a plan, all with the same
/// concurrency together, in turns. `cargo test --release --test fork_workers -- --ignored --nocapture`,
/// against the S3 server of the environment.
#[tokio::test]
#[ignore = "it measures, and asserts nothing of time"]
async fn four_workers_and_one_side_by_side() {
    const OBJECTS: usize = 2000;
    // Size and pairs. Flink keeps state below 20 KiB inside `_metadata`, so that small files are few; the
    // large ones come seldom, because what is deleted keeps its place in the emulator.
    const SETS: [(usize, usize); 3] = [(1024 * 1024, 3), (64 * 1024, 7), (1024, 7)];
    let (stores, root) = match Service::S3.is_there("the measurement on S3") {
        true => (emulator_stores(), Service::S3.place(0, "ratio")),
        false => return,
    };
    for (size, pairs) in SETS {
        let original = root.join(&format!("original-{size}")).unwrap();
        let snapshot = synthetic::lay(&stores, &original, OBJECTS, size).await;
        println!("{OBJECTS} objects of {size} bytes");
        side_by_side(&stores, &snapshot.to_string(), OBJECTS, pairs).await;
        delete_all(&stores, &original).await;
    }
}

async fn side_by_side(stores: &Stores, source: &str, objects: usize, pairs: usize) {
    let (_dir, here) = temp();
    let (mut to_fork, mut to_one, mut copying) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs {
        let target = Service::S3.place(1, "fork");
        let begin = Instant::now();
        let (code, _) = run_json(&["fork", source, &target.to_string(), "--concurrency", "16"]);
        assert_eq!(code, 0);
        let fork = begin.elapsed().as_secs_f64();
        delete_all(stores, &target).await;

        let mut shared = Vec::new();
        // Who goes first takes turns too.
        for workers in [[1, 4], [4, 1]][pair % 2] {
            let target = Service::S3.place(1, "shared");
            let plan = here.join(&format!("{pair}-{workers}.json")).unwrap();
            let plan = plan.to_string();
            let (n, to) = (workers.to_string(), target.to_string());
            let begin = Instant::now();
            run_json(&["plan", source, &to, "--workers", &n, "--out", &plan]);
            let copy = Instant::now();
            let children: Vec<Child> = (0..workers)
                .map(|worker| start_with(&plan, worker, 16 / workers))
                .collect();
            let copied: usize = children
                .into_iter()
                .map(|child| number(&finish(child), "copied"))
                .sum();
            let copy = copy.elapsed().as_secs_f64();
            let (code, _) = run_json(&["commit", &plan]);
            assert_eq!((code, copied), (0, objects));
            shared.push((workers, begin.elapsed().as_secs_f64(), copy));
            delete_all(stores, &target).await;
        }
        shared.sort_by_key(|(workers, ..)| *workers);
        let [(_, one, copy_one), (_, four, copy_four)] = shared[..] else {
            unreachable!("two")
        };
        println!(
            "fork {fork:.2} s; one worker {one:.2} s, {copy_one:.2} s of it copying; four workers {four:.2} s, \
             {copy_four:.2} s of it copying"
        );
        to_fork.push(fork / four);
        to_one.push(one / four);
        copying.push(copy_one / copy_four);
    }
    let all = [
        ("four workers, as fast as one worker", to_one),
        ("copying alone", copying),
        ("four workers, as fast as `fork`", to_fork),
    ];
    for (what, mut ratios) in all {
        ratios.sort_by(f64::total_cmp);
        println!(
            "{what}: median ratio of {pairs} pairs {:.2}",
            ratios[pairs / 2]
        );
    }
}
