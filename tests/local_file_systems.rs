//! Duplicates on file systems that can share blocks, and across two of them. Needs root, loop devices
//! and the tools of the file systems; says what it leaves out without them.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(target_os = "linux")]

mod support;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use support::mounted::Mounted;
use support::run_json;

fn duplicate(from: &Path, to: &Path) -> String {
    let (code, receipt) = run_json(&["duplicate", from.to_str().unwrap(), to.to_str().unwrap()]);
    assert_eq!(
        (code, &receipt["bytes"]),
        (0, &json!(std::fs::metadata(from).unwrap().len()))
    );
    assert_eq!(std::fs::read(from).unwrap(), std::fs::read(to).unwrap());
    receipt["method"].as_str().unwrap().to_string()
}

fn blocks_are_shared_and_copies_independent(make: &[&str]) {
    let Some(mounted) = Mounted::new(make) else {
        return;
    };
    let (a, b) = (mounted.folder.join("a"), mounted.folder.join("sub/b"));
    std::fs::write(&a, vec![7; 8 << 20]).unwrap();
    assert_eq!(duplicate(&a, &b), "local-reflink");
    let mut file = std::fs::OpenOptions::new().write(true).open(&a).unwrap();
    file.write_all(b"changed").unwrap();
    assert_eq!(std::fs::read(&b).unwrap(), vec![7; 8 << 20]);
    // To another file system and back: nothing can be shared.
    let elsewhere = tempfile::tempdir().unwrap();
    assert_eq!(duplicate(&b, &elsewhere.path().join("c")), "local-copy");
    assert_eq!(
        duplicate(&elsewhere.path().join("c"), &mounted.folder.join("d")),
        "local-copy"
    );
    let only = |from: &Path, to: &Path| {
        let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
        support::run(&["duplicate", "--reflink-only", from, to])
            .status
            .code()
    };
    assert_eq!(only(&b, &mounted.folder.join("e")), Some(0));
    assert_eq!(only(&b, &mounted.folder.join("e")), Some(0), "it is there");
    assert_eq!(only(&a, &mounted.folder.join("e")), Some(3), "another is");
    assert_eq!(only(&b, &elsewhere.path().join("e")), Some(1));
    assert!(!elsewhere.path().join("e").exists());
}

#[test]
fn on_xfs_a_duplicate_shares_blocks() {
    blocks_are_shared_and_copies_independent(&["mkfs.xfs", "-q"]);
}

#[test]
fn on_btrfs_a_duplicate_shares_blocks() {
    blocks_are_shared_and_copies_independent(&["mkfs.btrfs", "-q"]);
}

/// A file system in memory; false where nobody may mount one.
fn mount_tmpfs(at: &Path, options: &str) -> bool {
    let done = Command::new("mount")
        .args(["-t", "tmpfs", "-o", options, "tmpfs"])
        .arg(at)
        .stderr(Stdio::null())
        .status();
    done.is_ok_and(|s| s.success())
}

/// A disk that is full: nothing half-written is seen, and the same command goes on when there is room.
#[tokio::test]
async fn a_full_disk_stops_a_fork_that_then_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mount = |options: &str| mount_tmpfs(&small, options);
    if !mount("size=100k") {
        let _ = writeln!(
            std::io::stderr(),
            "left out: a small disk cannot be mounted here"
        );
        return;
    }
    let root = support::at(dir.path().to_str().unwrap());
    let fixture = support::fixture("1.20.5-rocks-inc-p2");
    let original = root.join("original").unwrap();
    fixture.lay(&support::local_stores(), &original).await;
    let snapshot = original.join(&fixture.newest()).unwrap().to_string();
    let target = small.join("fork").to_str().unwrap().to_string();
    let output = support::run(&["fork", &snapshot, &target]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let committed = small.join("fork/chk-4/_metadata").exists();
    let roomy = mount("remount,size=10m");
    let (code, report) = run_json(&["fork", &snapshot, &target]);
    let _ = Command::new("umount").arg(&small).status();
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(
        said.contains("no space is left")
            && said.contains("free some space")
            && said.contains("run the same command again"),
        "{said}"
    );
    assert!(!committed && roomy);
    assert_eq!(code, 0);
    assert!(report["reused"].as_u64().unwrap() > 0, "{report}");
}

/// A rerun on a disk that is full by now, or that may only be read, finds what it would write.
#[test]
fn equal_files_need_neither_room_nor_the_right_to_write() {
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    std::fs::create_dir(&small).unwrap();
    if !mount_tmpfs(&small, "size=100k") {
        let _ = writeln!(
            std::io::stderr(),
            "left out: a small disk cannot be mounted here"
        );
        return;
    }
    let path = |at: &Path| at.to_str().unwrap().to_string();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    for n in 0..10u8 {
        std::fs::write(tree.join(format!("{n}")), vec![n; 4096]).unwrap();
    }
    let (from, to) = (path(&tree), path(&small.join("to")));
    let (one, other) = (path(&tree.join("3")), path(&small.join("to/3")));
    let first = run_json(&["duplicate", "-r", &from, &to]);
    let full = std::fs::write(small.join("rest"), vec![0; 100 * 1024]).is_err();
    let again = || {
        (
            run_json(&["duplicate", "-r", &from, &to]),
            run_json(&["duplicate", &one, &other]),
        )
    };
    let on_full = again();
    std::fs::write(tree.join("new"), vec![1; 64 * 1024]).unwrap();
    let new = run_json(&["duplicate", "-r", &from, &to]);
    std::fs::remove_file(tree.join("new")).unwrap();
    let on_read_only = mount_tmpfs(&small, "remount,ro").then(again);
    let _ = Command::new("umount").arg(&small).status();
    assert_eq!((first.0, &first.1["copied"]), (0, &serde_json::json!(10)));
    assert!(full);
    for ((code, report), (one_code, receipt)) in [on_full, on_read_only.unwrap()] {
        assert_eq!(
            (code, &report["reused"]),
            (0, &serde_json::json!(10)),
            "{report}"
        );
        assert_eq!(
            (one_code, &receipt["reused"]),
            (0, &serde_json::json!(true)),
            "{receipt}"
        );
    }
    let (code, report) = new;
    assert_eq!(
        (code, &report["reused"], &report["failed"]),
        (6, &serde_json::json!(10), &serde_json::json!(1)),
        "{report}"
    );
}

/// What helps is said by every way of writing, and what does not pass by itself is not called "unavailable".
#[test]
fn a_disk_that_takes_no_more_is_named_with_what_helps() {
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mount = |options: &str| mount_tmpfs(&small, options);
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("large"), vec![7; 1 << 20]).unwrap();
    let path = |at: &Path| at.to_str().unwrap().to_string();
    let (large, tree) = (path(&tree.join("large")), path(&tree));
    let told = |args: &[&str]| {
        let output = support::run(args);
        // A tree names what failed in its report.
        let said = [output.stderr, output.stdout].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        (output.status.code(), said)
    };
    // The standard output may be a file on a full disk too.
    let full = std::fs::File::options().write(true).open("/dev/full");
    let printed = support::command(&["ls", &tree])
        .stdout(full.unwrap())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&printed.stderr).into_owned();
    assert_eq!(printed.status.code(), Some(1), "{said}");
    assert!(
        said.contains("no space is left") && said.contains("free some space"),
        "{said}"
    );
    if !mount("size=100k") {
        let _ = writeln!(
            std::io::stderr(),
            "left out: a small disk cannot be mounted here"
        );
        return;
    }
    let (one, many) = (path(&small.join("one")), path(&small.join("many")));
    let outcomes = [
        told(&["duplicate", &large, &one]),
        told(&["duplicate", "-r", &tree, &many]),
    ];
    let read_only = mount("remount,ro").then(|| told(&["duplicate", &large, &one]));
    let _ = Command::new("umount").arg(&small).status();
    for (code, said) in outcomes {
        assert_eq!(code, Some(6), "{said}");
        assert!(said.contains("no space is left"), "{said}");
    }
    let (code, said) = read_only.unwrap();
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("reading only") && said.contains("write elsewhere"),
        "{said}"
    );
}
