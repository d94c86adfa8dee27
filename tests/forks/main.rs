//! Forks by one process: every fixture on disk, and what is refused.

// Tests say what they expect by failing.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod compared;
mod local;
mod refusals;
#[path = "../support/mod.rs"]
mod support;
