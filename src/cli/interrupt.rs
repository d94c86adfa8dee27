//! Ctrl-C and SIGTERM: what is under way is finished, the rest is left for the same command.

use std::io::Write;

use crate::error::Error;
use crate::progress::Cancel;

use super::exit;

/// The first Ctrl-C, or SIGTERM, as a pod gets it before it is taken away, lets copies under way
/// finish; the second ends the process.
pub(super) async fn stop_on_interrupt(cancel: Cancel) {
    if asked_to_stop().await {
        cancel.cancel();
        // Between two draws of the progress bar.
        let _ = writeln!(
            std::io::stderr(),
            "\nfinishing what is under way; Ctrl-C or SIGTERM again stops at once"
        );
    }
    if asked_to_stop().await {
        std::process::exit(i32::from(exit::RESUMABLE));
    }
}

/// Done at the first Ctrl-C or SIGTERM; a second one ends the process.
#[cfg(all(feature = "blob", unix))]
pub(super) async fn asked_to_stop_once() {
    asked_to_stop().await;
    tokio::spawn(async {
        if asked_to_stop().await {
            std::process::exit(i32::from(exit::RESUMABLE));
        }
    });
}

#[cfg(unix)]
async fn asked_to_stop() -> bool {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            interrupted = tokio::signal::ctrl_c() => interrupted.is_ok(),
            terminated = terminate.recv() => terminated.is_some(),
        },
        Err(_) => tokio::signal::ctrl_c().await.is_ok(),
    }
}

#[cfg(not(unix))]
async fn asked_to_stop() -> bool {
    tokio::signal::ctrl_c().await.is_ok()
}

/// True for what passes, or is over once somebody has made room: what is done until then counts.
pub(super) fn may_go_on(kind: crate::ErrorKind) -> bool {
    kind.is_transient() || kind == crate::ErrorKind::Full
}

const GO_ON: &str = "run the same command again: it goes on with what is missing";

/// What failed half-way for a reason that may pass is not lost.
pub(super) fn say_how_to_go_on(e: Error) -> Error {
    match may_go_on(e.kind()) {
        // What helps before that, such as room on the disk, the error says itself.
        true => e.with_kind(crate::ErrorKind::Cancelled).hint(GO_ON),
        false if e.kind() == crate::ErrorKind::Cancelled => e.hint(GO_ON),
        false => e,
    }
}
