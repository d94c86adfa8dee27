//! Waiting until something has happened, instead of for as long as it usually takes: a machine that is busy with other
//! things takes longer.

// Each test uses some of it.
#![allow(dead_code, unreachable_pub, clippy::panic)]

use std::time::{Duration, Instant};

/// Longer than anything takes that is waited for: what has not happened by then does not happen.
pub const AT_MOST: Duration = Duration::from_secs(60);

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits until it is so; `what` says what was waited for if it never is.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    until_asked(what, async || is_so()).await;
}

/// As [`until`], where asking takes time itself.
pub async fn until_asked(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let look = async {
        while !is_so().await {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    ends(what, look).await;
}

/// As [`until`], for a thread that nobody else needs meanwhile.
#[track_caller]
pub fn until_here(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < AT_MOST, "not after {AT_MOST:?}: {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What the future ends with.
pub async fn ends<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(AT_MOST, future).await {
        Ok(result) => result,
        Err(_) => panic!("not after {AT_MOST:?}: {what}"),
    }
}

/// Fails if it came sooner than this time after its beginning: what is not to lapse before may lapse later. Clocks that
/// count milliseconds may be some early.
#[track_caller]
pub fn not_before(began: Instant, time: Duration, what: &str) {
    let took = began.elapsed();
    let enough = took + Duration::from_millis(20) >= time;
    assert!(enough, "{what}: already after {took:?}, not {time:?}");
}
