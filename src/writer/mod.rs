//! Snapshots for engines that have no format of their own: written by many subtasks at once, incremental,
//! committed by one of them or by nobody, restored at any number of subtasks, safely owned.
//!
//! A [`Job`] is what its coordinator has: where its snapshots are, what the next one may refer to. It begins
//! attempts; a [`SnapshotWriter`] is one. Each subtask, in a task, a process or on a machine of its own, gets a
//! [`SubtaskOrder`], writes with a [`SubtaskWriter`], and answers with an [`Acknowledgement`]; both are small
//! JSON documents that the engine carries by its own means. When all have answered the coordinator commits:
//! it writes the manifest (`crate::snapshot::native`), last and create-if-absent.
//!
//! # Guarantees
//!
//! Each is a test, in `tests/`:
//!
//! 1. Of two attempts at one number exactly one is committed, and the other learns so; a commit whose answer
//!    was lost recognises its own manifest (`writer::of_two_coordinators_one_wins_and_the_other_learns_so`).
//! 2. Whatever is killed whenever: there is a complete snapshot, and none that was reported as committed is
//!    lost (`writer_kill::nothing_that_was_acknowledged_is_lost`).
//! 3. What attempts leave is known to a clean as orphans, and one clean removes it (the same).
//! 4. What an attempt that failed has uploaded is not sent again (`writer::an_attempt_goes_on_where_another_failed`).
//! 5. The first checkpoint after a restore without claim refers to nothing outside the job's folder; a savepoint
//!    is no such checkpoint (`writer::a_job_started_without_claim_stands_alone_after_its_first_checkpoint`).
//! 6. Files that are fetched are what was written, by size and SHA-256 (`writer::a_damaged_file_is_never_restored`).
//!
//! # How two coordinators get along
//!
//! A checkpoint has the number after that of the newest one that its coordinator knows, and its manifest is
//! created only where none is. So every checkpoint follows the one before it, and a coordinator that does not
//! know of another's fails at the next number. An attempt pins what it builds upon until its deadline, and is
//! not committed later: no clean takes that away meanwhile. A note of each commit stays until there is one of a
//! newer checkpoint; by it a coordinator that slept learns that it came too late even where the checkpoint of
//! its number has gone again.

mod assemble;
mod attempt;
mod catalog;
mod coordinator;
mod job;
mod names;
mod order;
mod restore;
mod retention;
mod state;
mod uploads;
mod write;

pub use attempt::{CommitOutcome, CommittedSnapshot, Details, SnapshotWriter};
pub use catalog::{FoundSnapshot, find_snapshots};
pub use coordinator::Job;
pub use job::{JobDescription, JobOptions, OperatorDescription, Source, Start};
pub use order::{
    AcknowledgedFile, AcknowledgedState, Acknowledgement, FileRef, ORDER_VERSION, Origin,
    ReusableFile, SubtaskOrder,
};
pub use restore::{FetchedFile, Restored, RestoredFile, RestoredState, SubtaskRestore};
pub use retention::{Best, Better, Retention};
pub use state::State;
pub use write::{SubtaskWriter, WriteOptions};
