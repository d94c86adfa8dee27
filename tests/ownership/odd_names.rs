//! Snapshots under names that no engine writes, such as a folder with a control character, into which somebody has moved a
//! job: what they need is not known, so that nothing may go.

use crate::support::lab::Lab;
use crate::support::{local_stores, run, run_json, temp};

const ODD: [&str; 5] = ["te\tam", "te\u{1}am", "te\u{7f}am", "te\u{85}am", "we\\ird"];

/// Job a, of whose first checkpoint a snapshot of job b needs a file; and b's folder.
async fn laid() -> (tempfile::TempDir, Lab, std::path::PathBuf) {
    let (dir, root) = temp();
    let lab = Lab::at(local_stores(), root);
    lab.complete("a", 1, &["a:one", "a:1/own"]).await;
    lab.complete("a", 2, &["a:two", "a:2/own"]).await;
    lab.complete("b", 5, &["a:one", "b:5/own"]).await;
    let b = lab.home("b").local_path().unwrap();
    (dir, lab, b)
}

fn said(args: &[&str]) -> (Option<i32>, String) {
    let out = run(args);
    let text = [out.stdout, out.stderr].concat();
    (
        out.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

#[tokio::test]
async fn a_snapshot_in_an_odd_folder_keeps_all_that_it_may_need() {
    for odd in ODD.iter().copied().chain([".forkpoint"]) {
        let (_dir, lab, b) = laid().await;
        let root = lab.root.to_string();
        let first = lab.home("a").join("chk-1").unwrap().to_string();
        let clean = ["clean", &root, "--keep", "last=1", "--min-age", "0"];
        let of_first = |plan: &serde_json::Value| plan.to_string().contains("chk-1");
        let (code, plan) = run_json(&clean);
        assert!(code == 0 && of_first(&plan), "{odd:?}: {plan}");
        assert_eq!(said(&["why", &first]).0, Some(3), "{odd:?}");

        let away = lab.root.local_path().unwrap().join(odd);
        std::fs::create_dir(&away).unwrap();
        std::fs::rename(&b, away.join("b")).unwrap();
        for verb in [
            &["ls", &root][..],
            &["usage", &root],
            &["why", &first],
            &clean,
        ] {
            let (code, text) = said(verb);
            assert_eq!(code, Some(4), "{odd:?}: {verb:?}: {text}");
            assert!(
                text.contains("under a name that no engine writes"),
                "{text}"
            );
            assert!(
                !text.contains(|c: char| c.is_control() && c != '\n'),
                "{text:?}"
            );
        }
        let plan = run_json(&clean).1;
        assert_eq!(plan["blocked"], true, "{odd:?}: {plan}");
        let written = away.join("plan").to_str().unwrap().to_string();
        assert_eq!(
            said(&[&clean[..], &["--out", &written]].concat()).0,
            Some(4)
        );
        let apply = ["clean", "--apply", &written, "--grace", "0s", "--wait"];
        assert_ne!(said(&apply).0, Some(0), "{odd:?}");
        for needed in ["a:one", "a:1/own"] {
            let at = lab.file(needed);
            assert!(
                lab.stores.find(&at).await.unwrap().is_some(),
                "{odd:?}: {at}"
            );
        }
        let _ = std::fs::remove_file(&written);
        // As the next step says.
        std::fs::rename(away.join("b"), &b).unwrap();
        std::fs::remove_dir(&away).unwrap();
        assert_eq!(said(&["why", &first]).0, Some(3), "{odd:?}");
    }
}

#[tokio::test]
async fn nothing_is_forked_to_where_it_would_not_be_found() {
    let (_dir, lab, _) = laid().await;
    let source = lab.home("a").join("chk-2").unwrap().to_string();
    let away = lab.root.join("te\tam").unwrap().to_string();
    for verb in [
        &["fork", &source, &away][..],
        &["fork", &source, &away, "--dry-run"],
        &["plan", &source, &away],
    ] {
        let (code, text) = said(verb);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("control character"), "{text}");
    }
    assert!(!lab.root.local_path().unwrap().join("te\tam").exists());
}
