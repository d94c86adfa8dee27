//! Snapshots made up piece by piece, and random ones, for the tests of the restore planner.

// Each test binary uses its own part of this.
#![allow(dead_code, unreachable_pub)]

use std::collections::{BTreeSet, HashSet};

use forkpoint::Result;
use forkpoint::restore::{
    BackendCapability, ChannelMapper, CostModel, Execution, ForkId, Layout, ObjectFacts,
    RestorePlan, RestoreRequest, TargetJob, TargetOperator, assign_state, key_groups_of,
    plan_restore,
};
use forkpoint::snapshot::RestoreMode;
use forkpoint::snapshot::{
    DeclaredSize, Distribution, FileRole, Handle, Holder, KeyGroupRange, Kind, Object, Operator,
    OperatorStatePart, Part, References, Scope, Snapshot, StateKind, StateReference,
};
use forkpoint::store::{Location, Method, Stat};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

pub const MIB: u64 = 1 << 20;

pub fn at(text: &str) -> Location {
    Location::parse(text).unwrap()
}

/// A snapshot under construction.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub operators: Vec<Operator>,
    pub objects: Vec<Object>,
    pub table: References,
    pub kind: Option<Kind>,
}

impl Model {
    pub fn operator(&mut self, id: &str, parallelism: u32, max_parallelism: u32) -> u32 {
        self.operators.push(Operator {
            operator_id: id.into(),
            name: None,
            uid: None,
            parallelism,
            max_parallelism,
            subtasks: parallelism,
            finished: false,
            references: 0,
            referenced_bytes: 0,
            inlined_bytes: 0,
        });
        self.operators.len() as u32 - 1
    }

    /// An object below `s3://old/job`.
    pub fn object(&mut self, path: &str, size: u64, scope: Scope) -> u32 {
        self.object_at(&format!("s3://old/job/{path}"), size, scope)
    }

    pub fn object_at(&mut self, location: &str, size: u64, scope: Scope) -> u32 {
        let location = at(location);
        let known = self.objects.iter().position(|o| o.location == location);
        if let Some(known) = known {
            return known as u32;
        }
        self.objects.push(Object {
            location,
            scope,
            size: DeclaredSize::Exactly(size),
            references: 0,
            relative: None,
            holder: Holder {
                operator: 0,
                subtask: None,
            },
        });
        self.objects.len() as u32 - 1
    }

    pub fn handle(&mut self, operator: u32, subtask: u32, kind: StateKind) -> u32 {
        let about = &self.operators[operator as usize];
        let keyed = matches!(
            kind,
            StateKind::KeyedIncremental | StateKind::KeyedFull | StateKind::Changes
        );
        let range = key_groups_of(about.max_parallelism, about.parallelism, subtask);
        self.table.handles.push(Handle {
            operator,
            subtask,
            kind,
            raw: false,
            in_changelog: kind == StateKind::Changes,
            key_groups: keyed.then_some(range),
            changelog_key_groups: (kind == StateKind::Changes).then_some(range),
        });
        self.table.handles.len() as u32 - 1
    }

    pub fn last_handle(&mut self) -> &mut Handle {
        self.table.handles.last_mut().unwrap()
    }

    pub fn refer(&mut self, handle: u32, object: u32, role: FileRole, part: Part) {
        let of = self.table.handles[handle as usize].operator;
        self.operators[of as usize].references += 1;
        self.objects[object as usize].references += 1;
        self.table.references.push(StateReference {
            object,
            handle,
            role,
            part,
        });
    }

    pub fn state(&mut self, handle: u32, name: u32, distribution: Distribution, elements: u32) {
        self.table.operator_states.push(OperatorStatePart {
            handle,
            name,
            order: name,
            distribution,
            elements,
        });
    }

    /// Incremental state of one subtask in `files` files of its own.
    pub fn incremental(&mut self, operator: u32, subtask: u32, sizes: &[u64]) -> u32 {
        let handle = self.handle(operator, subtask, StateKind::KeyedIncremental);
        for (number, size) in sizes.iter().enumerate() {
            let path = format!("shared/o{operator}-s{subtask}-{number}");
            let object = self.object(&path, *size, Scope::Shared);
            self.refer(handle, object, FileRole::DatabaseShared, Part::Whole);
        }
        handle
    }

    /// The snapshot: objects sorted.
    pub fn finish(&self) -> Snapshot {
        let mut order: Vec<usize> = (0..self.objects.len()).collect();
        order.sort_by(|a, b| self.objects[*a].location.cmp(&self.objects[*b].location));
        self.finish_in(&order)
    }

    /// The snapshot with its objects in this order.
    pub fn finish_in(&self, order: &[usize]) -> Snapshot {
        let mut new = vec![0; order.len()];
        for (position, old) in order.iter().enumerate() {
            new[*old] = position as u32;
        }
        let mut table = self.table.clone();
        for reference in &mut table.references {
            reference.object = new[reference.object as usize];
        }
        Snapshot {
            directory: at("s3://old/job/chk-7"),
            format: "made up",
            format_version: 1,
            checkpoint_id: 7,
            kind: self.kind.unwrap_or(Kind::Checkpoint),
            operators: self.operators.clone(),
            objects: order.iter().map(|i| self.objects[*i].clone()).collect(),
            folders: Vec::new(),
            inlined: (0, 0),
            references: Some(table),
        }
    }

    /// The same with operators and handles and references in another order.
    pub fn shuffled(&self, random: &mut StdRng) -> Snapshot {
        let mut other = self.clone();
        let mut operators: Vec<usize> = (0..self.operators.len()).collect();
        operators.shuffle(random);
        other.operators = operators
            .iter()
            .map(|i| self.operators[*i].clone())
            .collect();
        let operator = |old: u32| operators.iter().position(|i| *i == old as usize).unwrap() as u32;
        let mut handles: Vec<usize> = (0..self.table.handles.len()).collect();
        handles.shuffle(random);
        other.table.handles = handles
            .iter()
            .map(|i| Handle {
                operator: operator(self.table.handles[*i].operator),
                ..self.table.handles[*i]
            })
            .collect();
        let mut handle = vec![0; handles.len()];
        for (new, old) in handles.iter().enumerate() {
            handle[*old] = new as u32;
        }
        other.table.references.shuffle(random);
        for reference in &mut other.table.references {
            reference.handle = handle[reference.handle as usize];
        }
        for state in &mut other.table.operator_states {
            state.handle = handle[state.handle as usize];
        }
        other
            .table
            .operator_states
            .sort_by_key(|s| (s.handle, s.name));
        let mut order: Vec<usize> = (0..self.objects.len()).collect();
        order.shuffle(random);
        other.finish_in(&order)
    }
}

pub fn layout(snapshot: &Snapshot, root: &str) -> Layout {
    let commit = snapshot.directory.join("_metadata").unwrap();
    let id = ForkId::new(&commit, &[7; 32], &at(root));
    Layout::new(
        id,
        &snapshot.directory,
        snapshot.checkpoint_id,
        &at(root),
        &snapshot.folders,
    )
    .unwrap()
}

/// Sizes as declared, copied inside the service.
pub fn declared(object: &Object, _: &Location) -> Result<ObjectFacts> {
    Ok(ObjectFacts {
        stat: Stat {
            size: object.size.bytes().unwrap_or(0),
            tag: Some("t".into()),
            ..Stat::default()
        },
        method: Method::S3Copy,
        reason: "made up".into(),
    })
}

/// A plan to `s3://new/fork` with the default costs.
pub fn plan(snapshot: &Snapshot, job: &TargetJob, mode: RestoreMode) -> Result<RestorePlan> {
    plan_with(snapshot, job, mode, &CostModel::default())
}

pub fn plan_with(
    snapshot: &Snapshot,
    job: &TargetJob,
    mode: RestoreMode,
    cost: &CostModel,
) -> Result<RestorePlan> {
    let layout = layout(snapshot, "s3://new/fork");
    let request = RestoreRequest {
        snapshot,
        metadata_sha256: "07",
        job,
        mode,
        layout: Some(&layout),
        cost,
    };
    plan_restore(&request, &mut declared)
}

pub fn job(operators: Vec<TargetOperator>, execution: Execution) -> TargetJob {
    TargetJob {
        operators,
        allow_dropped: false,
        renamed: Default::default(),
        execution,
    }
}

/// One operator `a` of `old` subtasks with `files` equal files each.
pub fn equal_files(max_parallelism: u32, old: u32, files: usize) -> Model {
    let mut model = Model::default();
    let operator = model.operator("a", old, max_parallelism);
    for subtask in 0..old {
        model.incremental(operator, subtask, &vec![MIB; files]);
    }
    model
}

/// A random snapshot with all kinds of state, and a job for it.
pub fn random_case(random: &mut StdRng) -> (Model, TargetJob) {
    let mut model = Model::default();
    let max = [16, 128, 720][random.random_range(0..3)];
    let count = random.random_range(1..5);
    let slots = random.random_range(1..9);
    let mut targets = Vec::new();
    for number in 0..count {
        let old = random.random_range(1..9);
        let id = format!("{number:032x}");
        let operator = model.operator(&id, old, max);
        let changelog = random.random_bool(0.5);
        for subtask in 0..old {
            keyed(random, &mut model, operator, subtask, changelog);
            if random.random_bool(0.3) {
                let handle = model.handle(operator, subtask, StateKind::Operator);
                for (name, distribution) in [
                    (0, Distribution::Split),
                    (1, Distribution::Union),
                    (2, Distribution::Broadcast),
                ] {
                    let elements = random.random_range(0..4);
                    model.state(handle, operator * 3 + name, distribution, elements);
                }
                let path = format!("chk-7/op-{operator}-{subtask}");
                let object = model.object(&path, 5000, Scope::Exclusive);
                model.refer(handle, object, FileRole::Content, Part::Whole);
            }
            if random.random_bool(0.2) {
                let handle = model.handle(operator, subtask, StateKind::InputChannel);
                let path = format!("chk-7/in-{operator}-{subtask}");
                let object = model.object(&path, 9000, Scope::Exclusive);
                model.refer(handle, object, FileRole::Content, Part::Whole);
            }
        }
        if random.random_bool(0.15) {
            continue;
        }
        let new = match random.random_bool(0.4) {
            true => old,
            false => random.random_range(1..13),
        };
        let backend = [
            BackendCapability::WritesEverything,
            BackendCapability::ReusesAtSameParallelism,
            BackendCapability::ReusesAlways,
            BackendCapability::ReusesAlways,
        ][random.random_range(0..4)];
        let mut target = TargetOperator::new(id, new, backend);
        target.channels = ChannelMapper::Full;
        if random.random_bool(0.4) {
            target.workers = (0..new)
                .map(|_| random.random_range(0..slots) * 3)
                .collect();
        }
        targets.push(target);
    }
    targets.push(TargetOperator::new(
        "fresh",
        2,
        BackendCapability::WritesEverything,
    ));
    let execution = match random.random_bool(0.3) {
        true => Execution::Offline {
            workers: random.random_range(1..9),
        },
        false => Execution::Live,
    };
    let mut job = job(targets, execution);
    job.allow_dropped = true;
    (model, job)
}

fn keyed(random: &mut StdRng, model: &mut Model, operator: u32, subtask: u32, changelog: bool) {
    let sizes: Vec<u64> = (0..random.random_range(0..5))
        .map(|_| 1 << random.random_range(12..34))
        .collect();
    model.incremental(operator, subtask, &sizes);
    let range = model.last_handle().key_groups;
    let handle = model.table.handles.len() as u32 - 1;
    if changelog {
        model.last_handle().in_changelog = true;
        model.last_handle().changelog_key_groups = range;
        // A base that reaches past the subtask.
        if random.random_bool(0.3) {
            model.last_handle().key_groups = Some(KeyGroupRange::new(0, 16).unwrap());
        }
        let handle = model.handle(operator, subtask, StateKind::Changes);
        for _ in 0..random.random_range(0..3) {
            // Shared by subtasks and operators.
            let path = format!("dstl/log-{}", random.random_range(0..6));
            let object = model.object(&path, 3 * MIB, Scope::TaskOwned);
            let part = Part::From(random.random_range(0..MIB));
            model.refer(handle, object, FileRole::Content, part);
        }
    } else if random.random_bool(0.3) {
        // A file of another subtask or operator, left from an earlier rescale.
        let path = format!("shared/common-{}", random.random_range(0..4));
        let object = model.object(&path, 70 * MIB, Scope::Shared);
        model.refer(handle, object, FileRole::DatabaseShared, Part::Whole);
    }
    if random.random_bool(0.2) {
        let path = format!("shared/merged-{}", random.random_range(0..3));
        let object = model.object(&path, 64 * MIB, Scope::Shared);
        let part = Part::Segment {
            start: random.random_range(0..60 * MIB),
            length: random.random_range(1..4 * MIB),
        };
        model.refer(handle, object, FileRole::DatabaseShared, part);
    }
    if random.random_bool(0.2) {
        let handle = model.handle(operator, subtask, StateKind::KeyedFull);
        let path = format!("chk-7/full-{operator}-{subtask}");
        let object = model.object(&path, 8 * MIB, Scope::Exclusive);
        model.refer(handle, object, FileRole::Content, Part::Whole);
    }
}

/// A live job: id, parallelism and backend of each operator.
pub fn live(operators: &[(&str, u32, BackendCapability)]) -> TargetJob {
    let operators = operators
        .iter()
        .map(|(id, p, b)| TargetOperator::new(*id, *p, *b));
    job(operators.collect(), Execution::Live)
}

/// All that must hold of any plan for independence.
pub fn check(snapshot: &Snapshot, job: &TargetJob, plan: &RestorePlan) {
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
