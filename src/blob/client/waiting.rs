//! What a client says while it waits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What moves nothing for so long is talked about.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);

/// Why a client does nothing for a while, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waiting {
    /// A call failed, and is repeated after a pause.
    Repeats {
        /// How it failed.
        why: String,
        /// Until it is repeated.
        pause: Duration,
        /// Until it is given up, if every answer is like this one and comes at once.
        longest: Duration,
    },
    /// An answer does not come.
    Silent {
        /// From whom, and to what.
        call: String,
        /// For how long nothing has moved.
        silent: Duration,
        /// Until this attempt is given up.
        longest: Duration,
    },
}

/// Whole seconds, at least one.
fn seconds(time: Duration) -> u64 {
    time.as_secs_f64().round().max(1.0) as u64
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Waiting::Repeats {
                why,
                pause,
                longest,
            } => {
                let (pause, longest) = (seconds(*pause), seconds(*longest));
                write!(
                    f,
                    "{why}; asked again in {pause} s, and given up in {longest} s at the latest"
                )
            }
            Waiting::Silent {
                call,
                silent,
                longest,
            } => write!(
                f,
                "no answer for {} s to {call}; given up in {} s",
                seconds(*silent),
                seconds(*longest)
            ),
        }
    }
}

/// Is told of each wait of a client before it begins.
#[derive(Clone)]
pub struct OnWait(Arc<dyn Fn(&Waiting) + Send + Sync>);

impl OnWait {
    /// Calls `tell`, which must not block.
    pub fn new(tell: impl Fn(&Waiting) + Send + Sync + 'static) -> OnWait {
        OnWait(Arc::new(tell))
    }

    pub(crate) fn tell(&self, waiting: &Waiting) {
        (self.0)(waiting);
    }
}

impl fmt::Debug for OnWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnWait")
    }
}

/// The pauses that are left after `failed` of `retries + 1` attempts: each doubles up to `ceiling`, and has at least
/// what the other side wishes.
pub(crate) fn longest_wait(
    failed: u32,
    retries: u32,
    first: Duration,
    ceiling: Duration,
    wish: Duration,
) -> Duration {
    let pause = |n: u32| first.saturating_mul(1 << n.min(16)).min(ceiling).max(wish);
    (failed.saturating_sub(1)..retries)
        .map(pause)
        .fold(Duration::ZERO, Duration::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_the_waits_is_their_sum() {
        let (first, ceiling) = (Duration::from_millis(100), Duration::from_secs(10));
        let left =
            |failed, wish| longest_wait(failed, 5, first, ceiling, Duration::from_secs(wish));
        assert_eq!(left(1, 30), Duration::from_secs(150));
        assert_eq!(left(5, 30), Duration::from_secs(30));
        assert_eq!(left(1, 0), Duration::from_millis(3100));
        assert_eq!(left(6, 30), Duration::ZERO);
        let text = Waiting::Repeats {
            why: "not now".to_string(),
            pause: Duration::from_secs(30),
            longest: left(2, 30),
        };
        assert_eq!(
            text.to_string(),
            "not now; asked again in 30 s, and given up in 120 s at the latest"
        );
    }
}
