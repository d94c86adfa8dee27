//! Job artefacts with counted references, staged cleanup and a durable copy in an HA store: the blob
//! store that Flink's FLIP-19 describes.
//!
//! # What is here
//!
//! The decisions, as pure functions over plain data; time and chance are arguments, nothing does I/O.
//!
//! - Names and layouts ([`BlobKey`], [`ObjectName`], [`StorePath`], [`LocalPath`]): a blob is found by
//!   job and content; paths are printed from types and parsed back strictly.
//! - The owner's memory ([`Registry`]): batches of uploads whose members become visible together,
//!   references as sets of holders, events of jobs, staged cleanup ([`Registry::plan_sweep`] says why
//!   each blob stays or goes). [`invariants`] says what must be true after every step.
//! - The HA store's protocol ([`Claim`], [`Commit`], [`Sweep`]) as step machines over an abstract
//!   store, and the [`Manifest`] that they move forward. A test explores all interleavings of two owners
//!   with crashes and lost replies, and that each safeguard is needed.
//! - Recovery ([`recover`]) from sealed manifests and listings to actions; it downloads nothing.
//! - Eviction ([`make_room`]) in a directory with a size limit.
//! - The [`wire`] types of the HTTP protocol: calls, ranges, bodies, problem documents.
//!
//! # What is not here yet
//!
//! Everything that does I/O: the local store (publishing, verification, lock, `keep` or delete on exit),
//! the edge that sends the protocol's requests to an object store, the probe of its abilities, the HTTP server and
//! client, the cache with its sources. Nor are there yet: offloading of large messages, logs in parts,
//! scrubbing, metrics, tokens and TLS, commands. Reservations of names for direct uploads are part of the
//! manifest, but nothing makes any.
//!
//! # Decisions
//!
//! One owner per cluster id. Re-creatable blobs are known in memory only and are not put into the HA store
//! unless asked for. A blob that nobody holds stays for `blob.retention.interval` (30 minutes) at least, and for
//! that and one sweep at most, unless a reader or an upload session needs it. An ended job's blobs go at once.

mod chain;
mod eviction;
pub mod invariants;
mod key;
mod layout;
mod lifecycle;
mod manifest;
#[cfg(test)]
mod model;
mod recovery;
mod registry;
mod sweep;
mod uploads;
pub mod wire;

pub use chain::{Ask, Claim, Commit, Ledger, Reply, Sweep, Verdict};
pub use eviction::{CachedFile, Eviction, EvictionReason, NoSpace, Space, SpaceRule, make_room};
pub use key::{
    BlobKey, ClusterId, Digest, Digester, DisplayName, JobId, LONGEST_DISPLAY_NAME, LONGEST_ID,
    LeaseId, Moment, ObjectName, ReceiverId, SessionId,
};
pub use layout::{LAYOUT_VERSION, LocalPath, StorePath};
pub use lifecycle::{BlobState, Class, Holder, JobEvent, JobState, Outcome, Refusal, Settings};
pub use manifest::{
    Batch, Content, Entry, Held, LARGEST_MANIFEST, MANIFEST_VERSION, Manifest, Reservation,
};
pub use recovery::{Action, Found, Listed, Recovery, recover};
pub use registry::{Blob, Effect, Job, Registry};
pub use sweep::{SweepDecision, SweepReason};
pub use uploads::{Begun, Planned, Session, Staged};
