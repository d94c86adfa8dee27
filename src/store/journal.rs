//! What is done and what is under way, kept beside the copies, so that another run can prove the one
//! and go on with the other.
//!
//! Below a folder of its own lie small objects of a few entries each, one JSON document a line;
//! nothing is ever changed, only added, and entries of later objects stand above those of earlier
//! ones. When all is done the folder is removed.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::error::{Error, ErrorKind, Result};

use super::errors;
use super::location::Location;
use super::open::{Backend, Stores};
use super::receipt::Receipt;
use super::unfinished::{Unfinished, UnfinishedLog};
use super::{OWN_FOLDER, Stat};

/// Largest journal object that is read, in bytes.
const LIMIT_BYTES: u64 = 64 * 1024 * 1024;
/// Journal objects that are read at once.
const READ_AT_ONCE: usize = 16;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Entry {
    Receipt(Receipt),
    Opened(Unfinished),
    Closed(Location),
    /// From now on there may be a commit object.
    Committing(Location),
}

/// A journal below some root.
pub struct Journal {
    stores: Stores,
    root: Location,
    folder: Location,
    run: String,
    objects: AtomicU32,
    /// There was a journal already.
    found: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    receipts: HashMap<Location, Receipt>,
    unfinished: HashMap<Location, Unfinished>,
    /// The journal objects that say that there may be a commit object.
    committing: HashSet<Location>,
    /// Those that are known to say no such thing.
    plain: HashSet<Location>,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

impl Journal {
    /// The journal `id` below `root`, with all that earlier runs have written. One listing, and one
    /// read per journal object, 16 at once. A line that does not parse proves nothing and is passed over.
    ///
    /// # Errors
    ///
    /// If there is a journal that cannot be read.
    pub async fn open(stores: &Stores, root: &Location, id: &str) -> Result<Journal> {
        let folder = root.join(&format!("{OWN_FOLDER}/{id}"))?;
        // A link would lead the journal, and its removal, to somebody else's files.
        if stores.real(&folder).await?
            != stores
                .real(root)
                .await?
                .join(&format!("{OWN_FOLDER}/{id}"))?
        {
            return Err(Error::refused("the folder of the journal is a link").at(&folder));
        }
        let mut journal = Journal {
            stores: stores.clone(),
            root: root.clone(),
            folder,
            run: format!(
                "{:013}-{:08x}",
                clock::unix_millis(),
                clock::random_id() >> 32
            ),
            objects: AtomicU32::new(0),
            found: false,
            state: Mutex::default(),
        };
        let mut objects = journal.list().await?;
        journal.found = !objects.is_empty();
        objects.sort_by(|(a, _), (b, _)| a.cmp(b));
        let is_ours = |(at, stat): &(Location, Stat)| {
            let ours = journal.is_ours(at) && stat.size <= LIMIT_BYTES;
            if !ours {
                // What nobody of us wrote proves nothing.
                tracing::warn!(%at, "a stranger in the journal is passed over");
            }
            ours
        };
        // Many workers leave many objects, which come in their order all the same.
        let mut contents = stream::iter(objects.into_iter().filter(is_ours))
            .map(|(at, _)| async move {
                let read = stores.read(&at, LIMIT_BYTES).await;
                (at, read)
            })
            .buffered(READ_AT_ONCE);
        while let Some((at, read)) = contents.next().await {
            let bytes = match read {
                // Another run has finished meanwhile.
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                other => other?,
            };
            journal.with_state(|state| state.plain.insert(at.clone()));
            for line in bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
                match serde_json::from_slice(line) {
                    Ok(entry) => journal.apply(entry, Some(&at)),
                    Err(e) => {
                        tracing::warn!(%at, %e, "a journal entry is unreadable and proves nothing")
                    }
                }
            }
        }
        drop(contents);
        Ok(journal)
    }

    fn with_state<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes up what the journal object `written` says.
    fn apply(&self, entry: Entry, written: Option<&Location>) {
        self.with_state(|state| match entry {
            Entry::Receipt(receipt) => {
                state.unfinished.remove(&receipt.destination);
                state.receipts.insert(receipt.destination.clone(), receipt);
            }
            Entry::Opened(unfinished) => {
                state
                    .unfinished
                    .insert(unfinished.destination.clone(), unfinished);
            }
            Entry::Closed(destination) => {
                state.unfinished.remove(&destination);
            }
            Entry::Committing(_) => {
                if let Some(written) = written {
                    state.plain.remove(written);
                    state.committing.insert(written.clone());
                }
            }
        });
    }

    async fn list(&self) -> Result<Vec<(Location, Stat)>> {
        match self.stores.list(&self.folder).await {
            Err(e) if errors::is_missing_object(&e) => Ok(Vec::new()),
            other => other,
        }
    }

    /// True for the name of a journal object, directly in the journal's folder.
    fn is_ours(&self, at: &Location) -> bool {
        let Some(name) = self
            .folder
            .strip(at)
            .and_then(|name| name.strip_suffix(".jsonl"))
        else {
            return false;
        };
        let parts: Vec<&str> = name.split('-').collect();
        let hex = |text: &&str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
        parts.len() == 3 && parts.iter().all(hex)
    }

    /// The receipt that an earlier run wrote for a destination.
    pub fn receipt(&self, destination: &Location) -> Option<Receipt> {
        self.with_state(|state| state.receipts.get(destination).cloned())
    }

    fn under_way(&self, destination: &Location) -> Option<Unfinished> {
        self.with_state(|state| state.unfinished.get(destination).cloned())
    }

    /// All copies that an earlier run has left under way.
    pub fn unfinished(&self) -> Vec<Unfinished> {
        self.with_state(|state| state.unfinished.values().cloned().collect())
    }

    /// There is a journal, of this run or of one before.
    pub(crate) fn is_there(&self) -> bool {
        self.found || self.objects.load(Ordering::Relaxed) > 0
    }

    /// Somebody was about to write the commit object, and may have.
    pub fn is_committing(&self) -> bool {
        self.with_state(|state| !state.committing.is_empty())
    }

    /// Notes that the commit object `at` is about to be written, or may have been: from now on somebody may be using
    /// what was copied, even when the commit object has gone again. One request. Returns what
    /// [`Journal::take_back`] takes.
    ///
    /// # Errors
    ///
    /// Those of [`Stores::put`].
    pub async fn committing(&self, at: &Location) -> Result<Option<Location>> {
        let entry = || Entry::Committing(at.clone());
        let written = self.write([entry()]).await?;
        self.apply(entry(), written.as_ref());
        Ok(written)
    }

    /// Removes what [`Journal::committing`] has written: this run has not written the commit object, and will not.
    /// What other runs have written stays. One request.
    ///
    /// # Errors
    ///
    /// Those of [`Stores::delete`].
    pub async fn take_back(&self, committing: &Location) -> Result<()> {
        self.stores.delete(committing).await?;
        self.with_state(|state| state.committing.remove(committing));
        self.remove_empty_folders().await;
        Ok(())
    }

    /// Adds receipts. One request. They are not kept in memory: this run knows what it did.
    ///
    /// # Errors
    ///
    /// Those of [`Stores::put`].
    pub async fn add(&self, receipts: Vec<Receipt>) -> Result<()> {
        self.write_plain(receipts.into_iter().map(Entry::Receipt))
            .await
    }

    async fn write_plain(&self, entries: impl IntoIterator<Item = Entry>) -> Result<()> {
        if let Some(at) = self.write(entries).await? {
            self.with_state(|state| state.plain.insert(at));
        }
        Ok(())
    }

    /// Returns the object that was written, if anything was.
    async fn write(&self, entries: impl IntoIterator<Item = Entry>) -> Result<Option<Location>> {
        let mut text = Vec::new();
        for entry in entries {
            serde_json::to_writer(&mut text, &entry)
                .map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
            text.push(b'\n');
        }
        if text.is_empty() {
            return Ok(None);
        }
        let number = self.objects.fetch_add(1, Ordering::Relaxed);
        let at = self
            .folder
            .join(&format!("{}-{number:06}.jsonl", self.run))?;
        self.stores.put(&at, Bytes::from(text), true).await?;
        Ok(Some(at))
    }

    async fn remove_empty_folders(&self) {
        self.stores
            .remove_empty_folders(&self.folder.child("x"), &self.root)
            .await;
    }

    /// Removes the journal. Nothing if nothing was ever written, else one listing and one request per
    /// journal object.
    ///
    /// # Errors
    ///
    /// Those of [`Stores::delete`].
    pub async fn remove(&self) -> Result<()> {
        let rest = self.remove_receipts().await?;
        self.remove_rest(&rest).await
    }

    /// Removes the journal but for what says that there may have been a commit, or what others have written
    /// meanwhile, which may say it: that is returned for [`Journal::remove_rest`]. It must stay until nothing else
    /// says that the copies are those of a fork under way, whom nobody uses. Requests as [`Journal::remove`].
    ///
    /// # Errors
    ///
    /// Those of [`Stores::delete`].
    pub(crate) async fn remove_receipts(&self) -> Result<Vec<Location>> {
        if !self.is_there() {
            return Ok(Vec::new());
        }
        let mut rest = Vec::new();
        for (at, _) in self.list().await? {
            if !self.is_ours(&at) {
                continue;
            }
            match self.with_state(|state| state.plain.contains(&at)) {
                true => self.stores.delete(&at).await?,
                false => rest.push(at),
            }
        }
        let says_so = |at: &Location| self.with_state(|state| state.committing.contains(at));
        rest.sort_by_cached_key(|at| (says_so(at), at.clone()));
        Ok(rest)
    }

    /// Removes what [`Journal::remove_receipts`] has left.
    ///
    /// # Errors
    ///
    /// Those of [`Stores::delete`].
    pub(crate) async fn remove_rest(&self, rest: &[Location]) -> Result<()> {
        for at in rest {
            self.stores.delete(at).await?;
        }
        // Also where nothing was written: a disk without space may have taken the folder and nothing in it.
        self.remove_empty_folders().await;
        Ok(())
    }
}

impl Stores {
    /// Ends all copies that a journal still knows as under way: what a killed run began and no later
    /// one went on with. Two requests for each.
    ///
    /// # Errors
    ///
    /// If one of them could not be ended; the journal still knows it.
    pub async fn undo_unfinished(&self, journal: &Journal) -> Result<()> {
        for unfinished in journal.unfinished() {
            let at = &unfinished.destination;
            let store = self.open(at)?;
            if let Backend::S3(s3) = &store.backend {
                let wire = self.wire(&store)?;
                let ids = match unfinished.token {
                    Some(id) => vec![id],
                    // Noted and perhaps begun, but its id was never heard of.
                    None => s3.open_uploads(wire, at).await?,
                };
                for id in ids {
                    s3.abort_upload(wire, at, &id).await?;
                }
            }
            journal.closed(at).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl UnfinishedLog for Journal {
    async fn find(&self, destination: &Location) -> Result<Option<Unfinished>> {
        Ok(self.under_way(destination))
    }

    async fn opened(&self, unfinished: &Unfinished) -> Result<()> {
        self.write_plain([Entry::Opened(unfinished.clone())])
            .await?;
        self.apply(Entry::Opened(unfinished.clone()), None);
        Ok(())
    }

    async fn closed(&self, destination: &Location) -> Result<()> {
        if self.under_way(destination).is_some() {
            self.write_plain([Entry::Closed(destination.clone())])
                .await?;
            self.apply(Entry::Closed(destination.clone()), None);
        }
        Ok(())
    }
}
