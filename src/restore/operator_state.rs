//! Who gets state without keys: Flink's `RoundRobinOperatorStateRepartitioner`.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::snapshot::{Distribution, OperatorStatePart};

/// One handle's subtask of old, and its parts.
#[derive(Debug, Clone)]
pub(super) struct OldHandle<'a> {
    /// Its number.
    pub(super) handle: u32,
    /// Who had it.
    pub(super) subtask: u32,
    /// The named states in it.
    pub(super) parts: &'a [OperatorStatePart],
}

/// One named state, over all handles.
struct Named {
    /// Where it comes in the order of the engine.
    order: u32,
    distribution: Distribution,
    /// Handles with their number of elements, by subtask.
    entries: Vec<(u32, u32)>,
}

/// For each handle the subtasks that get at least one element of it, as (handle, run) in any
/// order, runs of one handle perhaps overlapping. `handles` are those of one operator, by subtask.
///
/// At the same parallelism every subtask gets its own; besides, united states go to all, and
/// broadcast states to all if some subtask had finished and has none.
pub(super) fn spread(
    handles: &[OldHandle<'_>],
    old: u32,
    new: u32,
    give: &mut dyn FnMut(u32, Range<u32>),
) {
    let same = old == new;
    if same {
        for handle in handles {
            give(handle.handle, handle.subtask..handle.subtask + 1);
        }
    }
    let mut states: BTreeMap<u32, Named> = BTreeMap::new();
    for handle in handles {
        for part in handle.parts {
            let state = states.entry(part.name).or_insert_with(|| Named {
                order: part.order,
                distribution: part.distribution,
                entries: Vec::new(),
            });
            state.entries.push((handle.handle, part.elements));
        }
    }
    let mut split: Vec<Named> = Vec::new();
    for state in states.into_values() {
        let entries = &state.entries;
        match state.distribution {
            Distribution::Split if same => {}
            Distribution::Split => split.push(state),
            Distribution::Union => {
                for (handle, _) in entries.iter().filter(|(_, elements)| *elements > 0) {
                    give(*handle, 0..new);
                }
            }
            Distribution::Broadcast if same && entries.len() == old as usize => {}
            Distribution::Broadcast => {
                for (subtask, (handle, elements)) in (0..new).zip(entries.iter().cycle()) {
                    if *elements > 0 {
                        give(*handle, subtask..subtask + 1);
                    }
                }
            }
        }
    }
    split.sort_by_key(|state| state.order);
    round_robin(&split, new, give);
}

/// Deals out the elements of each state in turn: everybody gets the same number, and those that
/// get one more are the next ones after those that got one more of the state before.
fn round_robin(states: &[Named], new: u32, give: &mut dyn FnMut(u32, Range<u32>)) {
    let mut start = 0;
    for Named { entries, .. } in states {
        let total: u64 = entries
            .iter()
            .map(|(_, elements)| u64::from(*elements))
            .sum();
        let (base, odd) = (total / u64::from(new), total % u64::from(new));
        let mut left = entries.iter().copied();
        let mut current: (u32, u64) = (0, 0);
        for round in 0..new {
            let subtask = (round + start) % new;
            let mut wanted = base + u64::from(u64::from(round) < odd);
            while wanted > 0 {
                if current.1 == 0 {
                    match left.next() {
                        Some((handle, elements)) => current = (handle, u64::from(elements)),
                        None => break,
                    }
                    continue;
                }
                give(current.0, subtask..subtask + 1);
                let taken = wanted.min(current.1);
                wanted -= taken;
                current.1 -= taken;
            }
        }
        start = (start + u32::try_from(odd).unwrap_or(0)) % new;
    }
}
