//! Which subtask has which key groups: Flink's formulas, which state written by Flink obeys.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::snapshot::{KeyGroupRange, MAX_KEY_GROUPS};

/// Fewest key groups that Flink gives an operator by itself
/// (`DEFAULT_LOWER_BOUND_MAX_PARALLELISM` of `KeyGroupRangeAssignment`).
const DEFAULT_LEAST_KEY_GROUPS: u32 = 1 << 7;

/// The number of key groups that an operator has if nobody set it: one and a half times its
/// parallelism, rounded up to a power of two, between 128 and 32768
/// (`computeDefaultMaxParallelism` of Flink's `KeyGroupRangeAssignment`).
pub fn default_max_parallelism(parallelism: u32) -> u32 {
    parallelism
        .saturating_add(parallelism / 2)
        .min(MAX_KEY_GROUPS)
        .next_power_of_two()
        .max(DEFAULT_LEAST_KEY_GROUPS)
}

/// The subtask that has a key group (`computeOperatorIndexForKeyGroup`). A key group past the last
/// one counts as the last one.
pub fn subtask_of(max_parallelism: u32, parallelism: u32, key_group: u32) -> u32 {
    let most = u64::from(max_parallelism.max(1));
    let subtask = u64::from(key_group).min(most - 1) * u64::from(parallelism) / most;
    u32::try_from(subtask).unwrap_or(u32::MAX)
}

/// The key groups that a subtask has (`computeKeyGroupRangeForOperatorIndex`). Empty for a subtask
/// that there is not.
pub fn key_groups_of(max_parallelism: u32, parallelism: u32, subtask: u32) -> KeyGroupRange {
    if subtask >= parallelism {
        return KeyGroupRange::EMPTY;
    }
    let (most, all) = (u64::from(max_parallelism), u64::from(parallelism));
    let start = |subtask: u64| (subtask * most).div_ceil(all);
    let first = start(u64::from(subtask));
    let count = start(u64::from(subtask) + 1).saturating_sub(first);
    match (u32::try_from(first), u32::try_from(count)) {
        (Ok(first), Ok(count)) => KeyGroupRange::new(first, count).unwrap_or(KeyGroupRange::EMPTY),
        _ => KeyGroupRange::EMPTY,
    }
}

/// The subtasks that have at least one of the key groups: a run without gaps.
pub fn subtasks_of(max_parallelism: u32, parallelism: u32, range: KeyGroupRange) -> Range<u32> {
    if range.is_empty() || range.first() >= max_parallelism || parallelism == 0 {
        return 0..0;
    }
    subtask_of(max_parallelism, parallelism, range.first())
        ..subtask_of(max_parallelism, parallelism, range.end() - 1) + 1
}

/// Which new subtasks get the records in flight of which old ones. It depends on how an edge of the
/// job partitions its records, which a snapshot does not say (Flink's `SubtaskStateMapper`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChannelMapper {
    /// Everything to subtask 0.
    First,
    /// Everything to every subtask.
    Full,
    /// By key groups, as if there were 32768.
    #[default]
    Range,
    /// Old subtask `i` to new subtask `i` modulo the new parallelism.
    RoundRobin,
}

impl ChannelMapper {
    /// The new subtasks that get what the old subtask had: a run without gaps.
    pub fn new_subtasks(self, old_subtask: u32, old: u32, new: u32) -> Range<u32> {
        match self {
            ChannelMapper::First => 0..new.min(1),
            ChannelMapper::Full => 0..new,
            ChannelMapper::RoundRobin if new == 0 => 0..0,
            ChannelMapper::RoundRobin => old_subtask % new..old_subtask % new + 1,
            ChannelMapper::Range => subtasks_of(
                MAX_KEY_GROUPS,
                new,
                key_groups_of(MAX_KEY_GROUPS, old, old_subtask),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_owners_are_inverses_for_all_small_numbers() {
        for most in 1..100 {
            for parallelism in 1..=most {
                let mut next = 0;
                for subtask in 0..parallelism {
                    let range = key_groups_of(most, parallelism, subtask);
                    assert_eq!((range.first(), range.is_empty()), (next, false));
                    next = range.end();
                    for group in range.first()..range.end() {
                        assert_eq!(subtask_of(most, parallelism, group), subtask);
                    }
                    assert_eq!(subtasks_of(most, parallelism, range), subtask..subtask + 1);
                }
                assert_eq!(next, most);
            }
        }
    }

    #[test]
    fn nothing_has_no_subtask() {
        assert!(subtasks_of(128, 3, KeyGroupRange::EMPTY).is_empty());
        assert!(subtasks_of(128, 3, KeyGroupRange::new(128, 1).unwrap()).is_empty());
        assert!(key_groups_of(128, 3, 3).is_empty());
    }
}
