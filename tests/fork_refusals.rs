//! What a fork refuses, and that nothing is half-committed when it does.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use bytes::Bytes;
use forkpoint::ErrorKind;
use forkpoint::fork::{ForkRequest, fork, plan};
use forkpoint::progress::{Cancel, Silent};
use forkpoint::store::{Location, Options, Stores};
use support::{Service, at, emulator_stores, fixture, local_stores, manifest, temp};

async fn refused(stores: &Stores, from: &Location, to: &Location) -> forkpoint::Error {
    let request = ForkRequest::new(from.clone(), to.clone());
    match fork(stores, &request, &Silent, &Cancel::default()).await {
        Ok(report) => panic!("forked: {report:?}"),
        Err(e) => e,
    }
}

async fn laid(stores: &Stores, root: &Location) -> Location {
    let fixture = fixture("1.20.5-rocks-inc-p2");
    fixture.lay(stores, &root.join("original").unwrap()).await;
    root.join("original")
        .unwrap()
        .join(&fixture.newest())
        .unwrap()
}

async fn a_stranger_is_refused(stores: &Stores, root: &Location) {
    let snapshot = laid(stores, root).await;
    let target = root.join("fork").unwrap();
    let request = ForkRequest::new(snapshot.clone(), target.clone());
    let planned = plan(stores, &request, &Silent).await.unwrap().plan;
    let task = planned.tasks.iter().find(|t| t.size > 0).unwrap();
    let size = usize::try_from(task.size).unwrap();
    // Of another size, and of the same size with other bytes.
    for stranger in [Bytes::from_static(b"x"), Bytes::from(vec![b'x'; size])] {
        stores
            .put(&task.destination, stranger.clone(), false)
            .await
            .unwrap();
        let e = refused(stores, &snapshot, &target).await;
        assert_eq!(e.kind(), ErrorKind::Refused, "{e}");
        assert!(e.to_string().contains(&task.destination.to_string()), "{e}");
        assert_eq!(
            stores.read(&task.destination, u64::MAX).await.unwrap(),
            stranger
        );
        let commit = planned.snapshot.join("_metadata").unwrap();
        assert_eq!(stores.find(&commit).await.unwrap(), None, "half-committed");
    }
}

#[tokio::test]
async fn a_stranger_at_a_destination_is_refused() {
    let (_dir, root) = temp();
    a_stranger_is_refused(&local_stores(), &root).await;
    for service in Service::ALL {
        if service.is_there("a stranger at a destination") {
            a_stranger_is_refused(&emulator_stores(), &service.place(0, "stranger")).await;
        }
    }
}

#[tokio::test]
async fn another_snapshot_at_the_destination_is_refused() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = laid(&stores, &root).await;
    let commit = root
        .join("fork")
        .unwrap()
        .join(snapshot.name())
        .unwrap()
        .join("_metadata")
        .unwrap();
    stores
        .put(&commit, Bytes::from_static(b"somebody else's"), true)
        .await
        .unwrap();
    let e = refused(&stores, &snapshot, &root.join("fork").unwrap()).await;
    assert_eq!(e.kind(), ErrorKind::Refused);
    assert_eq!(
        manifest(&stores, &root.join("fork").unwrap()).await.len(),
        1,
        "objects were copied"
    );
    assert_eq!(stores.read(&commit, 100).await.unwrap(), "somebody else's");
}

#[tokio::test]
async fn a_destination_that_overlaps_the_source_is_refused() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = laid(&stores, &root).await;
    let job = snapshot.parent().unwrap();
    let before = manifest(&stores, &root).await;
    for target in [
        job.clone(),
        snapshot.clone(),
        snapshot.join("inside").unwrap(),
        job.join("shared").unwrap(),
        job.join("shared/inside").unwrap(),
        job.join("inside").unwrap(),
    ] {
        let e = refused(&stores, &snapshot, &target).await;
        assert_eq!(e.kind(), ErrorKind::Refused, "{target}: {e}");
    }
    assert_eq!(manifest(&stores, &root).await, before);
}

#[tokio::test]
async fn a_missing_object_is_named_and_nothing_is_written() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = laid(&stores, &root).await;
    let request = ForkRequest::new(snapshot.clone(), root.join("fork").unwrap());
    let victim = plan(&stores, &request, &Silent).await.unwrap().plan.tasks[3]
        .source
        .clone();
    stores.delete(&victim).await.unwrap();
    let e = refused(&stores, &snapshot, &root.join("fork").unwrap()).await;
    assert_eq!(e.kind(), ErrorKind::Corrupt);
    assert!(
        e.to_string().contains(&victim.to_string()) && e.to_string().contains("missing"),
        "{e}"
    );
    assert!(
        stores
            .list(&root.join("fork").unwrap())
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_shorter_object_is_named_and_nothing_is_written() {
    // A whole file, and a file of merged segments.
    for name in ["1.20.5-rocks-inc-p2", "1.20.5-filemerge-p2"] {
        let (_dir, root) = temp();
        let stores = local_stores();
        let fixture = fixture(name);
        fixture.lay(&stores, &root.join("original").unwrap()).await;
        let snapshot = root
            .join("original")
            .unwrap()
            .join(&fixture.newest())
            .unwrap();
        let request = ForkRequest::new(snapshot.clone(), root.join("fork").unwrap());
        let plan = plan(&stores, &request, &Silent).await.unwrap().plan;
        let task = plan.tasks.iter().max_by_key(|t| t.size).unwrap();
        let bytes = stores.read(&task.source, u64::MAX).await.unwrap();
        // A job appends to a merged file while its segments are already referred to, so only what
        // lies behind the last segment may be missing: cut deeply.
        stores
            .put(&task.source, bytes.slice(..bytes.len() / 8), false)
            .await
            .unwrap();
        let e = refused(&stores, &snapshot, &root.join("fork").unwrap()).await;
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{name}");
        assert!(
            e.to_string().contains(&task.source.to_string()) && e.to_string().contains("too short"),
            "{e}"
        );
        assert!(
            stores
                .list(&root.join("fork").unwrap())
                .await
                .unwrap()
                .is_empty()
        );
    }
}

#[tokio::test]
async fn a_source_that_changes_under_the_fork_is_noticed() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = laid(&stores, &root).await;
    let request = ForkRequest::new(snapshot.clone(), root.join("fork").unwrap());
    let planned = plan(&stores, &request, &Silent).await.unwrap();
    let task = planned.plan.tasks.iter().find(|t| t.size > 0).unwrap();
    let other = vec![b'x'; usize::try_from(task.size).unwrap()];
    stores
        .put(&task.source, Bytes::from(other), false)
        .await
        .unwrap();
    let e = forkpoint::fork::run(
        &stores,
        &planned,
        &request.execute,
        &Silent,
        &Cancel::default(),
    )
    .await
    .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
    assert_eq!(
        stores
            .find(&planned.plan.snapshot.join("_metadata").unwrap())
            .await
            .unwrap(),
        None
    );
}

#[tokio::test]
async fn a_bucket_that_does_not_exist_is_named() {
    for service in Service::ALL {
        if !service.is_there("a bucket that does not exist") {
            continue;
        }
        let stores = emulator_stores();
        let root = service.place(0, "no-bucket");
        let snapshot = laid(&stores, &root).await;
        let scheme = root.to_string();
        let scheme = scheme.split(':').next().unwrap();
        let nowhere = at(&format!("{scheme}://no-such-bucket-here/fork"));
        let e = refused(&stores, &snapshot, &nowhere).await;
        assert_eq!(e.kind(), ErrorKind::NotFound, "{service:?}: {e:?}");
        assert!(
            e.to_string().contains("bucket does not exist"),
            "{service:?}: {e}"
        );
        assert!(
            e.to_string().contains("no-such-bucket-here"),
            "{service:?}: {e}"
        );
        let e = refused(&stores, &nowhere, &root.join("fork").unwrap()).await;
        assert_eq!(e.kind(), ErrorKind::NotFound, "{service:?}: {e:?}");
        assert!(
            e.to_string().contains("bucket does not exist"),
            "{service:?}: {e}"
        );
    }
}

#[tokio::test]
async fn a_right_that_is_missing_is_named_with_the_object() {
    if !Service::S3.is_there("a missing right") {
        return;
    }
    // A server of the caller's may have no such identity; the emulator that we start has.
    let Ok(key) = std::env::var("FORKPOINT_TEST_S3_READONLY_ACCESS_KEY") else {
        return;
    };
    let secret = std::env::var("FORKPOINT_TEST_S3_READONLY_SECRET_KEY").unwrap();
    let root = Service::S3.place(0, "denied");
    let snapshot = laid(&emulator_stores(), &root).await;
    let options = Options::default()
        .with(
            "AWS_ENDPOINT_URL",
            std::env::var("FORKPOINT_TEST_S3_ENDPOINT").unwrap(),
        )
        .with("AWS_REGION", "us-east-1");
    let reader = Stores::new(
        options
            .clone()
            .with("AWS_ACCESS_KEY_ID", &key)
            .with("AWS_SECRET_ACCESS_KEY", &secret),
    );
    let e = refused(&reader, &snapshot, &root.join("fork").unwrap()).await;
    assert_eq!(e.kind(), ErrorKind::Denied, "{e}");
    assert!(e.to_string().contains(&root.to_string()), "{e}");
    // And with a secret that is wrong not even the metadata can be read.
    let wrong = "a-wrong-secret-that-must-not-be-shown";
    let stranger = Stores::new(
        options
            .with("AWS_ACCESS_KEY_ID", &key)
            .with("AWS_SECRET_ACCESS_KEY", wrong),
    );
    let e = refused(&stranger, &snapshot, &root.join("fork").unwrap()).await;
    assert_eq!(e.kind(), ErrorKind::Denied, "{e}");
    assert!(e.to_string().contains("_metadata"), "{e}");
    let shown = format!("{e:?} {stranger:?} {:?}", stranger.open(&root).unwrap());
    assert!(
        !shown.contains(wrong) && !shown.contains(&secret),
        "{shown}"
    );
}
