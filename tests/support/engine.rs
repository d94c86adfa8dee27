//! A small engine on the snapshot writer: its coordinator and subtasks talk in documents, as over a network.

use forkpoint::progress::Cancel;
use forkpoint::snapshot::RestoreMode;
use forkpoint::store::{Location, Stores, UploadOptions};
use forkpoint::writer::{
    Acknowledgement, CommitOutcome, CommittedSnapshot, Details, Job, JobDescription, JobOptions,
    Restored, SnapshotWriter, Source, Start, State, SubtaskOrder, SubtaskWriter, WriteOptions,
};

/// Bytes that a name stands for.
pub fn content(name: &str, len: usize) -> Vec<u8> {
    let state = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    super::noise::from_state(state, len)
}

pub fn write_options() -> WriteOptions {
    WriteOptions {
        list_uploads_from_bytes: 0,
        upload: UploadOptions {
            sync: false,
            ..UploadOptions::default()
        },
        ..WriteOptions::default()
    }
}

pub async fn start(
    stores: &Stores,
    home: &Location,
    job: &JobDescription,
    start: &Start,
) -> (Job, Option<Restored>) {
    Job::start(stores, home, job, start, JobOptions::default())
        .await
        .unwrap()
}

/// A job that starts from nothing.
pub async fn fresh(stores: &Stores, home: &Location, job: &JobDescription) -> Job {
    start(stores, home, job, &Start::newest()).await.0
}

pub fn from(snapshot: &Location, mode: RestoreMode) -> Start {
    Start::newest_or(Source::Snapshot(snapshot.clone()), mode)
}

/// What one subtask writes, order and acknowledgement as documents.
pub async fn write_part(
    stores: &Stores,
    order: &SubtaskOrder,
    states: Vec<State>,
) -> forkpoint::Result<Acknowledgement> {
    let order = SubtaskOrder::from_json(&order.to_json()?)?;
    let writer = SubtaskWriter::new(stores, &order).with_options(write_options());
    let ack = writer.write(states).await?;
    Acknowledgement::from_json(&ack.to_json()?)
}

/// All subtasks write what `states` says.
pub async fn write_all(
    stores: &Stores,
    attempt: &mut SnapshotWriter,
    states: impl Fn(&SubtaskOrder) -> Vec<State>,
) {
    let orders: Vec<SubtaskOrder> = attempt.orders().cloned().collect();
    let parts = orders.iter().map(|o| write_part(stores, o, states(o)));
    for ack in futures::future::try_join_all(parts).await.unwrap() {
        assert!(attempt.acknowledge(ack).unwrap());
    }
}

pub async fn checkpoint(
    stores: &Stores,
    job: &Job,
    states: impl Fn(&SubtaskOrder) -> Vec<State>,
) -> CommittedSnapshot {
    let mut attempt = job.checkpoint().await.unwrap();
    write_all(stores, &mut attempt, states).await;
    done(attempt.commit(&Details::default()).await.unwrap())
}

pub fn done(outcome: CommitOutcome) -> CommittedSnapshot {
    outcome.committed().unwrap()
}

/// All that the subtasks of a restored job get, read and compared with its digests: one line per state
/// and subtask, with the names of files and the inlined bytes.
pub async fn fetch_all(stores: &Stores, restored: &Restored) -> Vec<String> {
    let mut lines = Vec::new();
    for share in &restored.subtasks {
        let share =
            forkpoint::writer::SubtaskRestore::from_json(&share.to_json().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let fetched = share
            .fetch(stores, dir.path(), &Cancel::default())
            .await
            .unwrap();
        for (n, state) in share.states.iter().enumerate() {
            let own = fetched.iter().filter(|f| f.state == n);
            for (file, meant) in own.zip(&state.files) {
                assert_eq!(file.name, meant.name);
                let bytes = std::fs::read(&file.path).unwrap();
                assert_eq!(bytes, content(&file.name, bytes.len()), "{}", file.name);
            }
            let names: Vec<&str> = state.files.iter().map(|f| f.name.as_str()).collect();
            let inline = state.inline().unwrap().unwrap_or_default();
            lines.push(format!(
                "{}[{}] {} of {}: {} {}",
                share.operator,
                share.subtask,
                state.name,
                state.from_subtask,
                names.join(","),
                String::from_utf8(inline).unwrap()
            ));
        }
    }
    lines.sort();
    lines
}

/// A job of a source and two subtasks that count.
pub fn job() -> JobDescription {
    JobDescription::new("orders")
        .operator("source", 1)
        .operator("counts", 2)
}

/// Round `n` of a job: the source has its offset; each subtask of `counts` has two new files and refers to
/// those of earlier rounds.
pub fn round(n: u32) -> impl Fn(&SubtaskOrder) -> Vec<State> {
    move |order| {
        let own = order.subtask;
        if order.operator != "counts" {
            return vec![State::shard("offset").inline(format!("{n}"))];
        }
        let mut counts = State::keyed("counts", order.key_groups);
        for file in &order.reusable {
            counts = counts.reuse(&file.name, &file.file);
        }
        let shared = format!("shared-{n}-{own}");
        let private = format!("private-{n}-{own}");
        vec![
            counts
                .shared(&shared, content(&shared, 3_000))
                .exclusive(&private, content(&private, 500)),
        ]
    }
}
