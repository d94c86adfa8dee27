//! What users report of ownership in Flink, each with the verdict that they should have got.

use crate::support::lab::{FILE_BYTES, Lab};
use crate::support::{at, fixture, local_stores, temp};
use forkpoint::ErrorKind;
use forkpoint::ownership::{
    Answer, Cause, Class, CleanPolicy, Doubt, Independence, Lineage, MissingReason, NeedReason,
    classify, family_tree, independence, judge, survey, usage,
};
use forkpoint::progress::Silent;
use forkpoint::snapshot::RestoreMode;
use forkpoint::store::Location;

/// The names of the snapshots that use this one, and how many of its objects.
fn users(verdict: &forkpoint::ownership::Verdict) -> Vec<(String, u64)> {
    let user = |reason: &NeedReason| match reason {
        NeedReason::UsedBy {
            snapshot, amount, ..
        } => (snapshot.to_string(), amount.objects),
        other => panic!("{other:?}"),
    };
    verdict.reasons.iter().map(user).collect()
}

async fn class_of(lab: &Lab, object: &Location, min_age_ms: u64, later_ms: u64) -> Class {
    let survey = lab.look().await;
    let policy = CleanPolicy {
        keep: Vec::new(),
        min_age_ms,
    };
    let roots = std::slice::from_ref(&lab.root);
    let classified = classify(
        &Lineage::new(&survey),
        roots,
        &policy,
        survey.taken_at + later_ms,
    );
    classified.classes[survey.names.find(object).unwrap() as usize]
}

/// Report 1: retained 32, 33 and 34; a job claims 34.
#[tokio::test]
async fn a_claim_says_which_older_checkpoints_stay_for_ever_and_takes_them_over_when_asked() {
    for chain in [false, true] {
        let lab = Lab::new();
        for (number, files) in [
            (32, ["a:s", "a:32/x"]),
            (33, ["a:s", "a:33/x"]),
            (34, ["a:s", "a:34/x"]),
        ] {
            lab.complete("a", number, &files).await;
        }
        let newest = lab.directory("a", 34);
        let report = lab
            .start(&newest, "b", RestoreMode::Claim, chain)
            .await
            .unwrap();
        let left: Vec<i64> = report
            .left_behind
            .iter()
            .map(|c| c.snapshot.number)
            .collect();
        assert_eq!(left, if chain { vec![] } else { vec![32, 33] });
        assert_eq!(
            report.left_behind_freed.objects,
            if chain { 0 } else { 4 },
            "two files, two commit objects"
        );
        for number in 35..40 {
            lab.complete("b", number, &["a:s", &format!("b:{number}")])
                .await;
        }
        lab.clean(&["last=3"]).await;
        assert!(
            !lab.has(&newest).await,
            "the claimed one counts for its new job"
        );
        for number in [32, 33] {
            assert_eq!(
                lab.has(&lab.directory("a", number)).await,
                !chain,
                "chk-{number}"
            );
        }
        assert!(lab.is_there(&lab.file("a:s")).await, "job b needs it");
        assert!(!lab.has(&lab.directory("b", 36)).await && lab.has(&lab.directory("b", 37)).await);
    }
}

/// Report 3 (FLINK-39964): relative references that a claimed native savepoint would resolve.
#[tokio::test]
async fn a_savepoint_is_kept_for_checkpoints_whose_relative_references_lead_nowhere() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let chain = fixture("1.20.5-from-savepoint-native-claim");
    chain.lay(&stores, &root).await;
    let survey = survey(&stores, std::slice::from_ref(&root), &Silent)
        .await
        .unwrap();
    let savepoint = chain
        .snapshots()
        .into_iter()
        .find(|p| p.contains("savepoint"))
        .unwrap();
    let node = survey.find(&root.join(&savepoint).unwrap()).unwrap();
    let verdict = judge(&Lineage::new(&survey), node, survey.taken_at).unwrap();
    assert_eq!(verdict.answer, Answer::Kept);
    let broken = chain.broken();
    assert!(!broken.is_empty());
    for path in broken {
        let directory = root.join(&path).unwrap();
        assert!(
            verdict
                .reasons
                .iter()
                .any(|r| matches!(r, NeedReason::MeantBy { directory: d, .. } if *d == directory)),
            "{path}"
        );
    }
    assert!(
        verdict.changes.iter().any(|c| c.contains("--look-in")),
        "{:?}",
        verdict.changes
    );
}

/// Report 4 (FLINK-26985): a job restored in legacy mode builds on files that it does not own.
#[tokio::test]
async fn files_of_a_legacy_restored_checkpoint_stay_while_its_job_uses_them() {
    let lab = Lab::new();
    let first = lab.complete("a", 1, &["a:kept", "a:compacted"]).await;
    lab.start(&first, "b", RestoreMode::Legacy, false)
        .await
        .unwrap();
    assert_eq!(
        lab.why(&first).await.answer,
        Answer::Kept,
        "job b has completed nothing"
    );
    lab.complete("b", 2, &["a:kept", "a:compacted"]).await;
    lab.complete("b", 3, &["a:kept", "b:new"]).await;
    assert_eq!(users(&lab.why(&first).await).len(), 2);
    // Even if the old job's last checkpoint is given up, what job b refers to stays.
    lab.clean(&["named=b*/chk-3"]).await;
    assert!(!lab.has(&first).await);
    assert!(lab.is_there(&lab.file("a:kept")).await);
    assert!(!lab.is_there(&lab.file("a:compacted")).await);
}

/// Report 8 (FLINK-24611): what an aborted checkpoint has written, and a later one refers to.
#[tokio::test]
async fn a_file_of_an_aborted_checkpoint_is_live_if_a_later_one_refers_to_it() {
    let lab = Lab::new();
    lab.complete("a", 1, &["a:one"]).await;
    let used = lab.write("a:2/used").await;
    let unused = lab.write("a:2/unused").await;
    lab.complete("a", 3, &["a:one", "a:2/used"]).await;
    assert_eq!(class_of(&lab, &used, 0, 1).await, Class::Live);
    assert_eq!(
        class_of(&lab, &unused, 0, 1).await,
        Class::Orphan(Cause::AbortedCheckpoint)
    );
    lab.clean(&["last=1"]).await;
    assert!(lab.is_there(&used).await && !lab.is_there(&unused).await);
}

/// Report 9 (FLINK-25872, FLINK-28597): a claimed native savepoint whose files later checkpoints use.
#[tokio::test]
async fn a_claimed_savepoint_is_kept_while_any_file_in_it_is_used_and_listed_as_deletable_then() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let native = fixture("1.20.5-savepoint-native");
    native.lay(&stores, &root).await;
    let lab = Lab::at(stores.clone(), root.clone());
    let savepoint = native
        .snapshots()
        .into_iter()
        .find(|p| p.contains("savepoint"))
        .unwrap();
    let savepoint = root.join(&savepoint).unwrap();
    assert_eq!(lab.why(&savepoint).await.answer, Answer::Deletable);
    lab.start(&savepoint, "b", RestoreMode::Claim, false)
        .await
        .unwrap();
    let inside = stores
        .list(&savepoint)
        .await
        .unwrap()
        .into_iter()
        .map(|(at, _)| at)
        .find(|at| at.name() != "_metadata")
        .unwrap();
    let size = stores.stat(&inside).await.unwrap().size;
    // A file system may be some milliseconds behind the clock, and what is older than the claim is not of its job.
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    let directory = lab.directory("b", 99);
    let bytes = crate::support::synthetic::numbered_metadata(99, &[(inside.to_string(), size)]);
    stores
        .put(&directory.join("_metadata").unwrap(), bytes.into(), true)
        .await
        .unwrap();
    let verdict = lab.why(&savepoint).await;
    assert_eq!(users(&verdict), [("b0000000/chk-99".to_string(), 1)]);
    lab.clean(&["last=1", "savepoint:last=0"]).await;
    assert!(!lab.has(&savepoint).await && lab.is_there(&inside).await);
    lab.complete("b", 100, &["b:own"]).await;
    lab.clean(&["last=1", "savepoint:last=0"]).await;
    // Nobody may call a file an orphan by its name alone where engines put no shared files; it is shown.
    let left = lab.look().await;
    let usage = usage(&Lineage::new(&left), &[root], 0);
    assert!(
        !lab.is_there(&inside).await || usage.unknown.values().any(|a| a.objects == 1),
        "{usage:?}"
    );
}

/// Report 10 (FLINK-38909): an unexpected file in the folder of a checkpoint.
#[tokio::test]
async fn a_stranger_in_the_folder_of_a_checkpoint_stays_and_is_shown_and_nothing_else_fails() {
    let lab = Lab::new();
    let old = lab.complete("a", 1, &["a:one", "a:1/own"]).await;
    lab.complete("a", 2, &["a:two"]).await;
    let stranger = old.join("notes.txt").unwrap();
    lab.write_at(&stranger).await;
    let report = lab.clean(&["last=1"]).await;
    assert_eq!((report.failed, report.deleted), (0, 3));
    assert!(lab.is_there(&stranger).await && !lab.has(&old).await);
    assert_eq!(
        class_of(&lab, &stranger, 0, 1).await,
        Class::Unknown(Doubt::StrangeName)
    );
}

/// Report 11: checkpoints that timed out leave folders that nothing ever removes.
#[tokio::test]
async fn folders_of_timed_out_checkpoints_are_orphans_once_they_are_older_than_the_limit() {
    const HOUR: u64 = 3_600_000;
    let lab = Lab::new();
    let early = lab.write("a:1/part").await;
    lab.complete("a", 2, &["a:2/x"]).await;
    let late = lab.write("a:3/part").await;
    assert_eq!(class_of(&lab, &early, HOUR, 0).await, Class::TooYoung);
    assert_eq!(
        class_of(&lab, &early, HOUR, 2 * HOUR).await,
        Class::Orphan(Cause::AbortedCheckpoint)
    );
    assert_eq!(
        class_of(&lab, &late, HOUR, 2 * HOUR).await,
        Class::Orphan(Cause::UnfinishedCheckpoint)
    );
    let survey = lab.look().await;
    let usage = usage(&Lineage::new(&survey), std::slice::from_ref(&lab.root), 0);
    assert_eq!(usage.orphans["aborted checkpoint"].bytes, FILE_BYTES);
}

/// Report 13: four generations, each restored from the one before.
#[tokio::test]
async fn each_of_four_generations_says_who_needs_it_and_what_it_would_free() {
    let lab = Lab::new();
    let generations = [
        lab.complete("a", 1, &["a:base", "a:1/own"]).await,
        lab.complete("b", 2, &["a:base", "b:more", "b:2/own"]).await,
        lab.complete("c", 3, &["a:base", "b:more", "c:3/own"]).await,
        lab.complete("d", 4, &["b:more", "d:4/own"]).await,
    ];
    let expected: [(&[(&str, u64)], u64); 4] = [
        (&[("b0000000/chk-2", 1), ("c0000000/chk-3", 1)], 1),
        (
            &[
                ("a0000000/chk-1", 1),
                ("c0000000/chk-3", 2),
                ("d0000000/chk-4", 1),
            ],
            1,
        ),
        (
            &[
                ("a0000000/chk-1", 1),
                ("b0000000/chk-2", 2),
                ("d0000000/chk-4", 1),
            ],
            1,
        ),
        (&[("b0000000/chk-2", 1), ("c0000000/chk-3", 1)], 1),
    ];
    for (directory, (needed_by, files)) in generations.iter().zip(expected) {
        let verdict = lab.why(directory).await;
        let needed_by: Vec<(String, u64)> = needed_by
            .iter()
            .map(|(s, n)| ((*s).to_string(), *n))
            .collect();
        assert_eq!(users(&verdict), needed_by, "{directory}");
        assert_eq!(
            verdict.freed.objects,
            files + 1,
            "its own file and its commit object"
        );
    }
    let survey = lab.look().await;
    let tree = family_tree(&Lineage::new(&survey), std::slice::from_ref(&lab.root));
    let parents: Vec<Option<usize>> = tree
        .branches
        .iter()
        .map(|b| b.grew_from.map(|g| g.branch))
        .collect();
    assert_eq!(parents, [None, Some(0), Some(1), Some(2)]);
}

/// Report 14: a no-claim restore, and when its source may go.
#[tokio::test]
async fn a_no_claim_restore_says_not_yet_and_since_when() {
    let lab = Lab::new();
    let source = lab.complete("a", 42, &["a:x", "a:y"]).await;
    lab.start(&source, "b", RestoreMode::NoClaim, false)
        .await
        .unwrap();
    let answer = |survey: &forkpoint::ownership::Survey| {
        let node = survey.find(&source).unwrap();
        independence(&Lineage::new(survey), node, &format!("{:0<32}", "b"))
    };
    assert_eq!(answer(&lab.look().await), Independence::NoCheckpoint);
    assert!(matches!(
        &lab.why(&source).await.reasons[..],
        [NeedReason::Restoring {
            mode: RestoreMode::NoClaim,
            ..
        }]
    ));
    lab.complete("b", 43, &["a:x", "b:z"]).await;
    assert!(
        matches!(answer(&lab.look().await), Independence::StillUses { amount, .. } if amount.objects == 1)
    );
    lab.stores
        .delete(&lab.directory("b", 43).join("_metadata").unwrap())
        .await
        .unwrap();
    lab.complete("b", 44, &["b:z"]).await;
    lab.complete("b", 45, &["b:z"]).await;
    match answer(&lab.look().await) {
        Independence::Since { snapshot } => assert_eq!(snapshot.number, 44),
        other => panic!("{other:?}"),
    }
    assert_eq!(lab.why(&source).await.answer, Answer::Deletable);
}

/// Report 15: two jobs from one checkpoint, one of them claiming it.
#[tokio::test]
async fn a_claim_is_refused_with_the_name_of_who_depends_on_the_snapshot() {
    use RestoreMode::{Claim, NoClaim};
    let refused = |e: forkpoint::Error, word: &str| {
        assert_eq!(e.kind(), ErrorKind::Refused);
        assert!(e.to_string().contains(word), "{e}");
    };
    let lab = Lab::new();
    let source = lab.complete("a", 42, &["a:x"]).await;
    lab.start(&source, "b", NoClaim, false).await.unwrap();
    refused(
        lab.start(&source, "c", Claim, false).await.unwrap_err(),
        "b0000",
    );
    // Once job b stands alone nothing is in the way.
    lab.complete("b", 43, &["b:own"]).await;
    lab.start(&source, "c", Claim, false).await.unwrap();
    lab.start(&source, "c", Claim, false).await.unwrap();
    refused(
        lab.start(&source, "d", Claim, false).await.unwrap_err(),
        "c0000",
    );
    refused(
        lab.start(&source, "d", NoClaim, false).await.unwrap_err(),
        "c0000",
    );
    // A job that uses files of it depends on it, recorded or not.
    let other = lab.complete("a", 50, &["a:y"]).await;
    lab.complete("e", 51, &["a:y"]).await;
    refused(
        lab.start(&other, "f", Claim, false).await.unwrap_err(),
        "e0000",
    );
    // Two at the same moment: one at most.
    let third = lab.complete("g", 60, &["g:x"]).await;
    let both = tokio::join!(
        lab.start(&third, "h", Claim, false),
        lab.start(&third, "i", NoClaim, false)
    );
    assert!(both.0.is_err() || both.1.is_err(), "{both:?}");
}

/// Report 24 (FLINK-5763): a snapshot that another tool has moved still names its old place.
#[tokio::test]
async fn files_of_a_moved_snapshot_are_never_taken_for_orphans() {
    let lab = Lab::new();
    let file = lab.write("a:x").await;
    let directory = lab.directory("a", 1);
    let old = format!("memory:/old-bucket/shared/{}", file.name());
    let bytes = crate::support::synthetic::numbered_metadata(1, &[(old.clone(), FILE_BYTES)]);
    lab.stores
        .put(&directory.join("_metadata").unwrap(), bytes.into(), true)
        .await
        .unwrap();
    let verdict = lab.why(&directory).await;
    assert_eq!(verdict.answer, Answer::Unknown);
    assert_eq!(
        verdict.missing[0].reason,
        MissingReason::ReferenceLeavesRoots
    );
    let (plan, text) = lab.plan(&["last=1"]).await;
    assert!(!plan.missing.is_empty() && text.header().is_err());
    // Not even when the old place is looked at too, and the moved file is needed by nobody by name.
    lab.write_at(&at(&old)).await;
    let roots = [lab.root.clone(), at("memory:/old-bucket")];
    let survey = survey(&lab.stores, &roots, &Silent).await.unwrap();
    assert_eq!(survey.missing, []);
    let classified = classify(
        &Lineage::new(&survey),
        &roots,
        &CleanPolicy {
            keep: vec![],
            min_age_ms: 0,
        },
        survey.taken_at + 1,
    );
    let id = survey.names.find(&file).unwrap();
    assert_eq!(
        classified.classes[id as usize],
        Class::Unknown(Doubt::SameNameElsewhere)
    );
}

/// Report 25 (FLINK-14942): a savepoint that was made from another and points into it.
#[tokio::test]
async fn a_savepoint_that_points_into_another_keeps_it() {
    let lab = Lab::new();
    let original = lab
        .root
        .join("savepoints/savepoint-a00000-000000000001")
        .unwrap();
    lab.complete_at(&original, 5, &["a:op1", "a:op2"]).await;
    let derived = lab
        .root
        .join("savepoints/savepoint-a00000-000000000002")
        .unwrap();
    lab.complete_at(&derived, 0, &["a:op1", "a:op3"]).await;
    assert_eq!(
        users(&lab.why(&original).await),
        [("a0000000/savepoint-a00000-000000000002".to_string(), 1)].map(|(s, n)| {
            // Without a checkpoint of the job its id is not known.
            (s.replace("a0000000", "savepoints"), n)
        })
    );
}

/// Report 29: advice to let the bucket expire objects by age.
#[tokio::test]
async fn an_old_object_in_use_is_pointed_out() {
    let lab = Lab::new();
    lab.write("a:old").await;
    let survey_before = lab.look().await.taken_at;
    lab.complete("a", 1, &["a:old"]).await;
    let survey = lab.look().await;
    let usage = usage(&Lineage::new(&survey), std::slice::from_ref(&lab.root), 0);
    assert!(usage.oldest_live_unix_ms.unwrap() <= survey_before);
    let text = forkpoint::report::usage_text(&usage);
    assert!(
        text.contains("no bucket rule may expire objects by age"),
        "{text}"
    );
}

/// Report 32: ten restarts are ten folders; which belongs to which?
#[tokio::test]
async fn ten_restarts_are_one_line_of_descent() {
    let lab = Lab::new();
    let jobs: Vec<String> = (0..10).map(|n| format!("{n}")).collect();
    for (n, job) in (0i64..).zip(&jobs) {
        let own = format!("{job}:own{n}");
        let before = n
            .checked_sub(1)
            .filter(|b| *b >= 0)
            .map(|b| format!("{b}:own{b}"));
        let mut files = vec![own.as_str()];
        files.extend(before.as_deref());
        lab.complete(job, n + 1, &files).await;
    }
    let survey = lab.look().await;
    let tree = family_tree(&Lineage::new(&survey), std::slice::from_ref(&lab.root));
    for (n, branch) in tree.branches.iter().enumerate() {
        assert_eq!(branch.job, format!("{n:0<32}"));
        assert_eq!(branch.grew_from.map(|g| g.branch), n.checked_sub(1));
    }
    let text = forkpoint::report::lineage_text(&tree);
    assert_eq!(text.matches("job ").count(), 10, "{text}");
}

/// Report 33: a cleaner that does not know all who refer to a file.
#[tokio::test]
async fn references_of_another_root_and_of_sibling_jobs_count() {
    let lab = Lab::new();
    lab.complete("a", 1, &["a:shared", "a:1/own"]).await;
    lab.complete("a", 2, &["a:2/own"]).await;
    let elsewhere = at("memory:/other/chk-9");
    lab.complete_at(&elsewhere, 9, &["a:shared"]).await;
    let roots = [lab.root.clone(), at("memory:/other")];
    let survey = survey(&lab.stores, &roots, &Silent).await.unwrap();
    let policy = CleanPolicy {
        keep: vec!["last=1".parse().unwrap()],
        min_age_ms: 0,
    };
    let classified = classify(
        &Lineage::new(&survey),
        std::slice::from_ref(&lab.root),
        &policy,
        survey.taken_at + 1,
    );
    let class = |at: &Location| classified.classes[survey.names.find(at).unwrap() as usize];
    assert_eq!(class(&lab.file("a:shared")), Class::NeededBy);
    assert_eq!(class(&lab.file("a:1/own")), Class::Going);
    // One job's folder alone is never looked at without its siblings.
    assert_eq!(forkpoint::ownership::common_root(&lab.home("a")), lab.root);
}

/// Report 34 (FLINK-27051): a checkpoint that is half deleted already.
#[tokio::test]
async fn a_half_deleted_checkpoint_is_deleted_to_its_end_and_what_is_gone_is_no_error() {
    let lab = Lab::new();
    let old = lab.complete("a", 1, &["a:1/x", "a:1/y", "a:only"]).await;
    lab.complete("a", 2, &["a:2/z"]).await;
    let (_, plan) = lab.plan(&["last=1"]).await;
    lab.stores
        .delete(&old.join("_metadata").unwrap())
        .await
        .unwrap();
    lab.stores.delete(&lab.file("a:1/x")).await.unwrap();
    let report = lab.apply(&plan).await.unwrap();
    assert_eq!((report.deleted, report.gone, report.failed), (2, 2, 0));
    assert!(lab.stores.list(&old).await.unwrap().is_empty());
    let again = lab.apply(&plan).await.unwrap();
    assert_eq!((again.deleted, again.gone), (0, 4));
    assert!(
        lab.stores
            .list(&lab.root.join(".forkpoint").unwrap())
            .await
            .unwrap()
            .is_empty(),
        "the ledger is closed"
    );
}

/// FLIP-193's own question: chk-42 grew into 43, 44 and 45; a job was started from 44, another from 47, which grew from
/// 45; the one from 44 never came up.
#[tokio::test]
async fn may_i_delete_chk_42() {
    let lab = Lab::new();
    let chk = |n: i64| lab.directory("a", n);
    lab.complete("a", 42, &["a:1", "a:2", "a:3", "a:42/own"])
        .await;
    lab.complete("a", 43, &["a:1", "a:2", "a:3"]).await;
    lab.complete("a", 44, &["a:2", "a:3", "a:4"]).await;
    lab.complete("a", 45, &["a:3", "a:4", "a:5"]).await;
    lab.complete("a", 47, &["a:4", "a:5", "a:7"]).await;
    lab.start(&chk(44), "b", RestoreMode::NoClaim, false)
        .await
        .unwrap();
    lab.start(&chk(47), "c", RestoreMode::Legacy, false)
        .await
        .unwrap();
    lab.complete("c", 48, &["a:5", "a:7", "c:8"]).await;

    let why42 = lab.why(&chk(42)).await;
    assert_eq!(why42.answer, Answer::Kept);
    let named = |s: &str, n| (s.to_string(), n);
    assert_eq!(
        users(&why42),
        [
            named("a0000000/chk-43", 3),
            named("a0000000/chk-44", 2),
            named("a0000000/chk-45", 1)
        ]
    );
    assert_eq!(
        (why42.total.objects, why42.freed.objects),
        (5, 2),
        "its own file and its commit object"
    );

    // The job from 44 never came up: until it has, or is given up, it needs 44.
    let why44 = lab.why(&chk(44)).await;
    assert!(why44.reasons.iter().any(|r| matches!(
        r,
        NeedReason::Restoring {
            mode: RestoreMode::NoClaim,
            ..
        }
    )));
    lab.clean(&["last=1"]).await;
    assert!(
        lab.has(&chk(44)).await
            && lab.has(&chk(47)).await
            && lab.has(&lab.directory("c", 48)).await
    );
    for gone in [42, 43, 45] {
        assert!(!lab.has(&chk(gone)).await, "chk-{gone}");
    }
    for (file, there) in [
        ("a:1", false),
        ("a:2", true),
        ("a:3", true),
        ("a:4", true),
        ("a:5", true),
        ("a:42/own", false),
    ] {
        assert_eq!(lab.is_there(&lab.file(file)).await, there, "{file}");
    }
    // Given up, 44 may go too; what the job from 47 uses stays.
    forkpoint::ownership::release(
        &lab.stores,
        &chk(44),
        &format!("{:0<32}", "b"),
        RestoreMode::NoClaim,
    )
    .await
    .unwrap();
    assert_eq!(
        users(&lab.why(&chk(44)).await),
        [named("a0000000/chk-47", 1)],
        "by a:4 only"
    );
    lab.clean(&["last=1"]).await;
    assert!(!lab.has(&chk(44)).await);
    for (file, there) in [
        ("a:2", false),
        ("a:3", false),
        ("a:4", true),
        ("a:5", true),
        ("a:7", true),
        ("c:8", true),
    ] {
        assert_eq!(lab.is_there(&lab.file(file)).await, there, "{file}");
    }
    assert_eq!(
        users(&lab.why(&chk(47)).await),
        [named("c0000000/chk-48", 2)]
    );
}
