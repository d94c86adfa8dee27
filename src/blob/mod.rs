//! Job artefacts with counted references, staged cleanup and a durable copy in an HA store: the blob
//! store that Flink's FLIP-19 describes.
//!
//! `src/blob/README.md` is the page for those who run it: states, layouts, limits, what is not supported.
//!
//! # Decisions, as pure functions over plain data
//!
//! Time and chance are arguments, nothing here does I/O.
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
//! # Edges, on Unix
//!
//! - The local directory ([`LocalOptions`]): files are hashed as they come, made durable, and published by a
//!   rename; a lock keeps a second process out; what is damaged goes into a quarantine. The digest of each block
//!   of 128 KiB is kept in memory once a file has been verified, so that every block is compared before it is
//!   sent, ranges included; again after a minute, or when the file was touched.
//! - The HA store ([`HaStore`]), which may be any location of [`store`](crate::store): requests of the protocol,
//!   a probe that refuses a store that ignores create-if-absent, transfers that are checked at both ends.
//! - The owner ([`BlobServer`]): sessions, events, reads, [`sweep`](BlobServer::sweep),
//!   [`scrub`](BlobServer::scrub), the start with its recovery. An event whose commit fails is taken back; events
//!   of a job that wait together share a commit. A first commit of a job is acknowledged only after a look for a
//!   later owner, since nothing is sealed that is not there.
//! - The HTTP service ([`HttpService`]): limits in size, number and time, tokens, TLS, health, metrics.
//! - [`client`] talks to it: batches, downloads with ranges, references, events, listings.
//! - [`BlobCache`] keeps verified files for a process that uses blobs, fetched from [`BlobSource`]s in their order:
//!   [`HaSource`], [`ServerSource`].
//! - [`client::BlobClient::offload`] and [`JobGuard::receive`] move large messages; [`LogStore`] logs in immutable parts.
//!
//! ```no_run
//! # #[cfg(unix)]
//! # async fn demo() -> forkpoint::Result<()> {
//! use forkpoint::blob::client::{BlobClient, ClientConfig, Content, Upload};
//! use forkpoint::blob::{BlobCache, CacheConfig, Class, JobId, LocalOptions, ServerSource};
//!
//! let client = BlobClient::new(ClientConfig::new("http://127.0.0.1:7878")?)?;
//! let job = JobId::parse("orders")?;
//! let jar = Upload { name: None, class: Class::Retained, content: Content::File("job.jar".into()) };
//! let shipped = client.upload(&job, &[jar]).await?;
//!
//! let config = CacheConfig::new(LocalOptions::new("/var/tmp/blobs"));
//! let cache = BlobCache::open(config, vec![std::sync::Arc::new(ServerSource::new(client))]).await?;
//! let guard = cache.attach(&job);
//! let file = guard.get(&shipped.digests[0]).await?;
//! println!("{:?} stays as long as this handle lives", file.path());
//! # Ok(()) }
//! ```
//!
//! # What is not here
//!
//! Resumable single members, redirects to signed URLs, leases on jobs, sharing between jobs. Re-creatable blobs
//! are never written to the HA store. Reservations of names for direct uploads are part of the manifest, but
//! nothing makes any. A process that is killed in the middle of an upload in parts leaves parts behind that no
//! listing shows: `forkpoint uploads` or a rule of the bucket removes them.
//!
//! # Decisions
//!
//! One owner per cluster id. Re-creatable blobs are known in memory only and are not put into the HA store. A
//! blob that nobody holds stays for `blob.retention.interval` (30 minutes) at least, and for that and one sweep
//! at most, unless a reader or an upload session needs it. An ended job's blobs go at once.

#[cfg(unix)]
mod cache;
mod chain;
pub mod client;
mod eviction;
mod fail;
#[cfg(unix)]
mod flight;
#[cfg(unix)]
mod ha;
#[cfg(unix)]
mod http;
pub mod invariants;
mod key;
mod layout;
mod lifecycle;
mod listing;
#[cfg(unix)]
mod local;
#[cfg(unix)]
mod log;
mod manifest;
#[cfg(test)]
mod model;
#[cfg(unix)]
mod offload;
mod recovery;
mod registry;
#[cfg(unix)]
mod rollback;
#[cfg(unix)]
mod server;
#[cfg(unix)]
mod source;
mod sweep;
mod uploads;
pub mod wire;

#[cfg(unix)]
pub use cache::{BlobCache, CacheConfig, CacheStats, CachedBlob, JobGuard};
pub use chain::{Ask, Claim, Commit, Ledger, Reply, Sweep, Verdict};
pub use eviction::{CachedFile, Eviction, EvictionReason, NoSpace, Space, SpaceRule, make_room};
#[cfg(unix)]
pub use ha::{
    Comparison, HaStore, InspectedJob, Inspection, Orphan, Owner, StoreAbilities, compare, inspect,
};
#[cfg(all(feature = "cli", unix))]
pub(crate) use ha::{apart, outside_of_stores};
#[cfg(unix)]
pub use http::{HttpConfig, HttpLimits, HttpListener, HttpService, Right, TlsFiles};
#[cfg(all(feature = "cli", unix))]
pub(crate) use key::shortened;
pub use key::{
    BlobKey, ClusterId, Digest, Digester, DisplayName, JobId, LONGEST_DISPLAY_NAME, LONGEST_ID,
    LeaseId, Moment, ObjectName, ReceiverId, SessionId,
};
pub use layout::{LAYOUT_VERSION, LocalPath, StorePath};
pub use lifecycle::{BlobState, Class, Holder, JobEvent, JobState, Outcome, Refusal, Settings};
#[cfg(all(feature = "cli", unix))]
pub(crate) use local::check_directory;
#[cfg(unix)]
pub use local::{LocalOptions, OnExit};
#[cfg(unix)]
pub use log::{LogConfig, LogEntry, LogIndex, LogName, LogPart, LogStore};
pub use manifest::{
    Batch, Content, Entry, Held, LARGEST_MANIFEST, MANIFEST_VERSION, Manifest, Reservation,
};
#[cfg(unix)]
pub use offload::{Message, OffloadRule, Offloaded, Received};
pub use recovery::{Action, Found, Listed, Recovery, RefusedJob, recover};
pub use registry::{Blob, Effect, Job, Registry};
#[cfg(unix)]
pub use server::{
    BlobHandle, BlobServer, Failure, Fenced, Finding, Metrics, Mode, Place, RecoverJobs,
    RecoveryReport, ScrubReport, ServerConfig, SweepReport,
};
#[cfg(unix)]
pub use source::{
    BlobSource, ByteStream, HaSource, ServerSource, SourceError, SourceUse, fetch_file, read_range,
};
#[cfg(all(feature = "cli", unix))]
pub(crate) use source::{check_name, give_name};
pub use sweep::{SweepDecision, SweepReason};
pub use uploads::{Begun, Planned, Session, Staged};
