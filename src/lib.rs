//! Duplicate, restore, own and safely delete checkpoints on object stores.

mod clock;
pub mod error;
pub mod progress;
pub mod snapshot;
pub mod store;

pub use error::{Error, ErrorKind, Result};
