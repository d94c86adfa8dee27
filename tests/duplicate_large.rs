//! Objects that one request cannot copy: in parts, killed, resumed.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

mod fault;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fault::{BUCKETS, FaultServer, Kind, Service};

const GIB: u64 = 1024 * 1024 * 1024;
const SIZE: u64 = 64 * GIB;
/// 128 MiB each.
const PARTS: u64 = 512;
/// Requests to one bucket at once at most.
const CEILING: u64 = 32;

fn duplicate(server: &FaultServer) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forkpoint"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if ["AWS_", "GOOGLE_", "AZURE_", "STORAGE_"]
            .iter()
            .any(|p| name.starts_with(p))
        {
            command.env_remove(&*name);
        }
    }
    command
        .envs(server.settings())
        .args([
            "duplicate",
            "s3://one/large",
            "s3://two/large",
            "--format",
            "json",
            "--concurrency",
        ])
        .arg(CEILING.to_string());
    command
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_copy_of_64_gib_goes_on_with_the_missing_parts() {
    let server = FaultServer::start().await;
    server.put_seed(Service::S3, BUCKETS[0], "large", 7, SIZE);
    server.faults().latency = Duration::from_millis(50);
    let mut child = duplicate(&server)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("half of the parts", || {
        server.log().count(Kind::CopyPart) >= PARTS / 2
    });
    child.kill().unwrap();
    child.wait().unwrap();
    // What was under way at the kill may still be done by the service.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = server.log().count(Kind::CopyPart);
    assert!(before < PARTS, "the kill came too late");
    assert_eq!(server.open_uploads(Service::S3, BUCKETS[1]).len(), 1);

    let output = duplicate(&server).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let receipt: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(receipt["method"], "s3-part-copy");
    let again = server.log().count(Kind::CopyPart) - before;
    assert!(
        again >= PARTS - before && again <= PARTS - before + CEILING,
        "{before} + {again} of {PARTS}"
    );
    assert!(server.same(Service::S3, (BUCKETS[0], "large"), (BUCKETS[1], "large")));
    assert!(
        server.open_uploads(Service::S3, BUCKETS[1]).is_empty(),
        "no upload stays open"
    );
    assert_eq!(
        server.keys(Service::S3, BUCKETS[1]),
        ["large"],
        "no journal stays behind"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_whose_source_has_changed_is_begun_anew() {
    let server = FaultServer::start().await;
    server.put_seed(Service::S3, BUCKETS[0], "large", 7, SIZE);
    server.faults().latency = Duration::from_millis(50);
    let mut child = duplicate(&server)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("some parts", || server.log().count(Kind::CopyPart) >= 20);
    child.kill().unwrap();
    child.wait().unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.put_seed(Service::S3, BUCKETS[0], "large", 8, SIZE);
    let output = duplicate(&server).output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(server.same(Service::S3, (BUCKETS[0], "large"), (BUCKETS[1], "large")));
    assert!(server.open_uploads(Service::S3, BUCKETS[1]).is_empty());
}

/// A part that fails for good ends the upload: nothing is left that costs money.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_in_parts_that_fails_leaves_no_upload() {
    use fault::{Action, Rule};
    let server = FaultServer::start().await;
    server.put_seed(Service::S3, BUCKETS[0], "large", 7, SIZE);
    let denied = Action::Fail {
        status: 403,
        code: "AccessDenied",
    };
    server.add(Rule::on(Kind::CopyPart, denied).after(100));
    let output = duplicate(&server).output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(server.open_uploads(Service::S3, BUCKETS[1]).is_empty());
    assert!(server.get(Service::S3, BUCKETS[1], "large").is_none());
}
