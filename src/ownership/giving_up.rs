//! The marks of those who give a fork up: `.forkpoint/going/abandon-FORK-RUN.json` beside the snapshot that shall
//! never be. I/O.
//!
//! Whoever gives a fork up writes its mark first and looks then whether the fork is committed, or about to be.
//! Whoever commits a fork notes so in the fork's journal first and looks for marks then. At least one of the two
//! sees the other and steps back; both may.
//!
//! Each run has a mark of its own, so that one that steps back takes nobody else's away. A mark stays until the
//! fork's note has gone, however long that takes: what is half removed must not be committed. Whoever finishes
//! removes the marks of runs before it too, which were killed, or are so slow that they look again before they
//! go on and find theirs gone.
//!
//! Another fork to this place copies to the same names. So that no slow run removes what that one has copied, a run
//! removes an object only within [`FRESH`] and [`CALL`] of a look that found its mark; and whoever has removed the mark
//! of another run that may be at work keeps its own for [`SETTLE`] more, which keeps everybody from the place.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::progress::Progress;
use crate::store::Location;

use super::access::Access;
use super::pin::{active_marks, list};
use super::record::{self, Mark, MarkedFork, RECORD_VERSION, marks_in, nonce};

/// Such a mark counts until it is removed: the end of the year 9999.
const NEVER_UNIX_MS: u64 = 253_402_300_799_000;

/// How old the look may be that found the mark when an object is removed.
const FRESH: Duration = Duration::from_secs(15);
/// How long one removal may take, with all that is repeated: then it is not repeated any more.
const CALL: Duration = Duration::from_secs(30);
/// After so long no run can remove anything any more whose mark has gone: the two above, and for what is on its way.
pub(crate) const SETTLE: Duration = Duration::from_secs(60);

/// How the names of the marks end of runs that have ended and left objects to look at.
const ENDED: &str = "-ended.json";

/// The mark of one run that gives a fork up.
#[derive(Debug)]
pub(crate) struct GivingUp {
    home: Location,
    at: Location,
    mark: Mark,
    earlier: Vec<Location>,
    /// When the last look began that found it.
    seen: Mutex<Option<Instant>>,
}

impl GivingUp {
    /// Marks the fork to the folder `snapshot`. One write, one listing.
    ///
    /// # Errors
    ///
    /// If the mark cannot be written, or those of others not be listed; then none of ours is left.
    pub(crate) async fn begin(
        access: &dyn Access,
        snapshot: &Location,
        fork: MarkedFork,
    ) -> Result<GivingUp> {
        let home = home_of(snapshot)?;
        let mark = Mark {
            version: RECORD_VERSION,
            nonce: nonce(access),
            plan: format!("abandon-{}", fork.fork_id),
            created_unix_ms: access.now(),
            until_unix_ms: NEVER_UNIX_MS,
            snapshots: vec![snapshot.name().to_string()],
            orphans: false,
            fork: Some(fork.clone()),
        };
        let at = marks_in(&home).child(&format!("{}.json", mark.plan.clone() + "-" + &mark.nonce));
        let written = access.create(&at, record::encode(&mark)?).await;
        written.map_err(|e| e.during("mark the fork as given up"))?;
        let mut giving_up = GivingUp {
            home,
            at,
            mark,
            earlier: Vec::new(),
            seen: Mutex::new(None),
        };
        match earlier_marks(access, snapshot, &fork.fork_id).await {
            Ok(earlier) => {
                let others = earlier.into_iter().filter(|at| *at != giving_up.at);
                giving_up.earlier = others.collect();
                Ok(giving_up)
            }
            Err(e) => {
                giving_up.take_back(access).await;
                Err(e)
            }
        }
    }

    /// The marks of runs before this one: killed, or still at work.
    pub(crate) fn earlier(&self) -> &[Location] {
        &self.earlier
    }

    /// Removes an object of the fork, while it is sure that nobody has finished meanwhile, after whom another fork may
    /// have begun. One request, and one more every quarter of a minute.
    ///
    /// # Errors
    ///
    /// `Refused` if somebody has; `Unavailable` if the store takes too long.
    pub(crate) async fn remove(&self, access: &dyn Access, object: &Location) -> Result<()> {
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.is_none_or(|seen| seen.elapsed() >= FRESH) {
            self.check(access).await?;
        }
        let removal = tokio::time::timeout(CALL, access.delete(object));
        removal.await.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Unavailable,
                format!("the store has not answered for {} seconds", CALL.as_secs()),
            )
            .during("remove")
            .at(object)
            .hint("run the same command again"))
        })
    }

    /// Makes sure that nobody has finished meanwhile, after whom another fork may have begun. One request.
    ///
    /// # Errors
    ///
    /// `Refused`.
    pub(crate) async fn check(&self, access: &dyn Access) -> Result<()> {
        let began = Instant::now();
        match access.find(&self.at).await? {
            Some(_) => {
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                *seen = Some(began);
                Ok(())
            }
            None => Err(Error::refused(
                "the mark of this run has gone: another `forkpoint abandon` has finished with this fork meanwhile",
            )
            .at(&self.at)
            .hint("run the same command again: it says what is left, if anything is")),
        }
    }

    /// Removes the own mark after nothing was removed. One that stays keeps the fork from being committed, and the
    /// next run takes it up.
    pub(crate) async fn take_back(&self, access: &dyn Access) {
        if let Err(e) = remove(access, &self.home, &self.at).await {
            tracing::warn!(at = %self.at, error = %e, "a mark could not be removed; run `forkpoint abandon` again");
        }
    }

    /// Changes the mark for one that says that this run has ended: it still keeps everybody from the fork, but nobody
    /// need wait for this run. Best effort: else the next run waits.
    pub(crate) async fn rest(&self, access: &dyn Access) {
        let name = self.at.name().trim_end_matches(".json");
        let at = marks_in(&self.home).child(&format!("{name}{ENDED}"));
        let changed = async {
            access.create(&at, record::encode(&self.mark)?).await?;
            access.delete(&self.at).await
        };
        if let Err(e) = changed.await {
            tracing::warn!(at = %self.at, error = %e, "a mark could not be changed; the next run will wait for this one");
        }
    }

    /// Removes the marks of runs before, waits for `settle` if any of them may be at work, and removes the own one: all
    /// is done.
    ///
    /// Whoever removes marks of others holds one that none of them knows, so that two runs cannot remove all marks between
    /// them while a third is still at work. Of a run whose mark has gone already nobody need wait: it has ended, or a third
    /// run has removed its mark and waits for it, with such a mark.
    ///
    /// # Errors
    ///
    /// If the store refuses; the next run removes what stays.
    pub(crate) async fn end(
        &self,
        access: &dyn Access,
        settle: Duration,
        progress: &dyn Progress,
    ) -> Result<()> {
        if self.earlier.is_empty() {
            return remove(access, &self.home, &self.at).await;
        }
        let name = format!("{}-{}.json", self.mark.plan, nonce(access));
        let unknown = marks_in(&self.home).child(&name);
        access.create(&unknown, record::encode(&self.mark)?).await?;
        let mut may_be_at_work = false;
        for at in &self.earlier {
            may_be_at_work |= !at.name().ends_with(ENDED) && access.find(at).await?.is_some();
            remove(access, &self.home, at).await?;
        }
        remove(access, &self.home, &self.at).await?;
        if may_be_at_work {
            progress.begin(
                "waiting a minute: another run was stopped or is slow, and may still remove something",
                0,
                0,
            );
            access.wait(settle).await;
            progress.end();
        }
        remove(access, &self.home, &unknown).await
    }
}

/// The marks of runs that gave up the fork `fork_id` to the folder `snapshot`. One listing.
pub(crate) async fn earlier_marks(
    access: &dyn Access,
    snapshot: &Location,
    fork_id: &str,
) -> Result<Vec<Location>> {
    let mut marks = list(access, &marks_in(&home_of(snapshot)?)).await?;
    let of_fork = format!("abandon-{fork_id}-");
    marks.retain(|at| at.name().starts_with(&of_fork));
    Ok(marks)
}

/// Is there a mark of somebody who gives the fork `fork_id` to the folder `snapshot` up? One listing.
///
/// # Errors
///
/// Those of [`Access::list`].
pub(crate) async fn is_given_up(
    access: &dyn Access,
    snapshot: &Location,
    fork_id: &str,
) -> Result<bool> {
    Ok(!earlier_marks(access, snapshot, fork_id).await?.is_empty())
}

/// Removes marks of runs that were killed after the fork's note had gone.
///
/// # Errors
///
/// As [`GivingUp::begin`] and [`GivingUp::end`].
pub(crate) async fn remove_earlier(
    access: &dyn Access,
    snapshot: &Location,
    fork: &MarkedFork,
    settle: Duration,
    progress: &dyn Progress,
) -> Result<()> {
    if !is_given_up(access, snapshot, &fork.fork_id).await? {
        return Ok(());
    }
    let own = GivingUp::begin(access, snapshot, fork.clone()).await?;
    own.end(access, settle, progress).await
}

/// Refuses to go on with a fork to the folder `snapshot` while somebody gives it up. One listing, one read per mark.
///
/// # Errors
///
/// `Refused`.
pub(crate) async fn refuse_given_up(access: &dyn Access, snapshot: &Location) -> Result<()> {
    for (at, mark) in active_marks(access, &home_of(snapshot)?).await? {
        if let Some(fork) = &mark.fork
            && mark.snapshots.iter().any(|name| name == snapshot.name())
        {
            return Err(fork.given_up(&at).at(snapshot));
        }
    }
    Ok(())
}

async fn remove(access: &dyn Access, home: &Location, at: &Location) -> Result<()> {
    access.delete(at).await?;
    access.remove_empty_folders(at, home).await;
    Ok(())
}

fn home_of(snapshot: &Location) -> Result<Location> {
    snapshot.parent().ok_or_else(|| {
        Error::new(
            ErrorKind::Invalid,
            "the root of a bucket is no folder of a snapshot",
        )
        .at(snapshot)
    })
}
