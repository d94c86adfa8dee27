//! Snapshots of engines without a format: what the writer promises, on local disk and on real services.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::Duration;

use bytes::Bytes;
use forkpoint::ErrorKind;
use forkpoint::fork::{ForkRequest, fork};
use forkpoint::ownership::{Answer, Lineage, judge, survey};
use forkpoint::progress::{Cancel, Silent};
use forkpoint::snapshot::RestoreMode;
use forkpoint::snapshot::native::{Manifest, Partition};
use forkpoint::store::{Location, Stores};
use forkpoint::verify::verify;
use forkpoint::writer::{
    Better, CommitOutcome, Details, Job, JobDescription, JobOptions, Retention, Source, Start,
    State, SubtaskOrder, find_snapshots,
};
use support::engine::{
    checkpoint, content, done, fetch_all, fresh, from, job, round, start, write_all, write_part,
};
use support::waits::until;
use support::{Service, delete_all, emulator_stores, local_stores, run, run_json, temp};

/// The offset that a restored job goes on from.
fn offset(lines: &[String]) -> &str {
    let line = lines.iter().find(|l| l.contains("offset")).unwrap();
    line.rsplit(' ').next().unwrap()
}

async fn orphans(stores: &Stores, root: &Location) -> Vec<String> {
    let root = stores.real(root).await.unwrap();
    let survey = survey(stores, &[root], &Silent).await.unwrap();
    assert!(survey.missing.is_empty(), "{:?}", survey.missing);
    let lineage = Lineage::new(&survey);
    let own = |at: &Location| at.key().contains("/.forkpoint/");
    (0..survey.names.len() as u32)
        .filter(|id| survey.fact(*id).listed && lineage.users(*id).is_empty())
        .map(|id| survey.names.location(id).unwrap())
        .filter(|at| !own(at))
        .map(|at| at.to_string())
        .collect()
}

async fn written_shown_forked_and_restored(stores: &Stores, root: &Location) {
    let home = root.join("orders").unwrap();
    let running = fresh(stores, &home, &job()).await;
    let first = checkpoint(stores, &running, round(1)).await;
    assert_eq!((first.uploaded_bytes, first.reused_bytes), (7_000, 0));
    let second = checkpoint(stores, &running, round(2)).await;
    assert_eq!((second.uploaded_bytes, second.reused_bytes), (7_000, 6_000));
    let third = checkpoint(stores, &running, round(3)).await;
    assert_eq!(third.directory, home.join("chk-3").unwrap());
    assert!(orphans(stores, root).await.is_empty());

    // What works on Flink's snapshots works on these.
    let (code, shown) = run_json(&["show", &third.directory.to_string()]);
    assert_eq!(code, 0);
    assert_eq!(shown["snapshot"]["format"], "native");
    assert_eq!(shown["snapshot"]["checkpoint_id"], 3);
    assert_eq!(shown["files"].as_array().unwrap().len(), 8);
    assert!(
        shown["files"]
            .as_array()
            .unwrap()
            .iter()
            .all(|f| f["present"] == true)
    );
    let (code, _) = run_json(&["verify", &third.directory.to_string()]);
    assert_eq!(code, 0);
    let (code, why) = run_json(&["why", &first.directory.to_string()]);
    assert_eq!(code, 3, "{why}");
    let by_commit = run(&["why", &format!("{}/_forkpoint.json", first.directory)]);
    assert_eq!(by_commit.status.code(), Some(3));
    let (code, listed) = run_json(&["ls", &root.to_string()]);
    assert_eq!(
        (code, listed["snapshots"].as_array().map(Vec::len)),
        (0, Some(3))
    );

    // A fork stands alone, and is restored like the original.
    let target = root.join("fork").unwrap();
    let request = ForkRequest::new(third.directory.clone(), target.clone());
    let forked = fork(stores, &request, &Silent, &Cancel::default())
        .await
        .unwrap();
    assert!(forked.independent);
    assert!(!forked.how_to_restore.contains("flink"));
    let (_, original) = start(stores, &home, &job(), &Start::newest()).await;
    let original = fetch_all(stores, &original.unwrap()).await;
    assert_eq!(offset(&original), "3");
    delete_all(stores, &home).await;
    assert!(
        verify(stores, &forked.snapshot, &Silent)
            .await
            .unwrap()
            .problems
            .is_empty()
    );
    let fork_home = forked.snapshot.parent().unwrap();
    let (going_on, restored) = start(stores, &fork_home, &job(), &Start::newest()).await;
    assert_eq!(fetch_all(stores, &restored.unwrap()).await, original);
    let fourth = checkpoint(stores, &going_on, round(4)).await;
    assert_eq!(fourth.manifest.number, 4);
    assert_eq!(
        (fourth.uploaded_bytes, fourth.reused_bytes),
        (7_000, 18_000)
    );
    assert!(
        verify(stores, &fourth.directory, &Silent)
            .await
            .unwrap()
            .problems
            .is_empty()
    );
}

#[tokio::test]
async fn a_snapshot_is_written_shown_forked_and_restored_on_local_disk() {
    let (_dir, root) = temp();
    written_shown_forked_and_restored(&local_stores(), &root).await;
}

#[tokio::test]
async fn a_snapshot_is_written_shown_forked_and_restored_on_every_service() {
    for service in Service::ALL {
        if service.is_there("writing snapshots") {
            let root = service.place(0, "writer");
            written_shown_forked_and_restored(&emulator_stores(), &root).await;
        }
    }
}

#[tokio::test]
async fn a_folder_of_a_job_can_be_moved_as_a_whole() {
    let (dir, root) = temp();
    let stores = local_stores();
    let home = root.join("here").unwrap();
    let running = fresh(&stores, &home, &job()).await;
    for n in 1..=3 {
        checkpoint(&stores, &running, round(n)).await;
    }
    std::fs::rename(dir.path().join("here"), dir.path().join("there")).unwrap();
    let there = root.join("there").unwrap();
    let (running, restored) = start(&stores, &there, &job(), &Start::newest()).await;
    assert_eq!(offset(&fetch_all(&stores, &restored.unwrap()).await), "3");
    let next = checkpoint(&stores, &running, round(4)).await;
    assert!(next.manifest.files.iter().all(|f| !f.path.contains("here")));
}

async fn race(stores: &Stores, root: &Location) {
    let home = root.join("orders").unwrap();
    let a = fresh(stores, &home, &job()).await;
    checkpoint(stores, &a, round(1)).await;
    let (b, _) = start(stores, &home, &job(), &Start::newest()).await;
    for n in 2..6 {
        let (a, _) = start(stores, &home, &job(), &Start::newest()).await;
        let mut first = a.checkpoint().await.unwrap();
        let (c, _) = start(stores, &home, &job(), &Start::newest()).await;
        let mut second = c.checkpoint().await.unwrap();
        write_all(stores, &mut first, round(n)).await;
        write_all(stores, &mut second, round(n)).await;
        let details = Details::default();
        let (one, other) = tokio::join!(first.commit(&details), second.commit(&details));
        let (one, other) = (one.unwrap(), other.unwrap());
        let (winner, loser, lost, lost_job) = match (&one, &other) {
            (CommitOutcome::Committed(s), CommitOutcome::Lost { .. }) => (s, &other, second, c),
            (CommitOutcome::Lost { .. }, CommitOutcome::Committed(s)) => (s, &one, first, a),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            *loser,
            CommitOutcome::Lost {
                number: i64::from(n),
                winner: winner.manifest.attempt.clone()
            }
        );
        // The loser is told at once and for ever; whatever it tries.
        drop(lost);
        let again = lost_job.checkpoint().await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Conflict);
    }
    // One that slept all the while.
    let mut late = b.checkpoint().await.unwrap();
    write_all(stores, &mut late, round(2)).await;
    let outcome = late.commit(&Details::default()).await.unwrap();
    assert!(
        matches!(outcome, CommitOutcome::Lost { number: 2, .. }),
        "{outcome:?}"
    );
    drop(late);
    let (_, restored) = start(stores, &home, &job(), &Start::newest()).await;
    assert_eq!(offset(&fetch_all(stores, &restored.unwrap()).await), "5");
}

#[tokio::test]
async fn of_two_coordinators_one_wins_and_the_other_learns_so() {
    let (_dir, root) = temp();
    race(&local_stores(), &root).await;
    for service in Service::ALL {
        if service.is_there("two coordinators") {
            race(&emulator_stores(), &service.place(0, "race")).await;
        }
    }
}

#[tokio::test]
async fn a_coordinator_that_slept_past_a_deleted_checkpoint_learns_so() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let awake = fresh(&stores, &home, &job()).await;
    checkpoint(&stores, &awake, round(1)).await;
    let (asleep, _) = start(&stores, &home, &job(), &Start::newest()).await;
    let mut late = asleep.checkpoint().await.unwrap();
    write_all(&stores, &mut late, round(2)).await;
    for n in 2..=4 {
        checkpoint(&stores, &awake, round(n)).await;
    }
    // The name of its checkpoint is free again.
    delete_all(&stores, &home.join("chk-2").unwrap()).await;
    let outcome = late.commit(&Details::default()).await.unwrap();
    assert!(
        matches!(outcome, CommitOutcome::Lost { number: 2, .. }),
        "{outcome:?}"
    );
    let (_, restored) = start(&stores, &home, &job(), &Start::newest()).await;
    assert_eq!(restored.unwrap().manifest.number, 4);
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_recognises_its_own_manifest() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let running = fresh(&stores, &home, &job()).await;
    let mut attempt = running.checkpoint().await.unwrap();
    write_all(&stores, &mut attempt, round(1)).await;
    let first = done(attempt.commit(&Details::default()).await.unwrap());
    let again = done(attempt.commit(&Details::default()).await.unwrap());
    assert_eq!(first, again);
    drop(attempt);
    assert_eq!(
        checkpoint(&stores, &running, round(2))
            .await
            .manifest
            .number,
        2
    );
}

async fn goes_on(stores: &Stores, root: &Location) {
    let home = root.join("orders").unwrap();
    let running = fresh(stores, &home, &job()).await;
    // Everything is uploaded, one subtask never answers, the coordinator dies.
    let attempt = running.checkpoint().await.unwrap();
    let orders: Vec<SubtaskOrder> = attempt.orders().cloned().collect();
    for order in orders.iter().skip(1) {
        write_part(stores, order, round(1)(order)).await.unwrap();
    }
    drop((attempt, running));
    assert_eq!(orphans(stores, root).await.len(), 4);
    // Of another coordinator too, and for whoever has died in the same place before.
    for _ in 0..2 {
        let (second, _) = start(stores, &home, &job(), &Start::newest()).await;
        let mut attempt = second.checkpoint().await.unwrap();
        write_all(stores, &mut attempt, round(1)).await;
        assert!(attempt.missing().is_empty());
    }
    let (third, _) = start(stores, &home, &job(), &Start::newest()).await;
    let snapshot = checkpoint(stores, &third, round(1)).await;
    assert_eq!((snapshot.uploaded_bytes, snapshot.reused_bytes), (0, 7_000));
    assert!(orphans(stores, root).await.is_empty());
    // Its lists are gone.
    let left = stores
        .list(&home.join(".forkpoint").unwrap())
        .await
        .unwrap();
    assert!(
        left.iter().all(|(at, _)| at.key().contains("/commits/")),
        "{left:?}"
    );
    let (_, restored) = start(stores, &home, &job(), &Start::newest()).await;
    fetch_all(stores, &restored.unwrap()).await;
}

#[tokio::test]
async fn an_attempt_goes_on_where_another_failed() {
    let (_dir, root) = temp();
    goes_on(&local_stores(), &root).await;
    for service in Service::ALL {
        if service.is_there("another attempt") {
            goes_on(&emulator_stores(), &service.place(0, "again")).await;
        }
    }
}

#[tokio::test]
async fn what_an_attempt_left_is_used_only_while_it_is_there_and_is_the_same() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let running = fresh(&stores, &home, &job()).await;
    let mut attempt = running.checkpoint().await.unwrap();
    write_all(&stores, &mut attempt, round(1)).await;
    attempt.abort().await;
    // One file is gone; other contents of equal sizes are none of these files.
    let lost = orphans(&stores, &root).await;
    stores.delete(&support::at(&lost[0])).await.unwrap();
    let mut attempt = running.checkpoint().await.unwrap();
    write_all(&stores, &mut attempt, |order| {
        let mut states = round(1)(order);
        if order.operator == "counts" {
            let other = State::keyed("other", order.key_groups);
            states.push(other.shared("other", content("other", 3_000)));
        }
        states
    })
    .await;
    let snapshot = done(attempt.commit(&Details::default()).await.unwrap());
    let size = if lost[0].contains("/chk-1/") {
        500
    } else {
        3_000
    };
    assert_eq!(snapshot.uploaded_bytes, 6_000 + size);
    assert_eq!(snapshot.reused_bytes, 7_000 - size);

    // It goes between the look and the commit: then the attempt fails, and says so.
    let mut attempt = running.checkpoint().await.unwrap();
    write_all(&stores, &mut attempt, round(2)).await;
    attempt.abort().await;
    let mut attempt = running.checkpoint().await.unwrap();
    write_all(&stores, &mut attempt, round(2)).await;
    for orphan in orphans(&stores, &root).await {
        stores.delete(&support::at(&orphan)).await.unwrap();
    }
    let e = attempt.commit(&Details::default()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
}

async fn stands_alone(stores: &Stores, root: &Location) {
    let (first, second) = (root.join("first").unwrap(), root.join("second").unwrap());
    let running = fresh(stores, &first, &job()).await;
    for n in 1..=3 {
        checkpoint(stores, &running, round(n)).await;
    }
    let source = first.join("chk-3").unwrap();
    let wider = JobDescription::new("orders")
        .operator("source", 1)
        .operator("counts", 5);
    let no_claim = from(&source, RestoreMode::NoClaim);
    let (running, restored) = start(stores, &second, &wider, &no_claim).await;
    let restored = restored.unwrap();
    assert_eq!(restored.mode, RestoreMode::NoClaim);
    assert_eq!(restored.plan.tasks.len(), 6, "each shared file once");
    let before = fetch_all(stores, &restored).await;
    assert_eq!(offset(&before), "3");

    // Its owner knows that it is needed.
    let real = stores.real(&first).await.unwrap();
    let seen = survey(stores, std::slice::from_ref(&real), &Silent)
        .await
        .unwrap();
    let node = seen.find(&real.join("chk-3").unwrap()).unwrap();
    let verdict = judge(&Lineage::new(&seen), node, seen.taken_at).unwrap();
    assert_eq!(verdict.answer, Answer::Kept);
    assert!(format!("{:?}", verdict).contains("second"), "{verdict:?}");

    // What is for a user is whole, and does not count as the first one.
    let mut savepoint = running.savepoint().await.unwrap();
    write_all(stores, &mut savepoint, |order| {
        assert!(order.reusable.is_empty() && order.duplicates.is_empty());
        let name = format!("all-{}", order.subtask);
        let all = State::keyed("counts", order.key_groups).shared(&name, content(&name, 2_000));
        match order.operator.as_str() {
            "counts" => vec![all],
            _ => round(3)(order),
        }
    })
    .await;
    let savepoint = done(savepoint.commit(&Details::default()).await.unwrap());
    assert!(
        savepoint
            .manifest
            .files
            .iter()
            .all(|f| !f.path.contains('/'))
    );
    delete_all(stores, &savepoint.directory).await;

    // Killed before its first checkpoint, and started again: the same duplicates are found.
    let mut attempt = running.checkpoint().await.unwrap();
    write_all(stores, &mut attempt, round(4)).await;
    drop((attempt, running));
    let (running, again) = start(stores, &second, &wider, &no_claim).await;
    assert_eq!(again.unwrap().plan.tasks, restored.plan.tasks);
    let fourth = checkpoint(stores, &running, round(4)).await;
    assert_eq!(fourth.manifest.number, 4);
    let shown = run_json(&["show", &fourth.directory.to_string()]).1;
    let files = shown["files"].as_array().unwrap();
    let second_text = second.to_string();
    assert!(
        files
            .iter()
            .all(|f| f["location"].as_str().unwrap().starts_with(&second_text))
    );
    assert_eq!(files.len(), 6 + 10);
    // The owner is told that it is needed no more, and everything of it goes.
    let records = stores
        .list(&first.join(".forkpoint/restores").unwrap())
        .await;
    assert!(records.is_ok_and(|r| r.is_empty()) || first.local_path().is_some());
    delete_all(stores, &first).await;
    let (running, restored) = start(stores, &second, &wider, &Start::newest()).await;
    let restored = restored.unwrap();
    assert_eq!((restored.own, restored.manifest.number), (true, 4));
    let after = fetch_all(stores, &restored).await;
    assert_eq!(offset(&after), "4");
    assert!(
        after.iter().filter(|l| l.contains("shared-1-")).count() >= 5,
        "{after:?}"
    );
    checkpoint(stores, &running, round(5)).await;
    assert!(orphans(stores, root).await.is_empty());
}

#[tokio::test]
async fn a_job_started_without_claim_stands_alone_after_its_first_checkpoint() {
    let (_dir, root) = temp();
    stands_alone(&local_stores(), &root).await;
    for service in Service::ALL {
        if service.is_there("a restore without claim") {
            stands_alone(&emulator_stores(), &service.place(0, "noclaim")).await;
        }
    }
}

#[tokio::test]
async fn a_claimed_snapshot_is_built_upon_and_a_legacy_one_is_only_referred_to() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let first = root.join("first").unwrap();
    let running = fresh(&stores, &first, &job()).await;
    checkpoint(&stores, &running, round(1)).await;
    let source = first.join("chk-1").unwrap();

    let legacy = root.join("legacy").unwrap();
    let (running, _) = start(
        &stores,
        &legacy,
        &job(),
        &from(&source, RestoreMode::Legacy),
    )
    .await;
    let next = checkpoint(&stores, &running, round(2)).await;
    let foreign = |m: &Manifest| {
        m.files
            .iter()
            .filter(|f| f.path.contains("/first/"))
            .count()
    };
    assert_eq!((foreign(&next.manifest), next.reused_bytes), (2, 6_000));

    // Nobody takes over what another job needs.
    let claiming = root.join("claiming").unwrap();
    let claim = from(&source, RestoreMode::Claim);
    let refused = Job::start(
        &stores,
        &claiming,
        &job(),
        &claim,
        JobOptions {
            also: vec![root.clone()],
            ..JobOptions::default()
        },
    )
    .await
    .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused, "{refused}");

    let other = root.join("other").unwrap();
    let running = fresh(&stores, &other, &job()).await;
    checkpoint(&stores, &running, round(1)).await;
    let claim = Start::newest_or(Source::NewestOf(other.clone()), RestoreMode::Claim);
    let (running, restored) = start(&stores, &claiming, &job(), &claim).await;
    assert_eq!(restored.unwrap().mode, RestoreMode::Claim);
    let next = checkpoint(&stores, &running, round(2)).await;
    assert_eq!(next.reused_bytes, 6_000);
    // A second claim comes too late.
    let late = root.join("late").unwrap();
    let e = Job::start(&stores, &late, &job(), &claim, JobOptions::default())
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Refused, "{e}");
}

#[tokio::test]
async fn a_damaged_file_is_never_restored() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let running = fresh(&stores, &home, &job()).await;
    let snapshot = checkpoint(&stores, &running, round(1)).await;
    let file = &snapshot.manifest.files[0];
    let at = snapshot.manifest.locate(file, &snapshot.directory).unwrap();
    let path = at.local_path().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[17] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    // Size and existence are looked at for the whole, content by whoever fetches it.
    let (_, restored) = start(&stores, &home, &job(), &Start::newest()).await;
    let restored = restored.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut failures = 0;
    for share in &restored.subtasks {
        let fetched = share.fetch(&stores, dir.path(), &Cancel::default()).await;
        if let Err(e) = fetched {
            assert_eq!(e.kind(), ErrorKind::Corrupt);
            assert!(e.to_string().contains(at.name()), "{e}");
            failures += 1;
        }
        for state in &share.states {
            for file in state.files.iter().filter(|f| f.file.location == at) {
                let e = file.read(&stores).await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
            }
        }
    }
    assert_eq!(failures, 1);
    std::fs::write(&path, &bytes[1..]).unwrap();
    let e = Job::start(
        &stores,
        &home,
        &job(),
        &Start::newest(),
        JobOptions::default(),
    )
    .await
    .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt);
    assert!(e.to_string().contains(at.name()), "{e}");
    std::fs::remove_file(&path).unwrap();
    let e = Job::start(
        &stores,
        &home,
        &job(),
        &Start::newest(),
        JobOptions::default(),
    )
    .await
    .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt);
    // A library user is not sent to options of the command.
    let whole = format!("{e:?}");
    assert!(
        whole.contains("Source::Snapshot") && !whole.contains("--"),
        "{whole}"
    );
}

#[tokio::test]
async fn operators_come_and_go_and_shards_are_dealt_out() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("training").unwrap());
    let eight = JobDescription::new("training").operator("ranks", 8);
    let running = fresh(&stores, &home, &eight).await;
    checkpoint(&stores, &running, |order| {
        let name = format!("shard-{}", order.subtask);
        vec![State::shard("model").exclusive(&name, content(&name, 1_000))]
    })
    .await;
    let (_, same) = start(&stores, &home, &eight, &Start::newest()).await;
    let same = same.unwrap();
    for share in &same.subtasks {
        assert_eq!(share.states.len(), 1);
        assert_eq!(share.states[0].from_subtask, share.subtask);
    }
    let three = JobDescription::new("training").operator("ranks", 3);
    let (_, fewer) = start(&stores, &home, &three, &Start::newest()).await;
    let fewer = fewer.unwrap();
    let sizes: Vec<usize> = fewer.subtasks.iter().map(|s| s.states.len()).collect();
    assert_eq!(sizes, [3, 3, 2]);

    let other = JobDescription::new("training").operator("others", 2);
    let e = Job::start(
        &stores,
        &home,
        &other,
        &Start::newest(),
        JobOptions::default(),
    )
    .await
    .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Refused);
    assert!(e.to_string().contains("ranks"), "{e}");
    let other = other.allow_dropped();
    let (running, restored) = start(&stores, &home, &other, &Start::newest()).await;
    let restored = restored.unwrap();
    assert_eq!(restored.plan.dropped[0].operator_id, "ranks");
    assert_eq!(restored.plan.dropped[0].bytes, 8_000);
    assert_eq!(restored.plan.fresh, ["others"]);
    assert!(restored.subtasks.iter().all(|s| s.states.is_empty()));
    let next = checkpoint(&stores, &running, |_| vec![State::shard("x").inline("1")]).await;
    assert!(next.manifest.files.is_empty());
}

#[tokio::test]
async fn retention_keeps_the_newest_the_best_and_every_nth() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("training").unwrap());
    let running = fresh(&stores, &home, &job()).await;
    let retention = Retention::newest(2)
        .and_best("loss", 1, Better::Lower)
        .and_every_nth(5);
    let losses = [0.9, 0.3, 0.8, 0.7, 0.6, 0.5, 0.4, 0.35];
    for (n, loss) in (1u32..).zip(losses) {
        let mut attempt = running.checkpoint().await.unwrap();
        write_all(&stores, &mut attempt, |order| {
            // Of the files before only the last ones are used.
            let mut states = round(n)(order);
            if order.operator == "counts" && n > 2 {
                states = vec![State::keyed("counts", order.key_groups)];
                for file in order.reusable.iter().rev().take(1) {
                    states[0] = std::mem::replace(&mut states[0], State::shard(""))
                        .reuse(&file.name, &file.file);
                }
                let name = format!("shared-{n}-{}", order.subtask);
                states[0] = std::mem::replace(&mut states[0], State::shard(""))
                    .shared(&name, content(&name, 3_000));
            }
            states
        })
        .await;
        let details = Details {
            metrics: [("loss".to_string(), loss)].into(),
            ..Details::default()
        };
        done(attempt.commit(&details).await.unwrap());
        running
            .retain(&retention, &Silent, &Cancel::default())
            .await
            .unwrap();
    }
    let left = find_snapshots(&stores, &home).await.unwrap();
    let numbers: Vec<i64> = left.iter().map(|s| s.manifest.number).collect();
    assert_eq!(numbers, [2, 5, 7, 8]);
    for snapshot in &left {
        assert!(
            verify(&stores, &snapshot.directory, &Silent)
                .await
                .unwrap()
                .problems
                .is_empty()
        );
    }
    assert!(orphans(&stores, &root).await.is_empty());
    assert!(!home.local_path().unwrap().join("chk-3").exists());
}

#[tokio::test]
async fn an_attempt_whose_time_is_up_neither_writes_nor_commits() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let short = JobOptions {
        timeout: Duration::from_secs(4),
        ..JobOptions::default()
    };
    let (running, _) = Job::start(&stores, &home, &job(), &Start::newest(), short)
        .await
        .unwrap();
    let mut attempt = running.checkpoint().await.unwrap();
    write_all(&stores, &mut attempt, round(1)).await;
    let e = {
        let incomplete = running.checkpoint().await;
        let mut incomplete = incomplete.unwrap();
        incomplete.commit(&Details::default()).await.unwrap_err()
    };
    assert_eq!(e.kind(), ErrorKind::Incomplete);
    until("its time is up", || attempt.is_expired()).await;
    let order = attempt.order("source", 0).unwrap();
    let e = write_part(&stores, order, vec![]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Refused);
    let e = attempt.commit(&Details::default()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Refused);
    assert!(find_snapshots(&stores, &home).await.unwrap().is_empty());
}

#[tokio::test]
async fn acknowledgements_that_cannot_be_are_refused() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let running = fresh(&stores, &home, &job()).await;
    checkpoint(&stores, &running, round(1)).await;
    let mut attempt = running.checkpoint().await.unwrap();
    let order = attempt.order("counts", 0).unwrap().clone();
    let good = write_part(&stores, &order, round(2)(&order)).await.unwrap();
    let stranger = home.join("chk-1/_forkpoint.json").unwrap();
    let mut bad = good.clone();
    bad.files[0].file.location = stranger;
    let mut elsewhere = good.clone();
    elsewhere.files[0].origin = forkpoint::writer::Origin::Unconfirmed;
    elsewhere.files[0].file.location = root.join("x").unwrap();
    let mut other = good.clone();
    other.attempt = "0".repeat(32);
    let mut nobody = good.clone();
    nobody.subtask = 7;
    let mut no_file = good.clone();
    no_file.states[0].files[0].0 = 99;
    for (ack, kind) in [
        (bad, ErrorKind::Refused),
        (elsewhere, ErrorKind::Refused),
        (other, ErrorKind::Conflict),
        (nobody, ErrorKind::Invalid),
        (no_file, ErrorKind::Invalid),
    ] {
        assert_eq!(attempt.acknowledge(ack).unwrap_err().kind(), kind);
    }
    assert!(attempt.acknowledge(good.clone()).unwrap());
    assert!(!attempt.acknowledge(good).unwrap());
    // Neither may a subtask refer to what it was not given.
    let order = attempt.order("counts", 1).unwrap().clone();
    let mut file = order.reusable[0].file.clone();
    file.size += 1;
    let states = vec![State::keyed("counts", order.key_groups).reuse("x", &file)];
    let e = write_part(&stores, &order, states).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    let large = vec![State::shard("x").inline(Bytes::from(vec![0; 1024 * 1024 + 1]))];
    let e = write_part(&stores, &order, large).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
}

#[tokio::test]
async fn two_attempts_of_one_coordinator_do_not_make_it_give_up() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let running = fresh(&stores, &home, &job()).await;
    checkpoint(&stores, &running, round(1)).await;
    let mut slow = running.checkpoint().await.unwrap();
    let mut quick = running.checkpoint().await.unwrap();
    write_all(&stores, &mut slow, round(2)).await;
    write_all(&stores, &mut quick, round(2)).await;
    let won = done(quick.commit(&Details::default()).await.unwrap());
    let outcome = slow.commit(&Details::default()).await.unwrap();
    let lost = CommitOutcome::Lost {
        number: 2,
        winner: won.manifest.attempt,
    };
    assert_eq!(outcome, lost);
    assert_eq!(outcome.committed().unwrap_err().kind(), ErrorKind::Conflict);
    let third = checkpoint(&stores, &running, round(3)).await;
    assert_eq!((third.manifest.number, third.reused_bytes), (3, 12_000));
}

async fn numbers(stores: &Stores, home: &Location) -> Vec<i64> {
    let found = find_snapshots(stores, home).await.unwrap();
    found.iter().map(|s| s.manifest.number).collect()
}

#[tokio::test]
async fn retention_leaves_other_jobs_and_attempts_under_way_alone() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("jobs").unwrap());
    let below = home.join("sub").unwrap();
    let running = fresh(&stores, &home, &job()).await;
    let other = fresh(&stores, &below, &job()).await;
    for n in 1..=3 {
        checkpoint(&stores, &running, round(n)).await;
        checkpoint(&stores, &other, round(n)).await;
    }
    let mut attempt = running.checkpoint().await.unwrap();
    write_all(&stores, &mut attempt, round(4)).await;
    let retention = Retention::newest(1);
    let cancel = Cancel::default();
    let report = running.retain(&retention, &Silent, &cancel).await.unwrap();
    assert!(report.unwrap().deleted > 0);
    assert_eq!(numbers(&stores, &home).await, [3]);
    assert_eq!(numbers(&stores, &below).await, [1, 2, 3]);
    done(attempt.commit(&Details::default()).await.unwrap());
    for (of, number) in [(&home, 4), (&below, 1)] {
        let directory = of.join(&format!("chk-{number}")).unwrap();
        let report = verify(&stores, &directory, &Silent).await.unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

#[tokio::test]
async fn what_a_job_was_started_from_stays_until_its_first_checkpoint() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let running = fresh(&stores, &home, &job()).await;
    for n in 1..=3 {
        checkpoint(&stores, &running, round(n)).await;
    }
    drop(running);
    let back = Source::Snapshot(home.join("chk-1").unwrap());
    let back = Start::from(back, RestoreMode::Claim);
    let (running, restored) = start(&stores, &home, &job(), &back).await;
    // Neither the job's own retention takes it, nor that of another coordinator.
    let (other, _) = start(&stores, &home, &job(), &Start::newest()).await;
    let retention = Retention::newest(1);
    for coordinator in [&running, &other] {
        coordinator
            .retain(&retention, &Silent, &Cancel::default())
            .await
            .unwrap();
        assert_eq!(numbers(&stores, &home).await, [1, 3]);
    }
    assert_eq!(offset(&fetch_all(&stores, &restored.unwrap()).await), "1");
    let next = checkpoint(&stores, &running, round(4)).await;
    assert_eq!(next.manifest.number, 4);
    let cancel = Cancel::default();
    running.retain(&retention, &Silent, &cancel).await.unwrap();
    assert_eq!(numbers(&stores, &home).await, [4]);
}

#[tokio::test]
async fn elements_of_one_state_are_never_given_to_two_subtasks() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let one = JobDescription::new("orders").operator("source", 1);
    let running = fresh(&stores, &home, &one).await;
    let attempt = running.checkpoint().await.unwrap();
    let order = attempt.order("source", 0).unwrap();
    let several = State::new("splits", Partition::Split { elements: 4 }).inline("abcd");
    let e = write_part(&stores, order, vec![several]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    drop(attempt);
    let written = checkpoint(&stores, &running, |_| {
        vec![State::shard("splits").inline("abcd")]
    })
    .await;
    // As another program might write it.
    let mut manifest = written.manifest;
    manifest.operators[0].subtasks[0].states[0].partition = Partition::Split { elements: 4 };
    let at = written.directory.join("_forkpoint.json").unwrap();
    std::fs::write(at.local_path().unwrap(), manifest.encode().unwrap()).unwrap();
    let two = JobDescription::new("orders").operator("source", 2);
    let e = Job::start(
        &stores,
        &home,
        &two,
        &Start::newest(),
        JobOptions::default(),
    )
    .await
    .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Refused, "{e}");
    assert!(e.to_string().contains("splits"), "{e}");
    let (_, restored) = start(&stores, &home, &one, &Start::newest()).await;
    assert_eq!(restored.unwrap().subtasks[0].states.len(), 1);
}

#[tokio::test]
async fn a_manifest_that_an_attempt_had_written_before_it_was_given_up_counts() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let running = fresh(&stores, &home, &job()).await;
    let mut attempt = running.checkpoint().await.unwrap();
    write_all(&stores, &mut attempt, round(1)).await;
    // The manifest can be written, the note of it cannot.
    let in_the_way = home.local_path().unwrap().join(".forkpoint/commits");
    std::fs::create_dir_all(in_the_way.parent().unwrap()).unwrap();
    std::fs::write(&in_the_way, "").unwrap();
    attempt.commit(&Details::default()).await.unwrap_err();
    std::fs::remove_file(&in_the_way).unwrap();
    let first = attempt.attempt().to_string();
    drop(attempt);
    let mut again = running.checkpoint().await.unwrap();
    write_all(&stores, &mut again, round(1)).await;
    let outcome = again.commit(&Details::default()).await.unwrap();
    let lost = CommitOutcome::Lost {
        number: 1,
        winner: first,
    };
    assert_eq!(outcome, lost);
    let second = checkpoint(&stores, &running, round(2)).await;
    assert_eq!((second.manifest.number, second.reused_bytes), (2, 6_000));
}

#[tokio::test]
async fn a_number_after_which_none_comes_is_an_error() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let last = home.local_path().unwrap().join(format!("chk-{}", i64::MAX));
    std::fs::create_dir_all(&last).unwrap();
    std::fs::write(last.join("_forkpoint.json"), "{}").unwrap();
    let nothing = Start {
        own_first: false,
        from: None,
    };
    let (running, _) = start(&stores, &home, &job(), &nothing).await;
    let e = running.checkpoint().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
}

#[tokio::test]
async fn a_damaged_savepoint_of_old_stops_no_start() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let running = fresh(&stores, &home, &job()).await;
    checkpoint(&stores, &running, round(1)).await;
    let mut savepoint = running.savepoint().await.unwrap();
    write_all(&stores, &mut savepoint, |_| {
        vec![State::shard("offset").inline("1")]
    })
    .await;
    let savepoint = done(savepoint.commit(&Details::default()).await.unwrap());
    let (_, restored) = start(&stores, &home, &job(), &Start::newest()).await;
    assert_eq!(restored.unwrap().snapshot, savepoint.directory);
    for n in 2..=3 {
        checkpoint(&stores, &running, round(n)).await;
    }
    let manifest = savepoint.directory.join("_forkpoint.json").unwrap();
    std::fs::write(manifest.local_path().unwrap(), "{").unwrap();
    let (_, restored) = start(&stores, &home, &job(), &Start::newest()).await;
    assert_eq!(restored.unwrap().manifest.number, 3);
}

#[tokio::test]
async fn the_number_of_a_checkpoint_that_was_removed_is_not_used_again() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let running = fresh(&stores, &home, &job()).await;
    for n in 1..=2 {
        checkpoint(&stores, &running, round(n)).await;
    }
    delete_all(&stores, &home.join("chk-2").unwrap()).await;
    let (running, restored) = start(&stores, &home, &job(), &Start::newest()).await;
    assert_eq!(restored.unwrap().manifest.number, 1);
    let next = checkpoint(&stores, &running, round(3)).await;
    assert_eq!(next.manifest.number, 3);
}

#[tokio::test]
async fn of_two_coordinators_with_different_sources_one_wins() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let source = root.join("source").unwrap();
    let running = fresh(&stores, &source, &job()).await;
    for n in 1..=3 {
        checkpoint(&stores, &running, round(n)).await;
    }
    let from_number = |n: u32| {
        let snapshot = source.join(&format!("chk-{n}")).unwrap();
        from(&snapshot, RestoreMode::NoClaim)
    };
    let (slow, _) = start(&stores, &home, &job(), &from_number(3)).await;
    let (quick, _) = start(&stores, &home, &job(), &from_number(1)).await;
    let won = checkpoint(&stores, &quick, round(4)).await;
    let mut attempt = slow.checkpoint().await.unwrap();
    write_all(&stores, &mut attempt, round(4)).await;
    let outcome = attempt.commit(&Details::default()).await.unwrap();
    let lost = CommitOutcome::Lost {
        number: 4,
        winner: won.manifest.attempt,
    };
    assert_eq!(outcome, lost);
    assert_eq!(numbers(&stores, &home).await, [2]);
    assert_eq!(
        slow.checkpoint().await.unwrap_err().kind(),
        ErrorKind::Conflict
    );
    assert_eq!(
        checkpoint(&stores, &quick, round(5)).await.manifest.number,
        3
    );
}

#[tokio::test]
async fn jobs_whose_folders_end_alike_each_say_that_they_need_a_snapshot() {
    let (_dir, root) = temp();
    let (stores, source) = (local_stores(), root.join("source").unwrap());
    let running = fresh(&stores, &source, &job()).await;
    let snapshot = checkpoint(&stores, &running, round(1)).await.directory;
    let no_claim = from(&snapshot, RestoreMode::NoClaim);
    let (here, there) = (
        root.join("prod/orders").unwrap(),
        root.join("staging/orders").unwrap(),
    );
    let (here, _) = start(&stores, &here, &job(), &no_claim).await;
    let (there, _) = start(&stores, &there, &job(), &no_claim).await;
    let records = source.join(".forkpoint/restores").unwrap();
    assert_eq!(stores.list(&records).await.unwrap().len(), 2);
    checkpoint(&stores, &here, round(2)).await;
    assert_eq!(stores.list(&records).await.unwrap().len(), 1);
    checkpoint(&stores, &there, round(2)).await;
    assert!(
        stores
            .list(&records)
            .await
            .is_ok_and(|left| left.is_empty())
            || !records.local_path().unwrap().exists()
    );
}

#[tokio::test]
async fn lists_of_uploads_that_cannot_be_written_or_read_stop_nobody() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let own = home.local_path().unwrap().join(".forkpoint");
    std::fs::create_dir_all(&own).unwrap();
    std::fs::write(own.join("uploads"), "in the way").unwrap();
    let running = fresh(&stores, &home, &job()).await;
    let mut attempt = running.checkpoint().await.unwrap();
    write_all(&stores, &mut attempt, round(1)).await;
    attempt.abort().await;
    let snapshot = checkpoint(&stores, &running, round(1)).await;
    assert_eq!(snapshot.uploaded_bytes, 7_000);
}

#[tokio::test]
async fn files_are_fetched_into_a_relative_folder_too() {
    let (_dir, root) = temp();
    let (stores, home) = (local_stores(), root.join("orders").unwrap());
    let running = fresh(&stores, &home, &job()).await;
    checkpoint(&stores, &running, round(1)).await;
    let (_, restored) = start(&stores, &home, &job(), &Start::newest()).await;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let here = std::env::current_dir().unwrap();
    let folder = dir.path().strip_prefix(&here).unwrap_or(dir.path());
    let restored = restored.unwrap();
    let share = restored.subtask("counts", 0).unwrap();
    let fetched = share.fetch(&stores, folder, &Cancel::default()).await;
    let fetched = fetched.unwrap();
    assert_eq!(fetched.len(), 2);
    assert!(fetched.iter().all(|f| f.path.is_file()));
}
