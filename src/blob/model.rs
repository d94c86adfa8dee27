//! Exhaustive search: two owners of one cluster, one of them deposed at any moment, every program of
//! three operations each out of {upload, drop, sweep}, interleaved at each request; each owner may
//! crash at every step, and one reply may be lost: its request is then done at any later time, or
//! never. A third owner takes over in the end and cleans up.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use super::chain::{Ask, Claim, Commit, Guards, Ledger, Reply, Sweep, Verdict, Verify};
use super::key::SessionId;

/// Sessions and names as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Small {
    epoch: u8,
    sessions: u16,
    names: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Change {
    Add(u8),
    DropFirst,
}

impl Ledger for Small {
    type Name = u8;
    type Names = u16;
    type Change = Change;

    fn epoch(&self) -> u64 {
        self.epoch.into()
    }

    fn lists(&self, session: SessionId) -> bool {
        self.sessions & (1 << session.0) != 0
    }

    fn next(
        base: Option<&Small>,
        _: u64,
        epoch: u64,
        change: Option<(SessionId, &Change)>,
    ) -> Small {
        let mut next = *base.unwrap();
        next.epoch = epoch as u8;
        if let Some((session, change)) = change {
            next.sessions |= 1 << session.0;
            match change {
                Change::Add(name) => next.names |= 1 << name,
                Change::DropFirst => next.names &= next.names.wrapping_sub(1),
            }
        }
        next
    }

    fn garbage(&self, listed: &u16, in_flight: &u16) -> Vec<u8> {
        let bits = listed & !in_flight & !self.names;
        (0..16).filter(|b| bits & (1 << b) != 0).collect()
    }
}

const NUMBERS: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Store {
    epochs: u8,
    manifests: [Option<Small>; NUMBERS],
    objects: u16,
}

impl Store {
    fn newest(&self) -> (usize, Small) {
        let at = self.manifests.iter().rposition(Option::is_some).unwrap();
        (at, self.manifests[at].unwrap())
    }

    fn serve(&mut self, ask: &Request) -> Reply<Small> {
        match ask {
            Request::Put(name) => {
                self.objects |= 1 << name;
                Reply::Created
            }
            Request::Ask(ask) => match ask {
                Ask::ListEpochs => {
                    Reply::Numbers((0..8).filter(|e| self.epochs & (1 << e) != 0).collect())
                }
                Ask::CreateEpoch(n) if self.epochs & (1 << n) != 0 => Reply::Taken,
                Ask::CreateEpoch(n) => {
                    self.epochs |= 1 << n;
                    Reply::Created
                }
                Ask::ListManifests => {
                    let numbers = 0..NUMBERS as u64;
                    Reply::Numbers(
                        numbers
                            .filter(|n| self.manifests[*n as usize].is_some())
                            .collect(),
                    )
                }
                Ask::ReadManifest(n) => Reply::Manifest(self.manifests[*n as usize]),
                Ask::CreateManifest(n, manifest) => match &mut self.manifests[*n as usize] {
                    Some(_) => Reply::Taken,
                    free => {
                        *free = Some(*manifest);
                        Reply::Created
                    }
                },
                Ask::RemoveManifest(n) => {
                    self.manifests[*n as usize] = None;
                    Reply::Removed
                }
                Ask::ListObjects => Reply::Names(self.objects),
                Ask::CopyInFlight => Reply::Names(0),
                Ask::RemoveObject(n) => {
                    self.objects &= !(1 << n);
                    Reply::Removed
                }
            },
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Request {
    Put(u8),
    Ask(Ask<Small>),
}

impl Request {
    fn writes(&self) -> bool {
        use Ask::{CreateEpoch, CreateManifest, RemoveManifest, RemoveObject};
        match self {
            Request::Put(_) => true,
            Request::Ask(ask) => matches!(
                ask,
                CreateEpoch(_) | CreateManifest(..) | RemoveManifest(_) | RemoveObject(_)
            ),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Task {
    Between,
    Claim(Claim),
    Put(u8),
    Commit(Commit<Small>),
    Sweep(Sweep<Small>),
    Stopped,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Owner {
    number: u8,
    epoch: u64,
    left: u8,
    task: Task,
}

#[derive(Debug, Clone, Copy)]
struct Variant {
    guards: Guards,
    name_is_digest: bool,
}

const DESIGNED: Variant = Variant {
    guards: Guards::ALL,
    name_is_digest: false,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    store: Store,
    owners: [Owner; 2],
    acked: u16,
    /// A request without a reply that may still be done.
    late: Option<Request>,
    replies_to_lose: u8,
    crashes: u8,
}

impl Owner {
    /// Session and name of the operation under way: each is used once.
    fn id(&self) -> u8 {
        self.number * 4 + self.left
    }

    fn name(&self, variant: &Variant) -> u8 {
        if variant.name_is_digest { 0 } else { self.id() }
    }

    /// The tasks that may come next.
    fn choices(&self, variant: &Variant) -> Vec<Task> {
        if self.task != Task::Between {
            return vec![self.task.clone()];
        }
        if self.left == 0 {
            return Vec::new();
        }
        let drop = Some((SessionId(self.id().into()), Change::DropFirst));
        vec![
            Task::Put(self.name(variant)),
            Task::Commit(Commit::guarded(self.epoch, drop, variant.guards)),
            Task::Sweep(Sweep::guarded(self.epoch, variant.guards)),
        ]
    }

    fn requests(&self) -> Vec<Request> {
        match &self.task {
            Task::Between | Task::Stopped => Vec::new(),
            Task::Claim(claim) => vec![Request::Ask(claim.ask())],
            Task::Put(name) => vec![Request::Put(*name)],
            Task::Commit(commit) => commit.ask().map(Request::Ask).into_iter().collect(),
            Task::Sweep(sweep) => sweep.asks().into_iter().map(Request::Ask).collect(),
        }
    }

    fn end_operation(&mut self, verdict: Verdict) {
        self.task = match verdict {
            Verdict::Fenced => Task::Stopped,
            Verdict::Done => {
                self.left -= 1;
                if self.left == 0 {
                    Task::Stopped
                } else {
                    Task::Between
                }
            }
        };
    }

    /// Takes a reply; gives the bit of a session that is acknowledged to its client.
    fn take(&mut self, request: &Request, reply: Reply<Small>, variant: &Variant) -> u16 {
        match &mut self.task {
            Task::Put(_) if reply == Reply::Unknown => self.end_operation(Verdict::Done),
            Task::Put(name) => {
                let change = Some((
                    SessionId(self.number as u64 * 4 + self.left as u64),
                    Change::Add(*name),
                ));
                self.task = Task::Commit(Commit::guarded(self.epoch, change, variant.guards));
            }
            Task::Claim(claim) => {
                claim.answer(reply);
                if let Some(epoch) = claim.epoch() {
                    self.epoch = epoch;
                    self.task = match variant.guards.seal {
                        true => Task::Commit(Commit::guarded(epoch, None, variant.guards)),
                        false => Task::Between,
                    };
                    // The seal counts as an operation of its own.
                    self.left += u8::from(variant.guards.seal);
                }
            }
            Task::Commit(commit) => {
                commit.answer(reply);
                if let Some(verdict) = commit.verdict() {
                    let acked = if verdict == Verdict::Done {
                        1 << self.id()
                    } else {
                        0
                    };
                    // Four operations left: that was the seal.
                    let sealed = self.left == 4;
                    self.end_operation(verdict);
                    return if sealed { 0 } else { acked };
                }
            }
            Task::Sweep(sweep) => {
                if let Request::Ask(ask) = request {
                    sweep.answer(ask, reply);
                }
                if let Some(verdict) = sweep.verdict() {
                    self.end_operation(verdict);
                }
            }
            Task::Between | Task::Stopped => {}
        }
        0
    }
}

impl World {
    fn new(lose: u8, crashes: u8) -> World {
        let first = Small {
            epoch: 1,
            sessions: 0,
            names: 0,
        };
        let mut manifests = [None; NUMBERS];
        manifests[1] = Some(first);
        let owner = |number, epoch, task| Owner {
            number,
            epoch,
            left: 3,
            task,
        };
        World {
            store: Store {
                epochs: 0b10,
                manifests,
                objects: 0,
            },
            owners: [
                owner(0, 1, Task::Between),
                owner(1, 0, Task::Claim(Claim::default())),
            ],
            acked: 0,
            late: None,
            replies_to_lose: lose,
            crashes,
        }
    }

    fn successors(&self, variant: &Variant, to: &mut Vec<World>) {
        if let Some(request) = &self.late {
            let mut next = self.clone();
            next.late = None;
            next.store.serve(request);
            to.push(next);
        }
        for at in 0..2 {
            let alive = self.owners[at].task != Task::Stopped;
            if alive && self.crashes > 0 {
                let mut next = self.clone();
                next.owners[at].task = Task::Stopped;
                next.crashes -= 1;
                to.push(next);
            }
            for task in self.owners[at].choices(variant) {
                let mut chosen = self.clone();
                chosen.owners[at].task = task;
                for request in chosen.owners[at].requests() {
                    let mut next = chosen.clone();
                    let reply = next.store.serve(&request);
                    next.acked |= next.owners[at].take(&request, reply, variant);
                    to.push(next);
                    if self.replies_to_lose > 0 && request.writes() {
                        let mut next = chosen.clone();
                        next.replies_to_lose -= 1;
                        next.acked |= next.owners[at].take(&request, Reply::Unknown, variant);
                        next.late = Some(request);
                        to.push(next);
                    }
                }
            }
        }
    }

    fn violation(&self) -> Option<&'static str> {
        let (_, truth) = self.store.newest();
        if truth.names & !self.store.objects != 0 {
            return Some("a referenced object was deleted");
        }
        if self.acked & !truth.sessions != 0 {
            return Some("an acknowledged change was lost");
        }
        None
    }

    /// A third owner takes over and sweeps; then nothing is unreachable.
    fn leaks(&self) -> Option<&'static str> {
        let mut world = self.clone();
        let mut owner = Owner {
            number: 2,
            epoch: 0,
            left: 1,
            task: Task::Claim(Claim::default()),
        };
        while owner.task != Task::Stopped {
            if owner.task == Task::Between {
                owner.task = Task::Sweep(Sweep::new(owner.epoch));
            }
            for request in owner.requests() {
                let reply = world.store.serve(&request);
                owner.take(&request, reply, &DESIGNED);
            }
        }
        if let Some(violation) = world.violation() {
            return Some(violation);
        }
        let (at, truth) = world.store.newest();
        if world.store.objects != truth.names {
            return Some("an object is left that nothing refers to");
        }
        let numbers = world.store.manifests.iter().filter(|m| m.is_some()).count();
        match at > 2 && numbers > 2 {
            true => Some("manifests are left that nobody needs"),
            false => None,
        }
    }
}

/// Multiply and rotate: states are many and small.
#[derive(Default)]
struct Quick(u64);

impl Hasher for Quick {
    fn finish(&self) -> u64 {
        let h = self.0;
        (h ^ (h >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (h >> 29)
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }
    fn write_u16(&mut self, n: u16) {
        self.write_u64(n.into());
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(23) ^ n).wrapping_mul(0xf135_7aea_2e62_a9c5);
    }
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as u64);
    }
}

struct Explored {
    states: usize,
    violation: Option<(&'static str, World)>,
}

/// Depth first over all states; a state is remembered by 64 bits of hash, as model checkers do.
fn explore(variant: &Variant, lose: u8, crashes: u8) -> Explored {
    let mut seen: HashSet<u64, BuildHasherDefault<Quick>> = HashSet::default();
    let mut pending = vec![World::new(lose, crashes)];
    let mut successors = Vec::new();
    while let Some(world) = pending.pop() {
        let mut hasher = Quick::default();
        world.hash(&mut hasher);
        if !seen.insert(hasher.finish()) {
            continue;
        }
        let mut violation = world.violation();
        world.successors(variant, &mut successors);
        let ended = world.owners.iter().all(|o| o.task == Task::Stopped);
        if violation.is_none() && ended && world.late.is_none() {
            violation = world.leaks();
        }
        if violation.is_some() {
            return Explored {
                states: seen.len(),
                violation: violation.map(|v| (v, world)),
            };
        }
        pending.append(&mut successors);
    }
    Explored {
        states: seen.len(),
        violation: None,
    }
}

fn expect_none(name: &str, variant: &Variant, lose: u8, crashes: u8) -> usize {
    let explored = explore(variant, lose, crashes);
    println!(
        "{name}: {} states, {lose} lost replies, {crashes} crashes",
        explored.states
    );
    assert!(explored.violation.is_none(), "{:#?}", explored.violation);
    explored.states
}

fn expect_found(name: &str, variant: &Variant, what: &str) {
    let explored = explore(variant, 0, 0);
    println!("{name}: found after {} states", explored.states);
    assert_eq!(explored.violation.map(|v| v.0), Some(what), "{name}");
}

#[test]
fn no_interleaving_of_two_owners_does_harm() {
    assert!(expect_none("as designed", &DESIGNED, 0, 0) > 10_000);
}

#[test]
fn no_crash_and_no_lost_reply_does_harm() {
    assert!(expect_none("as designed", &DESIGNED, 1, 2) > 100_000);
}

#[test]
fn the_second_look_at_the_epoch_is_a_second_guard() {
    let guards = Guards {
        epoch_before_delete: false,
        ..Guards::ALL
    };
    expect_none(
        "no epoch check before delete",
        &Variant { guards, ..DESIGNED },
        0,
        0,
    );
}

#[test]
fn objects_named_by_digest_alone_are_deleted_under_their_reference() {
    let variant = Variant {
        name_is_digest: true,
        ..DESIGNED
    };
    expect_found(
        "name is digest",
        &variant,
        "a referenced object was deleted",
    );
}

#[test]
fn without_a_seal_a_referenced_object_is_deleted() {
    let guards = Guards {
        seal: false,
        ..Guards::ALL
    };
    expect_found(
        "no seal",
        &Variant { guards, ..DESIGNED },
        "a referenced object was deleted",
    );
}

#[test]
fn with_the_epoch_checked_on_collision_only_a_referenced_object_is_deleted() {
    let guards = Guards {
        epoch_on_every_read: false,
        ..Guards::ALL
    };
    let variant = Variant { guards, ..DESIGNED };
    expect_found(
        "epoch on collision only",
        &variant,
        "a referenced object was deleted",
    );
}

#[test]
fn without_verification_an_acknowledged_change_is_lost() {
    let guards = Guards {
        verify: Verify::Nothing,
        ..Guards::ALL
    };
    let variant = Variant { guards, ..DESIGNED };
    expect_found(
        "no verification",
        &variant,
        "an acknowledged change was lost",
    );
}

#[test]
fn verified_by_the_predecessor_alone_an_acknowledged_change_is_lost() {
    let guards = Guards {
        verify: Verify::ByPredecessorOnly,
        ..Guards::ALL
    };
    let variant = Variant { guards, ..DESIGNED };
    expect_found(
        "predecessor only",
        &variant,
        "an acknowledged change was lost",
    );
}
