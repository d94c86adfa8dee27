//! Peers that are slow, silent, or go away in the middle: everybody else goes on.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use forkpoint::blob::Digest;
use serde_json::json;

use super::harness::*;
use super::support::temp;

fn setup(dir: &std::path::Path, root: &forkpoint::store::Location) -> Setup {
    Setup::new(&dir.join("data"), &root.join("ha").unwrap())
}

/// Asks for a blob and takes nothing of the answer.
fn stall(server: &Server, job: &str, bytes: &[u8]) -> TcpStream {
    let mut stream = connect(&server.url).unwrap();
    let head = format!(
        "GET {} HTTP/1.1\r\nhost: localhost\r\n\r\n",
        path(job, bytes)
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_stalled_readers_hold_up_nobody_and_are_cut() {
    let (dir, root) = temp();
    let server = setup(dir.path(), &root)
        .with(&["--idle-timeout", "15s", "--max-transfers", "4"])
        .start();
    let large = noise(1, 24 << 20);
    let batch = |session| Batch {
        server: &server,
        job: "a",
        session,
    };
    assert!(batch(1).upload(&[(&large, "retained")]));
    assert_eq!(register(&server, "a", &[&large]).unwrap().status, 204);
    let stalled: Vec<TcpStream> = (0..50).map(|_| stall(&server, "a", &large)).collect();
    // And some that only connect, or say half a sentence, or send half a body.
    let silent: Vec<TcpStream> = (0..20).map(|_| connect(&server.url).unwrap()).collect();
    let mut halves: Vec<TcpStream> = (0..20).map(|_| connect(&server.url).unwrap()).collect();
    for half in &mut halves {
        half.write_all(b"GET /v1/jobs HTTP/1.1\r\nhost: loc")
            .unwrap();
    }
    let open = batch(2);
    let unsent = noise(2, 1_000_000);
    assert_eq!(open.begin(&[(&unsent, "retained")]).unwrap().status, 201);
    let mut sender = connect(&server.url).unwrap();
    let at = format!(
        "/v1/jobs/a/uploads/0000000000000002/blobs/{}",
        Digest::of(&unsent)
    );
    let head = format!("PUT {at} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n");
    sender.write_all(head.as_bytes()).unwrap();
    sender.write_all(&unsent[..400_000]).unwrap();
    let all_read = || async { server.metric("forkpoint_blob_downloads_total") >= 50 };
    until_asked("all fifty are being served", all_read).await;

    for n in 101..111 {
        let bytes = noise(n, 300_000);
        assert!(batch(n).upload(&[(&bytes, "retained")]));
        assert!(is_readable(&server, "a", &bytes));
    }
    // A healthy reader of the very same blob.
    assert!(is_readable(&server, "a", &large));
    assert_eq!(
        server.metric("forkpoint_blob_stalled_total"),
        0,
        "others had to wait until somebody was cut"
    );

    // In the end they are cut: the fifty, and the one that sends nothing more.
    let cut = || async { server.metric("forkpoint_blob_stalled_total") >= 51 };
    until_asked("stalled peers are cut", cut).await;
    for mut stream in stalled {
        let mut got = Vec::new();
        // What came before it was cut is right.
        let _ = stream.read_to_end(&mut got);
        let end = got.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
        assert!(got.len() - end < large.len());
        assert!(large.starts_with(&got[end..]));
    }
    let answer = read_answer(&mut sender, false).unwrap();
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.json()["bytes_moved"].as_u64().unwrap() <= 400_000);
    for mut stream in silent.into_iter().chain(halves) {
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got);
        assert!(!got.starts_with(b"HTTP/1.1 2"), "{got:?}");
    }
    // Pins went with the readers, and the session goes on where the sender left it.
    let unpinned = || async { server.metric("forkpoint_blob_pinned") == 0 };
    until_asked("no reader is left", unpinned).await;
    assert!(open.upload(&[(&unsent, "retained")]));
    assert!(is_readable(&server, "a", &unsent));
}

#[tokio::test(flavor = "multi_thread")]
async fn senders_that_go_away_leave_nothing_half_there() {
    let (dir, root) = temp();
    let server = setup(dir.path(), &root).start();
    let bytes = noise(1, 2_000_000);
    let batch = server.batch("a", 1);
    assert_eq!(batch.begin(&[(&bytes, "retained")]).unwrap().status, 201);
    let at = format!(
        "/v1/jobs/a/uploads/0000000000000001/blobs/{}",
        Digest::of(&bytes)
    );
    for sent in [0, 1, 65_536, 1_999_999] {
        let mut stream = connect(&server.url).unwrap();
        let head =
            format!("PUT {at} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2000000\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&bytes[..sent]).unwrap();
        drop(stream);
    }
    let tmp = server.data.join("tmp");
    let gone = || async { std::fs::read_dir(&tmp).unwrap().count() == 0 };
    until_asked("no temporary file is left", gone).await;
    let incomplete = batch.commit().unwrap();
    assert_eq!(
        (incomplete.status, incomplete.code().as_str()),
        (409, "incomplete")
    );
    assert_eq!(
        incomplete.json()["missing"][0],
        Digest::of(&bytes).to_string()
    );
    assert_eq!(read(&server, "a", &bytes).unwrap().status, 404);
    let given_back = || async { server.metric("forkpoint_blob_local_reserved_bytes") == 0 };
    until_asked("reservations are given back", given_back).await;
    // Other bytes than promised, more, and fewer.
    let mut other = bytes.clone();
    other[1_000_000] ^= 1;
    let differs = server.call("PUT", &at, &other).unwrap();
    assert_eq!(
        (differs.status, differs.code().as_str()),
        (422, "digest-differs")
    );
    let short = server.call("PUT", &at, &bytes[..1000]).unwrap();
    assert_eq!(short.code(), "digest-differs");
    let long = [&bytes[..], b"x"].concat();
    let chunked = {
        let mut stream = connect(&server.url).unwrap();
        let head = format!(
            "PUT {at} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        let _ = stream.write_all(head.as_bytes());
        let _ = write!(stream, "{:x}\r\n", long.len());
        let _ = stream.write_all(&long);
        let _ = stream.write_all(b"\r\n0\r\n\r\n");
        read_answer(&mut stream, false).unwrap()
    };
    assert_eq!(chunked.status, 400, "{}", chunked.text());
    assert!(batch.upload(&[(&bytes, "retained")]));
    assert!(is_readable(&server, "a", &bytes));
}

/// Batches, references and events as a client that repeats everything sees them.
#[tokio::test(flavor = "multi_thread")]
async fn every_call_can_be_repeated() {
    let (dir, root) = temp();
    let times = ["--retention-interval", "3s", "--sweep-period", "100ms"];
    let server = setup(dir.path(), &root).with(&times).start();
    let message = noise(1, 10_000);
    let batch = server.batch("a", 1);
    for _ in 0..2 {
        assert!(batch.upload(&[(&message, "recreatable")]));
    }
    let at = path("a", &message);
    let post = |rest: &str, body: &serde_json::Value| {
        server
            .json("POST", &format!("{at}{rest}"), body)
            .unwrap()
            .status
    };
    let receivers = json!({ "kind": "receivers", "receivers": ["tm-1", "tm-2"] });
    let lease = json!({ "kind": "lease", "id": "cli", "millis": 60_000 });
    for _ in 0..2 {
        assert_eq!(post("/refs", &receivers), 204);
        assert_eq!(post("/refs", &lease), 204);
        assert_eq!(post("/refs/cli/renew", &json!({ "millis": 60_000 })), 204);
    }
    let holders = || {
        let why = server
            .call("GET", &format!("{at}/why"), b"")
            .unwrap()
            .json();
        why["blob"]["holders"].as_array().unwrap().len()
    };
    assert_eq!(holders(), 3);
    for _ in 0..2 {
        assert_eq!(post("/acks/tm-1", &json!({})), 204);
        assert_eq!(post("/acks/stranger", &json!({})), 204);
    }
    assert_eq!(holders(), 2);
    std::thread::sleep(Duration::from_secs(5));
    assert!(is_readable(&server, "a", &message), "held, and gone");
    for _ in 0..2 {
        assert_eq!(post("/acks/tm-2", &json!({})), 204);
        assert_eq!(
            server
                .call("DELETE", &format!("{at}/refs/cli"), b"")
                .unwrap()
                .status,
            204
        );
    }
    let gone = || async { read(&server, "a", &message).unwrap().status == 404 };
    until_asked("the last holder went", gone).await;
    assert_eq!(post("/acks/tm-2", &json!({})), 204);
    assert_eq!(post("/refs/cli/renew", &json!({ "millis": 1 })), 404);
    // Twenty at once, one content: one object.
    let bytes = noise(2, 200_000);
    std::thread::scope(|scope| {
        for n in 0..20 {
            let (server, bytes) = (&server, &bytes);
            scope.spawn(move || {
                let batch = Batch {
                    server,
                    job: "b",
                    session: 100 + n,
                };
                assert!(batch.upload(&[(bytes, "retained")]));
            });
        }
    });
    assert_eq!(register(&server, "b", &[&bytes]).unwrap().status, 204);
    let stores = super::support::local_stores();
    let ha = root.join("ha").unwrap();
    let one = || async { lying(&stores, &ha, &server.data).await.copies.objects.len() == 1 };
    until_asked("one object for twenty uploads", one).await;
    for event in ["failed", "suspended", "failed"] {
        for _ in 0..2 {
            let answer = server
                .json("POST", "/v1/jobs/b/events", &json!({ "event": event }))
                .unwrap();
            assert_eq!(answer.status, 204, "{}", answer.text());
        }
        assert!(
            is_readable(&server, "b", &bytes),
            "retained through {event}"
        );
    }
    for _ in 0..2 {
        assert_eq!(finish(&server, "b").unwrap().status, 204);
    }
    assert_eq!(read(&server, "b", &bytes).unwrap().code(), "job-over");
    assert_eq!(register(&server, "b", &[]).unwrap().code(), "job-over");
    let again = server.batch("b", 999);
    assert_eq!(
        again.begin(&[(&bytes, "retained")]).unwrap().code(),
        "job-over"
    );
    // The blob without bytes is always there and never sent.
    let empty = server.batch("c", 1);
    let begun = empty.begin(&[(b"", "retained")]).unwrap().json();
    assert_eq!(begun["missing"], json!([]));
    assert_eq!(empty.commit().unwrap().status, 200);
    let answer = server.call("GET", &path("c", b""), b"").unwrap();
    assert_eq!((answer.status, answer.body.len()), (200, 0));
}
