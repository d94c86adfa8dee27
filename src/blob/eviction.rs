//! Space in a local directory: what may be given up so that something new fits, and why the rest may
//! not. Only what can be fetched again goes, and never what a reader has pinned.

use serde::Serialize;

use super::key::{BlobKey, Moment};

/// A complete local file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedFile {
    /// The blob.
    pub key: BlobKey,
    /// Handles that are open on it.
    pub pins: u32,
    /// References to its job in this process.
    pub job_references: u32,
    /// True if another source still has it: the HA store, or the server while it holds it.
    pub refetchable: bool,
    /// When it was last handed out.
    pub last_used: Moment,
    /// When the last reference to its job went, while there is none.
    pub unused_since: Option<Moment>,
}

/// How much may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceRule {
    /// `blob.local.max-bytes`: most bytes of files and reservations. 10 GiB.
    pub max_bytes: u64,
    /// `blob.local.min-free`: bytes that must stay free on the file system.
    pub min_free: u64,
}

impl Default for SpaceRule {
    fn default() -> Self {
        SpaceRule {
            max_bytes: 10 << 30,
            min_free: 0,
        }
    }
}

/// What is used now, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// By complete files.
    pub used: u64,
    /// By reservations of transfers under way, written or not.
    pub reserved: u64,
    /// Free on the file system, reservations not taken off.
    pub free: u64,
}

/// Why a file goes or stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvictionReason {
    /// Goes: its job has no reference here; the longest unused first.
    JobUnused,
    /// Goes: it was used least recently.
    LeastRecentlyUsed,
    /// Stays: a reader is on it.
    Pinned,
    /// Stays: nobody else has it.
    OnlyCopy,
}

/// Files to give up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// In this order, with the reason.
    pub files: Vec<(BlobKey, EvictionReason)>,
    /// Their bytes.
    pub bytes: u64,
}

/// It does not fit, whatever is given up. Nothing is to be given up then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct NoSpace {
    /// Bytes asked for.
    pub wanted: u64,
    /// Bytes that would still be missing.
    pub missing: u64,
    /// Bytes that readers have pinned.
    pub pinned: u64,
    /// Bytes that nobody else has.
    pub only_copies: u64,
}

fn verdict(file: &CachedFile) -> EvictionReason {
    match file {
        f if f.pins > 0 => EvictionReason::Pinned,
        f if !f.refetchable => EvictionReason::OnlyCopy,
        f if f.job_references == 0 => EvictionReason::JobUnused,
        _ => EvictionReason::LeastRecentlyUsed,
    }
}

/// Chooses what to give up so that `wanted` bytes can be reserved: files of unused jobs first, the
/// longest unused first, then those used least recently; no more than needed.
///
/// # Errors
///
/// [`NoSpace`] with what blocks.
pub fn make_room(
    files: &[CachedFile],
    space: Space,
    rule: SpaceRule,
    wanted: u64,
) -> Result<Eviction, NoSpace> {
    let taken = space.used.saturating_add(space.reserved);
    let over = taken.saturating_add(wanted).saturating_sub(rule.max_bytes);
    let floor = rule
        .min_free
        .saturating_add(space.reserved)
        .saturating_add(wanted);
    let mut missing = over.max(floor.saturating_sub(space.free));

    let mut candidates = Vec::new();
    let (mut pinned, mut only_copies) = (0u64, 0u64);
    for file in files {
        let size = file.key.digest.size;
        match verdict(file) {
            EvictionReason::Pinned => pinned = pinned.saturating_add(size),
            EvictionReason::OnlyCopy => only_copies = only_copies.saturating_add(size),
            reason => {
                let since = match reason {
                    EvictionReason::JobUnused => file.unused_since.unwrap_or(file.last_used),
                    _ => file.last_used,
                };
                candidates.push((reason, since, file));
            }
        }
    }
    candidates.sort_by_key(|(reason, since, file)| (*reason, *since, &file.key));
    let mut eviction = Eviction {
        files: Vec::new(),
        bytes: 0,
    };
    for (reason, _, file) in candidates {
        if missing == 0 {
            break;
        }
        let size = file.key.digest.size;
        missing = missing.saturating_sub(size);
        eviction.bytes = eviction.bytes.saturating_add(size);
        eviction.files.push((file.key.clone(), reason));
    }
    match missing {
        0 => Ok(eviction),
        _ => Err(NoSpace {
            wanted,
            missing,
            pinned,
            only_copies,
        }),
    }
}
