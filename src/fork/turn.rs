//! Which of a fork's workers begins it. Pure.
//!
//! The pin of the source and the note of a fork are one object each. Where all workers start at once and write
//! them, they wait for one another: a store lets one writer after the other at an object, or answers the rest with
//! 409 or 503. So the first worker writes, and the others look a few times whether it has; where it does not
//! come, the next begins the fork.

use std::time::Duration;

use crate::restore::WorkerLoad;

use super::workers::Slice;

/// From one look to the next, in milliseconds, on a store that answers sooner: 0.7 s in all. To begin takes five answers
/// of the store one after the other, and a look one.
const EVERY_MS: [u64; 7] = [20, 20, 20, 40, 80, 160, 320];
/// Between the second looks of two workers, so that thousands do not come at once: 5,000 a second.
const APART: Duration = Duration::from_micros(200);

/// The times from the beginning of a look to that of the next, for as long as the fork has not begun; then it is this
/// worker's turn. None for the first that has something to copy, and for whoever does the tasks of all.
pub(super) fn looks(
    workers: &[WorkerLoad],
    slice: Slice,
) -> impl Iterator<Item = Duration> + use<> {
    let before = match slice {
        Slice::All => 0,
        Slice::Worker(number) => {
            let busy = workers.iter().filter(|w| w.objects > 0);
            busy.filter(|w| w.worker < number).count()
        }
    };
    let later = APART.saturating_mul(u32::try_from(before).unwrap_or(u32::MAX));
    let looks = if before == 0 { 0 } else { EVERY_MS.len() };
    EVERY_MS
        .into_iter()
        .take(looks)
        .enumerate()
        .map(move |(look, ms)| match look {
            0 => Duration::from_millis(ms).saturating_add(later),
            _ => Duration::from_millis(ms),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_has_something_to_do_begins_at_once_and_the_others_come_apart() {
        let workers = [(0, 0), (3, 5), (4, 5), (9, 5)].map(|(worker, objects)| WorkerLoad {
            worker,
            objects,
            bytes: 0,
            cost_ns: 0,
        });
        let of = |slice| looks(&workers, slice).collect::<Vec<_>>();
        assert_eq!(of(Slice::All), []);
        assert_eq!(of(Slice::Worker(3)), []);
        assert_eq!(of(Slice::Worker(0)), []);
        let micros =
            |first: u64| [first, 20_000, 20_000, 20_000, 20_000].map(Duration::from_micros);
        assert_eq!(of(Slice::Worker(4)), micros(20_200));
        assert_eq!(of(Slice::Worker(9)), micros(20_400));
    }
}
