//! C21: the clock of a server's machine jumps, ahead and back, while it runs and between two of them.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::harness::*;
use super::support::{local_stores, temp};

const YEAR: i64 = 365 * 24 * 60 * 60 * 1000;
/// The retention interval and the age of orphans, with room for a machine that is busy.
const INTERVAL: Duration = Duration::from_secs(5);
const TIMES: [&str; 8] = [
    "--retention-interval",
    "5s",
    "--sweep-period",
    "150ms",
    "--orphan-min-age",
    "5s",
    "--on-exit",
    "keep",
];

/// A server whose clock is what `set` says.
fn setup(dir: &Path, ha: &forkpoint::store::Location) -> Setup {
    let mut setup = Setup::new(&dir.join("data"), ha).with(&TIMES);
    let file = dir.join("clock").to_str().unwrap().to_string();
    setup
        .settings
        .push(("FORKPOINT_CLOCK_OFFSET".to_string(), file));
    setup
}

fn set(dir: &Path, millis: i64) {
    std::fs::write(dir.join("clock"), millis.to_string()).unwrap();
}

fn lease(server: &Server, bytes: &[u8]) {
    let lease = json!({ "kind": "lease", "id": "debug", "millis": 3_600_000 });
    let at = format!("{}/refs", path("a", bytes));
    assert_eq!(server.json("POST", &at, &lease).unwrap().status, 204);
}

/// The states of the blobs that are there, by their sizes.
fn states(server: &Server) -> BTreeSet<(u64, String)> {
    let answer = server.call("GET", "/v1/jobs/a/blobs", b"").unwrap();
    let list = answer.json();
    let blobs = list["blobs"].as_array().unwrap();
    let state = |b: &serde_json::Value| {
        let digest = b["digest"].as_str().unwrap();
        let size = digest.split_once('-').unwrap().1.parse().unwrap();
        (size, b["state"].as_str().unwrap().to_string())
    };
    blobs.iter().map(state).collect()
}

fn expected(of: &[(u64, &str)]) -> BTreeSet<(u64, String)> {
    of.iter().map(|(n, s)| (*n, (*s).to_string())).collect()
}

/// What nobody holds goes: it is readable until then.
async fn until_gone(server: &Server, bytes: &[u8]) {
    let gone = || async {
        match read(server, "a", bytes).unwrap().status {
            404 => true,
            status => {
                assert_eq!(status, 200);
                false
            }
        }
    };
    until_asked("what nobody holds goes", gone).await;
}

/// Times that run in a process are not the clock's.
#[tokio::test(flavor = "multi_thread")]
async fn a_jump_while_a_server_runs_changes_no_deadline() {
    for jump in [YEAR, -YEAR] {
        let (dir, root) = temp();
        let ha = root.join("ha").unwrap();
        set(dir.path(), 0);
        let server = setup(dir.path(), &ha).start();
        let (held, leased, staged, late) = (
            noise(1, 1000),
            noise(2, 2000),
            noise(3, 3000),
            noise(4, 4000),
        );
        let members: [(&[u8], &str); 2] = [(&held, "retained"), (&leased, "retained")];
        assert!(server.batch("a", 1).upload(&members));
        assert_eq!(register(&server, "a", &[&held]).unwrap().status, 204);
        lease(&server, &leased);
        let open = server.batch("a", 2);
        assert_eq!(open.begin(&[(&late, "retained")]).unwrap().status, 201);
        let began = Instant::now();
        assert!(server.batch("a", 3).upload(&[(&staged, "retained")]));
        set(dir.path(), jump);
        // The session that was open goes on.
        assert_eq!(open.send(&late).unwrap().status, 200, "{jump}");
        until_gone(&server, &staged).await;
        not_before(began, INTERVAL, &format!("{jump}: it goes"));
        assert_eq!(open.commit().unwrap().status, 200, "{jump}");
        let want = expected(&[(1000, "referenced"), (2000, "referenced"), (4000, "staged")]);
        assert_eq!(states(&server), want, "{jump}");
        let found = lying(&local_stores(), &ha, &server.data).await;
        let acked = BTreeSet::from([key("a", &held), key("a", &leased)]);
        assert_eq!(found.violations(&acked), [], "{jump}");
    }
}

/// A server is killed, and the next one's clock is a year ahead, or behind: durable times only get longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_jump_between_two_servers_makes_no_time_shorter() {
    for jump in [YEAR, -YEAR] {
        let (dir, root) = temp();
        let ha = root.join("ha").unwrap();
        let stores = local_stores();
        set(dir.path(), 0);
        let server = setup(dir.path(), &ha).start();
        let (held, leased, staged) = (noise(1, 1000), noise(2, 2000), noise(3, 3000));
        let members: [(&[u8], &str); 2] = [(&held, "retained"), (&leased, "retained")];
        assert!(server.batch("a", 1).upload(&members));
        assert_eq!(register(&server, "a", &[&held]).unwrap().status, 204);
        lease(&server, &leased);
        let batch = server.batch("a", 2);
        assert!(batch.upload(&[(&staged, "retained")]));
        let answered = batch.commit().unwrap().json();
        // An object that an upload left behind: its age is the HA store's business.
        let stray = ha
            .join(&format!(
                "default/jobs/z/retained/{}.1-00000000000000ff",
                forkpoint::blob::Digest::of(b"x")
            ))
            .unwrap();
        let put = Instant::now();
        stores.put(&stray, "x".into(), true).await.unwrap();
        let stray_is_there = || async { stores.find(&stray).await.unwrap().is_some() };
        server.kill();

        set(dir.path(), jump);
        let restarted = Instant::now();
        let server = setup(dir.path(), &ha).start();
        let acked = BTreeSet::from([key("a", &held), key("a", &leased)]);
        assert_eq!(
            server.batch("a", 2).commit().unwrap().json(),
            answered,
            "{jump}"
        );
        let gone = || async { !stray_is_there().await };
        until_asked("the object that nobody names goes", gone).await;
        not_before(put, INTERVAL, &format!("{jump}: it is taken for old"));
        if jump > 0 {
            until_gone(&server, &staged).await;
            not_before(restarted, INTERVAL, &format!("{jump}: it goes"));
        }
        // Longer than every interval: the lease has most of its hour left.
        tokio::time::sleep(INTERVAL + Duration::from_secs(2)).await;
        let mut want = expected(&[(1000, "referenced"), (2000, "referenced")]);
        if jump < 0 {
            // Its deadline lies ahead by that clock.
            want.extend(expected(&[(3000, "staged")]));
        }
        assert_eq!(states(&server), want, "{jump}");
        assert!(is_readable(&server, "a", &held) && is_readable(&server, "a", &leased));
        let found = lying(&stores, &ha, &server.data).await;
        assert_eq!(found.violations(&acked), [], "{jump}");
        server.kill();
        // And it jumps back.
        set(dir.path(), 0);
        let server = setup(dir.path(), &ha).start();
        tokio::time::sleep(INTERVAL + Duration::from_secs(1)).await;
        assert!(is_readable(&server, "a", &held) && is_readable(&server, "a", &leased));
        let found = lying(&stores, &ha, &server.data).await;
        assert_eq!(found.violations(&acked), [], "{jump}");
    }
}
