//! Time and chance: every wait and every random number of the crate comes from here.

use std::time::Duration;

/// Waits for `time`.
pub(crate) async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

/// A wait between a tenth of and the whole of `base * 2^attempt`, at most `ceiling`: exponential
/// back-off with full jitter, so that many clients do not come back at the same moment.
pub(crate) fn backoff(attempt: u32, base: Duration, ceiling: Duration) -> Duration {
    backoff_by(random_id(), attempt, base, ceiling)
}

/// The same by 64 random bits of the caller's. Pure.
pub(crate) fn backoff_by(chance: u64, attempt: u32, base: Duration, ceiling: Duration) -> Duration {
    let full = base.saturating_mul(1u32 << attempt.min(16)).min(ceiling);
    full.mul_f64(0.1 + 0.9 * (chance as f64 / u64::MAX as f64))
}

/// 64 random bits, for names that must not collide.
pub(crate) fn random_id() -> u64 {
    rand::random()
}

/// Fills `bytes` with what does not compress.
pub(crate) fn fill_random(bytes: &mut [u8]) {
    rand::Rng::fill_bytes(&mut rand::rng(), bytes);
}

/// A time for people, such as `2026-01-02 03:04:05 UTC`, from milliseconds since 1970.
pub(crate) fn utc(unix_ms: u64) -> String {
    i64::try_from(unix_ms / 1000)
        .ok()
        .and_then(|seconds| chrono::DateTime::from_timestamp(seconds, 0))
        .map_or_else(
            || format!("{unix_ms} ms after 1970"),
            |time| time.to_string(),
        )
}

/// Milliseconds since 1970, for names that sort by the time of the run that made them.
pub(crate) fn unix_millis() -> u128 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_millis());
    now.saturating_add_signed(set_by_tests())
}

/// How far the clock of this process is off, in milliseconds: what the file says now that the environment variable
/// `FORKPOINT_CLOCK_OFFSET` names. So a test sets the clock of one process, also while it runs.
#[cfg(feature = "fail-points")]
fn set_by_tests() -> i128 {
    let named = std::env::var_os("FORKPOINT_CLOCK_OFFSET");
    let text = named.and_then(|path| std::fs::read_to_string(path).ok());
    text.and_then(|t| t.trim().parse().ok()).unwrap_or(0)
}

/// Nothing.
#[cfg(not(feature = "fail-points"))]
fn set_by_tests() -> i128 {
    0
}

/// A clock that begins with the system's and never goes back, nor jumps when that one is set.
#[cfg(all(feature = "blob", unix))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Steady {
    began_unix_ms: u64,
    began: std::time::Instant,
}

#[cfg(all(feature = "blob", unix))]
impl Steady {
    /// Begins now.
    pub(crate) fn start() -> Steady {
        Steady {
            began_unix_ms: u64::try_from(unix_millis()).unwrap_or(u64::MAX),
            began: std::time::Instant::now(),
        }
    }

    /// Milliseconds since 1970 as of the beginning, plus what has passed since.
    pub(crate) fn now(&self) -> u64 {
        let passed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.began_unix_ms.saturating_add(passed)
    }
}
