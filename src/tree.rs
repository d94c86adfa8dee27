//! Many objects from one place to another: a folder with all that is below it, or a list of names.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use futures::stream::BoxStream;
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};
use crate::progress::{Cancel, Progress};
use crate::store::{
    BatchOptions, DuplicateOptions, Expected, Item, ItemOutcome, LazyJournal, Level, Location,
    Method, Provider, Receipt, Stores, is_missing_bucket, link_on_the_way,
};

/// Failures that are named in the report; all are counted.
const NAMED_FAILURES: usize = 1_000;
/// Names of a list that are looked at side by side.
const LOOKED_AT_ONCE: usize = 64;

/// Objects in a row, from the first on, that were all denied: so are those that would follow.
const ALL_DENIED: u64 = 100;
/// And so many for which there was no answer, each after several attempts.
const ALL_UNREACHABLE: u64 = 32;

/// The next step where nothing could be copied for want of rights.
pub(crate) const NOTHING_ALLOWED: &str =
    "nothing was copied: check the credentials or the user, and what they may do at both places";

/// What to duplicate, and where to.
#[derive(Debug, Clone)]
pub struct TreeRequest {
    /// The folder to read.
    pub source: Location,
    /// The folder to write.
    pub destination: Location,
    /// Names below the source; `None`: all there are.
    pub names: Option<Vec<String>>,
    /// How each object is duplicated.
    pub duplicate: DuplicateOptions,
    /// Objects under way at once; `None`: as fits the destination.
    pub objects_at_once: Option<usize>,
    /// How sure to be of the result.
    pub verify: Level,
}

/// One object that could not be duplicated.
#[derive(Debug)]
pub struct Failure {
    /// Where its duplicate should be.
    pub destination: Location,
    /// Why it is not.
    pub error: Error,
}

impl Failure {
    /// It is not there, not allowed, or nothing to copy (a pipe): the same command, run again, would find it so again.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(
            self.error.kind(),
            ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::Unsupported
        )
    }
}

/// What it came to.
#[derive(Debug, Default)]
pub struct TreeReport {
    /// Objects seen.
    pub objects: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Objects copied by this run.
    pub copied: u64,
    /// Objects that were there already, equal.
    pub reused: u64,
    /// How many objects this run copied by which method.
    pub methods: BTreeMap<Method, u64>,
    /// How many of the copied objects reached which step of the verification ladder.
    pub verified: BTreeMap<Level, u64>,
    /// Objects that failed.
    pub failed: u64,
    /// The first of them.
    pub failures: Vec<Failure>,
}

/// Duplicates a whole tree. Failures of single objects are in the report, the others go on.
///
/// Costs one listing request per 1,000 objects of the source (or a look per name of a list), one copy
/// request per object, and for the verification one listing per 1,000 objects of the destination or
/// what the level costs. Memory does not grow with the number of objects, but for 16 bytes of each
/// from level [`Level::Size`] on, and a receipt of each from [`Level::Checksum`] on.
///
/// # Errors
///
/// `Refused` if one folder lies in the other; `Denied` if the first 100 objects all were, `Unavailable` if there was no
/// answer for the first 32; `Cancelled`; what listing gives.
pub async fn duplicate_tree(
    stores: &Stores,
    request: &TreeRequest,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<TreeReport> {
    let (source, destination) = (
        stores.real(&request.source).await?,
        stores.real(&request.destination).await?,
    );
    if source.contains(&destination) || destination.contains(&source) {
        return Err(Error::refused(format!(
            "one folder lies in the other: {source} and {destination}"
        )));
    }
    if destination.provider() == Provider::Local && stores.find(&destination).await?.is_some() {
        return Err(
            Error::new(ErrorKind::AlreadyExists, "a file is here, not a folder")
                .during("write")
                .at(&request.destination)
                .hint("name the folder to write, or move the file away"),
        );
    }
    // S3's answer to the first copy tells whether the bucket is there.
    if destination.provider() != Provider::S3 {
        stores.check_bucket(&request.destination).await?;
    }
    let journal = Arc::new(journal_of(
        stores,
        &request.destination,
        &source,
        &destination,
    ));
    let options = BatchOptions {
        duplicate: DuplicateOptions {
            log: Arc::clone(&journal) as _,
            ..request.duplicate.clone()
        },
        objects_at_once: request.objects_at_once,
        keep_going: true,
    };
    let mut report = TreeReport::default();
    let mut expected = Expected::default();
    let mut receipts: Vec<Receipt> = Vec::new();
    let (mut denied, mut unreachable) = (0, 0);
    let hopeless = Cancel::default();
    progress.begin("duplicating", 0, 0);
    let left_out = LeftOut::default();
    let items = past_links(items(stores, request, &left_out)?, request, &left_out);
    let batch = stores.batch(
        items,
        None,
        &options,
        progress,
        &hopeless,
        |item, outcome| {
            report.objects += 1;
            match outcome {
                ItemOutcome::Copied(receipt) => {
                    if request.verify >= Level::Size {
                        expected.add(&item.destination, item.stat.size);
                    }
                    if request.verify >= Level::Checksum {
                        receipts.push(receipt.clone());
                    }
                }
                ItemOutcome::Reused => {}
                ItemOutcome::Failed(e) => {
                    match e.kind() {
                        ErrorKind::Denied => denied += 1,
                        ErrorKind::Unavailable => unreachable += 1,
                        _ => {}
                    }
                    let all = |failed: u64, enough| failed == report.objects && failed >= enough;
                    if all(denied, ALL_DENIED) || all(unreachable, ALL_UNREACHABLE) {
                        hopeless.cancel();
                    }
                    if report.failures.len() < NAMED_FAILURES {
                        let error = Error::new(e.kind(), e.to_string());
                        report.failures.push(Failure {
                            destination: item.destination.clone(),
                            error,
                        });
                    }
                }
            }
        },
    );
    let passing_on = async {
        cancel.cancelled().await;
        hopeless.cancel();
        std::future::pending::<Infallible>().await
    };
    let batch = tokio::select! {
        batch = batch => batch,
        never = passing_on => match never {},
    };
    progress.end();
    cancel.check()?;
    if hopeless.is_cancelled() {
        let why = report.failures.first().map(|f| f.error.to_string());
        let why = why.unwrap_or_default();
        let objects = report.objects;
        let said = format!("none of the first {objects} objects could be duplicated: {why}");
        return Err(match denied > 0 {
            true => Error::new(ErrorKind::Denied, said).hint(NOTHING_ALLOWED),
            false => Error::new(ErrorKind::Unavailable, said).hint(
                "nothing was copied: see that the address is right and the server there, then run the same command again",
            ),
        });
    }
    let batch = batch?;
    if batch.copied + batch.reused == 0
        && let Some(e) = batch.first_error
        && is_missing_bucket(&e)
    {
        return Err(e);
    }
    let (left_out, named) = left_out.take();
    if left_out > 0 && batch.copied + batch.reused == 0 {
        // Some services do not say which of the two is missing.
        stores.check_bucket(&request.source).await?;
    }
    report.objects += left_out;
    let room = NAMED_FAILURES.saturating_sub(report.failures.len());
    report.failures.extend(named.into_iter().take(room));
    if report.objects == 0 {
        return Err(
            Error::new(ErrorKind::NotFound, "there is nothing to duplicate")
                .at(&request.source)
                .hint("name the folder that holds the objects"),
        );
    }
    report.copied = batch.copied;
    report.reused = batch.reused;
    report.bytes = batch.bytes;
    report.failed = batch.failed + left_out;
    report.methods = batch.methods;
    verify(stores, request, expected, &receipts, &mut report).await?;
    if report.failed == 0 {
        journal.finish(batch.reused > 0).await?;
    }
    Ok(report)
}

/// The journal, below `root`, of duplicating `source` to `destination`. No request.
pub fn journal_of(
    stores: &Stores,
    root: &Location,
    source: &Location,
    destination: &Location,
) -> LazyJournal {
    let (source, destination) = (stores.canonical(source), stores.canonical(destination));
    LazyJournal::new(stores, root, &job_id(&source, &destination))
}

/// The same for the same pair of places, so that a later run finds what an earlier one left.
fn job_id(source: &Location, destination: &Location) -> String {
    let digest = Sha256::digest(format!("forkpoint tree 1\0{source}\0{destination}"));
    digest.iter().take(16).map(|b| format!("{b:02x}")).collect()
}

/// What was left out before any copy of it began: it is reported, and the others go on. Clones are the same.
#[derive(Debug, Clone, Default)]
struct LeftOut(Arc<Mutex<(u64, Vec<Failure>)>>);

impl LeftOut {
    fn add(&self, destination: Location, error: Error) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.0 += 1;
        if all.1.len() < NAMED_FAILURES {
            all.1.push(Failure { destination, error });
        }
    }

    /// How many, and the first of them.
    fn take(&self) -> (u64, Vec<Failure>) {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn items(
    stores: &Stores,
    request: &TreeRequest,
    left_out: &LeftOut,
) -> Result<BoxStream<'static, Result<Item>>> {
    let (source, destination) = (request.source.clone(), request.destination.clone());
    let Some(names) = &request.names else {
        let (left_out, from, to) = (left_out.clone(), source.clone(), destination.clone());
        let listing = stores.list_what_can_be(&source, move |at, e| {
            let destination = match from.strip(&at) {
                Some(below) if !below.is_empty() => to.child(below),
                _ => to.clone(),
            };
            left_out.add(destination, e);
        })?;
        return Ok(listing
            .map(move |next| {
                let (at, stat) = next?;
                let below = source
                    .strip(&at)
                    .filter(|below| !below.is_empty())
                    .ok_or_else(|| {
                        Error::new(ErrorKind::Internal, "a listing shows a stranger").at(&at)
                    })?;
                Ok(Item {
                    destination: destination.child(below),
                    source: at,
                    stat,
                    existing: None,
                })
            })
            .boxed());
    };
    // A list with a name that can be none is wrong as a whole: nothing is copied.
    for name in names {
        source.join(name)?;
    }
    let (stores, left_out) = (stores.clone(), left_out.clone());
    Ok(futures::stream::iter(names.clone())
        .map(move |name| {
            let (stores, source, destination) =
                (stores.clone(), source.clone(), destination.clone());
            async move {
                let (source, destination) = (source.join(&name)?, destination.join(&name)?);
                let found = stores.stat(&source).await;
                Ok((source, destination, found))
            }
        })
        .buffered(LOOKED_AT_ONCE)
        .filter_map(move |looked: Result<_>| {
            let item = match looked {
                Ok((source, destination, Ok(stat))) => Some(Ok(Item {
                    source,
                    destination,
                    stat,
                    existing: None,
                })),
                Ok((_, destination, Err(e))) if !is_missing_bucket(&e) => {
                    left_out.add(destination, e);
                    None
                }
                Ok((_, _, Err(e))) | Err(e) => Some(Err(e)),
            };
            std::future::ready(item)
        })
        .boxed())
}

/// Leaves out, and reports, what would be written through a link below the destination: it would land elsewhere, in
/// files that nobody has named.
fn past_links(
    items: BoxStream<'static, Result<Item>>,
    request: &TreeRequest,
    left_out: &LeftOut,
) -> BoxStream<'static, Result<Item>> {
    let (root, left_out) = (request.destination.clone(), left_out.clone());
    if root.provider() != Provider::Local {
        return items;
    }
    // Objects of one folder come one after the other.
    let mut looked_at: Option<Location> = None;
    let mut free = move |item: &Result<Item>| {
        let Ok(Item { destination, .. }) = item else {
            return true;
        };
        if looked_at.is_some() && looked_at == destination.parent() {
            return true;
        }
        match link_on_the_way(&root, destination) {
            None => {
                looked_at = destination.parent();
                true
            }
            Some(link) => {
                let e = Error::refused(format!("{link} is a link that leads elsewhere"))
                    .during("write")
                    .at(destination)
                    .hint("name the folder that it leads to as a destination of its own, or remove the link");
                left_out.add(destination.clone(), e);
                false
            }
        }
    };
    items
        .filter(move |item| std::future::ready(free(item)))
        .boxed()
}

async fn verify(
    stores: &Stores,
    request: &TreeRequest,
    expected: Expected,
    receipts: &[Receipt],
    report: &mut TreeReport,
) -> Result<()> {
    // There is nothing to compare with.
    if report.copied == 0 {
        return Ok(());
    }
    if request.verify == Level::None {
        report.verified.insert(Level::None, report.copied);
        return Ok(());
    }
    let checked = match expected.check(stores, &request.destination).await {
        Ok(checked) => checked,
        // Told with what was copied: after it, no error may say less than that.
        Err(e) if e.kind() != ErrorKind::Cancelled => {
            report.failed += 1;
            report.failures.push(Failure {
                destination: request.destination.clone(),
                error: e.during("verify"),
            });
            return Ok(());
        }
        Err(e) => return Err(e),
    };
    let mut fail = |destination: Location, why: String| {
        report.failed += 1;
        let error = Error::corrupt(why).during("verify").at(&destination);
        report.failures.push(Failure { destination, error });
    };
    for (at, right, found) in checked.wrong {
        fail(at, format!("{found} bytes long, not {right}"));
    }
    if checked.missing > 0 {
        let n = checked.missing;
        fail(
            request.destination.clone(),
            format!("{n} copied objects are not listed"),
        );
    }
    if request.verify == Level::Size {
        report.verified.insert(Level::Size, checked.right);
        return Ok(());
    }
    let (reached, different) = stores.prove_all(receipts, request.verify).await?;
    for at in different {
        fail(at, "the content is not the source's".into());
    }
    report.verified.extend(reached);
    Ok(())
}

/// Reads a list of names: one a line, empty lines passed over.
///
/// # Errors
///
/// `Invalid` if it is not UTF-8.
pub fn parse_names(bytes: &[u8]) -> Result<Vec<String>> {
    let text = std::str::from_utf8(bytes)
        .map_err(|e| Error::invalid(format!("the list is not UTF-8: {e}")))?;
    Ok(text
        .lines()
        .map(|l| l.trim_end_matches('\r'))
        .filter(|l| !l.is_empty())
        .map(str::to_string)
        .collect())
}
