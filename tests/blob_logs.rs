//! Logs in the blob store: what grew costs its tail, what began anew is told apart, and a range is exactly its
//! bytes.

#![cfg(unix)]
// Helpers of tests fail by panicking, like the tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "blob_client/served.rs"]
mod served;

use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use forkpoint::ErrorKind;
use forkpoint::blob::{
    BlobState, Class, Holder, JobId, LogConfig, LogIndex, LogName, LogStore, ReceiverId,
};
use futures::TryStreamExt;
use served::{Served, bytes, job};

fn name(file: &str) -> LogName {
    LogName::new(ReceiverId::parse("tm-1").unwrap(), file).unwrap()
}

async fn read(logs: &LogStore, index: &LogIndex, range: Range<u64>) -> Vec<u8> {
    let pieces: Vec<_> = logs.read(index, range).try_collect().await.unwrap();
    pieces.concat()
}

fn config() -> LogConfig {
    LogConfig {
        largest_part: 100_000,
        keep: Duration::from_secs(3600),
    }
}

/// A server with a job, the logs of that job, and the file of one.
async fn with_logs() -> (Served, JobId, LogStore, PathBuf) {
    let served = Served::start().await;
    let j = job("j1");
    served.ship(&j, b"a jar", Class::Retained).await;
    let logs = LogStore::new(served.client(), j.clone(), config());
    let path = served.dir.path().join("tm.log");
    (served, j, logs, path)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_grows_is_sent_by_its_tails_and_read_by_ranges() {
    let (served, j, logs, path) = with_logs().await;
    let log = name("tm.log");
    assert_eq!(logs.publish(&log, &path).await.unwrap(), None);
    assert_eq!(logs.open(&log).await.unwrap(), None);

    let text = bytes(450_000, 1);
    std::fs::write(&path, &text[..250_000]).unwrap();
    let first = logs.publish(&log, &path).await.unwrap().unwrap();
    assert_eq!(
        (first.length(), first.parts.len(), first.incarnation),
        (250_000, 3, 0)
    );
    let blobs = served.client().blobs(&j).await.unwrap().blobs.len();
    // Nothing new: nothing is sent.
    assert_eq!(logs.publish(&log, &path).await.unwrap().unwrap(), first);
    assert_eq!(served.client().blobs(&j).await.unwrap().blobs.len(), blobs);

    let mut file = std::fs::File::options().append(true).open(&path).unwrap();
    file.write_all(&text[250_000..]).unwrap();
    let second = logs.publish(&log, &path).await.unwrap().unwrap();
    assert_eq!(second.parts[..3], first.parts[..]);
    assert_eq!(
        (second.length(), second.parts.len(), second.revision),
        (450_000, 5, 2)
    );

    // A reader that knows nothing, and the writer after a restart.
    let reader = LogStore::new(served.client(), j.clone(), config());
    let index = reader.open(&log).await.unwrap().unwrap();
    assert_eq!(index, second);
    let ranges = [
        0..450_000,
        0..1,
        99_999..100_001,
        249_999..250_001,
        449_999..450_000,
        440_000..999_999,
        5..5,
    ];
    for range in ranges {
        let end = range.end.min(450_000) as usize;
        let expected = &text[range.start as usize..end.max(range.start as usize)];
        assert_eq!(
            read(&reader, &index, range.clone()).await,
            expected,
            "{range:?}"
        );
    }
    // A reader with the old list finds its parts.
    assert_eq!(read(&reader, &first, 0..250_000).await, text[..250_000]);
    file.write_all(b"more").unwrap();
    let third = reader.publish(&log, &path).await.unwrap().unwrap();
    assert_eq!(third.parts[..5], second.parts[..]);
    assert_eq!((third.incarnation, third.revision), (0, 3));

    // Exactly what the newest index names is held.
    for blob in served.client().blobs(&j).await.unwrap().blobs {
        let in_use = third.parts.iter().any(|p| p.digest == blob.digest);
        let newest = blob
            .name
            .as_ref()
            .is_some_and(|n| n.to_string() == "log:tm-1/tm.log:0.3");
        let held = blob
            .holders
            .iter()
            .any(|h| matches!(&h.by, Holder::Lease(id) if id.as_str().starts_with("log-")));
        assert_eq!(held, in_use || newest, "{blob:?}");
        if !held && blob.class == Class::Recreatable {
            assert_eq!(blob.state, BlobState::Expiring);
        }
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_began_anew_is_another_incarnation() {
    let (served, _, logs, path) = with_logs().await;
    let log = name("tm.log");
    let publish = |content: Vec<u8>| {
        std::fs::write(&path, content).unwrap();
        logs.publish(&log, &path)
    };
    let (a, b) = (bytes(30_000, 1), bytes(40_000, 2));
    assert_eq!(publish(a.clone()).await.unwrap().unwrap().incarnation, 0);
    // Rotated: longer, and begins otherwise.
    let rotated = publish(b.clone()).await.unwrap().unwrap();
    assert_eq!((rotated.incarnation, rotated.revision), (1, 2));
    assert_eq!(read(&logs, &rotated, 0..40_000).await, b);
    // Truncated.
    assert_eq!(
        publish(b[..100].to_vec())
            .await
            .unwrap()
            .unwrap()
            .incarnation,
        2
    );
    // The same beginning and something else where it ended: written over.
    let mut other = b.clone();
    publish(b.clone()).await.unwrap().unwrap();
    other[39_000] ^= 1;
    other.extend_from_slice(b"more");
    let over = publish(other.clone()).await.unwrap().unwrap();
    assert_eq!(read(&logs, &over, 0..u64::MAX).await, other);
    assert!(over.incarnation > 2);
    // An empty file is a log.
    assert_eq!(publish(Vec::new()).await.unwrap().unwrap().length(), 0);

    let second = name("other: 1.log");
    logs.publish(&second, &path).await.unwrap().unwrap();
    let listed = logs.list().await.unwrap();
    let shown: Vec<_> = listed
        .iter()
        .map(|l| (l.node.as_str(), l.file.as_str()))
        .collect();
    assert_eq!(shown, [("tm-1", "other: 1.log"), ("tm-1", "tm.log")]);
    // Another job's logs are its own, and a job that is not known has none.
    let nothing = LogStore::new(served.client(), job("j2"), config());
    assert_eq!(nothing.list().await.unwrap(), []);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_small_tails_become_one_part() {
    let (served, _, logs, path) = with_logs().await;
    let log = name("tm.log");
    let text = bytes(70 * 50, 3);
    let mut most = 0;
    for n in 1..=70 {
        std::fs::write(&path, &text[..n * 50]).unwrap();
        let index = logs.publish(&log, &path).await.unwrap().unwrap();
        most = most.max(index.parts.len());
        assert_eq!(index.incarnation, 0);
    }
    let index = logs.open(&log).await.unwrap().unwrap();
    assert!(
        most == 64 && index.parts.len() < 10,
        "{most}, {}",
        index.parts.len()
    );
    assert_eq!(read(&logs, &index, 0..3500).await, text);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_an_ended_job_is_gone() {
    let (served, j, logs, path) = with_logs().await;
    std::fs::write(&path, b"text").unwrap();
    let index = logs.publish(&name("tm.log"), &path).await.unwrap().unwrap();
    let outcome = forkpoint::blob::Outcome::Finished;
    let event = forkpoint::blob::JobEvent::Terminal { outcome };
    served.client().job_event(&j, &event).await.unwrap();
    let gone: Result<Vec<_>, _> = logs.read(&index, 0..4).try_collect().await;
    assert_eq!(gone.unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!(logs.open(&name("tm.log")).await.unwrap(), None);
    served.stop().await;
}
