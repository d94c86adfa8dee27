//! Blobs.

mod chain;
mod eviction;
mod key;
mod layout;
mod lifecycle;
mod manifest;
mod recovery;
mod registry;
#[cfg(test)]
mod model;
mod sweep;
pub mod invariants;
pub mod wire;

pub use chain::{Ask, Claim, Commit, Ledger, Reply, Sweep, Verdict};
pub use eviction::*;
pub use key::*;
pub use manifest::*;
pub use recovery::*;
pub use layout::*;
pub use lifecycle::*;
pub use registry::*;
pub use sweep::*;
