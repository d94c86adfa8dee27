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
//! # Write your first snapshot
//!
//! For an engine or a training loop without a snapshot format of its own:
//! `cargo add forkpoint --no-default-features`, `cargo add tokio --features full`, and this, which is a whole
//! program. Where it runs, `/data/jobs/first` may as well be `s3://bucket/jobs/first`, `gs://...` or `az://...`.
//!
//! ```
//! use forkpoint::store::{Location, Stores};
//! use forkpoint::writer::{Details, Job, JobDescription, JobOptions, Start, State, SubtaskWriter};
//!
//! #[tokio::main]
//! async fn main() -> forkpoint::Result<()> {
//!     let stores = Stores::from_env();
//!     # let folder = std::env::temp_dir().join(format!("forkpoint-first-{}", std::process::id()));
//!     # let home = Location::parse(&folder.display().to_string())?;
//!     # #[cfg(any())]
//!     let home = Location::parse("/data/jobs/first")?;
//!
//!     // The job: one operator with two subtasks. It goes on from its newest snapshot, if there is one.
//!     let job = JobDescription::new("first").operator("counts", 2);
//!     let (job, restored) =
//!         Job::start(&stores, &home, &job, &Start::newest(), JobOptions::default()).await?;
//!     if let Some(restored) = &restored {
//!         for share in &restored.subtasks {
//!             for state in &share.states {
//!                 println!("subtask {}: {} files of `{}`", share.subtask, state.files.len(), state.name);
//!             }
//!         }
//!     }
//!
//!     // One snapshot: every subtask writes its part, and the coordinator commits.
//!     let mut attempt = job.checkpoint().await?;
//!     let mut acks = Vec::new();
//!     for order in attempt.orders() {
//!         // Here in one process. Elsewhere send `order.to_json()` to the subtask; it answers with its
//!         // `ack.to_json()`.
//!         let states = vec![
//!             State::keyed("counts", order.key_groups)
//!                 .shared("table-000001", b"what lives on in later snapshots".to_vec())
//!                 .exclusive("log", b"what only this one needs".to_vec()),
//!         ];
//!         acks.push(SubtaskWriter::new(&stores, order).write(states).await?);
//!     }
//!     for ack in acks {
//!         attempt.acknowledge(ack)?;
//!     }
//!     let snapshot = attempt.commit(&Details::default()).await?.committed()?;
//!     println!("restore from {}", snapshot.directory);
//!     # std::fs::remove_dir_all(folder).ok();
//!     Ok(())
//! }
//! ```
//!
//! What comes next:
//!
//! * A file is given as bytes, as a path, or as a stream. A *shared* one that the snapshot before has too, by size
//!   and digest, is referred to and not sent again; `order.reusable` lists them, [`writer::State::reuse`] names one
//!   without reading it.
//! * [`writer::SubtaskRestore`] is what a subtask gets when the job is started again, with any number of subtasks;
//!   `fetch` brings its files to this machine, each compared with its digest.
//! * [`writer::Start::newest_or`] starts a new job from another one's snapshot: in claim, no-claim or legacy mode.
//! * [`writer::Retention`] and [`writer::Job::retain`] remove old checkpoints; `forkpoint clean` what attempts that
//!   failed have left. `forkpoint show`, `verify`, `why`, `ls` and `fork` work on these snapshots as on Flink's.
//! * A coordinator that gets [`writer::CommitOutcome::Lost`] is no longer the only one, and starts again.
//!
//! `examples/stream_processor.rs` and `examples/training_checkpoint.rs` are larger programs; [`writer`] says what is
//! guaranteed, and [`snapshot::native`] what is written.
//!
//! # Keep job artefacts
//!
//! `blob::BlobServer` owns the jars and messages of jobs: references are counted, what nobody holds goes after
//! a while, and what must survive lies in an HA store with a chain of manifests.
//!
//! # Features
//!
//! `cli` (default): the `forkpoint` command. `blob` (default): a store for job artefacts, its server, client and
//! cache. A library user builds with `default-features = false` and adds what is needed.

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
pub mod writer;

pub use error::{Error, ErrorKind, Result};
