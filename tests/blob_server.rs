//! The blob service as real processes: crashes at every point, owners that are deposed, copies that are damaged,
//! peers that misbehave, and every kind of HA store.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fault;
mod support;

#[path = "blob_server/access.rs"]
mod access;
#[path = "blob_server/cache.rs"]
mod cache;
#[path = "blob_server/clock.rs"]
mod clock;
#[path = "blob_server/crash.rs"]
mod crash;
#[path = "blob_server/damage.rs"]
mod damage;
#[path = "blob_server/fencing.rs"]
mod fencing;
#[path = "blob_server/harness.rs"]
mod harness;
#[path = "blob_server/library.rs"]
mod library;
#[path = "blob_server/limits.rs"]
mod limits;
#[path = "blob_server/outage.rs"]
mod outage;
#[path = "blob_server/peers.rs"]
mod peers;
#[path = "blob_server/repairs.rs"]
mod repairs;
#[path = "blob_server/stores.rs"]
mod stores;
