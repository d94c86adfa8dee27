//! `duplicate --recursive` and `--from-list`: whole trees, on disk and on each service.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use bytes::Bytes;
use forkpoint::store::{Location, Stores};
use serde_json::json;
use support::{Service, emulator_stores, local_stores, manifest, run, run_json, temp};

/// Names that are hard for somebody: each is one that the services and the disk can hold.
const NAMES: [&str; 9] = [
    "plain",
    "deep/er/file",
    "with blank",
    "per%20cent",
    "plus+and&equals=",
    "question?mark",
    "ünïcödé",
    "hash#1",
    "empty",
];

async fn lay(stores: &Stores, root: &Location) {
    for (n, name) in NAMES.iter().enumerate() {
        let size = if *name == "empty" { 0 } else { 100 + n };
        let content = vec![u8::try_from(n).unwrap(); size];
        stores
            .put(&root.join(name).unwrap(), Bytes::from(content), true)
            .await
            .unwrap();
    }
}

/// The manifest with the root taken off.
async fn below(stores: &Stores, root: &Location) -> Vec<(String, String)> {
    let all = manifest(stores, root).await;
    all.into_iter()
        .map(|(at, digest)| (at[root.to_string().len()..].to_string(), digest))
        .collect()
}

async fn a_tree_is_duplicated_whole(stores: &Stores, from: &Location, to: &Location, method: &str) {
    lay(stores, from).await;
    let (source, target) = (from.to_string(), to.to_string());
    for level in ["size", "checksum", "content"] {
        let (code, report) = run_json(&[
            "duplicate",
            "--recursive",
            &source,
            &target,
            "--overwrite",
            "--verify",
            level,
        ]);
        assert_eq!(code, 0, "{report}");
        assert_eq!(
            (&report["objects"], &report["copied"]),
            (&json!(NAMES.len()), &json!(NAMES.len()))
        );
        assert_eq!(report["methods"], json!({ method: NAMES.len() }));
        let proved: u64 = report["verified"]
            .as_object()
            .unwrap()
            .values()
            .map(|n| n.as_u64().unwrap())
            .sum();
        assert_eq!(proved, NAMES.len() as u64, "{report}");
        assert_eq!(below(stores, to).await, below(stores, from).await);
    }
    // Again without --overwrite: all there. A relay may have sent small objects again before it was
    // told so.
    let (code, report) = run_json(&["duplicate", "-r", &source, &target]);
    assert_eq!(code, 0, "{report}");
    let number = |field: &str| report[field].as_u64().unwrap();
    assert_eq!(
        number("copied") + number("reused"),
        NAMES.len() as u64,
        "{report}"
    );
    assert!(method == "relay" || number("copied") == 0, "{report}");
}

#[tokio::test]
async fn a_tree_on_local_disk() {
    let (_dir, root) = temp();
    let (from, to) = (root.join("from").unwrap(), root.join("to").unwrap());
    a_tree_is_duplicated_whole(&local_stores(), &from, &to, "local-copy").await;
}

#[tokio::test]
async fn a_tree_from_bucket_to_bucket() {
    for (service, method) in [
        (Service::S3, "s3-copy"),
        (Service::Gcs, "gcs-rewrite"),
        (Service::Azure, "azure-copy"),
    ] {
        if service.is_there("trees from bucket to bucket") {
            let (from, to) = (service.place(0, "tree"), service.place(1, "tree"));
            a_tree_is_duplicated_whole(&emulator_stores(), &from, &to, method).await;
        }
    }
}

#[tokio::test]
async fn a_tree_from_service_to_service() {
    if Service::S3.is_there("trees between services")
        && Service::Gcs.is_there("trees between services")
    {
        let (from, to) = (Service::S3.place(0, "tree"), Service::Gcs.place(0, "tree"));
        a_tree_is_duplicated_whole(&emulator_stores(), &from, &to, "relay").await;
    }
}

#[tokio::test]
async fn an_object_that_differs_is_kept_and_reported_while_the_others_go_on() {
    let (dir, root) = temp();
    let stores = local_stores();
    let (from, to) = (root.join("from").unwrap(), root.join("to").unwrap());
    lay(&stores, &from).await;
    std::fs::create_dir_all(dir.path().join("to")).unwrap();
    std::fs::write(dir.path().join("to/plain"), b"another").unwrap();
    let (code, report) = run_json(&["duplicate", "-r", &from.to_string(), &to.to_string()]);
    assert_eq!(code, 3, "{report}");
    assert_eq!(
        (&report["failed"], &report["copied"]),
        (&json!(1), &json!(NAMES.len() - 1))
    );
    assert!(
        report["failures"][0]["destination"]
            .as_str()
            .unwrap()
            .ends_with("/to/plain")
    );
    assert_eq!(
        std::fs::read(dir.path().join("to/plain")).unwrap(),
        b"another"
    );
}

#[tokio::test]
async fn a_list_names_what_is_duplicated() {
    let (dir, root) = temp();
    let stores = local_stores();
    let (from, to) = (root.join("from").unwrap(), root.join("to").unwrap());
    lay(&stores, &from).await;
    let list = dir.path().join("list");
    std::fs::write(&list, "plain\ndeep/er/file\n\nwith blank\n").unwrap();
    let args = [
        "duplicate",
        &from.to_string(),
        &to.to_string(),
        "--from-list",
        list.to_str().unwrap(),
    ];
    let (code, report) = run_json(&args);
    assert_eq!((code, &report["copied"]), (0, &json!(3)), "{report}");
    let names: Vec<String> = below(&stores, &to)
        .await
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["/deep/er/file", "/plain", "/with blank"]);
    // A list that cannot be meant so copies nothing.
    std::fs::write(&list, "question?mark\n../outside\n").unwrap();
    assert_eq!(run(&args).status.code(), Some(2));
    assert_eq!(below(&stores, &to).await.len(), 3);
}

/// The others are copied, what is missing is named, and the same command goes on once it is there.
async fn missing_names_stop_nobody(stores: &Stores, from: &Location, to: &Location) {
    lay(stores, from).await;
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("list");
    let (list, source, target) = (list.to_str().unwrap(), from.to_string(), to.to_string());
    let args = ["duplicate", &source, &target, "--from-list", list];
    std::fs::write(list, "nothing\nplain\nnor/this\ndeep/er/file\n").unwrap();
    let (code, report) = run_json(&args);
    assert_eq!(code, 6, "{report}");
    let numbers = ["objects", "copied", "reused", "failed"].map(|f| report[f].as_u64().unwrap());
    assert_eq!(numbers, [4, 2, 0, 2], "{report}");
    let mut failed: Vec<&str> = report["failures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["destination"].as_str().unwrap())
        .collect();
    failed.sort_unstable();
    assert_eq!(
        failed,
        [format!("{target}/nor/this"), format!("{target}/nothing")]
    );
    assert_eq!(below(stores, to).await.len(), 2);
    let text = String::from_utf8(run(&args).stdout).unwrap();
    for part in [
        "4 objects",
        "failed: 2 objects",
        "/nor/this: no such",
        "run again",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for name in ["nothing", "nor/this"] {
        let at = from.join(name).unwrap();
        stores.put(&at, Bytes::from(name), true).await.unwrap();
    }
    let (code, report) = run_json(&args);
    assert_eq!((code, &report["failed"]), (0, &json!(0)), "{report}");
    assert_eq!(below(stores, to).await.len(), 4);
    // Where nothing was done, there is nothing to go on with.
    std::fs::write(list, "nobody\n").unwrap();
    let (code, report) = run_json(&args);
    assert_eq!((code, &report["failed"]), (1, &json!(1)), "{report}");
}

#[tokio::test]
async fn a_list_with_missing_names_copies_the_others_on_local_disk() {
    let (_dir, root) = temp();
    let (from, to) = (root.join("from").unwrap(), root.join("to").unwrap());
    missing_names_stop_nobody(&local_stores(), &from, &to).await;
}

#[tokio::test]
async fn a_list_with_missing_names_copies_the_others_on_each_service() {
    for service in Service::ALL {
        if !service.is_there("lists with missing names") {
            continue;
        }
        let (from, to) = (
            service.place(0, "missing-from"),
            service.place(1, "missing-to"),
        );
        missing_names_stop_nobody(&emulator_stores(), &from, &to).await;
    }
}

/// One object obeys the same rules on every store: an equal one is left, another is refused, and a slash at the end
/// of the destination makes a folder of it.
#[tokio::test]
async fn one_object_is_left_where_it_is_equal_on_each_service() {
    for service in Service::ALL {
        if !service.is_there("single objects") {
            continue;
        }
        let stores = emulator_stores();
        let (from, to) = (
            service.place(0, "single-from"),
            service.place(1, "single-to"),
        );
        let at = from.join("deep/one").unwrap();
        stores.put(&at, Bytes::from("equal"), true).await.unwrap();
        let (source, target) = (at.to_string(), format!("{to}/"));
        for reused in [false, true] {
            let (code, receipt) = run_json(&["duplicate", &source, &target]);
            assert_eq!((code, &receipt["reused"]), (0, &json!(reused)), "{receipt}");
            assert_eq!(receipt["destination"], json!(format!("{to}/one")));
        }
        stores.put(&at, Bytes::from("EQUAL"), false).await.unwrap();
        let named = format!("{to}/one");
        let output = run(&["duplicate", &source, &named]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{text}");
        assert!(text.contains("--overwrite"), "{text}");
        assert_eq!(
            run(&["duplicate", &source, &named, "--overwrite"])
                .status
                .code(),
            Some(0)
        );
        assert_eq!(run_json(&["duplicate", &source, &named]).0, 0);
    }
}

#[tokio::test]
async fn folders_inside_each_other_are_refused() {
    let (_dir, root) = temp();
    lay(&local_stores(), &root).await;
    let inside = root.join("deep").unwrap().to_string();
    for (from, to) in [
        (root.to_string(), inside.clone()),
        (inside, root.to_string()),
    ] {
        let output = run(&["duplicate", "-r", &from, &to]);
        assert_eq!(
            output.status.code(),
            Some(3),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[tokio::test]
async fn a_hard_link_is_made_only_when_asked_for_and_says_so() {
    let (dir, root) = temp();
    std::fs::write(dir.path().join("a"), b"one").unwrap();
    let (a, b) = (
        root.join("a").unwrap().to_string(),
        root.join("b").unwrap().to_string(),
    );
    let (code, receipt) = run_json(&["duplicate", &a, &b, "--hard-link"]);
    assert_eq!((code, &receipt["method"]), (0, &json!("local-hard-link")));
    std::fs::write(dir.path().join("a"), b"two").unwrap();
    assert_eq!(std::fs::read(dir.path().join("b")).unwrap(), b"two");
    let text = run(&["duplicate", &a, &b, "--hard-link", "--overwrite"]).stdout;
    assert!(String::from_utf8(text).unwrap().contains("not independent"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}

/// Two spellings of one folder: nothing may be lost by replacing a file with itself.
#[cfg(unix)]
#[tokio::test]
async fn a_tree_is_not_duplicated_onto_itself_through_a_link() {
    let (dir, root) = temp();
    let stores = local_stores();
    lay(&stores, &root.join("from").unwrap()).await;
    std::os::unix::fs::symlink(dir.path().join("from"), dir.path().join("link")).unwrap();
    let before = manifest(&stores, &root.join("from").unwrap()).await;
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    for args in [
        vec![
            "duplicate",
            "-r",
            &path("from"),
            &path("link"),
            "--overwrite",
            "--hard-link",
        ],
        vec![
            "duplicate",
            "-r",
            &path("from"),
            &path("link/deep"),
            "--overwrite",
        ],
        vec![
            "duplicate",
            &path("from/plain"),
            &path("link/plain"),
            "--overwrite",
            "--hard-link",
        ],
        vec![
            "duplicate",
            &path("from/plain"),
            &path("link/plain"),
            "--overwrite",
        ],
    ] {
        let output = run(&args);
        assert!([2, 3].contains(&output.status.code().unwrap()), "{args:?}");
        assert_eq!(
            manifest(&stores, &root.join("from").unwrap()).await,
            before,
            "{args:?}"
        );
    }
}

#[cfg(unix)]
#[tokio::test]
async fn what_a_tree_cannot_hold_or_does_not_have_is_an_error() {
    let (dir, root) = temp();
    let target = root.join("to").unwrap().to_string();
    let nothing = root.join("nothing").unwrap().to_string();
    assert_eq!(
        run(&["duplicate", "-r", &nothing, &target]).status.code(),
        Some(1)
    );
    std::fs::create_dir_all(dir.path().join("from/other")).unwrap();
    std::fs::write(dir.path().join("from/a\\b"), b"one").unwrap();
    std::fs::create_dir(dir.path().join("from/a")).unwrap();
    std::fs::write(dir.path().join("from/a/b"), b"two").unwrap();
    let from = root.join("from").unwrap().to_string();
    let (code, report) = run_json(&["duplicate", "-r", &from, &target, "--verify", "content"]);
    assert_eq!((code, &report["copied"]), (0, &json!(2)), "{report}");
    assert_eq!(std::fs::read(dir.path().join("to/a\\b")).unwrap(), b"one");
    assert_eq!(std::fs::read(dir.path().join("to/a/b")).unwrap(), b"two");
    // A folder behind a link would be left out, a pipe has no end, and a name that is not UTF-8 is none on a store.
    use std::os::unix::ffi::OsStrExt;
    let bad = dir.path().join("from/bad");
    std::fs::create_dir(&bad).unwrap();
    std::os::unix::fs::symlink(dir.path().join("from/other"), bad.join("linked")).unwrap();
    std::os::unix::fs::symlink("nowhere", bad.join("dangling")).unwrap();
    std::fs::write(bad.join(std::ffi::OsStr::from_bytes(b"odd\xff")), b"x").unwrap();
    std::fs::write(bad.join("good"), b"three").unwrap();
    let (code, report) = run_json(&["duplicate", "-r", &from, &target]);
    let text = report.to_string();
    assert_eq!(
        (
            code,
            &report["copied"],
            &report["reused"],
            &report["failed"]
        ),
        (6, &json!(1), &json!(2), &json!(3)),
        "{text}"
    );
    for named in ["bad/linked", "bad/dangling", "odd"] {
        assert!(text.contains(named), "{named}: {text}");
    }
    assert_eq!(
        std::fs::read(dir.path().join("to/bad/good")).unwrap(),
        b"three"
    );
    // What a deletion or a proof goes by stays all or nothing.
    assert!(
        local_stores()
            .list(&root.join("from").unwrap())
            .await
            .is_err()
    );
}

/// What lies behind a link below the destination is not what was named.
#[cfg(unix)]
#[tokio::test]
async fn nothing_is_written_through_a_link_below_the_destination() {
    let (dir, root) = temp();
    let stores = local_stores();
    let path = |name: &str| dir.path().join(name);
    lay(&stores, &root.join("from").unwrap()).await;
    std::fs::create_dir_all(path("other/er")).unwrap();
    std::fs::write(path("other/er/file"), b"precious").unwrap();
    std::fs::create_dir(path("to")).unwrap();
    std::os::unix::fs::symlink(path("other"), path("to/deep")).unwrap();
    let others = NAMES.len() - 1;
    let list = path("names");
    std::fs::write(&list, NAMES.join("\n")).unwrap();
    let (from, to, list) = (
        root.join("from").unwrap().to_string(),
        root.join("to").unwrap().to_string(),
        list.to_str().unwrap().to_string(),
    );
    for more in [
        ["--overwrite", "--verify", "none"].as_slice(),
        &["--overwrite"],
        &["--overwrite", "--from-list", &list],
    ] {
        let how = match more.contains(&"--from-list") {
            true => vec!["duplicate", from.as_str(), &to],
            false => vec!["duplicate", "-r", &from, &to],
        };
        let (code, report) = run_json(&[how.as_slice(), more].concat());
        assert_eq!((code, &report["copied"]), (3, &json!(others)), "{report}");
        assert!(report.to_string().contains("to/deep is a link"), "{report}");
        let kept = std::fs::read(path("other/er/file")).unwrap();
        assert_eq!(kept, b"precious", "{more:?}");
        assert_eq!(std::fs::read_dir(path("other/er")).unwrap().count(), 1);
    }
    // The destination itself may be one: it was named.
    std::fs::create_dir(path("real")).unwrap();
    std::os::unix::fs::symlink(path("real"), path("named")).unwrap();
    let named = root.join("named").unwrap().to_string();
    let (code, report) = run_json(&["duplicate", "-r", &from, &named]);
    assert_eq!(
        (code, &report["copied"]),
        (0, &json!(NAMES.len())),
        "{report}"
    );
}
