//! Plans of restores: properties over random jobs, and the rules one by one.

use std::collections::BTreeSet;

use crate::restore_model::*;
use forkpoint::ErrorKind;
use forkpoint::restore::{BackendCapability, RestorePlan, SkipReason, TargetJob, assign_state};
use forkpoint::snapshot::RestoreMode;
use forkpoint::snapshot::{FileRole, Part, Scope, StateKind};
use rand::SeedableRng;
use rand::rngs::StdRng;

use BackendCapability::{ReusesAlways, ReusesAtSameParallelism, WritesEverything};

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
        assignment.holders(0).flatten().collect::<Vec<_>>()
    };
    assert_eq!(holders(2), [0]);
    assert_eq!(holders(3), [0, 1, 2]);
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
    assert_eq!(assignment.holders(0).flatten().collect::<Vec<_>>(), [2, 3]);
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
