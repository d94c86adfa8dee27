//! What a fork refuses, and that nothing is half-committed when it does.

use crate::support::{Service, at, emulator_stores, fixture, local_stores, manifest, temp};
use bytes::Bytes;
use forkpoint::ErrorKind;
use forkpoint::fork::{ForkRequest, MovedFrom, fork, plan};
use forkpoint::progress::{Cancel, Silent};
use forkpoint::store::{Location, Options, Stores};

async fn refused(stores: &Stores, from: &Location, to: &Location) -> forkpoint::Error {
    let request = ForkRequest::new(from.clone(), to.clone());
    match fork(stores, &request, &Silent, &Cancel::default()).await {
        Ok(report) => panic!("forked: {report:?}"),
        Err(e) => e,
    }
}

async fn laid(stores: &Stores, root: &Location) -> Location {
    let fixture = fixture("1.20.5-rocks-inc-p2");
    fixture.lay(stores, &root.join("original").unwrap()).await;
    root.join("original")
        .unwrap()
        .join(&fixture.newest())
        .unwrap()
}

async fn a_stranger_is_refused(stores: &Stores, root: &Location) {
    let snapshot = laid(stores, root).await;
    let target = root.join("fork").unwrap();
    let request = ForkRequest::new(snapshot.clone(), target.clone());
    let planned = plan(stores, &request, &Silent).await.unwrap().plan;
    let task = planned.tasks.iter().find(|t| t.size > 0).unwrap();
    let size = usize::try_from(task.size).unwrap();
    // Of another size, of the same size with other bytes, and with the very bytes: an earlier fork's,
    // which may belong to a running job by now.
    let equal = stores.read(&task.source, u64::MAX).await.unwrap();
    for stranger in [
        Bytes::from_static(b"x"),
        Bytes::from(vec![b'x'; size]),
        equal,
    ] {
        stores
            .put(&task.destination, stranger.clone(), false)
            .await
            .unwrap();
        let e = refused(stores, &snapshot, &target).await;
        assert_eq!(e.kind(), ErrorKind::Refused, "{e}");
        assert!(e.to_string().contains(&task.destination.to_string()), "{e}");
        assert_eq!(
            stores.read(&task.destination, u64::MAX).await.unwrap(),
            stranger
        );
        let commit = planned.snapshot.join("_metadata").unwrap();
        assert_eq!(stores.find(&commit).await.unwrap(), None, "half-committed");
    }
}

#[tokio::test]
async fn a_stranger_at_a_destination_is_refused() {
    let (_dir, root) = temp();
    a_stranger_is_refused(&local_stores(), &root).await;
    for service in Service::ALL {
        if service.is_there("a stranger at a destination") {
            a_stranger_is_refused(&emulator_stores(), &service.place(0, "stranger")).await;
        }
    }
}

#[tokio::test]
async fn another_snapshot_at_the_destination_is_refused() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = laid(&stores, &root).await;
    let commit = root
        .join("fork")
        .unwrap()
        .join(snapshot.name())
        .unwrap()
        .join("_metadata")
        .unwrap();
    stores
        .put(&commit, Bytes::from_static(b"somebody else's"), true)
        .await
        .unwrap();
    let e = refused(&stores, &snapshot, &root.join("fork").unwrap()).await;
    assert_eq!(e.kind(), ErrorKind::Refused);
    assert_eq!(
        manifest(&stores, &root.join("fork").unwrap()).await.len(),
        1,
        "objects were copied"
    );
    assert_eq!(stores.read(&commit, 100).await.unwrap(), "somebody else's");
}

#[tokio::test]
async fn a_destination_that_overlaps_the_source_is_refused() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = laid(&stores, &root).await;
    let job = snapshot.parent().unwrap();
    let before = manifest(&stores, &root).await;
    for target in [
        job.clone(),
        snapshot.clone(),
        snapshot.join("inside").unwrap(),
        job.join("shared").unwrap(),
        job.join("shared/inside").unwrap(),
        job.join("inside").unwrap(),
    ] {
        let e = refused(&stores, &snapshot, &target).await;
        assert_eq!(e.kind(), ErrorKind::Refused, "{target}: {e}");
    }
    assert_eq!(manifest(&stores, &root).await, before);
}

#[tokio::test]
async fn a_missing_object_is_named_and_nothing_is_written() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = laid(&stores, &root).await;
    let request = ForkRequest::new(snapshot.clone(), root.join("fork").unwrap());
    let victim = plan(&stores, &request, &Silent).await.unwrap().plan.tasks[3]
        .source
        .clone();
    stores.delete(&victim).await.unwrap();
    let e = refused(&stores, &snapshot, &root.join("fork").unwrap()).await;
    assert_eq!(e.kind(), ErrorKind::Corrupt);
    assert!(
        e.to_string().contains(&victim.to_string()) && e.to_string().contains("missing"),
        "{e}"
    );
    assert!(
        stores
            .list(&root.join("fork").unwrap())
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_shorter_object_is_named_and_nothing_is_written() {
    // A whole file, and a file of merged segments.
    for name in ["1.20.5-rocks-inc-p2", "1.20.5-filemerge-p2"] {
        let (_dir, root) = temp();
        let stores = local_stores();
        let fixture = fixture(name);
        fixture.lay(&stores, &root.join("original").unwrap()).await;
        let snapshot = root
            .join("original")
            .unwrap()
            .join(&fixture.newest())
            .unwrap();
        let request = ForkRequest::new(snapshot.clone(), root.join("fork").unwrap());
        let plan = plan(&stores, &request, &Silent).await.unwrap().plan;
        let task = plan.tasks.iter().max_by_key(|t| t.size).unwrap();
        let bytes = stores.read(&task.source, u64::MAX).await.unwrap();
        // A job appends to a merged file while its segments are already referred to, so only what
        // lies behind the last segment may be missing: cut deeply.
        stores
            .put(&task.source, bytes.slice(..bytes.len() / 8), false)
            .await
            .unwrap();
        let e = refused(&stores, &snapshot, &root.join("fork").unwrap()).await;
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{name}");
        assert!(
            e.to_string().contains(&task.source.to_string()) && e.to_string().contains("too short"),
            "{e}"
        );
        assert!(
            stores
                .list(&root.join("fork").unwrap())
                .await
                .unwrap()
                .is_empty()
        );
    }
}

#[tokio::test]
async fn a_source_that_changes_under_the_fork_is_noticed() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = laid(&stores, &root).await;
    let request = ForkRequest::new(snapshot.clone(), root.join("fork").unwrap());
    let planned = plan(&stores, &request, &Silent).await.unwrap();
    let task = planned.plan.tasks.iter().find(|t| t.size > 0).unwrap();
    let other = vec![b'x'; usize::try_from(task.size).unwrap()];
    stores
        .put(&task.source, Bytes::from(other), false)
        .await
        .unwrap();
    let e = forkpoint::fork::run(
        &stores,
        &planned,
        &request.execute,
        &Silent,
        &Cancel::default(),
    )
    .await
    .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
    assert_eq!(
        stores
            .find(&planned.plan.snapshot.join("_metadata").unwrap())
            .await
            .unwrap(),
        None
    );
}

#[tokio::test]
async fn a_bucket_that_does_not_exist_is_named() {
    for service in Service::ALL {
        if !service.is_there("a bucket that does not exist") {
            continue;
        }
        let stores = emulator_stores();
        let root = service.place(0, "no-bucket");
        let snapshot = laid(&stores, &root).await;
        let scheme = root.to_string();
        let scheme = scheme.split(':').next().unwrap();
        let nowhere = at(&format!("{scheme}://no-such-bucket-here/fork"));
        let e = refused(&stores, &snapshot, &nowhere).await;
        assert_eq!(e.kind(), ErrorKind::NotFound, "{service:?}: {e:?}");
        assert!(
            e.to_string().contains("bucket does not exist"),
            "{service:?}: {e}"
        );
        assert!(
            e.to_string().contains("no-such-bucket-here"),
            "{service:?}: {e}"
        );
        let e = refused(&stores, &nowhere, &root.join("fork").unwrap()).await;
        assert_eq!(e.kind(), ErrorKind::NotFound, "{service:?}: {e:?}");
        assert!(
            e.to_string().contains("bucket does not exist"),
            "{service:?}: {e}"
        );
    }
}

#[tokio::test]
async fn a_right_that_is_missing_is_named_with_the_object() {
    if !Service::S3.is_there("a missing right") {
        return;
    }
    // A server of the caller's may have no such identity; the emulator that we start has.
    let Ok(key) = std::env::var("FORKPOINT_TEST_S3_READONLY_ACCESS_KEY") else {
        return;
    };
    let secret = std::env::var("FORKPOINT_TEST_S3_READONLY_SECRET_KEY").unwrap();
    let root = Service::S3.place(0, "denied");
    let snapshot = laid(&emulator_stores(), &root).await;
    let options = Options::default()
        .with(
            "AWS_ENDPOINT_URL",
            std::env::var("FORKPOINT_TEST_S3_ENDPOINT").unwrap(),
        )
        .with("AWS_REGION", "us-east-1");
    let reader = Stores::new(
        options
            .clone()
            .with("AWS_ACCESS_KEY_ID", &key)
            .with("AWS_SECRET_ACCESS_KEY", &secret),
    );
    let e = refused(&reader, &snapshot, &root.join("fork").unwrap()).await;
    assert_eq!(e.kind(), ErrorKind::Denied, "{e}");
    assert!(e.to_string().contains(&root.to_string()), "{e}");
    // Where only the source cannot be written to, the fork is made, and says that it was not pinned.
    let (_dir, here) = temp();
    let request = ForkRequest::new(snapshot.clone(), here.join("fork").unwrap());
    let report = fork(&reader, &request, &Silent, &Cancel::default())
        .await
        .unwrap();
    assert!(report.independent && report.unpinned.is_some());
    assert!(!dir_holds(&here, ".forkpoint"));
    // And with a secret that is wrong not even the metadata can be read.
    let wrong = "a-wrong-secret-that-must-not-be-shown";
    let stranger = Stores::new(
        options
            .with("AWS_ACCESS_KEY_ID", &key)
            .with("AWS_SECRET_ACCESS_KEY", wrong),
    );
    let e = refused(&stranger, &snapshot, &root.join("fork").unwrap()).await;
    assert_eq!(e.kind(), ErrorKind::Denied, "{e}");
    assert!(e.to_string().contains("_metadata"), "{e}");
    let shown = format!("{e:?} {stranger:?} {:?}", stranger.open(&root).unwrap());
    assert!(
        !shown.contains(wrong) && !shown.contains(&secret),
        "{shown}"
    );
}

/// A finished fork whose commit object is gone: a job that claimed it has let the checkpoint go and
/// goes on using its files.
#[tokio::test]
async fn files_of_a_finished_fork_are_not_taken_over() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = laid(&stores, &root).await;
    let target = root.join("fork").unwrap();
    let request = ForkRequest::new(snapshot.clone(), target.clone());
    let report = fork(&stores, &request, &Silent, &Cancel::default())
        .await
        .unwrap();
    stores
        .delete(&report.snapshot.join("_metadata").unwrap())
        .await
        .unwrap();
    let before = manifest(&stores, &target).await;
    let e = refused(&stores, &snapshot, &target).await;
    assert_eq!(e.kind(), ErrorKind::Refused, "{e}");
    assert_eq!(manifest(&stores, &target).await, before);
}

/// Two snapshots of one name to one place: the second is refused before it writes anything, and so is
/// the same source once it has changed.
#[tokio::test]
async fn another_fork_under_way_to_the_same_place_is_refused() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = laid(&stores, &root).await;
    let target = root.join("fork").unwrap();
    let request = ForkRequest::new(snapshot.clone(), target.clone());
    let plan = plan(&stores, &request, &Silent).await.unwrap().plan;
    // As a fork leaves it that was killed after its first object.
    let note = target
        .join(&format!(".forkpoint/{}.json", snapshot.name()))
        .unwrap();
    let text = format!(
        r#"{{"version":1,"fork_id":"somebody-else","source":"{}"}}"#,
        plan.source
    );
    stores.put(&note, Bytes::from(text), true).await.unwrap();
    let e = refused(&stores, &snapshot, &target).await;
    assert_eq!(e.kind(), ErrorKind::Refused);
    assert!(e.to_string().contains("another fork to this place"), "{e}");
    assert_eq!(manifest(&stores, &target).await.len(), 1);
}

/// Metadata that names the commit object itself as a file of state must not get it published before
/// everything else.
#[tokio::test]
async fn a_commit_object_that_is_named_as_state_is_refused() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = root.join("job/chk-7").unwrap();
    let itself = snapshot.join("_metadata").unwrap();
    let size = crate::support::synthetic::metadata(&[(itself.to_string(), 0)]).len() as u64;
    let file = crate::support::synthetic::metadata(&[(itself.to_string(), size)]);
    stores.put(&itself, Bytes::from(file), true).await.unwrap();
    let e = refused(&stores, &snapshot, &root.join("fork").unwrap()).await;
    assert_eq!(e.kind(), ErrorKind::Refused, "{e}");
    assert!(
        stores
            .list(&root.join("fork").unwrap())
            .await
            .unwrap()
            .is_empty()
    );
}

#[cfg(unix)]
#[tokio::test]
async fn links_do_not_hide_an_overlap() {
    let (dir, root) = temp();
    let stores = local_stores();
    let snapshot = laid(&stores, &root).await;
    let job = snapshot.parent().unwrap().local_path().unwrap();
    let link = |to: &std::path::Path, name: &str| {
        let at = dir.path().join(name);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(to, &at).unwrap();
    };
    link(&job, "link");
    link(&job.join("shared"), "looks-free/shared");
    for (from, to) in [
        (
            root.join("link").unwrap().join(snapshot.name()).unwrap(),
            snapshot.parent().unwrap().join("sub").unwrap(),
        ),
        (snapshot.clone(), root.join("link/sub").unwrap()),
        (snapshot.clone(), root.join("looks-free").unwrap()),
    ] {
        let before = manifest(&stores, &root.join("original").unwrap()).await;
        let e = refused(&stores, &from, &to).await;
        assert_eq!(e.kind(), ErrorKind::Refused, "{to}: {e}");
        assert_eq!(
            manifest(&stores, &root.join("original").unwrap()).await,
            before
        );
    }
}

/// What others wrote into a bucket must not make this machine's files go there.
#[tokio::test]
async fn files_of_another_service_are_read_only_when_asked_for() {
    let (dir, root) = temp();
    let stores = local_stores();
    std::fs::write(dir.path().join("secret"), b"abc").unwrap();
    let secret = root.join("secret").unwrap().to_string();
    let snapshot = at("memory:/evil/chk-7");
    let file = crate::support::synthetic::metadata(&[(secret, 3)]);
    stores
        .put(
            &snapshot.join("_metadata").unwrap(),
            Bytes::from(file),
            true,
        )
        .await
        .unwrap();
    let e = refused(&stores, &snapshot, &at("memory:/fork")).await;
    assert_eq!(e.kind(), ErrorKind::Refused, "{e}");
    assert!(e.to_string().contains("another service"), "{e}");
    let mut request = ForkRequest::new(snapshot, at("memory:/fork"));
    request.other_services = true;
    assert!(
        fork(&stores, &request, &Silent, &Cancel::default())
            .await
            .is_ok()
    );
}

/// What lies in the journal's folder and is not ours stays; and the folder must not be a link.
#[cfg(unix)]
#[tokio::test]
async fn cleaning_up_touches_nothing_that_is_not_ours() {
    let (dir, root) = temp();
    let stores = local_stores();
    let snapshot = laid(&stores, &root).await;
    let target = root.join("fork").unwrap();
    let request = ForkRequest::new(snapshot.clone(), target.clone());
    let id = plan(&stores, &request, &Silent).await.unwrap().plan.fork_id;
    let journal = dir.path().join("fork/.forkpoint");
    std::fs::create_dir_all(&journal).unwrap();
    let job = snapshot.parent().unwrap().local_path().unwrap();
    std::os::unix::fs::symlink(&job, journal.join(&id)).unwrap();
    let before = manifest(&stores, &root.join("original").unwrap()).await;
    let e = refused(&stores, &snapshot, &target).await;
    assert_eq!(e.kind(), ErrorKind::Refused, "{e}");
    assert_eq!(
        manifest(&stores, &root.join("original").unwrap()).await,
        before
    );

    std::fs::remove_dir_all(dir.path().join("fork")).unwrap();
    std::fs::create_dir_all(journal.join(&id)).unwrap();
    std::fs::write(journal.join(&id).join("mine.txt"), b"mine").unwrap();
    fork(&stores, &request, &Silent, &Cancel::default())
        .await
        .unwrap();
    assert_eq!(
        std::fs::read(journal.join(&id).join("mine.txt")).unwrap(),
        b"mine"
    );
}

/// Without its note a fork is not begun.
#[tokio::test]
async fn a_note_that_cannot_be_written_stops_a_fork_before_the_first_object() {
    let (dir, root) = temp();
    let stores = local_stores();
    let snapshot = laid(&stores, &root).await;
    for in_the_way in ["file", "folder"] {
        let target = root.join(in_the_way).unwrap();
        let folder = dir.path().join(in_the_way);
        std::fs::create_dir_all(&folder).unwrap();
        match in_the_way {
            "file" => std::fs::write(folder.join(".forkpoint"), b"x").unwrap(),
            _ => {
                std::fs::create_dir_all(folder.join(format!(".forkpoint/{}.json", snapshot.name())))
                    .unwrap()
            }
        }
        let e = refused(&stores, &snapshot, &target).await;
        assert!(
            matches!(e.kind(), ErrorKind::Refused | ErrorKind::AlreadyExists),
            "{e}"
        );
        assert!(!folder.join("shared").exists() && !folder.join(snapshot.name()).exists());
    }
}

fn dir_holds(root: &Location, name: &str) -> bool {
    let folder = root.join("fork").unwrap().join(name).unwrap();
    folder.local_path().unwrap().exists()
}

#[tokio::test]
async fn an_old_place_that_would_be_ignored_is_refused() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = laid(&stores, &root).await;
    let mut request = ForkRequest::new(snapshot, root.join("fork").unwrap());
    for (first, second) in [
        ("s3://old", "s3://old/job"),
        ("s3a://old/job=s3://a", "s3://old/job=s3://b"),
    ] {
        let parse = |text: &str| MovedFrom::parse(text).unwrap();
        request.moved_from = vec![parse(first), parse(second)];
        let e = plan(&stores, &request, &Silent).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
        assert!(e.to_string().contains(second), "{e}");
        assert!(e.to_string().contains("would be ignored"), "{e}");
    }
}

/// A fork there would count as a checkpoint of that job, and "keep the last one" would delete the job's own.
#[tokio::test]
async fn the_folder_of_another_job_is_refused_once_it_has_checkpoints() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = laid(&stores, &root).await;
    let other = "0123456789abcdef0123456789abcdef";
    let of_other = root.join(&format!("ckpt/{other}")).unwrap();
    let theirs = of_other.join("chk-2/_metadata").unwrap();
    let bytes = Bytes::from_static(b"theirs");
    stores.put(&theirs, bytes.clone(), true).await.unwrap();
    let before = manifest(&stores, &of_other).await;
    let e = refused(&stores, &snapshot, &of_other).await;
    assert_eq!(e.kind(), ErrorKind::Refused, "{e}");
    assert!(e.to_string().contains(other), "{e}");
    assert_eq!(manifest(&stores, &of_other).await, before);
    // An empty one, and that of the same job elsewhere, such as a copy for another region.
    let own = snapshot.parent().unwrap().name().to_string();
    let copies = root.join(&format!("region/{own}")).unwrap();
    let earlier = copies.join("chk-1/_metadata").unwrap();
    stores.put(&earlier, bytes, true).await.unwrap();
    for target in [copies, root.join(&format!("empty/{other}")).unwrap()] {
        let request = ForkRequest::new(snapshot.clone(), target);
        fork(&stores, &request, &Silent, &Cancel::default())
            .await
            .unwrap();
    }
}
