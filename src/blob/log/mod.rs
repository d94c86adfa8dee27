//! Logs of processes in the blob store: immutable parts, and an index that says which parts a log is made of.
//!
//! A log that grew costs its tail. Parts and index are re-creatable blobs of a job, held by a lease of the log, which
//! each publication renews: the log of a node that is gone lapses. What a new index does not name is given back and
//! goes with staged cleanup, so that a reader that has the old index finds its parts for a retention interval.

mod index;
mod store;

pub use index::{LogIndex, LogName, LogPart};
pub use store::{LogConfig, LogEntry, LogStore};
