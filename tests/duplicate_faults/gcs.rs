//! Google's rewrites in several calls.

use std::time::Duration;

use forkpoint::ErrorKind;

use crate::fault::{Action, Kind, Rule, Service};
use crate::{Bench, MIB, assert_kind};

/// Three calls for each rewrite.
async fn bench() -> Bench {
    let bench = Bench::new(Service::Gcs).await;
    bench.server.faults().rewrite_bytes_per_call = MIB;
    bench
}

#[tokio::test]
async fn a_rewrite_is_called_until_it_is_done() {
    let bench = bench().await;
    bench.duplicate().await.unwrap();
    assert_eq!(bench.copies(), 3);
    assert_eq!(bench.holds(1), Some(true));
}

#[tokio::test]
async fn a_reply_lost_at_any_call_is_a_success() {
    for call in 0..3 {
        for after in [None, Some(10)] {
            let bench = bench().await;
            let lost = Action::LoseReply { after };
            bench
                .server
                .add(Rule::on(Kind::Rewrite, lost).after(call).times(1));
            bench.duplicate().await.unwrap();
            assert_eq!(bench.holds(1), Some(true));
        }
    }
}

#[tokio::test]
async fn calls_that_fail_are_repeated_from_where_they_were() {
    let bench = bench().await;
    let failed = Action::Fail {
        status: 503,
        code: "backendError",
    };
    bench
        .server
        .add(Rule::on(Kind::Rewrite, failed).after(1).times(2));
    bench.duplicate().await.unwrap();
    assert_eq!(bench.copies(), 5);
    assert_eq!(bench.holds(1), Some(true));
}

#[tokio::test]
async fn an_object_that_appears_between_two_calls_is_reported_and_kept() {
    let bench = bench().await;
    slow_calls(&bench);
    let other = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        bench.put_seed(1, "b", 2);
    };
    let (result, ()) = tokio::join!(bench.duplicate(), other);
    assert_eq!(bench.holds(2), Some(true));
    assert_kind(result, ErrorKind::AlreadyExists);
}

#[tokio::test]
async fn a_source_that_changes_between_two_calls_is_a_conflict() {
    let bench = bench().await;
    slow_calls(&bench);
    let other = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        bench.put_seed(0, "a", 3);
    };
    let (result, ()) = tokio::join!(bench.duplicate(), other);
    assert_kind(result, ErrorKind::Conflict);
    assert_eq!(bench.holds(1), None);
}

fn slow_calls(bench: &Bench) {
    let slowly = Action::Delay(Duration::from_millis(200));
    bench.server.add(Rule::on(Kind::Rewrite, slowly));
}

#[tokio::test]
async fn a_token_that_is_no_longer_good_is_an_error() {
    let bench = bench().await;
    bench.server.faults().rewrite_token_lasts = Duration::ZERO;
    assert_kind(bench.duplicate().await, ErrorKind::Unavailable);
    assert_eq!(bench.holds(1), None);
}
