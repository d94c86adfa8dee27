//! Where nobody has named the roots, what was not looked at may use a savepoint.

use crate::support::lab::{FILE_BYTES, Lab};
use crate::support::synthetic::numbered_metadata;
use crate::support::{fixture, local_stores, run, run_json, temp};
use forkpoint::snapshot::RestoreMode;
use serde_json::json;

fn said(args: &[&str]) -> (Option<i32>, String) {
    let out = run(args);
    let text = [out.stdout, out.stderr].concat();
    (out.status.code(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn a_savepoint_beside_whose_folder_a_job_uses_it_is_kept() {
    let (_dir, root) = temp();
    let root = root.join("prod").unwrap();
    let stores = local_stores();
    let chain = fixture("1.20.5-from-savepoint-native-claim");
    chain.lay(&stores, &root).await;
    let mut paths = chain.snapshots();
    paths.retain(|p| p.contains("savepoint-"));
    let savepoint = root.join(&paths[0]).unwrap().to_string();
    let (code, why) = run_json(&["why", &savepoint]);
    assert_eq!((code, &why["answer"]), (3, &json!("kept")), "{why}");
    assert_eq!(why["roots"], json!([root]));
    assert_eq!(why["roots_guessed"], json!(true));
    let refused = said(&["claim", &savepoint, "--job", "another"]);
    assert_eq!(refused.0, Some(3), "{}", refused.1);
    let (code, why) = run_json(&["why", &savepoint, "--root", &root.to_string()]);
    assert_eq!((code, &why["roots_guessed"]), (3, &json!(false)));
}

#[tokio::test]
async fn a_savepoint_that_nobody_near_uses_is_unknown_until_the_roots_are_named() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let chain = fixture("1.20.5-from-savepoint-native-claim");
    let made = root.join("made").unwrap();
    chain.lay(&stores, &made).await;
    let mut paths = chain.snapshots();
    paths.retain(|p| p.contains("savepoint-"));
    let from = made.join(&paths[0]).unwrap().to_string();
    let far = root.join("far").unwrap();
    let (code, forked) = run_json(&[
        "fork",
        &from,
        &far.join("x/savepoints").unwrap().to_string(),
    ]);
    assert_eq!(code, 0, "{forked}");
    // A fork is one savepoint that nobody uses.
    let savepoint = forked["snapshot"].as_str().unwrap();
    let (code, why) = run_json(&["why", savepoint]);
    assert_eq!((code, &why["answer"]), (4, &json!("unknown")), "{why}");
    assert_eq!(why["missing"][0]["reason"], json!("guessed-roots"));
    let (_, text) = said(&["why", savepoint]);
    assert!(
        text.contains("looked at: ") && text.contains("--root"),
        "{text}"
    );
    let (code, text) = said(&["claim", savepoint, "--job", "j"]);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("--root"), "{text}");
    let root = far.to_string();
    let named = ["why", savepoint, "--root", &root];
    let (code, why) = run_json(&named);
    assert_eq!((code, &why["answer"]), (0, &json!("deletable")), "{why}");
    let named = ["claim", savepoint, "--job", "j", "--root", &root];
    assert_eq!(run_json(&named).0, 0);
}

#[tokio::test]
async fn what_of_a_chain_stays_claimed_and_whether_a_pin_was_there_is_said() {
    let (_dir, root) = temp();
    let lab = Lab::at(local_stores(), root);
    for number in [1, 2, 3] {
        lab.complete("a", number, &["a:one"]).await;
    }
    let newest = lab.directory("a", 3);
    let started = lab.start(&newest, "b", RestoreMode::Claim, true).await;
    assert_eq!(started.unwrap().snapshots.len(), 3);
    let (at, job) = (newest.to_string(), format!("{:0<32}", "b"));
    let (code, text) = said(&["claim", &at, "--job", &job, "--release"]);
    assert_eq!(code, Some(0), "{text}");
    for number in [1, 2] {
        let step = format!(
            "forkpoint claim --release {} --job {job}",
            lab.directory("a", number)
        );
        assert!(text.contains(&step), "{text}");
        let step: Vec<&str> = step.split(' ').skip(1).collect();
        assert_eq!(said(&step).0, Some(0));
    }
    let (_, again) = run_json(&["claim", &at, "--job", &job, "--release"]);
    assert_eq!(again["still_claimed"], json!([]));
    let pin = ["pin", "add", &at, "audit", "--reason", "r"];
    assert_eq!(run_json(&pin).0, 0);
    let (code, wrong) = said(&["pin", "rm", &at, "audti"]);
    assert_eq!(code, Some(0));
    assert!(wrong.contains("nothing to remove"), "{wrong}");
    let (code, right) = said(&["pin", "rm", &at, "audit"]);
    assert_eq!(code, Some(0));
    assert!(right.contains("pin audit removed"), "{right}");
    let (_, json) = run_json(&["pin", "rm", &at, "audit"]);
    assert_eq!(json["removed"], json!(false));
}

/// A fork in a folder of its own, and the checkpoint of a job that refers to one of its files.
async fn fork_and_job_beside(root: &forkpoint::store::Location, job: &str) -> String {
    let lab = Lab::at(local_stores(), root.clone());
    let fork = root.join("fork").unwrap();
    let file = fork
        .join("shared/66ad2236-2236-4937-967c-7fc63083dab4-0123456789abcdef")
        .unwrap();
    lab.write_at(&file).await;
    let (of_fork, of_job) = (
        fork.join("chk-7").unwrap(),
        root.join(job).unwrap().join("chk-8").unwrap(),
    );
    for (directory, number) in [(&of_fork, 7), (&of_job, 8)] {
        let metadata = numbered_metadata(number, &[(file.to_string(), FILE_BYTES)]);
        let at = directory.join("_metadata").unwrap();
        lab.stores.put(&at, metadata.into(), true).await.unwrap();
    }
    of_fork.to_string()
}

#[tokio::test]
async fn a_fork_that_a_job_beside_or_above_it_uses_is_kept() {
    for job in ["0123456789abcdef0123456789abcdef", "orders", ""] {
        let (_dir, root) = temp();
        let root = root.join("prod/jobs").unwrap();
        let fork = match job {
            "" => {
                // Checkpoints right in the folder above the fork.
                let fork = fork_and_job_beside(&root, "above").await;
                let at = |place: &str| root.join(place).unwrap();
                let bytes = local_stores()
                    .read(&at("above/chk-8/_metadata"), 9_999)
                    .await;
                let stores = local_stores();
                let above = at("chk-8/_metadata");
                stores.put(&above, bytes.unwrap(), true).await.unwrap();
                stores.delete(&at("above/chk-8/_metadata")).await.unwrap();
                fork
            }
            job => fork_and_job_beside(&root, job).await,
        };
        let (code, why) = run_json(&["why", &fork]);
        assert_eq!((code, &why["answer"]), (3, &json!("kept")), "{job}: {why}");
        assert_eq!(why["roots"], json!([root]), "{job}");
        let (code, text) = said(&["claim", &fork, "--job", "another"]);
        assert_eq!(code, Some(3), "{job}: {text}");
    }
}

#[tokio::test]
async fn a_fork_that_nobody_near_uses_is_unknown_until_the_roots_are_named() {
    let (_dir, root) = temp();
    let root = root.join("prod").unwrap();
    let fork = fork_and_job_beside(&root, "0123456789abcdef0123456789abcdef").await;
    let far = root.join("0123456789abcdef0123456789abcdef").unwrap();
    crate::support::delete_all(&local_stores(), &far).await;
    let (code, why) = run_json(&["why", &fork]);
    assert_eq!((code, &why["answer"]), (4, &json!("unknown")), "{why}");
    assert_eq!(why["missing"][0]["reason"], json!("guessed-roots"));
    let (code, text) = said(&["claim", &fork, "--job", "j"]);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("--root"), "{text}");
    let file = format!(
        "{}/shared/66ad2236-2236-4937-967c-7fc63083dab4-0123456789abcdef",
        root.join("fork").unwrap()
    );
    // A file of it too, once no snapshot that was seen refers to it.
    let at = crate::support::at(&fork).join("_metadata").unwrap();
    let metadata = local_stores().read(&at, 9_999).await.unwrap();
    local_stores().delete(&at).await.unwrap();
    let (code, why) = run_json(&["why", &file]);
    assert_eq!((code, &why["answer"]), (4, &json!("unknown")), "{why}");
    local_stores().put(&at, metadata, true).await.unwrap();
    let root = root.to_string();
    let (code, why) = run_json(&["why", &fork, "--root", &root]);
    assert_eq!((code, &why["answer"]), (0, &json!("deletable")), "{why}");
    let named = ["claim", &fork, "--job", "j", "--root", &root];
    assert_eq!(run_json(&named).0, 0);
}
