//! What workers, commit and abandon refuse, and that nothing is lost or half-committed when they do.

use crate::support::{
    Service, command, delete_all, emulator_stores, local_stores, manifest, run, run_json,
    synthetic, temp,
};
use bytes::Bytes;
use forkpoint::store::{Journal, Location, Stores};
use serde_json::{Value, json};

/// A snapshot of eight files and a plan of its fork for two workers.
struct Ready {
    _dir: tempfile::TempDir,
    stores: Stores,
    root: Location,
    target: Location,
    /// The plan's file, and the plan as it was written.
    plan_at: String,
    plan: Value,
}

impl Ready {
    async fn new() -> Ready {
        let (dir, root) = temp();
        let stores = local_stores();
        let snapshot = synthetic::lay(&stores, &root.join("original").unwrap(), 8, 50).await;
        let target = root.join("fork").unwrap();
        let plan_at = root.join("plan.json").unwrap().to_string();
        let (source, to) = (snapshot.to_string(), target.to_string());
        let (code, _) = run_json(&["plan", &source, &to, "--workers", "2", "--out", &plan_at]);
        assert_eq!(code, 0);
        let bytes = stores
            .read(&crate::support::at(&plan_at), u64::MAX)
            .await
            .unwrap();
        Ready {
            _dir: dir,
            stores,
            root,
            target,
            plan_at,
            plan: serde_json::from_slice(&bytes).unwrap(),
        }
    }

    /// Writes another plan; returns where.
    async fn write(&self, name: &str, bytes: Vec<u8>) -> String {
        let at = self.root.join(name).unwrap();
        self.stores
            .put(&at, Bytes::from(bytes), false)
            .await
            .unwrap();
        at.to_string()
    }

    fn at(&self, field: &str, task: usize) -> Location {
        crate::support::at(
            self.plan["tasks"][task]["duplicate"][field]
                .as_str()
                .unwrap(),
        )
    }

    fn run_all(&self) {
        let (code, report) = run_json(&["run", &self.plan_at, "--all"]);
        assert_eq!(code, 0, "{report}");
    }

    async fn is_committed(&self) -> bool {
        let at = self.target.join("chk-7/_metadata").unwrap();
        self.stores.find(&at).await.unwrap().is_some()
    }

    async fn below_target(&self) -> usize {
        manifest(&self.stores, &self.target).await.len()
    }
}

/// Exit code and what stands on stderr.
fn said(args: &[&str]) -> (i32, String) {
    let output = run(args);
    let text = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), text)
}

fn assert_says(args: &[&str], code: i32, words: &[&str]) {
    let (got, text) = said(args);
    assert_eq!(got, code, "{args:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{args:?}: `{word}` is not in: {text}");
    }
}

#[tokio::test]
async fn a_hostile_or_damaged_plan_is_refused_before_anything_is_written() {
    let ready = Ready::new().await;
    let outside = ready.root.join("outside/x").unwrap().to_string();
    let secret = ready.root.join("plan.json").unwrap().to_string();
    type Change<'a> = Box<dyn Fn(&mut Value) + 'a>;
    let set = |pointer: &'static str, value: Value| -> Change<'_> {
        Box::new(move |plan| *plan.pointer_mut(pointer).unwrap() = value.clone())
    };
    let first = ready.plan["tasks"][0].clone();
    let cases: Vec<(&str, i32, Change<'_>, &str)> = vec![
        ("a newer version", 1, set("/version", json!(2)), "version 2"),
        (
            "an older version",
            1,
            set("/version", json!(0)),
            "version 0",
        ),
        (
            "a place outside",
            3,
            set("/tasks/0/duplicate/destination", json!(outside)),
            "outside the destination",
        ),
        (
            "a place of another",
            3,
            set(
                "/tasks/0/duplicate/destination",
                ready.plan["tasks"][1]["duplicate"]["destination"].clone(),
            ),
            "not its place",
        ),
        (
            "the note's place",
            3,
            set(
                "/tasks/0/duplicate/destination",
                json!(ready.target.join(".forkpoint/chk-7.json").unwrap()),
            ),
            "not its place",
        ),
        (
            "a source of its own",
            3,
            set("/tasks/0/duplicate/source", json!(secret)),
            "no object of the snapshot",
        ),
        (
            "a size of its own",
            3,
            set("/tasks/0/duplicate/size", json!(5)),
            "has 5 bytes",
        ),
        (
            "a task twice",
            3,
            Box::new(move |plan| plan["tasks"].as_array_mut().unwrap().push(first.clone())),
            "twice",
        ),
        (
            "a worker it has not",
            3,
            set("/tasks/0/worker", json!(9)),
            "worker 9",
        ),
        (
            "another fork's id",
            3,
            set("/fork_id", json!("0".repeat(32))),
            "not that of this fork",
        ),
        (
            "another snapshot folder",
            3,
            set("/snapshot", json!(outside)),
            "not that of this fork",
        ),
        (
            "another destination",
            3,
            set("/destination", json!(outside)),
            "not that of this fork",
        ),
        (
            "other metadata",
            3,
            set("/metadata_sha256", json!("00")),
            "not what it was",
        ),
        (
            "a destination in the source",
            3,
            set(
                "/destination",
                json!(ready.root.join("original/shared").unwrap()),
            ),
            "lies inside",
        ),
        (
            "a live restore",
            2,
            set("/execution", json!("live")),
            "no plan of a fork",
        ),
        (
            "no terms",
            2,
            Box::new(|plan| drop(plan.as_object_mut().unwrap().remove("terms"))),
            "no plan of a fork",
        ),
        (
            "a climbing place",
            3,
            set(
                "/tasks/0/duplicate/destination",
                json!(format!("{}/../x", ready.target)),
            ),
            "outside",
        ),
        (
            "parts",
            3,
            set("/tasks/0", {
                let mut task = ready.plan["tasks"][0].clone();
                task["ranges"] = json!([{"start": 0, "length": 1, "new_start": 0}]);
                task
            }),
            "whole objects",
        ),
        (
            "no task list",
            5,
            set("/tasks", json!({})),
            "no restore plan",
        ),
    ];
    for (what, code, change, words) in cases {
        let mut plan = ready.plan.clone();
        change(&mut plan);
        let at = ready
            .write("hostile.json", plan.to_string().into_bytes())
            .await;
        for verb in [
            vec!["run", &at, "--worker", "0"],
            vec!["run", &at, "--all"],
            vec!["commit", &at],
        ] {
            let (got, text) = said(&verb);
            assert_eq!(got, code, "{what}: {verb:?}: {text}");
            assert!(text.contains(words), "{what}: {verb:?}: {text}");
        }
        assert!(
            said(&["abandon", &at, "--apply"]).0 > 0 || what == "a worker it has not",
            "{what}"
        );
        assert_eq!(ready.below_target().await, 0, "{what}");
        assert!(
            ready
                .stores
                .find(&crate::support::at(&outside))
                .await
                .unwrap()
                .is_none()
        );
    }
    // What another worker has to do, that one is refused for, and whoever needs the whole plan.
    let mut plan = ready.plan.clone();
    let of_another = (plan["tasks"].as_array_mut().unwrap().iter_mut())
        .find(|task| task["worker"] == 1)
        .unwrap();
    of_another["duplicate"]["destination"] = json!(outside);
    let at = (ready.write("hostile.json", plan.to_string().into_bytes())).await;
    for verb in [
        vec!["run", &at, "--worker", "1"],
        vec!["run", &at, "--all"],
        vec!["commit", &at],
    ] {
        assert_says(&verb, 3, &["outside the destination"]);
    }
    assert_eq!(ready.below_target().await, 0);
    // Cut off anywhere, it is no plan.
    let whole = ready.plan.to_string().into_bytes();
    for length in [0, 1, whole.len() / 2, whole.len() - 1] {
        let at = ready.write("hostile.json", whole[..length].to_vec()).await;
        assert_says(
            &["run", &at, "--worker", "0"],
            5,
            &["no restore plan", "hostile.json"],
        );
        assert_says(&["commit", &at], 5, &["no restore plan"]);
        assert_says(&["abandon", &at], 5, &["no restore plan"]);
    }
    assert_eq!(ready.below_target().await, 0);
}

#[tokio::test]
async fn wrong_use_says_what_is_right() {
    let ready = Ready::new().await;
    let plan = ready.plan_at.as_str();
    let nowhere = ready.root.join("none.json").unwrap().to_string();
    for verb in [
        vec!["run", &nowhere, "--worker", "0"],
        vec!["commit", &nowhere],
        vec!["abandon", &nowhere],
    ] {
        assert_says(&verb, 1, &["there is no plan here", "forkpoint plan"]);
    }
    assert_says(
        &["run", plan, "--worker", "2"],
        2,
        &["no worker 2", "0 to 1"],
    );
    assert_says(&["run", plan], 2, &["--worker"]);
    assert_says(
        &["run", plan, "--worker", "0", "--concurrency", "0"],
        2,
        &["1..=65535"],
    );
    // Of another fork, since --all does it.
    let other = ready.root.join("other.json").unwrap().to_string();
    let (source, to) = (
        ready.root.join("original/chk-7").unwrap().to_string(),
        ready.root.join("other").unwrap().to_string(),
    );
    assert_eq!(
        said(&["plan", &source, &to, "--workers", "2", "--out", &other]).0,
        0
    );
    for (index, all, code) in [
        ("", false, 2),
        ("x", false, 2),
        ("9", false, 2),
        ("x", true, 0),
    ] {
        let mut command = command(&["run", &other]);
        if all {
            command.arg("--all");
        }
        let out = command.env("JOB_COMPLETION_INDEX", index).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(code), "{index} {all}: {said}");
        let named = if index == "x" {
            "JOB_COMPLETION_INDEX is `x`"
        } else {
            "worker"
        };
        assert!(all || said.contains(named), "{index}: {said}");
    }
    assert_says(&["commit", plan, "--redistribute", "2"], 2, &["--out"]);
    assert_says(
        &["commit", plan, "--verify", "content"],
        2,
        &["--copied-by"],
    );
    let (source, to) = (
        ready.root.join("original/chk-7").unwrap().to_string(),
        ready.target.to_string(),
    );
    assert_says(&["plan", &source, &to, "--workers", "0"], 2, &["1..=65536"]);
    assert_says(&["plan", &source, &to, "--out", plan], 2, &["--workers"]);
    assert_says(
        &[
            "plan",
            &source,
            &to,
            "--workers",
            "2",
            "--export",
            "s3-batch",
        ],
        2,
        &["--manifest"],
    );
    // A plan inside a snapshot would be taken for a part of it.
    for inside in [
        format!("{source}/plan.json"),
        format!("{to}/chk-7/_metadata"),
    ] {
        let verb = ["plan", &source, &to, "--workers", "2", "--out", &inside];
        assert_says(&verb, 2, &["would lie in the snapshot"]);
    }
    // Another plan under the name of one that workers may go by; the same again is fine.
    assert_says(
        &["plan", &source, &to, "--workers", "3", "--out", plan],
        3,
        &["another document"],
    );
    assert_eq!(
        said(&["plan", &source, &to, "--workers", "2", "--out", plan]).0,
        0
    );
    // A picture of something else: refused before it is done.
    assert_says(
        &["run", plan, "--all", "--format", "svg"],
        2,
        &["no picture"],
    );
    assert_says(
        &["fork", &source, &to, "--format", "svg"],
        2,
        &["no picture"],
    );
    // Before any worker has begun.
    let (code, left) = run_json(&["commit", plan]);
    assert_eq!(
        (code, &left["begun"], &left["objects"]),
        (6, &json!(false), &json!(8)),
        "{left}"
    );
    let (code, report) = run_json(&["abandon", plan, "--apply"]);
    assert_eq!((code, &report["under_way"]), (0, &json!(false)), "{report}");
    assert_eq!(ready.below_target().await, 0);
}

#[tokio::test]
async fn a_destination_of_others_is_refused() {
    // Something is at a place, and no fork is under way.
    let ready = Ready::new().await;
    let plan = ready.plan_at.as_str();
    let place = ready.at("destination", 3);
    let equal = ready
        .stores
        .read(&ready.at("source", 3), u64::MAX)
        .await
        .unwrap();
    ready.stores.put(&place, equal, true).await.unwrap();
    for verb in [vec!["run", plan, "--worker", "0"], vec!["commit", plan]] {
        assert_says(&verb, 3, &[&place.to_string(), "may be in use"]);
    }
    ready.stores.delete(&place).await.unwrap();

    // A stranger comes while the fork is under way.
    run_json(&["run", plan, "--worker", "0"]);
    let mine = (0..8)
        .find(|n| ready.plan["tasks"][*n]["worker"] == 1)
        .unwrap();
    let place = ready.at("destination", mine);
    for stranger in [vec![b'x'; 50], vec![b'x'; 3]] {
        ready
            .stores
            .put(&place, Bytes::from(stranger.clone()), false)
            .await
            .unwrap();
        for verb in [
            vec!["run", plan, "--worker", "1"],
            vec!["commit", plan],
            vec![
                "commit",
                plan,
                "--copied-by",
                "other",
                "--verify",
                "content",
            ],
        ] {
            assert_says(&verb, 3, &[&place.to_string(), "left as it is"]);
        }
        let (code, report) = run_json(&["abandon", plan]);
        assert_eq!(code, 4, "{report}");
        assert_eq!(report["unproved"], json!([place]));
        assert_eq!(ready.stores.read(&place, 99).await.unwrap(), stranger);
        assert!(!ready.is_committed().await);
    }
    // Abandoning leaves it, and the note that keeps the place.
    let (code, report) = run_json(&["abandon", plan, "--apply"]);
    assert_eq!(
        (code, report["own"].as_array().unwrap().len() > 2),
        (4, true),
        "{report}"
    );
    assert!(ready.stores.find(&place).await.unwrap().is_some());
    assert!(
        ready
            .stores
            .find(&ready.target.join(".forkpoint/chk-7.json").unwrap())
            .await
            .unwrap()
            .is_some()
    );

    // Another snapshot is there.
    let other = Ready::new().await;
    let commit = other.target.join("chk-7/_metadata").unwrap();
    other
        .stores
        .put(&commit, Bytes::from_static(b"other"), true)
        .await
        .unwrap();
    for verb in ["run", "commit", "abandon"] {
        let mut args = vec![verb, other.plan_at.as_str()];
        args.extend((verb == "run").then_some("--all"));
        assert_says(&args, 3, &["chk-7"]);
    }
    assert_eq!(other.below_target().await, 1);

    // Another fork is under way there.
    let third = Ready::new().await;
    let source = synthetic::lay(&third.stores, &third.root.join("second").unwrap(), 3, 9).await;
    let second_plan = third.root.join("second.json").unwrap().to_string();
    let (code, _) = run_json(&[
        "plan",
        &source.to_string(),
        &third.target.to_string(),
        "--workers",
        "1",
        "--out",
        &second_plan,
    ]);
    assert_eq!(code, 0);
    run_json(&["run", &third.plan_at, "--worker", "0"]);
    for verb in [
        vec!["run", &second_plan, "--all"],
        vec!["commit", &second_plan],
        vec!["abandon", &second_plan, "--apply"],
    ] {
        assert_says(&verb, 3, &["another fork"]);
    }
}

#[tokio::test]
async fn a_source_that_changed_since_planning_is_named() {
    let ready = Ready::new().await;
    let plan = ready.plan_at.as_str();
    let source = ready.at("source", 0);
    let worker = ready.plan["tasks"][0]["worker"].to_string();
    ready
        .stores
        .put(&source, Bytes::from(vec![b'y'; 50]), false)
        .await
        .unwrap();
    for verb in [
        vec!["run", plan, "--worker", &worker],
        vec!["run", plan, "--all"],
        vec!["commit", plan],
    ] {
        assert_says(&verb, 3, &[&source.to_string(), "changed since the plan"]);
    }
    assert!(!ready.is_committed().await);

    // Gone, before it was copied.
    let ready = Ready::new().await;
    let plan = ready.plan_at.as_str();
    let source = ready.at("source", 0);
    ready.stores.delete(&source).await.unwrap();
    assert_says(&["run", plan, "--all"], 1, &[&source.to_string()]);
    assert_says(&["commit", plan], 5, &[&source.to_string()]);
    assert!(!ready.is_committed().await);
}

#[tokio::test]
async fn committing_and_running_again_is_harmless_and_abandoning_then_is_refused() {
    let ready = Ready::new().await;
    let plan = ready.plan_at.as_str();
    ready.run_all();
    let (code, first) = run_json(&["commit", plan]);
    assert_eq!((code, &first["already"]), (0, &json!(false)), "{first}");
    let whole = manifest(&ready.stores, &ready.target).await;
    assert_eq!(whole.len(), 9, "eight files and the commit object");
    let (code, second) = run_json(&["commit", plan]);
    assert_eq!((code, &second["already"]), (0, &json!(true)), "{second}");
    for args in [
        vec!["run", plan, "--worker", "1"],
        vec!["run", plan, "--all"],
    ] {
        let (code, report) = run_json(&args);
        assert_eq!(
            (code, &report["committed"], &report["copied"]),
            (0, &json!(true), &json!(0))
        );
    }
    assert_says(&["abandon", plan, "--apply"], 3, &["committed there"]);
    let source = ready.root.join("original/chk-7").unwrap().to_string();
    let to = ready.target.to_string();
    assert_says(
        &["plan", &source, &to, "--workers", "2"],
        3,
        &["committed already"],
    );
    assert_eq!(manifest(&ready.stores, &ready.target).await, whole);
}

#[tokio::test]
async fn abandoning_removes_what_the_fork_has_left_and_nothing_else() {
    let ready = Ready::new().await;
    let plan = ready.plan_at.as_str();
    let neighbour = ready.target.join("shared/of-another-job").unwrap();
    ready
        .stores
        .put(&neighbour, Bytes::from_static(b"n"), true)
        .await
        .unwrap();
    let original = manifest(&ready.stores, &ready.root.join("original").unwrap()).await;
    run_json(&["run", plan, "--worker", "0"]);
    // One without a receipt, as a killed worker leaves it: proved by its content.
    let mine = (0..8)
        .find(|n| ready.plan["tasks"][*n]["worker"] == 1)
        .unwrap();
    let content = ready
        .stores
        .read(&ready.at("source", mine), 99)
        .await
        .unwrap();
    ready
        .stores
        .put(&ready.at("destination", mine), content, true)
        .await
        .unwrap();
    let before = manifest(&ready.stores, &ready.target).await;
    let (code, said) = run_json(&["abandon", plan]);
    assert_eq!((code, &said["applied"]), (0, &json!(false)));
    assert_eq!(said["own"].as_array().unwrap().len(), 5, "{said}");
    assert_eq!(
        manifest(&ready.stores, &ready.target).await,
        before,
        "a dry run"
    );
    let (code, done) = run_json(&["abandon", plan, "--apply"]);
    assert_eq!((code, &done["own"]), (0, &said["own"]), "{done}");
    let left: Vec<String> = manifest(&ready.stores, &ready.target)
        .await
        .into_keys()
        .collect();
    assert_eq!(left, [neighbour.to_string()]);
    assert_eq!(
        manifest(&ready.stores, &ready.root.join("original").unwrap()).await,
        original
    );
    // Again: nothing. And the place is free.
    assert_eq!(run_json(&["abandon", plan, "--apply"]).0, 0);
    ready.run_all();
    assert_eq!(run_json(&["commit", plan]).0, 0);

    // When the original has gone, receipts alone prove anything.
    let ready = Ready::new().await;
    let plan = ready.plan_at.as_str();
    run_json(&["run", plan, "--worker", "0"]);
    let unproved = ready.at("destination", mine);
    ready
        .stores
        .put(&unproved, Bytes::from(vec![0; 50]), true)
        .await
        .unwrap();
    delete_all(&ready.stores, &ready.root.join("original").unwrap()).await;
    assert_says(&["commit", plan], 1, &["abandon"]);
    let (code, done) = run_json(&["abandon", plan, "--apply"]);
    assert_eq!(
        (code, done["own"].as_array().unwrap().len()),
        (4, 4),
        "{done}"
    );
    assert_eq!(done["unproved"], json!([unproved]));
    ready.stores.delete(&unproved).await.unwrap();
    assert_eq!(run_json(&["abandon", plan, "--apply"]).0, 0);
    assert_eq!(ready.below_target().await, 0);
}

/// A service brings to its end what a killed worker had asked for, and a worker may not have seen that its fork is given up:
/// what lies there then is neither passed over nor deleted without the word of who knows.
#[tokio::test]
async fn what_comes_after_a_fork_was_given_up_is_told_and_removed_on_the_users_word() {
    let ready = Ready::new().await;
    let plan = ready.plan_at.as_str();
    run_json(&["run", plan, "--worker", "0"]);
    assert_eq!(run_json(&["abandon", plan, "--apply"]).0, 0);
    let (late, strange) = (ready.at("destination", 0), ready.at("destination", 1));
    let content = ready.stores.read(&ready.at("source", 0), 99).await.unwrap();
    ready.stores.put(&late, content, true).await.unwrap();
    for verb in [&["abandon", plan][..], &["abandon", plan, "--apply"]] {
        assert_says(verb, 3, &["1 of its objects", "--never-used"]);
    }
    assert_says(&["run", plan, "--worker", "0"], 3, &["--never-used"]);
    // Also for whoever has no plan any more.
    let (source, to) = (
        ready.plan["source"].clone(),
        ready.plan["destination"].clone(),
    );
    let anew = ready.root.join("anew.json").unwrap().to_string();
    let again = [
        "plan",
        source.as_str().unwrap(),
        to.as_str().unwrap(),
        "--workers",
        "1",
        "--out",
        &anew,
    ];
    assert_says(&again, 3, &["--to-give-up", "--never-used"]);
    let (code, _) = run_json(&[&again[..], &["--to-give-up"]].concat());
    assert_eq!(code, 0);
    assert_says(&["abandon", &anew, "--apply"], 3, &["1 of its objects"]);
    // Only what is equal to its source.
    let other = Bytes::from(vec![0; 50]);
    ready.stores.put(&strange, other, true).await.unwrap();
    let (code, done) = run_json(&["abandon", plan, "--apply", "--never-used"]);
    assert_eq!(
        (code, &done["own"][0]["location"]),
        (4, &json!(late)),
        "{done}"
    );
    assert_eq!(done["unproved"], json!([strange]));
    ready.stores.delete(&strange).await.unwrap();
    let (code, done) = run_json(&["abandon", &anew, "--apply", "--never-used"]);
    assert_eq!((code, &done["own"]), (0, &json!([])), "{done}");
    assert_eq!(ready.below_target().await, 0);
    ready.run_all();
    assert_eq!(run_json(&["commit", plan]).0, 0);
}

/// Between the decision to commit and the removal of the note a process may die. The job that claims the
/// fork then may take its commit object away, so that it seems to be one that never was committed.
#[tokio::test]
async fn a_fork_that_may_have_been_committed_is_not_abandoned() {
    let ready = Ready::new().await;
    let plan = ready.plan_at.as_str();
    ready.run_all();
    let id = ready.plan["fork_id"].as_str().unwrap();
    let journal = Journal::open(&ready.stores, &ready.target, id)
        .await
        .unwrap();
    journal
        .committing(&ready.target.join("chk-7/_metadata").unwrap())
        .await
        .unwrap();
    let before = manifest(&ready.stores, &ready.target).await;
    assert_says(
        &["abandon", plan, "--apply"],
        3,
        &["may have", "forkpoint commit"],
    );
    assert_eq!(manifest(&ready.stores, &ready.target).await, before);
    assert_eq!(run_json(&["commit", plan]).0, 0);
}

#[tokio::test]
async fn whoever_runs_a_plan_decides_about_other_services() {
    if !Service::S3.is_there("files of other services") {
        return;
    }
    let (_dir, root) = temp();
    let stores = emulator_stores();
    let (file, place) = (root.join("file").unwrap(), Service::S3.place(0, "services"));
    stores
        .put(&file, Bytes::from_static(b"abc"), true)
        .await
        .unwrap();
    let metadata = Bytes::from(synthetic::metadata(&[(file.to_string(), 3)]));
    let snapshot = place.join("chk-7").unwrap();
    stores
        .put(&snapshot.join("_metadata").unwrap(), metadata, true)
        .await
        .unwrap();
    let (source, to) = (
        snapshot.to_string(),
        Service::S3.place(1, "services").to_string(),
    );
    let plan = root.join("plan.json").unwrap().to_string();
    let arguments = ["plan", &source, &to, "--workers", "1", "--out", &plan];
    assert_says(&arguments, 3, &["--other-services"]);
    assert_eq!(said(&[&arguments[..], &["--other-services"]].concat()).0, 0);
    for verb in [vec!["run", &plan, "--all"], vec!["commit", &plan]] {
        assert_says(&verb, 3, &[&file.to_string(), "--other-services"]);
        assert_eq!(said(&[verb, vec!["--other-services"]].concat()).0, 0);
    }
}

/// Takes the note away while the first object is copied, as `abandon` does.
struct Abandoning(std::path::PathBuf);

impl forkpoint::progress::Progress for Abandoning {
    fn begin(&self, _: &'static str, _: u64, _: u64) {}
    fn advance(&self, _: u64, _: u64) {
        let _ = std::fs::remove_file(&self.0);
    }
    fn end(&self) {}
}

#[tokio::test]
async fn a_worker_whose_fork_was_abandoned_says_so_and_leaves_nothing_unknown() {
    use forkpoint::fork::{RunOptions, Slice, read_plan, run_slice};
    let ready = Ready::new().await;
    let plan = read_plan(&ready.stores, &crate::support::at(&ready.plan_at))
        .await
        .unwrap();
    let folder = ready.target.join(".forkpoint").unwrap();
    let name = format!("{}.json", plan.snapshot.as_ref().unwrap().name());
    let sabotage = Abandoning(folder.join(&name).unwrap().local_path().unwrap());
    let (options, cancel) = (
        RunOptions::default(),
        forkpoint::progress::Cancel::default(),
    );
    let run = run_slice(
        &ready.stores,
        &plan,
        Slice::All,
        &options,
        &sabotage,
        &cancel,
    );
    let e = run.await.unwrap_err();
    assert_eq!(e.kind(), forkpoint::ErrorKind::Refused, "{e}");
    assert!(e.to_string().contains("abandoned"), "{e}");
    // Nobody knows whether it was abandoned, or committed and its commit object removed.
    assert_says(
        &["abandon", &ready.plan_at, "--apply"],
        3,
        &["may", "forkpoint commit", "--never-used"],
    );
    // Now it can be removed on the word of whoever knows, or finished.
    let (code, said) = run_json(&["abandon", &ready.plan_at, "--never-used"]);
    assert_eq!(
        (code, said["own"].as_array().unwrap().len()),
        (0, 8),
        "{said}"
    );
    let (code, _) = run_json(&["commit", &ready.plan_at]);
    assert_eq!(code, 0);
}
