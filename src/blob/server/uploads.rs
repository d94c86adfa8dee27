//! Batches of uploads: bytes first into the local directory, then into the HA store, and visible only with the
//! whole batch.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{Stream, StreamExt};

use crate::clock;
use crate::error::{Error, ErrorKind};
use crate::store::blocking;
use tokio::sync::OwnedSemaphorePermit;

use super::super::fail;
use super::super::key::{BlobKey, Digest, JobId, Moment, ObjectName, SessionId};
use super::super::lifecycle::{Class, Refusal};
use super::super::local::{Complete, Incoming, Look, Opened, Reserved, STEP_BYTES};
use super::super::uploads::{Begun, Planned, Staged};
use super::cell::Cell;
use super::{BlobServer, Failure, Inner};

/// So many bytes are handed to the disk at a time.
const WRITE_BYTES: usize = 256 * 1024;
/// What a sender must send within the idle timeout at least.
const LEAST_BYTES: u64 = 16 * 1024;
/// While bytes flow the session's life is extended so often.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// What an upload has under way. Whatever end it comes to, this puts things back.
struct UnderWay {
    inner: Arc<Inner>,
    cell: Arc<Cell>,
    key: BlobKey,
    object: Option<ObjectName>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut work = self.cell.work();
        if let Some(count) = work.arriving.get_mut(&self.key.digest) {
            *count -= 1;
            if *count == 0 {
                work.arriving.remove(&self.key.digest);
            }
        }
        // Nobody will ever name it: a sweep removes it.
        if let Some(object) = self.object.take() {
            work.writing.remove(&object);
            work.orphans.insert(object, Moment(0));
            work.dirty = true;
        }
        drop(work);
        let known = |w: &super::cell::Work| {
            let job = w.registry.job(&self.key.job);
            job.is_some_and(|j| j.blobs.contains_key(&self.key.digest))
        };
        if !known(&self.cell.work()) {
            self.inner.remove_local(&self.cell, &self.key);
        }
    }
}

impl Inner {
    /// Reserves space, giving up files that can be fetched again where that is needed.
    pub(super) fn reserve(self: &Arc<Self>, bytes: u64) -> crate::error::Result<Reserved> {
        let candidates = || self.evictable();
        let evict = |key: &BlobKey| {
            if let Ok(Some(cell)) = self.cell(&key.job) {
                self.remove_local(&cell, key);
                self.metrics.evictions.add(1);
            }
            Ok(())
        };
        self.local.reserve(bytes, candidates, evict)
    }

    /// Takes care that so many bytes `more` can be written, of `size` in all if that is known.
    fn make_room(
        self: &Arc<Self>,
        incoming: &mut Incoming,
        more: u64,
        size: Option<u64>,
    ) -> crate::error::Result<()> {
        let lacking = more.saturating_sub(incoming.room());
        if lacking == 0 {
            return Ok(());
        }
        let left = size.map_or(u64::MAX, |s| s.saturating_sub(incoming.reserved()));
        incoming.extend(self.reserve(STEP_BYTES.min(left).max(lacking))?);
        Ok(())
    }

    /// Upload sessions that are open, of all jobs.
    fn open_sessions(&self) -> usize {
        let cells = self.all_cells();
        let open = cells
            .iter()
            .map(|(_, c)| c.work().registry.sessions().count());
        open.sum()
    }

    fn evictable(&self) -> Vec<super::super::eviction::CachedFile> {
        let mut files = Vec::new();
        for (key, _) in self.local.keys() {
            let Ok(Some(cell)) = self.cell(&key.job) else {
                continue;
            };
            let work = cell.work();
            let job = work.registry.job(&key.job);
            let Some(blob) = job.and_then(|j| j.blobs.get(&key.digest)) else {
                continue;
            };
            files.push(super::super::eviction::CachedFile {
                pins: blob.pins + work.arriving.get(&key.digest).copied().unwrap_or(0),
                job_references: u32::from(!blob.holders.is_empty()),
                refetchable: blob.object.is_some() && !blob.lost,
                last_used: self.local.last_used(&key),
                unused_since: blob.keep_until,
                key: key.clone(),
            });
        }
        files
    }
}

impl BlobServer {
    /// Begins a batch, and says what of it must be sent. Repeating it gives the state of things.
    ///
    /// # Errors
    ///
    /// `JobOver`, `SessionTaken`, `TooMany`, `TooLarge`, `Quota`; not the owner any more.
    pub async fn begin_upload(
        &self,
        job: &JobId,
        session: SessionId,
        plan: &[Planned],
    ) -> Result<Begun, Failure> {
        self.0.check_owner()?;
        let cell = self.0.cell_to_begin(job)?;
        let is_open = {
            let work = cell.work();
            work.registry.sessions().any(|(id, _)| *id == session)
        };
        let most = self.0.config.max_sessions;
        let begun = match !is_open && self.0.open_sessions() >= most {
            true => Err(Refusal::TooMany("open upload sessions", most).into()),
            false => {
                let now = self.0.now();
                let mut work = cell.work();
                let begun = |w: &mut super::cell::Work| {
                    w.check()?;
                    Ok(w.registry.begin_upload(session, job, plan, now)?)
                };
                begun(&mut work)
            }
        };
        // A call that was refused leaves nothing in memory; where somebody has the turn a sweep sees to it.
        if begun.is_err()
            && let Ok(_turn) = cell.serial.try_lock()
        {
            self.0.let_go_in_turn(job, &cell);
        }
        begun
    }

    /// Takes the bytes of one member. They are verified and durable, in the local directory and, if they must
    /// survive the server, in the HA store, when this returns; and invisible until the batch is committed.
    ///
    /// `promised` is the digest if it is known before; `length` the number of bytes if that is. A member that no
    /// plan names is a retained one. Once all bytes have come, this goes on although the caller goes away.
    ///
    /// # Errors
    ///
    /// `NoSession`, `OtherContent`, `TooLarge`, `Quota`; no space; a sender that stops or stalls; an HA store
    /// that does not answer. The member must then be sent again, the session goes on.
    pub async fn put(
        &self,
        job: &JobId,
        session: SessionId,
        promised: Option<Digest>,
        length: Option<u64>,
        body: impl Stream<Item = io::Result<Bytes>> + Send + Unpin,
    ) -> Result<Digest, Failure> {
        let put = self.put_member(job, session, promised, length, body).await;
        match &put {
            Ok(_) => self.0.metrics.uploads.add(1),
            Err(_) => self.0.metrics.uploads_failed.add(1),
        }
        put
    }

    async fn put_member(
        &self,
        job: &JobId,
        session: SessionId,
        promised: Option<Digest>,
        length: Option<u64>,
        body: impl Stream<Item = io::Result<Bytes>> + Send + Unpin,
    ) -> Result<Digest, Failure> {
        let inner = &self.0;
        inner.check_owner()?;
        let cell = inner.cell(job)?.ok_or(Refusal::NoSession(session))?;
        {
            let mut work = cell.work();
            work.registry.live_job(job)?;
            let now = inner.now();
            work.registry.bytes_came(session, now)?;
        }
        let limit = inner.config.settings.largest_blob;
        let size = promised.map(|d| d.size).or(length);
        if size.is_some_and(|s| s > limit) {
            return Err(Failure::TooLarge { limit, bytes: 0 });
        }
        let most = promised.map_or(limit, |d| d.size);
        let complete = self.receive(&cell, session, size, most, body).await?;
        let arrived = complete.digest();
        if let Some(promised) = promised.filter(|p| *p != arrived) {
            return Err(Refusal::OtherContent { promised, arrived }.into());
        }
        // As long as it waits here it ends with its caller, and has no file open.
        let turn = inner.turn_to_store(&cell, session, &arrived).await;
        let (inner, job) = (Arc::clone(inner), job.clone());
        let finished = tokio::spawn(async move {
            let _turn = turn;
            inner.keep(&job, &cell, session, promised, complete).await
        });
        finished.await.unwrap_or_else(|e| {
            let text = format!("an upload came to no end: {e}");
            Err(Failure::Store(Error::new(ErrorKind::Internal, text)))
        })
    }

    /// Bytes into a file that nobody sees, hashed as they come.
    async fn receive(
        &self,
        cell: &Arc<Cell>,
        session: SessionId,
        size: Option<u64>,
        most: u64,
        mut body: impl Stream<Item = io::Result<Bytes>> + Send + Unpin,
    ) -> Result<Complete, Failure> {
        let inner = Arc::clone(&self.0);
        let begun = blocking(move || {
            // Reserved is what has come and a step: a slow sender must not hold what it only announces.
            if let Some(size) = size {
                inner.local.could_fit(size, || inner.evictable())?;
            }
            let reserved = inner.reserve(size.unwrap_or(STEP_BYTES).min(STEP_BYTES))?;
            inner.local.begin(reserved)
        });
        let mut incoming = begun.await?;
        let mut pieces: Vec<Bytes> = Vec::new();
        let (mut held, mut came) = (0usize, 0u64);
        let mut pace = Pace::start(self.0.config.idle_timeout);
        let mut sign_of_life = Instant::now();
        loop {
            let next = tokio::time::timeout(pace.left(), body.next()).await;
            let piece = match next {
                Ok(Some(Ok(piece))) => piece,
                Ok(None) => break,
                Ok(Some(Err(e))) => {
                    return Err(Failure::Transfer {
                        why: format!("the sender stopped: {e}"),
                        bytes: came,
                    });
                }
                Err(_) => {
                    self.0.metrics.stalled.add(1);
                    return Err(Failure::Transfer {
                        why: format!(
                            "nothing came for {} s",
                            self.0.config.idle_timeout.as_secs_f64()
                        ),
                        bytes: came,
                    });
                }
            };
            pace.moved(piece.len() as u64);
            came = came.saturating_add(piece.len() as u64);
            self.0.metrics.bytes_in.add(piece.len() as u64);
            let limit = self.0.config.settings.largest_blob;
            if came > limit {
                return Err(Failure::TooLarge { limit, bytes: came });
            }
            if came > most {
                return Err(Failure::Transfer {
                    why: format!("more bytes than the {most} that were announced"),
                    bytes: came,
                });
            }
            held += piece.len();
            pieces.push(piece);
            if held >= WRITE_BYTES {
                let batch = std::mem::take(&mut pieces);
                let more = std::mem::take(&mut held) as u64;
                let inner = Arc::clone(&self.0);
                incoming = blocking(move || {
                    inner.make_room(&mut incoming, more, size)?;
                    incoming.write(&batch)?;
                    Ok(incoming)
                })
                .await?;
                if sign_of_life.elapsed() >= SIGN_OF_LIFE {
                    sign_of_life = Instant::now();
                    let now = self.0.now();
                    cell.work().registry.bytes_came(session, now)?;
                }
            }
        }
        let inner = Arc::clone(&self.0);
        let complete = blocking(move || {
            inner.make_room(&mut incoming, held as u64, size)?;
            incoming.write(&pieces)?;
            incoming.complete()
        });
        Ok(complete.await?)
    }

    /// Makes all members of a batch visible, with one common deadline, or none. Repeating it gives the same
    /// answer.
    ///
    /// # Errors
    ///
    /// `Incomplete` with what is missing; `NoSession`, `JobOver`; an HA store that does not answer: nothing is
    /// visible then, and the commit can be repeated.
    pub async fn commit_upload(&self, job: &JobId, session: SessionId) -> Result<Staged, Failure> {
        self.0.check_owner()?;
        let cell = self.0.cell(job)?.ok_or(Refusal::NoSession(session))?;
        let sent: Vec<ObjectName> = cell.work().registry.in_flight(job).into_iter().collect();
        let of = job.clone();
        let event = move |r: &mut super::Registry, now| r.commit_upload(session, &of, now);
        let staged = self.0.change(job, event).await?;
        // Of a content that another batch has sent meanwhile one object is enough.
        self.0.orphan(&cell, job, sent);
        fail::point("batch-staged");
        Ok(staged)
    }

    /// Gives a batch up. Repeating it changes nothing.
    ///
    /// # Errors
    ///
    /// Not the owner any more.
    pub async fn abort_upload(&self, job: &JobId, session: SessionId) -> Result<(), Failure> {
        self.0.check_owner()?;
        let Some(cell) = self.0.cell(job)? else {
            return Ok(());
        };
        let left: Vec<ObjectName> = {
            let work = cell.work();
            let of_job = work
                .registry
                .sessions()
                .any(|(id, s)| *id == session && s.job == *job);
            if !of_job {
                return Ok(());
            }
            work.registry.in_flight(job).into_iter().collect()
        };
        let event = move |r: &mut super::Registry, _| Ok(((), r.abort_upload(session)));
        self.0.change(job, event).await?;
        self.0.orphan(&cell, job, left);
        Ok(())
    }
}

impl Inner {
    /// Of objects that were in flight those are orphans that are in no session and no manifest any more.
    pub(super) fn orphan(&self, cell: &Arc<Cell>, job: &JobId, were_in_flight: Vec<ObjectName>) {
        let mut work = cell.work();
        let still = work.registry.in_flight(job);
        let named = |o: &ObjectName, w: &super::cell::Work| {
            let job = w.registry.job(job);
            job.is_some_and(|j| j.blobs.values().any(|b| b.object == Some(*o)))
        };
        for object in were_in_flight {
            if !still.contains(&object) && !named(&object, &work) {
                work.orphans.insert(object, Moment(0));
                work.dirty = true;
            }
        }
    }

    /// Waits for the turn to write an object, if the member needs one. The session does not lapse meanwhile.
    async fn turn_to_store(
        &self,
        cell: &Arc<Cell>,
        session: SessionId,
        digest: &Digest,
    ) -> Option<OwnedSemaphorePermit> {
        let planned = cell.work().registry.planned(session, digest);
        let class = planned.map_or(Class::Retained, |(class, _)| class);
        if class != Class::Retained || digest.is_empty_blob() {
            return None;
        }
        let turns = Arc::clone(&self.ha_uploads);
        tokio::select! {
            // Fails only when the semaphore is closed, which it never is.
            turn = turns.acquire_owned() => turn.ok(),
            never = self.keep_alive(cell, session) => match never {},
        }
    }

    /// As long as it is polled the session does not lapse: nothing more is to come from its client.
    async fn keep_alive(&self, cell: &Arc<Cell>, session: SessionId) -> std::convert::Infallible {
        let often = self.config.settings.upload_idle / 4;
        loop {
            // One that was given up has gone, which the end of the upload finds.
            let _ = cell.work().registry.bytes_came(session, self.now());
            clock::sleep(often.max(Duration::from_millis(10))).await;
        }
    }

    /// All bytes are here: publishes the file, writes the object, and marks the member complete. Whoever calls it has
    /// the turn to write an object.
    async fn keep(
        self: &Arc<Self>,
        job: &JobId,
        cell: &Arc<Cell>,
        session: SessionId,
        promised: Option<Digest>,
        complete: Complete,
    ) -> Result<Digest, Failure> {
        let digest = complete.digest();
        let key = BlobKey {
            job: job.clone(),
            digest,
        };
        let mut under_way = UnderWay {
            inner: Arc::clone(self),
            cell: Arc::clone(cell),
            key: key.clone(),
            object: None,
        };
        let planned = {
            let mut work = cell.work();
            *work.arriving.entry(digest).or_default() += 1;
            let (class, display) = work
                .registry
                .planned(session, &digest)
                .unwrap_or((Class::Retained, None));
            let planned = Planned {
                digest,
                class,
                display,
            };
            if class == Class::Retained && !digest.is_empty_blob() {
                let name = ObjectName {
                    digest,
                    epoch: self.epoch,
                    random: clock::random_id(),
                };
                // Before the first byte: a sweep that lists it must find it here.
                work.writing.insert(name);
                under_way.object = Some(name);
            }
            planned
        };
        let (me, of) = (Arc::clone(self), job.clone());
        let now = self.now();
        blocking(move || me.local.publish(complete, &of, now).map(drop)).await?;
        if let Some(name) = under_way.object {
            let me = Arc::clone(self);
            let again = key.clone();
            let opened = blocking(move || me.local.open_copy(&again, now, Look::WhereDue)).await?;
            let Opened::Copy(copy) = opened else {
                return Err(Failure::Busy {
                    wait: Duration::from_secs(1),
                    why: "the local copy was damaged before it was stored".to_string(),
                });
            };
            let stored = async {
                self.check_owner()?;
                self.ha.upload(job, &name, &copy).await?;
                Ok::<(), Failure>(())
            };
            tokio::select! {
                stored = stored => stored?,
                never = self.keep_alive(cell, session) => match never {},
            }
            fail::point("object-written");
        }
        let now = self.now();
        let mut work = cell.work();
        work.registry.live_job(job)?;
        let object = under_way.object;
        let arrived = work
            .registry
            .member_arrived(session, promised, planned, object, now);
        if arrived.is_ok()
            && let Some(object) = under_way.object
        {
            work.writing.remove(&object);
            // Sent twice: the first counts.
            if work.registry.in_flight(job).contains(&object) {
                under_way.object = None;
            }
        }
        drop(work);
        arrived?;
        fail::point("member-arrived");
        Ok(digest)
    }
}

/// Something must move within each window of time.
pub(crate) struct Pace {
    window: Duration,
    began: Instant,
    moved: u64,
}

impl Pace {
    pub(crate) fn start(window: Duration) -> Pace {
        Pace {
            window,
            began: Instant::now(),
            moved: 0,
        }
    }

    /// So many bytes have moved.
    pub(crate) fn moved(&mut self, bytes: u64) {
        self.moved = self.moved.saturating_add(bytes);
        if self.moved >= LEAST_BYTES {
            (self.began, self.moved) = (Instant::now(), 0);
        }
    }

    /// What is left of the window.
    pub(crate) fn left(&self) -> Duration {
        self.window.saturating_sub(self.began.elapsed())
    }
}
