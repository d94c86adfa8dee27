//! Many duplicates: one pool for files and parts, largest first, in bounded memory, an outcome per
//! item.

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, Stream, StreamExt};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::progress::{Cancel, Progress};

use super::duplicate::{DuplicateOptions, Durability, Existing};
use super::errors;
use super::journal::Journal;
use super::journal_writer::JournalWriter;
use super::location::{Location, Provider};
use super::method::Method;
use super::open::Stores;
use super::receipt::Receipt;
use super::stat::Stat;
use super::unfinished::UnfinishedLog;

/// Items held at most before they are begun, so that the largest of them can go first.
const WINDOW: usize = 10_000;
/// Objects at once where a service does the copying; how many requests really go out, the pacer of
/// the bucket decides.
const OBJECTS_AT_SERVICES: usize = 256;
/// Objects at once where this machine does the copying.
const OBJECTS_AT_HOME: usize = 32;
/// Small files that one thread copies in a row, where none of them waits for the disk.
const FILES_IN_A_ROW: usize = 64;
/// Files below this size are small, in bytes.
const SMALL_BYTES: u64 = 256 * 1024;
/// Receipts are written to the journal at least this often while there are any.
const JOURNAL_EVERY: Duration = Duration::from_secs(1);

/// One object to duplicate.
#[derive(Debug, Clone)]
pub struct Item {
    /// Where it is.
    pub source: Location,
    /// Where its duplicate goes.
    pub destination: Location,
    /// What is known of it.
    pub stat: Stat,
    /// Where the destination was looked at: what is there.
    pub existing: Option<Option<Stat>>,
}

/// What became of one item.
#[derive(Debug)]
pub enum ItemOutcome {
    /// It was copied.
    Copied(Receipt),
    /// An equal object was there already.
    Reused,
    /// It could not be copied.
    Failed(Error),
}

/// How a batch is run.
#[derive(Debug, Clone, Default)]
pub struct BatchOptions {
    /// How each object is duplicated; its source and log are set per item.
    pub duplicate: DuplicateOptions,
    /// Objects under way at once; `None`: as fits the destination.
    pub objects_at_once: Option<usize>,
    /// Go on with the others when one fails.
    pub keep_going: bool,
}

/// What a batch came to.
#[derive(Debug, Default)]
pub struct BatchReport {
    /// Objects copied by this run.
    pub copied: u64,
    /// Objects that were there already, equal.
    pub reused: u64,
    /// Bytes of the copied ones.
    pub bytes: u64,
    /// How many objects this run copied by which method.
    pub methods: BTreeMap<Method, u64>,
    /// Objects that could not be copied.
    pub failed: u64,
    /// The first error.
    pub first_error: Option<Error>,
}

impl BatchReport {
    /// Counts an outcome; hands back its receipt.
    fn take(&mut self, outcome: ItemOutcome) -> Option<Receipt> {
        match outcome {
            ItemOutcome::Copied(receipt) => {
                self.copied += 1;
                self.bytes = self.bytes.saturating_add(receipt.bytes);
                *self.methods.entry(receipt.method).or_default() += 1;
                return Some(receipt);
            }
            ItemOutcome::Reused => self.reused += 1,
            ItemOutcome::Failed(e) => {
                self.failed += 1;
                self.first_error.get_or_insert(e);
            }
        }
        None
    }
}

/// The next item; for small local files, that do not wait for the disk one by one, several.
fn take_row(
    queue: &mut BinaryHeap<Queued>,
    options: &BatchOptions,
    rows_at_once: usize,
    exhausted: bool,
) -> Vec<Item> {
    // The last ones are shared out, so that all threads end together.
    let row = match exhausted {
        true => (queue.len() / (2 * rows_at_once)).clamp(1, FILES_IN_A_ROW),
        false => FILES_IN_A_ROW,
    };
    let mut items = Vec::new();
    while let Some(Queued(item)) = queue.pop() {
        let more = fits_in_a_row(&item, options) && items.len() + 1 < row;
        items.push(item);
        if !more {
            break;
        }
    }
    items
}

/// An item in the queue: the largest is taken first, equal ones in the order of their names.
struct Queued(Item);

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let (a, b) = (&self.0, &other.0);
        a.stat
            .size
            .cmp(&b.stat.size)
            .then_with(|| b.source.cmp(&a.source))
    }
}

impl Stores {
    /// Duplicates all `items`, as they come. `each` is told of every outcome. Receipts go to the
    /// `journal`, if there is one, and objects that it or their content proves are not copied again.
    ///
    /// Holds at most some ten thousand items, however many there are. Asked to stop, it begins
    /// nothing more, lets single copies finish, and keeps copies in parts for the next run.
    ///
    /// # Errors
    ///
    /// An error of `items` or of the journal, or `Cancelled`. Failures of single objects are in the
    /// report.
    pub async fn batch(
        &self,
        items: impl Stream<Item = Result<Item>> + Send,
        journal: Option<&Arc<Journal>>,
        options: &BatchOptions,
        progress: &dyn Progress,
        cancel: &Cancel,
        mut each: impl FnMut(&Item, &ItemOutcome) + Send,
    ) -> Result<BatchReport> {
        let mut items = Box::pin(items.fuse());
        let mut duplicate = options.duplicate.clone();
        duplicate.cancel = cancel.clone();
        if let Some(journal) = journal {
            duplicate.log = Arc::clone(journal) as Arc<dyn UnfinishedLog>;
        }
        let duplicate = Arc::new(duplicate);
        let mut queue: BinaryHeap<Queued> = BinaryHeap::new();
        let mut running: JoinSet<Result<Vec<(Item, ItemOutcome)>>> = JoinSet::new();
        let mut report = BatchReport::default();
        let mut receipts = JournalWriter::new(journal.cloned());
        // Asked once: the answer takes some looks at the system.
        let rows_at_once = rows_at_once();
        let mut exhausted = false;
        let mut stopped: Option<Error> = None;
        let mut tick = tokio::time::interval_at(Instant::now() + JOURNAL_EVERY, JOURNAL_EVERY);
        loop {
            // Whatever the source of items has ready, so that the largest is known.
            while !exhausted && stopped.is_none() && queue.len() < WINDOW {
                match items.next().now_or_never() {
                    None => break,
                    Some(None) => exhausted = true,
                    Some(Some(Ok(item))) => queue.push(Queued(item)),
                    Some(Some(Err(e))) => stopped = Some(e),
                }
            }
            while stopped.is_none() && !receipts.is_full() {
                let Some(next) = queue.peek() else { break };
                let most = options
                    .objects_at_once
                    .unwrap_or_else(|| at_once(&next.0, options, rows_at_once));
                if running.len() >= most {
                    break;
                }
                let items = take_row(&mut queue, options, rows_at_once, exhausted);
                let (stores, duplicate) = (self.clone(), Arc::clone(&duplicate));
                let journal = journal.cloned();
                let in_a_row = items.first().is_some_and(|i| fits_in_a_row(i, options));
                let work = async move {
                    let mut done = Vec::with_capacity(items.len());
                    for item in items {
                        if duplicate.cancel.is_cancelled() && !done.is_empty() {
                            break;
                        }
                        let outcome = stores.one(&item, journal.as_deref(), &duplicate).await;
                        done.push((item, outcome));
                    }
                    done
                };
                match in_a_row {
                    true => running.spawn(super::in_a_row(work)),
                    // Boxed: a task is moved several times before it runs and after it ended.
                    false => running.spawn(Box::pin(async move { Ok(work.await) })),
                };
            }
            let waiting = stopped.is_none() && !exhausted && queue.len() < WINDOW;
            if running.is_empty() && !waiting && !receipts.is_full() {
                break;
            }
            tokio::select! {
                biased;
                () = cancel.cancelled(), if stopped.is_none() => stopped = cancel.check().err(),
                Some(done) = running.join_next(), if !running.is_empty() => {
                    let done = done
                        .map_err(|e| Error::new(ErrorKind::Internal, format!("a copy ended: {e}")))??;
                    for (item, outcome) in done {
                        each(&item, &outcome);
                        if let ItemOutcome::Failed(e) = &outcome
                            && errors::is_missing_bucket(e)
                            && stopped.is_none()
                        {
                            // Nothing else can succeed either.
                            stopped = Some(Error::new(ErrorKind::Cancelled, e.message()));
                        }
                        progress.advance(1, item.stat.size);
                        if let Some(receipt) = report.take(outcome) {
                            receipts.push(receipt);
                        }
                    }
                    if report.failed > 0 && !options.keep_going && stopped.is_none() {
                        // Nothing new is begun; what is under way is let finish, so that its receipts
                        // are not lost.
                        stopped = Some(Error::new(ErrorKind::Cancelled, "another object failed"));
                    }
                }
                // What is under way is let finish all the same.
                kept = receipts.written(), if receipts.is_writing() => stopped = stopped.or(kept.err()),
                next = items.next(), if waiting => match next {
                    None => exhausted = true,
                    Some(Ok(item)) => queue.push(Queued(item)),
                    Some(Err(e)) => stopped = Some(e),
                },
                _ = tick.tick(), if receipts.may_begin() => receipts.begin(),
            }
        }
        let kept = receipts.finish().await;
        match (stopped, report.first_error.is_some()) {
            (Some(e), false) => {
                if let Err(lost) = kept {
                    tracing::warn!(%lost, "the last receipts could not be kept");
                }
                Err(e)
            }
            (_, true) => Ok(report),
            (None, false) => kept.map(|()| report),
        }
    }

    async fn one(
        &self,
        item: &Item,
        journal: Option<&Journal>,
        options: &DuplicateOptions,
    ) -> ItemOutcome {
        match self.try_one(item, journal, options).await {
            Ok(outcome) => outcome,
            Err(e) => ItemOutcome::Failed(e),
        }
    }

    /// Duplicates one object; an equal one that is there already is left, as a batch leaves it.
    ///
    /// # Errors
    ///
    /// As [`Stores::duplicate`]; `Refused` if an object that is not equal is at the destination and was not to be
    /// overwritten.
    pub async fn duplicate_or_leave(
        &self,
        item: &Item,
        options: &DuplicateOptions,
    ) -> Result<ItemOutcome> {
        self.try_one(item, None, options).await
    }

    async fn try_one(
        &self,
        item: &Item,
        journal: Option<&Journal>,
        options: &DuplicateOptions,
    ) -> Result<ItemOutcome> {
        let create_only = options.existing == Existing::Refuse;
        if create_only && let Some(Some(there)) = &item.existing {
            let receipt = journal.and_then(|j| j.receipt(&item.destination));
            return match self.is_duplicate(item, there, receipt.as_ref()).await? {
                true => Ok(ItemOutcome::Reused),
                false => Err(taken(&item.destination)),
            };
        }
        let mut options = options.clone();
        options.source = Some(item.stat.clone());
        options.destination_is_free |= item.existing == Some(None);
        let mut again = true;
        loop {
            let result = self.duplicate(&item.source, &item.destination, &options);
            let e = match result.await {
                Ok(receipt) => return Ok(ItemOutcome::Copied(receipt)),
                Err(e) => e,
            };
            // An earlier run, or another one at the same time, may have been there; or it has ended
            // the upload that both were filling.
            let lost = e.kind() == ErrorKind::NotFound;
            // Nor need there be room, or the right to write, for what is there already.
            let kept_out = matches!(e.kind(), ErrorKind::Full | ErrorKind::Denied);
            if !create_only || !(lost || kept_out || e.kind() == ErrorKind::AlreadyExists) {
                return Err(e);
            }
            match self.find(&item.destination).await {
                Ok(Some(there)) => {
                    let receipt = journal.and_then(|j| j.receipt(&item.destination));
                    return match self.is_duplicate(item, &there, receipt.as_ref()).await {
                        Ok(true) => Ok(ItemOutcome::Reused),
                        Ok(false) => Err(taken(&item.destination)),
                        // It was the source that may not be read.
                        Err(_) if kept_out => Err(e),
                        Err(e) => Err(e),
                    };
                }
                Ok(None) if lost && again && self.find(&item.source).await?.is_some() => {
                    again = false;
                }
                // Nothing is there: what stands in the way is something else, such as a file where a
                // folder should be.
                _ => return Err(e),
            }
        }
    }

    /// Is the object at the destination the duplicate that is wanted? A receipt for this very object
    /// proves it; without one (the process died between the copy and its receipt) the contents are
    /// compared.
    async fn is_duplicate(
        &self,
        item: &Item,
        there: &Stat,
        receipt: Option<&Receipt>,
    ) -> Result<bool> {
        if there.size != item.stat.size {
            return Ok(false);
        }
        if receipt.is_some_and(|r| r.proves(&item.source, &item.stat, there)) {
            return Ok(true);
        }
        self.same_content(&item.source, &item.destination, item.stat.size)
            .await
    }
}

fn at_once(item: &Item, options: &BatchOptions, rows_at_once: usize) -> usize {
    match item.destination.provider() {
        Provider::Local if fits_in_a_row(item, options) => rows_at_once,
        Provider::Local => OBJECTS_AT_HOME,
        _ => OBJECTS_AT_SERVICES,
    }
}

/// True for an object that is copied by one thread after others like it: it waits for nothing, so that more
/// threads than processors only get into each other's way.
fn fits_in_a_row(item: &Item, options: &BatchOptions) -> bool {
    options.duplicate.durability == Durability::Never
        && options.keep_going
        && item.stat.size < SMALL_BYTES
        && item.source.provider() == Provider::Local
        && item.destination.provider() == Provider::Local
}

fn rows_at_once() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, OBJECTS_AT_HOME))
}

fn taken(at: &Location) -> Error {
    Error::refused("an object that is not this duplicate is at the destination")
        .at(at)
        .hint("it was left as it is; move it away, or choose another destination")
}
