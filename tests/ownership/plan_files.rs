//! The plan of a clean as a file, and the rules that it is made by.

use crate::support::lab::Lab;
use crate::support::{local_stores, run, temp};

async fn laid() -> (tempfile::TempDir, Lab) {
    let (dir, root) = temp();
    let lab = Lab::at(local_stores(), root);
    lab.complete("a", 1, &["a:one", "a:1/own"]).await;
    lab.complete("a", 2, &["a:one", "a:2/own"]).await;
    (dir, lab)
}

/// A plan is there whole or not at all, so that the same command can be run again.
#[cfg(unix)]
#[tokio::test]
async fn a_plan_that_cannot_be_written_leaves_no_file() {
    let (_dir, lab) = laid().await;
    let (plans, folder) = temp();
    let plan = folder.join("plan").unwrap().local_path().unwrap();
    let root = lab.root.to_string();
    let plan_text = plan.to_str().unwrap();
    let clean = |shell: &str| {
        let out = std::process::Command::new("sh")
            .args(["-c", shell, "sh", env!("CARGO_BIN_EXE_forkpoint")])
            .args([
                "clean",
                &root,
                "--keep",
                "last=1",
                "--min-age",
                "0",
                "--out",
                plan_text,
            ])
            .output();
        out.unwrap().status.code()
    };
    // No file may have a byte.
    assert_ne!(clean("ulimit -f 0; exec \"$@\""), Some(0));
    assert_eq!(std::fs::read_dir(plans.path()).unwrap().count(), 0);
    assert_eq!(clean("exec \"$@\""), Some(0));
    assert_eq!(std::fs::read_dir(plans.path()).unwrap().count(), 1);
    let url = ["clean", &root, "--out", "s3://bucket/plan"];
    assert_eq!(run(&url).status.code(), Some(2));
}

#[tokio::test]
async fn rules_go_with_the_making_of_a_plan_and_wrong_ones_say_what_may_be_written() {
    let (_dir, lab) = laid().await;
    for given in [
        &["--keep", "last=1"][..],
        &["--min-age", "1h"],
        &["--also", "/tmp"],
    ] {
        let refused = run(&[&["clean", "--apply", "/nowhere/plan"], given].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains("cannot be used with"), "{said}");
    }
    let root = lab.root.to_string();
    for (rule, why) in [
        ("named=", "the name or the pattern is missing"),
        ("within=7", "`7` has no unit"),
        ("every=x", "`x` is no span of time"),
        ("newest=3", "there is no rule `newest`"),
    ] {
        let refused = run(&["clean", &root, "--keep", rule]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{said}");
        for part in [
            why,
            "named=PATTERN",
            "within=7d",
            "ms, s, m (minutes), h, d or w",
        ] {
            assert!(said.contains(part), "{rule}: `{part}` in {said}");
        }
    }
    // Of nothing there is nothing to say but that.
    let (_empty, nothing) = temp();
    let out = run(&["clean", &nothing.to_string()]).stdout;
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("plan "), "{text}");
}
