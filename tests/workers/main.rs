//! A fork by many workers: what it says, what it exports, what it refuses.

// Tests say what they expect by failing.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod exports;
mod half_done;
mod refusals;
mod reports;
#[path = "../support/mod.rs"]
mod support;
