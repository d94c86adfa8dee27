//! Random histories of jobs, forks, claims, pins and cleaners, stopped between any two calls to the
//! store or killed there, against a reference that says what may be deleted.
//!
//! `FORKPOINT_HISTORIES` says how many (4,000 if it is not set), `FORKPOINT_SEED` which one to replay.

// A test says that something is wrong by panicking.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub
)]

#[path = "ownership_model/reference.rs"]
mod reference;
#[path = "ownership_model/sim.rs"]
mod sim;
mod support;
#[path = "ownership_model/world.rs"]
mod world;

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};

use forkpoint::snapshot::RestoreMode;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use reference::Model;
use sim::{Actor, Sim};
use world::{Shared, World, lock};

/// What has happened in all histories, to see that the test does something.
#[derive(Debug, Default)]
struct Counts {
    completed: AtomicU64,
    deleted: AtomicU64,
    killed: AtomicU64,
    steps: AtomicU64,
}

/// An actor, and the job that is busy with it.
struct Running(Actor, Option<usize>);

fn spawn(world: &Shared, sim: &Sim, rng: &mut StdRng, keep: usize) -> Option<Running> {
    let seed: u64 = rng.random();
    let (party, cleaner) = (sim.party(false), sim.party(true));
    let shared = Shared::clone(world);
    let snapshot = lock(world).any_snapshot(rng);
    let event = rng.random_range(0..100);
    if event < 45 {
        let mut world = lock(world);
        let idle: Vec<usize> = (0..world.jobs.len())
            .filter(|j| !world.jobs[*j].busy && !world.jobs[*j].ended)
            .collect();
        let j = match idle.is_empty() || (world.jobs.len() < 2 && rng.random_bool(0.3)) {
            true if world.jobs.len() < 4 => world.add_job(1),
            true => return None,
            false => idle[rng.random_range(0..idle.len())],
        };
        world.jobs[j].busy = true;
        return Some(Running(
            Box::pin(world::checkpoint(shared, party, j, seed)),
            Some(j),
        ));
    }
    let actor: Actor = match (event, snapshot) {
        (45..57, Some(from)) => {
            let mode = [
                RestoreMode::Claim,
                RestoreMode::NoClaim,
                RestoreMode::Legacy,
            ][rng.random_range(0..3)];
            let mut world = lock(world);
            // Who takes over from a job, or builds on its files, has stopped it.
            let own = world.jobs.iter().position(|job| job.id == from.job);
            if let (Some(own), true) = (own, mode != RestoreMode::NoClaim) {
                if world.jobs[own].busy {
                    return None;
                }
                world.jobs[own].ended = true;
            }
            // Files that a third job owns may go with that one.
            let others = from
                .objects
                .iter()
                .any(|o| !o.starts_with(&format!("{}/", from.folder.rsplit_once('/').unwrap().0)));
            if others && mode != RestoreMode::NoClaim {
                return None;
            }
            drop(world);
            Box::pin(world::start(
                shared,
                party,
                from,
                mode,
                rng.random_bool(0.5),
            ))
        }
        (57..65, Some(from)) => Box::pin(world::fork(shared, party, from)),
        (65..70, Some(on)) => Box::pin(world::add_pin(shared, party, on, seed)),
        (70..74, _) => Box::pin(world::remove_pin(shared, party)),
        (74.., _) => {
            let grace = if rng.random_bool(0.7) { 0 } else { 60_000 };
            Box::pin(world::clean(shared, cleaner, keep, seed, grace))
        }
        _ => return None,
    };
    Some(Running(actor, None))
}

fn poll(actor: &mut Actor) -> bool {
    actor
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_ready()
}

/// Runs one history; says what is wrong.
fn history(seed: u64, counts: &Counts) -> Result<(), String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let keep = rng.random_range(1..3);
    let sim = Sim::new(
        seed,
        Model {
            keep_last: keep,
            ..Model::default()
        },
    );
    let world = World::new(sim.clone());
    let mut actors: Vec<Running> = Vec::new();
    let mut events = rng.random_range(6..22);
    let crowd = rng.random_range(1..5);
    let mut deleted = 0;
    while events > 0 || !actors.is_empty() {
        counts.steps.fetch_add(1, Ordering::Relaxed);
        if actors.is_empty() && rng.random_bool(0.4) {
            // Nothing is under way: days may pass.
            sim.state().now += rng.random_range(0..3 * 86_400_000);
        }
        sim.state().now += rng.random_range(0..2_000);
        if events > 0 && actors.len() < crowd && (actors.is_empty() || rng.random_bool(0.2)) {
            events -= 1;
            actors.extend(spawn(&world, &sim, &mut rng, keep));
            continue;
        }
        let n = rng.random_range(0..actors.len());
        let killed = rng.random_bool(0.004);
        let before = sim.state().objects.len();
        let ended = killed || poll(&mut actors[n].0);
        deleted += before.saturating_sub(sim.state().objects.len());
        if ended {
            let Running(_, job) = actors.swap_remove(n);
            if killed {
                counts.killed.fetch_add(1, Ordering::Relaxed);
                if let Some(j) = job {
                    lock(&world).job_crashed(j);
                }
            }
        }
        let wrong = sim.state().wrong.first().cloned();
        if let Some(wrong) = wrong {
            return Err(format!("{wrong}\n{}", told(&sim)));
        }
    }
    let objects = sim.state_objects();
    let broken = sim.state().model.broken(&objects);
    if !broken.is_empty() {
        return Err(format!("snapshots lack objects: {broken:?}"));
    }
    counts
        .completed
        .fetch_add(sim.state().model.snapshots.len() as u64, Ordering::Relaxed);
    counts.deleted.fetch_add(deleted as u64, Ordering::Relaxed);
    quiet_clean(&sim, &world, keep)
}

/// What has been promised and what is there, for whoever looks into a failure.
fn told(sim: &Sim) -> String {
    let state = sim.state();
    let keys: Vec<String> = state
        .objects
        .iter()
        .map(|(k, o)| format!("{k} {}", o.modified))
        .collect();
    format!("at {}: {:#?}\n{}", state.now, state.model, keys.join("\n"))
}

/// All is quiet, forks that were left half done are abandoned: one clean leaves nothing unreferenced.
fn quiet_clean(sim: &Sim, world: &Shared, keep: usize) -> Result<(), String> {
    {
        let mut state = sim.state();
        state.now += 20 * 86_400_000;
        let is_note = |key: &str| key.contains("/.forkpoint/chk-") || key.contains("/fork-");
        state.objects.retain(|key, _| !is_note(key));
        state.model.pinned.clear();
        let pins: Vec<String> = lock(world)
            .pins
            .iter()
            .map(|(folder, _)| folder.clone())
            .collect();
        state.model.pinned.extend(pins);
    }
    if sim.state().objects.is_empty() {
        return Ok(());
    }
    lock(world).plans.clear();
    let mut last: Actor = Box::pin(world::clean(
        Shared::clone(world),
        sim.party(true),
        keep,
        1,
        0,
    ));
    while !poll(&mut last) {}
    let wrong = sim.state().wrong.first().cloned();
    if let Some(wrong) = wrong {
        return Err(format!("{wrong}\n{}", told(sim)));
    }
    let objects = sim.state_objects();
    let model_left = sim.state().model.unreferenced(&objects);
    let broken = sim.state().model.broken(&objects);
    match (model_left.is_empty(), broken) {
        (true, broken) if broken.is_empty() => Ok(()),
        (_, broken) => Err(format!(
            "after the last clean nothing refers to {model_left:?}; broken: {broken:?}"
        )),
    }
}

#[test]
fn no_history_deletes_what_is_needed_and_a_quiet_clean_leaves_nothing_unreferenced() {
    let number = |name: &str| std::env::var(name).ok().map(|v| v.parse::<u64>().unwrap());
    let counts = Counts::default();
    if let Some(seed) = number("FORKPOINT_SEED") {
        history(seed, &counts).unwrap();
        return;
    }
    let histories = number("FORKPOINT_HISTORIES").unwrap_or(4_000);
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= histories {
                        return;
                    }
                    if let Err(why) = history(seed, &counts) {
                        panic!("{why}\nreplay it with FORKPOINT_SEED={seed}");
                    }
                }
            });
        }
    });
    let many = |count: &AtomicU64| count.load(Ordering::Relaxed) >= histories;
    assert!(
        many(&counts.completed) && many(&counts.deleted) && many(&counts.steps),
        "{counts:?}"
    );
    assert!(
        counts.killed.load(Ordering::Relaxed) * 10 >= histories,
        "{counts:?}"
    );
}
