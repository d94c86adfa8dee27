//! A small stream processor that counts words exactly once, on the snapshot writer: incremental checkpoints,
//! a crash in the middle of one, recovery with five subtasks in place of two, a second job that is started
//! from the first one without claiming it, and the end of the first one's folder.
//!
//! `cargo run --example stream_processor [URL]`, on local disk or any store, in a folder without snapshots; without
//! an URL in a temporary folder. The second job's snapshots are left, to be looked at.

// An example talks to a person.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;

use forkpoint::progress::{Cancel, Silent};
use forkpoint::snapshot::RestoreMode;
use forkpoint::snapshot::native::Partition;
use forkpoint::store::{Location, Stores};
use forkpoint::writer::{
    Acknowledgement, CommittedSnapshot, Details, Job, JobDescription, JobOptions, Restored,
    Retention, SnapshotWriter, Source, Start, State, SubtaskOrder, SubtaskWriter, find_snapshots,
};
use forkpoint::{Error, Result};

const WORDS: u64 = 700;
/// Changes are written by themselves until there are so many files; then everything is written anew.
const DELTAS: usize = 4;

/// The stream: record `n` is always the same word, so that it can be read again from any offset.
fn word(n: u64) -> String {
    let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31) ^ n;
    format!("word-{}", mixed % WORDS)
}

/// The key group of a word, of 128.
fn key_group(word: &str) -> u32 {
    let hash = word
        .bytes()
        .fold(7u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
    hash % 128
}

/// One subtask of the operator that counts: a table, and what has changed in it since the last checkpoint.
#[derive(Default)]
struct Counts {
    table: BTreeMap<String, u64>,
    changed: BTreeMap<String, u64>,
}

/// A job that runs in this process. Its subtasks could as well be processes of their own: what they are
/// told and what they answer are documents.
struct Engine {
    stores: Stores,
    job: Job,
    counts: Vec<Counts>,
    /// The state of the operator `source`.
    offset: u64,
    /// The state of the operator `rules`, of which every subtask has a copy.
    rules: String,
}

fn description(parallelism: u32) -> JobDescription {
    let mut job = JobDescription::new("word-count")
        .operator("source", 1)
        .operator("rules", parallelism)
        .operator("counts", parallelism);
    for operator in &mut job.operators {
        operator.max_parallelism = Some(128);
    }
    job
}

impl Engine {
    /// Starts or restarts a job with so many subtasks.
    async fn start(
        stores: &Stores,
        home: &Location,
        parallelism: u32,
        start: &Start,
    ) -> Result<Engine> {
        let job = description(parallelism);
        let (job, restored) = Job::start(stores, home, &job, start, JobOptions::default()).await?;
        let mut engine = Engine {
            stores: stores.clone(),
            job,
            counts: (0..parallelism).map(|_| Counts::default()).collect(),
            offset: 0,
            rules: "count every word".into(),
        };
        if let Some(restored) = &restored {
            engine.restore(restored).await?;
        }
        Ok(engine)
    }

    async fn restore(&mut self, restored: &Restored) -> Result<()> {
        for share in &restored.subtasks {
            for state in &share.states {
                let inline = String::from_utf8(state.inline()?.unwrap_or_default());
                let inline = inline.map_err(|e| Error::corrupt(e.to_string()))?;
                match share.operator.as_str() {
                    "source" => self.offset = inline.parse().unwrap_or(0),
                    "rules" => self.rules = inline,
                    _ => {
                        // Later files stand above earlier ones; of a state of another subtask only our
                        // own key groups count.
                        let own = share.key_groups;
                        for file in &state.files {
                            let bytes = file.read(&self.stores).await?;
                            for line in String::from_utf8_lossy(&bytes).lines() {
                                let Some((word, count)) = line.split_once(' ') else {
                                    continue;
                                };
                                let group = key_group(word);
                                if (own.first()..own.end()).contains(&group)
                                    && let Some(counts) =
                                        self.counts.get_mut(share.subtask as usize)
                                {
                                    let count = count.parse().unwrap_or(0);
                                    counts.table.insert(word.to_string(), count);
                                }
                            }
                        }
                    }
                }
            }
        }
        let whose = match restored.own {
            true => "its own".to_string(),
            false => restored.mode.to_string(),
        };
        println!(
            "  restored checkpoint {} ({whose}): offset {}, {} files to duplicate",
            restored.manifest.number,
            self.offset,
            restored.plan.tasks.len()
        );
        Ok(())
    }

    fn process(&mut self, records: u64) {
        let parallelism = self.counts.len() as u64;
        for n in self.offset..self.offset + records {
            let word = word(n);
            let subtask = u64::from(key_group(&word)) * parallelism / 128;
            if let Some(counts) = self.counts.get_mut(subtask as usize) {
                let count = counts.table.entry(word.clone()).or_default();
                *count += 1;
                counts.changed.insert(word, *count);
            }
        }
        self.offset += records;
    }

    /// What one subtask has at this moment.
    fn states(&mut self, order: &SubtaskOrder) -> Vec<State> {
        match order.operator.as_str() {
            "source" => vec![State::shard("offset").inline(self.offset.to_string())],
            "rules" => vec![State::new("rules", Partition::Broadcast).inline(self.rules.clone())],
            _ => {
                let Some(counts) = self.counts.get_mut(order.subtask as usize) else {
                    return Vec::new();
                };
                let mut state = State::keyed("counts", order.key_groups);
                // What only others wrote for key groups that are theirs now is written anew.
                let whole = order.reusable.is_empty()
                    || order.reusable.len() >= DELTAS
                    || order
                        .reusable
                        .iter()
                        .any(|f| f.key_groups != Some(order.key_groups));
                let lines = if whole {
                    &counts.table
                } else {
                    &counts.changed
                };
                let text: String = lines.iter().map(|(w, c)| format!("{w} {c}\n")).collect();
                if !whole {
                    for file in &order.reusable {
                        state = state.reuse(&file.name, &file.file);
                    }
                }
                counts.changed.clear();
                vec![state.shared(format!("changes-{}", order.number), text.into_bytes())]
            }
        }
    }

    /// All subtasks write their part, side by side.
    async fn write(&mut self, attempt: &mut SnapshotWriter) -> Result<()> {
        let orders: Vec<SubtaskOrder> = attempt.orders().cloned().collect();
        let parts: Vec<_> = orders
            .iter()
            .map(|order| (order, self.states(order)))
            .collect();
        let writing = parts.into_iter().map(|(order, states)| {
            let writer = SubtaskWriter::new(&self.stores, order);
            writer.write(states)
        });
        let acks: Vec<Acknowledgement> = futures::future::try_join_all(writing).await?;
        for ack in acks {
            attempt.acknowledge(ack)?;
        }
        Ok(())
    }

    async fn checkpoint(&mut self) -> Result<CommittedSnapshot> {
        let mut attempt = self.job.checkpoint().await?;
        self.write(&mut attempt).await?;
        let done = attempt.commit(&Details::default()).await?.committed()?;
        println!(
            "  checkpoint {}: offset {}, {} bytes uploaded, {} bytes referred to",
            done.manifest.number, self.offset, done.uploaded_bytes, done.reused_bytes
        );
        Ok(done)
    }

    /// Every record up to the offset is counted, and counted once.
    fn check(&self) -> Result<()> {
        let mut expected: BTreeMap<String, u64> = BTreeMap::new();
        for n in 0..self.offset {
            *expected.entry(word(n)).or_default() += 1;
        }
        let tables = self.counts.iter().flat_map(|c| c.table.clone());
        let counted: BTreeMap<String, u64> = tables.collect();
        match counted == expected {
            true => {
                println!("  every one of {} records is counted once", self.offset);
                Ok(())
            }
            false => Err(Error::corrupt("words were lost, or counted twice")),
        }
    }
}

/// The whole story, below `root`.
pub(crate) async fn run(stores: &Stores, root: &Location) -> Result<()> {
    let (first, second) = (root.join("first")?, root.join("second")?);
    println!("a job of three operators, with two subtasks each but for the source");
    let mut engine = Engine::start(stores, &first, 2, &Start::newest()).await?;
    for _ in 0..3 {
        engine.process(1_000);
        engine.checkpoint().await?;
    }

    println!("it is killed while it writes a checkpoint, and goes on with five subtasks");
    engine.process(1_000);
    let mut attempt = engine.job.checkpoint().await?;
    engine.write(&mut attempt).await?;
    drop((attempt, engine));
    let mut engine = Engine::start(stores, &first, 5, &Start::newest()).await?;
    engine.check()?;
    for _ in 0..3 {
        engine.process(700);
        engine.checkpoint().await?;
    }
    let retention = Retention::newest(2);
    let kept = engine
        .job
        .retain(&retention, &Silent, &Cancel::default())
        .await?;
    println!(
        "  {} old objects removed",
        kept.map_or(0, |report| report.deleted)
    );

    println!("a second job is started from its newest checkpoint, without claiming it");
    let from = Start::newest_or(Source::NewestOf(first.clone()), RestoreMode::NoClaim);
    let mut other = Engine::start(stores, &second, 5, &from).await?;
    other.check()?;
    other.process(500);
    other.checkpoint().await?;
    engine.process(100);
    engine.checkpoint().await?;

    println!("the first job ends, and its folder is deleted");
    drop((engine, other));
    let everything = stores.list(&first).await?;
    let everything = everything.into_iter().map(|(at, _)| at).collect();
    for (_, outcome) in stores.delete_all(everything).await {
        outcome?;
    }

    println!("the second job is killed, and goes on by itself");
    let mut other = Engine::start(stores, &second, 5, &Start::newest()).await?;
    other.check()?;
    other.process(500);
    other.checkpoint().await?;
    other.check()
}

/// Where the example works: the first argument, or a temporary folder.
pub(crate) fn place(name: &str) -> Result<Location> {
    let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    let text = std::env::args().nth(1);
    Location::parse(&text.unwrap_or_else(|| folder.display().to_string()))
}

#[tokio::main]
async fn main() -> Result<()> {
    let (stores, root) = (Stores::from_env(), place("forkpoint-stream-processor")?);
    for job in ["first", "second"] {
        let home = root.join(job)?;
        if !find_snapshots(&stores, &home).await?.is_empty() {
            let why = "there are snapshots of an earlier run; name another folder";
            return Err(Error::invalid(why).at(home));
        }
    }
    run(&stores, &root).await?;
    println!("what is left: cargo run -- ls {root}");
    Ok(())
}
