//! How long a source is waited for, and that somebody is told so.

use std::time::Duration;

use super::super::client::{SILENCE, Waiting};
use super::BlobSource;

/// What `work` comes to, or none if that takes longer than `longest`. Tells the source of the wait for `what` when it
/// has lasted a while.
pub(super) async fn wait_for<T>(
    source: &(impl BlobSource + ?Sized),
    what: impl FnOnce() -> String,
    longest: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = std::pin::pin!(work);
    let soon = SILENCE.min(longest);
    if let Ok(done) = tokio::time::timeout(soon, &mut work).await {
        return Some(done);
    }
    let longest = longest - soon;
    if longest.is_zero() {
        return None;
    }
    source.waits(&Waiting::Silent {
        call: what(),
        silent: soon,
        longest,
    });
    tokio::time::timeout(longest, work).await.ok()
}
