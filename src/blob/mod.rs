//! Blobs.

mod key;
mod layout;
mod lifecycle;
mod registry;
mod sweep;
pub mod invariants;

pub use key::*;
pub use layout::*;
pub use lifecycle::*;
pub use registry::*;
pub use sweep::*;
