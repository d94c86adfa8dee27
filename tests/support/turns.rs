//! Processes that run in short turns and stand still while they are looked at: where they are killed or interrupted then
//! does not depend on how long the look takes.

use std::process::{Child, Command};
use std::time::Duration;

use super::waits::until_asked;

/// How long they run before the first look. Each turn is a little longer than the one before, so that a slow machine
/// gets there too.
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
    let mut turn = FIRST_TURN;
    let there = async || {
        signal_all(children, "STOP");
        if is_so().await || children.iter_mut().all(has_ended) {
            return true;
        }
        signal_all(children, "CONT");
        tokio::time::sleep(turn).await;
        turn = turn.mul_f64(LONGER);
        false
    };
    until_asked(what, there).await;
}

/// Lets those that stand still go on.
pub fn go_on(children: &mut [Child]) {
    signal_all(children, "CONT");
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
