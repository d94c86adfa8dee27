//! A source that keeps failing is asked after the others for a while.

use std::time::{Duration, Instant};

/// Failures in a row after which a source rests.
const FAILURES: u32 = 3;
/// For how long, the first time; doubled with every further failure.
const FIRST_REST: Duration = Duration::from_secs(2);
/// The longest rest.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// How a source has done lately.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Breaker {
    failures: u32,
    rests_until: Option<Instant>,
}

impl Breaker {
    /// It answered, if only that it has nothing.
    pub(super) fn answered(&mut self) {
        *self = Breaker::default();
    }

    /// It did not answer, or not with what it should.
    pub(super) fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        if let Some(more) = self.failures.checked_sub(FAILURES) {
            let rest = FIRST_REST.saturating_mul(1 << more.min(16));
            self.rests_until = Some(now + rest.min(LONGEST_REST));
        }
    }

    /// True while the others are asked first.
    pub(super) fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rests_after_failures_in_a_row_and_longer_each_time() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        breaker.failed(start);
        breaker.failed(start);
        assert!(!breaker.rests(start));
        breaker.failed(start);
        assert!(breaker.rests(start) && !breaker.rests(start + FIRST_REST));
        breaker.failed(start);
        assert!(breaker.rests(start + FIRST_REST) && !breaker.rests(start + 2 * FIRST_REST));
        for _ in 0..100 {
            breaker.failed(start);
        }
        assert!(!breaker.rests(start + LONGEST_REST));
        breaker.answered();
        assert!(!breaker.rests(start));
        breaker.failed(start);
        assert!(!breaker.rests(start));
    }
}
