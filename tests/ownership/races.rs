//! What is used by something that is not there yet, against a clean that runs at that very moment: each test lets
//! one party stop at a certain call to the store, and the other one do all that it does.

use crate::fault::{Action, FaultServer, Gate, Kind, Rule};
use crate::support::at;
use crate::support::engine::{checkpoint, fresh, from, job, round, start, write_all};
use crate::support::lab::Lab;
use crate::tampered::Tampered;
use bytes::Bytes;
use forkpoint::Result;
use forkpoint::ownership::clean::{
    ApplyOptions, ApplyReport, PlanSource, SpareReason, Status, apply_plan, plan_clean,
};
use forkpoint::ownership::{
    Access, CleanPolicy, Lineage, MissingReason, PinRequest, pin, survey, unpin, usage,
};
use forkpoint::progress::{Cancel, Silent};
use forkpoint::snapshot::RestoreMode;
use forkpoint::store::{Location, Stores};
use forkpoint::verify::verify;
use forkpoint::writer::Details;

/// A server of S3 with the folder of two jobs.
async fn served() -> (FaultServer, Stores, Location) {
    let server = FaultServer::start().await;
    let stores = server.stores();
    (server, stores, at("s3://one/jobs"))
}

/// Where the first snapshot of the job is that others are started from.
async fn first_snapshot(stores: &Stores, root: &Location) -> Location {
    let running = fresh(stores, &root.join("source").unwrap(), &job()).await;
    checkpoint(stores, &running, round(1)).await.directory
}

/// A plan for what is older than no time at all.
async fn plan(stores: &Stores, root: &Location, keep: &[&str]) -> PlanSource {
    let root = stores.real(root).await.unwrap();
    let roots = std::slice::from_ref(&root);
    let seen = survey(stores, roots, &Silent).await.unwrap();
    let lineage = Lineage::new(&seen);
    let policy = CleanPolicy {
        keep: keep.iter().map(|rule| rule.parse().unwrap()).collect(),
        min_age_ms: 0,
    };
    let plan = plan_clean(&lineage, roots, &[], &policy, seen.taken_at + 60_000);
    let mut text = Vec::new();
    plan.write(&lineage, &mut text).unwrap();
    PlanSource::Text(Bytes::from(text))
}

async fn apply(access: &dyn Access, plan: &PlanSource) -> Result<ApplyReport> {
    let options = ApplyOptions {
        grace_ms: 0,
        max_delete: None,
    };
    apply_plan(access, plan, &options, &Silent, &Cancel::default()).await
}

fn names(plan: &PlanSource) -> Vec<String> {
    let PlanSource::Text(text) = plan else {
        return Vec::new();
    };
    let text = String::from_utf8(text.to_vec()).unwrap();
    text.lines().skip(1).map(str::to_string).collect()
}

/// An attempt that ended has left duplicates, and they have grown old; the next one refers to them, and is about to
/// write its manifest when a clean does all it does.
#[tokio::test]
async fn duplicates_of_an_earlier_attempt_are_no_orphans_while_the_first_checkpoint_is_committed() {
    // Once where the folder of the job is taken for a file of another one, by its name.
    for folder in ["copy", "shared/copy"] {
        duplicates_are_no_orphans(folder).await;
    }
}

async fn duplicates_are_no_orphans(folder: &str) {
    let (server, stores, root) = served().await;
    let home = root.join(folder).unwrap();
    let no_claim = from(&first_snapshot(&stores, &root).await, RestoreMode::NoClaim);
    let (first, restored) = start(&stores, &home, &job(), &no_claim).await;
    let duplicates: Vec<Location> = restored
        .unwrap()
        .plan
        .tasks
        .iter()
        .map(|task| task.duplicate.destination.clone())
        .collect();
    let mut attempt = first.checkpoint().await.unwrap();
    write_all(&stores, &mut attempt, round(2)).await;
    attempt.abort().await;
    drop(first);
    let dead = plan(&stores, &root, &[]).await;
    for at in &duplicates {
        assert!(
            names(&dead).iter().any(|line| line.contains(at.name())),
            "{at}"
        );
    }

    let (again, _) = start(&stores, &home, &job(), &no_claim).await;
    let mut attempt = again.checkpoint().await.unwrap();
    write_all(&stores, &mut attempt, round(3)).await;
    let gate = Gate::new();
    server.add(
        Rule::on(Kind::Put, Action::Wait(gate.clone()))
            .for_keys(&format!("jobs/{folder}/chk-2/_forkpoint.json"))
            .times(1),
    );
    let committing = tokio::spawn(async move {
        let outcome = attempt.commit(&Details::default()).await;
        outcome.unwrap().committed().unwrap()
    });
    gate.reached().await;
    let report = apply(&stores, &dead).await.unwrap();
    gate.open();
    let committed = committing.await.unwrap();
    let problems = verify(&stores, &committed.directory, &Silent)
        .await
        .unwrap()
        .problems;
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(
        (report.status, report.deleted),
        (Status::Done, 0),
        "{report:?}"
    );
    assert!(report.spared[&SpareReason::NeededNow] >= 2, "{report:?}");

    // What the first attempt has left beside them is an orphan still, and goes now.
    let report = apply(&stores, &plan(&stores, &root, &[]).await)
        .await
        .unwrap();
    assert!(report.deleted > 0, "{report:?}");
    let problems = verify(&stores, &committed.directory, &Silent)
        .await
        .unwrap()
        .problems;
    assert!(problems.is_empty(), "{problems:?}");
    // The announcement went with the commit.
    let pins = stores.list(&home.join(".forkpoint/pins").unwrap()).await;
    assert_eq!(pins.unwrap_or_default(), []);
}

/// The other way round: the clean was first, and the attempt is told so before it relies on anything.
#[tokio::test]
async fn a_first_checkpoint_is_not_begun_while_a_clean_deletes_orphans_beside_it() {
    for folder in ["copy", "shared/copy"] {
        not_begun_while_a_clean_is_at_work(folder).await;
    }
}

async fn not_begun_while_a_clean_is_at_work(folder: &str) {
    let (server, stores, root) = served().await;
    let home = root.join(folder).unwrap();
    let no_claim = from(&first_snapshot(&stores, &root).await, RestoreMode::NoClaim);
    let (first, _) = start(&stores, &home, &job(), &no_claim).await;
    // An orphan of long ago, that a clean is about to delete.
    let orphan = home.join("shared/66ad2236-2236-4937-967c-7fc63083dab4");
    let orphan = orphan.unwrap();
    stores
        .put(&orphan, Bytes::from_static(b"x"), true)
        .await
        .unwrap();
    let dead = plan(&stores, &root, &[]).await;
    assert_eq!(names(&dead).len(), 1);
    let gate = Gate::new();
    server.add(
        Rule::on(Kind::DeleteMany, Action::Wait(gate.clone()))
            .and_on(Kind::Delete)
            .times(1),
    );
    let cleaner = stores.clone();
    let cleaning = tokio::spawn(async move { apply(&cleaner, &dead).await });
    gate.reached().await;
    let e = first.checkpoint().await.unwrap_err();
    assert_eq!(e.kind(), forkpoint::ErrorKind::Refused, "{e}");
    let pins = stores.list(&home.join(".forkpoint/pins").unwrap()).await;
    assert_eq!(pins.unwrap_or_default(), [], "its pin is taken back");
    // A savepoint refers to no duplicate.
    first.savepoint().await.unwrap();
    gate.open();
    assert_eq!(cleaning.await.unwrap().unwrap().deleted, 1);
    checkpoint(&stores, &first, round(2)).await;
}

/// Another service has copied the objects of a fork long ago; its commit writes the note, the commit object, and
/// removes the note, the last two after a clean has listed everything.
#[tokio::test]
async fn a_fork_that_ends_while_it_is_looked_at_loses_nothing() {
    let lab = Lab::new();
    lab.complete("a", 4, &["a:one"]).await;
    let copied = lab.write("b:copied").await;
    let dead = plan(&lab.stores, &lab.root, &[]).await;
    assert!(names(&dead).iter().any(|line| line.contains(copied.key())));
    let orphans = async || {
        let seen = lab.look().await;
        let usage = usage(&Lineage::new(&seen), std::slice::from_ref(&lab.root), 0);
        usage.orphans.values().map(|a| a.objects).sum::<u64>()
    };
    assert_eq!(orphans().await, 1);
    let note = lab.home("b").join(".forkpoint/chk-4.json").unwrap();
    let text = format!(
        r#"{{"version":1,"fork_id":"0123456789abcdef0123456789abcdef","source":"{}"}}"#,
        lab.directory("a", 4)
    );
    lab.stores
        .put(&note, Bytes::from(text), true)
        .await
        .unwrap();
    assert_eq!(orphans().await, 0, "of a fork under way");
    let (ending, gone) = (Lab::at(lab.stores.clone(), lab.root.clone()), note.clone());
    let access = Tampered::before(&lab.stores, note, async move {
        ending.complete("b", 4, &["b:copied"]).await;
        ending.stores.delete(&gone).await.unwrap();
    });
    // It looks again, and sees the fork.
    let report = apply(&access, &dead).await.unwrap();
    assert_eq!(
        (report.status, report.deleted),
        (Status::Done, 0),
        "{report:?}"
    );
    assert_eq!(report.spared.get(&SpareReason::NeededNow), Some(&1));
    assert!(lab.has(&lab.directory("b", 4)).await);
    assert!(lab.is_there(&copied).await, "the fork has lost an object");
    let seen = lab.look().await;
    let is_fork =
        |m: &forkpoint::ownership::MissingEvidence| m.reason == MissingReason::ForkUnderWay;
    assert!(!seen.missing.iter().any(is_fork));
}

/// A job has pinned what its next checkpoint builds upon; it completes that and removes the pin after a clean has
/// listed everything.
#[tokio::test]
async fn what_a_pin_has_kept_until_it_was_looked_at_stays_for_what_came_meanwhile() {
    let lab = Lab::new();
    let first = lab.complete("a", 1, &["a:one", "a:1/own"]).await;
    let dead = plan(&lab.stores, &lab.root, &["named=none"]).await;
    assert!(
        names(&dead)
            .iter()
            .any(|line| line.contains("/chk-1/_metadata"))
    );
    let request = PinRequest {
        name: "attempt".into(),
        owner: "job a".into(),
        reason: "the next checkpoint builds upon it".into(),
        expires_unix_ms: None,
        fork: None,
    };
    pin(&lab.stores, &first, &request).await.unwrap();
    let pins = lab.home("a").join(".forkpoint/pins/chk-1/attempt.json");
    let (job, of) = (Lab::at(lab.stores.clone(), lab.root.clone()), first.clone());
    let access = Tampered::before(&lab.stores, pins.unwrap(), async move {
        job.complete("a", 2, &["a:one", "a:2/own"]).await;
        unpin(&job.stores, &of, "attempt").await.unwrap();
    });
    let report = apply(&access, &dead).await.unwrap();
    assert_eq!(
        (report.status, report.deleted),
        (Status::Done, 0),
        "{report:?}"
    );
    assert!(
        lab.is_there(&lab.file("a:one")).await,
        "chk-2 has lost an object"
    );
    // Once: then it goes, without what the new one uses.
    let report = apply(
        &lab.stores,
        &plan(&lab.stores, &lab.root, &["last=1"]).await,
    )
    .await;
    assert_eq!(report.unwrap().deleted, 2);
    assert!(lab.is_there(&lab.file("a:one")).await && !lab.has(&first).await);
}

/// A clean that looks while another one deletes sees snapshots go: it looks again, and has nothing left to do.
#[tokio::test]
async fn a_clean_beside_another_one_comes_to_its_end() {
    let (server, stores, root) = served().await;
    let lab = Lab::at(stores.clone(), root.clone());
    for number in 1..=4 {
        lab.complete("a", number, &[&format!("a:{number}/own")])
            .await;
    }
    let dead = plan(&stores, &root, &["last=1"]).await;
    let gate = Gate::new();
    let going = lab.directory("a", 2).join("_metadata").unwrap();
    server.add(
        Rule::on(Kind::Get, Action::Wait(gate.clone()))
            .for_keys(going.key())
            .times(1),
    );
    let (slow_stores, slow_plan) = (server.stores(), dead.clone());
    let slow = tokio::spawn(async move { apply(&slow_stores, &slow_plan).await });
    gate.reached().await;
    let report = apply(&stores, &dead).await.unwrap();
    assert_eq!((report.status, report.deleted), (Status::Done, 6));
    gate.open();
    let report = slow.await.unwrap().unwrap();
    assert_eq!((report.status, report.deleted), (Status::Done, 0));
    assert!(lab.has(&lab.directory("a", 4)).await);
}
