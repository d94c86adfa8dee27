//! The restore planner: its rules, real Flink as their judge, balance, and reports of users.

// Tests say what they expect by failing.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod balance;
mod flink;
mod planner;
mod reports;
#[path = "../restore_model/mod.rs"]
mod restore_model;
#[path = "../support/mod.rs"]
mod support;
