//! Fetching one blob: sources in their order, resumed where a connection breaks, compared at the end. What
//! does not have the digest that was asked for is thrown away, whoever sent it.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use serde::Serialize;

use crate::clock;
use crate::error::{Error, ErrorKind, Result};

use super::super::client::{Waiting, longest_wait};
use super::super::key::BlobKey;
use super::super::local::io_error;
use super::breaker::Breaker;
use super::patience::wait_for;
use super::writing::{FilePart, Part, Writing};
use super::{BlobSource, ByteStream, SourceError};

/// The longest pause between two rounds.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Largest piece that is handed to the writer.
const PIECE_BYTES: usize = 256 << 10;

/// How patient a fetch is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FetchPatience {
    /// Rounds through the sources after the first.
    pub(crate) retries: u32,
    /// The first pause between rounds; it doubles, with jitter.
    pub(crate) backoff: Duration,
    /// How long no byte may come.
    pub(crate) idle: Duration,
}

impl FetchPatience {
    /// Tells a source that it will be asked again, and how long that goes on at most.
    fn tell(
        &self,
        source: &dyn BlobSource,
        why: &Error,
        failed: u32,
        tries: u32,
        pause: Duration,
        wish: Duration,
    ) {
        let longest = longest_wait(failed, tries, self.backoff, LONGEST_PAUSE, wish);
        source.waits(&Waiting::Repeats {
            why: why.to_string(),
            pause,
            longest,
        });
    }
}

/// What a source was asked for and gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceUse {
    /// Its name.
    pub source: String,
    /// Downloads that it was asked to begin or to continue.
    pub asked: u64,
    /// Blobs that it gave, complete and with the right digest.
    pub fetched: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Answers that were not what they must be: another digest, or bytes beyond the end.
    pub wrong: u64,
    /// Connections that broke, and answers that it may have it later.
    pub broken: u64,
}

struct Slot {
    source: Arc<dyn BlobSource>,
    breaker: Mutex<Breaker>,
    asked: AtomicU64,
    fetched: AtomicU64,
    bytes: AtomicU64,
    wrong: AtomicU64,
    broken: AtomicU64,
}

/// Sources in the order in which they are asked.
pub(crate) struct Sources(Vec<Slot>);

impl Sources {
    pub(crate) fn new(sources: Vec<Arc<dyn BlobSource>>) -> Sources {
        let slot = |source| Slot {
            source,
            breaker: Mutex::default(),
            asked: AtomicU64::new(0),
            fetched: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            broken: AtomicU64::new(0),
        };
        Sources(sources.into_iter().map(slot).collect())
    }

    pub(crate) fn usage(&self) -> Vec<SourceUse> {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let usage = |s: &Slot| SourceUse {
            source: s.source.label().to_string(),
            asked: get(&s.asked),
            fetched: get(&s.fetched),
            bytes: get(&s.bytes),
            wrong: get(&s.wrong),
            broken: get(&s.broken),
        };
        self.0.iter().map(usage).collect()
    }

    /// In the order in which they are asked: those that rest come last, and are asked all the same before it is
    /// said that nobody has something.
    fn in_order(&self) -> Vec<&Slot> {
        let now = Instant::now();
        let (resting, awake): (Vec<&Slot>, Vec<&Slot>) =
            self.0.iter().partition(|s| s.breaker().rests(now));
        awake.into_iter().chain(resting).collect()
    }
}

impl Slot {
    fn breaker(&self) -> std::sync::MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, what: &AtomicU64) {
        what.fetch_add(1, Ordering::Relaxed);
    }
}

/// Why one source did not give the blob.
enum Miss {
    Source(SourceError),
    /// It sent something else.
    Wrong(String),
    /// Not its fault: no space, a disk that fails.
    Local(Error),
}

/// Fetches a blob into a part that `begin` makes, and that has its digest.
///
/// # Errors
///
/// `NotFound` if no source has it; `Corrupt` if all that came was something else; `Refused` for a job that is
/// over or no space; `Denied`; `Unavailable`. The message says what each source did.
pub(crate) async fn fetch<P: Part>(
    sources: &Sources,
    key: &BlobKey,
    patience: FetchPatience,
    begin: impl Fn() -> Result<P> + Clone + Send + 'static,
) -> Result<P::Done> {
    let mut round = 0;
    loop {
        let mut misses: Vec<(&Slot, Miss)> = Vec::new();
        // Where there is no other, what has come so far is not given up for a moment's silence.
        let tries = match sources.0.len() {
            1 => patience.retries,
            _ => 0,
        };
        for slot in sources.in_order() {
            match try_source(slot, key, patience, tries, begin.clone()).await {
                Ok(done) => return Ok(done),
                Err(Miss::Local(e)) => return Err(e),
                Err(miss) => misses.push((slot, miss)),
            }
        }
        let wish = misses.iter().filter_map(|(_, m)| match m {
            Miss::Source(SourceError::Transient(_, wish)) => Some(wish.unwrap_or_default()),
            _ => None,
        });
        let wish = wish.max();
        round += 1;
        match wish {
            Some(wish) if round <= patience.retries && sources.0.len() > 1 => {
                let wish = wish.min(LONGEST_PAUSE * 6);
                let pause = clock::backoff(round - 1, patience.backoff, LONGEST_PAUSE).max(wish);
                for (slot, miss) in &misses {
                    if let Miss::Source(SourceError::Transient(e, _)) = miss {
                        patience.tell(&*slot.source, e, round, patience.retries, pause, wish);
                    }
                }
                clock::sleep(pause).await;
            }
            _ => return Err(verdict(key, misses)),
        }
    }
}

/// One source: goes on at the same place as long as it gets further, and `tries` times when it does not.
async fn try_source<P: Part>(
    slot: &Slot,
    key: &BlobKey,
    patience: FetchPatience,
    tries: u32,
    begin: impl FnOnce() -> Result<P> + Send + 'static,
) -> Result<P::Done, Miss> {
    let size = key.digest.size;
    let mut writing = Writing::begin(begin);
    let mut failed = 0;
    loop {
        let before = writing.taken;
        slot.count(&slot.asked);
        let miss = match slot.source.open(key, before..size).await {
            Err(miss) => Some(miss),
            Ok(stream) => match pour(slot, stream, key, &mut writing, patience.idle).await {
                Poured::All => None,
                Poured::Broken(e) => Some(SourceError::Transient(e, None)),
                Poured::TooMuch => {
                    writing.give_up().await;
                    slot.count(&slot.wrong);
                    slot.breaker().failed(Instant::now());
                    return Err(Miss::Wrong(format!("more than {size} bytes")));
                }
                Poured::WriterFailed => {
                    let failed = writing.finish().await.err();
                    let unknown = || Error::new(ErrorKind::Internal, "a writer ended early");
                    return Err(Miss::Local(failed.unwrap_or_else(unknown)));
                }
            },
        };
        match miss {
            None => break,
            Some(SourceError::Transient(e, wish)) => {
                slot.count(&slot.broken);
                failed = if writing.taken > before {
                    0
                } else {
                    failed + 1
                };
                if failed > tries {
                    writing.give_up().await;
                    slot.breaker().failed(Instant::now());
                    return Err(Miss::Source(SourceError::Transient(e, wish)));
                }
                tracing::debug!(%key, at = writing.taken, source = slot.source.label(), error = %e, "resuming");
                if failed > 0 {
                    let wish = wish.unwrap_or_default().min(LONGEST_PAUSE * 6);
                    let pause = clock::backoff(failed - 1, patience.backoff, LONGEST_PAUSE);
                    let pause = pause.max(wish);
                    patience.tell(&*slot.source, &e, failed, tries, pause, wish);
                    clock::sleep(pause).await;
                }
            }
            Some(miss) => {
                writing.give_up().await;
                slot.breaker().answered();
                return Err(Miss::Source(miss));
            }
        }
    }
    let (digest, done) = writing.finish().await.map_err(Miss::Local)?;
    if digest != key.digest {
        slot.count(&slot.wrong);
        slot.breaker().failed(Instant::now());
        tracing::warn!(%key, got = %digest, source = slot.source.label(), "a source sent something else");
        return Err(Miss::Wrong(format!("the bytes of {digest}")));
    }
    slot.breaker().answered();
    slot.count(&slot.fetched);
    slot.bytes.fetch_add(size, Ordering::Relaxed);
    Ok(done)
}

enum Poured {
    All,
    Broken(Error),
    TooMuch,
    WriterFailed,
}

/// The next bytes, or none within the time. Tells the source when it has been waited for a while.
async fn next_bytes(
    source: &dyn BlobSource,
    key: &BlobKey,
    stream: &mut ByteStream,
    idle: Duration,
) -> Result<Option<Result<Bytes>>> {
    let what = || format!("the download of {key} from the {}", source.label());
    let next = wait_for(source, what, idle, stream.next()).await;
    next.ok_or_else(|| {
        let text = format!("nothing came for {} s", idle.as_secs_f64());
        Error::new(ErrorKind::Unavailable, text)
    })
}

async fn pour<P: Part>(
    slot: &Slot,
    mut stream: ByteStream,
    key: &BlobKey,
    writing: &mut Writing<P>,
    idle: Duration,
) -> Poured {
    let size = key.digest.size;
    loop {
        let next = match next_bytes(&*slot.source, key, &mut stream, idle).await {
            Ok(next) => next,
            Err(e) => return Poured::Broken(e),
        };
        match next {
            Some(Ok(bytes)) if writing.taken.saturating_add(bytes.len() as u64) > size => {
                return Poured::TooMuch;
            }
            Some(Ok(bytes)) if bytes.is_empty() => {}
            Some(Ok(mut bytes)) => {
                // What waits for the writer is counted in pieces: they must not be large.
                while !bytes.is_empty() {
                    let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
                    if !writing.write(piece).await {
                        return Poured::WriterFailed;
                    }
                }
            }
            Some(Err(e)) if e.kind() == ErrorKind::Corrupt => return Poured::TooMuch,
            Some(Err(e)) => return Poured::Broken(e),
            None if writing.taken == size => return Poured::All,
            None => {
                let text = format!("the answer ended at byte {} of {size}", writing.taken);
                return Poured::Broken(Error::new(ErrorKind::Unavailable, text));
            }
        }
    }
}

/// What all sources together mean.
fn verdict(key: &BlobKey, misses: Vec<(&Slot, Miss)>) -> Error {
    let mut kind = ErrorKind::NotFound;
    // The gravest counts: damage above a broken connection above a refusal above absence.
    let rank = |k: ErrorKind| match k {
        ErrorKind::Corrupt => 4,
        ErrorKind::Unavailable => 3,
        ErrorKind::Denied => 2,
        ErrorKind::NotFound => 0,
        _ => 1,
    };
    let mut said = Vec::new();
    for (slot, miss) in misses {
        let (this, text) = match miss {
            Miss::Source(SourceError::Absent) => {
                (ErrorKind::NotFound, "does not have it".to_string())
            }
            Miss::Source(SourceError::Transient(e, _)) => (ErrorKind::Unavailable, e.to_string()),
            Miss::Source(SourceError::Gone(e) | SourceError::Refused(e)) => {
                (e.kind(), e.to_string())
            }
            Miss::Wrong(what) => (ErrorKind::Corrupt, format!("sent {what}")),
            Miss::Local(e) => (e.kind(), e.to_string()),
        };
        if rank(this) > rank(kind) {
            kind = this;
        }
        said.push(format!("{}: {text}", slot.source.label()));
    }
    let text = match said.is_empty() {
        true => "there is no source to fetch it from".to_string(),
        false => said.join("; "),
    };
    let error = Error::new(kind, text).during("fetch").at(key);
    match kind {
        ErrorKind::NotFound => error.hint("upload it again"),
        ErrorKind::Corrupt => error.hint("scrub the server and the HA store, or upload it again"),
        ErrorKind::Unavailable => error.hint("is the server up? the same call can be repeated"),
        _ => error,
    }
}

/// Hands the bytes of a part of a blob to `take`, resumed where a connection breaks. They cannot be compared:
/// only the whole has a digest.
///
/// # Errors
///
/// As [`fetch`], and what `take` says.
async fn pull_range(
    source: &dyn BlobSource,
    key: &BlobKey,
    range: Range<u64>,
    patience: FetchPatience,
    mut take: impl FnMut(Bytes) -> Result<()>,
) -> Result<()> {
    let (mut at, mut failed) = (range.start, 0);
    while at < range.end {
        let before = at;
        let mut wish = None;
        let broken = match source.open(key, at..range.end).await {
            Ok(mut stream) => loop {
                match next_bytes(source, key, &mut stream, patience.idle).await {
                    Ok(Some(Ok(bytes))) if bytes.len() as u64 <= range.end - at => {
                        at += bytes.len() as u64;
                        take(bytes)?;
                    }
                    Ok(Some(Ok(_))) => {
                        return Err(Error::corrupt("more bytes came than were asked for")
                            .during("read")
                            .at(key));
                    }
                    Ok(Some(Err(e))) => break e,
                    Ok(None) => {
                        break Error::new(
                            ErrorKind::Unavailable,
                            format!("the answer ended at byte {at}"),
                        );
                    }
                    Err(e) => break e,
                }
            },
            Err(SourceError::Transient(e, wished)) => {
                wish = wished;
                e
            }
            Err(SourceError::Absent) => {
                return Err(Error::new(ErrorKind::NotFound, "there is no such blob")
                    .during("read")
                    .at(key));
            }
            Err(SourceError::Gone(e) | SourceError::Refused(e)) => return Err(e),
        };
        if at >= range.end {
            break;
        }
        failed = if at > before { 0 } else { failed + 1 };
        if failed > patience.retries {
            return Err(broken.during("read").at(key));
        }
        let wish = wish.unwrap_or_default().min(LONGEST_PAUSE * 6);
        let pause = clock::backoff(failed, patience.backoff, LONGEST_PAUSE).max(wish);
        patience.tell(source, &broken, failed, patience.retries, pause, wish);
        clock::sleep(pause).await;
    }
    Ok(())
}

/// How patient a fetch without a cache is.
const PATIENCE: FetchPatience = FetchPatience {
    retries: 5,
    backoff: Duration::from_millis(100),
    idle: Duration::from_secs(60),
};

/// May a file get this name? Only a regular file may be replaced by one: not a device, a pipe, a folder, or the name
/// of a link.
///
/// # Errors
///
/// `AlreadyExists` for a file that is there unless it may be replaced, `Refused` for anything else that is there.
pub(crate) fn check_name(file: &Path, replace: bool) -> Result<()> {
    let what = match std::fs::symlink_metadata(file) {
        Ok(meta) if meta.is_file() && replace => return Ok(()),
        Ok(meta) if meta.is_file() => return Err(already_there(file)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(io_error(e, "write", file)),
        Ok(meta) if meta.is_dir() => "a folder is there",
        Ok(meta) if meta.is_symlink() => "a symbolic link is there",
        Ok(_) => "what is there is no regular file",
    };
    Err(Error::refused(what)
        .during("write")
        .at(file.display())
        .hint("name another file; `-` writes to stdout"))
}

fn already_there(file: &Path) -> Error {
    Error::new(ErrorKind::AlreadyExists, "a file is already there")
        .during("write")
        .at(file.display())
}

/// Gives a complete file its name; whatever happens, the temporary one goes.
///
/// # Errors
///
/// `AlreadyExists` unless it may be replaced; what the file system answers.
pub(crate) fn give_name(temporary: &Path, file: &Path, replace: bool) -> Result<()> {
    let named = match replace {
        true => std::fs::rename(temporary, file),
        false => std::fs::hard_link(temporary, file),
    };
    let _ = std::fs::remove_file(temporary);
    named.map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => already_there(file),
        _ => io_error(e, "write", file),
    })
}

/// Fetches a blob into a file, verified, without a cache: a temporary file beside it gets the name once the
/// digest is right. Says what each source did.
///
/// # Errors
///
/// `AlreadyExists` unless it may be replaced, `Refused` for what is no regular file; as [`JobGuard::get`](crate::blob::JobGuard::get).
pub async fn fetch_file(
    sources: Vec<Arc<dyn BlobSource>>,
    key: &BlobKey,
    file: &Path,
    replace: bool,
) -> Result<Vec<SourceUse>> {
    check_name(file, replace)?;
    let sources = Sources::new(sources);
    let to = file.to_path_buf();
    let becomes = to.clone();
    let begin = move || FilePart::begin(becomes.clone());
    let temporary = fetch(&sources, key, PATIENCE, begin).await?;
    crate::store::blocking(move || give_name(temporary.path(), &to, replace)).await?;
    Ok(sources.usage())
}

/// Hands the bytes of a range to `take`, resumed where a connection breaks. They cannot be compared: only
/// the whole has a digest.
///
/// # Errors
///
/// `NotFound`; `Refused` if the job is over; `Unavailable`; what `take` says.
pub async fn read_range(
    source: &dyn BlobSource,
    key: &BlobKey,
    range: Range<u64>,
    take: impl FnMut(Bytes) -> Result<()>,
) -> Result<()> {
    pull_range(source, key, range, PATIENCE, take).await
}
