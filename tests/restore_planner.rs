//! Plans of restores: properties over random jobs, and real reports of what went wrong.

// Helpers of tests fail by panicking, like the tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod restore_model;

use std::collections::{BTreeSet, HashSet};

use forkpoint::ErrorKind;
use forkpoint::restore::{
    BackendCapability, Execution, KeepReason, RestoreMode, RestorePlan, SkipReason, SourceFate,
    TargetJob, TargetOperator, assign_state,
};
use forkpoint::snapshot::{DeclaredSize, FileRole, Kind, Part, Scope, Snapshot, StateKind};
use rand::SeedableRng;
use rand::rngs::StdRng;
use restore_model::*;

use BackendCapability::{
    CannotBeIndependent, ReusesAlways, ReusesAtSameParallelism, WritesEverything,
};

fn live(operators: &[(&str, u32, BackendCapability)]) -> TargetJob {
    let operators = operators
        .iter()
        .map(|(id, p, b)| TargetOperator::new(*id, *p, *b));
    job(operators.collect(), Execution::Live)
}

/// All that must hold of any plan for independence.
fn check(snapshot: &Snapshot, job: &TargetJob, plan: &RestorePlan) {
    let table = snapshot.references.as_ref().unwrap();
    let assignment = assign_state(snapshot, job).unwrap();
    // Exactly once, or for a reason not at all.
    let mut seen = BTreeSet::new();
    let skipped = plan.skipped.iter().map(|s| &s.source);
    let dropped = plan.dropped.iter().flat_map(|d| &d.files);
    for source in plan
        .tasks
        .iter()
        .map(|t| &t.duplicate.source)
        .chain(skipped)
    {
        assert!(seen.insert(source), "{source} twice");
    }
    seen.extend(dropped);
    assert_eq!(
        seen.len(),
        snapshot.objects.len(),
        "some object is forgotten"
    );
    // Distinct destinations, inside the root and none of the sources.
    let sources: HashSet<_> = snapshot.objects.iter().map(|o| &o.location).collect();
    let mut destinations = HashSet::new();
    for task in &plan.tasks {
        let to = &task.duplicate.destination;
        assert!(destinations.insert(to) && !sources.contains(to));
        assert!(plan.destination.as_ref().unwrap().contains(to));
    }
    assert_eq!(plan.find_violations(snapshot), []);
    // A live holder does it, on its own worker.
    let numbers: Vec<u32> = plan.workers.iter().map(|w| w.worker).collect();
    for task in &plan.tasks {
        assert!(numbers.contains(&task.worker));
        let Some(holder) = task.holder else {
            assert!(job.execution != Execution::Live);
            continue;
        };
        let operator = &job.operators[holder.operator as usize];
        let worker = operator.workers.get(holder.subtask as usize);
        assert_eq!(task.worker, worker.copied().unwrap_or(holder.subtask));
        let index = snapshot
            .objects
            .binary_search_by(|o| o.location.cmp(&task.duplicate.source));
        let refers = table
            .references
            .iter()
            .filter(|r| index.is_err() || r.object as usize == index.unwrap())
            .any(|r| {
                assignment.target(table.handles[r.handle as usize].operator)
                    == Some(holder.operator)
                    && assignment
                        .holders(r.handle)
                        .any(|run| run.contains(&holder.subtask))
            });
        assert!(refers, "{task:?} is not held by its copier");
    }
    // The sums agree.
    assert_eq!(plan.objects, plan.tasks.len() as u64);
    assert_eq!(
        plan.bytes,
        plan.tasks.iter().map(|t| t.duplicate.size).sum::<u64>()
    );
    let slowest = plan.workers.iter().map(|w| w.cost_ns).max().unwrap_or(0);
    assert_eq!(plan.balance.slowest_ns, slowest);
    assert!(plan.balance.lower_bound_ns <= slowest);
    if let Some(rule) = plan.balance.start_of_range
        && rule.without_copier == 0
    {
        assert!(rule.slowest_ns >= plan.balance.lower_bound_ns);
    }
}

#[test]
fn every_plan_keeps_its_promises() {
    let mut random = StdRng::seed_from_u64(11);
    let (mut tasks, mut skipped, mut dropped) = (0, BTreeSet::new(), 0);
    for _ in 0..1500 {
        let (model, job) = random_case(&mut random);
        let snapshot = model.finish();
        let plan = plan(&snapshot, &job, RestoreMode::NoClaim).unwrap();
        check(&snapshot, &job, &plan);
        tasks += plan.tasks.len();
        skipped.extend(plan.skipped.iter().map(|s| s.reason));
        dropped += plan.dropped.len();
    }
    assert!(tasks > 10_000 && dropped > 100);
    assert!(skipped.len() >= 7, "{skipped:?}");
}

#[test]
fn the_same_job_gives_the_same_bytes_in_whatever_order_it_is_listed() {
    let mut random = StdRng::seed_from_u64(12);
    for _ in 0..300 {
        let (model, job) = random_case(&mut random);
        let first = plan(&model.finish(), &job, RestoreMode::NoClaim).unwrap();
        let again = plan(&model.finish(), &job, RestoreMode::NoClaim).unwrap();
        assert_eq!(first.to_json().unwrap(), again.to_json().unwrap());
        let shuffled = model.shuffled(&mut random);
        let other = plan(&shuffled, &job, RestoreMode::NoClaim).unwrap();
        assert_eq!(first, other);
    }
}

#[test]
fn equal_files_are_spread_over_their_holders_where_the_rule_overloads_one() {
    for (old, new, files, slowest, rule) in [
        (1, 8, 80, 10, 80),
        (2, 8, 40, 10, 40),
        (4, 10, 25, 10, 25),
        (3, 128, 430, 11, 430),
        (10, 4, 8, 20, 24),
    ] {
        let snapshot = equal_files(128, old, files).finish();
        let job = live(&[("a", new, ReusesAlways)]);
        let plan = plan(&snapshot, &job, RestoreMode::NoClaim).unwrap();
        check(&snapshot, &job, &plan);
        let one = plan.tasks[0].cost_ns;
        assert_eq!(plan.balance.slowest_ns, slowest * one, "{old}->{new}");
        let start = plan.balance.start_of_range.unwrap();
        assert_eq!(start.slowest_ns, rule * one, "{old}->{new}");
    }
}

#[test]
fn the_load_is_summed_over_the_operators_of_a_slot() {
    // Operator b's files can go to one subtask only, which shares a worker with one of a's.
    let mut model = equal_files(128, 1, 12);
    let b = model.operator("b", 1, 128);
    model.incremental(b, 0, &[MIB; 4]);
    let snapshot = model.finish();
    let job = live(&[("a", 4, ReusesAlways), ("b", 1, ReusesAlways)]);
    let plan = plan(&snapshot, &job, RestoreMode::NoClaim).unwrap();
    check(&snapshot, &job, &plan);
    assert_eq!(
        plan.workers.iter().map(|w| w.objects).collect::<Vec<_>>(),
        [4; 4]
    );
}

#[test]
fn each_file_of_a_changelog_is_copied_once_for_all_operators_and_subtasks() {
    let mut model = Model::default();
    let log = model.object("dstl/log", 3 * MIB, Scope::TaskOwned);
    for id in ["a", "b", "c"] {
        let operator = model.operator(id, 4, 128);
        for subtask in 0..4 {
            let handle = model.handle(operator, subtask, StateKind::Changes);
            let from = Part::From(u64::from(operator * 4 + subtask));
            model.refer(handle, log, FileRole::Content, from);
        }
    }
    let snapshot = model.finish();
    assert_eq!(snapshot.objects[0].references, 12);
    let operators = ["a", "b", "c"].map(|id| (id, 4, ReusesAlways));
    let plan = plan(&snapshot, &live(&operators), RestoreMode::NoClaim).unwrap();
    check(&snapshot, &live(&operators), &plan);
    assert_eq!(plan.tasks.len(), 1);
    assert_eq!(plan.balance.start_of_range.unwrap().several_copiers, 1);
}

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
fn what_will_be_written_anew_is_not_copied() {
    let snapshot = equal_files(128, 2, 3).finish();
    let reasons = |parallelism, backend| {
        let job = live(&[("a", parallelism, backend)]);
        let plan = plan(&snapshot, &job, RestoreMode::NoClaim).unwrap();
        check(&snapshot, &job, &plan);
        let reasons: BTreeSet<SkipReason> = plan.skipped.iter().map(|s| s.reason).collect();
        (plan.tasks.len(), reasons.into_iter().collect::<Vec<_>>())
    };
    assert_eq!(reasons(2, ReusesAtSameParallelism), (6, vec![]));
    assert_eq!(
        reasons(3, ReusesAtSameParallelism),
        (0, vec![SkipReason::RebuiltAfterRescale])
    );
    assert_eq!(reasons(3, ReusesAlways), (6, vec![]));
    assert_eq!(
        reasons(2, WritesEverything),
        (0, vec![SkipReason::FirstSnapshotIsFull])
    );
}

#[test]
fn a_wider_handle_goes_to_one_subtask_at_the_same_parallelism() {
    // Left by an earlier rescale: subtask 0 of two holds all key groups.
    let mut model = Model::default();
    let a = model.operator("a", 2, 128);
    model.incremental(a, 0, &[MIB]);
    model.last_handle().key_groups = Some(forkpoint::snapshot::KeyGroupRange::new(0, 128).unwrap());
    let snapshot = model.finish();
    let holders = |parallelism| {
        let job = live(&[("a", parallelism, ReusesAlways)]);
        let assignment = assign_state(&snapshot, &job).unwrap();
        assignment.holders(0).collect::<Vec<_>>()
    };
    assert_eq!(holders(2), [0..1]);
    assert_eq!(holders(3), [0..3]);
}

#[test]
fn a_base_that_reaches_past_its_changelog_goes_where_the_changelog_goes() {
    let mut model = Model::default();
    let a = model.operator("a", 3, 128);
    model.incremental(a, 1, &[MIB]);
    let range = |first, count| forkpoint::snapshot::KeyGroupRange::new(first, count).ok();
    let handle = model.last_handle();
    (handle.in_changelog, handle.key_groups) = (true, range(0, 64));
    handle.changelog_key_groups = range(43, 43);
    let snapshot = model.finish();
    let job = live(&[("a", 8, ReusesAlways)]);
    let assignment = assign_state(&snapshot, &job).unwrap();
    // Key groups 43 to 63 of eight times 16.
    assert_eq!(assignment.holders(0).collect::<Vec<_>>(), [2..4]);
}

#[test]
fn operators_are_found_by_the_id_that_a_user_set_or_by_a_new_name() {
    let snapshot = equal_files(128, 2, 1).finish();
    let found = |job: &TargetJob| assign_state(&snapshot, job).map(|a| a.target(0));
    let mut job = live(&[("x", 2, ReusesAlways)]);
    assert_eq!(found(&job).unwrap_err().kind(), ErrorKind::Refused);
    job.operators[0].user_id = Some("a".into());
    assert_eq!(found(&job).unwrap(), Some(0));
    job.operators[0].user_id = None;
    job.renamed.insert("a".into(), "x".into());
    assert_eq!(found(&job).unwrap(), Some(0));
    job.renamed.insert("b".into(), "x".into());
    assert_eq!(found(&job).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn key_groups_that_do_not_fit_are_refused() {
    let snapshot = equal_files(128, 2, 1).finish();
    for (parallelism, max, fits) in [
        (128, None, true),
        (129, None, false),
        (4, Some(128), true),
        (4, Some(256), false),
    ] {
        let mut job = live(&[("a", parallelism, ReusesAlways)]);
        job.operators[0].max_parallelism = max;
        assert_eq!(
            assign_state(&snapshot, &job).is_ok(),
            fits,
            "{parallelism} {max:?}"
        );
    }
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
        let again = restore_model::plan(&snapshot, &job, mode).unwrap();
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
fn a_newer_plan_is_refused_and_unknown_fields_survive() {
    let snapshot = equal_files(128, 1, 1).finish();
    let job = live(&[("a", 1, ReusesAlways)]);
    let plan = plan(&snapshot, &job, RestoreMode::NoClaim).unwrap();
    let mut json: serde_json::Value = serde_json::from_slice(&plan.to_json().unwrap()).unwrap();
    json["later"] = "x".into();
    let read = RestorePlan::from_json(json.to_string().as_bytes()).unwrap();
    let written: serde_json::Value = serde_json::from_slice(&read.to_json().unwrap()).unwrap();
    assert_eq!(written, json);
    json["version"] = 2.into();
    let refusal = RestorePlan::from_json(json.to_string().as_bytes()).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Unsupported);
    let damage = RestorePlan::from_json(b"{}").unwrap_err();
    assert_eq!(damage.kind(), ErrorKind::Corrupt);
}

#[test]
fn a_violation_is_shown_when_something_is_missing_in_a_plan() {
    let snapshot = equal_files(128, 1, 2).finish();
    let job = live(&[("a", 1, ReusesAlways)]);
    let mut plan = plan(&snapshot, &job, RestoreMode::NoClaim).unwrap();
    plan.tasks[0].duplicate.destination = at("s3://elsewhere/x");
    let lost = plan.tasks.pop().unwrap();
    let violations = plan.find_violations(&snapshot);
    assert_eq!(violations.len(), 2);
    assert_eq!(violations[1].location, lost.duplicate.source);
}

#[test]
fn a_destination_inside_the_source_is_refused() {
    let snapshot = equal_files(128, 1, 2).finish();
    let job = live(&[("a", 1, ReusesAlways)]);
    let cost = forkpoint::restore::CostModel::default();
    let layout = layout(&snapshot, "s3://old/job/shared/mine");
    let mut request = forkpoint::restore::RestoreRequest {
        snapshot: &snapshot,
        metadata_sha256: "",
        job: &job,
        mode: RestoreMode::NoClaim,
        layout: Some(&layout),
        cost: &cost,
    };
    let refusal = forkpoint::restore::plan_restore(&request, &mut declared).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Refused);
    request.layout = None;
    let refusal = forkpoint::restore::plan_restore(&request, &mut declared).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Invalid);
}

#[test]
fn an_estimate_adds_up_and_knows_no_price_that_nobody_gave() {
    use forkpoint::restore::{CostModel, MethodPrice, PriceTable, estimate};
    let snapshot = equal_files(128, 1, 10).finish();
    let job = live(&[("a", 2, ReusesAlways)]);
    let plan = plan(&snapshot, &job, RestoreMode::NoClaim).unwrap();
    let cost = CostModel::default();
    let without = estimate(&plan, &cost, None);
    assert_eq!((without.objects, without.bytes), (10, 10 * MIB));
    let copies = without.methods[&forkpoint::store::Method::S3Copy];
    assert_eq!((copies.read_requests, copies.write_requests), (20, 10));
    assert_eq!(without.money, None);
    assert!((without.total_seconds - 2.0 * without.seconds).abs() < 1e-9);
    let mut prices = PriceTable {
        currency: "EUR".into(),
        methods: Default::default(),
    };
    assert_eq!(estimate(&plan, &cost, Some(&prices)).money, None);
    let price = MethodPrice {
        thousand_reads: 1.0,
        thousand_writes: 10.0,
        gibibyte: 0.0,
    };
    prices
        .methods
        .insert(forkpoint::store::Method::S3Copy, price);
    let money = estimate(&plan, &cost, Some(&prices)).money.unwrap();
    assert!((money - 0.12).abs() < 1e-9, "{money}");
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
        version: None,
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
