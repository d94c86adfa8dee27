//! Who gets which state: compared with what real Flink answered
//! (`tests/flink/rescale/RescaleTable.java`) and did (`tests/fixtures/checkpoints`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::restore_model::{Model, at, job, plan};
use forkpoint::restore::{
    BackendCapability, ChannelMapper, Execution, TargetJob, TargetOperator, assign_state,
    default_max_parallelism, key_groups_of, subtask_of,
};
use forkpoint::snapshot::RestoreMode;
use forkpoint::snapshot::flink::FlinkFormat;
use forkpoint::snapshot::{
    Distribution, KeyGroupRange, Lookup, Snapshot, SnapshotFormat, StateKind,
};

/// The lines of the table that begin with a word, split at blanks, without that word.
fn table(word: &str) -> Vec<Vec<String>> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/rescale/flink-1.20.5.txt");
    std::fs::read_to_string(path)
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '))
        .map(|line| line.split(' ').map(String::from).collect())
        .collect()
}

fn number(text: &str) -> u32 {
    text.parse().unwrap()
}

fn numbers(text: &str) -> Vec<u32> {
    match text {
        "-" => Vec::new(),
        list => list.split(',').map(number).collect(),
    }
}

fn live(id: &str, parallelism: u32) -> TargetJob {
    let operator = TargetOperator::new(id, parallelism, BackendCapability::ReusesAlways);
    job(vec![operator], Execution::Live)
}

/// For each new subtask the handles that it gets.
fn gets(snapshot: &Snapshot, job: &TargetJob) -> Vec<Vec<u32>> {
    let assignment = assign_state(snapshot, job).unwrap();
    let mut gets = vec![Vec::new(); job.operators[0].parallelism as usize];
    let handles = snapshot.references.as_ref().unwrap().handles.len() as u32;
    for handle in 0..handles {
        for subtask in assignment.holders(handle).flatten() {
            gets[subtask as usize].push(handle);
        }
    }
    gets
}

#[test]
fn the_default_number_of_key_groups_is_flinks() {
    for line in table("default-max") {
        assert_eq!(default_max_parallelism(number(&line[0])), number(&line[1]));
    }
}

#[test]
fn key_groups_and_handles_go_to_the_subtasks_that_flink_gives_them() {
    let mut cases: BTreeMap<(u32, u32, u32), Vec<Vec<u32>>> = BTreeMap::new();
    for line in table("keyed") {
        let [max, old, new, subtask, first, last] = [0, 1, 2, 3, 4, 5].map(|i| number(&line[i]));
        let range = key_groups_of(max, new, subtask);
        assert_eq!((range.first(), range.end() - 1), (first, last), "{line:?}");
        for group in [first, last] {
            assert_eq!(subtask_of(max, new, group), subtask);
        }
        cases
            .entry((max, old, new))
            .or_default()
            .push(numbers(&line[6]));
    }
    assert!(cases.contains_key(&(32768, 1000, 1001)));
    assert!(cases.len() >= 12);
    for ((max, old, new), theirs) in cases {
        let mut model = Model::default();
        let operator = model.operator("a", old, max);
        for subtask in 0..old {
            model.handle(operator, subtask, StateKind::KeyedFull);
        }
        let ours = gets(&model.finish(), &live("a", new));
        assert_eq!(ours, theirs, "{max} key groups, {old} -> {new}");
    }
}

#[test]
fn records_in_flight_go_where_flinks_mappers_send_them() {
    let mut cases = 0;
    for line in table("channel") {
        let mapper = match line[0].as_str() {
            "FIRST" => ChannelMapper::First,
            "FULL" => ChannelMapper::Full,
            "RANGE" => ChannelMapper::Range,
            "ROUND_ROBIN" => ChannelMapper::RoundRobin,
            other => panic!("{other}"),
        };
        let (old, new, subtask) = (number(&line[1]), number(&line[2]), number(&line[3]));
        let from: Vec<u32> = (0..old)
            .filter(|i| mapper.new_subtasks(*i, old, new).contains(&subtask))
            .collect();
        assert_eq!(from, numbers(&line[4]), "{line:?}");
        cases += 1;
    }
    assert!(cases > 100);
}

#[test]
fn bases_of_a_changelog_are_intersected_as_flink_does() {
    for line in table("changelog") {
        let [first, last, new_first, new_last] = [0, 1, 2, 3].map(|i| number(&line[i]));
        // A subtask of parallelism 128 for each key group: those of the new range together.
        let mut model = Model::default();
        let operator = model.operator("a", 3, 128);
        for base in [0, 64] {
            model.handle(operator, 1, StateKind::KeyedFull);
            let handle = model.last_handle();
            handle.in_changelog = true;
            handle.key_groups = KeyGroupRange::new(base, 64).ok();
            handle.changelog_key_groups = KeyGroupRange::new(first, last + 1 - first).ok();
        }
        let gets = gets(&model.finish(), &live("a", 128));
        let mut ours = BTreeSet::new();
        ours.extend((new_first..=new_last).flat_map(|i| gets[i as usize].clone()));
        assert_eq!(Vec::from_iter(ours), numbers(&line[4]), "{line:?}");
    }
}

/// In which order a `java.util.HashMap` goes through names that were put into it in this order.
fn java_order(names: &[String]) -> Vec<String> {
    let hash = |name: &String| {
        let units = name.encode_utf16();
        let hash = units.fold(0u32, |h, u| h.wrapping_mul(31).wrapping_add(u32::from(u)));
        (hash ^ (hash >> 16)) & 15
    };
    assert!(names.len() <= 12, "the map would grow");
    let mut names = names.to_vec();
    names.sort_by_key(hash);
    names
}

#[test]
fn operator_state_is_spread_as_flink_spreads_it() {
    let parts = table("part");
    let theirs = table("gets");
    let mut rescaled = 0;
    for case in table("operator") {
        let (old, new) = (number(&case[1]), number(&case[2]));
        rescaled += u32::from(old != new);
        let parts: Vec<_> = parts.iter().filter(|part| part[0] == case[0]).collect();
        let mut names: Vec<String> = Vec::new();
        for part in &parts {
            if part[3] == "SPLIT_DISTRIBUTE" && !names.contains(&part[2]) {
                names.push(part[2].clone());
            }
        }
        let order = java_order(&names);
        let mut model = Model::default();
        let operator = model.operator("a", old, 128);
        let mut all: Vec<String> = Vec::new();
        let mut empty = BTreeSet::new();
        for subtask in 0..old {
            let handle = model.handle(operator, subtask, StateKind::Operator);
            let mut elements = 0;
            for part in parts.iter().filter(|part| number(&part[1]) == subtask + 1) {
                let name = all.iter().position(|n| *n == part[2]).unwrap_or_else(|| {
                    all.push(part[2].clone());
                    all.len() - 1
                });
                let distribution = match part[3].as_str() {
                    "SPLIT_DISTRIBUTE" => Distribution::Split,
                    "UNION" => Distribution::Union,
                    _ => Distribution::Broadcast,
                };
                model.state(handle, name as u32, distribution, number(&part[4]));
                let rank = order.iter().position(|n| *n == part[2]).unwrap_or(0);
                model.table.operator_states.last_mut().unwrap().order = rank as u32;
                elements += number(&part[4]);
            }
            if elements == 0 {
                empty.insert(handle);
            }
        }
        // A handle is handed on at the same parallelism though nothing is in it.
        let mut ours = gets(&model.finish(), &live("a", new));
        for handles in &mut ours {
            handles.retain(|handle| !empty.contains(handle));
        }
        let theirs: Vec<Vec<u32>> = theirs
            .iter()
            .filter(|line| line[0] == case[0])
            .map(|line| numbers(&line[2]))
            .collect();
        assert_eq!(ours, theirs, "{case:?} {parts:?}");
    }
    assert!(rescaled > 30);
}

fn read(fixture: &crate::support::Fixture, path: &str) -> (Snapshot, Snapshot) {
    let file = fixture.files_root().join(path).join("_metadata");
    let bytes = std::fs::read(file).unwrap();
    let lookup = Lookup::new(at(&format!("{}/{path}", fixture.root_uri())));
    let plain = FlinkFormat.read(&bytes, &lookup).unwrap();
    let full = FlinkFormat.read_with_references(&bytes, &lookup).unwrap();
    (plain, full)
}

fn all_fixtures() -> Vec<(String, Snapshot, Snapshot)> {
    let mut all = Vec::new();
    for fixture in crate::support::fixtures() {
        for path in fixture.snapshots() {
            let (plain, full) = read(&fixture, &path);
            all.push((format!("{} {path}", fixture.name), plain, full));
        }
    }
    all
}

#[test]
fn references_of_real_snapshots_agree_with_their_objects() {
    for (name, plain, mut full) in all_fixtures() {
        let table = full.references.take().unwrap();
        assert_eq!(plain, full, "{name}");
        let mut counts = vec![0; full.objects.len()];
        for reference in &table.references {
            counts[reference.object as usize] += 1;
            let handle = &table.handles[reference.handle as usize];
            assert!(handle.subtask < full.operators[handle.operator as usize].parallelism);
        }
        let theirs: Vec<u64> = full.objects.iter().map(|o| o.references).collect();
        assert_eq!(counts, theirs, "{name}");
    }
}

#[test]
fn subtasks_of_real_snapshots_have_the_key_groups_that_the_formulas_give_them() {
    let mut rescaled = 0;
    for (name, _, full) in all_fixtures() {
        let table = full.references.as_ref().unwrap();
        for handle in &table.handles {
            let operator = &full.operators[handle.operator as usize];
            let range = handle.changelog_key_groups.or(handle.key_groups);
            let Some(range) = range.filter(|r| !r.is_empty()) else {
                continue;
            };
            let own = key_groups_of(
                operator.max_parallelism,
                operator.parallelism,
                handle.subtask,
            );
            assert_eq!(range, own, "{name} {handle:?}");
            rescaled += u32::from(name.contains("rescale"));
        }
    }
    assert!(rescaled > 0);
}

#[test]
fn real_snapshots_are_planned_for_any_parallelism() {
    for (name, _, full) in all_fixtures() {
        for parallelism in [1, 2, 3, 7] {
            for execution in [Execution::Live, Execution::Offline { workers: 3 }] {
                let mut job =
                    TargetJob::unchanged(&full, BackendCapability::ReusesAlways, execution);
                for operator in &mut job.operators {
                    operator.parallelism = parallelism;
                }
                let mut snapshot = full.clone();
                // Away from where it was made, so that the destination does not overlap.
                snapshot.folders.clear();
                let plan = plan(&snapshot, &job, RestoreMode::NoClaim)
                    .unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_eq!(plan.find_violations(&snapshot), [], "{name}");
                let all = plan.tasks.len() + plan.skipped.len();
                assert_eq!(all, full.objects.len(), "{name}");
                if execution != Execution::Live {
                    assert!(plan.skipped.is_empty());
                }
            }
        }
    }
}

#[test]
fn files_of_a_real_changelog_are_shared_and_copied_once() {
    let fixture = crate::support::fixture("1.20.5-changelog-rocks-p2");
    let (_, full) = read(&fixture, &fixture.newest());
    let table = full.references.as_ref().unwrap();
    let mut users: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for reference in &table.references {
        let handle = &table.handles[reference.handle as usize];
        if handle.kind == StateKind::Changes {
            users
                .entry(reference.object)
                .or_default()
                .insert(handle.operator);
        }
    }
    assert!(
        users.values().any(|operators| operators.len() > 1),
        "{users:?}"
    );
    let job = TargetJob::unchanged(&full, BackendCapability::ReusesAlways, Execution::Live);
    let plan = plan(&full, &job, RestoreMode::NoClaim).unwrap();
    for object in users.keys() {
        let source = &full.objects[*object as usize].location;
        let tasks = plan.tasks.iter().filter(|t| t.duplicate.source == *source);
        assert_eq!(tasks.count(), 1);
    }
}
