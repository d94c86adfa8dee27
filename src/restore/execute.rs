//! Runs the tasks of a plan: what is already there not again.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{ErrorKind, Result};
use crate::progress::{Cancel, Progress};
use crate::store::{BatchOptions, Item, Journal, Location, Method, Stores};

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
    let destinations: Vec<Location> = tasks.iter().map(|t| t.destination.clone()).collect();
    progress.begin("looking for finished objects", destinations.len() as u64, 0);
    let there = stores.stat_places(&destinations).await?;
    progress.end();

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
        // Credentials that expire half-way are renewed, and the rest is done then.
        Some(e) if e.kind() == ErrorKind::Denied && report.copied > 0 => {
            Err(e.with_kind(ErrorKind::Unavailable))
        }
        Some(e) => Err(e),
        None => Ok(Executed {
            copied: report.copied,
            reused: report.reused,
            methods: report.methods,
        }),
    }
}
