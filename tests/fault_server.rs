//! The double of object stores itself: does it keep the rules of the services that it stands for,
//! and does it misbehave as told?

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fault;

#[path = "fault_server/azure.rs"]
mod azure;
#[path = "fault_server/gcs.rs"]
mod gcs;
#[path = "fault_server/knobs.rs"]
mod knobs;
#[path = "fault_server/s3.rs"]
mod s3;
#[path = "support/waits.rs"]
mod waits;
