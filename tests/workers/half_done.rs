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
    assert!(
        listed.contains(&commit) && listed.contains(&abandon),
        "{listed}"
    );
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
    let root = half.root.to_string();
    let why = run_json(&["why", &half.snapshot, "--root", &root]);
    assert_eq!(why.0, 0, "{}", why.1);
}

#[tokio::test]
async fn a_fork_without_a_plan_that_is_known_is_told_of_both_ways() {
    let half = half_done_without_a_plan().await;
    let why = said(&["why", &half.snapshot]);
    for way in [
        "forkpoint fork ",
        "forkpoint commit PLAN",
        "forkpoint abandon PLAN --apply",
        "--workers 1 --out PLAN",
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

/// As a plain `fork` that was killed leaves it: no plan is known to anybody.
async fn half_done_without_a_plan() -> HalfDone {
    let half = half_done().await;
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
    std::fs::remove_file(crate::support::at(&half.plan).local_path().unwrap()).unwrap();
    half
}

impl HalfDone {
    /// The command that makes a plan to give the fork up, as messages tell it.
    fn plan_command(&self) -> String {
        let (from, to) = (&self.snapshot, &self.target);
        format!("forkpoint plan {from} {to} --workers 1 --out PLAN")
    }

    /// Does what messages tell.
    async fn give_up(&self) {
        let (from, to, plan) = (&self.snapshot, &self.target, &self.plan);
        let args = ["plan", from, to, "--workers", "1", "--out", plan];
        assert_eq!(run_json(&args).0, 0);
        let (code, report) = run_json(&["abandon", plan, "--apply"]);
        assert_eq!(code, 0, "{report}");
        assert_eq!(report["own"].as_array().unwrap().len(), 4, "{report}");
        let left = manifest(&self.stores, &crate::support::at(to)).await;
        assert!(left.is_empty(), "{left:?}");
        let root = self.root.to_string();
        let why = run_json(&["why", from, "--root", &root]);
        assert_eq!(why.0, 0, "{}", why.1);
    }
}

#[tokio::test]
async fn a_plain_fork_half_done_is_given_up_as_every_message_says() {
    let half = half_done_without_a_plan().await;
    let other = synthetic::lay(&half.stores, &half.root.join("other").unwrap(), 3, 50).await;
    let prod = half.root.join("prod").unwrap().to_string();
    for args in [
        vec!["ls", half.target.as_str()],
        vec!["why", half.snapshot.as_str()],
        vec![
            "clean",
            half.target.as_str(),
            "--also",
            prod.as_str(),
            "--keep",
            "last=1",
        ],
        vec!["fork", other.to_string().as_str(), half.target.as_str()],
    ] {
        let said = said(&args);
        assert!(said.contains(&half.plan_command()), "{args:?}: {said}");
        assert!(
            said.contains("forkpoint abandon PLAN --apply"),
            "{args:?}: {said}"
        );
        let finish = format!("forkpoint fork {} {}", half.snapshot, half.target);
        assert!(said.contains(&finish), "{args:?}: {said}");
        assert!(!said.contains("remove this note"), "{args:?}: {said}");
    }
    half.give_up().await;
}

#[tokio::test]
async fn a_fork_whose_note_somebody_has_removed_is_given_up_as_its_refusal_says() {
    let half = half_done_without_a_plan().await;
    let note = crate::support::at(&half.target)
        .join(".forkpoint/chk-7.json")
        .unwrap();
    half.stores.delete(&note).await.unwrap();
    let refused = said(&["fork", &half.snapshot, &half.target]);
    assert!(refused.contains(&half.plan_command()), "{refused}");
    half.give_up().await;
    assert_eq!(run_json(&["fork", &half.snapshot, &half.target]).0, 0);
}

#[tokio::test]
async fn a_committed_fork_that_has_lost_a_file_is_called_damaged_and_the_way_out_works() {
    let half = half_done().await;
    assert_eq!(run_json(&["run", &half.plan, "--all"]).0, 0);
    assert_eq!(run_json(&["commit", &half.plan]).0, 0);
    let plan: serde_json::Value = serde_json::from_slice(
        &std::fs::read(crate::support::at(&half.plan).local_path().unwrap()).unwrap(),
    )
    .unwrap();
    let of = |field: &str| {
        plan["tasks"][0]["duplicate"][field]
            .as_str()
            .unwrap()
            .to_string()
    };
    let (from, to) = (of("source"), of("destination"));
    half.stores.delete(&crate::support::at(&to)).await.unwrap();
    for args in [
        vec!["run", half.plan.as_str(), "--all"],
        vec!["commit", half.plan.as_str()],
        vec!["fork", half.snapshot.as_str(), half.target.as_str()],
    ] {
        assert_eq!(run(&args).status.code(), Some(5), "{args:?}");
        let said = said(&args);
        let repair = format!("forkpoint duplicate {from} {to}");
        for needed in ["damaged", &repair, "another destination", "forkpoint why"] {
            assert!(said.contains(needed), "{args:?}: {needed}: {said}");
        }
    }
    assert_eq!(run(&["duplicate", &from, &to]).status.code(), Some(0));
    assert_eq!(run_json(&["commit", &half.plan]).0, 0);
    assert_eq!(run_json(&["run", &half.plan, "--all"]).0, 0);
}

#[tokio::test]
async fn abandoning_with_a_stranger_says_how_to_go_on_and_nobody_commits_meanwhile() {
    let half = half_done().await;
    let plan: serde_json::Value = serde_json::from_slice(
        &std::fs::read(crate::support::at(&half.plan).local_path().unwrap()).unwrap(),
    )
    .unwrap();
    let theirs = plan["tasks"].as_array().unwrap().iter();
    let place = theirs
        .map(|task| crate::support::at(task["duplicate"]["destination"].as_str().unwrap()))
        .find(|at| !at.local_path().unwrap().exists())
        .unwrap();
    let stranger = bytes::Bytes::from(vec![0; 50]);
    half.stores.put(&place, stranger, true).await.unwrap();
    let abandoned = run(&["abandon", &half.plan, "--apply"]);
    assert_eq!(abandoned.status.code(), Some(4));
    let text = String::from_utf8(abandoned.stdout).unwrap();
    assert!(
        text.contains("again") && text.contains("abandon PLAN --apply"),
        "{text}"
    );
    // What is left is no fork any more: neither to go on with, nor to commit.
    for args in [["commit", half.plan.as_str()], ["run", half.plan.as_str()]] {
        let args = [&args[..], &["--all"][..usize::from(args[0] == "run")]].concat();
        let refused = said(&args);
        assert!(refused.contains("is being given up"), "{args:?}: {refused}");
        assert!(
            refused.contains("abandon PLAN --apply"),
            "{args:?}: {refused}"
        );
    }
    half.stores.delete(&place).await.unwrap();
    assert_eq!(run_json(&["abandon", &half.plan, "--apply"]).0, 0);
    assert_eq!(run_json(&["fork", &half.snapshot, &half.target]).0, 0);
}

#[tokio::test]
async fn abandoning_removes_the_folder_of_a_journal_in_which_nothing_could_be_written() {
    let half = half_done().await;
    let id = run_json(&["abandon", &half.plan]).1["fork_id"]
        .as_str()
        .unwrap()
        .to_string();
    let root = crate::support::at(&half.target).local_path().unwrap();
    let journal = root.join(".forkpoint").join(id);
    for path in crate::support::walk(&journal) {
        std::fs::remove_file(path).unwrap();
    }
    assert!(journal.is_dir());
    assert_eq!(run_json(&["abandon", &half.plan, "--apply"]).0, 0);
    let left: Vec<_> = std::fs::read_dir(&root).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
