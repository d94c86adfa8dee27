//! Ownership as scripts and people meet it: ls, why, lineage, usage, pin, claim, clean, and the pin of a fork.

use crate::support::lab::Lab;
use crate::support::{fixture, local_stores, manifest, run, run_json, temp};
use serde_json::json;

async fn laid() -> (tempfile::TempDir, Lab) {
    let (dir, root) = temp();
    let lab = Lab::at(local_stores(), root);
    lab.complete("a", 1, &["a:one", "a:1/own"]).await;
    lab.complete("a", 2, &["a:one", "a:2/own"]).await;
    lab.complete("b", 3, &["a:one", "b:3/own"]).await;
    (dir, lab)
}

/// The arguments of a clean without a limit of age that keeps the newest, with its plan in the file `out`.
fn clean_to<'a>(root: &'a str, out: &'a str) -> [&'a str; 8] {
    [
        "clean",
        root,
        "--keep",
        "last=1",
        "--min-age",
        "0",
        "--out",
        out,
    ]
}

#[tokio::test]
async fn ls_why_lineage_and_usage_say_who_needs_what_and_write_nothing() {
    let (_dir, lab) = laid().await;
    let before = manifest(&lab.stores, &lab.root).await;
    let root = lab.root.to_string();
    let (code, ls) = run_json(&["ls", &root]);
    assert_eq!((code, ls["snapshots"].as_array().unwrap().len()), (0, 3));
    assert_eq!(ls["snapshots"][0]["exclusive"]["objects"], json!(2));
    let first = lab.directory("a", 1).to_string();
    let (code, why) = run_json(&["why", &first]);
    assert_eq!(
        (code, &why["answer"], &why["freed"]["objects"]),
        (3, &json!("kept"), &json!(2))
    );
    assert_eq!(why["reasons"][0]["reason"], json!("used-by"));
    let (code, object) = run_json(&["why", &lab.file("b:3/own").to_string()]);
    assert_eq!((code, object["used_by"].as_array().unwrap().len()), (3, 1));
    let (code, lineage) = run_json(&["lineage", &root]);
    assert_eq!(
        (code, &lineage["jobs"][1]["grew_from"]["shared_objects"]),
        (0, &json!(1))
    );
    let picture = run(&["lineage", &root, "--format", "svg"]).stdout;
    let picture = String::from_utf8(picture).unwrap();
    assert!(
        picture.starts_with("<svg") && picture.matches("<title>").count() == 5,
        "{picture}"
    );
    let (code, usage) = run_json(&["usage", &root]);
    assert_eq!((code, &usage["classes"]["live"]["objects"]), (0, &json!(7)));
    assert_eq!(manifest(&lab.stores, &lab.root).await, before);
    let (code, _) = run_json(&["ls", &format!("{root}/nothing")]);
    assert_eq!(code, 4, "an empty root may be a mistyped one");
    assert_eq!(
        run(&["why", &format!("{root}/chk-9")]).status.code(),
        Some(1)
    );
}

/// `why` and `clean` answer two questions; for the rules of a clean `why` says what that clean does.
#[tokio::test]
async fn why_says_what_a_clean_by_given_rules_would_do_and_the_clean_does_it() {
    let (_dir, lab) = laid().await;
    lab.write("a:lost").await;
    let root = lab.root.to_string();
    let snapshots = [
        lab.directory("a", 1),
        lab.directory("a", 2),
        lab.directory("b", 3),
    ];
    let (mut kept_and_deleted, mut deletable_and_kept) = (0, 0);
    for rules in [
        &[][..],
        &["--keep", "last=1"],
        &["--keep", "last=1", "--min-age", "0"],
        &["--keep", "named=none", "--min-age", "0"],
        &[
            "--keep",
            "named=none",
            "--keep",
            "within=1h",
            "--min-age",
            "0",
        ],
    ] {
        let (code, plan) = run_json(&[&["clean", &root], rules].concat());
        assert_eq!(code, 0);
        for snapshot in &snapshots {
            let at = snapshot.to_string();
            let (code, why) = run_json(&[&["why", &at], rules].concat());
            let going = plan["going"].as_array().unwrap().iter();
            let planned = going.clone().find(|g| g["directory"] == json!(at));
            let outlook = &why["clean"];
            assert_eq!(outlook["goes"], json!(planned.is_some()), "{at} {rules:?}");
            match planned {
                Some(planned) => {
                    assert_eq!(outlook["deleted"]["objects"], planned["objects"], "{at}");
                    assert_eq!(outlook["deleted"]["bytes"], planned["bytes"], "{at}");
                    kept_and_deleted += i32::from(code == 3);
                }
                None => {
                    assert!(!outlook["stays"].as_array().unwrap().is_empty(), "{at}");
                    deletable_and_kept += i32::from(code == 0);
                }
            }
            assert_eq!(outlook["blocked"], json!(false));
        }
    }
    assert!(kept_and_deleted > 0, "no such case was met");

    // In words: kept for its objects, and deleted without those that others need.
    let text = |args: &[&str]| String::from_utf8(run(args).stdout).unwrap();
    let (first, third) = (snapshots[0].to_string(), snapshots[2].to_string());
    let said = text(&["why", &first, "--keep", "last=1", "--min-age", "0"]);
    assert!(said.contains("\n  kept\n"), "{said}");
    let expected =
        "  clean --keep last=1 with a minimum age of 0 seconds would delete it: 2 objects, ";
    assert!(said.contains(expected), "{said}");
    assert!(
        said.contains("1 object of it, 100 B, stays, since snapshots that stay need it"),
        "{said}"
    );
    let said = text(&["why", &first]);
    assert!(
        said.contains("  clean without --keep would keep it: no rule lets it go; too young"),
        "{said}"
    );
    // Deletable, and kept: nobody needs the last of them, and it is young, and its job was at work.
    let alone = lab.complete("c", 9, &["c:one"]).await.to_string();
    let (code, why) = run_json(&["why", &alone, "--keep", "named=none"]);
    assert_eq!((code, &why["clean"]["goes"]), (0, &json!(false)));
    deletable_and_kept += 1;
    let said = text(&["why", &alone, "--keep", "named=none"]);
    assert!(said.contains("  deletable\n"), "{said}");
    assert!(
        said.contains("would keep it: too young; newest of a job at work"),
        "{said}"
    );
    assert!(deletable_and_kept > 0);
    // Objects too.
    let lost = lab.file("a:lost").to_string();
    for (rules, goes) in [(&[][..], false), (&["--min-age", "0"][..], true)] {
        let (code, why) = run_json(&[&["why", &lost], rules].concat());
        assert_eq!((code, &why["clean"]["goes"]), (0, &json!(goes)), "{why}");
    }
    assert!(text(&["why", &lost]).contains("would keep it: it is younger"));
    // Without evidence it deletes nothing, and says so.
    let broken = lab.directory("b", 4).join("_metadata").unwrap();
    lab.stores.put(&broken, vec![1].into(), true).await.unwrap();
    let said = text(&["why", &third, "--keep", "named=none", "--min-age", "0"]);
    assert!(
        said.contains("would delete nothing while evidence is missing"),
        "{said}"
    );
}

#[test]
fn the_difference_of_why_and_clean_is_told_where_people_look_for_it() {
    let readme = include_str!("../../README.md");
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let help = |verb: &str| plain(&String::from_utf8(run(&[verb, "--help"]).stdout).unwrap());
    for (place, text) in [
        ("README", plain(readme)),
        ("why", help("why")),
        ("clean", help("clean")),
    ] {
        for said in [
            "object by object",
            "no snapshot that stays needs",
            "newest of a job at work",
        ] {
            assert!(text.contains(said), "{place}: {said}");
        }
    }
}

#[tokio::test]
async fn a_clean_deletes_exactly_its_plan_and_pins_and_claims_hold() {
    let (dir, lab) = laid().await;
    let root = lab.root.to_string();
    let first = lab.directory("a", 1).to_string();
    let plan = dir
        .path()
        .parent()
        .unwrap()
        .join(format!("{}.plan", lab.root.name()));
    let plan = plan.to_str().unwrap();
    let make = || run_json(&clean_to(&root, plan));
    let (code, made) = make();
    assert_eq!(
        (
            code,
            &made["objects"],
            made["going"].as_array().unwrap().len()
        ),
        (0, &json!(2), 1)
    );
    // The second look comes after the grace period.
    let apply = |more: &[&str]| run_json(&[&["clean", "--apply", plan], more].concat());
    let (code, waiting) = apply(&[]);
    assert_eq!((code, &waiting["status"]), (6, &json!("waiting")));
    // Meanwhile a pin saves it, and a claim of another job is refused with the name of who needs it.
    let (code, pins) = run_json(&[
        "pin",
        "add",
        &first,
        "audit",
        "--reason",
        "kept for the auditors",
    ]);
    assert_eq!((code, &pins["pins"][0]["name"]), (0, &json!("audit")));
    let (code, spared) = apply(&["--grace", "0"]);
    assert_eq!(
        (code, &spared["deleted"], &spared["spared"]["needed-now"]),
        (6, &json!(0), &json!(2))
    );
    let refused = run(&["claim", &first, "--job", "other"]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("b0000"),
        "{refused:?}"
    );
    assert_eq!(run_json(&["pin", "rm", &first, "audit"]).0, 0);
    // It may be half applied: it is never overwritten.
    let over = ["clean", &root, "--keep", "last=1", "--out", plan];
    assert_eq!(run(&over).status.code(), Some(3));
    std::fs::remove_file(plan).unwrap();
    assert_eq!(make().0, 0);
    assert_eq!(
        run(&[
            "clean",
            "--apply",
            plan,
            "--grace",
            "0",
            "--max-delete",
            "1"
        ])
        .status
        .code(),
        Some(3)
    );
    assert!(lab.has(&lab.directory("a", 1)).await);
    let (code, done) = apply(&["--grace", "0"]);
    assert_eq!(
        (code, &done["status"], &done["deleted"]),
        (0, &json!("done"), &json!(2))
    );
    assert!(!lab.has(&lab.directory("a", 1)).await && lab.is_there(&lab.file("a:one")).await);
    assert!(lab.has(&lab.directory("a", 2)).await && lab.has(&lab.directory("b", 3)).await);
    std::fs::remove_file(plan).unwrap();
}

#[tokio::test]
async fn a_plan_is_applied_once_and_as_it_was_made() {
    let (_dir, lab) = laid().await;
    let root = lab.root.to_string();
    let (_plans, folder) = temp();
    let folder = folder.local_path().unwrap();
    let named = |name: &str| folder.join(name).to_str().unwrap().to_string();
    let make = |name: &str, more: &[&str]| {
        let out = named(name);
        let all = clean_to(&root, &out);
        run_json(&[&all[..], more].concat())
    };
    let (code, _) = make("few", &["--max-delete", "1"]);
    assert_eq!(code, 3, "more than allowed");
    assert!(!folder.join("few").exists());
    assert_eq!(make("plan", &["--max-delete", "2"]).0, 0);
    let text = std::fs::read_to_string(folder.join("plan")).unwrap();
    let kept = lab.file("a:2/own");
    let victim = lab.file("a:1/own");
    assert!(text.contains(&victim.to_string()));
    let edits = [
        (
            "another",
            text.replace(&victim.to_string(), &kept.to_string()),
        ),
        (
            "outside",
            text.replace(&victim.to_string(), "file:/elsewhere/file"),
        ),
        (
            "young",
            text.replacen("\"min_age_ms\":0", "\"min_age_ms\":1", 1),
        ),
    ];
    for (name, text) in edits {
        std::fs::write(folder.join(name), text).unwrap();
        let refused = run(&["clean", "--apply", &named(name), "--grace", "0"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(5), "{name}: {said}");
        assert!(said.contains("make the plan anew"), "{name}: {said}");
        assert_eq!(
            said.contains("outside of its roots"),
            name == "outside",
            "{said}"
        );
    }
    let apply = || run_json(&["clean", "--apply", &named("plan"), "--grace", "0"]);
    let (code, done) = apply();
    assert_eq!((code, &done["deleted"]), (0, &json!(2)));
    // Over: no new grace period, and nothing left behind.
    let before = manifest(&lab.stores, &lab.root).await;
    let (code, again) = run_json(&["clean", "--apply", &named("plan")]);
    assert_eq!(
        (code, &again["status"], &again["gone"]),
        (0, &json!("done"), &json!(2))
    );
    assert_eq!(manifest(&lab.stores, &lab.root).await, before);
}

#[tokio::test]
async fn what_a_plan_left_is_named_with_who_needs_it() {
    let (_dir, lab) = laid().await;
    let (_plans, folder) = temp();
    let plan = folder.join("plan").unwrap().local_path().unwrap();
    let plan = plan.to_str().unwrap().to_string();
    let root = lab.root.to_string();
    let made = clean_to(&root, &plan);
    assert_eq!(run_json(&made).0, 0);
    let first = lab.directory("a", 1).to_string();
    let pin = [
        "pin",
        "add",
        &first,
        "audit",
        "--reason",
        "audit",
        "--expires-in",
        "1h",
    ];
    assert_eq!(run_json(&pin).0, 0);
    let applied = run(&["clean", "--apply", &plan, "--grace", "0"]);
    let said = String::from_utf8_lossy(&applied.stdout).into_owned();
    assert_eq!(applied.status.code(), Some(6), "{said}");
    // What saved it is the pin, and is named.
    let expected = format!("needed by {first}, which stays: pin audit of ");
    assert!(said.contains(&expected), "{said}");
    // A pin that has expired says so.
    let pin = [
        "pin",
        "add",
        &first,
        "past",
        "--reason",
        "audit",
        "--expires-in",
        "0",
    ];
    assert_eq!(run_json(&pin).0, 0);
    let listed = run(&["pin", "ls", &first]);
    let said = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(
        said.contains("counts no more") && said.contains("until"),
        "{said}"
    );
    // A folder that holds snapshots is none.
    let above = run(&["pin", "ls", &lab.root.to_string()]);
    let said = String::from_utf8_lossy(&above.stderr).into_owned();
    assert_eq!(above.status.code(), Some(1), "{said}");
    assert!(said.contains("no snapshot here"), "{said}");
    let (code, nothing) = run_json(&["claim", &first, "--job", "nobody", "--release"]);
    assert_eq!((code, &nothing["released"]), (0, &json!(false)));
}

/// A commit object that somebody has unpacked, or that a tool has made a folder of, is no proof that its snapshot is none.
#[tokio::test]
async fn a_folder_in_place_of_a_commit_object_blocks() {
    let (_dir, lab) = laid().await;
    let folder = lab.directory("a", 1);
    let at = folder.join("_metadata").unwrap().local_path().unwrap();
    std::fs::remove_file(&at).unwrap();
    std::fs::create_dir(&at).unwrap();
    std::fs::write(at.join("part-0"), "x").unwrap();
    let root = lab.root.to_string();
    let (code, ls) = run_json(&["ls", &root]);
    assert_eq!(code, 4, "{ls}");
    let (code, plan) = run_json(&["clean", &root, "--keep", "last=1", "--min-age", "0"]);
    assert_eq!((code, &plan["blocked"]), (4, &json!(true)));
    assert!(
        plan["missing"].to_string().contains("it is a folder"),
        "{plan}"
    );
}

#[tokio::test]
async fn a_fork_pins_its_source_while_it_runs() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let original = root.join("original").unwrap();
    let fixture = fixture("1.20.5-rocks-inc-p2");
    fixture.lay(&stores, &original).await;
    let snapshot = original.join(&fixture.newest()).unwrap();
    let before = manifest(&stores, &original).await;
    let target = root.join("fork").unwrap();
    let (code, fork) = run_json(&["fork", &snapshot.to_string(), &target.to_string()]);
    assert_eq!((code, &fork["unpinned"]), (0, &json!(null)));
    assert_eq!(
        manifest(&stores, &original).await,
        before,
        "the pin is gone"
    );
    // A fork that was killed leaves its pin, which names it; what it reads is kept.
    let request = forkpoint::ownership::PinRequest::of_fork("0123", &target);
    forkpoint::ownership::pin(&stores, &snapshot, &request)
        .await
        .unwrap();
    let (code, why) = run_json(&["why", &snapshot.to_string()]);
    assert_eq!(code, 3);
    let reasons = why["reasons"].as_array().unwrap();
    let forked = reasons.iter().find(|r| r["reason"] == "forked-to").unwrap();
    assert_eq!(
        (&forked["fork_id"], &forked["destination"]),
        (&json!("0123"), &json!(target))
    );
    assert!(why["changes"].to_string().contains("pin rm"), "{why}");
}

/// A job's folder that is a link to a disk that is away, or a commit object that is: what they hold is not
/// known, so nothing goes.
#[cfg(unix)]
#[tokio::test]
async fn links_that_lead_nowhere_block_a_clean() {
    for what in ["a job", "a commit object"] {
        let (dir, lab) = laid().await;
        let root = lab.root.to_string();
        let at = match what {
            "a job" => lab.home("b"),
            _ => lab.directory("b", 3).join("_metadata").unwrap(),
        };
        let at = at.local_path().unwrap();
        let name = format!("away-{}-{}", lab.root.name(), what.len());
        let away = dir.path().parent().unwrap().join(name);
        std::fs::rename(&at, &away).unwrap();
        std::os::unix::fs::symlink(away.with_extension("nowhere"), &at).unwrap();
        let plan = away.with_extension("plan");
        let output = run(&[
            "clean",
            &root,
            "--keep",
            "within=0s",
            "--min-age",
            "0s",
            "--out",
            plan.to_str().unwrap(),
        ]);
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(
            text.contains("a symbolic link that leads nowhere"),
            "{text}"
        );
        assert!(text.contains(at.to_str().unwrap()), "which one: {text}");
        assert!(!plan.exists());
        let remove = match away.is_dir() {
            true => std::fs::remove_dir_all(&away),
            false => std::fs::remove_file(&away),
        };
        remove.unwrap();
    }
}
