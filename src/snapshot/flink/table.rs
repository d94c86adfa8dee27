//! Collects, along a walk through the metadata, who refers to which object.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::snapshot::{
    Distribution, FileRole, Handle, KeyGroupRange, OperatorStatePart, Part, References, StateKind,
    StateReference,
};

use super::{DistributionMode, KeyGroupRange as FlinkRange, Location, Reference, Role};

/// Under construction: the texts that name objects are numbered in the order in which they were met.
#[derive(Debug, Default)]
pub(super) struct Table<'a> {
    made: References,
    /// The number of the walk's last handle.
    last: Option<u32>,
    /// Per operator: name of a state -> its number.
    names: HashMap<(u32, &'a [u8]), u32>,
    /// Per operator, the names of its split states as they were met.
    split: HashMap<u32, Vec<(u32, u32)>>,
}

impl<'a> Table<'a> {
    /// Adds a reference to the object number `object`, or to state inside the metadata.
    pub(super) fn add(&mut self, reference: &Reference<'a>, object: Option<u32>) -> Result<()> {
        let Some(subtask) = reference.subtask else {
            // The state of a coordinator is always inside the metadata.
            return Ok(());
        };
        if self.last != Some(reference.handle) {
            self.last = Some(reference.handle);
            self.begin(reference, subtask)?;
        }
        if let Some(object) = object {
            self.made.references.push(StateReference {
                object,
                handle: short(self.made.handles.len().saturating_sub(1))?,
                role: role(reference.role),
                part: part(reference),
            });
        }
        Ok(())
    }

    fn begin(&mut self, reference: &Reference<'a>, subtask: i32) -> Result<()> {
        let operator = short(reference.operator)?;
        let handle = short(self.made.handles.len())?;
        self.made.handles.push(Handle {
            operator,
            subtask: u32::try_from(subtask)
                .map_err(|_| Error::corrupt(format!("there is no subtask {subtask}")))?,
            kind: kind(reference.role),
            raw: reference.raw_keyed || reference.role == Role::RawOperatorState,
            in_changelog: reference.in_changelog,
            key_groups: reference.key_groups.map(range).transpose()?,
            changelog_key_groups: reference.changelog_key_groups.map(range).transpose()?,
        });
        for state in reference.states {
            let next = short(self.names.len())?;
            let name = *self
                .names
                .entry((operator, state.name.as_bytes()))
                .or_insert(next);
            let distribution = match state.mode {
                DistributionMode::SplitDistribute => Distribution::Split,
                DistributionMode::Union => Distribution::Union,
                DistributionMode::Broadcast => Distribution::Broadcast,
            };
            if distribution == Distribution::Split {
                let split = self.split.entry(operator).or_default();
                if !split.iter().any(|(known, _)| *known == name) {
                    split.push((name, java_hash(&state.name.to_str_lossy())));
                }
            }
            self.made.operator_states.push(OperatorStatePart {
                handle,
                name,
                order: 0,
                distribution,
                elements: short(state.offsets.len())?,
            });
        }
        Ok(())
    }

    /// The finished table; `positions` says where each object went when they were sorted.
    pub(super) fn finish(mut self, positions: &[u32]) -> References {
        for reference in &mut self.made.references {
            if let Some(position) = positions.get(reference.object as usize) {
                reference.object = *position;
            }
        }
        let mut orders = HashMap::new();
        for names in self.split.into_values() {
            for (order, name) in (0..).zip(in_java_order(names)) {
                orders.insert(name, order);
            }
        }
        for state in &mut self.made.operator_states {
            state.order = orders.get(&state.name).copied().unwrap_or(0);
        }
        self.made.handles.shrink_to_fit();
        self.made.references.shrink_to_fit();
        self.made
    }
}

fn short(number: usize) -> Result<u32> {
    u32::try_from(number).map_err(|_| Error::corrupt("more than 4 billion of a kind"))
}

fn range(range: FlinkRange) -> Result<KeyGroupRange> {
    let refuse = || {
        Error::corrupt(format!(
            "there are no {} key groups from {} on",
            range.count, range.first
        ))
    };
    match u32::try_from(range.count).map_err(|_| refuse())? {
        0 => Ok(KeyGroupRange::EMPTY),
        count => KeyGroupRange::new(u32::try_from(range.first).map_err(|_| refuse())?, count)
            .map_err(|_| refuse()),
    }
}

fn kind(role: Role) -> StateKind {
    match role {
        Role::KeyedShared | Role::KeyedPrivate | Role::KeyedMeta => StateKind::KeyedIncremental,
        Role::KeyGroups | Role::SavepointKeyGroups => StateKind::KeyedFull,
        Role::ChangelogFile => StateKind::Changes,
        Role::InputChannel => StateKind::InputChannel,
        Role::OutputChannel => StateKind::OutputChannel,
        Role::Coordinator | Role::ManagedOperatorState | Role::RawOperatorState => {
            StateKind::Operator
        }
    }
}

fn role(role: Role) -> FileRole {
    match role {
        Role::KeyedShared => FileRole::DatabaseShared,
        Role::KeyedPrivate => FileRole::DatabasePrivate,
        Role::KeyedMeta => FileRole::DatabaseMeta,
        _ => FileRole::Content,
    }
}

fn part(reference: &Reference<'_>) -> Part {
    let at = |offset: i64| u64::try_from(offset).unwrap_or(0);
    match (reference.location, reference.offset) {
        (Location::Segment { start, size, .. }, _) => Part::Segment {
            start: at(start),
            length: at(size),
        },
        (_, Some(offset)) => Part::From(at(offset)),
        _ => Part::Whole,
    }
}

/// `String.hashCode` of Java.
fn java_hash(text: &str) -> u32 {
    text.encode_utf16().fold(0u32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(u32::from(unit))
    })
}

/// The names in the order in which a `java.util.HashMap` goes through them that they were put
/// into one after another. Flink's `RoundRobinOperatorStateRepartitioner` keeps them in one, and
/// where a state's first element goes depends on the states before it.
fn in_java_order(mut names: Vec<(u32, u32)>) -> impl Iterator<Item = u32> {
    let mut buckets = 16;
    while names.len() > buckets / 4 * 3 {
        buckets *= 2;
    }
    let mask = u32::try_from(buckets - 1).unwrap_or(u32::MAX);
    names.sort_by_key(|(_, hash)| (hash ^ (hash >> 16)) & mask);
    names.into_iter().map(|(name, _)| name)
}
