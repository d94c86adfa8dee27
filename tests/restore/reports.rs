//! What went wrong for users of Flink when they restored jobs, as tests of the planner.

use crate::restore_model::*;
use forkpoint::ErrorKind;
use forkpoint::restore::{
    BackendCapability, Execution, KeepReason, RestorePlan, SourceFate, TargetOperator,
};
use forkpoint::snapshot::RestoreMode;
use forkpoint::snapshot::{DeclaredSize, FileRole, Kind, Part, Scope, StateKind};
use rand::SeedableRng;
use rand::rngs::StdRng;

use BackendCapability::{CannotBeIndependent, ReusesAlways, WritesEverything};

#[test]
fn a_file_shared_with_a_dropped_operator_is_copied_by_one_that_lives() {
    let mut model = Model::default();
    let common = model.object("shared/common", MIB, Scope::Shared);
    let gone = model.operator("gone", 2, 128);
    let kept = model.operator("kept", 2, 128);
    for (operator, subtask) in [(gone, 0), (kept, 1)] {
        let handle = model.incremental(operator, subtask, &[MIB, 2 * MIB]);
        model.refer(handle, common, FileRole::DatabaseShared, Part::Whole);
    }
    let snapshot = model.finish();
    let mut job = live(&[("kept", 2, ReusesAlways)]);
    for mode in [
        RestoreMode::NoClaim,
        RestoreMode::Claim,
        RestoreMode::Legacy,
    ] {
        job.allow_dropped = false;
        let refusal = plan(&snapshot, &job, mode).unwrap_err();
        assert_eq!(refusal.kind(), ErrorKind::Refused);
        assert!(refusal.to_string().contains("gone"), "{refusal}");
        job.allow_dropped = true;
        let plan = plan(&snapshot, &job, mode).unwrap();
        let dropped = &plan.dropped[0];
        assert_eq!(
            (dropped.operator_id.as_str(), dropped.bytes),
            ("gone", 3 * MIB)
        );
        assert_eq!((dropped.files.len(), dropped.shared_objects), (2, 1));
        if mode == RestoreMode::NoClaim {
            check(&snapshot, &job, &plan);
            assert_eq!(plan.tasks.len(), 3);
            assert!(plan.tasks.iter().all(|t| t.holder.unwrap().subtask == 1));
        } else {
            assert_eq!(plan.kept.len(), 3);
        }
    }
}

#[test]
fn a_backend_that_cannot_become_independent_is_refused_before_the_job_starts() {
    // Flink's changelog (FLINK-38307, FLINK-40476), and its ForSt of 2.0 (FLINK-37335).
    let mut model = equal_files(128, 2, 2);
    for subtask in 0..2 {
        let handle = model.handle(0, subtask, StateKind::Changes);
        let log = model.object("dstl/log", MIB, Scope::TaskOwned);
        model.refer(handle, log, FileRole::Content, Part::From(0));
    }
    let snapshot = model.finish();
    let mut job = live(&[("a", 2, CannotBeIndependent)]);
    let refusal = plan(&snapshot, &job, RestoreMode::NoClaim).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Refused);
    assert!(refusal.to_string().contains("operator a"), "{refusal}");
    assert!(refusal.next_step().unwrap().contains("offline"));
    // Claiming it, or forking it first, is possible.
    plan(&snapshot, &job, RestoreMode::Claim).unwrap();
    job.execution = Execution::Offline { workers: 2 };
    let plan = plan(&snapshot, &job, RestoreMode::NoClaim).unwrap();
    check(&snapshot, &job, &plan);
    assert_eq!(plan.tasks.len(), 5);
}

#[test]
fn a_plan_is_the_same_after_a_restart_and_says_who_owns_what() {
    // A coordinator that forgets which snapshot it came from gets ownership wrong (FLINK-27114).
    let snapshot = equal_files(128, 2, 3).finish();
    let job = live(&[("a", 2, ReusesAlways)]);
    for (mode, fate) in [
        (RestoreMode::NoClaim, SourceFate::NeededUntilFirstSnapshot),
        (RestoreMode::Claim, SourceFate::OwnedByJob),
        (RestoreMode::Legacy, SourceFate::NeededForEver),
    ] {
        let plan = plan(&snapshot, &job, mode).unwrap();
        let bytes = plan.to_json().unwrap();
        let read = RestorePlan::from_json(&bytes).unwrap();
        assert_eq!(read, plan);
        assert_eq!(read.to_json().unwrap(), bytes);
        assert_eq!(
            (read.mode, read.source_fate, read.checkpoint_id),
            (mode, fate, 7)
        );
        assert_eq!(read.source, snapshot.directory);
        let again = crate::restore_model::plan(&snapshot, &job, mode).unwrap();
        assert_eq!(again.to_json().unwrap(), bytes);
    }
}

#[test]
fn objects_are_told_apart_by_where_they_are_not_by_what_they_are_called() {
    // Two snapshots under way uploaded files of one name (FLINK-29913, FLINK-32130).
    let mut model = Model::default();
    let a = model.operator("a", 2, 128);
    for subtask in 0..2 {
        let handle = model.handle(a, subtask, StateKind::KeyedIncremental);
        for path in [
            format!("shared/{subtask}/012.sst"),
            "shared/2/012.sst".into(),
        ] {
            let object = model.object(&path, MIB, Scope::Shared);
            model.refer(handle, object, FileRole::DatabaseShared, Part::Whole);
            // Twice in one list.
            model.refer(handle, object, FileRole::DatabaseShared, Part::Whole);
        }
    }
    let snapshot = model.finish();
    let job = live(&[("a", 2, ReusesAlways)]);
    let plan = plan(&snapshot, &job, RestoreMode::NoClaim).unwrap();
    check(&snapshot, &job, &plan);
    assert_eq!(plan.tasks.len(), 3);
}

#[test]
fn a_merged_file_is_copied_once_or_only_what_is_used_of_it_and_never_written_to() {
    // FLINK-35803: the restored job went on writing to the old job's files.
    let mut model = Model::default();
    let a = model.operator("a", 2, 128);
    let merged = model.object("shared/merged", 1024 * MIB, Scope::Shared);
    for subtask in 0..2 {
        let handle = model.handle(a, subtask, StateKind::KeyedIncremental);
        for start in [0, 100 * MIB] {
            let part = Part::Segment {
                start: start + u64::from(subtask) * 10,
                length: 10,
            };
            model.refer(handle, merged, FileRole::DatabaseShared, part);
        }
    }
    model.objects[0].size = DeclaredSize::AtLeast(1024 * MIB);
    let snapshot = model.finish();
    let job = live(&[("a", 2, ReusesAlways)]);
    let mut cost = forkpoint::restore::CostModel::default();
    let whole = plan_with(&snapshot, &job, RestoreMode::NoClaim, &cost).unwrap();
    assert_eq!(whole.tasks.len(), 1);
    assert_eq!(whole.tasks[0].live_bytes, Some(40));
    assert!(whole.tasks[0].ranges.is_empty());
    assert_ne!(
        whole.tasks[0].duplicate.destination,
        snapshot.objects[0].location
    );
    cost.live_ranges = true;
    let parts = plan_with(&snapshot, &job, RestoreMode::NoClaim, &cost).unwrap();
    let ranges = &parts.tasks[0].ranges;
    let flat: Vec<_> = ranges
        .iter()
        .map(|r| (r.start, r.length, r.new_start))
        .collect();
    assert_eq!(flat, [(0, 20, 0), (100 * MIB, 20, 20)]);
    assert!(parts.tasks[0].cost_ns < whole.tasks[0].cost_ns);
    for mode in [RestoreMode::Claim, RestoreMode::Legacy] {
        let plan = plan(&snapshot, &job, mode).unwrap();
        assert!(plan.tasks.is_empty() && plan.kept[0].read_only);
    }
}

#[test]
fn another_bucket_is_a_new_place_for_every_reference_wherever_it_was() {
    // Moving savepoints meant editing binary files (FLINK-5763); random prefixes make it worse.
    let mut model = Model::default();
    let a = model.operator("a", 1, 128);
    let handle = model.handle(a, 0, StateKind::KeyedIncremental);
    for path in [
        "s3://old/job/shared/x",
        "s3://old/4f2a/job/shared/x",
        "s3a://third/elsewhere/x",
    ] {
        let object = model.object_at(path, MIB, Scope::Shared);
        model.refer(handle, object, FileRole::DatabaseShared, Part::Whole);
    }
    let inside = model.object("chk-7/y", MIB, Scope::Exclusive);
    model.refer(handle, inside, FileRole::DatabasePrivate, Part::Whole);
    let snapshot = model.finish();
    let job = job(
        vec![TargetOperator::new("a", 1, WritesEverything)],
        Execution::Offline { workers: 1 },
    );
    let plan = plan(&snapshot, &job, RestoreMode::NoClaim).unwrap();
    check(&snapshot, &job, &plan);
    let places = plan.new_places();
    assert_eq!(places.len(), 4);
    assert!(
        places
            .values()
            .all(|to| to.to_string().starts_with("s3://new/fork/"))
    );
    assert_eq!(
        places[&at("s3://old/job/chk-7/y")].to_string(),
        "s3://new/fork/chk-7/y"
    );
}

#[test]
fn a_claimed_native_savepoint_keeps_its_folder_while_it_is_used() {
    // FLINK-25872, FLINK-28597.
    let mut model = Model {
        kind: Some(Kind::SavepointNative),
        ..Model::default()
    };
    let a = model.operator("a", 1, 128);
    let handle = model.handle(a, 0, StateKind::KeyedIncremental);
    for (path, role, scope) in [
        ("chk-7/sst", FileRole::DatabaseShared, Scope::Shared),
        (
            "chk-7/manifest",
            FileRole::DatabasePrivate,
            Scope::Exclusive,
        ),
        ("shared/sst", FileRole::DatabaseShared, Scope::Shared),
    ] {
        let object = model.object(path, MIB, scope);
        model.refer(handle, object, role, Part::Whole);
    }
    let snapshot = model.finish();
    let job = live(&[("a", 1, ReusesAlways)]);
    let reasons = |mode| {
        let plan = plan(&snapshot, &job, mode).unwrap();
        plan.kept.iter().map(|k| k.reason).collect::<Vec<_>>()
    };
    assert_eq!(
        reasons(RestoreMode::Claim),
        [
            KeepReason::GoesWithSnapshot,
            KeepReason::HoldsSnapshotFolder,
            KeepReason::JobOwns
        ]
    );
    assert_eq!(reasons(RestoreMode::Legacy), [KeepReason::NobodyOwns; 3]);
}

#[test]
fn only_proven_duplicates_are_reused_when_an_attempt_is_repeated() {
    use forkpoint::restore::{Evidence, TaskState, judge, redistribute};
    use forkpoint::store::{Receipt, Stat};
    let snapshot = equal_files(128, 1, 4).finish();
    let operators = vec![TargetOperator::new("a", 1, ReusesAlways)];
    let job = job(operators, Execution::Offline { workers: 2 });
    let plan = plan(&snapshot, &job, RestoreMode::NoClaim).unwrap();
    let task = &plan.tasks[0];
    let stat = |size, tag: &str| Stat {
        size,
        tag: Some(tag.into()),
        ..Stat::default()
    };
    let (source, there) = (stat(MIB, "\"t\""), stat(MIB, "mine"));
    let receipt = Receipt {
        source: task.duplicate.source.clone(),
        destination: task.duplicate.destination.clone(),
        method: task.duplicate.method,
        bytes: MIB,
        source_tag: Some("t".into()),
        destination_tag: Some("\"mine\"".into()),
        attempts: 1,
    };
    let other = Receipt {
        destination_tag: Some("other".into()),
        ..receipt.clone()
    };
    let (longer, newer) = (stat(MIB + 1, "mine"), stat(MIB, "newer"));
    for (source, destination, receipt, state) in [
        (
            Some(&source),
            Some(&there),
            Some(&receipt),
            TaskState::Proven,
        ),
        (None, Some(&there), Some(&receipt), TaskState::Proven),
        (Some(&source), Some(&there), None, TaskState::Unproven),
        (
            Some(&source),
            Some(&there),
            Some(&other),
            TaskState::Unproven,
        ),
        (Some(&source), None, Some(&receipt), TaskState::Missing),
        (
            Some(&source),
            Some(&longer),
            Some(&receipt),
            TaskState::Stranger,
        ),
        (
            Some(&newer),
            Some(&there),
            Some(&receipt),
            TaskState::SourceChanged,
        ),
        (None, None, Some(&receipt), TaskState::SourceChanged),
    ] {
        let evidence = Evidence {
            source,
            destination,
            receipt,
        };
        assert_eq!(judge(task, &evidence), state, "{evidence:?}");
    }
    // Two tasks are left, and one of the workers.
    let rest = redistribute(&plan, &[1, 3], &[1]).unwrap();
    let places = |plan: &RestorePlan| {
        let tasks = plan.tasks.iter().map(|t| t.duplicate.destination.clone());
        tasks.collect::<Vec<_>>()
    };
    let all = places(&plan);
    assert_eq!(places(&rest), [all[1].clone(), all[3].clone()]);
    assert!(rest.tasks.iter().all(|t| t.worker == 1));
    assert_eq!(
        (rest.objects, rest.bytes, rest.workers.len()),
        (2, 2 * MIB, 1)
    );
    assert!(redistribute(&plan, &[0], &[]).is_err());
}

#[test]
fn what_an_abandoned_plan_may_have_written_is_never_the_sources() {
    // An aborted checkpoint took files with it that a later one used (FLINK-24611).
    let mut random = StdRng::seed_from_u64(13);
    for _ in 0..100 {
        let (model, job) = random_case(&mut random);
        let snapshot = model.finish();
        let plan = plan(&snapshot, &job, RestoreMode::NoClaim).unwrap();
        let root = plan.destination.as_ref().unwrap();
        for task in &plan.tasks {
            assert!(root.contains(&task.duplicate.destination));
            assert!(!root.contains(&task.duplicate.source));
        }
    }
}
