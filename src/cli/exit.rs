//! Exit codes.

use crate::error::{Error, ErrorKind};

/// All done.
pub const DONE: u8 = 0;
/// Failed: not found, no permission, a store that does not answer.
pub const FAILED: u8 = 1;
/// Wrong use: the arguments make no sense.
pub const USAGE: u8 = 2;
/// Refused by a safety rule; nothing was overwritten.
pub const REFUSED: u8 = 3;
/// Something could not be looked at, so there is no safe answer.
pub const INCOMPLETE: u8 = 4;
/// Damage found in a snapshot.
pub const DAMAGED: u8 = 5;
/// Partly done: the same command goes on where this one stopped, once what the report names is there.
pub const RESUMABLE: u8 = 6;

/// The exit code of an answer, by whether all evidence for it was there.
pub(super) fn of_evidence(complete: bool) -> u8 {
    if complete { DONE } else { INCOMPLETE }
}

/// The exit code for an error.
pub fn code(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::Invalid => USAGE,
        ErrorKind::Refused | ErrorKind::AlreadyExists => REFUSED,
        ErrorKind::Incomplete => INCOMPLETE,
        ErrorKind::Corrupt => DAMAGED,
        ErrorKind::Cancelled => RESUMABLE,
        _ => FAILED,
    }
}
