//! Runs the tasks of a plan: many at once, largest first, what is already there not again.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use crate::error::{Error, ErrorKind, Result};
use crate::progress::{Cancel, Progress};
use crate::store::{DuplicateOptions, Existing, Location, Method, Receipt, Stat, Stores};

use super::journal::Journal;
use super::plan::Task;
use super::retry::proves;

/// Receipts are written to the journal at least this often while there are any.
const JOURNAL_EVERY: Duration = Duration::from_secs(1);
/// And whenever so many have come together.
const JOURNAL_BATCH: usize = 500;

/// How to run a plan.
#[derive(Debug, Clone)]
pub struct ExecuteOptions {
    /// Objects under way at once.
    pub concurrency: usize,
}

impl Default for ExecuteOptions {
    fn default() -> Self {
        ExecuteOptions { concurrency: 32 }
    }
}

/// What running a plan came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Executed {
    /// Objects copied by this run.
    pub copied: u64,
    /// Objects that an earlier run had copied, as their receipts or their content prove.
    pub reused: u64,
    /// How many objects this run copied by which method.
    pub methods: BTreeMap<Method, u64>,
}

enum Outcome {
    Copied(Receipt),
    Reused,
}

/// Brings every object of `tasks` to its destination.
///
/// # Errors
///
/// `Refused` if an object that is not ours lies at a destination: it is left as it is. Otherwise
/// the first error of a copy; what was copied until then has its receipts and is reused by the
/// next run.
pub async fn execute(
    stores: &Stores,
    tasks: &[Task],
    journal: &Journal,
    options: &ExecuteOptions,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<Executed> {
    let destinations: Vec<Location> = tasks.iter().map(|t| t.destination.clone()).collect();
    progress.begin("looking for finished objects", destinations.len() as u64, 0);
    let there = stores.stat_all(&destinations).await?;
    let receipts = match there.values().any(Option::is_some) {
        true => journal.receipts(stores).await?,
        false => HashMap::new(),
    };
    progress.end();

    let total = tasks.iter().map(|t| t.size).sum();
    progress.begin("duplicating", tasks.len() as u64, total);
    let mut queue: Vec<&Task> = tasks.iter().collect();
    // Largest first, so that no large object is left alone at the end.
    queue.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.source.cmp(&b.source)));
    let mut queue = queue.into_iter();
    let mut running = FuturesUnordered::new();
    let mut done = Executed::default();
    let mut unwritten: Vec<Receipt> = Vec::new();
    let mut failure: Option<Error> = None;
    let mut tick = tokio::time::interval(JOURNAL_EVERY);
    loop {
        while failure.is_none() && running.len() < options.concurrency.max(1) {
            let Some(task) = queue.next() else { break };
            let existing = there.get(&task.destination).cloned().flatten();
            let receipt = receipts.get(&task.destination);
            running.push(async move { (task, one(stores, task, existing, receipt).await) });
        }
        tokio::select! {
            biased;
            () = cancel.cancelled(), if failure.is_none() => {
                failure = cancel.check().err();
            }
            next = running.next() => match next {
                None => break,
                Some((task, Ok(outcome))) => {
                    progress.advance(1, task.size);
                    match outcome {
                        Outcome::Copied(receipt) => {
                            done.copied += 1;
                            *done.methods.entry(receipt.method).or_default() += 1;
                            unwritten.push(receipt);
                        }
                        Outcome::Reused => done.reused += 1,
                    }
                    if unwritten.len() >= JOURNAL_BATCH {
                        journal.add(stores, &std::mem::take(&mut unwritten)).await?;
                    }
                }
                // The others are let finish, so that their receipts are not lost.
                Some((_, Err(e))) => failure = failure.or(Some(e)),
            },
            _ = tick.tick(), if !unwritten.is_empty() => {
                journal.add(stores, &std::mem::take(&mut unwritten)).await?;
            }
        }
    }
    progress.end();
    match failure {
        None => Ok(done),
        Some(e) => {
            // The error that stopped us matters more than one from keeping the receipts.
            if let Err(lost) = journal.add(stores, &unwritten).await {
                tracing::warn!(%lost, "the last receipts could not be kept");
            }
            Err(e)
        }
    }
}

async fn one(
    stores: &Stores,
    task: &Task,
    existing: Option<Stat>,
    receipt: Option<&Receipt>,
) -> Result<Outcome> {
    if let Some(there) = existing {
        return match is_ours(stores, task, &there, receipt).await? {
            true => Ok(Outcome::Reused),
            false => Err(not_ours(&task.destination)),
        };
    }
    let options = DuplicateOptions {
        existing: Existing::Refuse,
        source: Some(task.source_stat()),
        destination_is_free: true,
    };
    match stores
        .duplicate(&task.source, &task.destination, &options)
        .await
    {
        Ok(receipt) => Ok(Outcome::Copied(receipt)),
        // Another run of the same fork may have been faster.
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            let there = stores.stat(&task.destination).await?;
            match is_ours(stores, task, &there, None).await? {
                true => Ok(Outcome::Reused),
                false => Err(not_ours(&task.destination)),
            }
        }
        Err(e) => Err(e),
    }
}

fn not_ours(at: &Location) -> Error {
    Error::refused("an object that this fork did not write is at its destination")
        .at(at)
        .hint("it was left as it is; move it away, or choose another destination")
}

/// Is the object at the destination the duplicate we want? A receipt for this very object proves
/// it; without one (the process died between the copy and its receipt) the contents are compared.
async fn is_ours(
    stores: &Stores,
    task: &Task,
    there: &Stat,
    receipt: Option<&Receipt>,
) -> Result<bool> {
    if there.size != task.size {
        return Ok(false);
    }
    if receipt.is_some_and(|receipt| proves(receipt, task, there)) {
        return Ok(true);
    }
    stores
        .same_content(&task.source, &task.destination, task.size)
        .await
}
