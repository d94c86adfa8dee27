//! Where nobody has named the roots, what was not looked at may use a savepoint.

use crate::support::lab::Lab;
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
