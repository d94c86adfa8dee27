//! Deletion in the batches of a real service.

use std::io::Write;
use std::time::Instant;

use crate::support::{Service, emulator_stores};
use bytes::Bytes;
use forkpoint::store::Location;
use futures::StreamExt;

/// Report of FLINK-33090: 4,000 objects took eight minutes one by one.
#[tokio::test]
async fn four_thousand_objects_go_together() {
    if !Service::S3.is_there("batched deletion") {
        return;
    }
    let stores = emulator_stores();
    let root = Service::S3.place(0, "batch");
    let objects: Vec<Location> = (0..4_400)
        .map(|n| root.join(&format!("shared/file-{n:05}")).unwrap())
        .collect();
    let puts =
        futures::stream::iter(&objects).map(|at| stores.put(at, Bytes::from_static(b"x"), false));
    let put: Vec<_> = puts.buffer_unordered(32).collect().await;
    assert!(put.iter().all(Result::is_ok));
    let (single, together) = objects.split_at(400);
    let start = Instant::now();
    for at in single {
        stores.delete(at).await.unwrap();
    }
    let one_by_one = start.elapsed().as_secs_f64() * 10.0;
    let start = Instant::now();
    let outcomes = stores.delete_all(together.to_vec()).await;
    let at_once = start.elapsed().as_secs_f64();
    assert_eq!(
        outcomes
            .iter()
            .filter(|(_, outcome)| outcome.is_ok())
            .count(),
        4_000
    );
    assert!(stores.list(&root).await.unwrap().is_empty());
    // A figure to read, not to assert: it depends on the machine.
    let _ = writeln!(
        std::io::stderr(),
        "4,000 objects: {one_by_one:.2} s one by one (of 400), {at_once:.2} s together, {:.1} times as fast",
        one_by_one / at_once
    );
}
