//! Damages every sample in many ways: decoding must never panic nor take much memory, and what
//! still decodes must encode to the same bytes.
//!
//! A failure names the sample and the seed. `FORKPOINT_MUTATIONS` changes how many there are for
//! each sample.

// Helpers of tests fail by panicking, like the tests themselves.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

#[path = "flink_metadata/fixtures.rs"]
mod fixtures;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use forkpoint::snapshot::flink;
use peak_alloc::PeakAlloc;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

/// Of all threads together, and with the samples.
const MOST_MEMORY: usize = 64 << 20;
const MUTATIONS: u64 = 20_000;
const EXTREMES: [i32; 10] = [
    i32::MIN,
    i32::MIN + 1,
    -2,
    -1,
    0,
    1,
    0x7FFF,
    0x8000,
    0x00FF_FFFF,
    i32::MAX,
];

#[test]
fn no_damage_makes_decoding_panic() {
    let samples: Vec<(String, Vec<u8>)> = fixtures::with_dumps()
        .into_iter()
        .map(|sample| (sample.name, sample.bytes))
        .chain(fixtures::real())
        .collect();
    let mutations = match std::env::var("FORKPOINT_MUTATIONS") {
        Ok(number) => number.parse().unwrap(),
        Err(_) => MUTATIONS,
    };
    ALLOCATED.reset_peak_usage();
    let next = AtomicUsize::new(0);
    let decoded = AtomicUsize::new(0);
    let threads = thread::available_parallelism().map_or(2, |n| n.get().min(4));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((name, bytes)) = samples.get(next.fetch_add(1, Ordering::Relaxed)) {
                    decoded.fetch_add(torture(name, bytes, mutations), Ordering::Relaxed);
                }
            });
        }
    });
    let peak = ALLOCATED.peak_usage();
    assert!(peak < MOST_MEMORY, "{peak} bytes were allocated at once");
    // Most of a file is text and data, where damage goes unnoticed.
    assert!(decoded.into_inner() > 1000 || mutations < MUTATIONS);
    println!("{} samples, peak memory {peak} bytes", samples.len());
}

/// Returns how many damaged files could still be decoded.
fn torture(name: &str, original: &[u8], mutations: u64) -> usize {
    let mut decoded = 0;
    let mut bytes = Vec::with_capacity(original.len() * 2);
    for seed in 0..mutations {
        bytes.clear();
        bytes.extend_from_slice(original);
        mutate(&mut bytes, seed);
        match catch_unwind(AssertUnwindSafe(|| check(&bytes))) {
            Ok(Ok(loaded)) => decoded += usize::from(loaded),
            Ok(Err(why)) => panic!("{name}, seed {seed}: {why}"),
            Err(_) => panic!("{name}, seed {seed}: panicked"),
        }
    }
    decoded
}

/// True if the bytes were decoded.
fn check(bytes: &[u8]) -> Result<bool, String> {
    let metadata = match flink::decode(bytes) {
        Ok(metadata) => metadata,
        Err(error) if error.message().contains("byte ") => return Ok(false),
        Err(error) => return Err(format!("an error without a place: {error}")),
    };
    let mut walked = 0_usize;
    metadata.walk(&mut |_| walked += 1);
    let mut rewritten = 0_usize;
    let copy = metadata
        .encode_with(&mut |_| {
            rewritten += 1;
            Ok(None)
        })
        .map_err(|error| error.to_string())?;
    if copy != bytes {
        return Err("changed by encoding".to_owned());
    }
    if walked != rewritten {
        return Err("walking and rewriting disagree".to_owned());
    }
    Ok(true)
}

fn mutate(bytes: &mut Vec<u8>, seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    for _ in 0..rng.random_range(1..=3) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..7) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = rng.random(),
            2 => bytes.truncate(at),
            3 => {
                let byte = rng.random();
                bytes.insert(at, byte);
            }
            4 => {
                let end = (at + rng.random_range(1..=16)).min(bytes.len());
                bytes.drain(at..end);
            }
            5 => {
                // A piece of the file comes again elsewhere.
                let end = (at + rng.random_range(1..=256)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                let to = rng.random_range(0..=bytes.len());
                bytes.splice(to..to, piece);
            }
            _ => {
                let extreme = EXTREMES[rng.random_range(0..EXTREMES.len())].to_be_bytes();
                let end = (at + 4).min(bytes.len());
                bytes[at..end].copy_from_slice(&extreme[..end - at]);
            }
        }
    }
}
