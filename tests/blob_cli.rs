//! The verbs of `forkpoint blob` that talk to a server, as scripts and people meet them.

#![cfg(unix)]
// Helpers of tests fail by panicking, like the tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/serving.rs"]
mod serving;
#[path = "support/waits.rs"]
mod waits;

use std::path::Path;
use std::process::Command;

use serde_json::json;
use serving::Serving;
use waits::until_here;

/// Runs a verb that needs no server.
fn alone(args: &[&str]) -> (i32, String) {
    serving::alone(Path::new("."), args)
}

#[test]
fn a_job_from_its_jars_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let serving = Serving::start(dir.path());
    let jar: Vec<u8> = (0..300_000u32).flat_map(|n| n.to_le_bytes()).collect();
    std::fs::write(at("one.jar"), &jar).unwrap();
    std::fs::write(at("two.jar"), b"two").unwrap();

    let (code, put) = serving.json(&["put", "orders", &at("one.jar"), &at("two.jar")]);
    assert_eq!(
        (code, &put["version"], &put["registered"]),
        (0, &json!(1), &json!(false))
    );
    assert_eq!(put["blobs"][0]["name"], "one.jar");
    assert_eq!(put["blobs"][0]["sent"], true);
    let digest = put["blobs"][0]["digest"].as_str().unwrap().to_string();
    assert!(digest.ends_with("-1200000"));
    let (code, why) = serving.json(&["why", "orders", &digest]);
    assert_eq!(
        (code, &why["goes"], &why["why"]["reason"]),
        (3, &json!(false), &json!("kept-until"))
    );

    let (code, put) = serving.text(&[
        "put",
        "orders",
        &at("one.jar"),
        &at("two.jar"),
        "--register",
    ]);
    assert_eq!(code, 0);
    assert!(
        put.contains("was there") && put.contains("job orders is registered"),
        "{put}"
    );
    let (_, why) = serving.json(&["why", "orders", &digest]);
    assert_eq!(why["blob"]["state"], "referenced");
    let (code, ls) = serving.json(&["ls", "orders"]);
    assert_eq!(
        (code, &ls["state"], ls["blobs"].as_array().unwrap().len()),
        (0, &json!("active"), 2)
    );
    let (_, jobs) = serving.json(&["jobs"]);
    assert_eq!(jobs["jobs"][0]["bytes"], 1_200_003);
    let (code, text) = serving.text(&["jobs"]);
    assert!(
        code == 0 && text.contains("orders") && text.contains("active"),
        "{text}"
    );

    // Into a file, to stdout, through a cache, by range.
    let (code, got) = serving.json(&["get", "orders", &digest, &at("got")]);
    assert_eq!(
        (code, &got["verified"], &got["sources"][0]["fetched"]),
        (0, &json!(true), &json!(1))
    );
    assert_eq!(std::fs::read(at("got")).unwrap(), jar);
    let (code, again) = serving.text(&["get", "orders", &digest, &at("got")]);
    assert!(code == 3 && again.contains("--overwrite"), "{code} {again}");
    assert_eq!(
        serving
            .text(&["get", "orders", &digest, &at("got"), "--overwrite"])
            .0,
        0
    );
    assert_eq!(serving.run(&["get", "orders", &digest, "-"]).stdout, jar);
    for _ in 0..2 {
        let cached = serving.run(&["get", "orders", &digest, "-", "--cache", &at("cache")]);
        assert!(cached.status.success() && cached.stdout == jar);
    }
    // A cache in the HA store would be taken for a part of it.
    for inside in ["ha/default/cache", "ha/default", "ha/cache", "ha"] {
        let (code, said) = serving.text(&["get", "orders", &digest, "-", "--cache", &at(inside)]);
        assert!(
            code == 2 && said.contains("lies in an HA store"),
            "{inside}: {code} {said}"
        );
    }
    assert!(!Path::new(&at("ha/cache")).exists());
    let ha = ["--ha", &at("ha"), "--cluster", "default"];
    let (code, from_ha) =
        serving.json(&[&["get", "orders", &digest, &at("from-ha")], &ha[..]].concat());
    assert_eq!((code, &from_ha["sources"][0]["fetched"]), (0, &json!(1)));
    let part = serving.run(&["get", "orders", &digest, "-", "--range", "1000-1999"]);
    assert_eq!(part.stdout, jar[1000..2000]);
    let part = serving.run(&["get", "orders", &digest, "-", "--range", "-7"]);
    assert_eq!(part.stdout, jar[jar.len() - 7..]);

    // References.
    let (_, refs) = serving.json(&["refs", "orders", &digest, "--lease", "debug", "--for", "1h"]);
    assert_eq!(refs["count"], 2);
    let (code, text) = serving.text(&["refs", "orders", &digest]);
    assert!(
        code == 0 && text.contains("the job") && text.contains("lease debug, which ends in 59 min"),
        "{text}"
    );
    let (_, refs) = serving.json(&["refs", "orders", &digest, "--release", "debug"]);
    assert_eq!(refs["count"], 1);

    // Logs.
    std::fs::write(at("tm.log"), "line one\nline two\n").unwrap();
    let (code, log) = serving.json(&["log", "put", "orders", "tm-1", &at("tm.log")]);
    assert_eq!((code, &log["index"]["parts"][0]["end"]), (0, &json!(18)));
    let (code, text) = serving.text(&["log", "get", "orders", "tm-1", "tm.log", "--range", "-9"]);
    assert_eq!((code, text.as_str()), (0, "line two\n"));
    let (_, text) = serving.text(&["log", "ls", "orders"]);
    assert!(text.contains("tm-1/tm.log"), "{text}");
    assert_eq!(
        serving
            .text(&["log", "get", "orders", "tm-1", "none.log"])
            .0,
        1
    );
    assert_eq!(
        serving
            .text(&["log", "put", "orders", "tm-1", &at("none.log")])
            .0,
        1
    );

    // The end, dry first.
    let (code, dry) = serving.json(&["finish", "orders", "--dry-run"]);
    assert_eq!(
        (code, &dry["done"], &dry["blobs"]),
        (0, &json!(false), &json!(4))
    );
    assert_eq!(serving.json(&["ls", "orders"]).0, 0);
    let (code, done) = serving.text(&["finish", "orders", "--outcome", "cancelled"]);
    assert!(code == 0 && done.contains("job orders is over"), "{done}");
    let (code, over) = serving.text(&["get", "orders", &digest, &at("late")]);
    assert!(code == 3 && over.contains("over"), "{code} {over}");
    assert!(!Path::new(&at("late")).exists());
    assert_eq!(serving.text(&["put", "orders", &at("two.jar")]).0, 3);
    let (_, jobs) = serving.text(&["jobs"]);
    assert!(jobs.contains("over: cancelled"), "{jobs}");
}

#[test]
fn wrong_use_and_what_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let serving = Serving::start(dir.path());
    let digest = format!("{}-3", "0".repeat(64));
    for (code, args) in [
        (2, vec!["ls", "Orders"]),
        (2, vec!["get", "orders", "sha256:00", "x"]),
        (2, vec!["get", "orders", "abcdef0", "x"]),
        (2, vec!["get", "orders", &digest, "-", "--format", "json"]),
        (2, vec!["get", "orders", &digest, "-", "--range", "5-6"]),
        (2, vec!["get", "orders", &digest, "-", "--range", "a-b"]),
        (2, vec!["refs", "orders", &digest, "--for", "1h"]),
        (
            2,
            vec!["refs", "orders", &digest, "--ack", "a", "--release", "b"],
        ),
        (1, vec!["ls", "orders"]),
        (1, vec!["why", "orders", &digest]),
        (1, vec!["get", "orders", &digest, "/no/such/folder/x"]),
        (1, vec!["put", "orders", "/no/such/file"]),
        (1, vec!["finish", "orders", "--dry-run"]),
    ] {
        let (got, said) = serving.text(&args);
        assert_eq!(got, code, "{args:?}: {said}");
        assert!(said.contains("error:"), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
    // Without a server named at all.
    let alone = Command::new(env!("CARGO_BIN_EXE_forkpoint"))
        .args(["blob", "jobs"])
        .env_remove("FORKPOINT_BLOB_SERVER")
        .output()
        .unwrap();
    assert_eq!(alone.status.code(), Some(2));
    // A name that is misspelt ends nothing.
    let (code, said) = serving.text(&["finish", "ghost"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("--unknown"), "{said}");
    // The end of a job that never was is remembered: it cannot begin later.
    assert_eq!(serving.text(&["finish", "ghost", "--unknown"]).0, 0);
    std::fs::write(dir.path().join("f"), b"f").unwrap();
    let late = serving.text(&["put", "ghost", dir.path().join("f").to_str().unwrap()]);
    assert_eq!(late.0, 3, "{}", late.1);
}

#[test]
fn looks_and_failed_starts_fence_nobody_off() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let serving = Serving::start(dir.path());
    std::fs::write(at("a.jar"), b"a jar").unwrap();
    let (_, put) = serving.json(&["put", "orders", &at("a.jar"), "--register"]);
    let digest = put["blobs"][0]["digest"].as_str().unwrap().to_string();
    let (data, ha, other) = (at("data"), at("ha"), at("other"));
    let taken = serving.url.strip_prefix("http://").unwrap();
    let start = ["serve", "--data", &other, "--ha", &ha];
    for wrong in [
        &["--bind", taken][..],
        &["--bind", "127.0.0.1:0", "--tokens", "/no/such/file"],
        &[
            "--bind",
            "127.0.0.1:0",
            "--tls-cert",
            &data,
            "--tls-key",
            &data,
        ],
    ] {
        let (code, said) = alone(&[&start[..], wrong].concat());
        assert!(matches!(code, 1 | 2), "{code}: {said}");
        assert!(!said.contains("epoch"), "{said}");
    }
    let look = ["scrub", "--data", &data, "--ha", &ha];
    let (code, said) = alone(&look);
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("2 copies read, 10 bytes; none damaged"),
        "{said}"
    );
    // Where no server ever was, there is nothing to look at and nothing to own.
    for verb in [
        &["recover", "--ha", &other][..],
        &["gc", "--data", &data, "--ha", &other],
        &["scrub", "--data", &other, "--ha", &other],
        &["scrub", "--data", &other, "--ha", &other, "--apply"],
    ] {
        let (code, said) = alone(verb);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("no blob store is here"), "{said}");
    }
    // A copy is damaged on disk: a look says so and repairs nothing.
    let local = std::fs::read_dir(dir.path().join("data/jobs/orders")).unwrap();
    let shelf = local.map(|e| e.unwrap().path()).next().unwrap();
    std::fs::write(shelf.join(&digest), b"A JAR").unwrap();
    let (code, said) = alone(&look);
    assert_eq!(code, 5, "{said}");
    assert!(said.contains("--apply"), "{said}");
    assert!(!said.contains("LOST"), "{said}");
    // The server owns the cluster all the same, and heals itself.
    let out = at("out.jar");
    assert_eq!(serving.text(&["get", "orders", &digest, &out]).0, 0);
    assert_eq!(std::fs::read(&out).unwrap(), b"a jar");
    assert_eq!(serving.text(&["put", "orders", &at("a.jar")]).0, 0);
}

/// The status line and the body of a GET.
fn ask(url: &str, path: &str) -> String {
    use std::io::{Read, Write};
    let host = url.strip_prefix("http://").unwrap();
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// An idle server notices by itself what would make the next upload fail.
#[test]
fn readiness_tells_of_the_ha_store_and_of_another_owner() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let first = Serving::start(dir.path());
    let ready = |url: &str| ask(url, "/readyz");
    assert!(ready(&first.url).starts_with("HTTP/1.1 200"));
    std::fs::rename(at("ha"), at("ha-gone")).unwrap();
    until_here("the HA store is gone", || {
        ready(&first.url).contains("mounted")
    });
    assert!(ready(&first.url).starts_with("HTTP/1.1 503"));
    assert!(ask(&first.url, "/livez").starts_with("HTTP/1.1 200"));
    std::fs::rename(at("ha-gone"), at("ha")).unwrap();
    until_here("it is back", || {
        ready(&first.url).starts_with("HTTP/1.1 200")
    });
    std::fs::rename(at("data"), at("data-gone")).unwrap();
    until_here("the local directory is gone", || {
        ready(&first.url).contains("look at")
    });
    std::fs::rename(at("data-gone"), at("data")).unwrap();
    until_here("it is back", || {
        ready(&first.url).starts_with("HTTP/1.1 200")
    });
    let second = Serving::start_at(&at("other"), &at("ha"));
    until_here("the first has noticed", || {
        ready(&first.url).contains("another owner has taken over")
    });
    until_here("it says so", || {
        first.said.lock().unwrap().contains("taken over by epoch 2")
    });
    assert!(ready(&second.url).starts_with("HTTP/1.1 200"));
    // It was started without --advertise: nobody can be sent to it, which is said wherever it matters.
    let unknown = "whose address is not known: it was started without --advertise";
    assert!(first.said.lock().unwrap().contains(unknown));
    assert!(ready(&first.url).contains(unknown));
    std::fs::write(at("f"), b"f").unwrap();
    let (code, said) = first.text(&["put", "orders", at("f").to_str().unwrap()]);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains(unknown) && said.contains("--server"),
        "{said}"
    );
}

/// What an upload without --register means depends on the job, and on who holds the blobs already.
#[test]
fn put_says_what_is_true_for_a_registered_job() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let serving = Serving::start(dir.path());
    for name in ["a", "b", "c"] {
        std::fs::write(at(name), name).unwrap();
    }
    let put = |args: &[&str]| serving.text(&[&["put", "orders"], args].concat()).1;
    let said = put(&[&at("a")]);
    for part in ["they stay until", "--register registers job orders"] {
        assert!(said.contains(part), "{said}");
    }
    let said = put(&[&at("a"), "--register"]);
    assert!(
        said.contains("job orders is registered and holds them"),
        "{said}"
    );
    let said = put(&[&at("b")]);
    for part in [
        "they stay until",
        "job orders is registered, but",
        "--register adds them",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!said.contains("unless"), "{said}");
    let said = put(&[&at("a"), &at("c")]);
    assert!(
        said.contains("the one that nobody holds stays until"),
        "{said}"
    );
    let said = put(&[&at("a")]);
    assert!(said.contains("they are held already"), "{said}");
    let (_, json) = serving.json(&["put", "orders", &at("a"), &at("c")]);
    assert_eq!(
        (
            &json["job_state"],
            &json["blobs"][0]["held"],
            &json["blobs"][1]["held"]
        ),
        (&json!("active"), &json!(true), &json!(false))
    );
    // As it says.
    let said = put(&[&at("b"), "--register"]);
    assert!(said.contains("holds them"), "{said}");
    let (_, ls) = serving.json(&["ls", "orders"]);
    let held = ls["blobs"].as_array().unwrap().iter();
    assert_eq!(held.filter(|b| b["state"] == "referenced").count(), 2);
}

#[test]
fn only_regular_files_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let serving = Serving::start(dir.path());
    std::fs::write(at("a.jar"), b"a jar").unwrap();
    let (_, put) = serving.json(&["put", "orders", &at("a.jar")]);
    let digest = put["blobs"][0]["digest"].as_str().unwrap().to_string();
    std::fs::create_dir(at("folder")).unwrap();
    std::fs::write(at("target"), b"precious").unwrap();
    std::os::unix::fs::symlink(at("target"), at("link")).unwrap();
    let made = Command::new("mkfifo").arg(at("pipe")).status().unwrap();
    assert!(made.success());
    for there in ["folder", "link", "pipe", "target"] {
        for more in [&[][..], &["--range", "0-1"], &["--cache", &at("cache")]] {
            let to = at(there);
            let args = ["get", "orders", &digest, &to];
            let replace = [&args[..], &["--overwrite"], more].concat();
            if there != "target" {
                assert_eq!(serving.text(&replace).0, 3, "{there}");
            }
            assert_eq!(serving.text(&[&args[..], more].concat()).0, 3, "{there}");
        }
    }
    assert!(std::fs::symlink_metadata(at("link")).unwrap().is_symlink());
    assert_eq!(std::fs::read(at("target")).unwrap(), b"precious");
    let (code, said) = serving.text(&["get", "orders", &digest, &at("target"), "--overwrite"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(std::fs::read(at("target")).unwrap(), b"a jar");
}

#[test]
fn what_is_lost_is_said_until_it_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let serving = Serving::start(dir.path());
    std::fs::write(at("a.jar"), b"a jar").unwrap();
    let (_, put) = serving.json(&["put", "orders", &at("a.jar"), "--register"]);
    let digest = put["blobs"][0]["digest"].as_str().unwrap().to_string();
    drop(serving);
    let (data, ha) = (at("data"), at("ha"));
    let retained = dir.path().join("ha/default/jobs/orders/retained");
    let object = std::fs::read_dir(retained).unwrap().next().unwrap();
    let object = object.unwrap().path();
    std::fs::remove_dir_all(dir.path().join("data")).unwrap();
    std::fs::write(&object, b"A JAR").unwrap();
    let apply = ["scrub", "--data", &data, "--ha", &ha, "--apply"];
    for verb in [
        &["scrub", "--data", &data, "--ha", &ha][..],
        &apply,
        &apply,
        &["scrub", "--data", &data, "--ha", &ha],
        &["recover", "--ha", &ha],
        &["gc", "--data", &data, "--ha", &ha],
    ] {
        let (code, said) = alone(verb);
        assert_eq!(code, 5, "{verb:?}: {said}");
        assert!(said.contains("LOST") && said.contains(&digest), "{said}");
    }
    // The right bytes are back.
    std::fs::write(&object, b"a jar").unwrap();
    let (code, said) = alone(&apply);
    assert_eq!(code, 0, "{said}");
    assert_eq!(alone(&["recover", "--ha", &ha]).0, 0);
}

/// The example that the page on the blob store names, as one command without arguments.
#[test]
fn the_example_ships_kills_recovers_and_ends() {
    let built = Command::new(env!("CARGO"))
        .args([
            "build",
            "--offline",
            "--quiet",
            "--example",
            "ha_blob_store",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let binary = Path::new(env!("CARGO_BIN_EXE_forkpoint"));
    let example = binary.parent().unwrap().join("examples/ha_blob_store");
    let ran = Command::new(example).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(
        ran.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    for line in [
        "shipped 2 jars",
        "has 3 holders",
        "tm-3 has both jars, has decoded 2000000 bytes and acknowledged; 0 holders are left",
        "the server is killed",
        "tm-4 gets 3000000 bytes from the HA store without a server",
        "recovered: 2 blobs, 2 of them held by the job",
        "is over; its blobs are gone",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let epochs: Vec<_> = said
        .lines()
        .filter(|l| l.starts_with("server of epoch"))
        .collect();
    assert!(epochs.len() == 2 && epochs[0].contains("epoch 1 ") && epochs[1].contains("epoch 2 "));
}
