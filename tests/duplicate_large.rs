//! Objects that one request cannot copy: in parts, killed, resumed.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

mod fault;
#[path = "support/waits.rs"]
mod waits;

use std::process::{Command, Stdio};
use std::time::Duration;

use fault::{Action, BUCKETS, FaultServer, Gate, Kind, Rule, Service};
use waits::until;

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

/// Kills one after this many parts: the others hang.
async fn killed_after(parts: u64, server: &FaultServer) {
    let hang = Action::Wait(Gate::new());
    server.add(Rule::on(Kind::CopyPart, hang).after(parts));
    let mut child = duplicate(server)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the parts before the kill are there", || {
        server.log().count(Kind::CopyPart) == parts
    })
    .await;
    child.kill().unwrap();
    child.wait().unwrap();
    server.faults().clear_rules();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_copy_of_64_gib_goes_on_with_the_missing_parts() {
    let server = FaultServer::start().await;
    server.put_seed(Service::S3, BUCKETS[0], "large", 7, SIZE);
    server.faults().latency = Duration::from_millis(50);
    killed_after(PARTS / 2, &server).await;
    let before = server.log().count(Kind::CopyPart);
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
    killed_after(20, &server).await;
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
