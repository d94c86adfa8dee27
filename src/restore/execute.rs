//! Runs the tasks of a plan: what is already there not again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::progress::{Cancel, Progress};
use crate::store::{BatchOptions, Item, Journal, Location, Method, Provider, Stat, Stores};

use super::plan::Task;

/// How to run a plan.
#[derive(Debug, Clone, Default)]
pub struct ExecuteOptions {
    /// Objects under way at once; `None`: as fits the destination.
    pub objects_at_once: Option<usize>,
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
    journal: &Arc<Journal>,
    options: &ExecuteOptions,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<Executed> {
    let there = look_for_finished(stores, tasks, progress).await?;
    execute_after(stores, tasks, &there, journal, options, progress, cancel).await
}

/// What lies at the destinations of tasks.
pub(crate) type Seen = HashMap<Location, Option<Stat>>;

/// The look before [`execute_after`]: one listing per 1,000 objects of the destinations.
pub(crate) async fn look_for_finished(
    stores: &Stores,
    tasks: &[Task],
    progress: &dyn Progress,
) -> Result<Seen> {
    let destinations: Vec<Location> = tasks.iter().map(|t| t.destination.clone()).collect();
    progress.begin("looking for finished objects", destinations.len() as u64, 0);
    let there = stores.stat_places(&destinations).await;
    progress.end();
    there
}

/// [`execute`] after a look at the destinations.
pub(crate) async fn execute_after(
    stores: &Stores,
    tasks: &[Task],
    there: &Seen,
    journal: &Arc<Journal>,
    options: &ExecuteOptions,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<Executed> {
    progress.begin(
        "duplicating",
        tasks.len() as u64,
        tasks.iter().map(|t| t.size).sum(),
    );
    let items = tasks.iter().map(|task| {
        Ok(Item {
            source: task.source.clone(),
            destination: task.destination.clone(),
            stat: task.source_stat(),
            existing: Some(there.get(&task.destination).cloned().flatten()),
        })
    });
    let options = BatchOptions {
        objects_at_once: options.objects_at_once,
        ..BatchOptions::default()
    };
    let result = stores
        .batch(
            futures::stream::iter(items),
            Some(journal),
            &options,
            progress,
            cancel,
            |_, _| {},
        )
        .await;
    progress.end();
    let report = result?;
    match report.first_error {
        Some(e) if e.kind() == ErrorKind::Cancelled => {
            cancel.check()?;
            Err(e)
        }
        Some(e) => Err(denied_half_way(e, report.copied)),
        None => Ok(Executed {
            copied: report.copied,
            reused: report.reused,
            methods: report.methods,
        }),
    }
}

/// What was copied counts where access is denied half-way: credentials that expire are renewed, and rights can be given.
fn denied_half_way(e: Error, copied: u64) -> Error {
    if e.kind() != ErrorKind::Denied {
        return e;
    }
    let at = e.location().and_then(|at| Location::parse(at).ok());
    let e = match at.is_some_and(|at| at.provider() == Provider::Local) {
        true => e.hint(
            "permission is missing: give the user of this process the right to read the file, or to write there; then run \
             the same command again, which goes on with what is missing",
        ),
        false => e,
    };
    match copied {
        0 => e,
        _ => e.with_kind(ErrorKind::Unavailable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_rights_names_them_first_and_what_was_copied_counts() {
        let denied = |at: &str| Error::new(ErrorKind::Denied, "permission denied").at(at);
        for (copied, kind) in [(0, ErrorKind::Denied), (3, ErrorKind::Unavailable)] {
            let e = denied_half_way(denied("file:/a/shared/x"), copied);
            assert_eq!(e.kind(), kind);
            let step = e.next_step().unwrap();
            assert!(step.starts_with("permission is missing"), "{step}");
            assert!(step.contains("run the same command again"), "{step}");
            // Of a bucket the error itself says what to do about credentials.
            assert_eq!(
                denied_half_way(denied("s3://b/x"), copied).next_step(),
                None
            );
        }
        let other = Error::corrupt("damaged").at("file:/a/x");
        assert_eq!(denied_half_way(other, 3).kind(), ErrorKind::Corrupt);
    }
}
