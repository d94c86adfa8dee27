//! Who depends on what, and what may go: reports of users, faulty stores, verdicts against real Flink, the verbs, real servers.

// Tests say what they expect by failing.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod advice;
mod beginning;
mod claims;
mod cli;
mod damage;
mod emulators;
#[path = "../fault/mod.rs"]
mod fault;
mod faults;
mod giving_up;
mod guessed;
mod lineage;
mod odd_names;
mod plan_files;
mod planned;
mod races;
mod reports;
#[path = "../support/mod.rs"]
mod support;
mod tampered;
mod why;
