//! Forks of real checkpoints on the local disk and in memory.

use crate::support::{at, fixture, fixtures, local_stores, manifest, shape, temp};
use forkpoint::ErrorKind;
use forkpoint::fork::{ForkRequest, MovedFrom, fork, plan};
use forkpoint::progress::{Cancel, Silent};
use forkpoint::snapshot::CommitObject;
use forkpoint::store::{Location, Stores};
use forkpoint::verify::verify;

async fn fork_to(stores: &Stores, from: &Location, to: &Location) -> forkpoint::fork::ForkReport {
    let request = ForkRequest::new(from.clone(), to.clone());
    fork(stores, &request, &Silent, &Cancel::default())
        .await
        .unwrap()
}

#[tokio::test]
async fn every_fixture_forks_and_survives_its_original() {
    for fixture in fixtures() {
        for path in fixture.snapshots() {
            let (dir, root) = temp();
            let stores = local_stores();
            let (original, target) = (root.join("original").unwrap(), root.join("fork").unwrap());
            fixture.lay(&stores, &original).await;
            let snapshot = original.join(&path).unwrap();
            let before = shape(&stores, &snapshot).await;
            let report = fork_to(&stores, &snapshot, &target).await;
            assert!(report.independent);
            assert_eq!(
                report.objects,
                before.len() as u64,
                "{} {path}",
                fixture.name
            );
            assert_eq!((report.copied, report.reused), (report.objects, 0));
            std::fs::remove_dir_all(dir.path().join("original")).unwrap();
            let check = verify(&stores, &report.snapshot, &Silent).await.unwrap();
            assert_eq!(check.problems, [], "{} {path}", fixture.name);
            assert_eq!(
                shape(&stores, &report.snapshot).await,
                before,
                "{} {path}",
                fixture.name
            );
        }
    }
}

#[tokio::test]
async fn a_fork_of_a_fork_is_a_fork() {
    let (dir, root) = temp();
    let stores = local_stores();
    let fixture = fixture("1.20.5-filemerge-p2");
    fixture.lay(&stores, &root.join("a").unwrap()).await;
    let snapshot = root.join("a").unwrap().join(&fixture.newest()).unwrap();
    let before = shape(&stores, &snapshot).await;
    let first = fork_to(&stores, &snapshot, &root.join("b").unwrap()).await;
    std::fs::remove_dir_all(dir.path().join("a")).unwrap();
    let second = fork_to(&stores, &first.snapshot, &root.join("c").unwrap()).await;
    std::fs::remove_dir_all(dir.path().join("b")).unwrap();
    assert_eq!(shape(&stores, &second.snapshot).await, before);
}

#[tokio::test]
async fn the_original_is_never_touched() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let fixture = fixture("1.20.5-chain-claim");
    let original = root.join("original").unwrap();
    fixture.lay(&stores, &original).await;
    let before = manifest(&stores, &original).await;
    fork_to(
        &stores,
        &original.join(&fixture.newest()).unwrap(),
        &root.join("fork").unwrap(),
    )
    .await;
    assert_eq!(manifest(&stores, &original).await, before);
}

#[tokio::test]
async fn a_finished_fork_holds_nothing_but_the_snapshot() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let fixture = fixture("1.20.5-changelog-rocks-p2");
    fixture.lay(&stores, &root.join("original").unwrap()).await;
    let target = root.join("fork").unwrap();
    let snapshot = root
        .join("original")
        .unwrap()
        .join(&fixture.newest())
        .unwrap();
    let report = fork_to(&stores, &snapshot, &target).await;
    let written = CommitObject::read(&stores, &report.snapshot)
        .await
        .unwrap()
        .snapshot()
        .unwrap();
    let mut expected: Vec<String> = written
        .objects
        .iter()
        .map(|o| o.location.to_string())
        .collect();
    expected.push(report.snapshot.join("_metadata").unwrap().to_string());
    expected.sort();
    let there: Vec<String> = manifest(&stores, &target).await.into_keys().collect();
    assert_eq!(there, expected);
    assert!(std::fs::metadata(target.join(".forkpoint").unwrap().local_path().unwrap()).is_err());
}

#[tokio::test]
async fn the_same_input_gives_the_same_plan() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let fixture = fixture("1.20.5-rescale-2to3-claim");
    fixture.lay(&stores, &root.join("original").unwrap()).await;
    let snapshot = root
        .join("original")
        .unwrap()
        .join(&fixture.newest())
        .unwrap();
    let request = ForkRequest::new(snapshot, root.join("fork").unwrap());
    let one = plan(&stores, &request, &Silent).await.unwrap().plan;
    let two = plan(&local_stores(), &request, &Silent).await.unwrap().plan;
    assert_eq!(
        serde_json::to_string(&one).unwrap(),
        serde_json::to_string(&two).unwrap()
    );
}

#[tokio::test]
async fn two_snapshots_of_one_job_fork_to_one_destination() {
    let (dir, root) = temp();
    let stores = local_stores();
    let fixture = fixture("1.20.5-rocks-inc-p2");
    let (original, target) = (root.join("original").unwrap(), root.join("fork").unwrap());
    fixture.lay(&stores, &original).await;
    let mut forks = Vec::new();
    for path in fixture.snapshots() {
        forks.push(fork_to(&stores, &original.join(&path).unwrap(), &target).await);
    }
    assert!(forks.len() > 1);
    std::fs::remove_dir_all(dir.path().join("original")).unwrap();
    for report in forks {
        assert_eq!(
            verify(&stores, &report.snapshot, &Silent)
                .await
                .unwrap()
                .problems,
            []
        );
    }
}

#[tokio::test]
async fn a_snapshot_that_was_copied_by_hand_forks_with_its_old_place_named() {
    for name in [
        "1.20.5-rocks-inc-p2",
        "1.20.5-filemerge-p2",
        "1.20.5-s3-rocks-inc-p2",
    ] {
        let fixture = fixture(name);
        let (dir, root) = temp();
        let stores = local_stores();
        // As it was made: its metadata names a place that is not here.
        let copy = dir.path().join("copied/by/hand");
        let files = fixture.files_root();
        for file in crate::support::walk(&files) {
            let to = copy.join(file.strip_prefix(&files).unwrap());
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(&file, to).unwrap();
        }
        let snapshot = root
            .join("copied/by/hand")
            .unwrap()
            .join(&fixture.newest())
            .unwrap();
        let mut request = ForkRequest::new(snapshot, root.join("fork").unwrap());
        request.moved_from = vec![MovedFrom::parse(fixture.root_uri()).unwrap()];
        let report = fork(&stores, &request, &Silent, &Cancel::default())
            .await
            .unwrap();
        std::fs::remove_dir_all(dir.path().join("copied")).unwrap();
        assert_eq!(
            verify(&stores, &report.snapshot, &Silent)
                .await
                .unwrap()
                .problems,
            [],
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_moved_prefix_that_fits_nothing_says_so() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let fixture = fixture("1.20.5-rocks-inc-p2");
    fixture.lay(&stores, &root.join("original").unwrap()).await;
    let snapshot = root
        .join("original")
        .unwrap()
        .join(&fixture.newest())
        .unwrap();
    let mut request = ForkRequest::new(snapshot, root.join("fork").unwrap());
    request.moved_from = vec![MovedFrom::parse("hdfs://elsewhere/x").unwrap()];
    let e = plan(&stores, &request, &Silent).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    assert!(
        e.to_string()
            .contains("no reference of the snapshot lies below hdfs://elsewhere/x"),
        "{e}"
    );
}

/// What Flink wrote after claiming a native savepoint: its relative references lead nowhere, and
/// Flink cannot restore it. With the savepoint named, the fork is whole again.
#[tokio::test]
async fn lost_relative_references_are_named_and_can_be_found_in_the_savepoint() {
    let fixture = fixture("1.20.5-from-savepoint-native-claim");
    let broken = fixture.broken();
    assert!(!broken.is_empty());
    let (dir, root) = temp();
    let stores = local_stores();
    let original = root.join("original").unwrap();
    fixture.lay(&stores, &original).await;
    let snapshot = original.join(broken.last().unwrap()).unwrap();
    let mut request = ForkRequest::new(snapshot.clone(), root.join("fork").unwrap());
    let e = fork(&stores, &request, &Silent, &Cancel::default())
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt);
    assert!(
        e.to_string().contains("FLINK-39964") && e.to_string().contains("relative reference"),
        "{e}"
    );
    assert!(
        std::fs::metadata(dir.path().join("fork")).is_err(),
        "nothing may be written"
    );

    let savepoint = fixture
        .snapshots()
        .into_iter()
        .find(|p| fixture.about(p)["kind"] == "savepoint-native")
        .unwrap();
    request.look_in = vec![original.join(&savepoint).unwrap()];
    let report = fork(&stores, &request, &Silent, &Cancel::default())
        .await
        .unwrap();
    std::fs::remove_dir_all(dir.path().join("original")).unwrap();
    assert_eq!(
        verify(&stores, &report.snapshot, &Silent)
            .await
            .unwrap()
            .problems,
        []
    );
}

#[tokio::test]
async fn forks_run_in_memory_too() {
    let stores = local_stores();
    let fixture = fixture("2.2.1-filemerge-p2");
    fixture.lay(&stores, &at("memory:/original")).await;
    let snapshot = at("memory:/original").join(&fixture.newest()).unwrap();
    let before = shape(&stores, &snapshot).await;
    let report = fork_to(&stores, &snapshot, &at("memory:/fork")).await;
    crate::support::delete_all(&stores, &at("memory:/original")).await;
    assert_eq!(shape(&stores, &report.snapshot).await, before);
    assert_eq!(
        report.snapshot.to_string(),
        format!("memory:/fork/{}", snapshot.name())
    );
}

#[tokio::test]
async fn kinds_are_those_that_the_jobs_took() {
    let stores = local_stores();
    for fixture in fixtures() {
        let (_dir, root) = temp();
        fixture.lay(&stores, &root).await;
        for path in fixture.snapshots() {
            let snapshot = CommitObject::read(&stores, &root.join(&path).unwrap())
                .await
                .unwrap();
            let kind = snapshot.snapshot().unwrap().kind;
            assert_eq!(
                fixture.about(&path)["kind"],
                kind.as_str(),
                "{} {path}",
                fixture.name
            );
        }
    }
}
