//! Two coordinators, four subtasks, all real processes, any of them killed with SIGKILL at any moment.
//!
//! `FORKPOINT_TEST_KILLS` says how often (200), `FORKPOINT_TEST_SEED` repeats a run as far as processes can
//! be made to repeat anything.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forkpoint::ErrorKind;
use forkpoint::ownership::clean::{ApplyOptions, PlanSource, Status, apply_plan, plan_clean};
use forkpoint::ownership::{Access, CleanPolicy, Lineage, survey};
use forkpoint::progress::{Cancel, Silent};
use forkpoint::store::{Location, Stores};
use forkpoint::writer::{
    Acknowledgement, CommitOutcome, Details, Job, JobDescription, JobOptions, Restored, Retention,
    Start, State, SubtaskOrder, SubtaskWriter, find_snapshots,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::engine::{content, fetch_all, write_options};
use support::local_stores;
use support::waits::until;

const ROLE: &str = "FORKPOINT_TEST_ROLE";
const FOLDER: &str = "FORKPOINT_TEST_FOLDER";
const COORDINATORS: u32 = 2;
const SUBTASKS: u32 = 4;
const KILLS_WITHOUT_PROGRESS: u64 = 4;
/// How long a coordinator waits for acknowledgements at first; twice as long after each attempt that was in vain, for
/// nobody knows how busy the machine is.
const PATIENCE: Duration = Duration::from_millis(250);

fn job() -> JobDescription {
    JobDescription::new("killed").operator("state", SUBTASKS)
}

fn home(folder: &Path) -> Location {
    support::at(folder.join("home").to_str().unwrap())
}

/// Makes a file that is there as a whole or not at all. A coordinator that has had enough of an attempt removes its
/// folders, perhaps in this very moment: then it is made again, and nobody reads it.
fn publish(at: &Path, bytes: &[u8]) {
    let temporary = at.with_extension(format!("{}.tmp", std::process::id()));
    let folder = at.parent().unwrap();
    loop {
        let made = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&temporary, bytes))
            .and_then(|()| std::fs::rename(&temporary, at));
        match made {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            other => return other.unwrap(),
        }
    }
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let name = |e: std::io::Result<std::fs::DirEntry>| e.ok()?.file_name().into_string().ok();
    let mut names: Vec<String> = entries.filter_map(name).collect();
    names.retain(|name| name.ends_with(".json"));
    names.sort();
    names
}

/// Each snapshot has of each subtask a new shared file and one of its own, and refers to three files of
/// earlier ones.
fn states(order: &SubtaskOrder) -> Vec<State> {
    let mut state = State::keyed("state", order.key_groups);
    let reusable = order.reusable.iter().rev().take(3).rev();
    for file in reusable {
        state = state.reuse(&file.name, &file.file);
    }
    // By number, not by attempt: so that another attempt finds what this one has left.
    let shared = format!("shared-{}-{}", order.number, order.subtask);
    let own = format!("own-{}-{}", order.attempt, order.subtask);
    vec![
        state
            .shared(&shared, content(&shared, 4_000))
            .exclusive(&own, content(&own, 1_000)),
    ]
}

/// The attempts that a snapshot follows, and its own.
fn history(user: &serde_json::Map<String, serde_json::Value>) -> Vec<String> {
    let list = user.get("history").and_then(|h| h.as_array());
    let text = |v: &serde_json::Value| v.as_str().unwrap().to_string();
    list.map(|l| l.iter().map(text).collect())
        .unwrap_or_default()
}

/// Starts from the newest snapshot and reads everything. While another coordinator goes on, what is being
/// read may be let go: only what is still the newest must be whole.
async fn restore(stores: &Stores, home: &Location) -> Result<(Job, Option<Restored>), String> {
    for _ in 0..20 {
        let started = Job::start(
            stores,
            home,
            &job(),
            &Start::newest(),
            JobOptions::default(),
        )
        .await;
        let (job, restored) = match started {
            Ok(started) => started,
            Err(e) if e.kind() == ErrorKind::Conflict => continue,
            Err(e) => return Err(format!("no restore: {e:?}")),
        };
        let Some(restored) = restored else {
            return Ok((job, None));
        };
        let reading = fetch_quietly(stores, &restored).await;
        let newest = find_snapshots(stores, home)
            .await
            .map_err(|e| format!("{e:?}"))?;
        let newest = newest.last().map_or(0, |s| s.manifest.number);
        match reading {
            Ok(()) => return Ok((job, Some(restored))),
            Err(_) if newest > restored.manifest.number => {}
            Err(e) => return Err(e),
        }
    }
    Err("twenty restores, and each time a newer snapshot".into())
}

async fn fetch_quietly(stores: &Stores, restored: &Restored) -> Result<(), String> {
    for share in &restored.subtasks {
        if share.states.is_empty() {
            return Err(format!("subtask {} gets nothing", share.subtask));
        }
        for file in share.states.iter().flat_map(|s| &s.files) {
            let bytes = file.read(stores).await.map_err(|e| format!("{e:?}"))?;
            if bytes != content(&file.name, bytes.len()) {
                return Err(format!("{} is not what was written", file.name));
            }
        }
    }
    Ok(())
}

async fn coordinate(folder: &Path, number: u32) {
    let stores = local_stores();
    let orders = folder.join(format!("orders-{number}"));
    let acks = folder.join(format!("acks-{number}"));
    loop {
        let _ = std::fs::remove_dir_all(&orders);
        let _ = std::fs::remove_dir_all(&acks);
        let (job, restored) = match restore(&stores, &home(folder)).await {
            Ok(started) => started,
            Err(why) => return violation(folder, &why),
        };
        let mut past = restored.map_or_else(Vec::new, |r| history(&r.manifest.user));
        let (mut commits, mut patience) = (0, PATIENCE);
        // Until another coordinator was faster.
        while let Ok(mut attempt) = job.checkpoint().await {
            for order in attempt.orders() {
                let name = format!("{}-{}.json", attempt.attempt(), order.subtask);
                publish(&orders.join(name), &order.to_json().unwrap());
            }
            let began = Instant::now();
            while !attempt.missing().is_empty() && began.elapsed() < patience {
                tokio::time::sleep(Duration::from_millis(3)).await;
                for name in names(&acks) {
                    if let Ok(bytes) = std::fs::read(acks.join(name)) {
                        let ack = Acknowledgement::from_json(&bytes).unwrap();
                        let _ = attempt.acknowledge(ack);
                    }
                }
            }
            let _ = std::fs::remove_dir_all(&orders);
            let _ = std::fs::remove_dir_all(&acks);
            let mut now = past.clone();
            now.push(attempt.attempt().to_string());
            let mut details = Details::default();
            details.user.insert("history".into(), now.clone().into());
            match attempt.commit(&details).await {
                Ok(CommitOutcome::Committed(_)) => {
                    // From here on somebody relies on it.
                    publish(
                        &folder
                            .join("told")
                            .join(format!("{}.json", attempt.attempt())),
                        b"",
                    );
                    past = now;
                    (commits, patience) = (commits + 1, PATIENCE);
                }
                Ok(CommitOutcome::Lost { .. }) => break,
                // Subtasks were killed: another attempt.
                Err(e) if e.kind() == ErrorKind::Incomplete => {
                    patience *= 2;
                    attempt.abort().await;
                }
                Err(_) => {}
            }
            if commits % 3 == 2 {
                // The other one's changes may be in the way.
                let _ = job
                    .retain(&Retention::newest(2), &Silent, &Cancel::default())
                    .await;
            }
        }
    }
}

async fn work(folder: &Path, subtask: u32) {
    let stores = local_stores();
    let ending = format!("-{subtask}.json");
    loop {
        for coordinator in 0..COORDINATORS {
            let orders = folder.join(format!("orders-{coordinator}"));
            for name in names(&orders).into_iter().filter(|n| n.ends_with(&ending)) {
                let ack_at = folder.join(format!("acks-{coordinator}")).join(&name);
                let Ok(bytes) = std::fs::read(orders.join(&name)) else {
                    continue;
                };
                if ack_at.exists() {
                    continue;
                }
                let order = SubtaskOrder::from_json(&bytes).unwrap();
                let writer = SubtaskWriter::new(&stores, &order).with_options(write_options());
                if let Ok(ack) = writer.write(states(&order)).await {
                    publish(&ack_at, &ack.to_json().unwrap());
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

fn violation(folder: &Path, why: &str) {
    publish(
        &folder
            .join("violations")
            .join(format!("{}.json", std::process::id())),
        why.as_bytes(),
    );
}

fn violations(folder: &Path) -> Vec<String> {
    let folder = folder.join("violations");
    let read = |name: String| std::fs::read_to_string(folder.join(name)).unwrap();
    names(&folder).into_iter().map(read).collect()
}

/// What the processes of the test below do; on its own nothing.
#[tokio::test]
async fn a_process_of_the_test() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    let (kind, number) = role.split_once(' ').unwrap();
    let number = number.parse().unwrap();
    match kind {
        "coordinator" => coordinate(&folder, number).await,
        _ => work(&folder, number).await,
    }
}

fn spawn(folder: &Path, role: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_of_the_test", "--nocapture"])
        .env(ROLE, role)
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Processes that end with the test, whatever comes of it.
struct Processes(Vec<(String, Child)>);

impl Drop for Processes {
    fn drop(&mut self) {
        for (_, child) in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

async fn clean(stores: &Stores, root: &Location) {
    let root = stores.real(root).await.unwrap();
    let survey = survey(stores, std::slice::from_ref(&root), &Silent)
        .await
        .unwrap();
    assert!(survey.missing.is_empty(), "{:?}", survey.missing);
    let lineage = Lineage::new(&survey);
    let policy = CleanPolicy {
        keep: vec!["last=1".parse().unwrap()],
        min_age_ms: 0,
    };
    // A moment later than anything that was written.
    let plan = plan_clean(&lineage, &[root], &[], &policy, stores.now() + 1_000);
    let mut text = Vec::new();
    plan.write(&lineage, &mut text).unwrap();
    let options = ApplyOptions {
        grace_ms: 0,
        max_delete: None,
    };
    let source = PlanSource::Text(text.into());
    let report = apply_plan(stores, &source, &options, &Silent, &Cancel::default())
        .await
        .unwrap();
    assert_eq!(report.status, Status::Done, "{report:?}");
}

/// What nothing refers to, and is no record of ours.
async fn orphans(stores: &Stores, root: &Location) -> Vec<String> {
    let root = stores.real(root).await.unwrap();
    let survey = survey(stores, &[root], &Silent).await.unwrap();
    let lineage = Lineage::new(&survey);
    (0..survey.names.len() as u32)
        .filter(|id| survey.fact(*id).listed && lineage.users(*id).is_empty())
        .map(|id| survey.names.location(id).unwrap().to_string())
        .filter(|at| !at.contains("/.forkpoint/"))
        .collect()
}

#[tokio::test]
async fn nothing_that_was_acknowledged_is_lost() {
    if std::env::var(ROLE).is_ok() {
        return;
    }
    let setting = |name: &str| std::env::var(name).ok().map(|v| v.parse::<u64>().unwrap());
    let kills = setting("FORKPOINT_TEST_KILLS").unwrap_or(200);
    let seed = setting("FORKPOINT_TEST_SEED").unwrap_or_else(rand::random);
    let _ = writeln!(std::io::stderr(), "FORKPOINT_TEST_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().unwrap();
    let (folder, stores) = (dir.path(), local_stores());
    let home = home(folder);
    let roles = (0..COORDINATORS)
        .map(|n| format!("coordinator {n}"))
        .chain((0..SUBTASKS).map(|n| format!("subtask {n}")));
    let mut running = Processes(roles.map(|r| (r.clone(), spawn(folder, &r))).collect());

    let began = Instant::now();
    let mut told_before = 0;
    for kill in 0..kills {
        // It shall be no idle run: between some of the kills they get on.
        if kill % KILLS_WITHOUT_PROGRESS == 0 {
            until("a checkpoint is acknowledged", || {
                names(&folder.join("told")).len() > told_before || !violations(folder).is_empty()
            })
            .await;
        }
        let pause = Duration::from_millis(random.random_range(10..200));
        tokio::time::sleep(pause).await;
        let chosen = random.random_range(0..running.0.len());
        let (role, child) = &mut running.0[chosen];
        child.kill().unwrap();
        child.wait().unwrap();
        *child = spawn(folder, role);

        let at = format!("kill {kill} of {role}, seed {seed}");
        let told: BTreeSet<String> = names(&folder.join("told"))
            .into_iter()
            .map(|n| n.trim_end_matches(".json").to_string())
            .collect();
        let restored = match restore(&stores, &home).await {
            Ok((_, restored)) => restored,
            Err(why) => panic!("{at}: {why}"),
        };
        let past: BTreeSet<String> = restored
            .map(|r| history(&r.manifest.user).into_iter().collect())
            .unwrap_or_default();
        let lost: Vec<&String> = told.difference(&past).collect();
        assert!(lost.is_empty(), "{at}: acknowledged and lost: {lost:?}");
        assert_eq!(violations(folder), Vec::<String>::new(), "{at}");
        told_before = told.len();
    }
    drop(running);
    let took = began.elapsed();
    let left = orphans(&stores, &home).await.len();
    clean(&stores, &home).await;
    assert_eq!(
        orphans(&stores, &home).await,
        Vec::<String>::new(),
        "seed {seed}"
    );
    let (job, restored) = restore(&stores, &home).await.unwrap();
    let restored = restored.unwrap();
    fetch_all(&stores, &restored).await;
    // What it keeps beside snapshots goes with the next checkpoint.
    support::engine::checkpoint(&stores, &job, states).await;
    for (at, _) in stores
        .list(&home.join(".forkpoint").unwrap())
        .await
        .unwrap()
    {
        // Of a retention that was killed: its mark counts until its time is up, and its ledger says what it began.
        let expected = ["/commits/", "/going/", "/clean/"]
            .iter()
            .any(|folder| at.key().contains(folder));
        assert!(expected, "{at}");
    }
    let _ = writeln!(
        std::io::stderr(),
        "{kills} kills in {:.1} s: {told_before} checkpoints acknowledged, the last one was number {}, {left} orphans cleaned",
        took.as_secs_f64(),
        restored.manifest.number
    );
}
