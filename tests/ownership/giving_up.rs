//! A fork that one gives up while another commits it or makes it: whoever stops at whichever call to the store, a
//! fork that is committed has all its files, and whatever is left can be ended.

use crate::fault::{Action, FaultServer, Gate, Rule, Service};
use crate::support::{at, synthetic};
use forkpoint::fork::{
    AbandonOptions, CommitOptions, CommitOutcome, ForkRequest, RunOptions, Slice, abandon, commit,
    fork, plan, plan_workers, run_slice,
};
use forkpoint::progress::{Cancel, Silent};
use forkpoint::restore::{CostModel, RestorePlan};
use forkpoint::store::{Location, Stores};
use forkpoint::verify::verify;
use forkpoint::{Error, ErrorKind};
use tokio::task::{JoinHandle, LocalSet};

const OBJECTS: usize = 3;

/// What one party does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Abandon,
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
        let server = FaultServer::start().await;
        let stores = server.stores();
        let snapshot = synthetic::lay(&stores, &at("s3://one/original"), OBJECTS, 50).await;
        let target = at("s3://two/fork");
        let request = ForkRequest::new(snapshot.clone(), target.clone());
        let planned = plan(&stores, &request, &Silent).await.unwrap();
        let cost = CostModel::default();
        let plan = plan_workers(&stores, &planned, 1, &cost, &Silent).await;
        let ready = Ready {
            server,
            stores,
            snapshot,
            target,
            plan: plan.unwrap(),
        };
        ready.start(Does::Run).await.unwrap().unwrap();
        ready
    }

    /// Does it in a task of its own, with connections of its own. True if the fork was committed.
    fn start(&self, does: Does) -> JoinHandle<Result<bool, Error>> {
        let (stores, plan) = (self.server.stores(), self.plan.clone());
        let request = ForkRequest::new(self.snapshot.clone(), self.target.clone());
        tokio::task::spawn_local(async move {
            let cancel = Cancel::default();
            match does {
                Does::Abandon => {
                    let options = AbandonOptions {
                        apply: true,
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
                    let finished = self.start(Does::Commit).await.unwrap();
                    assert!(finished.unwrap(), "{case}: neither given up nor finished");
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
