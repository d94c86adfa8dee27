//! From acknowledgements to a manifest: what contradicts the rules is refused. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde_json::Map;

use crate::error::{Error, Result};
use crate::ownership::{Handed, SharedStateRegistry};
use crate::restore::key_groups_of;
use crate::snapshot::KeyGroupRange;
use crate::snapshot::native::{
    FORMAT, MANIFEST_VERSION, Manifest, ManifestFile, ManifestKind, ManifestOperator,
    ManifestScope, ManifestState, ManifestSubtask, NativeFormat, Partition, StateFile,
};
use crate::store::Location;

use super::names;
use super::order::{AcknowledgedFile, Acknowledgement, FileRef, Origin, ReusableFile};

/// A subtask: the place of its operator in the job, and its number.
pub(super) type SubtaskKey = (usize, u32);

/// An operator as it stands in the manifest.
#[derive(Debug, Clone)]
pub(super) struct OperatorShape {
    pub(super) id: String,
    pub(super) parallelism: u32,
    pub(super) max_parallelism: u32,
}

impl OperatorShape {
    pub(super) fn key_groups(&self, subtask: u32) -> KeyGroupRange {
        key_groups_of(self.max_parallelism, self.parallelism, subtask)
    }
}

/// One attempt, as far as its manifest goes.
#[derive(Debug, Clone)]
pub(super) struct AttemptShape {
    pub(super) job: String,
    pub(super) home: Location,
    pub(super) directory: Location,
    pub(super) number: i64,
    pub(super) kind: ManifestKind,
    pub(super) attempt: String,
    pub(super) created_unix_ms: u64,
    pub(super) operators: Vec<OperatorShape>,
}

/// Refuses an acknowledgement that names files which its subtask cannot have written or been given.
pub(super) fn check_acknowledgement(
    shape: &AttemptShape,
    ack: &Acknowledgement,
    operator: usize,
    reusable: &[Arc<ReusableFile>],
) -> Result<()> {
    let refuse = |file: &AcknowledgedFile, why: &str| {
        Err(Error::refused(format!(
            "subtask {} of {} acknowledges a file {why}",
            ack.subtask, ack.operator
        ))
        .at(&file.file.location))
    };
    let shared = names::shared(&shape.home)?;
    let reusable: HashSet<&FileRef> = reusable.iter().map(|r| &r.file).collect();
    for file in &ack.files {
        let at = &file.file.location;
        let in_place = shape.directory.contains(at) || shared.contains(at);
        match file.origin {
            Origin::Uploaded if !in_place || !names::is_of_attempt(at, &shape.attempt) => {
                return refuse(file, "that is not of this attempt");
            }
            Origin::Unconfirmed if !shape.home.contains(at) => {
                return refuse(file, "outside of the job's folder");
            }
            Origin::Reused if !reusable.contains(&file.file) => {
                return refuse(file, "that it was not given");
            }
            _ => {}
        }
        let is_savepoint = shape.kind == ManifestKind::Savepoint;
        if is_savepoint && !shape.directory.contains(at) {
            return refuse(file, "that a savepoint would share with other snapshots");
        }
    }
    let key_groups = shape
        .operators
        .get(operator)
        .map_or(0, |o| o.max_parallelism);
    for state in &ack.states {
        check_partition(&state.name, state.partition, key_groups)?;
        check_file_names(
            &state.name,
            state.files.iter().map(|(_, name)| name.as_str()),
        )?;
        let most = ack.files.len();
        if state.files.iter().any(|(n, _)| *n as usize >= most) {
            return Err(Error::invalid(format!(
                "subtask {} of {} acknowledges a state with files that it does not name",
                ack.subtask, ack.operator
            )));
        }
    }
    Ok(())
}

/// Refuses two files of one name in one state: whoever restores it could not tell which is which.
pub(super) fn check_file_names<'n>(
    state: &str,
    names: impl Iterator<Item = &'n str>,
) -> Result<()> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Error::invalid(format!(
                "state `{state}` has two files of the name `{name}`"
            ))
            .hint("give each file of a state a name of its own, or make two states of it"));
        }
    }
    Ok(())
}

/// Refuses a state of several elements, since whoever gets some of them could not tell which are its own, and
/// one with key groups that its operator, which has `max_parallelism` of them, does not have.
pub(super) fn check_partition(
    name: &str,
    partition: Partition,
    max_parallelism: u32,
) -> Result<()> {
    match partition {
        // As it was read it may be anything.
        Partition::KeyGroups { range }
            if KeyGroupRange::new(range.first(), range.len()).is_err()
                || range.end() > max_parallelism =>
        {
            Err(Error::invalid(format!(
                "state `{name}` has {} key groups from {} on, which are not among the {max_parallelism} of its operator",
                range.len(),
                range.first()
            ))
            .hint("take the key groups from the order, and those of states of old from their own"))
        }
        Partition::Split { elements } if elements != 1 => Err(Error::invalid(format!(
            "state `{name}` has {elements} elements, where the writer takes one for a state"
        ))
        .hint("hand each element over as a state of its own, under the same name if you like")),
        _ => Ok(()),
    }
}

/// Registers the files of all acknowledgements for a checkpoint. `duplicated` are duplicates that subtasks
/// of this attempt or an earlier one have made.
pub(super) fn register(
    registry: &mut SharedStateRegistry,
    shape: &AttemptShape,
    acks: &BTreeMap<SubtaskKey, Acknowledgement>,
    duplicated: &HashSet<Location>,
) -> Result<()> {
    for ack in acks.values() {
        for file in &ack.files {
            let id = file.file.location.to_string();
            let handed = match file.origin {
                Origin::Reused if !duplicated.contains(&file.file.location) => {
                    Handed::Placeholder(id)
                }
                _ => Handed::Object(id),
            };
            if let Err(e) = registry.register(shape.number, &handed) {
                return Err(Error::refused(format!(
                    "subtask {} of {} refers to what no complete snapshot of this job has: {e}",
                    ack.subtask, ack.operator
                ))
                .at(&file.file.location)
                .hint("begin another attempt"));
            }
        }
    }
    Ok(())
}

/// The manifest of an attempt of which all subtasks have acknowledged. The same acknowledgements give the
/// same manifest.
pub(super) fn manifest(
    shape: &AttemptShape,
    acks: &BTreeMap<SubtaskKey, Acknowledgement>,
    metrics: BTreeMap<String, f64>,
    user: Map<String, serde_json::Value>,
) -> Result<Manifest> {
    let mut files: Vec<ManifestFile> = Vec::new();
    let mut index_of: HashMap<&Location, u32> = HashMap::new();
    let mut operators: Vec<ManifestOperator> = shape
        .operators
        .iter()
        .map(|o| ManifestOperator {
            id: o.id.clone(),
            name: None,
            parallelism: o.parallelism,
            max_parallelism: o.max_parallelism,
            subtasks: Vec::new(),
            unknown: Map::new(),
        })
        .collect();
    for ((operator, subtask), ack) in acks {
        let mut numbers = Vec::with_capacity(ack.files.len());
        for file in &ack.files {
            let next = u32::try_from(files.len())
                .map_err(|_| Error::invalid("more than 4 billion files"))?;
            let number = *index_of.entry(&file.file.location).or_insert(next);
            if number == next {
                files.push(ManifestFile {
                    path: NativeFormat::path_from(&shape.directory, &file.file.location),
                    size: file.file.size,
                    sha256: file.file.sha256,
                    scope: file.scope,
                    unknown: Map::new(),
                });
            }
            numbers.push(number);
        }
        let states = ack.states.iter().map(|state| ManifestState {
            name: state.name.clone(),
            partition: state.partition,
            files: state
                .files
                .iter()
                .map(|(n, name)| StateFile {
                    file: numbers.get(*n as usize).copied().unwrap_or(u32::MAX),
                    name: name.clone(),
                    unknown: Map::new(),
                })
                .collect(),
            inline: state.inline.clone(),
            unknown: Map::new(),
        });
        let written = ManifestSubtask {
            subtask: *subtask,
            states: states.collect(),
            unknown: Map::new(),
        };
        if let Some(operator) = operators.get_mut(*operator) {
            operator.subtasks.push(written);
        }
    }
    Ok(Manifest {
        format: FORMAT.to_string(),
        version: MANIFEST_VERSION,
        job: shape.job.clone(),
        number: shape.number,
        kind: shape.kind,
        attempt: shape.attempt.clone(),
        created_unix_ms: shape.created_unix_ms,
        metrics,
        user,
        files,
        operators,
        unknown: Map::new(),
    })
}

/// What the next checkpoint may refer to, by subtask: the shared files of this one.
pub(super) fn reusable_of(
    manifest: &Manifest,
    directory: &Location,
) -> Result<HashMap<SubtaskKey, Vec<Arc<ReusableFile>>>> {
    let mut by_subtask: HashMap<SubtaskKey, Vec<Arc<ReusableFile>>> = HashMap::new();
    for (n, operator) in manifest.operators.iter().enumerate() {
        for subtask in &operator.subtasks {
            let own = by_subtask.entry((n, subtask.subtask)).or_default();
            for state in &subtask.states {
                add_reusable(manifest, directory, state, own)?;
            }
        }
    }
    Ok(by_subtask)
}

/// Adds the shared files of one state.
pub(super) fn add_reusable(
    manifest: &Manifest,
    directory: &Location,
    state: &ManifestState,
    to: &mut Vec<Arc<ReusableFile>>,
) -> Result<()> {
    for used in &state.files {
        let Some(file) = manifest.files.get(used.file as usize) else {
            continue;
        };
        if file.scope == ManifestScope::Shared {
            to.push(Arc::new(ReusableFile {
                state: state.name.clone(),
                name: used.name.clone(),
                key_groups: match state.partition {
                    Partition::KeyGroups { range } => Some(range),
                    _ => None,
                },
                file: FileRef {
                    location: manifest.locate(file, directory)?,
                    size: file.size,
                    sha256: file.sha256,
                },
            }));
        }
    }
    Ok(())
}
