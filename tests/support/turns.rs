//! Processes that run in short turns and stand still while they are looked at: where they are killed or interrupted then
//! does not depend on how long the look takes.

use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use super::waits::AT_MOST;

/// How long they run before the first look. Each turn is a little longer than the one before, and no shorter than half
/// of the look before it, so that a slow machine gets there too.
const FIRST_TURN: Duration = Duration::from_millis(5);
const LONGER: f64 = 1.1;

pub fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill")
        .args([&format!("-{name}"), &child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
}

/// Lets them run until it is so, or until all have ended. Those that have not ended stand still then.
pub async fn run_until(children: &mut [Child], what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let (mut turn, mut ran) = (FIRST_TURN, Duration::ZERO);
    loop {
        signal_all(children, "STOP");
        let look = Instant::now();
        if is_so().await || children.iter_mut().all(has_ended) {
            return;
        }
        assert!(ran < AT_MOST, "not after they ran for {AT_MOST:?}: {what}");
        turn = turn.mul_f64(LONGER).max(look.elapsed() / 2);
        ran += turn;
        signal_all(children, "CONT");
        tokio::time::sleep(turn).await;
    }
}

/// Sends `name` to it once it is so, and waits for its end.
pub async fn output_after(
    child: Child,
    name: &str,
    what: &str,
    is_so: impl AsyncFnMut() -> bool,
) -> Output {
    let mut children = [child];
    run_until(&mut children, what, is_so).await;
    signal(&children[0], name);
    signal_all(&mut children, "CONT");
    let [child] = children;
    child.wait_with_output().unwrap()
}

fn signal_all(children: &mut [Child], name: &str) {
    for child in children.iter_mut() {
        if !has_ended(child) {
            signal(child, name);
        }
    }
}

fn has_ended(child: &mut Child) -> bool {
    child.try_wait().unwrap().is_some()
}
