//! An HA store that fails, and a disk that is full.

use std::time::{Duration, Instant};

use forkpoint::store::Location;

use super::fault::{Action, FaultServer, Kind, Rule, Service};
use super::harness::*;
use super::support::temp;

pub(super) fn on_fault_server(data: &std::path::Path, server: &FaultServer) -> Setup {
    let ha = Location::parse("s3://one/ha").unwrap();
    let mut setup = Setup::new(data, &ha).with(&["--ha-patience", "5s", "--sweep-period", "100ms"]);
    for (name, value) in server.settings() {
        setup.settings.push((name.to_string(), value));
    }
    setup
}

/// C20: what is in the directory can be read, re-creatable blobs work, retained ones are not acknowledged; and
/// afterwards everything goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_ha_store_that_is_down_stops_only_what_needs_it() {
    let fault = FaultServer::start().await;
    let (dir, _) = temp();
    let setup = on_fault_server(&dir.path().join("data"), &fault);
    tokio::task::spawn_blocking(move || {
        let server = setup.start();
        let (held, late, message) = (noise(1, 50_000), noise(2, 60_000), noise(3, 70_000));
        let batch = |session| Batch {
            server: &server,
            job: "a",
            session,
        };
        assert!(batch(1).upload(&[(&held, "retained")]));
        assert_eq!(register(&server, "a", &[&held]).unwrap().status, 204);
        fault.add(Rule::always(Action::Reset));

        assert!(is_readable(&server, "a", &held));
        assert!(batch(2).upload(&[(&message, "recreatable")]));
        assert!(is_readable(&server, "a", &message));
        let open = batch(3);
        assert_eq!(open.begin(&[(&late, "retained")]).unwrap().status, 201);
        let began = Instant::now();
        let refused = open.send(&late).unwrap();
        assert_eq!((refused.status, refused.code().as_str()), (503, "busy"));
        assert!(refused.headers.contains_key("retry-after"));
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "{:?}",
            began.elapsed()
        );
        // An event that must be durable is refused, and has changed nothing.
        let failed = server.json(
            "POST",
            "/v1/jobs/a/events",
            &serde_json::json!({ "event": "failed" }),
        );
        assert_eq!(failed.unwrap().status, 503);
        let jobs = server.call("GET", "/v1/jobs", b"").unwrap().json();
        assert_eq!(jobs["jobs"][0]["state"], "active", "{jobs}");
        assert!(is_readable(&server, "a", &held));

        fault.faults().clear_rules();
        assert!(batch(3).upload(&[(&late, "retained")]));
        assert_eq!(register(&server, "a", &[&held, &late]).unwrap().status, 204);
        assert!(is_readable(&server, "a", &late));
    })
    .await
    .unwrap();
}

/// Replies that are lost although the store did what was asked: exact answers all the same, and no object twice.
#[tokio::test(flavor = "multi_thread")]
async fn lost_replies_of_the_ha_store_change_nothing() {
    for kind in [Kind::Put, Kind::List, Kind::Get] {
        let fault = FaultServer::start().await;
        let (dir, _) = temp();
        let setup = on_fault_server(&dir.path().join("data"), &fault);
        tokio::task::spawn_blocking(move || {
            let server = setup.start();
            for n in 0..6u64 {
                fault.add(
                    Rule::on(kind, Action::LoseReply { after: None })
                        .after(n % 3)
                        .times(1),
                );
                let bytes = noise(n, 3000);
                let batch = server.batch("a", n);
                let mut tries = 0;
                while !batch.upload(&[(&bytes, "retained")]) {
                    tries += 1;
                    assert!(tries < 5, "{kind:?}");
                }
                assert_eq!(register(&server, "a", &[&bytes]).unwrap().status / 100, 2);
                assert!(is_readable(&server, "a", &bytes), "{kind:?}");
            }
            assert_eq!(
                server.call("GET", "/readyz", b"").unwrap().status,
                200,
                "{kind:?}"
            );
        })
        .await
        .unwrap();
    }
}

/// A clean-up that fails is tried until it works, and disturbs nobody meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn removals_that_fail_are_tried_again() {
    let fault = FaultServer::start().await;
    let (dir, _) = temp();
    let server = on_fault_server(&dir.path().join("data"), &fault).start();
    let bytes = noise(1, 3000);
    let batch = |job, session| Batch {
        server: &server,
        job,
        session,
    };
    assert!(batch("a", 1).upload(&[(&bytes, "retained")]));
    assert_eq!(register(&server, "a", &[&bytes]).unwrap().status, 204);
    let denied = Action::Fail {
        status: 403,
        code: "AccessDenied",
    };
    fault.add(Rule::on(Kind::Delete, denied).and_on(Kind::DeleteMany));
    // It is over whether its objects can be removed or not.
    assert_eq!(finish(&server, "a").unwrap().status, 204);
    let failing = || async { server.metric("forkpoint_blob_deletes_failed_total") >= 3 };
    until_asked("removals fail, again and again", failing).await;
    assert_eq!(read(&server, "a", &bytes).unwrap().code(), "job-over");
    assert!(batch("b", 1).upload(&[(&bytes, "retained")]));
    assert_eq!(server.metric("forkpoint_blob_going"), 1);
    let objects = || {
        let keys = fault.keys(Service::S3, "one");
        keys.iter()
            .filter(|k| k.contains("/jobs/a/retained/"))
            .count()
    };
    assert_eq!(objects(), 1);
    fault.faults().clear_rules();
    let gone = || async { objects() == 0 && server.metric("forkpoint_blob_going") == 0 };
    until_asked("the object goes", gone).await;
}

/// A store that ignores conditions would let two servers both own the cluster.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_ignores_create_if_absent_is_refused() {
    let fault = FaultServer::start().await;
    fault.faults().ignore_put_conditions = true;
    let (dir, _) = temp();
    let setup = on_fault_server(&dir.path().join("data"), &fault);
    let (code, said) = tokio::task::spawn_blocking({
        let setup = setup.clone();
        move || setup.try_start().err().unwrap()
    })
    .await
    .unwrap();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("ignores create-if-absent"), "{said}");
    assert_eq!(
        fault.keys(Service::S3, "one"),
        [] as [&str; 0],
        "it left something behind"
    );
    fault.faults().ignore_put_conditions = false;
    tokio::task::spawn_blocking(move || drop(setup.start()))
        .await
        .unwrap();
}

/// C19: a limit, and a file system that is really full.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_an_answer() {
    let (dir, root) = temp();
    let data = dir.path().join("data");
    let setup = Setup::new(&data, &root.join("ha").unwrap()).with(&["--max-bytes", "1MiB"]);
    let server = setup.start();
    let (first, second, huge) = (noise(1, 600_000), noise(2, 600_000), noise(3, 1_200_000));
    let batch = |session| Batch {
        server: &server,
        job: "a",
        session,
    };
    assert!(batch(1).upload(&[(&first, "retained")]));
    let too_much = batch(2);
    too_much.begin(&[(&huge, "retained")]).unwrap();
    let refused = too_much.send(&huge).unwrap();
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (507, "no-space"),
        "{}",
        refused.text()
    );
    // What is in the HA store too makes room for what is new, and comes back when it is asked for.
    assert!(batch(3).upload(&[(&second, "retained")]));
    assert_eq!(server.metric("forkpoint_blob_evictions_total"), 1);
    assert!(is_readable(&server, "a", &first) && is_readable(&server, "a", &second));
    // What nobody else has does not.
    let message = noise(4, 700_000);
    assert!(batch(4).upload(&[(&message, "recreatable")]));
    let more = batch(5);
    more.begin(&[(&huge[..500_000], "recreatable")]).unwrap();
    assert_eq!(more.send(&huge[..500_000]).unwrap().code(), "no-space");
    assert!(is_readable(&server, "a", &message));
    assert_eq!(server.metric("forkpoint_blob_local_reserved_bytes"), 0);
    assert!(server.metric("forkpoint_blob_local_bytes") <= 1 << 20);
}

/// A file system of 8 MiB, where that can be mounted.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_system_that_is_full_is_an_answer() {
    let (dir, root) = temp();
    let small = dir.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mounted = std::process::Command::new("mount")
        .args([
            "-t",
            "tmpfs",
            "-o",
            "size=8m",
            "tmpfs",
            small.to_str().unwrap(),
        ])
        .output();
    if !mounted.is_ok_and(|o| o.status.success()) {
        eprintln!("left out: a full file system, for want of the right to mount one");
        return;
    }
    let server = Setup::new(&small.join("data"), &root.join("ha").unwrap()).start();
    // Others fill the disk behind the server's back.
    std::fs::write(small.join("others"), vec![1; 5 << 20]).unwrap();
    let (good, bad) = (noise(1, 500_000), noise(2, 6 << 20));
    let batch = |session| Batch {
        server: &server,
        job: "a",
        session,
    };
    assert!(batch(1).upload(&[(&good, "retained")]));
    let full = batch(2);
    full.begin(&[(&bad, "retained")]).unwrap();
    let refused = full.send(&bad).unwrap();
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (507, "no-space"),
        "{}",
        refused.text()
    );
    assert!(is_readable(&server, "a", &good));
    assert_eq!(
        std::fs::read_dir(small.join("data/tmp")).unwrap().count(),
        0
    );
    std::fs::remove_file(small.join("others")).unwrap();
    assert!(full.upload(&[(&bad, "retained")]));
    server.kill();
    let _ = std::process::Command::new("umount").arg(&small).status();
}
