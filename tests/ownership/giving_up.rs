//! A fork that one gives up while another commits it or makes it: whoever stops at whichever call to the store, a
//! fork that is committed has all its files, and whatever is left can be ended.

use std::time::Duration;

use crate::fault::{Action, FaultServer, Gate, Kind, Rule, Service};
use crate::planned::Planned;
use crate::support::at;
use forkpoint::fork::{
    AbandonOptions, CommitOptions, CommitOutcome, ForkRequest, RunOptions, Slice, abandon, commit,
    fork, run_slice,
};
use forkpoint::ownership::{Lineage, judge, survey};
use forkpoint::progress::{Cancel, Silent};
use forkpoint::report::why_text;
use forkpoint::restore::RestorePlan;
use forkpoint::store::{Location, Stores};
use forkpoint::verify::verify;
use forkpoint::{Error, ErrorKind};
use futures::future::join_all;
use tokio::task::{JoinHandle, LocalSet};

const OBJECTS: usize = 3;

/// What one party does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Abandon,
    /// With the word of whoever does it that no job uses the fork.
    AbandonUnused,
    Commit,
    Fork,
    Run,
}

/// A fork whose objects are all there, and which is not committed.
struct Ready {
    server: FaultServer,
    stores: Stores,
    snapshot: Location,
    target: Location,
    plan: RestorePlan,
}

impl Ready {
    async fn new() -> Ready {
        let ready = Ready::planned().await;
        ready.start(Does::Run).await.unwrap().unwrap();
        ready
    }

    /// Before any worker has begun.
    async fn planned() -> Ready {
        let Planned {
            server,
            snapshot,
            target,
            plan,
        } = Planned::new(OBJECTS, 1).await;
        Ready {
            stores: server.stores(),
            server,
            snapshot,
            target,
            plan,
        }
    }

    /// Does it in a task of its own, with connections of its own. True if the fork was committed.
    fn start(&self, does: Does) -> JoinHandle<Result<bool, Error>> {
        // None is at work any more where one of these tests gives a fork up again.
        self.start_with(does, Duration::ZERO)
    }

    fn start_with(&self, does: Does, settle: Duration) -> JoinHandle<Result<bool, Error>> {
        let (stores, plan) = (self.server.stores(), self.plan.clone());
        let request = ForkRequest::new(self.snapshot.clone(), self.target.clone());
        tokio::task::spawn_local(async move {
            let cancel = Cancel::default();
            match does {
                Does::Abandon | Does::AbandonUnused => {
                    let options = AbandonOptions {
                        apply: true,
                        never_used: does == Does::AbandonUnused,
                        settle,
                        ..AbandonOptions::default()
                    };
                    let report = abandon(&stores, &plan, options, &Silent).await?;
                    assert_eq!(report.unproved, []);
                    Ok(false)
                }
                Does::Commit => {
                    let options = CommitOptions::default();
                    let outcome = commit(&stores, &plan, &options, &Silent);
                    Ok(matches!(outcome.await?, CommitOutcome::Committed(_)))
                }
                Does::Fork => {
                    fork(&stores, &request, &Silent, &cancel).await?;
                    Ok(true)
                }
                Does::Run => {
                    let options = RunOptions::default();
                    run_slice(&stores, &plan, Slice::All, &options, &Silent, &cancel).await?;
                    Ok(false)
                }
            }
        })
    }

    /// Lets it stop at the call after `calls` others. None if it has ended before.
    async fn stopped_at(
        &self,
        does: Does,
        calls: u64,
    ) -> Option<(Gate, JoinHandle<Result<bool, Error>>)> {
        let gate = Gate::new();
        let rule = Rule::always(Action::Wait(gate.clone()));
        self.server.add(rule.after(calls).times(1));
        let mut running = self.start(does);
        tokio::select! {
            () = gate.reached() => Some((gate, running)),
            ended = &mut running => {
                ended.unwrap().unwrap();
                None
            }
        }
    }

    async fn is_committed(&self) -> bool {
        let at = self.target.join("chk-7/_metadata").unwrap();
        self.stores.find(&at).await.unwrap().is_some()
    }

    /// A fork that is there is whole; one that is not can be given up, after which nothing is left; or it is finished,
    /// if it is not known whether it was committed.
    async fn check(&self, said_committed: bool, case: &str) {
        let committed = self.is_committed().await;
        assert!(committed || !said_committed, "{case}: it has gone");
        if !committed {
            match self.start(Does::Abandon).await.unwrap() {
                Ok(_) => {
                    assert_eq!(self.left(), [] as [String; 0], "{case}");
                    // And the place is free.
                    assert!(self.start(Does::Fork).await.unwrap().unwrap(), "{case}");
                }
                Err(e) => {
                    assert!(
                        e.next_step().unwrap().contains("commit PLAN"),
                        "{case}: {e}"
                    );
                    if !self.start(Does::Commit).await.unwrap().unwrap() {
                        // Or, as it says, on the word of whoever knows.
                        let given_up = self.start(Does::AbandonUnused).await.unwrap();
                        given_up.unwrap();
                        assert_eq!(self.left(), [] as [String; 0], "{case}");
                        assert!(self.start(Does::Fork).await.unwrap().unwrap(), "{case}");
                    }
                }
            }
        }
        let snapshot = self.target.join("chk-7").unwrap();
        let problems = verify(&self.stores, &snapshot, &Silent).await.unwrap();
        assert_eq!(problems.problems, [], "{case}");
        assert!(self.start(Does::Commit).await.unwrap().unwrap(), "{case}");
        let refused = self.start(Does::Abandon).await.unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused, "{case}");
        let own = |keys: Vec<String>| keys.into_iter().filter(|k| k.contains(".forkpoint"));
        let notes: Vec<String> = own(self.server.keys(Service::S3, "one"))
            .chain(own(self.server.keys(Service::S3, "two")))
            .collect();
        assert_eq!(notes, [] as [String; 0], "{case}");
    }

    /// What a job does that was started from the fork and needs its checkpoint no more, but its files. False if there is
    /// no fork.
    async fn take_commit_object(&self) -> bool {
        let there = self.is_committed().await;
        let at = self.target.join("chk-7/_metadata").unwrap();
        self.stores.delete(&at).await.unwrap();
        there
    }

    /// The files of the fork that are there.
    fn files(&self) -> usize {
        let keys = self.server.keys(Service::S3, "two").into_iter();
        keys.filter(|key| !key.contains(".forkpoint") && !key.ends_with("_metadata"))
            .count()
    }

    /// All that is at the destination, and what is noted at the source.
    fn left(&self) -> Vec<String> {
        let pins = self.server.keys(Service::S3, "one").into_iter();
        let mut left: Vec<String> = pins.filter(|k| k.contains(".forkpoint")).collect();
        left.extend(self.server.keys(Service::S3, "two"));
        left
    }
}

/// One stops at each of its calls in turn, and the other does all that it does.
async fn at_every_call(first: Does, second: Does) {
    let (mut refused, mut calls) = (0, 0);
    loop {
        let ready = Ready::new().await;
        let Some((gate, running)) = ready.stopped_at(first, calls).await else {
            break;
        };
        let case = format!("{first:?} stopped before call {calls}, meanwhile {second:?}");
        let other = ready.start(second).await.unwrap();
        gate.open();
        let one = running.await.unwrap();
        for outcome in [&one, &other] {
            if let Err(e) = outcome {
                assert!(
                    matches!(
                        e.kind(),
                        ErrorKind::Refused | ErrorKind::NotFound | ErrorKind::Conflict
                    ),
                    "{case}: {e}"
                );
                refused += 1;
            }
        }
        let said = [one, other]
            .iter()
            .any(|outcome| matches!(outcome, Ok(true)));
        ready.check(said, &case).await;
        calls += 1;
    }
    assert!(calls > 8 && refused > 0, "{calls} {refused}");
}

#[tokio::test]
async fn whoever_stops_where_an_abandoned_fork_is_never_committed_without_its_files() {
    LocalSet::new()
        .run_until(async {
            for does in [Does::Commit, Does::Fork] {
                at_every_call(Does::Abandon, does).await;
                at_every_call(does, Does::Abandon).await;
            }
        })
        .await;
}

#[tokio::test]
async fn a_worker_meets_an_abandon_at_any_call_and_nothing_is_left_unknown() {
    LocalSet::new()
        .run_until(async {
            at_every_call(Does::Abandon, Does::Run).await;
        })
        .await;
}

/// Two workers begin a fork at once: one stops at each of its calls in turn, while the other does all there is to do, and
/// somebody commits it or gives it up.
#[tokio::test]
async fn of_two_workers_that_begin_at_once_either_may_stop_anywhere() {
    let at_each_call = async |meanwhile: Option<Does>| {
        let mut calls = 0;
        loop {
            let ready = Ready::planned().await;
            let Some((gate, running)) = ready.stopped_at(Does::Run, calls).await else {
                break;
            };
            let case = format!("stopped before call {calls}, meanwhile {meanwhile:?}");
            ready.start(Does::Run).await.unwrap().unwrap();
            if let Some(does) = meanwhile {
                ready.start(does).await.unwrap().unwrap();
            }
            gate.open();
            if let Err(e) = running.await.unwrap() {
                assert!(meanwhile.is_some(), "{case}: {e}");
                assert_eq!(e.kind(), ErrorKind::Refused, "{case}: {e}");
            }
            ready.check(meanwhile == Some(Does::Commit), &case).await;
            calls += 1;
        }
        assert!(calls > 12, "{calls}");
    };
    LocalSet::new()
        .run_until(async {
            for meanwhile in [None, Some(Does::Commit), Some(Does::Abandon)] {
                at_each_call(meanwhile).await;
            }
        })
        .await;
}

/// A worker may have written its receipts while its fork was given up: the next abandon removes them.
#[tokio::test]
async fn receipts_that_come_while_a_fork_is_given_up_go_with_the_next_abandon() {
    LocalSet::new()
        .run_until(async {
            let ready = Ready::new().await;
            let journal = ready.target.join(".forkpoint").unwrap();
            let listed = ready.stores.list(&journal).await.unwrap();
            let mut receipts = Vec::new();
            for (at, stat) in listed {
                if at.name().ends_with(".jsonl") {
                    receipts.push((at.clone(), ready.stores.read(&at, stat.size).await.unwrap()));
                }
            }
            assert!(!receipts.is_empty());
            ready.start(Does::Abandon).await.unwrap().unwrap();
            assert_eq!(ready.left(), [] as [String; 0]);
            for (at, bytes) in receipts {
                ready.stores.put(&at, bytes, true).await.unwrap();
            }
            ready.start(Does::Abandon).await.unwrap().unwrap();
            assert_eq!(ready.left(), [] as [String; 0]);
        })
        .await;
}

#[tokio::test]
async fn whoever_is_killed_at_whichever_call_leaves_what_can_be_ended() {
    LocalSet::new()
        .run_until(async {
            for does in [Does::Abandon, Does::Commit] {
                for next in [None, Some(Does::Commit)] {
                    let (mut calls, mut named) = (0, 0);
                    loop {
                        let ready = Ready::new().await;
                        let Some((gate, running)) = ready.stopped_at(does, calls).await else {
                            break;
                        };
                        running.abort();
                        assert!(running.await.unwrap_err().is_cancelled());
                        gate.open();
                        let case = format!("{does:?} killed at call {calls}, then {next:?}");
                        let mut said = false;
                        if let Some(next) = next {
                            match ready.start(next).await.unwrap() {
                                Ok(committed) => said = committed,
                                Err(e) => {
                                    let hint = e.next_step().unwrap_or_default().to_string();
                                    assert!(
                                        hint.contains("forkpoint abandon PLAN --apply"),
                                        "{case}: {e}"
                                    );
                                    named += 1;
                                }
                            }
                        }
                        ready.check(said, &case).await;
                        calls += 1;
                    }
                    let abandoned = does == Does::Abandon && next.is_some();
                    assert!(
                        calls > 8 && (named > 0) == abandoned,
                        "{does:?}: {calls} {named}"
                    );
                }
            }
        })
        .await;
}

/// A job may have been started from the fork, and have removed its commit object, before whoever committed it has
/// tidied: then nothing says any more that it was ever committed, but what the journal says.
#[tokio::test]
async fn no_file_of_a_job_goes_wherever_the_end_of_its_fork_was_stopped() {
    LocalSet::new()
        .run_until(async {
            let next = [None, Some(Does::Run), Some(Does::Commit), Some(Does::Fork)];
            // Both end a fork in the same way.
            for (does, next) in [(Does::Commit, &next[..]), (Does::Fork, &next[..1])] {
                for then in next {
                    let (mut calls, mut taken) = (0, 0);
                    loop {
                        let ready = Ready::new().await;
                        let Some((gate, running)) = ready.stopped_at(does, calls).await else {
                            break;
                        };
                        running.abort();
                        assert!(running.await.unwrap_err().is_cancelled());
                        gate.open();
                        calls += 1;
                        if !ready.take_commit_object().await {
                            continue;
                        }
                        taken += 1;
                        let case = format!("{does:?} killed at call {calls}, then {then:?}");
                        if let Some(then) = then {
                            drop(ready.start(*then).await.unwrap());
                            ready.take_commit_object().await;
                        }
                        for _ in 0..2 {
                            if let Err(e) = ready.start(Does::Abandon).await.unwrap() {
                                assert_eq!(e.kind(), ErrorKind::Refused, "{case}: {e}");
                                let hint = e.next_step().unwrap_or_default();
                                assert!(hint.contains("--never-used"), "{case}: {e}");
                            }
                            assert_eq!(ready.files(), OBJECTS, "{case}");
                        }
                    }
                    assert!(taken > 3, "{does:?} {then:?}: {taken} of {calls}");
                }
            }
        })
        .await;
}

/// The same for whoever is slow, while another commits the fork, and its job removes the commit object.
#[tokio::test]
async fn no_file_of_a_job_goes_whoever_is_slow_while_its_fork_comes_to_its_end() {
    LocalSet::new()
        .run_until(async {
            for slow in [Does::Abandon, Does::Run, Does::Fork, Does::Commit] {
                let (mut calls, mut taken) = (0, 0);
                loop {
                    let ready = Ready::new().await;
                    let Some((gate, running)) = ready.stopped_at(slow, calls).await else {
                        break;
                    };
                    calls += 1;
                    let committed = matches!(ready.start(Does::Commit).await.unwrap(), Ok(true));
                    if ready.take_commit_object().await {
                        assert!(committed);
                        taken += 1;
                    }
                    gate.open();
                    let ended = running.await.unwrap();
                    if committed {
                        let case = format!("{slow:?} slow at call {calls}: {ended:?}");
                        ready.take_commit_object().await;
                        assert_eq!(ready.files(), OBJECTS, "{case}");
                        drop(ready.start(Does::Abandon).await.unwrap());
                        assert_eq!(ready.files(), OBJECTS, "{case}, then given up");
                    }
                }
                assert!(taken > 3, "{slow:?}: {taken} of {calls}");
            }
        })
        .await;
}

#[tokio::test]
async fn what_a_slow_abandon_removes_is_never_the_file_of_a_new_fork() {
    LocalSet::new()
        .run_until(async {
            let ready = Ready::new().await;
            let gate = Gate::new();
            let removal = Rule::on(Kind::Delete, Action::Wait(gate.clone()));
            // The first that it removes is a file of the fork.
            ready.server.add(removal.and_on(Kind::DeleteMany).times(1));
            let slow = ready.start(Does::Abandon);
            gate.reached().await;
            let mark = |ready: &Ready| {
                let keys = ready.server.keys(Service::S3, "two").into_iter();
                keys.filter(|key| key.contains("going/abandon"))
                    .collect::<Vec<_>>()
            };
            let of_slow = mark(&ready);
            assert_eq!(of_slow.len(), 1);

            let next = ready.start_with(Does::Abandon, Duration::from_secs(5));
            while mark(&ready).contains(&of_slow[0]) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            // All else has gone, but a removal of the first is still on its way.
            let refused = ready.start(Does::Fork).await.unwrap().unwrap_err();
            assert!(
                refused.to_string().contains("is being given up"),
                "{refused}"
            );
            assert!(!next.is_finished());
            gate.open();
            slow.await.unwrap().unwrap_err();
            next.await.unwrap().unwrap();
            assert_eq!(ready.left(), [] as [String; 0]);
            assert!(ready.start(Does::Fork).await.unwrap().unwrap());
            ready.check(true, "a fork after a slow abandon").await;
        })
        .await;
}

/// Who looks at it where an `abandon` was killed learns that, and is not sent to `commit`, which would refuse.
#[tokio::test]
async fn whoever_looks_at_a_fork_that_is_half_given_up_is_told_to_go_on_with_that() {
    let ways = async |ready: &Ready| {
        let roots = ["s3://one", "s3://two"].map(at);
        let seen = survey(&ready.stores, &roots, &Silent).await.unwrap();
        let lineage = Lineage::new(&seen);
        let node = seen.find(&ready.snapshot).unwrap();
        why_text(&judge(&lineage, node, seen.taken_at).unwrap())
    };
    LocalSet::new()
        .run_until(async {
            let mut killed = 0;
            for calls in 0.. {
                let ready = Ready::new().await;
                let before = ways(&ready).await;
                assert!(before.contains("forkpoint commit"), "{before}");
                assert!(!before.contains("given up:"), "{before}");
                let Some((_, running)) = ready.stopped_at(Does::Abandon, calls).await else {
                    break;
                };
                running.abort();
                assert!(running.await.unwrap_err().is_cancelled());
                let is_mark = |key: &String| key.contains("going/abandon-");
                let mut keys = ready.server.keys(Service::S3, "two").into_iter();
                if keys.any(|key| is_mark(&key)) {
                    killed += 1;
                    let said = ways(&ready).await;
                    assert!(!said.contains("forkpoint commit"), "{said}");
                    if !said.contains("deletable") {
                        assert!(said.contains("being given up"), "{said}");
                        assert!(said.contains("`forkpoint abandon PLAN --apply`"), "{said}");
                    }
                }
                ready
                    .check(false, &format!("killed before call {calls}"))
                    .await;
            }
            assert!(killed > 3, "{killed}");
        })
        .await;
}

/// The second of two that give a fork up at once need not wait for the first, which has ended by itself; it waits for one
/// that was killed.
#[tokio::test]
async fn whoever_gives_a_fork_up_waits_only_for_those_who_may_be_at_work() {
    const SETTLE: Duration = Duration::from_secs(3);
    LocalSet::new()
        .run_until(async {
            for killed in [false, true] {
                let ready = Ready::new().await;
                // After its mark and the look at it.
                let mark = |key: &String| key.contains("going/abandon-");
                let mut calls = 0;
                let (gate, first) = loop {
                    let stopped = ready.stopped_at(Does::Abandon, calls).await.unwrap();
                    if ready.server.keys(Service::S3, "two").iter().any(mark) {
                        break stopped;
                    }
                    stopped.1.abort();
                    calls += 1;
                };
                if killed {
                    first.abort();
                    let (stores, snapshot) = (&ready.stores, ready.target.join("chk-7").unwrap());
                    let options = AbandonOptions::default();
                    let dry = abandon(stores, &ready.plan, options, &Silent)
                        .await
                        .unwrap();
                    assert!(dry.under_way && stores.find(&snapshot).await.unwrap().is_none());
                    let began = std::time::Instant::now();
                    ready
                        .start_with(Does::Abandon, SETTLE)
                        .await
                        .unwrap()
                        .unwrap();
                    assert!(began.elapsed() >= SETTLE);
                } else {
                    let second_gate = Gate::new();
                    let rule = Rule::always(Action::Wait(second_gate.clone()));
                    // The second stops when it is about to remove the objects, and the first comes to its end.
                    ready.server.add(rule.after(calls + 2).times(1));
                    let second = ready.start_with(Does::Abandon, Duration::from_secs(3600));
                    second_gate.reached().await;
                    gate.open();
                    first.await.unwrap().unwrap();
                    second_gate.open();
                    let second = tokio::time::timeout(Duration::from_secs(60), second).await;
                    // It may also say that the first has finished with the fork.
                    if let Err(e) = second.expect("it waits for nobody").unwrap() {
                        assert_eq!(e.kind(), ErrorKind::Refused, "{e}");
                    }
                }
                assert_eq!(ready.left(), [] as [String; 0], "{killed}");
            }
        })
        .await;
}

/// Two runs that both know of a third one that is slow end at once: until one of them has waited for it, a mark is there,
/// and nobody begins a fork whose objects the slow one might remove.
#[tokio::test]
async fn two_runs_never_remove_all_marks_while_a_third_may_be_at_work() {
    const SETTLE: Duration = Duration::from_secs(4);
    let stopped_at = async |calls: u64| {
        let ready = Ready::new().await;
        let is_mark = |key: &String| key.contains("going/abandon-");
        let marks = || {
            ready
                .server
                .keys(Service::S3, "two")
                .into_iter()
                .filter(is_mark)
        };
        // The slow one, which may be anywhere after its mark.
        let mut before = 0;
        let (gate, slow) = loop {
            let stopped = ready.stopped_at(Does::Abandon, before).await.unwrap();
            if marks().count() > 0 {
                break stopped;
            }
            stopped.1.abort();
            before += 1;
        };
        // One that stops at each of its calls in turn, and one that comes to its end meanwhile.
        let one_gate = Gate::new();
        let rule = Rule::always(Action::Wait(one_gate.clone()));
        ready.server.add(rule.after(calls).times(1));
        let began = std::time::Instant::now();
        let one = ready.start_with(Does::Abandon, SETTLE);
        let reached = tokio::time::timeout(Duration::from_secs(2), one_gate.reached()).await;
        let other = ready.start_with(Does::Abandon, SETTLE);
        tokio::time::sleep(Duration::from_millis(300)).await;
        one_gate.open();
        while began.elapsed() < SETTLE && !one.is_finished() {
            assert!(
                marks().count() > 0,
                "stopped before call {calls}: no mark is left"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for run in [one, other] {
            if let Err(e) = run.await.unwrap() {
                assert_eq!(e.kind(), ErrorKind::Refused, "{calls}: {e}");
            }
        }
        gate.open();
        let _ = slow.await.unwrap();
        reached.is_ok()
    };
    LocalSet::new()
        .run_until(async {
            let reached = join_all((0..24).map(stopped_at)).await;
            assert!(reached.iter().filter(|r| **r).count() > 8, "{reached:?}");
        })
        .await;
}
