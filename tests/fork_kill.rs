//! A fork that is killed with SIGKILL, at any moment, goes on where it was.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::process::Stdio;

use forkpoint::progress::Silent;
use forkpoint::store::{Location, Stores};
use forkpoint::verify::verify;
use support::turns::{output_after, run_until};
use support::{
    Service, command, emulator_stores, local_stores, manifest, run_json, synthetic, temp,
};

const MOMENTS: u32 = 10;
/// The killed runs copy so many objects at once.
const IN_FLIGHT: usize = 4;

/// Forks once undisturbed, and then ten times with a kill once none to nine tenths of the objects are
/// there; reruns each, and compares the result with the undisturbed one.
async fn kill_and_resume(stores: &Stores, root: &Location, objects: usize, size: usize) {
    let snapshot = synthetic::lay(stores, &root.join("original").unwrap(), objects, size).await;
    let original = manifest(stores, &root.join("original").unwrap()).await;
    let source = snapshot.to_string();
    let whole = root.join("whole").unwrap();
    let (code, report) = run_json(&["fork", &source, &whole.to_string(), "--concurrency", "4"]);
    assert_eq!((code, report["copied"].as_u64()), (0, Some(objects as u64)));
    let expected = contents(stores, &whole).await;

    let mut cut_short = 0;
    for moment in 1..=MOMENTS {
        let target = root.join(&format!("killed-{moment}")).unwrap();
        let child = command(&["fork", &source, &target.to_string(), "--concurrency", "4"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut children = [child];
        // Killed when so much is there, or soon after the beginning for the first one.
        let wanted = objects * (moment as usize - 1) / MOMENTS as usize;
        let shared = target.join("shared").unwrap();
        let so_far = async || {
            let there = stores.list(&shared).await.map_or(0, |l| l.len());
            there >= wanted.max(1)
        };
        run_until(&mut children, "enough objects are copied", so_far).await;
        let [mut child] = children;
        let running = child.try_wait().unwrap().is_none();
        child.kill().unwrap();
        child.wait().unwrap();

        let before = stores.list(&shared).await.map_or(0, |l| l.len());
        let committed = stores
            .find(&target.join("chk-7/_metadata").unwrap())
            .await
            .unwrap()
            .is_some();
        assert!(
            !committed || before == objects,
            "committed before all objects were there"
        );
        let (code, report) = run_json(&["fork", &source, &target.to_string()]);
        assert_eq!(code, 0, "{report}");
        let number = |field: &str| usize::try_from(report[field].as_u64().unwrap()).unwrap();
        assert_eq!(number("copied") + number("reused"), objects, "{report}");
        // A service finishes the copies that were under way at the kill, seen or unseen by the listing.
        let reused = number("reused");
        assert!(
            (before..=before + IN_FLIGHT).contains(&reused),
            "{before} were there, and are not copied again: {report}"
        );
        assert_eq!(
            contents(stores, &target).await,
            expected,
            "killed at {moment}"
        );
        let fork = target.join("chk-7").unwrap();
        assert_eq!(verify(stores, &fork, &Silent).await.unwrap().problems, []);
        cut_short += u32::from(running && before > 0 && before < objects);
    }
    assert!(
        cut_short >= 3,
        "only {cut_short} of {MOMENTS} kills came while objects were copied"
    );
    assert_eq!(
        manifest(stores, &root.join("original").unwrap()).await,
        original
    );
}

/// The contents of a fork, independent of its names: digest and how often.
async fn contents(stores: &Stores, root: &Location) -> Vec<String> {
    let mut all: Vec<String> = manifest(stores, root)
        .await
        .into_iter()
        .filter(|(at, _)| !at.ends_with("/_metadata"))
        .map(|(_, digest)| digest)
        .collect();
    all.sort();
    all
}

#[tokio::test]
async fn a_killed_fork_on_local_disk_resumes() {
    let (_dir, root) = temp();
    kill_and_resume(&local_stores(), &root, 1500, 4096).await;
}

#[tokio::test]
async fn a_killed_fork_on_s3_resumes() {
    if Service::S3.is_there("resuming a killed fork") {
        kill_and_resume(&emulator_stores(), &Service::S3.place(0, "kill"), 300, 4096).await;
    }
}

#[tokio::test]
async fn a_killed_fork_on_gcs_resumes() {
    if Service::Gcs.is_there("resuming a killed fork") {
        kill_and_resume(
            &emulator_stores(),
            &Service::Gcs.place(0, "kill"),
            300,
            4096,
        )
        .await;
    }
}

#[tokio::test]
async fn a_killed_fork_on_azure_resumes() {
    if Service::Azure.is_there("resuming a killed fork") {
        kill_and_resume(
            &emulator_stores(),
            &Service::Azure.place(0, "kill"),
            300,
            4096,
        )
        .await;
    }
}

/// Ctrl-C: what is under way is finished, the rest is left for the same command.
#[cfg(unix)]
#[tokio::test]
async fn an_interrupted_fork_says_how_to_go_on() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let objects = 3000;
    let snapshot = synthetic::lay(&stores, &root.join("original").unwrap(), objects, 16).await;
    let target = root.join("fork").unwrap();
    let child = command(&[
        "fork",
        &snapshot.to_string(),
        &target.to_string(),
        "--concurrency",
        "1",
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let shared = target.join("shared").unwrap();
    let at_work = async || !stores.list(&shared).await.unwrap().is_empty();
    let output = output_after(child, "INT", "the fork is at work", at_work).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains("run the same command again"), "{said}");
    let (source, to) = (snapshot.to_string(), target.to_string());
    let (code, dry) = run_json(&["fork", &source, &to, "--dry-run"]);
    assert_eq!((code, dry["committed"].as_bool()), (0, Some(false)));
    assert!(
        dry["done"]["objects"].as_u64().unwrap() > 0,
        "{}",
        dry["done"]
    );
    let (code, report) = run_json(&["fork", &snapshot.to_string(), &target.to_string()]);
    assert_eq!(code, 0);
    assert!(report["reused"].as_u64().unwrap() > 0);
    assert_eq!(
        report["copied"].as_u64().unwrap() + report["reused"].as_u64().unwrap(),
        objects as u64
    );
}
