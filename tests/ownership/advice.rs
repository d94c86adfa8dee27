//! What people are told to do next: never to remove what nobody has read, and the command that really helps.

use crate::support::lab::Lab;
use crate::support::{fixture, local_stores, run, run_json, temp};
use crate::tampered::Tampered;
use bytes::Bytes;
use forkpoint::ErrorKind;
use forkpoint::ownership::clean::plan_clean;
use forkpoint::ownership::{
    ClaimRequest, CleanPolicy, Doubt, Lineage, MissingReason, PinRequest, claim, family_tree,
    judge, pin, survey, usage,
};
use forkpoint::progress::Silent;
use forkpoint::report::{clean_text, ls_text, usage_text, why_text};
use forkpoint::snapshot::RestoreMode;
use forkpoint::store::Location;
use serde_json::json;

/// Everything that `ls`, `why`, `usage`, `clean` and `claim` say while something cannot be had.
async fn all_that_is_said(access: &Tampered, lab: &Lab, of: &Location) -> String {
    let roots = std::slice::from_ref(&lab.root);
    let seen = survey(access, roots, &Silent).await.unwrap();
    assert!(!seen.missing.is_empty());
    let lineage = Lineage::new(&seen);
    let mut said = ls_text(&family_tree(&lineage, roots));
    let found = seen
        .find(of)
        .and_then(|node| judge(&lineage, node, seen.taken_at));
    said.extend(found.map(|verdict| why_text(&verdict)));
    said.push_str(&usage_text(&usage(&lineage, roots, 0)));
    let plan = plan_clean(&lineage, roots, &[], &CleanPolicy::default(), seen.taken_at);
    said.push_str(&clean_text(&plan));
    let mut nowhere = Vec::new();
    let refused = plan.write(&lineage, &mut nowhere).unwrap_err();
    said.push_str(refused.next_step().unwrap());
    let request = ClaimRequest {
        snapshot: of.clone(),
        job: "somebody".into(),
        mode: RestoreMode::Claim,
        chain: false,
        guessed_roots: false,
    };
    let refused = claim(access, roots, &request, &Silent).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Incomplete);
    said + refused.next_step().unwrap()
}

const READS_THAT_FAIL: [ErrorKind; 6] = [
    ErrorKind::Denied,
    ErrorKind::Unavailable,
    ErrorKind::Unsupported,
    ErrorKind::Invalid,
    // As a body that was cut off on its way may be told.
    ErrorKind::Corrupt,
    ErrorKind::Internal,
];

#[tokio::test]
async fn what_could_not_be_read_is_never_said_to_be_removed_by_hand() {
    let lab = Lab::new();
    lab.complete("a", 1, &["a:one"]).await;
    let other = lab.complete("b", 2, &["b:one"]).await;
    let request = PinRequest {
        name: "audit".into(),
        owner: "me".into(),
        reason: "audit".into(),
        expires_unix_ms: None,
        fork: None,
    };
    pin(&lab.stores, &other, &request).await.unwrap();
    let record = lab
        .home("b")
        .join(".forkpoint/pins/chk-2/audit.json")
        .unwrap();
    let metadata = lab.directory("a", 1).join("_metadata").unwrap();
    for at in [&metadata, &record, &lab.root] {
        for kind in READS_THAT_FAIL {
            let access = Tampered::failing(&lab.stores, at.clone(), kind);
            for of in [&other, &lab.directory("a", 1)] {
                let said = all_that_is_said(&access, &lab, of).await;
                for word in [
                    "by hand",
                    "remove its",
                    "remove it ",
                    "removes",
                    "lost for good",
                ] {
                    assert!(!said.contains(word), "{at} {kind}: `{word}` in {said}");
                }
                match kind {
                    ErrorKind::Denied if *at == lab.root => {
                        assert!(said.contains("give the right to list"), "{said}");
                    }
                    ErrorKind::Denied => {
                        assert!(
                            said.contains("give read access to it and ask again"),
                            "{said}"
                        );
                    }
                    _ => assert!(said.contains("again"), "{kind}: {said}"),
                }
            }
        }
    }
    // What was read, and is damaged, may be lost.
    for (at, reason) in [
        (&metadata, MissingReason::DamagedMetadata),
        (&record, MissingReason::DamagedRecord),
    ] {
        let good = lab.stores.read(at, 1 << 20).await.unwrap();
        let half = good.slice(..good.len() / 2);
        lab.stores.put(at, half, false).await.unwrap();
        let seen = lab.look().await;
        assert_eq!(seen.missing[0].reason, reason);
        assert!(
            seen.missing[0].next_step().contains("only if"),
            "{reason:?}"
        );
        lab.stores.put(at, good, false).await.unwrap();
    }
}

/// On a real file system, where the one who asks is not the administrator.
#[cfg(unix)]
#[tokio::test]
async fn a_denied_read_on_local_disk_asks_for_access() {
    use std::os::unix::fs::PermissionsExt;
    let (_dir, root) = temp();
    let lab = Lab::at(local_stores(), root);
    lab.complete("a", 1, &["a:one"]).await;
    let at = lab
        .directory("a", 1)
        .join("_metadata")
        .unwrap()
        .local_path()
        .unwrap();
    std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::read(&at).is_ok() {
        return; // The administrator may read everything: the test above has said it.
    }
    let said = run(&["why", &lab.directory("a", 1).to_string()]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(
        said.contains("give read access") && !said.contains("by hand"),
        "{said}"
    );
}

/// The first thing that somebody sees who tries the fixtures, which other tools have moved.
#[tokio::test]
async fn objects_outside_of_the_roots_are_counted_as_such() {
    let (dir, root) = temp();
    let fixture = fixture("1.20.5-rocks-inc-p2");
    fixture.copy_as_made(dir.path());
    let snapshot = root.join(&fixture.newest()).unwrap().to_string();
    let (code, why) = run_json(&["why", &snapshot]);
    assert_eq!(code, 3, "{why}");
    let number = |at: &serde_json::Value| at.as_u64().unwrap();
    assert_eq!(number(&why["refers_to"]), 16);
    assert_eq!(number(&why["outside"]), 15);
    assert_eq!(
        (number(&why["total"]["objects"]), number(&why["lost"])),
        (1, 0)
    );
    assert_eq!(why["reasons"][0]["seen_objects"], json!(0));
    let text = String::from_utf8(run(&["why", &snapshot]).stdout).unwrap();
    assert!(
        text.contains("refers to 6 of its 16 objects, 0 of them seen below the roots, 0 B"),
        "{text}"
    );
    assert!(
        text.contains("of 16 objects, 1 seen below the roots, ")
            && text.contains(", and 15 outside of the roots that were looked at: deleting it"),
        "{text}"
    );
}

#[tokio::test]
async fn usage_says_that_metadata_is_damaged_and_blames_no_file_of_its_job() {
    let lab = Lab::new();
    lab.complete("a", 1, &["a:one", "a:1/own"]).await;
    lab.complete("b", 2, &["b:one"]).await;
    lab.write("b:lost").await;
    let at = lab.directory("a", 1).join("_metadata").unwrap();
    let good = lab.stores.read(&at, 1 << 20).await.unwrap();
    for bytes in [good.slice(..good.len() / 2), Bytes::new()] {
        lab.stores.put(&at, bytes, false).await.unwrap();
        let seen = lab.look().await;
        let roots = std::slice::from_ref(&lab.root);
        let usage = usage(&Lineage::new(&seen), roots, 0);
        assert_eq!(usage.unknown[Doubt::UnreadCommit.as_str()].objects, 1);
        assert_eq!(usage.unknown[Doubt::OfUnreadSnapshot.as_str()].objects, 2);
        assert!(
            !usage.unknown.contains_key(Doubt::StrangeName.as_str()),
            "{usage:?}"
        );
        assert_eq!(
            usage.orphans.values().map(|a| a.objects).sum::<u64>(),
            1,
            "of the other job"
        );
    }
}

#[tokio::test]
async fn one_job_has_one_name_everywhere() {
    let (_dir, root) = temp();
    let lab = Lab::at(local_stores(), root);
    let source = lab.complete("a", 1, &["a:one"]).await.to_string();
    let target = lab.root.join("forks").unwrap().to_string();
    let (code, forked) = run_json(&["fork", &source, &target]);
    assert_eq!(code, 0);
    let forked = forked["snapshot"].as_str().unwrap();
    let text = |args: &[&str]| String::from_utf8(run(args).stdout).unwrap();
    for args in [["ls", &target], ["lineage", &target], ["why", forked]] {
        let said = text(&args);
        let said = said.lines().filter(|line| !line.starts_with(forked));
        assert!(
            said.clone().any(|line| line.contains(&target)),
            "{args:?}: {said:?}"
        );
    }
    assert!(!text(&["why", forked]).contains("without a folder"));
    assert!(text(&["ls", "--help"]).contains("Metadata is counted too"));
}
