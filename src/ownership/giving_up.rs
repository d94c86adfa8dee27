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

use crate::error::{Error, ErrorKind, Result};
use crate::store::Location;

use super::access::Access;
use super::pin::{active_marks, list};
use super::record::{self, Mark, MarkedFork, RECORD_VERSION, marks_in, nonce};

/// Such a mark counts until it is removed: the end of the year 9999.
const NEVER_UNIX_MS: u64 = 253_402_300_799_000;

/// The mark of one run that gives a fork up.
#[derive(Debug)]
pub(crate) struct GivingUp {
    home: Location,
    at: Location,
    earlier: Vec<Location>,
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
            earlier: Vec::new(),
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

    /// Makes sure that nobody has finished meanwhile, after whom another fork may have begun. One request.
    ///
    /// # Errors
    ///
    /// `Refused`.
    pub(crate) async fn check(&self, access: &dyn Access) -> Result<()> {
        match access.find(&self.at).await? {
            Some(_) => Ok(()),
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

    /// Removes the own mark and those of runs before: all is done.
    ///
    /// # Errors
    ///
    /// If the store refuses; the next run removes what stays.
    pub(crate) async fn end(&self, access: &dyn Access) -> Result<()> {
        for at in self.earlier.iter().chain([&self.at]) {
            remove(access, &self.home, at).await?;
        }
        Ok(())
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

/// Removes marks of runs that were killed after their last deletion.
pub(crate) async fn remove_earlier(
    access: &dyn Access,
    snapshot: &Location,
    fork_id: &str,
) -> Result<()> {
    for at in earlier_marks(access, snapshot, fork_id).await? {
        remove(access, &home_of(snapshot)?, &at).await?;
    }
    Ok(())
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
            return Err(given_up(fork, &at).at(snapshot));
        }
    }
    Ok(())
}

/// The error of whoever meets such a mark.
pub(super) fn given_up(fork: &MarkedFork, at: &Location) -> Error {
    let MarkedFork {
        fork_id,
        source,
        destination,
    } = fork;
    Error::refused(format!(
        "fork {fork_id} to here is being given up: a `forkpoint abandon` is at work, or was stopped before its end"
    ))
    .hint(format!(
        "wait until it has ended; if it was stopped, `forkpoint abandon PLAN --apply` goes on with it and removes its mark \
         ({at}) last; if the plan is lost, `forkpoint plan {source} {destination} --workers 1 --out PLAN` makes one; \
         after that the place is free for a fork again"
    ))
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
