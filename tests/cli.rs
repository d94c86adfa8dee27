//! The command as scripts and people meet it: documents, exit codes, messages.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::Path;

use forkpoint::snapshot::CommitObject;
use forkpoint::store::Location;
use serde_json::{Value, json};
use support::turns::signal;
use support::waits::until_asked;
use support::{
    Service, at, command, emulator_stores, fixture, fixtures, local_stores, manifest, run,
    run_json, synthetic, temp,
};

/// Lays a fixture on the local disk and returns its newest snapshot and a place for a fork.
async fn laid(name: &str) -> (tempfile::TempDir, String, String) {
    let (dir, root) = temp();
    let fixture = fixture(name);
    let original = root.join("original").unwrap();
    fixture.lay(&local_stores(), &original).await;
    let snapshot = original.join(&fixture.newest()).unwrap().to_string();
    let target = root.join("fork").unwrap().to_string();
    (dir, snapshot, target)
}

fn stderr(args: &[&str]) -> (i32, String) {
    let output = run(args);
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[tokio::test]
async fn the_documents_have_the_promised_fields() {
    let (_dir, snapshot, target) = laid("1.20.5-filemerge-p2").await;
    let (code, show) = run_json(&["show", &snapshot]);
    assert_eq!((code, &show["version"]), (0, &json!(1)));
    assert_eq!(show["snapshot"]["location"], json!(snapshot));
    assert_eq!(show["snapshot"]["checkpoint_id"], json!(4));
    assert_eq!(show["snapshot"]["format_version"], json!(4));
    assert_eq!(show["snapshot"]["kind"], json!("checkpoint"));
    let operator = &show["operators"][0];
    assert_eq!(operator["operator_id"].as_str().unwrap().len(), 32);
    assert_eq!(
        (&operator["parallelism"], &operator["max_parallelism"]),
        (&json!(2), &json!(128))
    );
    let files = show["files"].as_array().unwrap();
    let mut names: Vec<&str> = files
        .iter()
        .map(|f| f["location"].as_str().unwrap())
        .collect();
    names.dedup();
    assert_eq!(names.len(), files.len(), "each physical object once");
    assert!(
        files.iter().any(|f| f["references"].as_u64().unwrap() > 1),
        "merged files are referred to often"
    );
    for file in files {
        assert!(file["size"].is_u64());
        assert!(["shared", "exclusive", "task-owned"].contains(&file["scope"].as_str().unwrap()));
    }

    let (code, plan) = run_json(&["plan", &snapshot, &target]);
    let (dry, same) = run_json(&["fork", &snapshot, &target, "--dry-run"]);
    assert_eq!((code, dry), (0, 0));
    assert_eq!(plan, same);
    assert!(
        std::fs::metadata(target.trim_start_matches("file:")).is_err(),
        "a dry run writes nothing"
    );
    assert_eq!(plan["committed"], json!(false));
    assert_eq!(plan["done"]["objects"], json!(0));
    let tasks = plan["tasks"].as_array().unwrap();
    let taken = Path::new(
        tasks[0]["destination"]
            .as_str()
            .unwrap()
            .trim_start_matches("file:"),
    );
    std::fs::create_dir_all(taken.parent().unwrap()).unwrap();
    std::fs::write(taken, "somebody else's").unwrap();
    for refused in [vec!["plan"], vec!["fork", "--dry-run"], vec!["fork"]] {
        let (code, text) = stderr(&[&refused[..], &[&snapshot, &target]].concat());
        assert_eq!(code, 3, "{refused:?}: {text}");
        assert!(
            text.contains("an object is already there"),
            "{refused:?}: {text}"
        );
    }
    std::fs::remove_file(taken).unwrap();
    assert_eq!(plan["objects"], json!(files.len()));
    assert_eq!(tasks.len(), files.len());
    assert_eq!(plan["left_behind"], json!([]));
    for task in tasks {
        for field in ["source", "destination", "method"] {
            assert!(task[field].is_string(), "{field}");
        }
    }
    let sum: u64 = tasks.iter().map(|t| t["size"].as_u64().unwrap()).sum();
    assert_eq!(plan["bytes"], json!(sum));

    let (code, fork) = run_json(&["fork", &snapshot, &target]);
    assert_eq!(
        (code, &fork["version"], &fork["independent"]),
        (0, &json!(1), &json!(true))
    );
    assert_eq!(
        (&fork["objects"], &fork["copied"], &fork["reused"]),
        (&plan["objects"], &plan["objects"], &json!(0))
    );
    assert_eq!(fork["bytes"], plan["bytes"]);
    let by_method: u64 = fork["methods"]
        .as_object()
        .unwrap()
        .values()
        .map(|n| n.as_u64().unwrap())
        .sum();
    assert_eq!(json!(by_method), fork["copied"]);
    let (code, again) = run_json(&["fork", &snapshot, &target, "--dry-run"]);
    assert_eq!((code, &again["committed"]), (0, &json!(true)));
    assert_eq!(again["done"]["objects"], plan["objects"]);
    let copy = std::fs::read(taken).unwrap();
    std::fs::remove_file(taken).unwrap();
    for damaged in [vec!["plan"], vec!["fork", "--dry-run"], vec!["fork"]] {
        let (code, text) = stderr(&[&damaged[..], &[&snapshot, &target]].concat());
        assert_eq!(code, 5, "{damaged:?}: {text}");
    }
    std::fs::write(taken, copy).unwrap();

    let (code, verify) = run_json(&["verify", fork["snapshot"].as_str().unwrap()]);
    assert_eq!(
        (code, &verify["version"], &verify["problems"]),
        (0, &json!(1), &json!([]))
    );
    assert_eq!(
        (&verify["objects"], &verify["bytes"]),
        (&plan["objects"], &plan["bytes"])
    );
}

#[tokio::test]
async fn a_fork_run_twice_is_done_the_second_time() {
    let (_dir, snapshot, target) = laid("1.20.5-rocks-inc-p2").await;
    let (_, first) = run_json(&["fork", &snapshot, &target]);
    let (code, second) = run_json(&["fork", &snapshot, &target]);
    assert_eq!(code, 0);
    assert_eq!(
        (&second["copied"], &second["reused"]),
        (&json!(0), &first["copied"])
    );
}

#[tokio::test]
async fn verify_finds_damage_and_exits_5() {
    let (_dir, snapshot, target) = laid("1.20.5-rocks-inc-p2").await;
    let (_, fork) = run_json(&["fork", &snapshot, &target]);
    let fork = fork["snapshot"].as_str().unwrap();
    let (_, show) = run_json(&["show", fork]);
    let path = |n: usize| {
        show["files"][n]["location"]
            .as_str()
            .unwrap()
            .trim_start_matches("file:")
            .to_string()
    };
    std::fs::remove_file(path(0)).unwrap();
    std::fs::write(path(1), b"short").unwrap();
    let (code, verify) = run_json(&["verify", fork]);
    assert_eq!(code, 5);
    let problems = verify["problems"].as_array().unwrap();
    assert_eq!(problems.len(), 2);
    assert!(
        problems[0]["problem"].as_str().unwrap().contains("missing"),
        "{verify}"
    );
    assert!(
        problems[1]["problem"]
            .as_str()
            .unwrap()
            .contains("too short"),
        "{verify}"
    );
    // `show` still shows what there is to see, and says with its exit code that files are missing.
    let (code, show) = run_json(&["show", fork]);
    assert_eq!(code, 5);
    assert_eq!(
        show["files"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|f| f["present"] == json!(false))
            .count(),
        1
    );
}

#[tokio::test]
async fn text_goes_to_stdout_and_talk_to_stderr() {
    let (_dir, snapshot, target) = laid("1.20.5-rocks-inc-p2").await;
    for args in [
        vec!["show", &snapshot],
        vec!["plan", &snapshot, &target],
        vec!["fork", &snapshot, &target],
        vec!["verify", &snapshot],
    ] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(0));
        assert!(!output.stdout.is_empty());
        assert!(
            output.stderr.is_empty(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn wrong_use_exits_2_and_says_what_is_wrong() {
    for (args, word) in [
        (vec![], "Usage"),
        (vec!["fork", "only-one"], "DESTINATION"),
        (vec!["show", "s3://"], "bucket is missing"),
        (vec!["show", "memory:/x"], "memory:"),
        (
            vec!["show", "s3://b/x", "--s3-endpoint", "localhost:9000"],
            "http://HOST:PORT",
        ),
        (vec!["show", "s3://buck et/x"], "no name of a bucket"),
        (
            vec!["fork", "/tmp/x", "/tmp/y", "--moved-from", "relative"],
            "absolute path or a URL",
        ),
    ] {
        let (code, text) = stderr(&args);
        assert_eq!(code, 2, "{args:?}: {text}");
        assert!(text.contains(word), "{args:?}: {text}");
    }
}

#[test]
fn what_is_not_there_exits_1_with_the_next_step() {
    let (_dir, root) = temp();
    let nothing = root.join("nothing").unwrap().to_string();
    let (code, text) = stderr(&["show", &nothing]);
    assert_eq!(code, 1);
    assert!(
        text.contains("no snapshot here") && text.contains("hint:"),
        "{text}"
    );
    let (code, text) = stderr(&["show", "hdfs://name/x"]);
    assert_eq!(code, 1);
    assert!(
        text.contains("hdfs:") && text.contains("supported are"),
        "{text}"
    );
}

#[test]
fn help_explains_each_verb_and_the_exit_codes() {
    let output = run(&["--help"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    for word in [
        "show",
        "plan",
        "fork",
        "verify",
        "duplicate",
        "Exit codes",
        "AWS_ENDPOINT_URL",
    ] {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }
    for verb in ["show", "plan", "fork", "verify", "duplicate"] {
        let text = String::from_utf8(run(&[verb, "--help"]).stdout).unwrap();
        assert!(text.contains("Usage: forkpoint"), "{text}");
    }
}

/// Each hostile `_metadata` gives one error that names the byte, and exit code 5.
#[test]
fn hostile_metadata_gives_one_clear_error() {
    let edge = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/metadata/edge");
    let mut seen = 0;
    for path in support::walk(&edge) {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let refused = name.starts_with("bad-") || name.starts_with("lax-");
        if !refused || path.extension().unwrap() != "metadata" {
            continue;
        }
        let (dir, root) = temp();
        std::fs::copy(&path, dir.path().join("_metadata")).unwrap();
        let (code, text) = stderr(&["show", &root.to_string()]);
        let expected = if name == "bad-version-99" { 1 } else { 5 };
        assert_eq!(code, expected, "{name}: {text}");
        assert_eq!(text.matches("error:").count(), 1, "{name}: {text}");
        assert!(
            text.contains("byte ") && text.contains("_metadata"),
            "{name}: {text}"
        );
        assert!(!text.contains("panicked"), "{name}: {text}");
        let (code, verify) = run_json_or_error(&["verify", &root.to_string()]);
        assert_eq!(code, expected, "{name}");
        assert!(verify.is_none_or(|v| {
            v["problems"][0]["problem"]
                .as_str()
                .unwrap()
                .contains("byte ")
        }));
        seen += 1;
    }
    assert!(seen >= 29, "{seen}");
}

fn run_json_or_error(args: &[&str]) -> (i32, Option<Value>) {
    let output = run(&[args, &["--format", "json"]].concat());
    (
        output.status.code().unwrap(),
        serde_json::from_slice(&output.stdout).ok(),
    )
}

/// A path that climbs out of the snapshot's folder is refused with its byte; one that only looks
/// absolute stays inside.
#[test]
fn relative_paths_cannot_leave_the_snapshot() {
    let edge = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/metadata/edge");
    let (dir, root) = temp();
    std::fs::copy(
        edge.join("odd-relative-out.metadata"),
        dir.path().join("_metadata"),
    )
    .unwrap();
    let (code, text) = stderr(&["show", &root.to_string()]);
    assert_eq!(code, 5, "{text}");
    assert!(
        text.contains("must not leave its folder") && text.contains("at byte"),
        "{text}"
    );
    std::fs::copy(
        edge.join("odd-relative-absolute.metadata"),
        dir.path().join("_metadata"),
    )
    .unwrap();
    let (code, show) = run_json(&["show", &root.to_string()]);
    assert_eq!(code, 5, "the file is not there");
    let location = show["files"][0]["location"].as_str().unwrap();
    assert!(location.starts_with(&format!("{root}/")), "{location}");
}

#[test]
fn truncated_and_random_metadata_is_damage() {
    let file = synthetic::metadata(&[("file:/x/y".into(), 3)]);
    for bytes in [
        Vec::new(),
        file[..file.len() / 2].to_vec(),
        vec![0xA5; 4096],
    ] {
        let (dir, root) = temp();
        std::fs::write(dir.path().join("_metadata"), &bytes).unwrap();
        let target = root.join("fork").unwrap().to_string();
        for args in [
            vec!["show", &root.to_string()],
            vec!["fork", &root.to_string(), &target],
        ] {
            let (code, text) = stderr(&args);
            assert_eq!(code, 5, "{text}");
            assert!(text.contains("byte "), "{text}");
        }
        assert!(!dir.path().join("fork").exists());
    }
}

#[tokio::test]
async fn duplicate_makes_an_independent_object_and_keeps_what_is_there() {
    let (dir, root) = temp();
    std::fs::write(dir.path().join("a"), b"content").unwrap();
    let (a, b) = (
        root.join("a").unwrap().to_string(),
        root.join("sub/b").unwrap().to_string(),
    );
    let (code, receipt) = run_json(&["duplicate", &a, &b]);
    assert_eq!(
        (code, &receipt["bytes"], &receipt["version"]),
        (0, &json!(7), &json!(1))
    );
    assert_eq!(receipt["reused"], json!(false));
    // An equal object is left, and that is said.
    let before = std::fs::metadata(dir.path().join("sub/b")).unwrap();
    let (code, left) = run_json(&["duplicate", &a, &b]);
    assert_eq!(
        (code, &left["reused"], &left["bytes"], &left["method"]),
        (0, &json!(true), &json!(7), &Value::Null)
    );
    let text = run(&["duplicate", &a, &b]).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("already there, equal"), "{text}");
    let after = std::fs::metadata(dir.path().join("sub/b")).unwrap();
    assert_eq!(before.modified().unwrap(), after.modified().unwrap());
    // One that is not equal, with its size or without, is refused.
    for other in [&b"CHANGED"[..], b"CHANGED AGAIN"] {
        std::fs::write(dir.path().join("a"), other).unwrap();
        let (code, text) = stderr(&["duplicate", &a, &b]);
        assert_eq!(code, 3, "{text}");
        assert!(
            text.contains("not this duplicate") && text.contains("--overwrite"),
            "{text}"
        );
        assert_eq!(std::fs::read(dir.path().join("sub/b")).unwrap(), b"content");
    }
    std::fs::write(dir.path().join("a"), b"CHANGED").unwrap();
    let (code, _) = run_json(&["duplicate", &a, &b, "--overwrite"]);
    assert_eq!(code, 0);
    assert_eq!(std::fs::read(dir.path().join("sub/b")).unwrap(), b"CHANGED");
    assert_eq!(
        std::fs::read_dir(dir.path().join("sub")).unwrap().count(),
        1,
        "no temporary file stays"
    );
}

/// A slash at the end makes a folder of the destination, there or not; what stands in the way is named.
#[test]
fn duplicate_writes_into_a_folder_only_when_it_is_told_to() {
    let (dir, root) = temp();
    let read = |name: &str| std::fs::read(dir.path().join(name)).ok();
    std::fs::write(dir.path().join("a"), b"content").unwrap();
    std::fs::create_dir(dir.path().join("there")).unwrap();
    let at = |name: &str| format!("{root}/{name}");
    for to in ["new/", "there/", "there/deep/"] {
        let (code, receipt) = run_json(&["duplicate", &at("a"), &at(to)]);
        assert_eq!(code, 0, "{to}: {receipt}");
        assert_eq!(receipt["destination"], json!(at(&format!("{to}a"))));
        assert_eq!(read(&format!("{to}a")).unwrap(), b"content", "{to}");
    }
    for overwrite in [&[][..], &["--overwrite"]] {
        let tried = |to: &str| {
            let to = at(to);
            stderr(&[&["duplicate", &at("a"), &to], overwrite].concat())
        };
        let (code, text) = tried("there");
        assert_eq!(code, 3, "{text}");
        let into = format!("write {}/ with a slash", at("there"));
        assert!(
            text.contains("a folder is here") && text.contains(&into),
            "{text}"
        );
        for below_a_file in ["a/x", "a/deep/x", "a/"] {
            let (code, text) = tried(below_a_file);
            assert_eq!(code, 3, "{text}");
            let named = format!("{} is a file", dir.path().join("a").display());
            assert!(text.contains(&named), "{below_a_file}: {text}");
            assert!(!text.contains("--overwrite"), "{text}");
        }
    }
    assert_eq!(read("a").unwrap(), b"content");
    // A whole tree has the same in its way.
    let (code, text) = stderr(&["duplicate", "-r", &at("there"), &at("a")]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("a file is here, not a folder"), "{text}");
}

#[tokio::test]
async fn the_command_finds_each_emulator_by_its_usual_variables() {
    for service in Service::ALL {
        if !service.is_there("the command line") {
            continue;
        }
        let stores = emulator_stores();
        let fixture = fixture("1.20.5-filemerge-p2");
        let (original, target) = (
            service.place(0, "cli-original"),
            service.place(1, "cli-fork"),
        );
        fixture.lay(&stores, &original).await;
        let before = manifest(&stores, &original).await;
        let snapshot = original.join(&fixture.newest()).unwrap();
        let (code, fork) = run_json(&["fork", &snapshot.to_string(), &target.to_string()]);
        assert_eq!(code, 0);
        assert!(
            fork["snapshot"]
                .as_str()
                .unwrap()
                .starts_with(&target.to_string())
        );
        let (code, _) = run_json(&["verify", fork["snapshot"].as_str().unwrap()]);
        assert_eq!(code, 0);
        assert_eq!(manifest(&stores, &original).await, before);
    }
}

#[tokio::test]
async fn the_spelling_of_the_scheme_is_kept_in_the_metadata() {
    if !Service::S3.is_there("the spelling of schemes") {
        return;
    }
    let stores = emulator_stores();
    let fixture = fixture("1.20.5-rocks-inc-p2");
    let original = Service::S3.place(0, "spelled");
    fixture.lay(&stores, &original).await;
    let snapshot = original.join(&fixture.newest()).unwrap().to_string();
    let target = Service::S3
        .place(1, "spelled")
        .to_string()
        .replacen("s3:", "s3a:", 1);
    let (code, fork) = run_json(&["fork", &snapshot, &target]);
    assert_eq!(
        (code, &fork["methods"]),
        (0, &json!({"s3-copy": fork["objects"]}))
    );
    let (_, show) = run_json(&["show", fork["snapshot"].as_str().unwrap()]);
    for file in show["files"].as_array().unwrap() {
        assert!(
            file["location"].as_str().unwrap().starts_with("s3a://"),
            "{file}"
        );
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_reader_that_has_seen_enough_is_no_error() {
    let (_dir, snapshot, _) = laid("1.20.5-rocks-inc-p2").await;
    let mut child = command(&["show", &snapshot, "--files"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// A snapshot that came from a file system we have no client for can be looked at, and forked once
/// its files' place is named.
#[tokio::test]
async fn a_snapshot_from_hdfs_is_shown_and_forks_from_where_it_was_copied_to() {
    let (dir, root) = temp();
    let job = dir.path().join("copied/job");
    std::fs::create_dir_all(job.join("shared")).unwrap();
    std::fs::create_dir_all(job.join("chk-7")).unwrap();
    std::fs::write(job.join("shared/x"), b"abc").unwrap();
    let file = synthetic::metadata(&[("hdfs://name:8020/flink/job/shared/x".into(), 3)]);
    std::fs::write(job.join("chk-7/_metadata"), file).unwrap();
    let snapshot = root.join("copied/job/chk-7").unwrap().to_string();
    let target = root.join("fork").unwrap().to_string();

    let (code, show) = run_json(&["show", &snapshot]);
    assert_eq!(code, 4, "nobody could look at the file");
    assert_eq!(
        show["files"][0]["location"],
        json!("hdfs://name:8020/flink/job/shared/x")
    );
    let (code, text) = stderr(&["verify", &snapshot]);
    assert_eq!(code, 4, "{text}");
    let (code, text) = stderr(&["fork", &snapshot, &target]);
    assert_eq!(code, 1, "{text}");
    let moved = ["--moved-from", "hdfs://name:8020/flink"];
    let (code, verify) = run_json(&[&["verify", &snapshot][..], &moved].concat());
    assert_eq!((code, &verify["problems"]), (0, &json!([])));
    let (code, show) = run_json(&[&["show", &snapshot][..], &moved].concat());
    assert_eq!((code, &show["files"][0]["present"]), (0, &json!(true)));
    let (code, fork) = run_json(&[
        "fork",
        &snapshot,
        &target,
        "--moved-from",
        "hdfs://name:8020/flink",
    ]);
    assert_eq!((code, &fork["copied"]), (0, &json!(1)));
    std::fs::remove_dir_all(dir.path().join("copied")).unwrap();
    let (code, _) = run_json(&["verify", fork["snapshot"].as_str().unwrap()]);
    assert_eq!(code, 0);
}

/// A name in the metadata cannot steer the terminal.
#[test]
fn control_characters_are_spelled_out() {
    let (dir, root) = temp();
    let file = synthetic::metadata(&[("file:/tmp/\u{1b}[31mred\nerror: forged".into(), 3)]);
    std::fs::write(dir.path().join("_metadata"), file).unwrap();
    let target = root.join("fork").unwrap().to_string();
    for args in [
        vec!["show", &root.to_string(), "--files"],
        vec!["fork", &root.to_string(), &target],
    ] {
        let output = run(&args);
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        assert!(
            !text.contains('\u{1b}') && !text.contains("\nerror: forged"),
            "{text}"
        );
        assert!(text.contains("red"), "{text}");
    }
}

#[tokio::test]
async fn a_destination_that_is_a_file_is_named() {
    let (dir, snapshot, _) = laid("1.20.5-rocks-inc-p2").await;
    std::fs::write(dir.path().join("afile"), b"x").unwrap();
    let target = dir.path().join("afile").to_str().unwrap().to_string();
    let (code, text) = stderr(&["fork", &snapshot, &target]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("is a file"), "{text}");
}

/// Of a server that is not there, one line and the next step, and not one for each object.
#[test]
fn a_tree_to_a_server_that_is_not_there_ends_soon() {
    let (dir, root) = temp();
    for n in 0..200 {
        std::fs::write(dir.path().join(format!("file-{n:03}")), b"x").unwrap();
    }
    let (from, nobody) = (root.to_string(), "http://127.0.0.1:1");
    let keys = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")];
    let tree = |more: &[&str]| {
        let args = [
            "duplicate",
            "-r",
            &from,
            "s3://b/x",
            "--s3-endpoint",
            nobody,
        ];
        let output = command(&[&args, more].concat())
            .envs(keys)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let (code, text) = tree(&[]);
    assert_eq!(code, Some(6), "{text}");
    assert!(text.contains("none of the first"), "{text}");
    assert!(text.contains("the server there"), "{text}");
    assert!(text.lines().count() < 5, "{text}");
    // Few enough to try them all: no more have failed than there are.
    for n in 3..200 {
        std::fs::remove_file(dir.path().join(format!("file-{n:03}"))).unwrap();
    }
    let (code, text) = tree(&["--format", "json"]);
    assert_eq!(code, Some(6), "{text}");
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&report["objects"], &report["failed"]),
        (&json!(3), &json!(3))
    );
}

#[tokio::test]
async fn probe_says_what_a_store_does_and_leaves_nothing() {
    let (dir, root) = temp();
    let (code, probe) = run_json(&[
        "probe",
        &root.to_string(),
        "--sizes",
        "4,20000",
        "--rounds",
        "2",
    ]);
    assert_eq!(code, 0);
    assert_eq!(
        (&probe["create_only_put"], &probe["create_only_copy"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(probe["sizes"].as_array().unwrap().len(), 2);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    for service in Service::ALL {
        if service.is_there("probing") {
            let stores = emulator_stores();
            let (from, to) = (service.place(0, "probe"), service.place(1, "probe"));
            let (code, probe) = run_json(&[
                "probe",
                &from.to_string(),
                &to.to_string(),
                "--sizes",
                "4,20000",
                "--rounds",
                "2",
            ]);
            assert_eq!((code, &probe["server_side"]), (0, &json!(true)), "{probe}");
            assert_eq!(probe["create_only_copy"], json!(true), "{probe}");
            assert!(probe["sizes"][1]["median_ms"].as_f64().unwrap() > 0.0);
            assert!(
                stores.list(&from).await.unwrap().is_empty()
                    && stores.list(&to).await.unwrap().is_empty()
            );
        }
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_probe_that_is_stopped_leaves_nothing_either() {
    if !Service::S3.is_there("a stopped probe") {
        return;
    }
    let at = Service::S3.place(0, "stopped-probe");
    // More rounds than it comes to.
    let mut child = support::command(&["probe", &at.to_string(), "--rounds", "1000"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let stores = emulator_stores();
    // Until one of the larger objects is being written.
    until_asked("an upload is open", async || {
        assert_eq!(child.try_wait().unwrap(), None, "it ended by itself");
        !stores.open_uploads(&at).await.unwrap().is_empty()
    })
    .await;
    signal(&child, "TERM");
    let ended = tokio::task::spawn_blocking(move || child.wait().unwrap()).await;
    assert_eq!(ended.unwrap().code(), Some(6));
    assert!(stores.list(&at).await.unwrap().is_empty());
    assert!(stores.open_uploads(&at).await.unwrap().is_empty());
}

/// Changes the byte in the middle of a file, of Flink's metadata the last one of the checkpoint's number; the same
/// again undoes it.
fn flip(at: &Path) {
    let mut bytes = std::fs::read(at).unwrap();
    let middle = match at.ends_with("_metadata") {
        true => 15,
        false => bytes.len() / 2,
    };
    bytes[middle] ^= 1;
    std::fs::write(at, bytes).unwrap();
}

#[tokio::test]
async fn verify_sees_one_changed_byte_of_a_fork_when_it_reads_both() {
    for fixture in fixtures() {
        let (_dir, root) = temp();
        let stores = local_stores();
        fixture.lay(&stores, &root.join("prod").unwrap()).await;
        let source = root.join("prod").unwrap().join(&fixture.newest()).unwrap();
        let target = root.join("stage").unwrap();
        let (code, forked) = run_json(&["fork", &source.to_string(), &target.to_string()]);
        assert_eq!(code, 0, "{}", fixture.name);
        let snapshot = at(forked["snapshot"].as_str().unwrap());
        let (copy, source) = (snapshot.to_string(), source.to_string());
        let against = ["verify", &copy, "--against", &source];
        let (code, report) = run_json(&against);
        assert_eq!(
            (code, &report["problems"]),
            (0, &json!([])),
            "{}",
            fixture.name
        );
        assert_eq!(report["compared"], json!({"original": source}));
        let text = String::from_utf8(run(&against).stdout).unwrap();
        assert!(text.contains("and every byte as in"), "{text}");

        // One byte of each file of the fork, and of its metadata.
        let files: Vec<Location> = stores
            .list(&target)
            .await
            .unwrap()
            .into_iter()
            .map(|f| f.0)
            .collect();
        for file in files {
            let path = file.local_path().unwrap();
            flip(&path);
            let is_metadata = file.name() == "_metadata";
            if !is_metadata {
                let (code, report) = run_json(&["verify", &copy]);
                assert_eq!(code, 0, "sizes do not show it: {report}");
                let (code, report) = run_json(&against);
                let problems = report["problems"].as_array().unwrap();
                assert_eq!((code, problems.len()), (5, 1), "{}: {report}", fixture.name);
                assert_eq!(problems[0]["location"], json!(file.to_string()));
                assert!(
                    problems[0]["problem"]
                        .as_str()
                        .unwrap()
                        .contains("other bytes")
                );
            } else {
                let (code, report) = run_json(&against);
                assert_eq!(code, 5, "{}: {report}", fixture.name);
                assert_eq!(report["problems"][0]["location"], json!(file.to_string()));
            }
            flip(&path);
        }
        assert_eq!(run_json(&against).0, 0);
    }
}

#[tokio::test]
async fn verify_says_what_it_cannot_compare_with() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let fixture = fixture("1.20.5-rocks-inc-p2");
    fixture.lay(&stores, &root).await;
    let newest = root.join(&fixture.newest()).unwrap().to_string();
    let alone = run(&["verify", &newest, "--content"]);
    let said = String::from_utf8_lossy(&alone.stderr).into_owned();
    assert_eq!(alone.status.code(), Some(2), "{said}");
    assert!(
        said.contains("no digests") && said.contains("--against"),
        "{said}"
    );
    assert_eq!(
        run(&["verify", &newest, "--against", &newest])
            .status
            .code(),
        Some(2)
    );
    // Another snapshot of the very job is not what it was made from.
    let target = root.join("fork").unwrap();
    let (_, forked) = run_json(&["fork", &newest, &target.to_string()]);
    let copy = forked["snapshot"].as_str().unwrap();
    for other in fixture.snapshots() {
        let other = root.join(&other).unwrap().to_string();
        if other != newest {
            let code = run(&["verify", copy, "--against", &other]).status.code();
            assert!(matches!(code, Some(2 | 5)), "{other}: {code:?}");
        }
    }
    // What is gone of the original makes the answer incomplete, not good.
    let source = CommitObject::read(&stores, &at(&newest)).await.unwrap();
    let gone = source.snapshot().unwrap().objects[0].location.clone();
    stores.delete(&gone).await.unwrap();
    let lost = run(&["verify", copy, "--against", &newest]);
    let said = String::from_utf8_lossy(&lost.stderr).into_owned();
    assert_eq!(lost.status.code(), Some(4), "{said}");
    assert!(said.contains(gone.name()), "{said}");
}

#[tokio::test]
async fn verify_compares_files_of_the_native_format_with_their_digests() {
    use support::engine::{checkpoint, fresh, job, round};
    let (_dir, root) = temp();
    let stores = local_stores();
    let home = root.join("orders").unwrap();
    let running = fresh(&stores, &home, &job()).await;
    checkpoint(&stores, &running, round(1)).await;
    let snapshot = checkpoint(&stores, &running, round(2)).await.directory;
    let given = snapshot.to_string();
    let (_, forked) = run_json(&["fork", &given, &root.join("fork").unwrap().to_string()]);
    let copy = forked["snapshot"].as_str().unwrap().to_string();
    let commit = CommitObject::read(&stores, &at(&copy)).await.unwrap();
    let objects = commit.snapshot().unwrap().objects;
    assert!(objects.len() >= 6);
    let checks = [
        &["verify", &copy, "--content"][..],
        &["verify", &copy, "--against", &given],
    ];
    for check in checks {
        let (code, report) = run_json(check);
        assert_eq!((code, &report["problems"]), (0, &json!([])), "{report}");
        for object in &objects {
            let path = object.location.local_path().unwrap();
            flip(&path);
            assert_eq!(run_json(&["verify", &copy]).0, 0);
            let (code, report) = run_json(check);
            let problems = report["problems"].as_array().unwrap();
            assert_eq!((code, problems.len()), (5, 1), "{report}");
            assert_eq!(problems[0]["location"], json!(object.location.to_string()));
            flip(&path);
        }
    }
}
