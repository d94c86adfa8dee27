//! Duplicate, restore, own and safely delete checkpoints on object stores.
//!
//! Incremental checkpoints share files: the moment a second job starts from `chk-42`, nobody knows
//! who may delete what. This crate makes an *independent* snapshot from an old one: every file that
//! it needs is duplicated (by the store itself where that can), every reference is rewritten, and
//! the result is proved from what was written.
//!
//! # Fork a checkpoint
//!
//! ```no_run
//! use forkpoint::fork::{ForkRequest, fork};
//! use forkpoint::progress::{Cancel, Silent};
//! use forkpoint::store::{Location, Stores};
//!
//! # async fn demo() -> forkpoint::Result<()> {
//! let stores = Stores::from_env();
//! let request = ForkRequest::new(
//!     Location::parse("s3://prod/ckpt/3f2a.../chk-42")?,
//!     Location::parse("s3://staging/forks/orders")?,
//! );
//! let report = fork(&stores, &request, &Silent, &Cancel::default()).await?;
//! println!("restore from {}", report.snapshot);
//! # Ok(()) }
//! ```
//!
//! # Look before you leap
//!
//! [`fork::plan`] writes nothing and says where every object goes and how. [`verify::verify`] checks
//! that all a snapshot needs is there. [`snapshot::CommitObject`] reads any snapshot.
//!
//! # Duplicate one object
//!
//! ```no_run
//! # async fn demo() -> forkpoint::Result<()> {
//! let receipt = forkpoint::store::duplicate("gs://a/state", "gs://b/state").await?;
//! assert!(receipt.method.is_server_side());
//! # Ok(()) }
//! ```
//!
//! # Read Flink's `_metadata`
//!
//! [`snapshot::flink`] is a complete codec: every version that Flink 1.2 to 2.3 writes, every kind
//! of handle, byte for byte.
//!
//! # Duplicate a tree
//!
//! [`tree::duplicate_tree`] takes a folder or a list of names; [`store::Stores::batch`] takes any stream of
//! objects. Requests to a bucket are paced by its answers, copies of many requests are resumed after
//! a crash, and [`store::Level`] says how sure to be of the result.
//!
//! # Plan a no-claim restore
//!
//! [`restore::plan_restore`] decides for a restored job as a whole which subtask duplicates which
//! shared file: each file once, by a subtask that holds it, so that the slowest worker is done
//! soonest; with a lower bound, what the start-of-range rule would have cost, and a reason for each
//! choice. It is a pure function.
//!
//! # Share a fork between many workers
//!
//! [`fork::plan_workers`] spreads a planned fork, [`fork::run_slice`] does one worker's share,
//! [`fork::commit()`] finishes when everything is there, [`fork::abandon()`] removes what a fork that is
//! given up has left. The plan is a document that any engine can carry
//! ([`restore::RestorePlan::to_json`]).
//!
//! # May I delete chk-42?
//!
//! [`ownership::survey()`] reads all metadata below some roots, [`ownership::judge`] answers for one snapshot with
//! reasons, and [`ownership::clean`] plans and applies deletions. Engines keep their shared state in an
//! [`ownership::SharedStateRegistry`].
//!
//! # Features
//!
//! `cli` (default): the `forkpoint` command. A library user builds with
//! `default-features = false`. `blob`: the decisions of a store for job artefacts; no server yet.

#[cfg(feature = "blob")]
pub mod blob;
#[cfg(feature = "cli")]
pub mod cli;
mod clock;
pub mod error;
pub mod fork;
pub mod ownership;
pub mod progress;
pub mod report;
pub mod restore;
pub mod snapshot;
pub mod store;
pub mod tree;
pub mod verify;

pub use error::{Error, ErrorKind, Result};
