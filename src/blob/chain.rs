//! The protocol of the HA store: who owns a cluster (epochs), and how a job's manifest moves forward
//! (a chain of numbered objects, each created once). Three step machines that say which request
//! comes next and take the reply; they do no I/O and know no store. All they ask of one is atomic
//! create-if-absent and listings that show what is there.
//!
//! Why it is safe: a number is taken once while it is there, and the newest one is never removed, so
//! that the chain is linear; a stalled writer that takes a number which cleanup has freed finds that
//! it is not the newest and that the newest does not list its session. A new owner *seals* each job
//! with a manifest of its own epoch before it does anything else; from then on an older owner either
//! collides or reads the newer epoch, and steps down. Names of objects are used once, so that a
//! delete that comes late hits nothing. `model` (a test) explores all interleavings.
//!
//! A job without a manifest has nothing to seal, so that an older owner which does not know yet can still write its
//! first one. Two rules make that harmless. Whoever has written the first manifest of a job looks for a later epoch
//! before it acknowledges: what is acknowledged was there before the later owner listed the jobs. And an owner
//! writes a manifest of its own, if need be an empty one, before it removes anything of such a job: the older
//! one's then collides, or is followed by one that does not name what goes. A first manifest that comes later still, of a
//! job that the new owner does not know, lies there until the next owner starts, and is taken over then: it
//! names objects that are there, and its blobs are staged like any that nobody holds.

use std::fmt;
use std::hash::Hash;

use super::key::SessionId;

/// What the protocol needs of a manifest.
pub trait Ledger: Clone + Eq + Hash + fmt::Debug {
    /// The name of an object.
    type Name: Copy + Eq + Hash + fmt::Debug;
    /// A set of names.
    type Names: Clone + Eq + Hash + Default + fmt::Debug;
    /// What a commit changes.
    type Change: Clone + Eq + Hash + fmt::Debug;

    /// The epoch of the owner that wrote it.
    fn epoch(&self) -> u64;
    /// True if it, or a predecessor it was built on, is the commit of `session`.
    fn lists(&self, session: SessionId) -> bool;
    /// The manifest after this one (after none: the first of its job), by the owner of `epoch`. Without a
    /// change it is a seal.
    fn next(
        base: Option<&Self>,
        sequence: u64,
        epoch: u64,
        change: Option<(SessionId, &Self::Change)>,
    ) -> Self;
    /// What of `listed` is garbage: neither in flight, nor in this manifest.
    fn garbage(&self, listed: &Self::Names, in_flight: &Self::Names) -> Vec<Self::Name>;
}

/// A request to the store, or to the owner's own memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Ask<L: Ledger> {
    /// List the numbers below `epoch/`.
    ListEpochs,
    /// Create an epoch if it is absent.
    CreateEpoch(u64),
    /// List the numbers of the job's manifests.
    ListManifests,
    /// Read a manifest.
    ReadManifest(u64),
    /// Create a manifest if it is absent.
    CreateManifest(u64, L),
    /// Remove a manifest that is older than the last two.
    RemoveManifest(u64),
    /// List the job's objects.
    ListObjects,
    /// Copy the table of names that sessions of this owner have in flight. No request.
    CopyInFlight,
    /// Remove an object.
    RemoveObject(L::Name),
}

/// The reply to an [`Ask`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply<L: Ledger> {
    /// Numbers, in any order.
    Numbers(Vec<u64>),
    /// A manifest, or nothing there.
    Manifest(Option<L>),
    /// It was not there and has been created.
    Created,
    /// It is there already.
    Taken,
    /// Names of objects.
    Names(L::Names),
    /// It is gone, or was not there.
    Removed,
    /// No answer: it may have been done, may be done later, or never.
    Unknown,
}

/// Which safeguards are on. All of them; the model switches them off one by one and must find harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Guards {
    pub(crate) seal: bool,
    pub(crate) epoch_on_every_read: bool,
    pub(crate) verify: Verify,
    pub(crate) epoch_before_delete: bool,
}

/// What is verified after a create.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Verify {
    /// Ours is the newest and its predecessor is there, or the newest lists our session.
    Fully,
    #[cfg(test)]
    ByPredecessorOnly,
    #[cfg(test)]
    Nothing,
}

impl Guards {
    pub(crate) const ALL: Guards = Guards {
        seal: true,
        epoch_on_every_read: true,
        verify: Verify::Fully,
        epoch_before_delete: true,
    };
}

/// How a step machine ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It stands, and survives.
    Done,
    /// Another owner has taken over, or it cannot be said: nothing may be acknowledged, this owner
    /// steps down, and the client repeats at the new owner.
    Fenced,
}

fn newest(numbers: &[u64]) -> u64 {
    numbers.iter().copied().max().unwrap_or(0)
}

/// Takes an epoch: the largest number is the owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Claim {
    create: Option<u64>,
    epoch: Option<u64>,
}

impl Claim {
    /// The request to be sent.
    pub fn ask<L: Ledger>(&self) -> Ask<L> {
        self.create.map_or(Ask::ListEpochs, Ask::CreateEpoch)
    }

    /// The epoch, once it is ours.
    pub fn epoch(&self) -> Option<u64> {
        self.epoch
    }

    /// Takes the reply.
    pub fn answer<L: Ledger>(&mut self, reply: Reply<L>) {
        match (reply, self.create) {
            (Reply::Numbers(numbers), None) => self.create = newest(&numbers).checked_add(1),
            (Reply::Created, Some(number)) => self.epoch = Some(number),
            // Taken, or not known whether it is ours: a larger one surely is.
            _ => self.create = None,
        }
    }
}

/// The number that we created, or may have created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Tried {
    Nothing,
    Created(u64),
    Perhaps(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase<L: Ledger> {
    List,
    Read(u64),
    Create { number: u64, manifest: L },
    Ended(Verdict),
}

/// Moves a job's manifest forward by one change, or seals it with a new owner's epoch. Commits of a
/// job by one owner come one after the other.
///
/// Costs a listing, a read and a create, and a listing to verify.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Commit<L: Ledger> {
    epoch: u64,
    /// `None` for a seal.
    change: Option<(SessionId, L::Change)>,
    guards: Guards,
    tried: Tried,
    collided: bool,
    phase: Phase<L>,
}

impl<L: Ledger> Commit<L> {
    /// Commits `change` as `session`. Repeating a session that has been committed is done at once.
    pub fn new(epoch: u64, session: SessionId, change: L::Change) -> Commit<L> {
        Commit::guarded(epoch, Some((session, change)), Guards::ALL)
    }

    /// Seals a job: the same content under the epoch of a new owner. Must be done before this
    /// owner writes or sweeps anything of the job.
    pub fn seal(epoch: u64) -> Commit<L> {
        Commit::guarded(epoch, None, Guards::ALL)
    }

    pub(crate) fn guarded(
        epoch: u64,
        change: Option<(SessionId, L::Change)>,
        guards: Guards,
    ) -> Commit<L> {
        Commit {
            epoch,
            change,
            guards,
            tried: Tried::Nothing,
            collided: false,
            phase: Phase::List,
        }
    }

    /// How it ended, once it has.
    pub fn verdict(&self) -> Option<Verdict> {
        match self.phase {
            Phase::Ended(verdict) => Some(verdict),
            _ => None,
        }
    }

    /// The request to be sent; none once it has ended.
    pub fn ask(&self) -> Option<Ask<L>> {
        Some(match &self.phase {
            Phase::List => Ask::ListManifests,
            Phase::Read(newest) => Ask::ReadManifest(*newest),
            Phase::Create { number, manifest } => Ask::CreateManifest(*number, manifest.clone()),
            Phase::Ended(_) => return None,
        })
    }

    /// Takes the reply to [`ask`](Commit::ask). A read or listing without an answer is asked again.
    pub fn answer(&mut self, reply: Reply<L>) {
        let phase = match (&self.phase, reply) {
            (Phase::List, Reply::Numbers(numbers)) => self.listed(&numbers),
            (Phase::Read(_), Reply::Manifest(None)) => Phase::List,
            (Phase::Read(newest), Reply::Manifest(Some(manifest))) => self.read(*newest, &manifest),
            (Phase::Create { number, .. }, Reply::Created) => {
                self.tried = Tried::Created(*number);
                match self.guards.verify {
                    #[cfg(test)]
                    Verify::Nothing => Phase::Ended(Verdict::Done),
                    _ => Phase::List,
                }
            }
            (Phase::Create { .. }, Reply::Taken) => {
                // After a lost reply it may be ours that is there.
                self.collided = true;
                Phase::List
            }
            (Phase::Create { number, .. }, Reply::Unknown) => {
                self.tried = Tried::Perhaps(*number);
                Phase::List
            }
            (phase, _) => phase.clone(),
        };
        self.phase = phase;
    }

    fn listed(&self, numbers: &[u64]) -> Phase<L> {
        let newest = newest(numbers);
        let preceded = |n: u64| n <= 1 || numbers.contains(&(n - 1));
        if let Tried::Created(ours) = self.tried {
            #[cfg(test)]
            if self.guards.verify == Verify::ByPredecessorOnly {
                return Phase::Ended(match preceded(ours) {
                    true => Verdict::Done,
                    false => Verdict::Fenced,
                });
            }
            // Our number was free because the job was purged: there is nothing before it.
            if newest == ours && preceded(ours) {
                return Phase::Ended(Verdict::Done);
            }
            if newest <= ours {
                return Phase::Ended(Verdict::Fenced);
            }
        }
        match newest {
            // A job without manifest needs no seal; its first commit is number 1.
            0 if self.change.is_none() => Phase::Ended(Verdict::Done),
            0 => self.create(None, 1),
            _ => Phase::Read(newest),
        }
    }

    fn create(&self, base: Option<&L>, number: u64) -> Phase<L> {
        let change = self.change.as_ref().map(|(s, c)| (*s, c));
        Phase::Create {
            number,
            manifest: L::next(base, number, self.epoch, change),
        }
    }

    fn read(&mut self, newest: u64, manifest: &L) -> Phase<L> {
        let ours = match &self.change {
            Some((session, _)) => manifest.lists(*session),
            None => manifest.epoch() == self.epoch,
        };
        if ours {
            if self.tried == Tried::Perhaps(newest) {
                // The number may have been another's when it was listed, freed since, and taken by our
                // own request that came late: list again, as after a create with an answer.
                self.tried = Tried::Created(newest);
                return Phase::List;
            }
            // Built on ours by whoever came later; or a repeated commit.
            return Phase::Ended(Verdict::Done);
        }
        let check = self.guards.epoch_on_every_read || self.collided;
        if check && manifest.epoch() > self.epoch {
            return Phase::Ended(Verdict::Fenced);
        }
        let passed = match self.tried {
            Tried::Created(n) | Tried::Perhaps(n) => newest >= n,
            Tried::Nothing => false,
        };
        if passed && self.change.is_some() {
            // Something else is there instead of ours: it is not ours to say what came of it.
            return Phase::Ended(Verdict::Fenced);
        }
        match newest.checked_add(1) {
            Some(number) => {
                if passed {
                    // A seal that was overtaken by the older owner is tried again.
                    self.tried = Tried::Nothing;
                }
                self.create(Some(manifest), number)
            }
            None => Phase::Ended(Verdict::Fenced),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum SweepPhase<L: Ledger> {
    ListObjects,
    CopyInFlight {
        listed: L::Names,
    },
    ListManifests {
        listed: L::Names,
        in_flight: L::Names,
    },
    Read {
        listed: L::Names,
        in_flight: L::Names,
        newest: u64,
        old: Vec<u64>,
    },
    CheckEpoch {
        garbage: Vec<L::Name>,
        old: Vec<u64>,
    },
    Remove {
        garbage: Vec<L::Name>,
        old: Vec<u64>,
    },
    Ended(Verdict),
}

/// Removes what is garbage in one job: lists objects, *then* copies the table of names in flight, *then*
/// reads the manifest. In any other order it would remove what was committed in between.
///
/// Costs three listings, a read, and a delete for each object and manifest that goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sweep<L: Ledger> {
    epoch: u64,
    guards: Guards,
    phase: SweepPhase<L>,
}

impl<L: Ledger> Sweep<L> {
    /// Begins, as the owner of `epoch`, which has sealed the job.
    pub fn new(epoch: u64) -> Sweep<L> {
        Sweep::guarded(epoch, Guards::ALL)
    }

    pub(crate) fn guarded(epoch: u64, guards: Guards) -> Sweep<L> {
        Sweep {
            epoch,
            guards,
            phase: SweepPhase::ListObjects,
        }
    }

    /// How it ended, once it has.
    pub fn verdict(&self) -> Option<Verdict> {
        match self.phase {
            SweepPhase::Ended(verdict) => Some(verdict),
            _ => None,
        }
    }

    /// The requests that may be sent now, in any order or at once; none once it has ended.
    pub fn asks(&self) -> Vec<Ask<L>> {
        match &self.phase {
            SweepPhase::ListObjects => vec![Ask::ListObjects],
            SweepPhase::CopyInFlight { .. } => vec![Ask::CopyInFlight],
            SweepPhase::ListManifests { .. } => vec![Ask::ListManifests],
            SweepPhase::Read { newest, .. } => vec![Ask::ReadManifest(*newest)],
            SweepPhase::CheckEpoch { .. } => vec![Ask::ListEpochs],
            SweepPhase::Remove { garbage, old } => {
                let objects = garbage.iter().map(|n| Ask::RemoveObject(*n));
                objects
                    .chain(old.iter().map(|n| Ask::RemoveManifest(*n)))
                    .collect()
            }
            SweepPhase::Ended(_) => Vec::new(),
        }
    }

    /// Takes the reply to one of [`asks`](Sweep::asks). A delete without an answer is left to the next sweep.
    pub fn answer(&mut self, ask: &Ask<L>, reply: Reply<L>) {
        let phase = std::mem::replace(&mut self.phase, SweepPhase::ListObjects);
        self.phase = match (phase, reply) {
            (SweepPhase::ListObjects, Reply::Names(listed)) => SweepPhase::CopyInFlight { listed },
            (SweepPhase::CopyInFlight { listed }, Reply::Names(in_flight)) => {
                SweepPhase::ListManifests { listed, in_flight }
            }
            (SweepPhase::ListManifests { listed, in_flight }, Reply::Numbers(numbers)) => {
                let newest = newest(&numbers);
                if newest == 0 {
                    // A job without manifest: its objects are judged by recovery, by their age.
                    SweepPhase::Ended(Verdict::Done)
                } else {
                    let mut old: Vec<u64> = numbers;
                    old.retain(|n| n.saturating_add(1) < newest);
                    old.sort_unstable();
                    SweepPhase::Read {
                        listed,
                        in_flight,
                        newest,
                        old,
                    }
                }
            }
            (
                SweepPhase::Read {
                    listed, in_flight, ..
                },
                Reply::Manifest(None),
            ) => SweepPhase::ListManifests { listed, in_flight },
            (
                SweepPhase::Read {
                    listed,
                    in_flight,
                    old,
                    ..
                },
                Reply::Manifest(Some(m)),
            ) => {
                let garbage = m.garbage(&listed, &in_flight);
                // Sealed, it is ours or a later owner's. Without a seal it could be an earlier owner's too.
                let foreign = m.epoch() > self.epoch || self.guards.seal && m.epoch() < self.epoch;
                if self.guards.epoch_on_every_read && foreign {
                    SweepPhase::Ended(Verdict::Fenced)
                } else if self.guards.epoch_before_delete && !garbage.is_empty() {
                    SweepPhase::CheckEpoch { garbage, old }
                } else {
                    remove(garbage, old)
                }
            }
            (SweepPhase::CheckEpoch { garbage, old }, Reply::Numbers(epochs)) => {
                match newest(&epochs) > self.epoch {
                    true => SweepPhase::Ended(Verdict::Fenced),
                    false => remove(garbage, old),
                }
            }
            (
                SweepPhase::Remove {
                    mut garbage,
                    mut old,
                },
                _,
            ) => {
                garbage.retain(|n| *ask != Ask::RemoveObject(*n));
                old.retain(|n| *ask != Ask::RemoveManifest(*n));
                remove(garbage, old)
            }
            (phase, _) => phase,
        };
    }
}

fn remove<L: Ledger>(garbage: Vec<L::Name>, old: Vec<u64>) -> SweepPhase<L> {
    match garbage.is_empty() && old.is_empty() {
        true => SweepPhase::Ended(Verdict::Done),
        false => SweepPhase::Remove { garbage, old },
    }
}
