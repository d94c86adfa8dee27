//! Workers of one fork that start at once: the first begins it, and where it does not come or stops half-way, another does.

use crate::fault::{Action, Gate, Kind, Rule};
use crate::planned::Planned;
use crate::support::at;
use bytes::Bytes;
use forkpoint::fork::{
    CommitOptions, CommitOutcome, RunOptions, RunReport, Slice, commit, run_slice,
};
use forkpoint::ownership::Access;
use forkpoint::progress::{Cancel, Silent};
use forkpoint::restore::RestorePlan;
use forkpoint::store::Stores;
use forkpoint::verify::verify;
use forkpoint::{ErrorKind, Result};
use futures::future::join_all;

impl Planned {
    fn stores(&self) -> Stores {
        self.server.stores()
    }

    /// As a process of its own does it: with connections of its own.
    async fn run(&self, slice: Slice) -> Result<RunReport> {
        let options = RunOptions::default();
        let (stores, cancel) = (self.stores(), Cancel::default());
        run_slice(&stores, &self.plan, slice, &options, &Silent, &cancel).await
    }

    /// Is it committed, and whole?
    async fn commit(&self) -> bool {
        let (stores, options) = (self.stores(), CommitOptions::default());
        let outcome = commit(&stores, &self.plan, &options, &Silent).await;
        if !matches!(outcome.unwrap(), CommitOutcome::Committed(_)) {
            return false;
        }
        for snapshot in [&self.target.join("chk-7").unwrap(), &self.snapshot] {
            let report = verify(&stores, snapshot, &Silent).await.unwrap();
            assert_eq!(report.problems, [], "{snapshot}");
        }
        true
    }

    /// How often the note was written, or tried to be.
    fn notes(&self) -> usize {
        let written = self.server.log().records_of("fork/.forkpoint/chk-7.json");
        written.iter().filter(|r| r.kind == Kind::Put).count()
    }
}

#[tokio::test]
async fn the_first_of_many_workers_begins_and_the_others_follow() {
    const WORKERS: u32 = 8;
    let fork = Planned::new(24, WORKERS).await;
    fork.server.log().keep(true);
    let all = join_all((0..WORKERS).map(|w| fork.run(Slice::Worker(w)))).await;
    let copied: u64 = all.into_iter().map(|done| done.unwrap().copied).sum();
    assert_eq!(copied, 24);
    // On a machine that is very busy, some may have lost their patience.
    assert!((1..=3).contains(&fork.notes()), "{}", fork.notes());
    assert!(fork.commit().await);
}

#[tokio::test]
async fn where_the_first_does_not_come_the_next_begins() {
    let fork = Planned::new(6, 3).await;
    let two = join_all([1, 2].map(|w| fork.run(Slice::Worker(w)))).await;
    let copied: u64 = two.into_iter().map(|done| done.unwrap().copied).sum();
    assert_eq!(copied, 4);
    assert!(!fork.commit().await);
    assert_eq!(fork.run(Slice::Worker(0)).await.unwrap().copied, 2);
    assert!(fork.commit().await);
    // Whoever comes now has nothing to do.
    assert!(fork.run(Slice::Worker(1)).await.unwrap().committed);
}

/// The first stops at each of its calls in turn, and goes on only when the fork is committed without it.
#[tokio::test]
async fn the_first_may_stop_anywhere_and_come_back_when_all_is_done() {
    let stopped_at = async |calls: u64| {
        let fork = Planned::new(3, 2).await;
        let gate = Gate::new();
        let rule = Rule::always(Action::Wait(gate.clone()));
        fork.server.add(rule.after(calls).times(1));
        let mut first = Box::pin(fork.run(Slice::Worker(0)));
        tokio::select! {
            () = gate.reached() => {}
            done = &mut first => {
                done.unwrap();
                return false;
            }
        }
        let others = async {
            fork.run(Slice::Worker(1)).await.unwrap();
            fork.run(Slice::All).await.unwrap();
            assert!(fork.commit().await, "stopped before call {calls}");
            gate.open();
        };
        let (first, ()) = tokio::join!(first, others);
        first.unwrap_or_else(|e| panic!("stopped before call {calls}: {e}"));
        assert!(fork.commit().await, "stopped before call {calls}");
        true
    };
    let stopped = join_all((0..40).map(stopped_at)).await;
    let calls = stopped.iter().filter(|stopped| **stopped).count();
    assert!((12..40).contains(&calls), "{calls}");
}

/// Whoever begins takes the note back where a cleaner is at work; the others have perhaps seen it already.
#[tokio::test]
async fn where_a_cleaner_is_at_work_no_worker_begins_or_follows() {
    const WORKERS: u32 = 4;
    let fork = Planned::new(8, WORKERS).await;
    let stores = fork.stores();
    let far = stores.now() + 3_600_000;
    let mark = serde_json::json!({
        "version": 1, "nonce": "0123456789abcdef", "plan": "0123456789abcdef", "created_unix_ms": 1,
        "until_unix_ms": far, "snapshots": ["chk-7"], "orphans": false,
    });
    let at = at("s3://two/fork/.forkpoint/going/0123456789abcdef.json");
    stores
        .put(&at, mark.to_string().into(), true)
        .await
        .unwrap();
    // The others come while the first looks at the mark.
    let slow = Action::Delay(std::time::Duration::from_millis(100));
    fork.server
        .add(Rule::on(Kind::List, slow).for_keys("fork/.forkpoint/going"));
    for done in join_all((0..WORKERS).map(|w| fork.run(Slice::Worker(w)))).await {
        let e = done.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Refused, "{e}");
        assert!(e.to_string().contains("about to delete"), "{e}");
    }
    let left = stores.list(&fork.target).await.unwrap();
    assert_eq!(left.iter().map(|(at, _)| at).collect::<Vec<_>>(), [&at]);
    let pins = fork.snapshot.parent().unwrap().join(".forkpoint").unwrap();
    assert_eq!(stores.list(&pins).await.unwrap(), []);
    stores.delete(&at).await.unwrap();
    fork.server.faults().clear_rules();
    for done in join_all((0..WORKERS).map(|w| fork.run(Slice::Worker(w)))).await {
        done.unwrap();
    }
    assert!(fork.commit().await);
}

/// A worker without objects has nothing to wait for, and one that is stopped does not wait on.
#[tokio::test]
async fn who_has_nothing_to_do_does_not_wait_and_who_is_stopped_neither() {
    let fork = Planned::new(2, 5).await;
    let begun = std::time::Instant::now();
    for worker in 2..5 {
        assert_eq!(fork.run(Slice::Worker(worker)).await.unwrap().objects, 0);
    }
    let (stores, options) = (fork.stores(), RunOptions::default());
    let cancel = Cancel::default();
    let run = run_slice(
        &stores,
        &fork.plan,
        Slice::Worker(1),
        &options,
        &Silent,
        &cancel,
    );
    let stop = async {
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        cancel.cancel();
    };
    let (stopped, ()) = tokio::join!(run, stop);
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(begun.elapsed().as_millis() < 650, "{:?}", begun.elapsed());
    assert_eq!(stores.list(&fork.target).await.unwrap(), []);
}

#[tokio::test]
async fn a_worker_needs_only_its_own_tasks_and_nobody_else_takes_them_for_the_whole() {
    let fork = Planned::new(9, 3).await;
    let document = fork.plan.to_json().unwrap();
    for worker in 0..3 {
        let own = RestorePlan::from_json_of_worker(&document, worker).unwrap();
        let whole = RestorePlan {
            tasks: fork.plan.slice(worker).cloned().collect(),
            ..RestorePlan::from_json(&document).unwrap()
        };
        assert_eq!((own.tasks.len(), own.objects), (3, 9));
        assert_eq!(own, whole);
        let (stores, cancel) = (fork.stores(), Cancel::default());
        let options = RunOptions::default();
        let all = run_slice(&stores, &own, Slice::All, &options, &Silent, &cancel).await;
        let committed = commit(&stores, &own, &CommitOptions::default(), &Silent).await;
        for e in [all.unwrap_err(), committed.unwrap_err()] {
            assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
        }
        let run = run_slice(
            &stores,
            &own,
            Slice::Worker(worker),
            &options,
            &Silent,
            &cancel,
        );
        assert_eq!(run.await.unwrap().copied, 3);
    }
    assert!(fork.commit().await);
    let newer = br#"{"version": 2, "workers": "by name", "tasks": {"a": []}}"#;
    let e = RestorePlan::from_json_of_worker(newer, 0).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
}

#[tokio::test]
async fn an_unreadable_note_stops_all_and_says_what_to_do() {
    let fork = Planned::new(3, 2).await;
    let (stores, note) = (fork.stores(), at("s3://two/fork/.forkpoint/chk-7.json"));
    stores
        .put(&note, Bytes::from_static(b"{\"vers"), true)
        .await
        .unwrap();
    for slice in [Slice::Worker(0), Slice::Worker(1), Slice::All] {
        let e = fork.run(slice).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Refused, "{e}");
        assert!(e.to_string().contains("unreadable"), "{e}");
        assert!(
            e.next_step().unwrap().contains("delete this one object"),
            "{e}"
        );
    }
    assert!(stores.list(&fork.target).await.unwrap().len() == 1);
    stores.delete(&note).await.unwrap();
    fork.run(Slice::All).await.unwrap();
    assert!(fork.commit().await);
}
