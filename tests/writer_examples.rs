//! The examples of the snapshot writer do what they say, on local disk and on real services.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

#[path = "../examples/stream_processor.rs"]
#[allow(dead_code)]
mod stream_processor;
#[path = "../examples/training_checkpoint.rs"]
#[allow(dead_code)]
mod training_checkpoint;

use forkpoint::progress::Silent;
use forkpoint::store::{Location, Stores};
use forkpoint::verify::verify;
use forkpoint::writer::find_snapshots;
use support::{Service, emulator_stores, local_stores, temp};

async fn stream(stores: &Stores, root: &Location) {
    stream_processor::run(stores, root).await.unwrap();
    let second = root.join("second").unwrap();
    let left = find_snapshots(stores, &second).await.unwrap();
    assert_eq!(left.len(), 2);
    for snapshot in &left {
        let report = verify(stores, &snapshot.directory, &Silent).await.unwrap();
        assert!(report.problems.is_empty(), "{report:?}");
        for file in &snapshot.manifest.files {
            let at = snapshot.manifest.locate(file, &snapshot.directory).unwrap();
            assert!(second.contains(&at), "{at}");
        }
    }
}

async fn training(stores: &Stores, root: &Location) {
    training_checkpoint::run(stores, root).await.unwrap();
    let left = find_snapshots(stores, root).await.unwrap();
    assert_eq!(left.len(), 4);
    for snapshot in &left {
        let report = verify(stores, &snapshot.directory, &Silent).await.unwrap();
        assert!(report.problems.is_empty(), "{report:?}");
    }
}

#[tokio::test]
async fn the_stream_processor_counts_every_record_once() {
    let (_dir, root) = temp();
    stream(&local_stores(), &root).await;
    for service in Service::ALL {
        if service.is_there("the stream processor") {
            stream(&emulator_stores(), &service.place(0, "stream")).await;
        }
    }
}

#[tokio::test]
async fn the_training_loop_resumes_and_keeps_the_best() {
    let (_dir, root) = temp();
    training(&local_stores(), &root).await;
    for service in Service::ALL {
        if service.is_there("the training loop") {
            training(&emulator_stores(), &service.place(0, "training")).await;
        }
    }
}
