//! A fork that was begun with a plan and is not done: whoever meets what it has left is told of that plan.

use crate::support::{local_stores, manifest, run, run_json, synthetic, temp};
use forkpoint::store::{Location, Stores};
use serde_json::json;

struct HalfDone {
    _dir: tempfile::TempDir,
    stores: Stores,
    root: Location,
    snapshot: String,
    target: String,
    plan: String,
}

async fn half_done() -> HalfDone {
    let (dir, root) = temp();
    let stores = local_stores();
    let snapshot = synthetic::lay(&stores, &root.join("prod").unwrap(), 8, 50)
        .await
        .to_string();
    let target = root.join("fork").unwrap().to_string();
    let plan = root.join("plan.json").unwrap().to_string();
    let args = ["plan", &snapshot, &target, "--workers", "2", "--out", &plan];
    assert_eq!(run_json(&args).0, 0);
    assert_eq!(run_json(&["run", &plan, "--worker", "0"]).0, 0);
    HalfDone {
        _dir: dir,
        stores,
        root,
        snapshot,
        target,
        plan,
    }
}

fn said(args: &[&str]) -> String {
    let output = run(args);
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[tokio::test]
async fn why_and_ls_lead_to_commit_and_abandon_of_the_very_plan() {
    let half = half_done().await;
    let (commit, abandon) = (
        format!("forkpoint commit {}", half.plan),
        format!("forkpoint abandon {} --apply", half.plan),
    );
    let why = said(&["why", &half.snapshot]);
    assert!(why.contains(&commit) && why.contains(&abandon), "{why}");
    assert!(!why.contains("pin rm"), "{why}");
    let (code, why) = run_json(&["why", &half.snapshot]);
    assert_eq!((code, &why["reasons"][0]["plan"]), (3, &json!(half.plan)));
    let listed = said(&["ls", &half.target]);
    assert!(
        listed.contains(&format!("by plan {}", half.plan)),
        "{listed}"
    );
    assert!(listed.contains("abandon PLAN --apply"), "{listed}");
    let pins = said(&["pin", "ls", &half.snapshot]);
    assert!(pins.contains(&format!("by plan {}", half.plan)), "{pins}");
    // Another fork to this place is told too.
    let other = synthetic::lay(&half.stores, &half.root.join("other").unwrap(), 3, 50).await;
    let refused = said(&["fork", &other.to_string(), &half.target]);
    assert!(
        refused.contains(&commit) && refused.contains(&abandon),
        "{refused}"
    );
    // And what is told works: another worker's run, from another place, is the same fork.
    let copy = half.root.join("copy.json").unwrap().to_string();
    let bytes = std::fs::read(crate::support::at(&half.plan).local_path().unwrap()).unwrap();
    std::fs::write(crate::support::at(&copy).local_path().unwrap(), bytes).unwrap();
    assert_eq!(run_json(&["run", &copy, "--all"]).0, 0);
    assert_eq!(run_json(&["commit", &half.plan]).0, 0);
    assert_eq!(run_json(&["why", &half.snapshot]).0, 0);
}

#[tokio::test]
async fn a_fork_without_a_plan_that_is_known_is_told_of_both_ways() {
    let half = half_done().await;
    // As a library leaves it that does not tell where its plan lies.
    for below in ["prod", "fork"] {
        let folder = half.root.join(below).unwrap().local_path().unwrap();
        for path in crate::support::walk(&folder) {
            if path.extension().is_some_and(|e| e == "json") {
                let mut record: serde_json::Value =
                    serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
                let of_fork = record.get_mut("fork").and_then(|fork| fork.as_object_mut());
                of_fork.map(|fork| fork.remove("plan"));
                record.as_object_mut().unwrap().remove("plan");
                std::fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
            }
        }
    }
    let why = said(&["why", &half.snapshot]);
    for way in [
        "forkpoint fork ",
        "forkpoint commit PLAN",
        "forkpoint abandon PLAN --apply",
        "pin rm",
    ] {
        assert!(why.contains(way), "{way}: {why}");
    }
}

#[tokio::test]
async fn abandoning_leaves_no_empty_folder_of_the_fork_and_never_takes_the_root() {
    let half = half_done().await;
    let root = crate::support::at(&half.target).local_path().unwrap();
    // A worker that was stopped before it had written anything.
    let plan = std::fs::read(crate::support::at(&half.plan).local_path().unwrap()).unwrap();
    let plan: serde_json::Value = serde_json::from_slice(&plan).unwrap();
    for task in plan["tasks"].as_array().unwrap() {
        let place = crate::support::at(task["duplicate"]["destination"].as_str().unwrap());
        let place = place.local_path().unwrap();
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        // One whose files somebody has removed already.
        let _ = std::fs::remove_file(place);
    }
    std::fs::create_dir_all(root.join("of-somebody-else")).unwrap();
    assert_eq!(run_json(&["abandon", &half.plan, "--apply"]).0, 0);
    assert!(
        manifest(&half.stores, &crate::support::at(&half.target))
            .await
            .is_empty()
    );
    let left: Vec<String> = std::fs::read_dir(&root)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, ["of-somebody-else"]);
}
