//! Which of a fork's workers begins it. Pure.
//!
//! The pin of the source and the note of a fork are one object each. Where all workers start at once and write
//! them, they wait for one another: a store lets one writer after the other at an object, or answers the rest with
//! 409 or 503. So the first worker writes, and the others ask for the note until it is there. Where the first does not
//! come, the second loses its patience, then the third.

use std::time::Duration;

use crate::restore::{Slice, WorkerLoad};

/// From one question to the next, on a store that answers sooner: to begin takes four answers, one after the other.
const EVERY_MS: [u64; 11] = [5, 5, 10, 20, 20, 20, 20, 40, 80, 160, 320];
/// Each worker asks once more than the one before it, up to so many times, at this distance.
const MORE_MS: u64 = 200;
const MORE: usize = 10;
/// Between the second questions of two workers, so that thousands do not come at once: 5,000 a second.
const APART_MICROS: u64 = 200;
const AT_ONCE: usize = 5_000;
/// So many workers may ask for more than they must to start an answer sooner, where that is worth it.
const FEW: usize = 32;
const LONG: Duration = Duration::from_millis(10);

/// The times from one question whether the fork has begun to the next, as long as it has not; then it is this worker's
/// turn: after 0.7 s for the second, 2.7 s for the twelfth and 3.7 s for any. None for the first that has something
/// to copy, and for whoever does the tasks of all.
pub(super) fn waits(
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
    let questions = match before {
        0 => 0,
        _ => EVERY_MS.len() + (before - 1).min(MORE),
    };
    let later = Duration::from_micros(APART_MICROS * (before % AT_ONCE) as u64);
    let every = EVERY_MS.into_iter().chain([MORE_MS; MORE]);
    let waits = every.take(questions).map(Duration::from_millis);
    waits
        .enumerate()
        .map(move |(question, wait)| match question {
            0 => wait.saturating_add(later),
            _ => wait,
        })
}

/// Is the next question for all that a worker needs to know to start copying, and not for the note alone? Where the last
/// `answer` took long, it spares another one. Not where thousands ask.
pub(super) fn asks_for_all(answer: Duration, workers: &[WorkerLoad]) -> bool {
    answer >= LONG && workers.len() <= FEW
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(number: u32) -> Vec<Duration> {
        let workers = (0..20_000).map(|worker| WorkerLoad {
            worker,
            // The first three have nothing to do.
            objects: u64::from(worker / 3),
            bytes: 0,
            cost_ns: 0,
        });
        waits(&workers.collect::<Vec<_>>(), Slice::Worker(number)).collect()
    }

    #[test]
    fn the_first_that_has_something_to_do_begins_at_once() {
        assert_eq!(waits(&[], Slice::All).count(), 0);
        for number in 0..4 {
            assert!(of(number).is_empty());
        }
        let every = EVERY_MS[1..].iter().map(|ms| Duration::from_millis(*ms));
        assert_eq!(of(4)[0], Duration::from_micros(5_200));
        assert!(of(4).into_iter().skip(1).eq(every));
    }

    #[test]
    fn the_others_come_apart_and_none_waits_for_long() {
        let all = |number| of(number).into_iter().sum::<Duration>();
        // Time enough for the one before to begin.
        for number in 4..14 {
            let more = all(number + 1) - all(number);
            assert_eq!(more, Duration::from_micros(200_200), "{number}");
        }
        assert_eq!(all(5_002), Duration::from_micros(2_700_000 + 4_999 * 200));
        assert_eq!(all(5_003), Duration::from_micros(2_700_000));
        assert!((4..20_000).all(|number| all(number) < Duration::from_secs(4)));
    }

    #[test]
    fn few_workers_ask_for_all_where_answers_take_long() {
        let few = [WorkerLoad {
            worker: 0,
            objects: 1,
            bytes: 0,
            cost_ns: 0,
        }];
        let many = few.repeat(FEW + 1);
        let of = |workers: &[WorkerLoad]| {
            [0, 9, 10, 300].map(|ms| asks_for_all(Duration::from_millis(ms), workers))
        };
        assert_eq!(of(&few), [false, false, true, true]);
        assert_eq!(of(&many[1..]), [false, false, true, true]);
        assert_eq!(of(&many), [false; 4]);
    }
}
