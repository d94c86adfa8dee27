//! Named places at which a server can be made to die as by SIGKILL, so that tests can look at what a crash
//! there leaves. Compiled in with the feature `fail-points` alone, and then armed by the environment variable
//! `FORKPOINT_FAIL_POINT`: a name, or `name:N` for the N-th time.

/// Dies here if the variable says so.
#[cfg(all(feature = "fail-points", unix))]
pub(crate) fn point(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    static ARMED: OnceLock<Option<(String, AtomicU64)>> = OnceLock::new();
    let armed = ARMED.get_or_init(|| {
        let text = std::env::var("FORKPOINT_FAIL_POINT").ok()?;
        let (name, times) = match text.split_once(':') {
            Some((name, times)) => (name.to_string(), times.parse().ok()?),
            None => (text, 1),
        };
        Some((name, AtomicU64::new(times)))
    });
    if let Some((wanted, left)) = armed
        && wanted == name
        && left.fetch_sub(1, Ordering::SeqCst) == 1
    {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // The signal is on its way: nothing more is done.
        loop {
            std::thread::park();
        }
    }
}

/// Nothing.
#[cfg(not(all(feature = "fail-points", unix)))]
pub(crate) fn point(_: &str) {}
