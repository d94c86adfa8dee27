//! Azure's copies that stay pending.

use std::time::Duration;

use forkpoint::ErrorKind;

use crate::fault::{Action, Kind, Pending, PendingEnd, Rule, Service};
use crate::{Bench, assert_kind};

async fn bench(end: PendingEnd) -> Bench {
    let bench = Bench::new(Service::Azure).await;
    bench.server.faults().pending = Some(Pending::of(Duration::from_millis(500), end));
    bench
}

#[tokio::test]
async fn a_pending_copy_is_waited_for() {
    let bench = bench(PendingEnd::Success).await;
    let receipt = bench.duplicate().await.unwrap();
    assert_eq!(receipt.attempts, 1);
    assert_eq!(bench.holds(1), Some(true));
    let now = bench.stores.stat(&bench.at(1, "b")).await.unwrap();
    assert_eq!(receipt.destination_tag, now.tag);
}

#[tokio::test]
async fn a_pending_copy_that_fails_or_is_aborted_is_an_error() {
    for end in [PendingEnd::Failed, PendingEnd::Aborted] {
        let bench = bench(end).await;
        assert_kind(bench.duplicate().await, ErrorKind::Unavailable);
        assert_ne!(bench.holds(1), Some(true));
    }
}

#[tokio::test]
async fn looks_at_a_pending_copy_that_fail_are_repeated() {
    let bench = bench(PendingEnd::Success).await;
    let busy = Action::Fail {
        status: 503,
        code: "ServerBusy",
    };
    bench
        .server
        .add(Rule::on(Kind::Head, busy).after(2).times(2));
    bench.duplicate().await.unwrap();
    assert_eq!(bench.holds(1), Some(true));
}

#[tokio::test]
async fn a_lost_reply_to_a_copy_that_is_pending_is_waited_for() {
    let bench = bench(PendingEnd::Success).await;
    let lost = Action::LoseReply { after: None };
    bench.server.add(bench.on_copy(lost).times(1));
    bench.duplicate().await.unwrap();
    assert_eq!(bench.holds(1), Some(true));
}

#[tokio::test]
async fn a_lost_reply_to_an_overwrite_that_is_pending_is_waited_for() {
    let bench = bench(PendingEnd::Success).await;
    bench.put_seed(1, "b", 2);
    let lost = Action::LoseReply { after: None };
    bench.server.add(bench.on_copy(lost).times(1));
    bench.overwrite().await.unwrap();
    assert_eq!(bench.holds(1), Some(true));
}

#[tokio::test]
async fn another_writer_during_a_pending_copy_is_a_conflict() {
    let bench = bench(PendingEnd::Success).await;
    let other = async {
        tokio::time::sleep(Duration::from_millis(250)).await;
        bench.put_seed(1, "b", 2);
    };
    let (result, ()) = tokio::join!(bench.duplicate(), other);
    assert_kind(result, ErrorKind::Conflict);
    assert_eq!(bench.holds(2), Some(true));
}
