//! What holds on all services alike.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forkpoint::ErrorKind;
use forkpoint::progress::{Cancel, Silent};
use forkpoint::restore::{ExecuteOptions, Task, execute};
use forkpoint::snapshot::Scope;
use forkpoint::store::{DuplicateOptions, Journal, Level, Method, Options, Stores};
use forkpoint::tree::{TreeRequest, duplicate_tree};

use crate::fault::{Action, Kind, Rule, Service};
use crate::waits::until;
use crate::{Bench, assert_kind};

const SLOW_DOWN: Action = Action::Fail {
    status: 503,
    code: "SlowDown",
};
const LOST: Action = Action::LoseReply { after: None };

/// Runs a test on all three, at the same time.
async fn on_all(test: impl AsyncFn(Bench)) {
    let run = async |service| test(Bench::new(service).await).await;
    tokio::join!(run(Service::S3), run(Service::Gcs), run(Service::Azure));
}

#[tokio::test]
async fn a_copy_is_one_request_where_all_is_known() {
    on_all(async |bench| {
        let source = bench.stat().await;
        bench.server.log().reset();
        let options = DuplicateOptions {
            source: Some(source),
            destination_is_free: true,
            ..DuplicateOptions::default()
        };
        let receipt = bench.duplicate_with(&options).await.unwrap();
        assert_eq!(receipt.attempts, 1);
        assert_eq!(bench.holds(1), Some(true));
        assert_eq!(bench.server.log().total(), 1, "{:?}", bench.service);
    })
    .await;
}

#[tokio::test]
async fn a_foreign_object_at_the_destination_is_reported_and_kept() {
    on_all(async |bench| {
        bench.put_seed(1, "b", 2);
        assert_kind(bench.duplicate().await, ErrorKind::AlreadyExists);
        // Also where the caller believed that nothing was there.
        assert_kind(bench.duplicate_to_free().await, ErrorKind::AlreadyExists);
        assert_eq!(bench.holds(2), Some(true));
    })
    .await;
}

#[tokio::test]
async fn an_overwrite_replaces_what_is_there() {
    on_all(async |bench| {
        bench.put_seed(1, "b", 2);
        bench.overwrite().await.unwrap();
        assert_eq!(bench.holds(1), Some(true));
    })
    .await;
}

#[tokio::test]
async fn a_source_that_changed_is_a_conflict_and_is_not_copied() {
    on_all(async |bench| {
        let source = bench.stat().await;
        bench.put_seed(0, "a", 3);
        let options = DuplicateOptions {
            source: Some(source),
            ..DuplicateOptions::default()
        };
        assert_kind(bench.duplicate_with(&options).await, ErrorKind::Conflict);
        assert_eq!(bench.holds(3), None);
    })
    .await;
}

#[tokio::test]
async fn a_source_that_is_gone_is_not_found() {
    on_all(async |bench| {
        let source = bench.stat().await;
        bench.stores.delete(&bench.at(0, "a")).await.unwrap();
        let options = DuplicateOptions {
            source: Some(source),
            ..DuplicateOptions::default()
        };
        assert_kind(bench.duplicate_with(&options).await, ErrorKind::NotFound);
    })
    .await;
}

#[tokio::test]
async fn a_lost_reply_to_a_creation_is_a_success_not_an_existing_object() {
    on_all(async |bench| {
        bench.server.add(bench.on_copy(LOST).times(1));
        let receipt = bench.duplicate().await.unwrap();
        assert_eq!(receipt.attempts, 2);
        assert_eq!(bench.holds(1), Some(true));
    })
    .await;
}

#[tokio::test]
async fn a_reply_lost_in_the_middle_is_a_success() {
    on_all(async |bench| {
        let half = Action::LoseReply { after: Some(20) };
        // Azure's answer has no body to break.
        if bench.service != Service::Azure {
            bench.server.add(bench.on_copy(half).times(1));
            assert_eq!(bench.duplicate().await.unwrap().attempts, 2);
            assert_eq!(bench.holds(1), Some(true));
        }
    })
    .await;
}

#[tokio::test]
async fn a_lost_reply_is_recognised_whatever_the_etag_of_the_source() {
    on_all(async |bench| {
        bench.put_in_parts(0, "a", 1);
        bench.server.add(bench.on_copy(LOST).times(1));
        bench.duplicate().await.unwrap();
        assert_eq!(bench.holds(1), Some(true));
    })
    .await;
}

#[tokio::test]
async fn a_lost_reply_to_an_overwrite_is_a_success() {
    on_all(async |bench| {
        bench.put_seed(1, "b", 2);
        bench.server.add(bench.on_copy(LOST).times(2));
        bench.overwrite().await.unwrap();
        assert_eq!(bench.holds(1), Some(true));
    })
    .await;
}

#[tokio::test]
async fn a_failure_answered_after_it_was_done_is_a_success() {
    on_all(async |bench| {
        let failed = Action::DoneButFail {
            status: 500,
            code: "InternalError",
        };
        bench.server.add(bench.on_copy(failed).times(1));
        bench.duplicate().await.unwrap();
        assert_eq!(bench.holds(1), Some(true));
    })
    .await;
}

#[tokio::test]
async fn a_request_that_did_not_arrive_does_not_make_a_foreign_object_ours() {
    on_all(async |bench| {
        for in_parts in [false, true] {
            // Of the same size, so that only its bytes tell.
            if in_parts {
                bench.put_in_parts(0, "a", 1);
            }
            bench.put_seed(1, "b", 2);
            bench.server.add(bench.on_copy(Action::Reset).times(1));
            let result = bench.duplicate_to_free().await;
            let kept = bench.holds(2);
            assert_eq!(kept, Some(true));
            assert_kind(result, ErrorKind::AlreadyExists);
        }
    })
    .await;
}

#[tokio::test]
async fn a_request_that_did_not_arrive_is_repeated() {
    on_all(async |bench| {
        bench.server.add(bench.on_copy(Action::Reset).times(2));
        assert_eq!(bench.duplicate().await.unwrap().attempts, 3);
        assert_eq!(bench.holds(1), Some(true));
    })
    .await;
}

#[tokio::test]
async fn a_store_that_asks_to_slow_down_is_asked_again() {
    on_all(async |bench| {
        bench.server.add(Rule::always(SLOW_DOWN).times(4));
        bench.duplicate().await.unwrap();
        assert_eq!(bench.holds(1), Some(true));
    })
    .await;
}

#[tokio::test]
async fn a_store_that_never_recovers_is_unavailable() {
    on_all(async |bench| {
        bench.server.add(bench.on_copy(SLOW_DOWN));
        assert_kind(bench.duplicate().await, ErrorKind::Unavailable);
        assert_eq!(bench.holds(1), None);
    })
    .await;
}

#[tokio::test]
async fn a_store_says_when_to_come_back() {
    on_all(async |bench| {
        let source = bench.stat().await;
        {
            let mut faults = bench.server.faults();
            // The first request takes all there is of the allowance, and there is no other.
            faults.cap = Some(0);
            faults.retry_after = Some(1);
        }
        assert!(bench.stores.stat(&bench.at(1, "none")).await.is_err());
        let begun = Instant::now();
        let enough = async {
            until("the copy is refused", || bench.copies() == 1).await;
            bench.server.faults().cap = None;
        };
        let options = DuplicateOptions {
            source: Some(source),
            destination_is_free: true,
            ..DuplicateOptions::default()
        };
        let (receipt, ()) = tokio::join!(bench.duplicate_with(&options), enough);
        assert_eq!(receipt.unwrap().attempts, 2);
        assert!(begun.elapsed() >= Duration::from_millis(900));
    })
    .await;
}

#[tokio::test]
async fn forty_copies_pass_a_narrow_gate() {
    on_all(async |bench| {
        let source = bench.stat().await;
        {
            let mut faults = bench.server.faults();
            faults.cap = Some(40);
            faults.retry_after = Some(1);
        }
        let options = DuplicateOptions {
            source: Some(source),
            destination_is_free: true,
            ..DuplicateOptions::default()
        };
        let all = (0..40).map(|n| {
            let (from, to) = (bench.at(0, "a"), bench.at(1, &format!("b{n}")));
            let (stores, options) = (&bench.stores, &options);
            async move { stores.duplicate(&from, &to, options).await }
        });
        let done = futures::future::join_all(all).await;
        let there = bench.server.keys(bench.service, &bench.bucket(1)).len();
        let succeeded = done.iter().filter(|r| r.is_ok()).count();
        assert_eq!(there, succeeded);
        for failed in done.into_iter().filter(|r| r.is_err()) {
            assert_kind(failed, ErrorKind::Unavailable);
        }
    })
    .await;
}

#[tokio::test]
async fn a_denial_is_final() {
    on_all(async |bench| {
        let denied = Action::Fail {
            status: 403,
            code: "AccessDenied",
        };
        let of_destination = bench.on_copy(denied);
        bench.server.add(of_destination);
        assert_kind(bench.duplicate().await, ErrorKind::Denied);
        assert_eq!(bench.copies(), 1);
    })
    .await;
}

#[tokio::test]
async fn chances_of_everything_end_in_the_right_state_or_an_error() {
    on_all(async |bench| {
        let source = bench.stat().await;
        {
            let mut faults = bench.server.faults();
            faults.seed(11);
            for action in [
                SLOW_DOWN,
                LOST,
                Action::Reset,
                Action::LoseReply { after: Some(30) },
                Action::FailInside {
                    code: "InternalError",
                },
                Action::DoneButFail {
                    status: 500,
                    code: "InternalError",
                },
            ] {
                faults.add(bench.on_copy(action).with_chance(0.08));
            }
        }
        let options = DuplicateOptions {
            source: Some(source),
            destination_is_free: true,
            ..DuplicateOptions::default()
        };
        let all = (0..100).map(|n| {
            let key = format!("b{n}");
            let (from, to) = (bench.at(0, "a"), bench.at(1, &key));
            let (stores, options) = (&bench.stores, &options);
            async move { (key, stores.duplicate(&from, &to, options).await) }
        });
        let bucket = bench.bucket(1);
        let mut succeeded = 0;
        for (key, result) in futures::future::join_all(all).await {
            let there = bench.server.get(bench.service, &bucket, &key);
            match result {
                Ok(_) => {
                    let from = bench.bucket(0);
                    let (from, to) = ((from.as_str(), "a"), (bucket.as_str(), key.as_str()));
                    assert!(bench.server.same(bench.service, from, to), "{key}");
                    succeeded += 1;
                }
                Err(e) => assert_eq!(e.kind(), ErrorKind::Unavailable, "{there:?} {e:?}"),
            }
        }
        assert!(succeeded >= 98, "{succeeded} on {:?}", bench.service);
        // Azure's ETags tell nothing of the bytes: there only reading tells whose object it is.
        if bench.service != Service::Azure {
            assert_eq!(bench.server.log().count(Kind::Get), 0);
        }
    })
    .await;
}

/// What a plan costs: a request per object, and one more per 1,000. A second run copies nothing, and takes
/// the receipts for it.
#[tokio::test]
async fn the_objects_of_a_plan_take_one_request_each() {
    const OBJECTS: usize = 300;
    on_all(async |bench| {
        let (service, stores) = (bench.service, &bench.stores);
        let (from, few) = (bench.bucket(0), OBJECTS as u64 / 20);
        bench
            .server
            .fill(service, &from, "data/", OBJECTS as u64, 10);
        let places: Vec<_> = (0..OBJECTS)
            .map(|n| bench.at(0, &format!("data/{n:08}")))
            .collect();
        let seen = stores.stat_all(&places).await.unwrap();
        let task = |(n, source): (usize, &forkpoint::store::Location)| {
            let stat = seen[source].clone().unwrap();
            Task {
                source: source.clone(),
                destination: bench.at(1, &format!("fork/shared/{n:08}")),
                size: stat.size,
                method: Method::S3Copy,
                reason: "only what is seen of the source counts here".into(),
                scope: Scope::Shared,
                source_tag: stat.tag,
                source_version: stat.version,
                storage_class: None,
            }
        };
        let tasks: Vec<Task> = places.iter().enumerate().map(task).collect();
        let run = async || {
            let journal = Journal::open(stores, &bench.at(1, "fork"), "plan")
                .await
                .unwrap();
            let options = ExecuteOptions::default();
            let (journal, cancel) = (Arc::new(journal), Cancel::default());
            bench.server.log().reset();
            let done = execute(stores, &tasks, &journal, &options, &Silent, &cancel).await;
            let done = done.unwrap();
            (done.copied, done.reused, bench.server.log().total())
        };
        let (copied, reused, requests) = run().await;
        assert_eq!((copied, reused), (OBJECTS as u64, 0), "{service:?}");
        let counters = bench.server.log().counters();
        assert!(
            requests <= copied + few,
            "{requests} on {service:?}: {counters:?}"
        );
        let (copied, reused, _) = run().await;
        assert_eq!((copied, reused), (0, OBJECTS as u64), "{service:?}");
        assert_eq!(bench.server.log().count(bench.copy_kind()), 0);
    })
    .await;
}

/// The settings of a service hold for the requests that object_store does not make, too.
#[tokio::test]
async fn copies_go_through_the_proxy_that_is_named_for_the_service() {
    for (service, prefix) in [
        (Service::S3, "AWS"),
        (Service::Gcs, "GOOGLE"),
        (Service::Azure, "AZURE"),
    ] {
        let bench = Bench::unknown(service).await;
        let proxy = bench.server.url(service);
        let settings = bench.server.settings().into_iter();
        let options = settings
            .map(|(name, value)| {
                (
                    name,
                    value.replace(&proxy, "http://only-the-proxy-knows.invalid"),
                )
            })
            .fold(Options::default(), |options, (name, value)| {
                options.with(name, value)
            });
        let stores = Stores::new(options.with(format!("{prefix}_PROXY_URL"), proxy));
        let (from, to) = (bench.at(0, "a"), bench.at(1, "b"));
        let options = DuplicateOptions::default();
        let receipt = stores.duplicate(&from, &to, &options).await.unwrap();
        assert_ne!(receipt.method, Method::Relay, "{service:?}");
        assert_eq!(bench.holds(1), Some(true), "{service:?}");
    }
}

/// With the wrong credentials a million objects are not a million refusals.
#[tokio::test]
async fn a_tree_of_which_nothing_may_be_copied_ends_soon_and_one_that_is_copied_in_part_goes_on() {
    on_all(async |bench| {
        let from = bench.bucket(0);
        bench.server.fill(bench.service, &from, "data/", 1000, 10);
        let request = TreeRequest {
            source: bench.at(0, "data/"),
            destination: bench.at(1, "to/"),
            names: None,
            duplicate: DuplicateOptions::default(),
            objects_at_once: None,
            verify: Level::None,
        };
        let denied = Action::Fail {
            status: 403,
            code: "AccessDenied",
        };
        let copy = bench.copy_kind();
        let run =
            async || duplicate_tree(&bench.stores, &request, &Silent, &Cancel::default()).await;
        bench.server.add(Rule::on(copy, denied.clone()));
        bench.server.log().reset();
        let error = run().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("none of the first"), "{error}");
        let asked = bench.server.log().count(copy);
        assert!((100..400).contains(&asked), "{asked} copies were asked for");

        bench.server.faults().clear_rules();
        bench.server.add(Rule::on(copy, denied).after(1));
        let report = run().await.unwrap();
        assert_eq!(report.objects, 1000);
        assert_eq!((report.copied, report.failed), (1, 999));
    })
    .await;
}
