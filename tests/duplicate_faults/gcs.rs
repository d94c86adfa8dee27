//! Google's rewrites in several calls.

use forkpoint::ErrorKind;
use forkpoint::store::{DuplicateOptions, Journal, Location, Unfinished};

use crate::fault::{Action, Gate, Kind, Rule, Service};
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
    let gate = gate_after_one_call(&bench);
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
async fn a_source_that_changes_between_two_calls_is_a_conflict() {
    let bench = bench().await;
    let gate = gate_after_one_call(&bench);
    let other = async {
        gate.reached().await;
        bench.put_seed(0, "a", 3);
        gate.open();
    };
    let (result, ()) = tokio::join!(bench.duplicate(), other);
    assert_kind(result, ErrorKind::Conflict);
    assert_eq!(bench.holds(1), None);
}

/// The second call waits there.
fn gate_after_one_call(bench: &Bench) -> Gate {
    let gate = Gate::new();
    let wait = Action::Wait(gate.clone());
    bench
        .server
        .add(Rule::on(Kind::Rewrite, wait).after(1).times(1));
    gate
}

#[tokio::test]
async fn a_service_that_forgets_every_token_is_an_error() {
    let bench = bench().await;
    bench.server.faults().rewrite_token_lasts = std::time::Duration::ZERO;
    assert_kind(bench.duplicate().await, ErrorKind::Unavailable);
    assert_eq!(bench.holds(1), None);
}

/// The token outlives the process: the next run goes on where this one was.
#[tokio::test]
async fn a_killed_rewrite_goes_on_with_its_token() {
    let bench = bench().await;
    let root = bench.at(1, "root");
    let gate = Gate::new();
    let hang = Action::Wait(gate.clone());
    bench.server.add(Rule::on(Kind::Rewrite, hang).after(2));
    let first = with_journal(&bench, &root).await;
    let (from, to) = (bench.at(0, "a"), bench.at(1, "b"));
    tokio::select! {
        result = bench.stores.duplicate(&from, &to, &first) => panic!("not killed: {result:?}"),
        () = gate.reached() => {}
    }
    bench.server.faults().clear_rules();
    bench.server.log().reset();
    let second = with_journal(&bench, &root).await;
    bench
        .stores
        .duplicate(&bench.at(0, "a"), &bench.at(1, "b"), &second)
        .await
        .unwrap();
    assert_eq!(bench.copies(), 1);
    assert_eq!(bench.holds(1), Some(true));
}

#[tokio::test]
async fn a_token_that_has_expired_since_begins_the_rewrite_again() {
    let bench = bench().await;
    let root = bench.at(1, "root");
    let log = with_journal(&bench, &root).await;
    let note = Unfinished {
        destination: bench.at(1, "b"),
        source_tag: bench.stores.stat(&bench.at(0, "a")).await.unwrap().version,
        token: Some("long gone".into()),
        part_size: 0,
    };
    log.log.opened(&note).await.unwrap();
    bench
        .stores
        .duplicate(&bench.at(0, "a"), &bench.at(1, "b"), &log)
        .await
        .unwrap();
    assert_eq!(bench.copies(), 4);
    assert_eq!(bench.holds(1), Some(true));
}

async fn with_journal(bench: &Bench, root: &Location) -> DuplicateOptions {
    let journal = Journal::open(&bench.stores, root, "run").await.unwrap();
    DuplicateOptions {
        log: std::sync::Arc::new(journal),
        ..DuplicateOptions::default()
    }
}
