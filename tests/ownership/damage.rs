//! An object that is too short, or of any other size than the metadata says, is lost: nothing else may be deleted for it.

use crate::support::lab::{FILE_BYTES, Lab};
use crate::support::{fixtures, local_stores, run, run_json, temp};
use bytes::Bytes;
use forkpoint::ownership::{MissingReason, RetentionReason, StayReason};
use forkpoint::snapshot::RestoreMode;
use forkpoint::store::Location;
use serde_json::json;

async fn resize(lab: &Lab, at: &Location, bytes: u64) {
    let content = Bytes::from(vec![b'x'; bytes as usize]);
    lab.stores.put(at, content, false).await.unwrap();
}

async fn two() -> (tempfile::TempDir, Lab) {
    let (dir, root) = temp();
    let lab = Lab::at(local_stores(), root);
    lab.complete("a", 3, &["a:one", "a:3/own"]).await;
    lab.complete("a", 4, &["a:one", "a:4/own"]).await;
    (dir, lab)
}

#[tokio::test]
async fn an_object_of_another_size_is_as_lost_as_one_that_is_not_there() {
    for size in [0, FILE_BYTES - 1, FILE_BYTES + 1] {
        let (_dir, lab) = two().await;
        let own = lab.file("a:4/own");
        resize(&lab, &own, size).await;
        let (third, fourth) = (lab.directory("a", 3), lab.directory("a", 4));
        let at = fourth.to_string();
        let (code, listed) = run_json(&["ls", &lab.root.to_string()]);
        let snapshots = &listed["snapshots"];
        assert_eq!(
            (code, &snapshots[0]["missing_objects"]),
            (0, &json!(0)),
            "{size}"
        );
        assert_eq!(snapshots[1]["missing_objects"], json!(1), "{size}");
        assert_eq!(snapshots[1]["wrong_size_objects"], json!(1), "{size}");
        let text = run(&["ls", &lab.root.to_string()]).stdout;
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("no, 1 of wrong size"), "{text}");
        let shown = run(&["show", &at]);
        let text = String::from_utf8(shown.stdout).unwrap();
        assert_eq!(shown.status.code(), Some(5), "{text}");
        assert!(
            text.contains("of another size than the metadata says: 1 object"),
            "{text}"
        );
        assert_eq!(run(&["verify", &at]).status.code(), Some(5));
        let why = lab.why(&fourth).await;
        assert_eq!((why.lost, why.wrong_size), (1, 1));
        assert!(why.notes.iter().any(|n| n.contains("cannot")), "{why:?}");
        assert!(!why.notes.iter().any(|n| n.contains("newest")), "{why:?}");
        let before = lab.why(&third).await;
        let newest = |n: &String| n.contains("newest intact checkpoint");
        assert!(before.notes.iter().any(newest), "{before:?}");
        for mode in ["claim", "no-claim", "legacy"] {
            let refused = run(&["claim", &at, "--job", "b", "--mode", mode]);
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(3), "{said}");
            assert!(said.contains("another size"), "{said}");
        }
        // The intact one is the last one that counts, and the damaged one is left for a person.
        let (plan, _) = lab.plan(&["last=1"]).await;
        assert_eq!(plan.header.snapshots, []);
        let fate = plan.staying().find(|f| f.directory == fourth).unwrap();
        assert!(
            fate.stays
                .contains(&StayReason::Retention(RetentionReason::Damaged))
        );
        lab.clean(&["last=1"]).await;
        assert!(lab.has(&third).await && lab.is_there(&lab.file("a:3/own")).await);
    }
}

#[tokio::test]
async fn a_snapshot_with_a_missing_object_is_not_claimed() {
    let (_dir, lab) = two().await;
    lab.stores.delete(&lab.file("a:4/own")).await.unwrap();
    let refused = lab
        .start(&lab.directory("a", 4), "b", RestoreMode::Claim, false)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("are not there"), "{refused}");
    // The one before it is whole.
    let before = lab.directory("a", 3);
    lab.start(&before, "b", RestoreMode::NoClaim, false)
        .await
        .unwrap();
}

/// In all fixtures each declared size is that of the object: each file that is a byte shorter is found.
#[tokio::test]
async fn in_every_fixture_a_file_that_was_cut_short_is_found_and_no_other() {
    for fixture in fixtures() {
        let (_dir, root) = temp();
        let lab = Lab::at(local_stores(), root);
        fixture.lay(&lab.stores, &lab.root).await;
        let survey = lab.look().await;
        assert!(
            survey.nodes.iter().all(|n| n.wrong_size == 0),
            "{}",
            fixture.name
        );
        let snapshot = lab.root.join(&fixture.newest()).unwrap();
        let (_, shown) = run_json(&["show", &snapshot.to_string()]);
        let files = shown["files"].as_array().unwrap();
        let sized = |f: &&serde_json::Value| {
            f["size"].as_u64() > Some(0) && f["declared_size"].as_u64() == f["size"].as_u64()
        };
        let Some(file) = files.iter().find(sized) else {
            continue;
        };
        let at = crate::support::at(file["location"].as_str().unwrap());
        resize(&lab, &at, file["size"].as_u64().unwrap() - 1).await;
        let survey = lab.look().await;
        let node = &survey.nodes[survey.find(&snapshot).unwrap()];
        assert_eq!(
            (node.missing, node.wrong_size),
            (1, 1),
            "{} {at}",
            fixture.name
        );
        assert_eq!(survey.missing, [], "{}", fixture.name);
    }
}

#[cfg(unix)]
#[tokio::test]
async fn metadata_without_access_is_unknown_to_every_verb() {
    use std::os::unix::fs::PermissionsExt;
    let (_dir, lab) = two().await;
    let snapshot = lab.directory("a", 4);
    let metadata = snapshot.join("_metadata").unwrap().local_path().unwrap();
    std::fs::set_permissions(&metadata, std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::read(&metadata).is_ok() {
        // Root reads everything.
        return;
    }
    let at = snapshot.to_string();
    for verb in ["show", "verify", "why"] {
        let said = run(&[verb, &at]);
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(4), "{verb}: {text}");
        assert!(text.contains("give read access"), "{verb}: {text}");
    }
    let survey = lab.look().await;
    assert_eq!(survey.missing[0].reason, MissingReason::UnreadableMetadata);
    let before = lab.why(&lab.directory("a", 3)).await;
    let newest = |n: &String| n.contains("newest intact checkpoint");
    assert!(before.notes.iter().any(newest), "{before:?}");
}

#[tokio::test]
async fn a_clean_at_work_is_seen_by_ls_and_why() {
    let (_dir, lab) = two().await;
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64;
    let mark = json!({
        "version": 1,
        "nonce": "0123456789abcdef",
        "plan": "feedbeef00000000",
        "created_unix_ms": now,
        "until_unix_ms": now + 3_600_000,
        "snapshots": ["chk-3"],
        "orphans": false,
    });
    let at = lab.home("a").join(".forkpoint/going/x.json").unwrap();
    let bytes = Bytes::from(mark.to_string());
    lab.stores.put(&at, bytes, true).await.unwrap();
    let text = |args: &[&str]| String::from_utf8(run(args).stdout).unwrap();
    let why = text(&["why", &lab.directory("a", 3).to_string()]);
    assert!(why.contains("plan feedbeef00000000 of a clean"), "{why}");
    let other = text(&["why", &lab.directory("a", 4).to_string()]);
    assert!(!other.contains("feedbeef"), "{other}");
    let listed = text(&["ls", &lab.root.to_string()]);
    assert_eq!(listed.matches("being deleted by plan feedbeef").count(), 1);
}
