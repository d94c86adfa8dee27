//! Ctrl-C: what is under way is finished, the rest is left for the same command.

use std::io::Write;

use crate::error::Error;
use crate::progress::Cancel;

use super::exit;

/// The first Ctrl-C lets copies under way finish; the second ends the process.
pub(super) async fn stop_on_interrupt(cancel: Cancel) {
    if tokio::signal::ctrl_c().await.is_ok() {
        cancel.cancel();
        // Between two draws of the progress bar.
        let _ = writeln!(
            std::io::stderr(),
            "\nfinishing what is under way; Ctrl-C again stops at once"
        );
    }
    if tokio::signal::ctrl_c().await.is_ok() {
        std::process::exit(i32::from(exit::RESUMABLE));
    }
}

/// What failed half-way for a reason that may pass is not lost.
pub(super) fn say_how_to_go_on(e: Error) -> Error {
    match e.kind().is_transient() {
        true => e
            .with_kind(crate::ErrorKind::Cancelled)
            .hint("run the same command again: it goes on with what is missing"),
        false => e,
    }
}
