//! Key groups: the units in which keyed state is spread over subtasks.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Most key groups that an operator can have.
/// Source: `UPPER_BOUND_MAX_PARALLELISM` of Flink's `KeyGroupRangeAssignment`.
pub const MAX_KEY_GROUPS: u32 = 1 << 15;

/// A run of key groups, 0-based; may be empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyGroupRange {
    first: u16,
    count: u16,
}

impl KeyGroupRange {
    /// The range without a key group.
    pub const EMPTY: KeyGroupRange = KeyGroupRange { first: 0, count: 0 };

    /// `count` key groups from `first` on.
    ///
    /// # Errors
    ///
    /// `Invalid` if one of them is not below [`MAX_KEY_GROUPS`].
    pub fn new(first: u32, count: u32) -> Result<KeyGroupRange> {
        if count == 0 {
            return Ok(KeyGroupRange::EMPTY);
        }
        match (u16::try_from(first), u16::try_from(count)) {
            (Ok(short), Ok(count)) if first + u32::from(count) <= MAX_KEY_GROUPS => {
                Ok(KeyGroupRange {
                    first: short,
                    count,
                })
            }
            _ => Err(Error::invalid(format!(
                "{count} key groups from {first} on are not among the {MAX_KEY_GROUPS} that there can be"
            ))),
        }
    }

    /// The first key group; means nothing for an empty range.
    pub fn first(self) -> u32 {
        u32::from(self.first)
    }

    /// The key group after the last one.
    pub fn end(self) -> u32 {
        self.first() + self.len()
    }

    /// How many key groups there are.
    pub fn len(self) -> u32 {
        u32::from(self.count)
    }

    /// True without any key group.
    pub fn is_empty(self) -> bool {
        self.count == 0
    }

    /// The key groups of both.
    #[must_use]
    pub fn intersection(self, other: KeyGroupRange) -> KeyGroupRange {
        let first = self.first.max(other.first);
        let end = self.end().min(other.end());
        match u16::try_from(end.saturating_sub(u32::from(first))) {
            Ok(count) if count > 0 => KeyGroupRange { first, count },
            _ => KeyGroupRange::EMPTY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_intersect_as_sets() {
        let range = |first, count| KeyGroupRange::new(first, count).unwrap();
        assert_eq!(range(0, 64).intersection(range(43, 43)), range(43, 21));
        assert_eq!(
            range(0, 43).intersection(range(43, 43)),
            KeyGroupRange::EMPTY
        );
        assert_eq!(
            range(5, 9).intersection(KeyGroupRange::EMPTY),
            KeyGroupRange::EMPTY
        );
        assert_eq!(range(0, 32768).end(), 32768);
        assert!(KeyGroupRange::new(1, 32768).is_err());
        assert!(KeyGroupRange::new(32768, 1).is_err());
    }
}
