//! The local directory: complete, verified files at paths that are functions of job and content.
//!
//! Bytes arrive in `tmp/`, are hashed as they come, made durable, and get their path by a rename, so that no
//! reader ever sees a part of a file. What goes is renamed into `trash/` first and unlinked then. One process
//! at a time: `LOCK` keeps a second one out. Nothing here waits for a network, and nothing decides what may go.

mod blocks;
mod incoming;
mod mark;
mod quarantine;
mod read;
mod space;
mod temporary;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::clock;
use crate::error::{Error, ErrorKind, Result};

use super::eviction::SpaceRule;
use super::key::{BlobKey, Moment};
use super::layout::LocalPath;
use super::recovery::Listed;

pub(crate) use blocks::{BLOCK_BYTES, BlockDigester, Blocks};
pub(crate) use incoming::{Complete, Incoming};
#[cfg(feature = "cli")]
pub(crate) use mark::check_directory;
pub(crate) use space::{Reserved, STEP_BYTES};
pub(crate) use temporary::Temporary;

/// What becomes of the files when the process ends in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnExit {
    /// They are removed, except for the quarantine.
    #[default]
    Delete,
    /// They stay, and are verified before their first use by the next process.
    Keep,
}

/// Settings of a local directory.
#[derive(Debug, Clone)]
pub struct LocalOptions {
    /// `blob.storage.directory`: nothing else may live there.
    pub directory: PathBuf,
    /// `blob.local.max-bytes` and `blob.local.min-free`.
    pub space: SpaceRule,
    /// `blob.local.verify`: a file is read and compared before its first use, when its inode, size or
    /// modification time has changed, and when this time has passed since. 4 hours.
    pub verify_again_after: Duration,
    /// `blob.local.on-exit`.
    pub on_exit: OnExit,
    /// Files and names are made durable before they are used: what a server needs. A cache does without, since
    /// a file that a crash has torn does not have its digest.
    pub(crate) durable: bool,
    /// Most damaged copies that the quarantine keeps; the oldest go. 64.
    pub most_quarantined: usize,
}

impl LocalOptions {
    /// The defaults, in `directory`.
    pub fn new(directory: impl Into<PathBuf>) -> LocalOptions {
        LocalOptions {
            directory: directory.into(),
            space: SpaceRule::default(),
            verify_again_after: Duration::from_secs(4 * 60 * 60),
            on_exit: OnExit::default(),
            durable: true,
            most_quarantined: 64,
        }
    }
}

/// How a file looked when it was verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(meta: &fs::Metadata) -> Stamp {
        Stamp {
            inode: meta.ino(),
            size: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
        }
    }
}

#[derive(Debug)]
struct Known {
    size: u64,
    verified: Option<(Stamp, Instant, Arc<Blocks>)>,
    last_used: Moment,
}

#[derive(Debug, Default)]
struct State {
    files: HashMap<BlobKey, Known>,
    used: u64,
    reserved: u64,
}

/// A file that is open and whose blocks are known.
#[derive(Debug, Clone)]
pub(crate) struct Copy {
    pub(crate) file: Arc<File>,
    pub(crate) blocks: Arc<Blocks>,
    pub(crate) path: PathBuf,
}

/// How a copy is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Read and compared first where that is due.
    WhereDue,
    /// Read and compared in any case.
    Again,
    /// The same, and a damaged one stays where it is.
    Only,
}

/// What a look at a copy gives.
#[derive(Debug)]
pub(crate) enum Opened {
    /// Verified, now or before.
    Copy(Copy),
    /// There is none.
    Absent,
    /// It was damaged, and is in the quarantine unless it was only looked at; what was wrong.
    Damaged(String),
}

/// One local directory, locked.
#[derive(Debug)]
pub(crate) struct LocalStore {
    options: LocalOptions,
    /// Held as long as this lives.
    lock: File,
    state: Mutex<State>,
    /// Held while files get and leave their paths, so that what was looked at is what is moved.
    moves: Mutex<()>,
}

/// True if the medium did not give what it holds.
pub(crate) fn is_medium(e: &io::Error) -> bool {
    e.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// Our error for one of the file system's.
pub(crate) fn io_error(e: io::Error, operation: &'static str, at: &Path) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Refused,
        _ => ErrorKind::Unavailable,
    };
    let full = kind == ErrorKind::Refused;
    let error = Error::new(kind, e.to_string()).during(operation);
    let error = error.at(at.display()).caused_by(e);
    match full {
        true => error.hint("free some space, or move blob.storage.directory"),
        false => error,
    }
}

/// Makes names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|f| f.sync_all());
    synced.map_err(|e| io_error(e, "sync", folder))
}

impl LocalStore {
    /// Locks the directory, makes what is missing of it, removes what a process before left half done, and
    /// lists the rest.
    ///
    /// # Errors
    ///
    /// `Refused` if another process has it, and if it is somebody else's, in which nothing is made then;
    /// `Unsupported` for a later layout; what the file system answers.
    pub(crate) fn open(options: LocalOptions) -> Result<(LocalStore, Vec<Listed>)> {
        let root = options.directory.clone();
        mark::check_directory(&root)?;
        for folder in [""].into_iter().chain(mark::FOLDERS) {
            let folder = root.join(folder);
            fs::create_dir_all(&folder).map_err(|e| io_error(e, "make", &folder))?;
        }
        let lock = mark::take_lock(&root)?;
        mark::mark(&root)?;
        let store = LocalStore {
            options,
            lock,
            state: Mutex::default(),
            moves: Mutex::default(),
        };
        for folder in ["tmp", "trash"] {
            store.wipe(folder)?;
        }
        let listed = store.list()?;
        let mut state = store.state();
        for found in &listed {
            if let Ok(LocalPath::Blob(job, digest)) = LocalPath::parse(&found.path) {
                state.used = state.used.saturating_add(found.size);
                let known = Known {
                    size: found.size,
                    verified: None,
                    last_used: Moment(0),
                };
                state.files.insert(BlobKey { job, digest }, known);
            }
        }
        drop(state);
        Ok((store, listed))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moves(&self) -> MutexGuard<'_, ()> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.options.directory
    }

    /// As [`io_error`], and says so if the whole directory went while this process had it.
    pub(crate) fn fails(&self, e: io::Error, operation: &'static str, at: &Path) -> Error {
        let gone = |e: io::Error| e.kind() == io::ErrorKind::NotFound;
        match fs::metadata(self.root()).is_err_and(gone) {
            true => Error::new(ErrorKind::Unavailable, "the local directory is gone")
                .during(operation)
                .at(self.root().display())
                .hint("put it back, or start the process that owns it again")
                .caused_by(e),
            false => io_error(e, operation, at),
        }
    }

    fn path(&self, path: &LocalPath) -> PathBuf {
        self.root().join(path.to_string())
    }

    fn blob_path(&self, key: &BlobKey) -> PathBuf {
        self.path(&LocalPath::Blob(key.job.clone(), key.digest))
    }

    /// Removes the files in a folder of ours that a start may remove unseen. What is no name of ours stays.
    fn wipe(&self, folder: &str) -> Result<()> {
        let folder_path = self.root().join(folder);
        let fail = |e| io_error(e, "wipe", &folder_path);
        for entry in fs::read_dir(&folder_path).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name();
            let ours = name
                .to_str()
                .and_then(|n| LocalPath::parse(&format!("{folder}/{n}")).ok());
            if ours.is_some_and(|p| p.is_wiped_at_start()) {
                fs::remove_file(entry.path()).map_err(fail)?;
            }
        }
        Ok(())
    }

    /// Everything in the directory.
    fn list(&self) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        let mut pending = vec![PathBuf::new()];
        while let Some(folder) = pending.pop() {
            let at = self.root().join(&folder);
            let fail = |e| io_error(e, "list", &at);
            for entry in fs::read_dir(&at).map_err(fail)? {
                let entry = entry.map_err(fail)?;
                let below = folder.join(entry.file_name());
                let meta = entry.metadata().map_err(fail)?;
                if meta.is_dir() {
                    pending.push(below);
                    continue;
                }
                let millis = u64::try_from(meta.mtime()).unwrap_or(0);
                listed.push(Listed {
                    path: below.to_string_lossy().into_owned(),
                    size: meta.len(),
                    modified: Moment(millis.saturating_mul(1000)),
                });
            }
        }
        listed.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(listed)
    }

    /// The blobs that have a file here, with its size in bytes.
    pub(crate) fn keys(&self) -> Vec<(BlobKey, u64)> {
        let state = self.state();
        state
            .files
            .iter()
            .map(|(k, f)| (k.clone(), f.size))
            .collect()
    }

    /// True if a copy must be read and compared before it is used, or if there is none. Looks at memory only.
    pub(crate) fn is_due(&self, key: &BlobKey) -> bool {
        let state = self.state();
        let verified = state.files.get(key).and_then(|k| k.verified.as_ref());
        verified.is_none_or(|(_, at, _)| at.elapsed() >= self.options.verify_again_after)
    }

    /// Opens a copy that was verified, now or before.
    ///
    /// # Errors
    ///
    /// What the file system answers; a copy that is merely not there is none.
    pub(crate) fn open_copy(&self, key: &BlobKey, now: Moment, look: Look) -> Result<Opened> {
        let damaged = |what: String, inode: u64| match look {
            Look::Only => Ok(Opened::Damaged(what)),
            _ => self.damaged(key, &what, Some(inode)),
        };
        let path = self.blob_path(key);
        let fail = |e| io_error(e, "read", &path);
        let no_link = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(no_link)
            .open(&path);
        let mut file = match opened {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.forget(key);
                return Ok(Opened::Absent);
            }
            Err(e) => {
                // No file, or a medium that cannot be read. Any other failure, such as too many open files, says
                // nothing of the copy.
                let lies = fs::symlink_metadata(&path).map_err(fail)?;
                return match !lies.is_file() || is_medium(&e) {
                    true => damaged(format!("it cannot be opened: {e}"), lies.ino()),
                    false => Err(fail(e)),
                };
            }
        };
        let meta = file.metadata().map_err(fail)?;
        let stamp = Stamp::of(&meta);
        if !meta.is_file() || stamp.size != key.digest.size {
            return damaged(format!("it has {} bytes", stamp.size), stamp.inode);
        }
        let fresh = |at: &Instant| at.elapsed() < self.options.verify_again_after;
        let mut state = self.state();
        let known = state.files.get_mut(key);
        let blocks = known.and_then(|k| {
            k.last_used = now;
            let (then, at, blocks) = k.verified.as_ref()?;
            (look == Look::WhereDue && *then == stamp && fresh(at)).then(|| Arc::clone(blocks))
        });
        drop(state);
        let blocks = match blocks {
            Some(blocks) => blocks,
            None => {
                let mut digester = BlockDigester::default();
                let mut buffer = vec![0; usize::try_from(BLOCK_BYTES).unwrap_or(1 << 16)];
                loop {
                    match file.read(&mut buffer) {
                        Ok(0) => break,
                        Ok(n) => digester.update(buffer.get(..n).unwrap_or_default()),
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        // A medium that cannot be read has damaged the copy as well.
                        Err(e) if is_medium(&e) => {
                            return damaged(format!("it cannot be read: {e}"), stamp.inode);
                        }
                        Err(e) => return Err(fail(e)),
                    }
                }
                let (digest, blocks) = digester.finish();
                if digest != key.digest {
                    return damaged(format!("its bytes are those of {digest}"), stamp.inode);
                }
                let blocks = Arc::new(blocks);
                self.learn(key, stamp, Arc::clone(&blocks), now);
                blocks
            }
        };
        Ok(Opened::Copy(Copy {
            file: Arc::new(file),
            blocks,
            path,
        }))
    }

    fn learn(&self, key: &BlobKey, stamp: Stamp, blocks: Arc<Blocks>, now: Moment) {
        let mut state = self.state();
        let known = Known {
            size: stamp.size,
            verified: Some((stamp, Instant::now(), blocks)),
            last_used: now,
        };
        let before = state.files.insert(key.clone(), known);
        let before = before.map_or(0, |k| k.size);
        state.used = state.used.saturating_sub(before).saturating_add(stamp.size);
    }

    fn forget(&self, key: &BlobKey) {
        let mut state = self.state();
        if let Some(known) = state.files.remove(key) {
            state.used = state.used.saturating_sub(known.size);
        }
    }

    /// Takes a copy off its path at once, and removes it. One that is not there is fine.
    ///
    /// # Errors
    ///
    /// What the file system answers; the copy may then still be at its path.
    pub(crate) fn remove(&self, key: &BlobKey) -> Result<()> {
        if let Some(trash) = self.take_off(key)? {
            self.throw_away(key, &trash);
        }
        Ok(())
    }

    /// Takes a copy off its path, and says where it lies now. Short, whatever the size of the file.
    ///
    /// # Errors
    ///
    /// What the file system answers; the copy may then still be at its path.
    pub(crate) fn take_off(&self, key: &BlobKey) -> Result<Option<PathBuf>> {
        let trash = self.path(&LocalPath::Trash(clock::random_id()));
        let path = self.blob_path(key);
        let _moves = self.moves();
        let moved = fs::rename(&path, &trash);
        match moved {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.forget(key);
                return Ok(None);
            }
            Err(e) => return Err(io_error(e, "remove", &path)),
        }
        self.forget(key);
        Ok(Some(trash))
    }

    /// Removes what [`take_off`](LocalStore::take_off) took off.
    pub(crate) fn throw_away(&self, key: &BlobKey, trash: &Path) {
        // It is off its path: what fails now is done by the next start.
        if let Err(error) = fs::remove_file(trash) {
            tracing::warn!(at = %trash.display(), %error, "a file stays in the trash");
        }
        // Folders that became empty; any other stays.
        let path = self.blob_path(key);
        let folders = path.ancestors().skip(1).take(2);
        for folder in folders {
            if fs::remove_dir(folder).is_err() {
                break;
            }
        }
    }

    /// Ends the use of the directory: removes the files, or leaves them for the next process.
    ///
    /// # Errors
    ///
    /// What the file system answers.
    pub(crate) fn close(&self) -> Result<()> {
        if self.options.on_exit == OnExit::Delete {
            for (key, _) in self.keys() {
                self.remove(&key)?;
            }
            for folder in ["tmp", "trash"] {
                self.wipe(folder)?;
            }
        }
        let unlocked = self.lock.unlock();
        unlocked.map_err(|e| io_error(e, "unlock", self.root()))
    }
}
