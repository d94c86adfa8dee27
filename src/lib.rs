//! Duplicate, restore, own and safely delete checkpoints on object stores.

#[cfg(feature = "cli")]
pub mod cli;
mod clock;
pub mod error;
pub mod fork;
pub mod progress;
pub mod report;
pub mod restore;
pub mod snapshot;
pub mod store;
pub mod verify;

pub use error::{Error, ErrorKind, Result};
