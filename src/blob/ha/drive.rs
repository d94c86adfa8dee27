//! Runs the protocol's step machines against the store, each within a limit of time.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;

use crate::clock;
use crate::error::{Error, ErrorKind, Result};

use super::super::chain::{Ask, Claim, Commit, Reply, Sweep, Verdict};
use super::super::fail;
use super::super::key::{JobId, ObjectName, SessionId};
use super::super::manifest::{Content, Manifest};
use super::{HaStore, no_answer};

/// Between two asks of which the first got no answer, at first.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest such wait.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Deletes of one sweep under way at once.
const DELETES_IN_FLIGHT: usize = 16;

/// What a sweep of one job's objects did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    /// Objects that are gone.
    pub(crate) removed: Vec<ObjectName>,
    /// Objects whose removal got no answer: the next sweep tries again.
    pub(crate) failed: Vec<ObjectName>,
    /// Manifests that are gone.
    pub(crate) manifests: u64,
}

impl HaStore {
    async fn in_time<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let result = tokio::time::timeout(self.patience, work).await;
        result.unwrap_or_else(|_| Err(no_answer().at(self.folder())))
    }

    /// Takes the next epoch. A listing and a create.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the store does not answer in time, `Denied`.
    pub(crate) async fn claim(&self) -> Result<u64> {
        self.in_time(async {
            let mut claim = Claim::default();
            let mut unanswered = 0;
            loop {
                if let Some(epoch) = claim.epoch() {
                    return Ok(epoch);
                }
                let reply = self.perform(None, &claim.ask()).await?;
                wait_if_unknown(&reply, &mut unanswered).await;
                claim.answer(reply);
            }
        })
        .await
    }

    /// Commits a job's content, or seals the job if there is none. A listing, a read, a create, a listing; the
    /// first of these is saved where `listed` gives the numbers of an earlier one.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the store does not answer in time: it may have been done or not, and nothing may be
    /// acknowledged. `Corrupt` if the newest manifest cannot be read.
    pub(crate) async fn commit(
        &self,
        job: &JobId,
        epoch: u64,
        content: Option<Content>,
        listed: Option<Vec<u64>>,
    ) -> Result<Verdict> {
        self.commit_after(job, epoch, content, listed, false).await
    }

    /// The same for a job of which it may be known that it has a manifest of this epoch: a listing without any
    /// is then no answer, since the store is not what it was (a file system that is not mounted, say).
    ///
    /// # Errors
    ///
    /// As [`commit`](HaStore::commit).
    pub(crate) async fn commit_again(
        &self,
        job: &JobId,
        epoch: u64,
        content: Content,
        has_manifest: bool,
    ) -> Result<Verdict> {
        self.commit_after(job, epoch, Some(content), None, has_manifest)
            .await
    }

    async fn commit_after(
        &self,
        job: &JobId,
        epoch: u64,
        content: Option<Content>,
        mut listed: Option<Vec<u64>>,
        has_manifest: bool,
    ) -> Result<Verdict> {
        let mut commit: Commit<Manifest> = match content {
            // An id of its own for each attempt: one that failed half-way must not pass for this one.
            Some(content) => Commit::new(epoch, SessionId(clock::random_id()), content),
            None => Commit::seal(epoch),
        };
        self.in_time(async {
            let mut unanswered = 0;
            while let Some(ask) = commit.ask() {
                let creates = matches!(ask, Ask::CreateManifest(..));
                if creates {
                    fail::point("manifest-not-written");
                }
                let reply = match (&ask, listed.take()) {
                    (Ask::ListManifests, Some(numbers)) => Reply::Numbers(numbers),
                    _ => self.perform(Some(job), &ask).await?,
                };
                if creates {
                    fail::point("manifest-written");
                }
                if has_manifest && matches!(&reply, Reply::Numbers(n) if n.is_empty()) {
                    self.still_there().await?;
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        "the job had a manifest, and none is listed",
                    )
                    .during("commit")
                    .at(self.folder())
                    .hint("is the HA store mounted, and has nobody removed what is in it?"));
                }
                wait_if_unknown(&reply, &mut unanswered).await;
                commit.answer(reply);
            }
            Ok(())
        })
        .await?;
        commit.verdict().ok_or_else(no_answer)
    }

    /// Removes what is garbage of one job; `in_flight` is asked for after the objects were listed, and names
    /// what must stay although no manifest names it. Three listings, a read, and a delete for each.
    ///
    /// # Errors
    ///
    /// As [`commit`](HaStore::commit).
    pub(crate) async fn sweep(
        &self,
        job: &JobId,
        epoch: u64,
        in_flight: impl Fn() -> BTreeSet<ObjectName>,
    ) -> Result<(Verdict, Swept)> {
        let mut sweep: Sweep<Manifest> = Sweep::new(epoch);
        let mut swept = Swept::default();
        self.in_time(async {
            let mut unanswered = 0;
            loop {
                let asks = sweep.asks();
                let Some(first) = asks.first() else {
                    return Ok(());
                };
                if matches!(first, Ask::RemoveObject(_) | Ask::RemoveManifest(_)) {
                    self.remove_all(job, &mut sweep, &asks, &mut swept).await?;
                    continue;
                }
                let reply = match first {
                    Ask::CopyInFlight => Reply::Names(in_flight()),
                    ask => self.perform(Some(job), ask).await?,
                };
                wait_if_unknown(&reply, &mut unanswered).await;
                sweep.answer(first, reply);
            }
        })
        .await?;
        let verdict = sweep.verdict().ok_or_else(no_answer)?;
        Ok((verdict, swept))
    }

    async fn remove_all(
        &self,
        job: &JobId,
        sweep: &mut Sweep<Manifest>,
        asks: &[Ask<Manifest>],
        swept: &mut Swept,
    ) -> Result<()> {
        let mut answers = futures::stream::iter(asks.iter().cloned())
            .map(|ask| async move {
                let reply = self.perform(Some(job), &ask).await;
                (ask, reply)
            })
            .buffer_unordered(DELETES_IN_FLIGHT);
        let mut failed: Option<Error> = None;
        while let Some((ask, reply)) = answers.next().await {
            let reply = reply.unwrap_or_else(|e| {
                failed = Some(e);
                Reply::Unknown
            });
            match (&ask, &reply) {
                (Ask::RemoveObject(name), Reply::Removed) => {
                    swept.removed.push(*name);
                    fail::point("object-removed");
                }
                (Ask::RemoveObject(name), _) => swept.failed.push(*name),
                (Ask::RemoveManifest(_), Reply::Removed) => swept.manifests += 1,
                _ => {}
            }
            sweep.answer(&ask, reply);
        }
        if let Some(error) = failed {
            tracing::warn!(%job, %error, "something could not be removed; it is tried again");
        }
        Ok(())
    }
}

async fn wait_if_unknown(reply: &Reply<Manifest>, unanswered: &mut u32) {
    match reply {
        Reply::Unknown => {
            clock::sleep(clock::backoff(*unanswered, FIRST_WAIT, LONGEST_WAIT)).await;
            *unanswered = unanswered.saturating_add(1);
        }
        _ => *unanswered = 0,
    }
}
