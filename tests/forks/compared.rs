//! Every byte of a fork against what it was made from, wherever another tool has moved that.

use std::path::{Path, PathBuf};

use crate::support::{fixtures, local_stores, run, run_json, synthetic, temp, walk};
use forkpoint::store::Location;
use serde_json::{Value, json};

fn flip(at: &Path) {
    let mut bytes = std::fs::read(at).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(at, bytes).unwrap();
}

/// The files below a folder but the metadata.
fn files(folder: &Location) -> Vec<PathBuf> {
    let mut all = walk(&folder.local_path().unwrap());
    all.retain(|path| path.file_name().unwrap() != "_metadata");
    all
}

#[tokio::test]
async fn a_fork_of_what_another_tool_has_moved_is_compared_with_it_byte_by_byte() {
    let mut compared = 0;
    for fixture in fixtures() {
        let newest = fixture.newest();
        let (dir, root) = temp();
        fixture.copy_as_made(&dir.path().join("moved"));
        let source = root
            .join("moved")
            .unwrap()
            .join(&newest)
            .unwrap()
            .to_string();
        let (first, second) = (root.join("fork").unwrap(), root.join("second").unwrap());
        let old = fixture.root_uri().to_string();
        let given = format!("{old}={}", root.join("moved").unwrap());
        for (to, moved) in [(&first, &old), (&second, &given)] {
            let args = ["fork", &source, &to.to_string(), "--moved-from", moved];
            let (code, forked) = run_json(&args);
            // References that are all relative have no old place.
            if code == 2 {
                continue;
            }
            assert_eq!(code, 0, "{}: {forked}", fixture.name);
            let copy = forked["snapshot"].as_str().unwrap().to_string();
            let against = ["verify", &copy, "--against", &source, "--moved-from", moved];
            let (code, report) = run_json(&against);
            assert_eq!(
                (code, &report["problems"], &report["compared"]),
                (0, &json!([]), &json!({"original": source})),
                "{} {moved}",
                fixture.name
            );
            for path in files(to).iter().take(2) {
                flip(path);
                let (code, report) = run_json(&against);
                assert_eq!(code, 5, "{}: {report}", fixture.name);
                assert_eq!(report["problems"].as_array().unwrap().len(), 1, "{report}");
                flip(path);
                compared += 1;
            }
        }
    }
    assert!(compared > 20, "{compared}");
}

/// Here the copy was made by such a tool, and the original lies where its job wrote it.
#[tokio::test]
async fn a_moved_copy_is_compared_with_its_original() {
    let (dir, root) = temp();
    let stores = local_stores();
    let fixture = crate::support::fixture("1.20.5-rocks-inc-p2");
    let original = root.join("original").unwrap();
    fixture.lay(&stores, &original).await;
    let copied = dir.path().join("copied");
    for path in walk(&original.local_path().unwrap()) {
        let to = copied.join(path.strip_prefix(original.local_path().unwrap()).unwrap());
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(&path, to).unwrap();
    }
    let at = |folder: &Location| folder.join(&fixture.newest()).unwrap().to_string();
    let copied = root.join("copied").unwrap();
    let (source, copy) = (at(&original), at(&copied));
    // Plainly both name the files of the original.
    let plain = run(&["verify", &copy, "--against", &source]);
    let said = String::from_utf8_lossy(&plain.stderr).into_owned();
    assert_eq!(plain.status.code(), Some(2), "{said}");
    assert!(
        said.contains("very same files") && said.contains("--moved-from"),
        "{said}"
    );
    for moved in [original.to_string(), format!("{original}={copied}")] {
        let against = [
            "verify",
            &copy,
            "--against",
            &source,
            "--moved-from",
            &moved,
        ];
        let (code, report) = run_json(&against);
        assert_eq!(
            (code, &report["problems"]),
            (0, &json!([])),
            "{moved}: {report}"
        );
        let used: Vec<PathBuf> = forked_files(&report, &copied, &source);
        for path in used.iter().take(3) {
            flip(path);
            assert_eq!(run_json(&against).0, 5, "{moved}");
            flip(path);
        }
    }
}

/// A snapshot that has as many references and says something else is another one: nothing of it is called damaged, and
/// nobody is told to overwrite its objects.
#[tokio::test]
async fn no_file_is_compared_with_those_of_another_snapshot_of_the_same_shape() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let lay = |name: &str| root.join(name).unwrap();
    let first = synthetic::lay(&stores, &lay("first"), 3, 50).await;
    let metadata = first.join("_metadata").unwrap();
    let target = lay("fork").to_string();
    let (code, forked) = run_json(&["fork", &first.to_string(), &target]);
    assert_eq!(code, 0, "{forked}");
    let copy = forked["snapshot"].as_str().unwrap();
    let against = ["verify", copy, "--against", &first.to_string()];
    assert_eq!(run_json(&against).0, 0);
    // The number of the checkpoint, behind the magic number and the version.
    let path = metadata.local_path().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[15] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let refused = run(&against);
    let said = [refused.stdout, refused.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    assert_eq!(refused.status.code(), Some(5), "{said}");
    assert!(
        said.contains("1 problem") && said.contains("no file was compared"),
        "{said}"
    );
    assert!(!said.contains("--overwrite"), "{said}");
}

/// Files of the copy that its snapshot needs.
fn forked_files(report: &Value, copied: &Location, source: &str) -> Vec<PathBuf> {
    assert!(report["objects"].as_u64().unwrap() > 0);
    let (_, shown) = run_json(&["show", source]);
    let needed: Vec<String> = shown["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| {
            file["location"]
                .as_str()
                .unwrap()
                .rsplit('/')
                .next()
                .unwrap()
                .to_string()
        })
        .collect();
    let mut all = files(copied);
    all.retain(|path| needed.contains(&path.file_name().unwrap().to_str().unwrap().to_string()));
    assert!(all.len() >= 3);
    all
}

#[tokio::test]
async fn a_fork_that_is_run_again_says_what_it_compared_and_compares_every_byte_if_asked() {
    let (dir, root) = temp();
    let fixture = crate::support::fixture("1.20.5-rocks-inc-p2");
    fixture.copy_as_made(&dir.path().join("moved"));
    let source = root
        .join("moved")
        .unwrap()
        .join(&fixture.newest())
        .unwrap()
        .to_string();
    let target = root.join("fork").unwrap();
    let to = target.to_string();
    let plain = ["fork", &source, &to, "--moved-from", fixture.root_uri()];
    let content = [&plain[..], &["--verify", "content"]].concat();
    let text = |args: &[&str]| String::from_utf8(run(args).stdout).unwrap();
    let said = text(&plain);
    assert!(
        said.contains("besides the metadata") && !said.contains("by size alone"),
        "{said}"
    );
    let (code, again) = run_json(&content);
    assert_eq!((code, &again["verified"]), (0, &json!("content")));
    assert!(text(&content).contains("every byte is as in the original"));
    let damaged = files(&target)[0].clone();
    flip(&damaged);
    // Sizes do not show it, and that is said.
    let (code, again) = run_json(&plain);
    assert_eq!((code, &again["verified"]), (0, &json!("size")));
    let said = text(&plain);
    assert!(
        said.contains("by size alone") && said.contains("--verify content"),
        "{said}"
    );
    let refused = run(&content);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(5), "{said}");
    assert!(said.contains(damaged.to_str().unwrap()), "{said}");
    // The way to repair it that is said does it.
    assert!(said.contains("duplicate --overwrite"), "{said}");
    let found = said.split("other bytes than ").nth(1).unwrap();
    let good = found
        .split_whitespace()
        .next()
        .unwrap()
        .trim_end_matches(';');
    let repaired = run(&["duplicate", "--overwrite", good, damaged.to_str().unwrap()]);
    assert_eq!(repaired.status.code(), Some(0), "{repaired:?}");
    assert_eq!(run(&content).status.code(), Some(0));
}

#[tokio::test]
async fn show_prints_what_is_known_and_exits_5_where_files_are_missing() {
    let (dir, root) = temp();
    let fixture = crate::support::fixture("1.20.5-rocks-inc-p2");
    fixture.copy_as_made(&dir.path().join("moved"));
    let snapshot = root
        .join("moved")
        .unwrap()
        .join(&fixture.newest())
        .unwrap()
        .to_string();
    let shown = run(&["show", &snapshot]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert_eq!(shown.status.code(), Some(5), "{text}");
    assert!(
        text.contains("missing: 15 objects") && text.contains("operators"),
        "{text}"
    );
    // Nobody looked, or all are there.
    for more in [&["--no-stat"][..], &["--moved-from", fixture.root_uri()]] {
        let args = [&["show", &snapshot], more].concat();
        assert_eq!(run(&args).status.code(), Some(0), "{more:?}");
    }
}
