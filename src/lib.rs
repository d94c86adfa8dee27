//! Duplicate, restore, own and safely delete checkpoints on object stores.

pub mod error;
pub mod snapshot;

pub use error::{Error, ErrorKind, Result};
