//! Jobs, users, forks and cleaners as parties on one store.

use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use forkpoint::ownership::clean::{ApplyOptions, PlanSource, apply_plan, plan_clean};
use forkpoint::ownership::{
    Access, ClaimRequest, CleanPolicy, Handed, Lineage, PinRequest, SharedStateRegistry, claim,
    pin, refuse_destination, survey, unpin,
};
use forkpoint::progress::{Cancel, Silent};
use forkpoint::snapshot::RestoreMode;
use forkpoint::store::Location;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::reference::Snapshot;
use super::sim::{Party, Sim};
use crate::support::synthetic::numbered_metadata;

pub const TOP: &str = "top";
/// Snapshots that a job keeps itself.
const RETAINED: usize = 3;
pub const MIN_AGE_MS: u64 = 3_600_000;

pub fn at(key: &str) -> Location {
    Location::parse(&format!("s3://b/{key}")).unwrap()
}

#[derive(Debug, Default)]
pub struct Job {
    pub id: String,
    pub home: String,
    pub next: i64,
    pub busy: bool,
    pub ended: bool,
    /// What it keeps, oldest first; claimed ones too.
    pub retained: Vec<Snapshot>,
    /// What its next checkpoint may build on.
    pub base: Vec<String>,
    pub registry: SharedStateRegistry,
}

#[derive(Debug)]
pub struct World {
    pub sim: Sim,
    pub jobs: Vec<Job>,
    pub forks: u32,
    pub plans: Vec<Bytes>,
    pub pins: Vec<(String, String)>,
    names: u64,
}

pub type Shared = Arc<Mutex<World>>;

pub fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().unwrap()
}

impl World {
    pub fn new(sim: Sim) -> Shared {
        Arc::new(Mutex::new(World {
            sim,
            jobs: Vec::new(),
            forks: 0,
            plans: Vec::new(),
            pins: Vec::new(),
            names: 0,
        }))
    }

    pub fn name(&mut self) -> String {
        self.names += 1;
        format!("{:08x}-0000-4000-8000-000000000000", self.names)
    }

    pub fn add_job(&mut self, next: i64) -> usize {
        let id = format!("{:032x}", 0xf00d_0000 + self.jobs.len());
        let home = format!("{TOP}/ckpt/{id}");
        self.jobs.push(Job {
            id,
            home,
            next,
            ..Job::default()
        });
        self.jobs.len() - 1
    }

    /// A task manager or coordinator was lost.
    pub fn job_crashed(&mut self, j: usize) {
        self.jobs[j].busy = false;
        let home = format!("{}/", self.jobs[j].home);
        self.sim
            .state()
            .model
            .uploading
            .retain(|key| !key.starts_with(&home));
    }

    /// A snapshot that is there, if there is one.
    pub fn any_snapshot(&self, rng: &mut StdRng) -> Option<Snapshot> {
        let state = self.sim.state();
        let there: Vec<&Snapshot> = state
            .model
            .snapshots
            .iter()
            .filter(|s| {
                state
                    .objects
                    .contains_key(&format!("{}/_metadata", s.folder))
            })
            .collect();
        (!there.is_empty()).then(|| there[rng.random_range(0..there.len())].clone())
    }

    /// A promise to keep is taken back.
    fn unpinned(&self, folder: &str) {
        let mut state = self.sim.state();
        if let Some(n) = state.model.pinned.iter().position(|f| f == folder) {
            state.model.pinned.swap_remove(n);
        }
    }

    fn commit(&self, snapshot: Snapshot) {
        self.sim.state().model.snapshots.push(snapshot);
    }
}

fn metadata(snapshot: &Snapshot) -> Bytes {
    let files: Vec<(String, u64)> = snapshot
        .objects
        .iter()
        .map(|o| (at(o).to_string(), 1))
        .collect();
    Bytes::from(numbered_metadata(snapshot.number, &files))
}

/// One checkpoint of a job, from the first upload to the deletion of what it has superseded.
pub async fn checkpoint(world: Shared, party: Party, j: usize, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (home, id, number, mut objects) = {
        let mut world = lock(&world);
        let job = &mut world.jobs[j];
        job.next += 1;
        let base: Vec<String> = job
            .base
            .iter()
            .filter(|_| rng.random_bool(0.6))
            .cloned()
            .collect();
        (job.home.clone(), job.id.clone(), job.next - 1, base)
    };
    for key in &objects {
        lock(&world).jobs[j]
            .registry
            .register(number, &Handed::Placeholder(key.clone()))
            .unwrap();
    }
    for _ in 0..rng.random_range(1..4) {
        let name = lock(&world).name();
        let key = match rng.random_bool(0.7) {
            true => format!("{home}/shared/{name}"),
            false => format!("{home}/chk-{number}/{name}"),
        };
        lock(&world).sim.state().model.uploading.insert(key.clone());
        party
            .create(&at(&key), Bytes::from_static(b"x"))
            .await
            .unwrap();
        if key.contains("/shared/") {
            lock(&world).jobs[j]
                .registry
                .register(number, &Handed::Object(key.clone()))
                .unwrap();
        }
        objects.push(key);
    }
    if rng.random_bool(0.2) {
        let mut world = lock(&world);
        world.jobs[j].registry.abort(number);
        world.job_crashed(j);
        return;
    }
    let snapshot = Snapshot {
        folder: format!("{home}/chk-{number}"),
        job: id,
        number,
        objects,
    };
    party
        .create(
            &at(&format!("{}/_metadata", snapshot.folder)),
            metadata(&snapshot),
        )
        .await
        .unwrap();
    let (subsumed, lowest) = {
        let mut world = lock(&world);
        world.commit(snapshot.clone());
        world.job_crashed(j);
        let job = &mut world.jobs[j];
        job.busy = true;
        let shared = || snapshot.objects.iter().filter(|o| o.contains("/shared/"));
        job.registry.confirm(number, shared().map(String::as_str));
        job.base = shared().cloned().collect();
        job.retained.push(snapshot);
        let superseded = job.retained.len().saturating_sub(RETAINED);
        let subsumed: Vec<Snapshot> = job.retained.drain(..superseded).collect();
        (subsumed, job.retained[0].number)
    };
    for old in subsumed {
        party
            .delete(&at(&format!("{}/_metadata", old.folder)))
            .await
            .unwrap();
        for key in old
            .objects
            .iter()
            .filter(|o| o.starts_with(&format!("{}/", old.folder)))
        {
            party.delete(&at(key)).await.unwrap();
        }
    }
    let gone = lock(&world).jobs[j].registry.subsume(lowest).delete;
    for key in gone {
        party.delete(&at(&key)).await.unwrap();
    }
    lock(&world).jobs[j].busy = false;
}

/// A job is started from a snapshot.
pub async fn start(world: Shared, party: Party, from: Snapshot, mode: RestoreMode, chain: bool) {
    let (j, job) = {
        let mut world = lock(&world);
        let j = world.add_job(from.number + 1);
        // Until it may start it does nothing.
        world.jobs[j].ended = true;
        (j, world.jobs[j].id.clone())
    };
    let request = ClaimRequest {
        snapshot: at(&from.folder),
        job: job.clone(),
        mode,
        chain,
        guessed_roots: false,
    };
    let Ok(report) = claim(&party, &[at(TOP)], &request, &Silent).await else {
        return;
    };
    let mut world = lock(&world);
    let mut claimed = Vec::new();
    {
        let mut state = world.sim.state();
        for one in &report.snapshots {
            let folder = one.directory.key().to_string();
            state.model.started.push((folder.clone(), job.clone()));
            if mode == RestoreMode::Claim {
                state.model.claimed.push((folder.clone(), job.clone()));
                claimed.extend(
                    state
                        .model
                        .snapshots
                        .iter()
                        .rev()
                        .find(|s| s.folder == folder)
                        .cloned(),
                );
            }
        }
    }
    claimed.sort_by_key(|s| s.number);
    let own = &mut world.jobs[j];
    own.ended = false;
    own.retained = claimed;
    let shared: Vec<String> = from
        .objects
        .iter()
        .filter(|o| o.contains("/shared/"))
        .cloned()
        .collect();
    own.registry.restore(
        from.number,
        mode,
        shared.iter().map(|o| (o.as_str(), false)),
    );
    own.base = if mode == RestoreMode::NoClaim {
        Vec::new()
    } else {
        shared
    };
}

/// A fork, with the protocol of the real one.
pub async fn fork(world: Shared, party: Party, from: Snapshot) {
    let (home, id) = {
        let mut world = lock(&world);
        // Sometimes to where one has been before.
        world.forks += 1;
        let n = world.forks % 3;
        (format!("{TOP}/forks/f{n}"), format!("{n:032x}"))
    };
    let to = format!("{home}/chk-{}", from.number);
    let request = PinRequest::of_fork(&id, &at(&home));
    if pin(&party, &at(&from.folder), &request).await.is_err() {
        return;
    }
    lock(&world)
        .sim
        .state()
        .model
        .pinned
        .push(from.folder.clone());
    let note = at(&format!("{home}/.forkpoint/chk-{}.json", from.number));
    let text = format!(
        "{{\"version\":1,\"fork_id\":\"{id}\",\"source\":\"{}\"}}",
        at(&from.folder)
    );
    let done = match party.create(&note, Bytes::from(text)).await {
        Err(_) => true,
        Ok(()) => {
            let done = copy(&world, &party, &from, &home, &to).await;
            if done {
                party.delete(&note).await.unwrap();
            }
            done
        }
    };
    if done {
        lock(&world).unpinned(&from.folder);
        unpin(&party, &at(&from.folder), &request.name)
            .await
            .unwrap();
    }
}

/// Copies and commits; true if nothing is left under way.
async fn copy(world: &Shared, party: &Party, from: &Snapshot, home: &str, to: &str) -> bool {
    if refuse_destination(party, &at(to)).await.is_err() {
        return true;
    }
    if party
        .find(&at(&format!("{to}/_metadata")))
        .await
        .unwrap()
        .is_some()
    {
        return true;
    }
    // The real names are digests of both ends.
    let end = home.len();
    let place = |key: &String| {
        let name = key.rsplit('/').next().unwrap();
        format!(
            "{home}/shared/{name}-{:08x}{}",
            from.number,
            &home[end - 1..]
        )
    };
    let objects: Vec<String> = from.objects.iter().map(place).collect();
    for copy in &objects {
        if party.find(&at(copy)).await.unwrap().is_some() {
            return true;
        }
    }
    for (source, copy) in from.objects.iter().zip(&objects) {
        // Its own job may have deleted it; a cleaner may not.
        if party.find(&at(source)).await.unwrap().is_none() {
            return false;
        }
        party
            .create(&at(copy), Bytes::from_static(b"x"))
            .await
            .unwrap();
    }
    let job = home.strip_prefix(&format!("{TOP}/")).unwrap().to_string();
    let snapshot = Snapshot {
        folder: to.to_string(),
        job,
        number: from.number,
        objects,
    };
    party
        .create(&at(&format!("{to}/_metadata")), metadata(&snapshot))
        .await
        .unwrap();
    lock(world).commit(snapshot);
    true
}

/// A user pins a snapshot.
pub async fn add_pin(world: Shared, party: Party, on: Snapshot, seed: u64) {
    let name = format!("p{seed:016x}");
    let request = PinRequest {
        name: name.clone(),
        owner: "user".into(),
        reason: "audit".into(),
        expires_unix_ms: None,
        fork: None,
    };
    if pin(&party, &at(&on.folder), &request).await.is_ok() {
        let mut world = lock(&world);
        world.pins.push((on.folder.clone(), name));
        world.sim.state().model.pinned.push(on.folder);
    }
}

/// A user takes a pin back.
pub async fn remove_pin(world: Shared, party: Party) {
    let Some((folder, name)) = lock(&world).pins.pop() else {
        return;
    };
    lock(&world).unpinned(&folder);
    unpin(&party, &at(&folder), &name).await.unwrap();
}

/// Plans a clean, and perhaps applies it or an older plan.
pub async fn clean(world: Shared, party: Party, keep: usize, seed: u64, grace_ms: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let old = {
        let world = lock(&world);
        let n = world.plans.len();
        (n > 0 && rng.random_bool(0.3)).then(|| world.plans[rng.random_range(0..n)].clone())
    };
    let text = match old {
        Some(text) => text,
        None => {
            let survey = survey(&party, &[at(TOP)], &Silent).await.unwrap();
            let policy = CleanPolicy {
                keep: vec![format!("last={keep}").parse().unwrap()],
                min_age_ms: MIN_AGE_MS,
            };
            let lineage = Lineage::new(&survey);
            let plan = plan_clean(&lineage, &[at(TOP)], &[], &policy, survey.taken_at);
            let mut text = Vec::new();
            if plan.write(&lineage, &mut text).is_err() {
                return;
            }
            let text = Bytes::from(text);
            lock(&world).plans.push(text.clone());
            text
        }
    };
    let options = ApplyOptions {
        grace_ms,
        max_delete: None,
    };
    // Missing evidence refuses it; that is as good as done.
    let _ = apply_plan(
        &party,
        &PlanSource::Text(text),
        &options,
        &Silent,
        &Cancel::default(),
    )
    .await;
}
