//! A training loop whose eight ranks write their shards in the background while the loop goes on: resumed after
//! a crash, the last three checkpoints and the best one kept.
//!
//! `cargo run --example training_checkpoint [URL]`, on local disk or any store, in a folder without snapshots; without
//! an URL in a temporary folder. The checkpoints that are kept are left, to be looked at.

// An example talks to a person.
#![allow(clippy::print_stdout)]

use bytes::Bytes;
use forkpoint::progress::{Cancel, Silent};
use forkpoint::store::{Location, Stores};
use forkpoint::writer::{
    Better, CommittedSnapshot, Details, Job, JobDescription, JobOptions, Restored, Retention,
    Start, State, SubtaskOrder, SubtaskWriter, find_snapshots,
};
use forkpoint::{Error, ErrorKind, Result};
use tokio::task::{JoinHandle, JoinSet};

const RANKS: u32 = 8;
const WEIGHTS_OF_A_RANK: usize = 64 * 1024;
const CHECKPOINT_EVERY: u64 = 5;

/// The weights of one rank. Training moves them towards 1; the data that is held back would have them at 0.7,
/// so that the best model is not the last one.
struct Rank {
    weights: Vec<f32>,
}

impl Rank {
    fn new(rank: u32) -> Rank {
        let start = |n: usize| (n as f32 + rank as f32) * 1e-7;
        Rank {
            weights: (0..WEIGHTS_OF_A_RANK).map(start).collect(),
        }
    }

    fn train(&mut self) {
        for weight in &mut self.weights {
            *weight += 0.05 * (1.0 - *weight);
        }
    }

    fn loss(&self) -> f64 {
        let squares = self.weights.iter().map(|w| f64::from(w - 0.7).powi(2));
        squares.sum::<f64>() / WEIGHTS_OF_A_RANK as f64
    }

    /// A copy of the shard: the loop may go on as soon as there is one.
    fn bytes(&self) -> Bytes {
        self.weights.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    fn of_bytes(bytes: &[u8]) -> Rank {
        let value = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        Rank {
            weights: bytes.chunks_exact(4).map(value).collect(),
        }
    }
}

struct Training {
    stores: Stores,
    job: Job,
    ranks: Vec<Rank>,
    step: u64,
    /// The checkpoint that is being written while the loop goes on.
    writing: Option<JoinHandle<Result<CommittedSnapshot>>>,
}

impl Training {
    async fn start(stores: &Stores, home: &Location) -> Result<Training> {
        let job = JobDescription::new("training").operator("ranks", RANKS);
        let start = Start::newest();
        let (job, restored) = Job::start(stores, home, &job, &start, JobOptions::default()).await?;
        let mut training = Training {
            stores: stores.clone(),
            job,
            ranks: (0..RANKS).map(Rank::new).collect(),
            step: 0,
            writing: None,
        };
        if let Some(restored) = &restored {
            training.resume(restored).await?;
        }
        Ok(training)
    }

    async fn resume(&mut self, restored: &Restored) -> Result<()> {
        let step = restored.manifest.user.get("step");
        self.step = step.and_then(serde_json::Value::as_u64).unwrap_or(0);
        let folder = std::env::temp_dir().join(format!("forkpoint-shards-{}", std::process::id()));
        for share in &restored.subtasks {
            // Large shards go to disk, in parts, several at once.
            let files = share
                .fetch(&self.stores, &folder, &Cancel::default())
                .await?;
            for file in &files {
                let bytes = std::fs::read(&file.path).map_err(|e| Error::corrupt(e.to_string()))?;
                if let Some(rank) = self.ranks.get_mut(share.subtask as usize) {
                    *rank = Rank::of_bytes(&bytes);
                }
            }
        }
        let _ = std::fs::remove_dir_all(&folder);
        println!(
            "  resumed at step {} from checkpoint {}",
            self.step, restored.manifest.number
        );
        Ok(())
    }

    fn loss(&self) -> f64 {
        self.ranks.iter().map(Rank::loss).sum::<f64>() / f64::from(RANKS)
    }

    /// Trains up to `step`; every few steps a checkpoint is begun, and the one before is waited for.
    async fn train_to(&mut self, step: u64) -> Result<()> {
        while self.step < step {
            for rank in &mut self.ranks {
                rank.train();
            }
            self.step += 1;
            if self.step.is_multiple_of(CHECKPOINT_EVERY) {
                self.finish_writing().await?;
                self.begin_writing();
            }
            // Elsewhere a step takes time; what is written in the background has it.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn begin_writing(&mut self) {
        let (stores, job) = (self.stores.clone(), self.job.clone());
        let shards: Vec<Bytes> = self.ranks.iter().map(Rank::bytes).collect();
        let mut details = Details::default();
        details.metrics.insert("loss".into(), self.loss());
        details.user.insert("step".into(), self.step.into());
        self.writing = Some(tokio::spawn(write(stores, job, shards, details)));
    }

    async fn finish_writing(&mut self) -> Result<()> {
        let Some(writing) = self.writing.take() else {
            return Ok(());
        };
        let done = writing.await.unwrap_or_else(|e| {
            Err(Error::new(
                ErrorKind::Internal,
                format!("a task ended: {e}"),
            ))
        })?;
        let retention = Retention::newest(3).and_best("loss", 1, Better::Lower);
        self.job
            .retain(&retention, &Silent, &Cancel::default())
            .await?;
        let loss = done
            .manifest
            .metrics
            .get("loss")
            .copied()
            .unwrap_or(f64::NAN);
        println!(
            "  checkpoint {} of step {}: loss {loss:.4}, {} bytes, while the loop was at step {}",
            done.manifest.number,
            done.manifest.user.get("step").unwrap_or(&0.into()),
            done.uploaded_bytes,
            self.step
        );
        Ok(())
    }
}

/// Each rank uploads its shard, all at once; elsewhere these are eight machines.
async fn write(
    stores: Stores,
    job: Job,
    shards: Vec<Bytes>,
    details: Details,
) -> Result<CommittedSnapshot> {
    let mut attempt = job.checkpoint().await?;
    let mut ranks = JoinSet::new();
    let orders: Vec<SubtaskOrder> = attempt.orders().cloned().collect();
    for (order, shard) in orders.into_iter().zip(shards) {
        let stores = stores.clone();
        ranks.spawn(async move {
            let states = vec![State::shard("model").exclusive("weights", shard)];
            SubtaskWriter::new(&stores, &order).write(states).await
        });
    }
    for ack in ranks.join_all().await {
        attempt.acknowledge(ack?)?;
    }
    attempt.commit(&details).await?.committed()
}

/// The whole story, in the folder `home`.
pub(crate) async fn run(stores: &Stores, home: &Location) -> Result<()> {
    println!("eight ranks train and write their shards in the background");
    let mut training = Training::start(stores, home).await?;
    training.train_to(33).await?;
    println!(
        "the loop is killed at step {}, with a checkpoint under way",
        training.step
    );
    if let Some(writing) = &training.writing {
        writing.abort();
    }
    drop(training);

    let mut training = Training::start(stores, home).await?;
    // Training it anew leads to the very same weights.
    let mut anew = Rank::new(3);
    for _ in 0..training.step {
        anew.train();
    }
    let resumed = training.ranks.get(3).map(|rank| &rank.weights);
    if resumed != Some(&anew.weights) {
        return Err(Error::corrupt(
            "the resumed weights are not those of that step",
        ));
    }
    training.train_to(60).await?;
    training.finish_writing().await?;

    println!("the last three checkpoints are kept, and the best one");
    let mut kept = Vec::new();
    for snapshot in find_snapshots(stores, home).await? {
        let loss = snapshot
            .manifest
            .metrics
            .get("loss")
            .copied()
            .unwrap_or(f64::NAN);
        let step = snapshot
            .manifest
            .user
            .get("step")
            .and_then(serde_json::Value::as_u64);
        println!(
            "  checkpoint {} of step {}: loss {loss:.4}",
            snapshot.manifest.number,
            step.unwrap_or(0)
        );
        kept.extend(step);
    }
    // 1 - 0.95^n is nearest to 0.7 at step 23; of the checkpointed steps at 25.
    match kept == [25, 50, 55, 60] {
        true => Ok(()),
        false => Err(Error::corrupt(format!(
            "checkpoints of steps {kept:?} are kept"
        ))),
    }
}

/// Where the example works: the first argument, or a temporary folder.
pub(crate) fn place(name: &str) -> Result<Location> {
    let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    let text = std::env::args().nth(1);
    Location::parse(&text.unwrap_or_else(|| folder.display().to_string()))
}

#[tokio::main]
async fn main() -> Result<()> {
    let (stores, home) = (Stores::from_env(), place("forkpoint-training")?);
    if !find_snapshots(&stores, &home).await?.is_empty() {
        let why = "there are snapshots of an earlier run; name another folder";
        return Err(Error::invalid(why).at(home));
    }
    run(&stores, &home).await?;
    println!("what is left: cargo run -- ls {home}");
    Ok(())
}
