//! Removes what a fork that will never be finished has left: only objects that are proved to be its own,
//! each by its own name, and never once there may have been a commit.

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt};

use crate::error::{Error, ErrorKind, Result};
use crate::progress::Progress;
use crate::restore::RestorePlan;
use crate::store::{Journal, Location, OWN_FOLDER, Stat, Stores};

use super::document::understand_plan;
use super::site::Site;

/// Objects compared or removed at once.
const AT_ONCE: usize = 16;

/// How to abandon.
#[derive(Debug, Clone, Copy, Default)]
pub struct AbandonOptions {
    /// Remove. Without this it is only said what would be removed.
    pub apply: bool,
    /// As in [`RunOptions`](super::RunOptions).
    pub other_services: bool,
}

/// What abandoning came to, or would come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbandonReport {
    /// The root of the fork.
    pub destination: Location,
    /// The fork's id.
    pub fork_id: String,
    /// This fork is under way; if not, there is nothing to remove.
    pub under_way: bool,
    /// It was done, not only said.
    pub applied: bool,
    /// Objects that are proved to be the fork's, with their sizes, sorted.
    pub own: Vec<(Location, u64)>,
    /// Objects at the fork's places that are not proved to be its own, sorted: they stay, and so do
    /// the note and the journal.
    pub unproved: Vec<Location>,
}

/// Removes what the fork of `plan` has left, or says what it would remove. Workers must have ended.
///
/// An object is the fork's own if a receipt names this very object, or if it lies at its place and its
/// content is the source's. Objects go first and the note last, so that a run that was stopped can be
/// repeated.
///
/// # Errors
///
/// `Refused` if the fork is committed, if somebody was about to commit it, if another snapshot is
/// there, or if another fork is under way there.
pub async fn abandon(
    stores: &Stores,
    plan: &RestorePlan,
    options: AbandonOptions,
    progress: &dyn Progress,
) -> Result<AbandonReport> {
    let (Some(root), Some(snapshot), Some(fork_id), Some(terms)) = (
        &plan.destination,
        &plan.snapshot,
        &plan.fork_id,
        &plan.terms,
    ) else {
        return Err(Error::invalid(
            "this is no plan of a fork that workers share",
        ));
    };
    // The whole fork, of which the plan may hold a part. When the snapshot has gone, the plan's own
    // tasks; then receipts alone prove anything.
    let places: Vec<(Location, Location)> =
        match understand_plan(stores, plan, options.other_services).await {
            Ok(understood) => {
                let sources = understood.source.objects.iter().map(|o| o.location.clone());
                sources.zip(understood.places).collect()
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let tasks = plan.tasks.iter().map(|t| &t.duplicate);
                tasks
                    .map(|t| (t.source.clone(), t.destination.clone()))
                    .collect()
            }
            Err(e) => return Err(e),
        };
    let note_folder = root.join(OWN_FOLDER)?;
    if let Some((_, at)) = places
        .iter()
        .find(|(_, at)| !root.contains(at) || note_folder.contains(at))
    {
        return Err(Error::refused("the plan names a place outside its fork").at(at));
    }
    let commit_object = terms.commit.name();
    let site = Site::new(stores, fork_id, &plan.source, root, snapshot, commit_object)?;
    if stores.find(site.commit_at()).await?.is_some() {
        return Err(
            Error::refused("a snapshot is committed there: its files are in use")
                .at(snapshot)
                .hint("finish with `forkpoint commit PLAN` if the note of the fork is still there"),
        );
    }
    let mut report = AbandonReport {
        destination: root.clone(),
        fork_id: fork_id.clone(),
        under_way: site.is_under_way().await?,
        applied: options.apply,
        own: Vec::new(),
        unproved: Vec::new(),
    };
    if !report.under_way {
        return Ok(report);
    }
    let journal = site.journal().await?;
    if journal.is_committing() {
        return Err(Error::refused(
            "somebody was about to commit this fork, and may have: a job may use what was copied",
        )
        .at(snapshot)
        .hint("finish it with `forkpoint commit PLAN`"));
    }
    let wanted: Vec<Location> = places.iter().map(|(_, at)| at.clone()).collect();
    progress.begin("looking for what is left", wanted.len() as u64, 0);
    let there = stores.stat_all(&wanted).await;
    progress.end();
    let mut there = there?;
    let found: Vec<(Location, Location, Stat)> = places
        .into_iter()
        .filter_map(|(source, at)| {
            let stat = there.remove(&at).flatten()?;
            Some((source, at, stat))
        })
        .collect();
    let mut answers = futures::stream::iter(found)
        .map(|(source, at, stat)| {
            let journal = &*journal;
            async move {
                let own = is_own(stores, journal, &source, &at, &stat).await?;
                Ok::<_, Error>((at, stat.size, own))
            }
        })
        .buffer_unordered(AT_ONCE);
    while let Some((at, size, own)) = answers.try_next().await? {
        match own {
            true => report.own.push((at, size)),
            false => report.unproved.push(at),
        }
    }
    report.own.sort();
    report.unproved.sort();
    if options.apply {
        progress.begin("removing", report.own.len() as u64, 0);
        let removed: Result<Vec<()>> = futures::stream::iter(&report.own)
            .map(|(at, _)| async move {
                stores.delete(at).await?;
                progress.advance(1, 0);
                Ok(())
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await;
        progress.end();
        removed?;
        stores.undo_unfinished(&journal).await?;
        // Also where a worker was stopped before it had written anything, or somebody else has removed what it had.
        let folders: BTreeSet<Location> = wanted.iter().filter_map(Location::parent).collect();
        for folder in &folders {
            let inside = folder.child("x");
            stores.remove_empty_folders(&inside, root).await;
        }
        if report.unproved.is_empty() {
            site.tidy(&journal).await?;
            site.remove_empty_folders().await;
        }
    }
    Ok(report)
}

/// Is the object `there` at `at` this fork's duplicate of `source`?
async fn is_own(
    stores: &Stores,
    journal: &Journal,
    source: &Location,
    at: &Location,
    there: &Stat,
) -> Result<bool> {
    if let Some(receipt) = journal.receipt(at)
        && receipt.source == *source
        && receipt.is_of(there)
    {
        return Ok(true);
    }
    match stores.find(source).await? {
        Some(stat) if stat.size == there.size => stores.same_content(source, at, stat.size).await,
        _ => Ok(false),
    }
}
