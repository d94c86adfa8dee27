//! One job in a server: its memory, and what is under way for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::{Error, ErrorKind};

use super::super::chain::Verdict;
use super::super::flight::Told;
use super::super::key::{BlobKey, Digest, JobId, Moment, ObjectName};
use super::super::lifecycle::Refusal;
use super::super::registry::{Effect, Registry};
use super::{Failure, Inner, unpoisoned};

/// One job.
pub(super) struct Cell {
    /// Held by events that commit and by sweeps: they go one after the other.
    pub(super) serial: tokio::sync::Mutex<()>,
    /// Events that wait for it.
    queue: Mutex<Queue>,
    state: Mutex<Work>,
}

/// What is locked for moments only, and never while something waits.
pub(super) struct Work {
    /// Of this job alone.
    pub(super) registry: Registry,
    /// Objects that uploads write right now: no session lists them yet.
    pub(super) writing: BTreeSet<ObjectName>,
    /// Contents whose local files uploads and fetches are about to publish, and how many of them.
    pub(super) arriving: BTreeMap<Digest, u32>,
    /// Objects that no manifest names, and when they may go.
    pub(super) orphans: BTreeMap<ObjectName, Moment>,
    /// A sweep of the HA store has something to look for.
    pub(super) dirty: bool,
    /// A commit has failed, and its manifest may be there all the same: it may say something else than memory.
    pub(super) unsettled: bool,
    /// A manifest of this owner is the newest, so that an older one cannot commit any more.
    pub(super) sealed: bool,
    /// Nothing was left of the job and its cell is not looked at any more.
    pub(super) forgotten: bool,
}

impl Work {
    /// Fails if the cell was forgotten between a look at it and now: the next call gets a new one.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self.forgotten {
            false => Ok(()),
            true => Err(Failure::Busy {
                wait: Duration::from_secs(1),
                why: "the job was just being forgotten".to_string(),
            }),
        }
    }

    /// Names that a sweep of the HA store must leave alone although no manifest names them.
    pub(super) fn in_flight(&self, job: &JobId, now: Moment) -> BTreeSet<ObjectName> {
        let mut names = self.registry.in_flight(job);
        names.extend(&self.writing);
        // A commit of unknown outcome may have left a manifest that does not name what memory does.
        let blobs = self.registry.job(job).into_iter();
        names.extend(
            blobs
                .flat_map(|j| j.blobs.values())
                .filter_map(|b| b.object),
        );
        let waiting = self.orphans.iter().filter(|(_, due)| **due > now);
        names.extend(waiting.map(|(name, _)| *name));
        names
    }
}

impl Cell {
    pub(super) fn new(registry: Registry, sealed: bool) -> Cell {
        Cell {
            serial: tokio::sync::Mutex::new(()),
            queue: Mutex::default(),
            state: Mutex::new(Work {
                registry,
                writing: BTreeSet::new(),
                arriving: BTreeMap::new(),
                orphans: BTreeMap::new(),
                dirty: false,
                unsettled: false,
                sealed,
                forgotten: false,
            }),
        }
    }

    pub(super) fn work(&self) -> MutexGuard<'_, Work> {
        unpoisoned(&self.state)
    }
}

/// An event on its way to a job's memory: what it changes there, and how its outcome is told.
type Queued = Box<dyn FnOnce(&mut Registry, Moment) -> (Vec<Effect>, Answer) + Send>;
/// Tells whoever waits that the commit stands, or why not.
type Answer = Box<dyn FnOnce(Result<(), Failure>) + Send>;

/// Events of one job that wait for their turn.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// A task works them off.
    has_worker: bool,
}

struct Waiting {
    event: Queued,
    /// Gone once nobody waits for the answer any more.
    caller: Weak<()>,
}

impl Queue {
    /// Whoever went away before the turn came may have repeated the call, or done something else since: what was
    /// not begun is not done.
    fn drop_abandoned(&mut self) {
        self.waiting.retain(|w| w.caller.strong_count() > 0);
    }
}

/// Most events that one commit takes along.
const MOST_IN_BATCH: usize = 64;
/// Most events of one job that wait: what comes while the HA store gives no answer.
const MOST_WAITING: usize = 256;

fn queued<T: Send + 'static>(
    event: impl FnOnce(&mut Registry, Moment) -> Result<(T, Vec<Effect>), Refusal> + Send + 'static,
) -> (Queued, oneshot::Receiver<Result<T, Failure>>) {
    let (tell, told) = oneshot::channel();
    let queued: Queued = Box::new(move |registry, now| {
        let (effects, said) = match event(registry, now) {
            Ok((value, effects)) => (effects, Ok(value)),
            // Refused for what an event before it did, perhaps, whose commit may yet fail.
            Err(refusal) => (Vec::new(), Err(refusal)),
        };
        let answer: Answer = Box::new(move |outcome| {
            let said = outcome.and_then(|()| said.map_err(Failure::from));
            // Whoever asked may have gone away.
            let _ = tell.send(said);
        });
        (effects, answer)
    });
    (queued, told)
}

async fn answer_of<T>(told: oneshot::Receiver<Result<T, Failure>>) -> Result<T, Failure> {
    told.await.unwrap_or_else(|_| {
        let text = "an event came to no end";
        Err(Failure::Store(Error::new(ErrorKind::Internal, text)))
    })
}

impl Inner {
    /// Applies an event, commits what it changed, and does the rest of its effects. Once begun it comes to its end
    /// even if the caller goes away; before that it is dropped with the caller. Events of a job that wait at the
    /// same time share a commit.
    pub(super) async fn change<T: Send + 'static>(
        self: &Arc<Self>,
        job: &JobId,
        event: impl FnOnce(&mut Registry, Moment) -> Result<(T, Vec<Effect>), Refusal> + Send + 'static,
    ) -> Result<T, Failure> {
        self.check_owner()?;
        let cell = self.cell_to_begin(job)?;
        let (event, told) = queued(event);
        let caller = Arc::new(());
        let begins = {
            let mut queue = unpoisoned(&cell.queue);
            queue.drop_abandoned();
            if queue.waiting.len() >= MOST_WAITING {
                return Err(Failure::Busy {
                    wait: Duration::from_secs(5),
                    why: format!("{MOST_WAITING} calls of the job wait already"),
                });
            }
            queue.waiting.push_back(Waiting {
                event,
                caller: Arc::downgrade(&caller),
            });
            !std::mem::replace(&mut queue.has_worker, true)
        };
        if begins {
            let (me, job) = (Arc::clone(self), job.clone());
            tokio::spawn(async move { me.work_off(&job, &cell).await });
        }
        let answer = answer_of(told).await;
        drop(caller);
        answer
    }

    /// Works events off, turn by turn, until none waits.
    async fn work_off(self: &Arc<Self>, job: &JobId, cell: &Arc<Cell>) {
        loop {
            let _turn = cell.serial.lock().await;
            let batch: Vec<Queued> = {
                let mut queue = unpoisoned(&cell.queue);
                queue.drop_abandoned();
                let count = queue.waiting.len().min(MOST_IN_BATCH);
                queue.has_worker = count > 0;
                queue.waiting.drain(..count).map(|w| w.event).collect()
            };
            if batch.is_empty() {
                // Of a call that was refused, say.
                return self.let_go_in_turn(job, cell);
            }
            self.change_together(job, cell, batch).await;
        }
    }

    /// The same, by whoever has the cell's turn.
    pub(super) async fn change_in_turn<T: Send + 'static>(
        self: &Arc<Self>,
        job: &JobId,
        cell: &Arc<Cell>,
        event: impl FnOnce(&mut Registry, Moment) -> Result<(T, Vec<Effect>), Refusal> + Send + 'static,
    ) -> Result<T, Failure> {
        let (queued, told) = queued(event);
        self.change_together(job, cell, vec![queued]).await;
        answer_of(told).await
    }

    async fn change_together(self: &Arc<Self>, job: &JobId, cell: &Arc<Cell>, batch: Vec<Queued>) {
        let (before, effects, answers, commits, content, there) = {
            let mut work = cell.work();
            let there = work.check();
            let before = work.registry.clone();
            let (mut effects, mut answers) = (Vec::new(), Vec::new());
            // An owner that was deposed changes nothing more; its events are told so below.
            for event in batch {
                let (more, answer) = event(&mut work.registry, self.now());
                effects.extend(more);
                answers.push(answer);
            }
            let commits = effects.iter().any(|e| matches!(e, Effect::Commit(_)));
            let content = commits.then(|| work.registry.content(job)).flatten();
            (before, effects, answers, commits, content, there)
        };
        let committed = match (there.and_then(|()| self.check_owner()), content) {
            (Err(failure), _) => Err(failure),
            (Ok(()), Some(content)) => self.commit(job, cell, content).await,
            (Ok(()), None) => Ok(()),
        };
        match committed {
            Ok(()) => {
                self.do_effects(job, cell, effects).await;
                answers.into_iter().for_each(|answer| answer(Ok(())));
            }
            Err(failure) => {
                let mut work = cell.work();
                work.registry.take_back(before);
                work.unsettled |= commits;
                drop(work);
                self.metrics.commits_failed.add(1);
                for answer in answers {
                    answer(Err(failure.again()));
                }
            }
        }
    }

    pub(super) async fn commit(
        self: &Arc<Self>,
        job: &JobId,
        cell: &Arc<Cell>,
        mut content: super::super::manifest::Content,
    ) -> Result<(), Failure> {
        let began = std::time::Instant::now();
        content.as_of = Some(self.now());
        // A job that has a manifest of ours and whose listing names none is not where it was.
        let sealed = cell.work().sealed;
        let committed = self.ha.commit_again(job, self.epoch, content, sealed);
        let verdict = committed.await?;
        self.metrics
            .commit_millis
            .add(began.elapsed().as_millis() as u64);
        if verdict == Verdict::Fenced {
            self.look_for_successor().await?;
            // Nobody has taken over: a request of ours of an earlier attempt came late.
            return Err(Failure::Busy {
                wait: Duration::from_secs(1),
                why: "it cannot be said whether the commit stands".to_string(),
            });
        }
        if !cell.work().sealed {
            // Nothing kept an earlier owner, or a later one, from writing this job's first manifest. What is
            // acknowledged was there before any later epoch, so that its owner finds it.
            self.look_for_successor().await?;
        }
        let mut work = cell.work();
        (work.sealed, work.unsettled) = (true, false);
        drop(work);
        self.metrics.commits.add(1);
        Ok(())
    }

    async fn do_effects(self: &Arc<Self>, job: &JobId, cell: &Arc<Cell>, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Commit(_) => {}
                Effect::Remove(key, object) => {
                    cell.work().dirty |= object.is_some();
                    self.remove_local(cell, &key);
                }
                Effect::RemoveObject(..) => cell.work().dirty = true,
                Effect::DropLocal(key) => self.remove_local(cell, &key),
                Effect::Forget(_) => self.forget(job, cell).await,
            }
        }
    }

    /// Takes a local copy off its path, unless somebody needs it again: whoever publishes a file says so
    /// before, under the same lock.
    pub(super) fn remove_local(&self, cell: &Arc<Cell>, key: &BlobKey) {
        let work = cell.work();
        let blob = work
            .registry
            .job(&key.job)
            .and_then(|j| j.blobs.get(&key.digest));
        let needed = match blob {
            // Another copy is in the HA store.
            Some(blob) => blob.pins > 0 || blob.object.is_none(),
            None => work.registry.is_promised(key),
        };
        if needed || work.arriving.contains_key(&key.digest) {
            return;
        }
        if let Err(error) = self.local.remove(key) {
            self.metrics.deletes_failed.add(1);
            tracing::warn!(%key, %error, "a local copy could not be removed; the next sweep tries again");
        }
    }

    async fn forget(self: &Arc<Self>, job: &JobId, cell: &Arc<Cell>) {
        // Listed first: what a later owner writes after the look for one is not among it.
        let forgotten = async {
            let listed = self.ha.manifests(job).await?;
            self.look_for_successor().await?;
            // Whoever begins with the job meanwhile writes its first manifest again.
            cell.work().sealed = false;
            self.ha.forget(job, listed).await?;
            Ok::<(), Failure>(())
        };
        let forgotten = forgotten.await;
        if let Err(failure) = forgotten {
            tracing::warn!(%job, %failure, "a tombstone stays until the next start");
        }
        self.let_go(job, cell);
    }

    /// The same, unless a sweep still has something to look for.
    pub(super) fn let_go_in_turn(&self, job: &JobId, cell: &Arc<Cell>) {
        let idle = {
            let work = cell.work();
            work.registry.job(job).is_none() && !work.dirty
        };
        if idle {
            self.let_go(job, cell);
        }
    }

    /// Forgets a cell in which nothing is left, or never was. The caller has its turn.
    pub(super) fn let_go(&self, job: &JobId, cell: &Arc<Cell>) {
        let mut cells = unpoisoned(&self.cells);
        // Somebody may have begun an upload meanwhile.
        let mut work = cell.work();
        let idle = work.registry.job(job).is_none()
            && work.writing.is_empty()
            && work.arriving.is_empty()
            && work.orphans.is_empty()
            && unpoisoned(&cell.queue).waiting.is_empty();
        if idle && cells.get(job).is_some_and(|c| Arc::ptr_eq(c, cell)) {
            work.forgotten = true;
            cells.remove(job);
        }
    }
}
