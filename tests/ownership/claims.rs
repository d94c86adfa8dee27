//! Claims as people make them: of what is not there, by a shortened id, of a job's own snapshot.

use crate::support::lab::Lab;
use crate::support::{local_stores, run, run_json, temp};
use crate::tampered::Tampered;
use forkpoint::ErrorKind;
use forkpoint::ownership::{Access, ClaimRequest, claim};
use forkpoint::progress::Silent;
use forkpoint::snapshot::RestoreMode;
use serde_json::json;

fn said(args: &[&str]) -> (Option<i32>, String) {
    let output = run(args);
    let all = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(all).unwrap())
}

async fn laid() -> (tempfile::TempDir, Lab) {
    let (dir, root) = temp();
    let lab = Lab::at(local_stores(), root);
    // Ids are hex digits, and are found by their beginnings.
    lab.complete("aaaaaaaa1", 1, &["aaaaaaaa1:one"]).await;
    lab.complete("aaaaaaaa2", 1, &["aaaaaaaa2:one"]).await;
    lab.complete("bbbbbbbb3", 4, &["bbbbbbbb3:one"]).await;
    (dir, lab)
}

#[tokio::test]
async fn a_snapshot_that_is_not_there_is_said_to_be_missing_whatever_else_cannot_be_read() {
    let (_dir, lab) = laid().await;
    let broken = lab.directory("bbbbbbbb3", 5).join("_metadata").unwrap();
    lab.stores.put(&broken, vec![1].into(), true).await.unwrap();
    let nothing = lab.directory("aaaaaaaa1", 9).to_string();
    let (code, text) = said(&["claim", &nothing, "--job", "new"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("no snapshot here") && !text.contains("chk-5"),
        "{text}"
    );
    // One that is there, and cannot be read, says so of itself.
    let own = lab.directory("bbbbbbbb3", 5).to_string();
    let (code, text) = said(&["claim", &own, "--job", "new"]);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("chk-5"), "{text}");
    // Another root is no proof of anything.
    let (_dir, elsewhere) = temp();
    let there = lab.directory("aaaaaaaa1", 1).to_string();
    let (code, text) = said(&[
        "claim",
        &there,
        "--job",
        "new",
        "--root",
        &elsewhere.to_string(),
    ]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("below none of the roots"), "{text}");
}

#[tokio::test]
async fn the_beginning_of_a_job_s_id_means_that_job() {
    let (_dir, lab) = laid().await;
    let source = lab.directory("aaaaaaaa1", 1).to_string();
    let whole = format!("{:0<32}", "bbbbbbbb3");
    // As `ls` prints it.
    let printed = said(&["ls", &lab.root.to_string()]).1;
    assert!(printed.contains("bbbbbbbb  "), "{printed}");
    let (code, claimed) = run_json(&["claim", &source, "--job", "bbbbbbbb", "--mode", "no-claim"]);
    assert_eq!((code, &claimed["job"]), (0, &json!(whole)));
    let (code, released) = run_json(&[
        "claim",
        &source,
        "--job",
        "bbbbbbbb",
        "--mode",
        "no-claim",
        "--release",
    ]);
    assert_eq!((code, &released["released"]), (0, &json!(true)));
    // Of two it may be either.
    let source = lab.directory("bbbbbbbb3", 4).to_string();
    let (code, text) = said(&["claim", &source, "--job", "aaaaaaaa"]);
    assert_eq!(code, Some(3), "{text}");
    assert!(
        text.contains("aaaaaaaa1000") && text.contains("aaaaaaaa2000"),
        "{text}"
    );
    let (code, claimed) = run_json(&["claim", &source, "--job", "aaaaaaaa1"]);
    assert_eq!(code, 0);
    assert_eq!(claimed["job"], json!(format!("{:0<32}", "aaaaaaaa1")));
    let (code, released) = run_json(&["claim", &source, "--job", "aaaaaaaa", "--release"]);
    assert_eq!((code, &released["released"]), (0, &json!(true)));
    // Any other name is taken as it is.
    let (code, claimed) = run_json(&["claim", &source, "--job", "20261130"]);
    assert_eq!((code, &claimed["job"]), (0, &json!("20261130")));
}

#[tokio::test]
async fn a_job_owns_its_snapshots_and_cannot_claim_them() {
    let (_dir, lab) = laid().await;
    let own = lab.directory("bbbbbbbb3", 4).to_string();
    let id = format!("{:0<32}", "bbbbbbbb3");
    for job in [
        id.clone(),
        "bbbbbbbb".to_string(),
        lab.home("bbbbbbbb3").to_string(),
    ] {
        for mode in ["claim", "no-claim"] {
            let (code, text) = said(&["claim", &own, "--job", &job, "--mode", mode]);
            assert_eq!(code, Some(3), "{job}: {text}");
            assert!(text.contains("owns it without a claim"), "{text}");
            assert!(text.contains("forkpoint pin add"), "{text}");
        }
    }
}

#[tokio::test]
async fn lineage_shows_who_was_started_from_a_snapshot() {
    let (_dir, lab) = laid().await;
    let (one, two) = (lab.directory("aaaaaaaa1", 1), lab.directory("aaaaaaaa2", 1));
    lab.start(&one, "c", RestoreMode::Claim, false)
        .await
        .unwrap();
    lab.start(&two, "d", RestoreMode::NoClaim, false)
        .await
        .unwrap();
    let root = lab.root.to_string();
    let (_, text) = said(&["lineage", &root]);
    let claimed = format!(
        "claimed by job {:0<32}, which has completed no checkpoint yet",
        "c"
    );
    let started = format!("job {:0<32} starts from it (no-claim)", "d");
    assert!(text.contains(&claimed) && text.contains(&started), "{text}");
    let (_, picture) = said(&["lineage", &root, "--format", "svg"]);
    assert!(
        picture.contains(&claimed) && picture.contains(&started),
        "{picture}"
    );
}

/// `claim` and `why` say the same of a mode.
#[tokio::test]
async fn what_ends_a_legacy_restore_is_told_as_claim_tells_it() {
    let (_dir, lab) = laid().await;
    let source = lab.directory("aaaaaaaa1", 1).to_string();
    let (_, text) = said(&["claim", &source, "--job", "new", "--mode", "legacy"]);
    assert!(
        text.contains("may forever, until no snapshot of it refers to them"),
        "{text}"
    );
    let (_, text) = said(&["why", &source]);
    assert!(
        text.contains(
            "no snapshot of it refers to this one any more, which in legacy mode may never be"
        ),
        "{text}"
    );
}

/// One job's checkpoints 3, 4 and 5: the first two share a file, the last shares none.
async fn sharing() -> (tempfile::TempDir, Lab, [String; 3]) {
    let (dir, root) = temp();
    let lab = Lab::at(local_stores(), root);
    let mut folders = Vec::new();
    for (number, files) in [(3, "one"), (4, "one"), (5, "five")] {
        let file = format!("aaaaaaaa1:{files}");
        folders.push(
            lab.complete("aaaaaaaa1", number, &[&file])
                .await
                .to_string(),
        );
    }
    (dir, lab, folders.try_into().unwrap())
}

/// Whoever has taken one of them over may delete the file that both need.
#[tokio::test]
async fn of_checkpoints_that_share_files_no_two_jobs_own_one_and_need_another() {
    let start =
        |of: &str, job: &str, mode: &str| said(&["claim", of, "--job", job, "--mode", mode]);
    for (one, other) in [(0, 1), (1, 0)] {
        for mode in ["claim", "no-claim", "legacy"] {
            let (_dir, _lab, folders) = sharing().await;
            let (own, sibling) = (&folders[one], &folders[other]);
            assert_eq!(start(own, "v2", mode).0, Some(0));
            let (code, text) = start(sibling, "v3", "claim");
            assert_eq!(code, Some(3), "{mode}: {text}");
            assert!(text.contains("it shares 1 of its objects with"), "{text}");
            assert!(text.contains("v2"), "{text}");
            // And the other way round.
            let (code, text) = start(sibling, "v3", "no-claim");
            assert_eq!(
                code,
                Some(if mode == "claim" { 3 } else { 0 }),
                "{mode}: {text}"
            );
            // What shares nothing is free, and so is the same job.
            assert_eq!(start(&folders[2], "v3", "claim").0, Some(0));
            if mode == "claim" {
                assert_eq!(start(sibling, "v2", "claim").0, Some(0));
            }
        }
        let (_dir, _lab, folders) = sharing().await;
        let pinned = said(&[
            "pin",
            "add",
            &folders[one],
            "audit",
            "--reason",
            "asked for",
        ]);
        assert_eq!(pinned.0, Some(0), "{}", pinned.1);
        let (code, text) = start(&folders[other], "v3", "claim");
        assert_eq!(code, Some(3), "{text}");
        assert!(text.contains("has pinned it as `audit`"), "{text}");
        assert_eq!(start(&folders[other], "v3", "no-claim").0, Some(0));
    }
}

#[tokio::test]
async fn a_claim_names_the_newer_checkpoints_whose_files_the_job_may_delete() {
    let (_dir, _lab, folders) = sharing().await;
    let (code, text) = said(&["claim", &folders[0], "--job", "v2"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("1 newer checkpoint of the old job shares files with it"),
        "{text}"
    );
    assert!(
        text.contains(&folders[1]) && !text.contains(&folders[2]),
        "{text}"
    );
    let (_, again) = run_json(&["claim", &folders[0], "--job", "v2"]);
    let endangered = again["endangered"].as_array().unwrap();
    assert_eq!(endangered.len(), 1);
    assert_eq!(endangered[0]["directory"], json!(folders[1]));
}

/// Two jobs take over checkpoints that share a file at the same moment.
#[tokio::test]
async fn of_two_claims_at_once_of_what_shares_files_at_most_one_succeeds() {
    let claimed = async |access: &dyn Access, lab: &Lab, number: i64, job: &str| {
        let request = ClaimRequest {
            snapshot: lab.directory("aaaaaaaa1", number),
            job: job.into(),
            mode: RestoreMode::Claim,
            chain: false,
            guessed_roots: false,
        };
        claim(access, std::slice::from_ref(&lab.root), &request, &Silent).await
    };
    for _ in 0..20 {
        let (_dir, lab, _) = sharing().await;
        let (one, other) = tokio::join!(
            claimed(&lab.stores, &lab, 3, "v3"),
            claimed(&lab.stores, &lab, 4, "v4")
        );
        let refused: Vec<_> = [&one, &other]
            .into_iter()
            .filter_map(|r| r.as_ref().err())
            .collect();
        assert!(!refused.is_empty(), "both have it");
        assert!(
            refused.iter().all(|e| e.kind() == ErrorKind::Refused),
            "{refused:?}"
        );
        // What is left is what was said.
        let left = lab.look().await.records.claims.len();
        assert_eq!(left, 2 - refused.len());
    }
}

#[tokio::test]
async fn a_release_in_the_wrong_mode_names_the_right_one() {
    let (_dir, _lab, folders) = sharing().await;
    let release = |mode: &str| {
        said(&[
            "claim",
            &folders[0],
            "--job",
            "v2",
            "--release",
            "--mode",
            mode,
        ])
    };
    for (started, other) in [("no-claim", "claim"), ("claim", "no-claim")] {
        assert_eq!(release(other).0, Some(0), "nothing is there");
        assert_eq!(
            said(&["claim", &folders[0], "--job", "v2", "--mode", started]).0,
            Some(0)
        );
        let (code, text) = release(other);
        assert_eq!(code, Some(3), "{text}");
        assert!(text.contains(&format!("say --mode {started}")), "{text}");
        let (code, text) = release(started);
        assert_eq!(
            (code, text.starts_with("released")),
            (Some(0), true),
            "{text}"
        );
    }
}

/// Of one who read the roots before a checkpoint came, and another one who claims that checkpoint meanwhile.
#[tokio::test]
async fn a_checkpoint_that_came_since_the_roots_were_read_may_share_files_too() {
    let request = move |lab: &Lab, number: i64, job: &str| ClaimRequest {
        snapshot: lab.directory("aaaaaaaa1", number),
        job: job.into(),
        mode: RestoreMode::Claim,
        chain: false,
        guessed_roots: false,
    };
    let (_dir, lab, _) = sharing().await;
    let there = Lab::at(lab.stores.clone(), lab.root.clone());
    let meanwhile = async move {
        there.complete("aaaaaaaa1", 6, &["aaaaaaaa1:one"]).await;
        let roots = std::slice::from_ref(&there.root);
        let request = request(&there, 6, "v6");
        claim(&there.stores, roots, &request, &Silent)
            .await
            .unwrap();
    };
    let record = lab
        .home("aaaaaaaa1")
        .join(".forkpoint/claims/chk-3.json")
        .unwrap();
    let slow = Tampered::before(&lab.stores, record, meanwhile);
    let roots = std::slice::from_ref(&lab.root);
    let refused = claim(&slow, roots, &request(&lab, 3, "v3"), &Silent)
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused, "{refused}");
    assert!(refused.to_string().contains("has come since"), "{refused}");
    assert!(refused.next_step().unwrap().contains("again"), "{refused}");
    // What it had written has gone; and now it is said which files they share.
    assert_eq!(lab.look().await.records.claims.len(), 1);
    let refused = claim(&lab.stores, roots, &request(&lab, 3, "v3"), &Silent)
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("job v6 has claimed it"),
        "{refused}"
    );
}
