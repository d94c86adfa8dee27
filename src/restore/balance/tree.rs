//! Loads of workers, with the least loaded of a run and the most loaded of all in O(log w).

use std::cmp::Ordering;

/// A tournament among workers; of equal loads the worker with the smaller number wins.
#[derive(Debug)]
pub(super) struct Tree {
    loads: Vec<u64>,
    /// Position of the leaves; a power of two.
    leaves: usize,
    /// Winner below each node: the least loaded. `u32::MAX` for none.
    least: Vec<u32>,
    /// The same for the most loaded.
    most: Vec<u32>,
}

const NOBODY: u32 = u32::MAX;

impl Tree {
    pub(super) fn new(loads: &[u64]) -> Tree {
        let leaves = loads.len().next_power_of_two().max(1);
        let mut tree = Tree {
            loads: loads.to_vec(),
            leaves,
            least: vec![NOBODY; 2 * leaves],
            most: vec![NOBODY; 2 * leaves],
        };
        for (worker, _) in (0u32..).zip(loads) {
            for list in [&mut tree.least, &mut tree.most] {
                if let Some(leaf) = list.get_mut(leaves + worker as usize) {
                    *leaf = worker;
                }
            }
        }
        for node in (1..leaves).rev() {
            tree.play(node);
        }
        tree
    }

    pub(super) fn load(&self, worker: u32) -> u64 {
        self.loads.get(worker as usize).copied().unwrap_or(u64::MAX)
    }

    pub(super) fn set(&mut self, worker: u32, load: u64) {
        if let Some(slot) = self.loads.get_mut(worker as usize) {
            *slot = load;
        }
        let mut node = (self.leaves + worker as usize) / 2;
        while node > 0 {
            let before = (at(&self.least, node), at(&self.most, node));
            self.play(node);
            let after = (at(&self.least, node), at(&self.most, node));
            // Whoever does not win here, before or after, changes nothing above.
            if before == after && before.0 != worker && before.1 != worker {
                break;
            }
            node /= 2;
        }
    }

    fn play(&mut self, node: usize) {
        let least = self.lesser(at(&self.least, 2 * node), at(&self.least, 2 * node + 1));
        let most = self.greater(at(&self.most, 2 * node), at(&self.most, 2 * node + 1));
        if let Some(slot) = self.least.get_mut(node) {
            *slot = least;
        }
        if let Some(slot) = self.most.get_mut(node) {
            *slot = most;
        }
    }

    fn order(&self, a: u32, b: u32) -> Ordering {
        self.load(a).cmp(&self.load(b))
    }

    fn lesser(&self, a: u32, b: u32) -> u32 {
        match (a, b) {
            (NOBODY, x) | (x, NOBODY) => x,
            (a, b) if self.order(a, b).then(a.cmp(&b)).is_le() => a,
            (_, b) => b,
        }
    }

    fn greater(&self, a: u32, b: u32) -> u32 {
        match (a, b) {
            (NOBODY, x) | (x, NOBODY) => x,
            (a, b) if self.order(a, b).then(b.cmp(&a)).is_ge() => a,
            (_, b) => b,
        }
    }

    /// The most loaded worker.
    pub(super) fn most_loaded(&self) -> Option<u32> {
        Some(at(&self.most, 1)).filter(|w| *w != NOBODY)
    }

    /// The least loaded worker of the runs.
    pub(super) fn least_loaded(&self, runs: &[(u32, u32)]) -> Option<u32> {
        let mut best = NOBODY;
        for (first, end) in runs {
            let (mut low, mut high) = (self.leaves + *first as usize, self.leaves + *end as usize);
            while low < high {
                if low % 2 == 1 {
                    best = self.lesser(best, at(&self.least, low));
                    low += 1;
                }
                if high % 2 == 1 {
                    high -= 1;
                    best = self.lesser(best, at(&self.least, high));
                }
                low /= 2;
                high /= 2;
            }
        }
        Some(best).filter(|w| *w != NOBODY)
    }
}

fn at(list: &[u32], index: usize) -> u32 {
    list.get(index).copied().unwrap_or(NOBODY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn winners_follow_the_loads() {
        let mut tree = Tree::new(&[3, 1, 4, 1, 5]);
        assert_eq!(tree.most_loaded(), Some(4));
        assert_eq!(tree.least_loaded(&[(0, 5)]), Some(1));
        assert_eq!(tree.least_loaded(&[(0, 1), (2, 5)]), Some(3));
        tree.set(3, 9);
        tree.set(1, 9);
        assert_eq!(tree.most_loaded(), Some(1));
        assert_eq!(tree.least_loaded(&[(2, 5)]), Some(2));
        assert_eq!(tree.least_loaded(&[]), None);
        assert_eq!(Tree::new(&[]).most_loaded(), None);
    }
}
