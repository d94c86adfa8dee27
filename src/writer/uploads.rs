//! Lists of what a subtask has uploaded for a snapshot that is not complete yet, so that the next attempt
//! need not send it again. Hints: a digest proves what they say, a look that it is there.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::TryStreamExt;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::error::{ErrorKind, Result};
use crate::ownership::MIN_AGE_MS;
use crate::snapshot::native::{ManifestKind, ManifestScope};
use crate::store::Stores;

use super::names;
use super::order::{FileRef, SubtaskOrder, to_json};

const VERSION: u32 = 1;
/// Largest list that is read, in bytes.
const LIMIT_BYTES: u64 = 16 * 1024 * 1024;
/// A list is written when so many bytes were uploaded since the last one...
const EVERY_BYTES: u64 = 64 * 1024 * 1024;
/// No list has more entries, so that each can be read.
const ENTRIES_AT_MOST: usize = 5_000;
/// ...or so much time has gone by.
const EVERY: Duration = Duration::from_secs(1);
/// Older files are not referred to: half of the age below which a clean deletes none, so that an attempt
/// has the other half to be committed.
const USE_WITHIN_MS: u64 = MIN_AGE_MS / 2;

/// One uploaded file.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    version: u32,
    written_unix_ms: u64,
    scope: ManifestScope,
    #[serde(flatten)]
    file: FileRef,
}

/// Writes the lists of one subtask for one attempt.
pub(super) struct UploadLists<'a> {
    stores: &'a Stores,
    order: &'a SubtaskOrder,
    nonce: u64,
    /// Nothing is written for less.
    from_bytes: u64,
    state: Mutex<Unlisted>,
}

struct Unlisted {
    entries: Vec<Entry>,
    bytes: u64,
    /// All that was uploaded.
    total: u64,
    since: Instant,
    lists: u64,
}

impl<'a> UploadLists<'a> {
    pub(super) fn new(
        stores: &'a Stores,
        order: &'a SubtaskOrder,
        nonce: u64,
        from_bytes: u64,
    ) -> UploadLists<'a> {
        UploadLists {
            stores,
            order,
            nonce,
            from_bytes,
            state: Mutex::new(Unlisted {
                entries: Vec::new(),
                bytes: 0,
                total: 0,
                since: Instant::now(),
                lists: 0,
            }),
        }
    }

    /// Takes a file that was uploaded, and writes a list if it is time. A list that cannot be written
    /// fails nothing: it is a hint.
    pub(super) async fn add(&self, file: &FileRef, scope: ManifestScope) {
        // What is for a user is no other snapshot's to refer to.
        if self.order.kind == ManifestKind::Savepoint {
            return;
        }
        let due = {
            let mut state = self.lock();
            state.entries.push(Entry {
                version: VERSION,
                written_unix_ms: now(),
                scope,
                file: file.clone(),
            });
            state.bytes = state.bytes.saturating_add(file.size);
            state.total = state.total.saturating_add(file.size);
            state.bytes >= EVERY_BYTES || state.since.elapsed() >= EVERY
        };
        if due {
            self.flush().await;
        }
    }

    /// Writes what is not listed yet.
    pub(super) async fn flush(&self) {
        loop {
            match self.flush_one().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(e) => {
                    let at = &self.order.directory;
                    tracing::warn!(%at, error = %e, "another attempt may have to upload again");
                    return;
                }
            }
        }
    }

    /// Writes one list; false if there is nothing to list.
    async fn flush_one(&self) -> Result<bool> {
        let (text, counter) = {
            let mut state = self.lock();
            if state.total < self.from_bytes || state.entries.is_empty() {
                return Ok(false);
            }
            let most = state.entries.len().min(ENTRIES_AT_MOST);
            let mut text = Vec::new();
            for entry in state.entries.drain(..most) {
                text.extend(to_json(&entry)?);
                text.push(b'\n');
            }
            state.bytes = 0;
            state.since = Instant::now();
            state.lists += 1;
            (text, state.lists)
        };
        let order = self.order;
        let folder = names::uploads_of(&order.home, &order.operator, order.subtask)?;
        let name = names::upload_list(order.number, &order.attempt, self.nonce, counter);
        let at = folder.join(&name)?;
        self.stores.put(&at, Bytes::from(text), true).await?;
        Ok(true)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Unlisted> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

pub(super) fn now() -> u64 {
    u64::try_from(clock::unix_millis()).unwrap_or(u64::MAX)
}

/// What earlier attempts at this snapshot have uploaded for this subtask, as far as it can be read. One
/// listing, and a read per list.
///
/// # Errors
///
/// `Invalid` if there can be no such list.
pub(super) async fn earlier_uploads(
    stores: &Stores,
    order: &SubtaskOrder,
) -> Result<Vec<(FileRef, ManifestScope)>> {
    let folder = names::uploads_of(&order.home, &order.operator, order.subtask)?;
    let listed: Vec<_> = match stores.list_stream(&folder)?.try_collect().await {
        Ok(listed) => listed,
        Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
        Err(e) => {
            tracing::warn!(%folder, error = %e, "what was uploaded before may be uploaded again");
            Vec::new()
        }
    };
    let mut found = Vec::new();
    for (at, _) in listed {
        if names::number_of_uploads(&at) != Some(order.number) {
            continue;
        }
        let bytes = match stores.read(&at, LIMIT_BYTES).await {
            // Its snapshot was completed just now.
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            Err(e) => {
                tracing::warn!(%at, error = %e, "what was uploaded before may be uploaded again");
                continue;
            }
            Ok(bytes) => bytes,
        };
        for line in bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice::<Entry>(line) {
                Ok(entry) if is_usable(&entry, order, now()) => {
                    found.push((entry.file, entry.scope));
                }
                Ok(_) => {}
                Err(e) => tracing::warn!(%at, %e, "an entry is unreadable and proves nothing"),
            }
        }
    }
    Ok(found)
}

/// Only what this job wrote where it writes, and that no clean has any reason to delete for long.
fn is_usable(entry: &Entry, order: &SubtaskOrder, now: u64) -> bool {
    entry.version == VERSION
        && order.home.contains(&entry.file.location)
        && now.saturating_sub(entry.written_unix_ms) < USE_WITHIN_MS
}
