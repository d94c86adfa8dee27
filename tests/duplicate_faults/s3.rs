//! What S3 does and others do not.

use std::time::Duration;

use forkpoint::ErrorKind;

use crate::fault::{Action, Content, Gate, Kind, Meta, Rule, Service};
use crate::{Bench, SIZE, assert_kind};

#[tokio::test]
async fn an_error_of_any_code_inside_a_success_is_not_a_success() {
    let run = async |code: &'static str, passes: bool| {
        let bench = Bench::new(Service::S3).await;
        let inside = Action::FailInside { code };
        bench.server.add(bench.on_copy(inside).times(1));
        match bench.duplicate().await {
            Ok(_) => assert!(passes && bench.holds(1) == Some(true), "{code}"),
            Err(e) => assert!(!passes && bench.holds(1).is_none(), "{code}: {e:?}"),
        }
    };
    tokio::join!(
        run("InternalError", true),
        run("SlowDown", true),
        run("ServiceUnavailable", true),
        run("RequestTimeout", true),
        run("OperationTimedOut", true),
        run("AccessDenied", false),
        run("InvalidRequest", false),
        run("NoSuchBucket", false),
        run("AnythingElse", false),
    );
}

#[tokio::test]
async fn errors_inside_every_success_end_in_an_error() {
    let bench = Bench::new(Service::S3).await;
    let inside = Action::FailInside {
        code: "InternalError",
    };
    bench.server.add(bench.on_copy(inside));
    assert_kind(bench.duplicate().await, ErrorKind::Unavailable);
    assert_eq!(bench.holds(1), None);
}

#[tokio::test]
async fn a_copy_that_trickles_for_longer_than_thirty_seconds_is_waited_for() {
    let bench = Bench::new(Service::S3).await;
    let slowly = Action::Trickle {
        every: Duration::from_secs(3),
        total: Duration::from_secs(31),
    };
    bench.server.add(bench.on_copy(slowly));
    assert_eq!(bench.duplicate().await.unwrap().attempts, 1);
    assert_eq!(bench.holds(1), Some(true));
}

#[tokio::test]
async fn a_silent_copy_is_waited_for() {
    let bench = Bench::new(Service::S3).await;
    bench
        .server
        .add(bench.on_copy(Action::Delay(Duration::from_secs(2))));
    assert_eq!(bench.duplicate().await.unwrap().attempts, 1);
    assert_eq!(bench.holds(1), Some(true));
}

#[tokio::test]
async fn an_object_that_appears_during_a_slow_copy_is_reported_and_kept() {
    let bench = Bench::new(Service::S3).await;
    let gate = Gate::new();
    let slowly = Action::Hold {
        gate: gate.clone(),
        trickle: Some(Duration::from_millis(50)),
    };
    bench.server.add(bench.on_copy(slowly).times(1));
    let other = async {
        gate.reached().await;
        bench.put_seed(1, "b", 2);
        gate.open();
    };
    let (result, ()) = tokio::join!(bench.duplicate(), other);
    assert_eq!(bench.holds(2), Some(true));
    assert_kind(result, ErrorKind::AlreadyExists);
}

#[tokio::test]
async fn a_server_that_ignores_conditions_does_not_lose_a_foreign_object() {
    let bench = Bench::unknown(Service::S3).await;
    bench.server.faults().ignore_destination_conditions = true;
    bench.put_seed(1, "b", 2);
    assert_kind(bench.duplicate().await, ErrorKind::AlreadyExists);
    assert_eq!(bench.holds(2), Some(true));
    assert_eq!(bench.copies(), 0);
}

#[tokio::test]
async fn an_object_above_the_limit_of_one_copy_is_not_asked_for_with_one() {
    let bench = Bench::new(Service::S3).await;
    let size = forkpoint::store::S3_COPY_LIMIT_BYTES + 1;
    let choice = bench
        .stores
        .method(&bench.at(0, "a"), &bench.at(1, "b"), size)
        .unwrap();
    assert_ne!(choice.method, forkpoint::store::Method::S3Copy);
}

#[tokio::test]
async fn metadata_and_tags_go_with_a_copy() {
    let bench = Bench::new(Service::S3).await;
    let meta = Meta {
        headers: [
            ("meta-owner".to_string(), "tests".to_string()),
            ("content-type".to_string(), "text/x-test".to_string()),
        ]
        .into(),
        tags: "team=a".into(),
        class: None,
    };
    let content = Content::of_seed(1, SIZE);
    bench
        .server
        .put(Service::S3, "one", "a", content, meta.clone());
    bench.duplicate().await.unwrap();
    let copy = bench.server.get(Service::S3, "two", "b").unwrap();
    assert_eq!(*copy.meta, meta);
}

/// MinIO ignores the condition on a copy, and honours it when an upload is completed: found out by
/// trying, once.
#[tokio::test]
async fn a_server_that_ignores_conditions_is_noticed_and_copied_on_in_another_way() {
    let bench = Bench::unknown(Service::S3).await;
    bench.server.faults().ignore_destination_conditions = true;
    let receipt = bench.duplicate().await.unwrap();
    assert_eq!(receipt.method, forkpoint::store::Method::S3PartCopy);
    assert_eq!(bench.holds(1), Some(true));
    assert_eq!(
        bench.server.keys(Service::S3, crate::fault::BUCKETS[1]),
        ["b"],
        "the probes are gone"
    );
    assert!(
        bench
            .server
            .open_uploads(Service::S3, crate::fault::BUCKETS[1])
            .is_empty()
    );
}

#[tokio::test]
async fn a_service_without_part_copies_gets_a_whole_copy() {
    let bench = Bench::new(Service::S3).await;
    bench.server.faults().no_part_copy = true;
    let options = forkpoint::store::DuplicateOptions {
        split_at: 1,
        ..forkpoint::store::DuplicateOptions::default()
    };
    let receipt = bench.duplicate_with(&options).await.unwrap();
    assert_eq!(receipt.method, forkpoint::store::Method::S3Copy);
    assert_eq!(bench.holds(1), Some(true));
    assert!(
        bench
            .server
            .open_uploads(Service::S3, crate::fault::BUCKETS[1])
            .is_empty()
    );
}

#[tokio::test]
async fn where_conditions_of_copies_are_ignored_an_object_that_appears_meanwhile_is_kept() {
    let bench = Bench::unknown(Service::S3).await;
    let gate = Gate::new();
    let slowly = Action::Wait(gate.clone());
    {
        let mut faults = bench.server.faults();
        faults.ignore_destination_conditions = true;
        faults.add(Rule::on(Kind::CopyPart, slowly).for_keys("b"));
    }
    let other = async {
        gate.reached().await;
        bench.put_seed(1, "b", 2);
        gate.open_for_good();
    };
    let (result, ()) = tokio::join!(bench.duplicate(), other);
    assert_eq!(bench.holds(2), Some(true));
    assert_kind(result, ErrorKind::AlreadyExists);
    let open = bench.server.open_uploads(Service::S3, "two");
    assert!(open.is_empty(), "{open:?}");
}

/// What a killed process without a journal leaves: found by listing, over several pages, and ended.
#[tokio::test]
async fn open_uploads_are_found_and_aborted() {
    let bench = Bench::new(Service::S3).await;
    let store = bench.server.s3("two");
    for n in 0..1100 {
        let path = object_store::path::Path::from(format!("left/ü {n}"));
        let upload = object_store::ObjectStoreExt::put_multipart(&store, &path).await;
        std::mem::forget(upload.unwrap());
    }
    let other = object_store::path::Path::from("left-over/x");
    std::mem::forget(
        object_store::ObjectStoreExt::put_multipart(&store, &other)
            .await
            .unwrap(),
    );
    let folder = bench.at(1, "left");
    let open = bench.stores.open_uploads(&folder).await.unwrap();
    assert_eq!(open.len(), 1100);
    let now = std::time::SystemTime::now();
    for upload in &open {
        assert!(upload.age(now).is_none_or(|age| age.as_secs() < 300));
        bench.stores.abort_upload(upload).await.unwrap();
    }
    assert!(bench.stores.open_uploads(&folder).await.unwrap().is_empty());
    let left = bench.server.open_uploads(Service::S3, "two");
    assert_eq!(left.into_keys().collect::<Vec<_>>(), ["left-over/x"]);
}

/// One object by itself, whose class no listing has told.
#[tokio::test]
async fn the_storage_class_of_a_single_object_is_kept() {
    let bench = Bench::new(Service::S3).await;
    let meta = Meta {
        class: Some("STANDARD_IA".into()),
        ..Meta::default()
    };
    let content = Content::of_seed(1, SIZE);
    bench.server.put(Service::S3, "one", "a", content, meta);
    bench.duplicate().await.unwrap();
    let there = bench.server.get(Service::S3, "two", "b").unwrap();
    assert_eq!(there.meta.class.as_deref(), Some("STANDARD_IA"));
}
