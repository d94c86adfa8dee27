//! What a server gives to callers that ask for more than there is: memory, files, space, turns of the HA store and
//! of the disk.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forkpoint::blob::Digest;
use serde_json::json;

use super::fault::{Action, FaultServer, Gate, Kind, Rule};
use super::harness::*;
use super::outage::on_fault_server;
use super::support::temp;

/// Longer than any patience in here.
fn hangs() -> Action {
    Action::Wait(Gate::new())
}

/// Sends a request, and leaves the answer in the connection.
fn ask(server: &Server, method: &str, path: &str, body: &[u8]) -> TcpStream {
    let mut stream = connect(&server.url).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    stream
}

fn event(server: &Server, what: &str) -> TcpStream {
    let body = json!({ "event": what }).to_string();
    ask(server, "POST", "/v1/jobs/a/events", body.as_bytes())
}

/// What was answered within this time.
fn answered(stream: &mut TcpStream, within: Duration) -> Option<u16> {
    stream.set_read_timeout(Some(within)).unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).ok()?;
    std::str::from_utf8(&head[9..]).unwrap().parse().ok()
}

/// What the descriptors of the server's process stand for.
fn descriptors(server: &Server) -> Vec<PathBuf> {
    std::fs::read_dir(format!("/proc/{}/fd", server.id()))
        .unwrap()
        .filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok())
        .collect()
}

fn state(server: &Server) -> String {
    let jobs = server.call("GET", "/v1/jobs", b"").unwrap().json();
    jobs["jobs"][0]["state"].as_str().unwrap().to_string()
}

fn held(server: &Server, bytes: &[u8]) {
    assert!(server.batch("a", 1).upload(&[(bytes, "retained")]));
    assert_eq!(register(server, "a", &[bytes]).unwrap().status, 204);
}

/// Calls whose callers have gone are not done later, and those that wait are not more than they may be.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_wait_for_a_store_that_hangs_are_few_and_end_with_their_callers() {
    let fault = FaultServer::start().await;
    let (dir, _) = temp();
    let server = on_fault_server(&dir.path().join("data"), &fault)
        .but("--ha-patience", "10s")
        .but("--sweep-period", "60s")
        .start();
    let bytes = noise(1, 2000);
    held(&server, &bytes);

    let gate = Gate::new();
    fault.add(Rule::always(Action::Wait(gate.clone())));
    // It has the turn, and is given up after the patience.
    let mut first = event(&server, "suspended");
    gate.reached().await;
    let late: Vec<TcpStream> = (0..40).map(|_| event(&server, "failed")).collect();
    std::thread::sleep(Duration::from_millis(500));
    drop(late);
    std::thread::sleep(Duration::from_millis(300));
    fault.faults().clear_rules();
    assert_eq!(answered(&mut first, LONG), Some(503));
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(state(&server), "active", "a call was done after its caller");
    assert_eq!(server.metric("forkpoint_blob_commits_failed_total"), 1);

    // More than may wait: those are told at once.
    fault.add(Rule::always(hangs()));
    let mut waiting: Vec<TcpStream> = (0..300).map(|_| event(&server, "failed")).collect();
    let mut refused = 0;
    let mut look = || {
        waiting.retain_mut(|stream| match answered(stream, Duration::from_millis(1)) {
            Some(503) => {
                refused += 1;
                false
            }
            Some(other) => panic!("{other}"),
            None => true,
        });
        refused >= 20
    };
    until_here("those that are too many are told", &mut look);
    look();
    // 256 wait, and those that have the turn.
    assert!((20..=44).contains(&refused), "{refused}");
    drop(waiting);
    fault.faults().clear_rules();
    let goes_on = || async { register(&server, "a", &[&bytes]).unwrap().status == 204 };
    until_asked("it goes on", goes_on).await;
    assert!(is_readable(&server, "a", &bytes));
}

/// Uploads that wait for their turn at the store have no file open, and end with their senders.
#[tokio::test(flavor = "multi_thread")]
async fn uploads_that_wait_for_a_store_that_hangs_hold_no_file() {
    let fault = FaultServer::start().await;
    let (dir, _) = temp();
    let server = on_fault_server(&dir.path().join("data"), &fault)
        .but("--ha-patience", "15s")
        .but("--sweep-period", "60s")
        .start();
    let many: Vec<Vec<u8>> = (0..24).map(|n| noise(n, 3000)).collect();
    let members: Vec<(&[u8], &str)> = many.iter().map(|b| (&b[..], "retained")).collect();
    let batch = server.batch("a", 1);
    assert_eq!(batch.begin(&members).unwrap().status, 201);
    fault.add(Rule::on(Kind::Put, hangs()));
    let senders: Vec<TcpStream> = many
        .iter()
        .map(|bytes| {
            let at = format!(
                "/v1/jobs/a/uploads/0000000000000001/blobs/{}",
                Digest::of(bytes)
            );
            ask(&server, "PUT", &at, bytes)
        })
        .collect();
    let parts = || std::fs::read_dir(server.data.join("tmp")).unwrap().count();
    let all_came = || async { server.metric("forkpoint_blob_received_bytes_total") == 24 * 3000 };
    until_asked("all bytes have come", all_came).await;
    let data = server.data.canonicalize().unwrap();
    let open = || {
        let of_blobs = |at: &PathBuf| ["jobs", "tmp"].iter().any(|f| at.starts_with(data.join(f)));
        let open = descriptors(&server).into_iter();
        open.filter(of_blobs).count()
    };
    // Four are being written.
    until_here("four files are open at most, the others are parts", || {
        open() <= 4 && parts() == 20
    });
    drop(senders);
    let gone = || async { parts() == 0 };
    until_asked("what nobody waits for goes", gone).await;
    fault.faults().clear_rules();
    // The first four may come to their end, one way or the other; the batch is sent again.
    let sent = || async { batch.upload(&members) };
    until_asked("the batch arrives", sent).await;
    assert!(many.iter().all(|b| is_readable(&server, "a", b)));
}

/// All who wait for a blob are told when the one fetch for it fails.
#[tokio::test(flavor = "multi_thread")]
async fn readers_who_wait_for_one_fetch_share_its_failure() {
    let fault = FaultServer::start().await;
    let (dir, _) = temp();
    let server = on_fault_server(&dir.path().join("data"), &fault)
        .but("--ha-patience", "3s")
        .but("--sweep-period", "60s")
        .start();
    let bytes = noise(1, 200_000);
    held(&server, &bytes);
    let digest = Digest::of(&bytes);
    let file = server
        .data
        .join(format!("jobs/a/{:02x}/{digest}", digest.sha256[0]));
    std::fs::remove_file(&file).unwrap();
    fault.add(Rule::always(hangs()));
    let began = Instant::now();
    let mut readers: Vec<TcpStream> = (0..8)
        .map(|_| ask(&server, "GET", &path("a", &bytes), b""))
        .collect();
    for reader in &mut readers {
        assert_eq!(answered(reader, LONG), Some(503));
    }
    // Each with a patience of its own after the other would be 24 s.
    let took = began.elapsed();
    assert!(took < Duration::from_secs(24), "{took:?}");
    fault.faults().clear_rules();
    assert!(is_readable(&server, "a", &bytes));
    assert_eq!(server.metric("forkpoint_blob_damaged_ha_total"), 0);
}

/// A file that must be compared before its use is read once, however many ask, and whether they wait or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_comparison_before_the_first_use_is_one_for_all() {
    let (dir, root) = temp();
    let setup = Setup::new(&dir.path().join("data"), &root.join("ha").unwrap())
        .with(&["--on-exit", "keep"]);
    let bytes = noise(1, 64 << 20);
    let server = setup.start();
    held(&server, &bytes);
    assert_eq!(server.stop(), Some(0));
    let server = setup.start();
    let read = || {
        let io = std::fs::read_to_string(format!("/proc/{}/io", server.id())).unwrap();
        let line = io.lines().find_map(|l| l.strip_prefix("rchar: "));
        line.unwrap().parse::<u64>().unwrap()
    };
    let before = read();
    let range = |stream: &mut TcpStream| {
        let head = format!(
            "GET {} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nrange: bytes=5-9\r\n\r\n",
            path("a", &bytes)
        );
        stream.write_all(head.as_bytes()).unwrap();
    };
    // Some go away at once, others wait.
    let mut waiting = Vec::new();
    for n in 0..60 {
        let mut stream = connect(&server.url).unwrap();
        range(&mut stream);
        if n % 3 == 0 {
            waiting.push(stream);
        }
    }
    for stream in &mut waiting {
        let answer = read_answer(stream, false).unwrap();
        assert_eq!((answer.status, &answer.body[..]), (206, &bytes[5..10]));
    }
    let whole = bytes.len() as u64;
    let came = read() - before;
    assert!(
        came >= whole && came < 2 * whole,
        "{came} bytes were read of {whole}"
    );
}

/// What is refused leaves nothing in memory, and jobs and sessions are counted.
#[tokio::test(flavor = "multi_thread")]
async fn refused_calls_are_forgotten_and_jobs_and_sessions_are_limited() {
    let (dir, root) = temp();
    let server = Setup::new(&dir.path().join("data"), &root.join("ha").unwrap())
        .with(&["--max-jobs", "3", "--max-sessions", "4"])
        .with(&["--sweep-period", "60s", "--max-blob-size", "1MiB"])
        .start();
    let huge = format!("{}-2000000", "ab".repeat(32));
    for n in 0..20 {
        let job = format!("/v1/jobs/nobody-{n}");
        let failed = server.json(
            "POST",
            &format!("{job}/events"),
            &json!({ "event": "failed" }),
        );
        assert_eq!(failed.unwrap().status, 404);
        let empty = format!("{job}/blobs/{}/refs", Digest::of(b""));
        let lease = json!({ "kind": "lease", "id": "x", "millis": 1000 });
        assert_eq!(server.json("POST", &empty, &lease).unwrap().status, 204);
        let body = json!({ "session": format!("{n:016x}"),
            "members": [{ "digest": huge, "class": "retained" }] });
        let refused = server.json("POST", &format!("{job}/uploads"), &body);
        assert_eq!(refused.unwrap().status, 413);
    }
    let bytes = noise(1, 100);
    let member: [(&[u8], &str); 1] = [(&bytes, "recreatable")];
    for (n, job) in ["a", "b", "c"].iter().enumerate() {
        let begun = server.batch(job, n as u64).begin(&member).unwrap();
        assert_eq!(begun.status, 201, "{}", begun.text());
    }
    let fourth = server.batch("d", 3).begin(&member).unwrap();
    assert_eq!((fourth.status, fourth.code().as_str()), (429, "too-many"));
    assert!(fourth.text().contains("jobs"), "{}", fourth.text());
    assert_eq!(server.batch("a", 4).begin(&member).unwrap().status, 201);
    let fifth = server.batch("a", 5).begin(&member).unwrap();
    assert_eq!((fifth.status, fifth.code().as_str()), (429, "too-many"));
    // One that is open is not one more, and one that has ended is one less.
    assert_eq!(server.batch("a", 4).begin(&member).unwrap().status / 100, 2);
    assert!(server.batch("b", 1).upload(&member));
    assert_eq!(server.batch("a", 5).begin(&member).unwrap().status, 201);
    assert_eq!(server.metric("forkpoint_blob_jobs"), 3);
    assert_eq!(server.metric("forkpoint_blob_sessions"), 4);
}

/// Space is taken as bytes come: who announces much and sends little keeps nobody out, and evicts nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_sender_holds_no_more_space_than_it_has_sent_and_a_step() {
    let (dir, root) = temp();
    let server = Setup::new(&dir.path().join("data"), &root.join("ha").unwrap())
        .with(&["--max-bytes", "40MiB"])
        .start();
    let held_blob = noise(1, 4 << 20);
    held(&server, &held_blob);
    let slow = noise(2, 39 << 20);
    let open = server.batch("a", 2);
    assert_eq!(open.begin(&[(&slow, "retained")]).unwrap().status, 201);
    let at = format!(
        "/v1/jobs/a/uploads/0000000000000002/blobs/{}",
        Digest::of(&slow)
    );
    let mut sender = connect(&server.url).unwrap();
    let head = format!(
        "PUT {at} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        slow.len()
    );
    sender.write_all(head.as_bytes()).unwrap();
    sender.write_all(&slow[..1 << 20]).unwrap();
    let began = || async { server.metric("forkpoint_blob_received_bytes_total") >= 5 << 20 };
    until_asked("it has begun", began).await;
    assert_eq!(
        server.metric("forkpoint_blob_local_reserved_bytes"),
        8 << 20
    );
    let others = noise(3, 20 << 20);
    assert!(server.batch("b", 3).upload(&[(&others, "recreatable")]));
    assert_eq!(server.metric("forkpoint_blob_evictions_total"), 0);
    // Now it sends the rest: what has another copy makes room, and in the end there is not enough.
    let _ = sender.write_all(&slow[1 << 20..]);
    let refused = read_answer(&mut sender, false).unwrap();
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (507, "no-space"),
        "{}",
        refused.text()
    );
    assert_eq!(server.metric("forkpoint_blob_local_reserved_bytes"), 0);
    assert!(is_readable(&server, "b", &others) && is_readable(&server, "a", &held_blob));
    // What cannot fit whatever is given up is told before a byte is taken.
    let came = server.metric("forkpoint_blob_received_bytes_total");
    let never = server.batch("a", 4);
    let too_much = noise(4, 41 << 20);
    never.begin(&[(&too_much, "retained")]).unwrap();
    assert_eq!(never.send(&too_much).unwrap().code(), "no-space");
    assert_eq!(server.metric("forkpoint_blob_received_bytes_total"), came);
    // Alone it fits, in steps.
    assert_eq!(finish(&server, "b").unwrap().status, 204);
    assert!(open.upload(&[(&slow, "retained")]));
    assert!(is_readable(&server, "a", &slow) && is_readable(&server, "a", &held_blob));
}

/// No descriptor is left: that says nothing of the copies.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_descriptors_takes_no_copy_for_damaged() {
    let (dir, root) = temp();
    let mut setup = Setup::new(&dir.path().join("data"), &root.join("ha").unwrap());
    setup.open_files = Some(64);
    let server = setup.start();
    // There is one copy, and no other.
    let (message, jar) = (noise(1, 50_000), noise(2, 60_000));
    let members: [(&[u8], &str); 2] = [(&message, "recreatable"), (&jar, "retained")];
    assert!(server.batch("a", 1).upload(&members));
    assert_eq!(
        register(&server, "a", &[&message, &jar]).unwrap().status,
        204
    );
    // A connection that the server has accepted already.
    let mut probe = connect(&server.url).unwrap();
    let mut get = |bytes: &[u8]| {
        let head = format!(
            "GET {} HTTP/1.1\r\nhost: localhost\r\n\r\n",
            path("a", bytes)
        );
        probe.write_all(head.as_bytes()).unwrap();
        let mut got = Vec::new();
        let mut buffer = [0; 64 * 1024];
        loop {
            let n = probe.read(&mut buffer).unwrap();
            assert!(n > 0, "it was closed");
            got.extend_from_slice(&buffer[..n]);
            let Some(end) = got.windows(4).position(|w| w == b"\r\n\r\n") else {
                continue;
            };
            let head = String::from_utf8_lossy(&got[..end]).to_ascii_lowercase();
            let length = head
                .lines()
                .find_map(|l| l.strip_prefix("content-length: "));
            if got.len() >= end + 4 + length.unwrap().parse::<usize>().unwrap() {
                let status = head.split(' ').nth(1).unwrap();
                return (status.parse::<u16>().unwrap(), got[end + 4..].to_vec());
            }
        }
    };
    assert_eq!(get(&message), (200, message.clone()));
    let crowd: Vec<TcpStream> = (0..64).map(|_| connect(&server.url).unwrap()).collect();
    let taken = |n: u32| std::fs::symlink_metadata(format!("/proc/{}/fd/{n}", server.id())).is_ok();
    until_here("no descriptor is left", || (0..64).all(taken));
    for bytes in [&message, &jar, &message] {
        let (status, said) = get(bytes);
        assert_eq!(status, 503, "{}", String::from_utf8_lossy(&said));
    }
    drop(crowd);
    let again = || async { is_readable(&server, "a", &message) };
    until_asked("there are descriptors again", again).await;
    assert!(is_readable(&server, "a", &jar));
    assert_eq!(server.metric("forkpoint_blob_damaged_local_total"), 0);
    assert_eq!(server.metric("forkpoint_blob_quarantined"), 0);
}
