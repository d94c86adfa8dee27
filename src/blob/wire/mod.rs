//! What goes over the wire, as types: calls ([`Call`]), their bodies, byte ranges, and problem
//! documents. Everything is parsed with limits and printed back; nothing here opens a connection.

mod bodies;
mod call;
mod problem;
mod range;

pub use bodies::*;
pub use call::*;
pub use problem::*;
pub use range::*;
