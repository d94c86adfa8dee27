//! Removes what a fork that will never be finished has left: only objects that are proved to be its own,
//! each by its own name, and never once there may have been a commit.
//!
//! Somebody may commit the fork at the same time. Object stores have no locks: each says first what it is about to do,
//! this one with a mark beside the snapshot, the other in the fork's journal, and looks for the other then.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};

use crate::error::{Error, ErrorKind, Result};
use crate::ownership::{GivingUp, MarkedFork, SETTLE, is_given_up, remove_earlier};
use crate::progress::Progress;
use crate::restore::RestorePlan;
use crate::store::{Journal, Location, OWN_FOLDER, Stat, Stores};

use super::document::{refuse_part, understand_plan};
use super::site::Site;

/// Objects compared or removed at once.
const AT_ONCE: usize = 16;

/// How to abandon.
#[derive(Debug, Clone, Copy)]
pub struct AbandonOptions {
    /// Remove. Without this it is only said what would be removed.
    pub apply: bool,
    /// As in [`RunOptions`](super::RunOptions).
    pub other_services: bool,
    /// The caller knows that no job was ever started from this fork, and that nobody is committing it: remove it also
    /// where the evidence does not tell whether it was committed.
    pub never_used: bool,
    /// How long to keep the place after the mark of another run was removed, so that nothing which that one is
    /// removing is a new fork's.
    pub settle: Duration,
}

impl Default for AbandonOptions {
    fn default() -> AbandonOptions {
        AbandonOptions {
            apply: false,
            other_services: false,
            never_used: false,
            settle: SETTLE,
        }
    }
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
    /// Another run gives it up, or was stopped before its end: nobody can go on with the fork, nor begin it again.
    pub being_given_up: bool,
    /// It was done, not only said.
    pub applied: bool,
    /// Objects that are proved to be the fork's, with their sizes, sorted.
    pub own: Vec<(Location, u64)>,
    /// Objects at the fork's places that are not proved to be its own, sorted: they stay, and so do
    /// the note and the journal, and where objects were removed the mark, so that nobody commits what is left.
    pub unproved: Vec<Location>,
}

/// Removes what the fork of `plan` has left, or says what it would remove. Workers must have ended.
///
/// An object is the fork's own if a receipt names this very object, or if it lies at its place and its
/// content is the source's. Objects go first, then the note, and last the mark that keeps others from going on with
/// the fork, so that a run that was stopped can be repeated.
///
/// # Errors
///
/// `Refused` if the fork is committed, if it may have been (unless it was [`AbandonOptions::never_used`]), if another
/// snapshot is there, or if another fork is under way there.
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
                refuse_part(plan)?;
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
    let work = Work {
        stores,
        site: &site,
        snapshot,
        fork: MarkedFork {
            fork_id: fork_id.clone(),
            source: plan.source.clone(),
            destination: root.clone(),
        },
        places,
        never_used: options.never_used,
    };
    let mut report = AbandonReport {
        destination: root.clone(),
        fork_id: fork_id.clone(),
        under_way: false,
        being_given_up: false,
        applied: options.apply,
        own: Vec::new(),
        unproved: Vec::new(),
    };
    let begun = match work.look().await? {
        Now::Begun(begun) => begun,
        now => {
            // A run that was killed may have left a mark. Nobody removes anything of what is committed, nor of what
            // has no note any more.
            if !options.apply {
                report.being_given_up = is_given_up(stores, snapshot, fork_id).await?;
            } else if !matches!(now, Now::Committing) {
                remove_earlier(stores, snapshot, &work.fork, options.settle, progress).await?;
            }
            if matches!(now, Now::NotBegun) {
                work.refuse_left_over().await?;
                if options.apply {
                    work.remove_late_journal().await?;
                }
            }
            return work.nothing_to_do(now, &[]).map(|()| report);
        }
    };
    if !options.apply {
        report.under_way = true;
        work.tell_apart(&begun, &mut report, progress).await?;
        return Ok(report);
    }
    // The mark before the looks that count: whoever commits notes that first, and then looks for marks.
    let mark = GivingUp::begin(stores, snapshot, work.fork.clone()).await?;
    let begun = match work.look().await {
        Ok(Now::Begun(begun)) => begun,
        Ok(Now::Committing) => {
            mark.take_back(stores).await;
            let refused = work.nothing_to_do(Now::Committing, mark.earlier());
            return refused.map(|()| report);
        }
        Ok(now) => {
            mark.end(stores, options.settle, progress).await?;
            if matches!(now, Now::NotBegun) {
                work.refuse_left_over().await?;
                work.remove_late_journal().await?;
            }
            return work.nothing_to_do(now, &[]).map(|()| report);
        }
        Err(e) => {
            mark.take_back(stores).await;
            return Err(e);
        }
    };
    report.under_way = true;
    if let Err(e) = work.tell_apart(&begun, &mut report, progress).await {
        mark.take_back(stores).await;
        return Err(e);
    }
    work.remove_all(&begun, &mut report, &mark, progress)
        .await?;
    work.end(&begun, &report, &mark, options.settle, progress)
        .await?;
    Ok(report)
}

/// How it stands with the fork.
enum Now {
    NotBegun,
    Committed,
    /// Somebody is about to commit it, or was; or it has come to an end that nobody knows.
    Committing,
    Begun(Begun),
}

struct Begun {
    journal: Arc<Journal>,
    /// Its note is there. If not, the pin alone names it, and equal contents prove nothing.
    noted: bool,
}

struct Work<'a> {
    stores: &'a Stores,
    site: &'a Site<'a>,
    snapshot: &'a Location,
    fork: MarkedFork,
    /// What is copied, and where to.
    places: Vec<(Location, Location)>,
    never_used: bool,
}

impl Work<'_> {
    /// The journal, the commit object, and then the note and the pin: whoever ends the fork writes the commit object and
    /// then removes the others, last what says in the journal that there may have been a commit. So that it said so when
    /// the journal was read, if the note is still there after that.
    async fn look(&self) -> Result<Now> {
        let noted = self.site.is_under_way().await;
        let noted = match noted {
            Err(e) if self.is_committed().await? => {
                tracing::debug!(error = %e, "another fork's note beside a commit object");
                return Ok(Now::Committed);
            }
            other => other?,
        };
        let begun = noted || self.site.is_pinned().await?;
        let journal = match begun || self.never_used {
            true => Some(self.site.journal().await?),
            false => None,
        };
        if self.is_committed().await? {
            return Ok(Now::Committed);
        }
        let Some(journal) = journal else {
            return Ok(Now::NotBegun);
        };
        if journal.is_committing() && !self.never_used {
            return Ok(Now::Committing);
        }
        if self.never_used {
            // Also what was copied after the fork was given up: then the caller's word stands for the note.
            return Ok(Now::Begun(Begun {
                journal,
                noted: true,
            }));
        }
        let noted = noted && self.site.is_under_way().await?;
        Ok(match noted || self.site.is_pinned().await? {
            true => Now::Begun(Begun { journal, noted }),
            false => Now::NotBegun,
        })
    }

    /// Refuses to say that there is nothing where something lies at the places of a fork that is not under way. One
    /// listing per 1,000 objects.
    async fn refuse_left_over(&self) -> Result<()> {
        let wanted: Vec<Location> = self.places.iter().map(|(_, at)| at.clone()).collect();
        let there = self.stores.stat_all(&wanted).await?;
        let mut left = wanted
            .iter()
            .filter(|at| matches!(there.get(at), Some(Some(_))));
        let Some(first) = left.next() else {
            return Ok(());
        };
        let many = left.count() + 1;
        Err(Error::refused(format!(
            "this fork is not under way, but {many} of its objects are here: a worker, or the service itself, copied them \
             after it was given up; or it was committed, and a job that uses them has removed the commit object"
        ))
        .at(first)
        .hint(NEVER_USED))
    }

    /// Removes the receipts that a worker has written while its fork was given up, of which nothing else is left. One
    /// listing, one read and one deletion for each object of the journal.
    async fn remove_late_journal(&self) -> Result<()> {
        let journal = self.site.journal().await?;
        // Not where it may have been committed, nor what belongs to workers that have begun again meanwhile: what they
        // write from now on is not among what was read.
        if !journal.is_there() || journal.is_committing() || self.site.is_begun().await? {
            return Ok(());
        }
        self.stores.undo_unfinished(&journal).await?;
        journal.remove().await?;
        self.site.remove_empty_folders().await;
        Ok(())
    }

    async fn is_committed(&self) -> Result<bool> {
        Ok(self.stores.find(self.site.commit_at()).await?.is_some())
    }

    /// Fine if there is nothing; `earlier` are marks of runs before.
    fn nothing_to_do(&self, now: Now, earlier: &[Location]) -> Result<()> {
        match (now, earlier.first()) {
            (Now::Committed, _) => Err(Error::refused(
                "a snapshot is committed there: its files are in use",
            )
            .at(self.snapshot)
            .hint(
                "if the note of the fork is still there, `forkpoint commit PLAN` removes it and says whether the snapshot is \
                 whole; a snapshot that shall go is a matter of `forkpoint why` and `forkpoint clean`",
            )),
            (Now::Committing, None) => Err(committing().at(self.snapshot).hint(WAYS_OUT)),
            (Now::Committing, Some(mark)) => Err(committing().at(self.snapshot).hint(format!(
                "{WAYS_OUT}. A run of `forkpoint abandon` that was stopped has left {mark}, which \
                 keeps it from that: see that none is at work, and remove this mark first"
            ))),
            (Now::NotBegun | Now::Begun(_), _) => Ok(()),
        }
    }

    /// Finds what is at the fork's places, and whose it is.
    async fn tell_apart(
        &self,
        begun: &Begun,
        report: &mut AbandonReport,
        progress: &dyn Progress,
    ) -> Result<()> {
        let wanted: Vec<Location> = self.places.iter().map(|(_, at)| at.clone()).collect();
        progress.begin("looking for what is left", wanted.len() as u64, 0);
        let there = self.stores.stat_all(&wanted).await;
        progress.end();
        let mut there = there?;
        let found: Vec<(Location, Location, Stat)> = self
            .places
            .iter()
            .filter_map(|(source, at)| {
                Some((source.clone(), at.clone(), there.remove(at).flatten()?))
            })
            .collect();
        let mut answers = futures::stream::iter(found)
            .map(|(source, at, stat)| async move {
                let own = is_own(self.stores, begun, &source, &at, &stat).await?;
                Ok::<_, Error>((at, stat.size, own))
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
        Ok(())
    }

    /// Removes what is the fork's, and what came while that was removed: a worker may not have seen the mark yet, and a
    /// service ends copies whose worker was killed.
    async fn remove_all(
        &self,
        begun: &Begun,
        report: &mut AbandonReport,
        mark: &GivingUp,
        progress: &dyn Progress,
    ) -> Result<()> {
        let mut now = report.clone();
        for _ in 0..LOOKS {
            progress.begin("removing", now.own.len() as u64, 0);
            let removed = self.remove_objects(&now, mark, progress).await;
            progress.end();
            removed?;
            if now.own.is_empty() {
                return Ok(());
            }
            now.own.clear();
            now.unproved.clear();
            self.tell_apart(begun, &mut now, progress).await?;
            report.own.extend(now.own.iter().cloned());
            report.own.sort();
            report.unproved.clone_from(&now.unproved);
            if now.own.is_empty() {
                return Ok(());
            }
        }
        mark.rest(self.stores).await;
        Err(
            Error::refused("objects of the fork keep coming: a worker is still copying them")
                .at(self.snapshot)
                .hint("end its workers, and run the same command again"),
        )
    }

    /// Removes what says that the fork is under way, the mark last.
    async fn end(
        &self,
        begun: &Begun,
        report: &AbandonReport,
        mark: &GivingUp,
        settle: Duration,
        progress: &dyn Progress,
    ) -> Result<()> {
        let (stores, root) = (self.stores, &report.destination);
        stores.undo_unfinished(&begun.journal).await?;
        // Also where a worker was stopped before it had written anything, or somebody else has removed what it had.
        let folders: BTreeSet<Location> = self
            .places
            .iter()
            .filter_map(|(_, at)| at.parent())
            .collect();
        for folder in &folders {
            let inside = folder.child("x");
            stores.remove_empty_folders(&inside, root).await;
        }
        if report.unproved.is_empty() {
            mark.check(stores).await?;
            self.site.tidy(&begun.journal).await?;
            mark.end(stores, settle, progress).await?;
            self.site.remove_empty_folders().await;
        } else if report.own.is_empty() {
            // Nothing has gone, so that nothing keeps anybody from finishing it.
            mark.take_back(stores).await;
        } else {
            mark.rest(stores).await;
        }
        Ok(())
    }

    async fn remove_objects(
        &self,
        report: &AbandonReport,
        mark: &GivingUp,
        progress: &dyn Progress,
    ) -> Result<()> {
        // Also where there is nothing to remove.
        mark.check(self.stores).await?;
        futures::stream::iter(&report.own)
            .map(|(at, _)| async move {
                mark.remove(self.stores, at).await?;
                progress.advance(1, 0);
                Ok::<_, Error>(())
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(())
    }
}

/// How often it is looked for objects that came meanwhile.
const LOOKS: usize = 4;

/// What to do with objects of a fork that has no note.
const NEVER_USED: &str = "if you know that no job was ever started from this fork, `forkpoint abandon PLAN --apply --never-used` \
     removes what is equal to its source";

/// What to do where it is not known whether there was a commit.
const WAYS_OUT: &str = "finish it with `forkpoint commit PLAN` (after `forkpoint run PLAN --worker I` for each worker that is not done); \
     or, if you know that no job was ever started from it and that nobody is committing it, remove it with `forkpoint abandon \
     PLAN --apply --never-used`";

fn committing() -> Error {
    Error::refused(
        "somebody was about to commit this fork, and may have, or it came to its end while a worker was at work: a job may \
         use what was copied",
    )
}

/// Is the object `there` at `at` this fork's duplicate of `source`?
async fn is_own(
    stores: &Stores,
    begun: &Begun,
    source: &Location,
    at: &Location,
    there: &Stat,
) -> Result<bool> {
    if let Some(receipt) = begun.journal.receipt(at)
        && receipt.source == *source
        && receipt.is_of(there)
    {
        return Ok(true);
    }
    if !begun.noted {
        return Ok(false);
    }
    match stores.find(source).await? {
        Some(stat) if stat.size == there.size => stores.same_content(source, at, stat.size).await,
        _ => Ok(false),
    }
}
