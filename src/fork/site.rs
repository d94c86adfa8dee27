//! Where a fork is written: its note, its journal, its commit object, and the proof. I/O.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;

use crate::error::{Error, ErrorKind, Result};
use crate::ownership::{
    PinRequest, is_job_id, is_pinned_by, marks_in, refuse_destination, refuse_given_up,
};
use crate::progress::Progress;
use crate::restore::{Attempt, ForkPlan, find_violations, give_up, give_up_unused};
use crate::snapshot::CommitObject;
use crate::store::{Journal, Location, Provider, Stat, Stores};
use crate::verify;

use super::damage::lost;
use super::pinning::{cannot_be_written, pin_source, unpin_source};

/// A fork that has begun.
pub(super) struct Begun<T> {
    /// Why the source could not be pinned, if so.
    pub(super) unpinned: Option<String>,
    /// What was written to the journal until then.
    pub(super) journal: Result<Arc<Journal>>,
    /// What else was looked at.
    pub(super) seen: T,
}

/// One fork's place.
pub(super) struct Site<'a> {
    stores: &'a Stores,
    root: Location,
    fork_id: String,
    attempt: Attempt,
    note_at: Location,
    commit_at: Location,
    source: Location,
    /// The folder of the new snapshot.
    snapshot: Location,
}

impl<'a> Site<'a> {
    /// The place of the fork `fork_id` of the snapshot in `source`: the new snapshot lies in the folder
    /// `snapshot` below `root`.
    pub(super) fn new(
        stores: &'a Stores,
        fork_id: &str,
        source: &Location,
        root: &Location,
        snapshot: &Location,
        commit_object: &str,
    ) -> Result<Site<'a>> {
        Ok(Site {
            stores,
            root: root.clone(),
            fork_id: fork_id.to_string(),
            attempt: Attempt::new(fork_id, source),
            note_at: Attempt::location(root, snapshot)?,
            commit_at: snapshot.join(commit_object)?,
            source: source.clone(),
            snapshot: snapshot.clone(),
        })
    }

    /// The place of the plan that the workers go by, for the note and the pin: whoever meets one of them learns how
    /// to go on.
    pub(super) fn by_plan(mut self, plan: Option<&Location>) -> Site<'a> {
        self.attempt = self.attempt.by_plan(plan);
        self
    }

    /// Where the commit object goes.
    pub(super) fn commit_at(&self) -> &Location {
        &self.commit_at
    }

    /// Is this fork under way? One request.
    ///
    /// # Errors
    ///
    /// `Refused` if another one is.
    pub(super) async fn is_under_way(&self) -> Result<bool> {
        self.attempt.is_under_way(self.stores, &self.note_at).await
    }

    /// Is this fork under way, or was it begun and has its note gone, so that only the pin of the source tells? One
    /// request, or two.
    ///
    /// # Errors
    ///
    /// As [`Site::is_under_way`].
    pub(super) async fn is_begun(&self) -> Result<bool> {
        Ok(self.is_under_way().await? || self.is_pinned().await?)
    }

    /// Does the source have the pin of this fork? One request. Where it cannot be read, there is none.
    pub(super) async fn is_pinned(&self) -> Result<bool> {
        match is_pinned_by(self.stores, &self.source, &self.pin()).await {
            Err(e) if cannot_be_written(e.kind()) => Ok(false),
            other => other,
        }
    }

    /// Refuses to go on while somebody gives this fork up. One listing.
    ///
    /// # Errors
    ///
    /// `Refused`.
    pub(super) async fn refuse_given_up(&self) -> Result<()> {
        refuse_given_up(self.stores, &self.snapshot).await
    }

    /// Refuses to begin where a cleaner is at work that has not seen the note. One listing.
    ///
    /// # Errors
    ///
    /// `Refused`.
    pub(super) async fn refuse_marked(&self) -> Result<()> {
        refuse_destination(self.stores, &self.snapshot).await
    }

    /// Is this fork committed? One request, and one more if there is a commit object: it is either the
    /// one that we would write, or not ours.
    ///
    /// # Errors
    ///
    /// `Refused` if another snapshot is there.
    pub(super) async fn is_committed(&self, ours: impl FnOnce() -> Result<Bytes>) -> Result<bool> {
        let Some(stat) = self.stores.find(&self.commit_at).await? else {
            return Ok(false);
        };
        let ours = ours()?;
        if stat.size == ours.len() as u64
            && self.stores.read(&self.commit_at, stat.size).await? == ours
        {
            return Ok(true);
        }
        Err(Error::refused("another snapshot is already there")
            .at(&self.commit_at)
            .hint("it was left as it is; choose another destination"))
    }

    /// Pins the source and writes the note of a fork that was not under way a moment ago, after a look
    /// that nothing is at its `places`, unless [`Site::is_empty`] has just said that nothing is at all. Then it reads the
    /// journal, and gives what `look` sees. One listing request if the destination is empty, and those of
    /// [`Site::begin_anyway`].
    ///
    /// # Errors
    ///
    /// `Refused` if something is there, if another fork was faster, or if a cleaner is at work.
    pub(super) async fn begin<F: Future>(
        &self,
        places: &[Location],
        is_empty: bool,
        look: impl Fn() -> F,
    ) -> Result<Begun<F::Output>> {
        match is_empty || self.refuse_taken(places).await? {
            true => self.begin_anyway(look).await,
            false => {
                let (journal, seen) = tokio::join!(self.journal(), look());
                Ok(Begun {
                    unpinned: None,
                    journal,
                    seen,
                })
            }
        }
    }

    /// The same without looking what is there.
    pub(super) async fn begin_anyway<F: Future>(
        &self,
        look: impl Fn() -> F,
    ) -> Result<Begun<F::Output>> {
        let unpinned = self.pin_source().await?;
        match self.write_note(look).await {
            Ok((journal, seen)) => Ok(Begun {
                unpinned,
                journal,
                seen,
            }),
            Err(e) => {
                // Nothing was copied yet, so that nothing needs to be kept.
                unpin_source(self.stores, &self.source, &self.pin()).await?;
                Err(e)
            }
        }
    }

    async fn write_note<F: Future>(
        &self,
        look: impl Fn() -> F,
    ) -> Result<(Result<Arc<Journal>>, F::Output)> {
        // A cleaner that has not seen the note has left a mark. At once: each answer of a cloud takes its time.
        let looks = || {
            let looked = look();
            async { tokio::join!(self.refuse_marked(), self.journal(), looked) }
        };
        let noted = self.attempt.begin_and(self.stores, &self.note_at, looks);
        let (marked, journal, seen) = noted.await?;
        if let Err(e) = marked {
            self.stores.delete(&self.note_at).await?;
            return Err(e);
        }
        Ok((journal, seen))
    }

    /// Keeps cleaners from the source while it is read. Says why it could not be, if so.
    ///
    /// # Errors
    ///
    /// `Refused` if a cleaner is about to delete it.
    pub(super) async fn pin_source(&self) -> Result<Option<String>> {
        pin_source(self.stores, &self.source, &self.pin()).await
    }

    fn pin(&self) -> PinRequest {
        PinRequest::of_fork(&self.fork_id, &self.root).by_plan(self.attempt.plan.as_ref())
    }

    /// Where no fork is under way, nothing may be at the destinations: an equal object there may be a
    /// finished fork's, and belong to a running job by now. True if nothing is; false if what is there
    /// is this fork's, which another worker has begun meanwhile.
    pub(super) async fn refuse_taken(&self, places: &[Location]) -> Result<bool> {
        if places.is_empty() || self.is_empty().await {
            return Ok(true);
        }
        self.refuse_folder_of_another_job().await?;
        if self.is_under_way().await? {
            return Ok(false);
        }
        let there = self.stores.stat_all(places).await?;
        let Some(at) = places
            .iter()
            .find(|at| matches!(there.get(at), Some(Some(_))))
        else {
            return Ok(true);
        };
        if self.is_under_way().await? {
            return Ok(false);
        }
        let e = Error::refused(
            "an object is already there, and no fork to this place is under way: it may be in use",
        )
        .at(at);
        if !self.is_pinned().await? {
            return Err(e.hint(format!(
                "it was left as it is; choose another destination. If it is left of this very fork, which was given up, and no \
                 job was ever started from it: {} removes it",
                give_up_unused(&self.source, &self.root)
            )));
        }
        Err(e.hint(format!(
            "it was left as it is. The pin `{}` of {} says that this very fork was begun and not ended, but its note {} has \
             gone: give it up with {}, which removes what its receipts prove, or choose another destination",
            self.pin().name,
            self.source,
            self.note_at,
            give_up(&self.source, &self.root),
        )))
    }

    /// Refuses the folder of another job that has checkpoints there: the fork would count as one of them, and the job's
    /// own would go when all but the last few do. Costs requests only where the folder is named by a job id: one
    /// listing per 1,000 objects.
    ///
    /// # Errors
    ///
    /// `Refused`.
    async fn refuse_folder_of_another_job(&self) -> Result<()> {
        let job = self.root.name();
        let of_source = self.source.parent().is_some_and(|of| of.name() == job);
        if of_source || !is_job_id(job) {
            return Ok(());
        }
        let name = self.commit_at.name();
        let mut listing = self.stores.list_stream(&self.root)?;
        while let Some((at, _)) = listing.try_next().await? {
            let is_snapshot = at.name() == name
                && at.parent().and_then(|f| f.parent()).as_ref() == Some(&self.root);
            if is_snapshot && at != self.commit_at {
                return Err(Error::refused(format!(
                    "this is the folder of job {job}, which has checkpoints there: the fork would count as one of them, and \
                     whoever keeps the last few would delete the job's own"
                ))
                .at(&at)
                .hint("choose a folder of its own for the fork"));
            }
        }
        Ok(())
    }

    /// Does a listing show that nothing is below the root? One request. Not asked on local disk, where a look at each
    /// place costs less than to walk a tree.
    pub(super) async fn is_empty(&self) -> bool {
        if self.root.provider() == Provider::Local {
            return false;
        }
        match self.stores.list_stream(&self.root) {
            Ok(mut listing) => matches!(listing.try_next().await, Ok(None)),
            Err(_) => false,
        }
    }

    /// The fork's journal, with all that was written to it until now.
    pub(super) async fn journal(&self) -> Result<Arc<Journal>> {
        let journal = Journal::open(self.stores, &self.root, &self.fork_id).await?;
        Ok(Arc::new(journal))
    }

    /// Writes the commit object, unless it is there. Four requests.
    ///
    /// Its files were looked at before. If this run then stops for so long that somebody gives the fork up as a whole
    /// and it is begun again, this writes the commit object of files that are not all there yet. That is no silent loss:
    /// the proof, which comes after it, finds them missing and says that the fork is damaged, and whoever has begun it
    /// again brings them back.
    ///
    /// # Errors
    ///
    /// `Refused` if somebody gives the fork up, or has done so; then nothing is left of the try.
    pub(super) async fn commit(&self, journal: &Journal, metadata: &Bytes) -> Result<()> {
        let entry = journal.committing(&self.commit_at).await?;
        // Only now: whoever gives the fork up and has not seen the entry has left a mark, or is done.
        if let Err(e) = self.refuse_given_up_or_gone().await {
            if matches!(self.is_committed(|| Ok(metadata.clone())).await, Ok(true)) {
                return Ok(());
            }
            // Nothing was committed, and will be: else nobody could give up a fork of which much has gone already.
            if let Some(entry) = &entry
                && let Err(e) = journal.take_back(entry).await
            {
                tracing::warn!(%entry, error = %e, "what says that the fork is being committed could not be taken back");
            }
            return Err(e.during("commit"));
        }
        match self
            .stores
            .put(&self.commit_at, metadata.clone(), true)
            .await
        {
            Ok(_) => Ok(()),
            // Another run of the same fork was faster, or it is refused.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                match self.is_committed(|| Ok(metadata.clone())).await? {
                    true => Ok(()),
                    false => Err(e.during("commit")),
                }
            }
            Err(e) => Err(e.during("commit")),
        }
    }

    /// The mark first: whoever gives the fork up removes its note and then its mark.
    async fn refuse_given_up_or_gone(&self) -> Result<()> {
        self.refuse_given_up().await?;
        match self.is_under_way().await? {
            true => Ok(()),
            false => Err(Error::refused(
                "the fork came to its end while it was about to be committed: it was given up with `forkpoint abandon`, or \
                 committed by another run, and its job has removed the commit object",
            )
            .at(&self.snapshot)
            .hint(format!(
                "nothing was committed by this run; to make the fork all the same, run `forkpoint fork` or the workers of its \
                 plan again; if this run has copied anything since and no job uses this fork, {} removes it",
                give_up_unused(&self.source, &self.root)
            ))),
        }
    }

    /// Removes what only a fork under way needs: unfinished copies, receipts, the pin, the note, and last what says in
    /// the journal that there may have been a commit.
    ///
    /// In this order, since whoever gives a fork up takes the copies of one that has a note or a pin for nobody's: as
    /// long as one of them is there, the journal must say that somebody may use them, even when the job that was
    /// started from the fork has removed the commit object meanwhile. While there is a commit object, a rerun takes up
    /// where this one stopped.
    pub(super) async fn tidy(&self, journal: &Journal) -> Result<()> {
        self.stores.undo_unfinished(journal).await?;
        let rest = journal.remove_receipts().await?;
        unpin_source(self.stores, &self.source, &self.pin()).await?;
        self.stores.delete(&self.note_at).await?;
        journal.remove_rest(&rest).await
    }

    /// Removes what a run that was killed while it tidied has left of a committed fork without a note. One listing.
    pub(super) async fn tidy_rest(&self) -> Result<()> {
        let journal = self.journal().await?;
        match journal.is_there() {
            true => self.tidy(&journal).await,
            false => Ok(()),
        }
    }

    /// Begins the fork again, of which the note has gone while this run was copying: else nobody could remove what was
    /// copied since. Best effort: the run fails anyhow.
    ///
    /// Somebody has given the fork up; or it was committed, and the job that was started from it has removed the commit
    /// object since. Which of the two it was nobody can know, so that the journal says first that somebody may use the
    /// copies.
    pub(super) async fn note_again(&self, journal: &Journal) {
        let again = async {
            if self.is_under_way().await? || self.stores.find(&self.commit_at).await?.is_some() {
                return Ok(());
            }
            journal.committing(&self.commit_at).await?;
            if let Err(e) = self.pin_source().await {
                tracing::warn!(source = %self.source, error = %e, "the source could not be pinned again");
            }
            // No look for marks: whoever gives the fork up right now has not seen what this run has copied.
            self.attempt.begin(self.stores, &self.note_at).await
        };
        if let Err(e) = again.await {
            tracing::warn!(at = %self.note_at, error = %e, "the note of a fork that was given up could not be written again");
        }
    }

    /// Undoes [`Site::begin`], after which nothing was done.
    pub(super) async fn take_back(&self) -> Result<()> {
        self.stores.delete(&self.note_at).await?;
        unpin_source(self.stores, &self.source, &self.pin()).await
    }

    /// Removes folders of local disk that the note and the journal have left.
    pub(super) async fn remove_empty_folders(&self) {
        let own = [
            Some(self.note_at.clone()),
            self.snapshot
                .parent()
                .map(|home| marks_in(&home).child("x")),
        ];
        for at in own.iter().flatten() {
            self.stores.remove_empty_folders(at, &self.root).await;
        }
    }
}

/// Reads back what was written and proves from it alone that the fork stands alone.
pub(super) async fn prove(stores: &Stores, plan: &ForkPlan, progress: &dyn Progress) -> Result<()> {
    let fail = |why: String| {
        Err(
            Error::corrupt(format!("the fork was written but is not proved: {why}"))
                .during("prove")
                .at(&plan.snapshot),
        )
    };
    let written = CommitObject::read(stores, &plan.snapshot)
        .await?
        .snapshot()?;
    let places: HashSet<Location> = plan
        .tasks
        .iter()
        .map(|t| t.destination.clone())
        .chain(plan.folders.iter().map(|f| f.destination.clone()))
        .collect();
    if let Some(first) = find_violations(&written, &plan.destination, &places).first() {
        return fail(first.to_string());
    }
    if written.objects.len() as u64 != plan.objects {
        return fail(format!(
            "it refers to {} objects, not {}",
            written.objects.len(),
            plan.objects
        ));
    }
    let stats = verify::look_at_objects(stores, &written, progress).await?;
    for task in &plan.tasks {
        match stats.get(&task.destination) {
            Some(Some(Stat { size, .. })) if *size == task.size => {}
            Some(Some(Stat { size, .. })) => {
                return fail(format!(
                    "{} is {size} bytes long, not {}",
                    task.destination, task.size
                ));
            }
            _ => {
                let lost = lost(&plan.snapshot, &written.directory, task);
                return Err(lost.during("prove"));
            }
        }
    }
    match verify::find_problems(&written, &stats).first() {
        Some(problem) => fail(format!("{}: {}", problem.location, problem.problem)),
        None => Ok(()),
    }
}
