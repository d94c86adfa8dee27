//! What `forkpoint blob` makes of places, of names, of empty files and of waits: a real server, and the command as
//! people use it.

#![cfg(unix)]
// Helpers of tests fail by panicking, like the tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/serving.rs"]
mod serving;
#[path = "support/waits.rs"]
mod waits;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forkpoint::blob::Digest;
use serde_json::json;
use serving::{Serving, alone};
use waits::AT_MOST;

/// A place in a folder, as text.
fn at(dir: &tempfile::TempDir, name: &str) -> String {
    dir.path().join(name).to_str().unwrap().to_string()
}

#[test]
fn an_ha_store_in_the_local_directory_is_refused_by_whatever_names() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| at(&dir, name);
    std::fs::create_dir_all(at("real")).unwrap();
    std::os::unix::fs::symlink(at("real"), at("link")).unwrap();
    let url = format!("file://{}", at("data/ha"));
    for (data, ha) in [
        (at("data"), at("data/ha")),
        (at("ha/data"), at("ha")),
        (at("same"), at("same")),
        (at("data"), url),
        (at("link"), at("real/ha")),
        (at("real/data"), at("link")),
        ("data".to_string(), at("data/ha")),
        ("./x/../data".to_string(), "data/ha".to_string()),
        ("ha/deep".to_string(), "ha".to_string()),
    ] {
        for verb in [&["serve", "--bind", "127.0.0.1:0"][..], &["gc", "--apply"]] {
            let args = [verb, &["--data", &data, "--ha", &ha]].concat();
            let (code, said) = alone(dir.path(), &args);
            // Without a server ever, gc has nothing to take over.
            if verb[0] == "serve" {
                assert_eq!(code, 2, "{args:?}: {said}");
                assert!(said.contains("side by side"), "{said}");
            } else {
                assert_ne!(code, 0, "{args:?}: {said}");
            }
        }
    }
    // Nothing was made.
    let mut left: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["link", "real"]);
    assert_eq!(std::fs::read_dir(at("real")).unwrap().count(), 0);
    // A URL is no directory.
    for args in [
        ["serve", "--data", "file:///x", "--ha", "ha"],
        ["scrub", "--data", "s3://b/x", "--ha", "ha"],
    ] {
        let (code, said) = alone(dir.path(), &args);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("not a URL"), "{said}");
    }
    // Nor may a cache lie in the HA store that it reads.
    let serving = Serving::start(dir.path());
    std::fs::write(at("a.jar"), b"a jar").unwrap();
    let (_, put) = serving.json(&["put", "orders", &at("a.jar")]);
    let digest = put["blobs"][0]["digest"].as_str().unwrap().to_string();
    let (ha, cache) = (at("ha"), at("ha/cache"));
    let get = ["get", "orders", &digest, "-", "--ha", &ha, "--cache"];
    let (code, said) = serving.text(&[&get[..], &[&cache]].concat());
    assert_eq!(code, 2, "{said}");
    assert!(!Path::new(&cache).exists());
    let beside = at("cache");
    let (code, said) = serving.text(&[&get[..], &[&beside]].concat());
    assert_eq!((code, said.as_str()), (0, "a jar"));
}

#[test]
fn folders_that_went_while_a_server_runs_are_not_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| at(&dir, name);
    let serving = Serving::start(dir.path());
    for name in ["a.jar", "b.jar", "c.jar"] {
        std::fs::write(at(name), name).unwrap();
    }
    assert_eq!(
        serving
            .text(&["put", "orders", &at("a.jar"), "--register"])
            .0,
        0
    );
    // Uploads to a job that is known and to a new one, and what writes a manifest alone.
    std::fs::rename(at("ha"), at("away")).unwrap();
    for args in [
        &["put", "orders", &at("b.jar")][..],
        &["put", "fresh", &at("b.jar")],
        &["put", "fresh", &at("b.jar"), "--recreatable", "--register"],
        &["finish", "orders"],
    ] {
        let (code, said) = serving.text(args);
        assert_eq!(code, 1, "{args:?}: {said}");
        assert!(
            said.contains("the folder of the HA store is gone"),
            "{args:?}: {said}"
        );
        assert!(said.contains(&at("ha/default")), "{said}");
        assert!(said.contains("mount it or put it back"), "{said}");
        assert!(!Path::new(&at("ha")).exists(), "{args:?}");
    }
    std::fs::rename(at("away"), at("ha")).unwrap();
    assert_eq!(serving.text(&["put", "orders", &at("b.jar")]).0, 0);
    // The same for the local directory.
    std::fs::rename(at("data"), at("away")).unwrap();
    let (code, said) = serving.text(&["put", "orders", &at("c.jar")]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("the local directory is gone"), "{said}");
    assert!(
        said.contains(&at("data")) && said.contains("put it back"),
        "{said}"
    );
    assert!(!Path::new(&at("data")).exists());
    std::fs::rename(at("away"), at("data")).unwrap();
    assert_eq!(serving.text(&["put", "orders", &at("c.jar")]).0, 0);
    assert_eq!(serving.text(&["finish", "orders"]).0, 0);
}

#[test]
fn empty_files_are_shown_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| at(&dir, name);
    let serving = Serving::start(dir.path());
    std::fs::write(at("empty.conf"), b"").unwrap();
    std::fs::write(at("a.jar"), b"a jar").unwrap();
    let empty = Digest::of(b"").to_string();
    let (code, put) = serving.text(&["put", "orders", &at("empty.conf"), &at("a.jar")]);
    assert_eq!(code, 0, "{put}");
    assert!(
        put.contains(&format!("{empty}  empty  empty.conf")),
        "{put}"
    );
    assert!(
        put.contains("they stay until") && put.contains("not listed"),
        "{put}"
    );
    let (_, put) = serving.text(&["put", "orders", &at("empty.conf")]);
    assert!(!put.contains("they stay until"), "{put}");
    let (_, put) = serving.json(&["put", "orders", &at("empty.conf")]);
    assert_eq!(put["blobs"][0]["bytes"], 0);
    let (_, ls) = serving.text(&["ls", "orders"]);
    assert!(ls.contains("1 blob\n"), "{ls}");
    let (code, got) = serving.text(&["get", "orders", &empty, &at("got")]);
    assert_eq!(code, 0, "{got}");
    assert!(got.contains("empty, nothing was fetched"), "{got}");
    assert_eq!(std::fs::read(at("got")).unwrap(), b"");
    assert!(
        serving
            .run(&["get", "orders", &empty, "-"])
            .stdout
            .is_empty()
    );
    for named in [&empty[..], &empty[..8]] {
        let (code, why) = serving.text(&["why", "orders", named]);
        assert_eq!(code, 3, "{why}");
        assert!(why.contains("stays: the empty blob"), "{why}");
        let (code, why) = serving.json(&["why", "orders", named]);
        assert_eq!((code, &why["why"]["reason"]), (3, &json!("always-there")));
        let (code, refs) = serving.json(&["refs", "orders", named]);
        assert_eq!((code, &refs["count"]), (0, &json!(0)));
    }
    let (code, refs) = serving.text(&["refs", "orders", &empty, "--lease", "me"]);
    assert_eq!(code, 0, "{refs}");
    assert!(refs.contains("0 references"), "{refs}");
    // No blob without bytes has another digest.
    let (code, said) = serving.text(&["get", "orders", &format!("{}-0", "0".repeat(64)), "-"]);
    assert_eq!(code, 2, "{said}");
}

/// Two texts whose SHA-256 begin with the same 8 digits.
fn twins() -> (String, String) {
    let mut seen: HashMap<[u8; 4], u32> = HashMap::new();
    for n in 0u32.. {
        let digest = Digest::of(n.to_string().as_bytes()).sha256;
        let first = [digest[0], digest[1], digest[2], digest[3]];
        if let Some(before) = seen.insert(first, n) {
            return (before.to_string(), n.to_string());
        }
    }
    unreachable!("there are more texts than beginnings")
}

#[test]
fn the_beginning_of_a_digest_names_a_blob_for_reading() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| at(&dir, name);
    let serving = Serving::start(dir.path());
    let (one, two) = twins();
    for (name, content) in [
        ("one.jar", one.as_str()),
        ("two.jar", &two),
        ("three.jar", "x"),
    ] {
        std::fs::write(at(name), content).unwrap();
    }
    let put = [
        "put",
        "orders",
        &at("one.jar"),
        &at("two.jar"),
        &at("three.jar"),
    ];
    assert_eq!(serving.text(&put).0, 0);
    let (of_one, of_two) = (Digest::of(one.as_bytes()), Digest::of(two.as_bytes()));
    let of_three = Digest::of(b"x").hex();
    for length in [8, 20, 64] {
        let part = &of_three[..length];
        assert_eq!(serving.run(&["get", "orders", part, "-"]).stdout, b"x");
        assert_eq!(serving.text(&["why", "orders", part]).0, 3);
        let (code, refs) = serving.json(&["refs", "orders", part]);
        assert_eq!((code, &refs["digest"]), (0, &json!(Digest::of(b"x"))));
    }
    // More digits tell the twins apart.
    let hex = of_two.hex();
    let told = (9..64)
        .find(|n| !of_one.hex().starts_with(&hex[..*n]))
        .unwrap();
    let got = serving.run(&["get", "orders", &hex[..told], "-"]);
    assert_eq!(got.stdout, two.as_bytes());
    for verb in [
        &["why", "orders"][..],
        &["refs", "orders"],
        &["get", "orders"],
    ] {
        let more: &[&str] = if verb[0] == "get" { &["-"] } else { &[] };
        let ask = |named: &str| serving.text(&[verb, &[named], more].concat());
        let (code, said) = ask(&hex[..8]);
        assert_eq!(code, 2, "{said}");
        for part in [of_one.to_string(), of_two.to_string()] {
            assert!(said.contains(&part), "{said}");
        }
        assert!(
            said.contains("one.jar") && said.contains("more digits"),
            "{said}"
        );
        assert_eq!(ask(&of_three[..7]).0, 2);
        let (code, said) = ask("00000000");
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("blob ls orders"), "{said}");
    }
    // What changes something names it whole.
    for act in ["--lease", "--release", "--ack"] {
        let (code, said) = serving.text(&["refs", "orders", &of_three[..8], act, "me"]);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("whole digest"), "{said}");
    }
    assert_eq!(serving.text(&["finish", "orders"]).0, 0);
    let (code, said) = serving.text(&["get", "orders", &of_three[..8], "-"]);
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("over (finished)"), "{said}");
}

/// Damages the newest manifest of a job, so that the next server does not serve it.
fn refuse_job(ha: &Path, job: &str) {
    let folder = ha.join("default/jobs").join(job).join("manifest");
    let newest = std::fs::read_dir(folder).unwrap();
    let newest = newest.map(|e| e.unwrap().path()).max().unwrap();
    std::fs::write(newest, b"{ this is no manifest").unwrap();
}

#[test]
fn a_client_says_what_it_waits_for_unless_it_must_be_quiet() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| at(&dir, name);
    std::fs::write(at("a.jar"), b"a jar").unwrap();
    let serving = Serving::start(dir.path());
    assert_eq!(
        serving
            .text(&["put", "orders", &at("a.jar"), "--register"])
            .0,
        0
    );
    let digest = Digest::of(b"a jar").to_string();
    drop(serving);
    refuse_job(&dir.path().join("ha"), "orders");
    let serving = Serving::start(dir.path());
    let begin = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_forkpoint"))
            .arg("blob")
            .args(args)
            .env("FORKPOINT_BLOB_SERVER", &serving.url)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut quiet = begin(&["ls", "orders", "--quiet"]);
    let out = at("out");
    for args in [
        &["ls", "orders"][..],
        &["get", "orders", &digest, &out],
        &["get", "orders", &digest, &out, "--range", "0-1"],
        &["put", "orders", &at("a.jar")],
    ] {
        let begun = Instant::now();
        let mut child = begin(args);
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        // Before it asks again, not after.
        assert!(begun.elapsed() < Duration::from_secs(30), "{args:?}");
        for part in [
            "waiting: ",
            "job orders is not served",
            "asked again in 30 s",
            "given up in 150 s at the latest",
        ] {
            assert!(line.contains(part), "{args:?}: {line}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(quiet.try_wait().unwrap().is_none(), "it waits");
    quiet.kill().unwrap();
    let quiet = quiet.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&quiet.stderr), "");
}

/// The same of a server that takes the call and says nothing, and of one that has no time; the exit code is that of the
/// failure.
#[test]
fn a_wait_ends_with_the_exit_code_of_the_failure() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // The first answer comes when the wait for it has been told, the others at once.
    let (told, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for (n, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            if n == 0 {
                let _ = heard.recv_timeout(AT_MOST);
            }
            let problem = json!({ "type": "about:blank", "title": "busy", "status": 503,
                "detail": "a disk is slow", "code": "busy", "retry_after": 2 });
            let body = problem.to_string();
            let head = format!(
                "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\n\
                 content-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all((head + &body).as_bytes());
        }
    });
    let ask = |more: &[&str]| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_forkpoint"))
            .args(["blob", "jobs", "--server", &url])
            .args(more)
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        for line in BufReader::new(child.stderr.take().unwrap()).lines() {
            let line = line.unwrap();
            if line.contains("no answer for") {
                told.send(()).unwrap();
            }
            said.push_str(&(line + "\n"));
        }
        let output = child.wait_with_output().unwrap();
        (output.status.code(), output.stdout, said)
    };
    let (code, out, said) = ask(&["--format", "json"]);
    assert_eq!((code, &out[..]), (Some(1), &b""[..]), "{said}");
    assert!(
        said.contains("waiting: no answer for 5 s to GET /v1/jobs"),
        "{said}"
    );
    assert!(
        said.contains("waiting: a disk is slow; asked again in 2 s"),
        "{said}"
    );
    assert!(said.contains("error: a disk is slow"), "{said}");
    let (code, _, said) = ask(&["--quiet"]);
    assert_eq!(code, Some(1));
    assert!(
        !said.contains("waiting") && said.contains("error: a disk is slow"),
        "{said}"
    );
}

/// An HA store that says nothing is waited for aloud, and no longer than the server is there to be asked.
#[test]
fn a_silent_ha_store_is_named_while_it_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let serving = Serving::start(dir.path());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let digest = Digest::of(b"a jar").to_string();
    let begin = |more: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_forkpoint"))
            .args(["blob", "get", "orders", &digest, &at(&dir, "out")])
            .args(["--ha", "s3://bucket/blobs", "--s3-endpoint", &endpoint])
            .args(more)
            .env("AWS_ACCESS_KEY_ID", "x")
            .env("AWS_SECRET_ACCESS_KEY", "x")
            .env("FORKPOINT_BLOB_SERVER", &serving.url)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let (mut loud, mut quiet) = (begin(&[]), begin(&["--quiet"]));
    let mut lines = BufReader::new(loud.stderr.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    for part in [
        "waiting: no answer for 5 s",
        "the HA store s3://bucket/blobs/default",
        "given up in 55 s",
    ] {
        assert!(line.contains(part), "{line}");
    }
    loud.kill().unwrap();
    loud.wait().unwrap();
    assert!(quiet.try_wait().unwrap().is_none(), "it waits");
    quiet.kill().unwrap();
    let quiet = quiet.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&quiet.stderr), "");
}

/// Somebody else's folder is left as it is by every verb that would use it, a dry run included.
#[test]
fn a_folder_of_somebody_else_is_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| at(&dir, name);
    drop(Serving::start(dir.path()));
    for file in ["notes.txt", "tmp/report.txt", "jobs/2026/list"] {
        let root = dir.path().join("foreign");
        let file = root.join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, b"mine").unwrap();
        let (foreign, ha, new) = (at("foreign"), at("ha"), at("new-ha"));
        for verb in [
            &[
                "serve",
                "--bind",
                "127.0.0.1:0",
                "--data",
                &foreign,
                "--ha",
                &new,
            ][..],
            &["gc", "--data", &foreign, "--ha", &ha],
            &["gc", "--data", &foreign, "--ha", &ha, "--apply"],
            &["scrub", "--data", &foreign, "--ha", &ha],
            &["scrub", "--data", &foreign, "--ha", &ha, "--apply"],
        ] {
            let (code, said) = alone(dir.path(), verb);
            assert_eq!(code, 3, "{verb:?}: {said}");
            assert!(said.contains("somebody else's"), "{said}");
        }
        let mut found = Vec::new();
        let mut pending = vec![root.clone()];
        while let Some(folder) = pending.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => pending.push(path),
                    false => found.push(path),
                }
            }
        }
        assert_eq!(found, [file]);
        assert!(!Path::new(&at("new-ha")).exists());
        std::fs::remove_dir_all(root).unwrap();
    }
}

/// A start in an empty mount point would begin a new cluster and forget the old one.
#[test]
fn a_server_whose_ha_folder_is_away_does_not_begin_anew() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| at(&dir, name);
    let serving = Serving::start(dir.path());
    std::fs::write(at("a.jar"), b"a jar").unwrap();
    let put = ["put", "orders", &at("a.jar"), "--register"];
    assert_eq!(serving.text(&put).0, 0);
    drop(serving);
    std::fs::rename(at("ha"), at("away")).unwrap();
    let start = [
        "serve",
        "--bind",
        "127.0.0.1:0",
        "--data",
        &at("data"),
        "--ha",
        &at("ha"),
    ];
    for empty in [false, true] {
        if empty {
            std::fs::create_dir(at("ha")).unwrap();
        }
        let (code, said) = alone(dir.path(), &start);
        assert_eq!(code, 3, "{said}");
        for part in ["is not there", "format.json", "mount it", &at("data/HA")] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_eq!(Path::new(&at("ha")).exists(), empty);
    }
    assert_eq!(std::fs::read_dir(at("ha")).unwrap().count(), 0);
    // Another local directory knows nothing of it, and another place is another store.
    drop(Serving::start_at(
        &dir.path().join("other"),
        &dir.path().join("ha"),
    ));
    drop(Serving::start_at(
        &dir.path().join("data"),
        &dir.path().join("ha-2"),
    ));
    std::fs::remove_dir_all(at("ha")).unwrap();
    std::fs::rename(at("away"), at("ha")).unwrap();
    let serving = Serving::start(dir.path());
    let (code, said) = serving.text(&["ls", "orders"]);
    assert!(code == 0 && said.contains("a.jar"), "{said}");
    drop(serving);
    // Whoever wants it begins anew.
    std::fs::remove_dir_all(at("ha")).unwrap();
    std::fs::remove_file(at("data/HA")).unwrap();
    drop(Serving::start(dir.path()));
}

/// The help of each verb that talks to a server names what is shared under a heading of its own, and offers no picture.
#[test]
fn help_keeps_what_is_shared_apart() {
    let dir = tempfile::tempdir().unwrap();
    for verb in ["put", "get", "ls", "jobs", "refs", "why", "finish", "log"] {
        let (code, help) = alone(dir.path(), &[verb, "--help"]);
        assert_eq!(code, 0, "{help}");
        let (own, shared) = help.split_once("The server, and who asks:").unwrap();
        assert!(!own.contains("--trusted"), "{help}");
        let (server, every) = shared.split_once("Options of every command:").unwrap();
        assert!(
            server.contains("--token-file") && server.contains(":7878"),
            "{help}"
        );
        assert!(
            every.contains("--quiet") && !every.contains("svg,"),
            "{help}"
        );
        assert!(!help.contains("6124"), "{help}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_forkpoint"))
        .args(["lineage", "--help"])
        .output()
        .unwrap();
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("--format svg")
    );
}
