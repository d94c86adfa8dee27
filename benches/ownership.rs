//! Ownership of a large root: 2,000 snapshots of 20 jobs and 1,000,000 objects, made up as they are
//! asked for. Time and peak memory of the survey, of `ls`, `why` and the plan of a clean.
//!
//!     cargo bench --bench ownership
//!
//! Seen on two quiet cores: survey (list, read all metadata) 14.0 s, lineage 0.02 s, `ls` 0.17 s, `why` below
//! 0.01 s, classifying 0.6 s, writing the plan of 941,900 objects 1.0 s; peak memory 146 MiB.

// A benchmark says that something is wrong by panicking, and prints what it measured.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::io::Write;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use forkpoint::ownership::clean::plan_clean;
use forkpoint::ownership::{Access, CleanPolicy, Lineage, family_tree, judge, survey};
use forkpoint::progress::Silent;
use forkpoint::store::{Location, Stat};
use forkpoint::{Error, ErrorKind, Result};
use futures::StreamExt;
use futures::stream::BoxStream;

const JOBS: u64 = 20;
const SNAPSHOTS: u64 = 100;
/// New files of each snapshot; it uses as many of the one before.
const FILES: u64 = 500;
const LIMIT_KIB: u64 = 512 * 1024;
const DAY: u64 = 86_400_000;
const NOW: u64 = 1_000 * DAY;

struct Made;

fn home(job: u64) -> String {
    format!("ckpt/{job:032x}")
}

fn file(job: u64, snapshot: u64, n: u64) -> String {
    let number = (job * SNAPSHOTS + snapshot) * FILES + n;
    format!(
        "{}/shared/{number:08x}-0000-4000-8000-{:012x}",
        home(job),
        number.wrapping_mul(0x9e37_79b9) & 0xffff_ffff_ffff
    )
}

fn stat(size: u64, snapshot: u64) -> Stat {
    Stat {
        size,
        tag: Some(format!("\"{:032x}\"", size * 31 + snapshot)),
        modified: Some((100 + snapshot) * DAY),
        ..Stat::default()
    }
}

fn listed(job: u64) -> impl Iterator<Item = (String, Stat)> {
    let commits =
        (0..SNAPSHOTS).map(move |s| (format!("{}/chk-{s}/_metadata", home(job)), stat(120_000, s)));
    let files = (0..SNAPSHOTS)
        .flat_map(move |s| (0..FILES).map(move |n| (file(job, s, n), stat(64 << 20, s))));
    commits.chain(files)
}

/// A `_metadata` file of version 3 with one incremental handle.
fn metadata(job: u64, snapshot: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let utf = |out: &mut Vec<u8>, text: &str| {
        out.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
        out.extend(text.as_bytes());
    };
    out.extend(0x4960_672Di32.to_be_bytes());
    out.extend(3i32.to_be_bytes());
    out.extend(i64::try_from(snapshot).unwrap().to_be_bytes());
    for n in [0i32, 1] {
        out.extend(n.to_be_bytes()); // master states, operators
    }
    out.extend([7; 16]);
    for n in [1i32, 128] {
        out.extend(n.to_be_bytes()); // parallelism, max parallelism
    }
    out.push(0);
    for n in [1i32, 0, 0, 0] {
        out.extend(n.to_be_bytes()); // subtasks, index, managed and raw operator state
    }
    out.push(11); // incremental
    out.extend(7i64.to_be_bytes());
    utf(&mut out, "11111111-2222-3333-4444-555555555555");
    for n in [0i32, 128] {
        out.extend(n.to_be_bytes());
    }
    out.extend((-1i64).to_be_bytes());
    out.push(1);
    utf(&mut out, "inline");
    out.extend(2i32.to_be_bytes());
    out.extend([1, 2]);
    let before = snapshot.checked_sub(1);
    let files: Vec<(u64, u64)> = before
        .into_iter()
        .chain([snapshot])
        .flat_map(|s| (0..FILES).map(move |n| (s, n)))
        .collect();
    out.extend(i32::try_from(files.len()).unwrap().to_be_bytes());
    for (s, n) in files {
        utf(&mut out, &format!("{n:06}.sst"));
        out.push(2);
        out.extend((64i64 << 20).to_be_bytes());
        utf(&mut out, &format!("s3://b/{}", file(job, s, n)));
    }
    out.extend(0i32.to_be_bytes());
    utf(&mut out, "66666666-7777-8888-9999-000000000000");
    out.push(0);
    for n in [0i32, 0] {
        out.extend(n.to_be_bytes());
    }
    out
}

#[async_trait]
impl Access for Made {
    fn now(&self) -> u64 {
        NOW
    }
    fn random(&self) -> u64 {
        4
    }
    async fn wait(&self, _: std::time::Duration) {}
    fn list(&self, folder: &Location) -> Result<BoxStream<'static, Result<(Location, Stat)>>> {
        let folder = folder.clone();
        let all = (0..JOBS).flat_map(listed).map(move |(key, stat)| {
            let below = key.strip_prefix("ckpt/").unwrap_or_default();
            Ok((folder.join(below)?, stat))
        });
        Ok(futures::stream::iter(all).boxed())
    }
    async fn read(&self, at: &Location, _: u64) -> Result<Bytes> {
        let parts: Vec<&str> = at.key().split('/').collect();
        let job = u64::from_str_radix(parts[1], 16).unwrap();
        let snapshot = parts[2].strip_prefix("chk-").unwrap().parse().unwrap();
        Ok(Bytes::from(metadata(job, snapshot)))
    }
    async fn find(&self, _: &Location) -> Result<Option<Stat>> {
        Ok(None)
    }
    async fn create(&self, at: &Location, _: Bytes) -> Result<()> {
        Err(Error::new(ErrorKind::Denied, "read only").at(at))
    }
    async fn delete(&self, at: &Location) -> Result<()> {
        Err(Error::new(ErrorKind::Denied, "read only").at(at))
    }
    async fn delete_all(&self, _: Vec<Location>) -> Vec<(Location, Result<()>)> {
        Vec::new()
    }
    async fn real(&self, at: &Location) -> Result<Location> {
        Ok(at.clone())
    }
    async fn remove_empty_folders(&self, _: &Location, _: &Location) {}
}

/// The most memory that this process has had, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|l| l.starts_with("VmHWM"))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let root = Location::parse("s3://b/ckpt").unwrap();
    let mut last = Instant::now();
    let mut step = |what: &str| {
        println!(
            "{what:32} {:7.2} s, peak {:4} MiB",
            last.elapsed().as_secs_f64(),
            peak_kib() / 1024
        );
        last = Instant::now();
    };
    let survey = runtime
        .block_on(survey(&Made, std::slice::from_ref(&root), &Silent))
        .unwrap();
    assert_eq!(survey.missing, []);
    step("survey: list and read metadata");
    let lineage = Lineage::new(&survey);
    step("lineage");
    let tree = family_tree(&lineage, std::slice::from_ref(&root));
    assert_eq!(
        tree.branches
            .iter()
            .map(|b| b.snapshots.len())
            .sum::<usize>(),
        2_000
    );
    let text = forkpoint::report::ls_text(&tree);
    step("ls");
    assert_eq!(text.lines().count(), 2_001);
    drop((tree, text));
    let verdict = judge(&lineage, 1_000, NOW).unwrap();
    step("why");
    assert_eq!(verdict.total.objects, 501, "the first of a job");
    let policy = CleanPolicy {
        keep: vec!["last=5".parse().unwrap()],
        ..CleanPolicy::default()
    };
    let plan = plan_clean(&lineage, std::slice::from_ref(&root), &[], &policy, NOW);
    step("clean: classify");
    let mut sink = std::io::BufWriter::new(std::io::sink());
    plan.write(&lineage, &mut sink).unwrap();
    sink.flush().unwrap();
    step("clean: write the plan");
    let (names, going) = (survey.names.len(), plan.header.objects);
    println!(
        "{names} objects, {} snapshots; {going} objects to delete",
        survey.nodes.len()
    );
    assert!(names >= 1_000_000 && going > 900_000);
    assert!(peak_kib() < LIMIT_KIB, "more than 512 MiB");
}
