//! How long it takes to plan the restore of a large job, and how much memory.
//!
//! `cargo bench --bench restore_planner`. A job of two operators scales from 4,000 to 10,000 subtasks
//! (for fewer objects from fewer), each file can be copied by those that share its key groups, file
//! sizes are skewed, and every tenth file is shared by both operators. The times are
//! those of `plan_restore` alone, on one thread; the memory is that of the process, snapshot and plan
//! included.
//!
//! Seen on a 2-core AMD EPYC machine while others kept it busy (load 6 to 7): 10^6 objects on 10,000
//! subtasks in 1.7 to 2.2 s of processor time (2.7 to 3.3 s on the wall) and 780 MiB, 2 to 3 us per
//! object from 10^4 objects on; with subtasks on random workers 2.3 to 3.4 s of processor time.

// A bench program reports on the terminal, and has nobody to return errors to.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::time::Instant;

use forkpoint::restore::{
    BackendCapability, CostModel, Execution, ForkId, Layout, ObjectFacts, RestoreRequest,
    TargetJob, TargetOperator, key_groups_of, plan_restore,
};
use forkpoint::snapshot::RestoreMode;
use forkpoint::snapshot::{
    DeclaredSize, FileRole, Handle, Holder, Kind, Object, Operator, Part, References, Scope,
    Snapshot, StateKind, StateReference,
};
use forkpoint::store::{Location, Method, Stat};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const MAX_PARALLELISM: u32 = 32768;

fn main() {
    // Cargo passes `--bench`.
    let most: u32 = std::env::args()
        .find_map(|a| a.parse().ok())
        .unwrap_or(1_000_000);
    println!(
        "{:>9} {:>8} {:>9} {:>9} {:>8} {:>10} {:>9} {:>9}",
        "objects", "subtasks", "seconds", "of CPU", "us/obj", "ratio", "vs. rule", "peak MiB"
    );
    for (mapping, spread) in [("slot i", false), ("random slots", true)] {
        println!("subtask i on {mapping}");
        let mut objects = 1000;
        while objects <= most {
            one(objects, (objects / 100).clamp(10, 10_000), spread);
            objects *= 10;
        }
    }
}

fn one(objects: u32, subtasks: u32, spread: bool) {
    let old = subtasks * 2 / 5;
    let snapshot = generate(objects, old);
    let mut random = StdRng::seed_from_u64(2);
    let operators = ["a", "b"].map(|id| {
        let mut operator = TargetOperator::new(id, subtasks, BackendCapability::ReusesAlways);
        if spread {
            operator.workers = (0..subtasks)
                .map(|_| random.random_range(0..subtasks))
                .collect();
        }
        operator
    });
    let job = TargetJob {
        operators: operators.into(),
        allow_dropped: false,
        renamed: Default::default(),
        execution: Execution::Live,
    };
    let root = Location::parse("s3://new/fork").unwrap();
    let id = ForkId::new(&snapshot.directory, &[0; 32], &root);
    let layout = Layout::new(id, &snapshot.directory, 7, &root, &[]).unwrap();
    let cost = CostModel::default();
    let request = RestoreRequest {
        snapshot: &snapshot,
        metadata_sha256: "",
        job: &job,
        mode: RestoreMode::NoClaim,
        layout: Some(&layout),
        cost: &cost,
    };
    let before = processor_seconds();
    let start = Instant::now();
    let plan = plan_restore(&request, &mut |object, _| {
        Ok(ObjectFacts {
            stat: Stat {
                size: object.size.bytes().unwrap_or(0),
                ..Stat::default()
            },
            method: Method::S3Copy,
            reason: "one service".into(),
        })
    })
    .unwrap();
    let seconds = start.elapsed().as_secs_f64();
    let processor = processor_seconds() - before;
    assert_eq!(plan.tasks.len(), objects as usize);
    let rule = plan.balance.start_of_range.unwrap();
    println!(
        "{objects:>9} {subtasks:>8} {seconds:>9.3} {processor:>9.2} {:>8.2} {:>10.4} {:>8.1}x {:>9}",
        processor * 1e6 / f64::from(objects),
        plan.balance.ratio,
        rule.slowest_ns as f64 / plan.balance.slowest_ns as f64,
        peak_memory() >> 20
    );
}

fn generate(objects: u32, parallelism: u32) -> Snapshot {
    let mut random = StdRng::seed_from_u64(1);
    let shared = Location::parse("s3://old/flink/0123456789abcdef0123456789abcdef/shared").unwrap();
    let mut table = References::default();
    for operator in 0..2 {
        for subtask in 0..parallelism {
            table.handles.push(Handle {
                operator,
                subtask,
                kind: StateKind::KeyedIncremental,
                raw: false,
                in_changelog: false,
                key_groups: Some(key_groups_of(MAX_PARALLELISM, parallelism, subtask)),
                changelog_key_groups: None,
            });
        }
    }
    let list = (0..objects)
        .map(|object| {
            let subtask = random.random_range(0..parallelism);
            let first = random.random_range(0..2);
            let operators = if object % 10 == 0 {
                vec![0, 1]
            } else {
                vec![first]
            };
            for operator in operators {
                table.references.push(StateReference {
                    object,
                    handle: operator * parallelism + subtask,
                    role: FileRole::DatabaseShared,
                    part: Part::Whole,
                });
            }
            let name = format!("{object:08x}-{:04x}-47c2-9d3a-8b1f0c2d4e6f", object % 65521);
            Object {
                location: shared.join(&name).unwrap(),
                scope: Scope::Shared,
                size: DeclaredSize::Exactly((2f64.powf(random.random_range(12.0..28.0))) as u64),
                references: 1,
                relative: None,
                holder: Holder {
                    operator: 0,
                    subtask: Some(0),
                },
            }
        })
        .collect();
    Snapshot {
        directory: Location::parse("s3://old/flink/0123456789abcdef0123456789abcdef/chk-7")
            .unwrap(),
        format: "made up",
        format_version: 1,
        checkpoint_id: 7,
        kind: Kind::Checkpoint,
        operators: ["a", "b"]
            .map(|id| Operator {
                operator_id: id.into(),
                name: None,
                uid: None,
                parallelism,
                max_parallelism: MAX_PARALLELISM,
                subtasks: parallelism,
                finished: false,
                references: 1,
                referenced_bytes: 0,
                inlined_bytes: 0,
            })
            .into(),
        objects: list,
        folders: Vec::new(),
        inlined: (0, 0),
        references: Some(table),
    }
}

/// The time that this process has had a processor, in seconds, where the system tells: the clock on
/// the wall also counts what other processes take.
fn processor_seconds() -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok());
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / TICKS_PER_SECOND
}

/// The most memory that this process has had, in bytes, where the system tells.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| {
            rest.trim()
                .trim_end_matches("kB")
                .trim()
                .parse::<u64>()
                .ok()
        })
        .map_or(0, |kib| kib << 10)
}
