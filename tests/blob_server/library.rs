//! The server as a library, without a network.

use std::collections::BTreeSet;
use std::slice;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forkpoint::blob::{
    BlobKey, BlobServer, Class, ClusterId, Digest, DisplayName, Failure, Holder, JobEvent, LeaseId,
    Mode, OnExit, Outcome, Planned, RecoverJobs, Refusal, ServerConfig, SessionId, SweepReason,
};
use forkpoint::store::{Location, Stores};

use super::harness::{job, key, noise, until_asked};
use super::support::{at, local_stores};

struct Lab {
    dir: tempfile::TempDir,
    stores: Stores,
    ha: Location,
}

impl Lab {
    fn new() -> Lab {
        Lab {
            dir: tempfile::tempdir().unwrap(),
            stores: local_stores(),
            ha: at("memory:/ha"),
        }
    }

    fn config(&self) -> ServerConfig {
        let cluster = ClusterId::parse("lab").unwrap();
        let mut config = ServerConfig::new(self.ha.clone(), cluster, self.dir.path().join("data"))
            .with_retention(Duration::from_millis(300));
        config.orphan_min_age = Duration::ZERO;
        config.local.on_exit = OnExit::Keep;
        config
    }

    async fn open(&self, config: ServerConfig) -> BlobServer {
        BlobServer::open(config, self.stores.clone())
            .await
            .unwrap()
            .0
    }
}

fn planned(bytes: &[u8], class: Class) -> Planned {
    Planned {
        digest: Digest::of(bytes),
        class,
        display: Some(DisplayName::parse("job.jar").unwrap()),
    }
}

async fn send(
    server: &BlobServer,
    id: &str,
    session: u64,
    bytes: &[u8],
) -> Result<Digest, Failure> {
    let body = futures::stream::iter(bytes.chunks(7000).map(|c| Ok(Bytes::copy_from_slice(c))));
    let digest = Digest::of(bytes);
    server
        .put(&job(id), SessionId(session), Some(digest), None, body)
        .await
}

async fn upload(server: &BlobServer, id: &str, session: u64, bytes: &[u8], class: Class) {
    let plan = [planned(bytes, class)];
    let begun = server
        .begin_upload(&job(id), SessionId(session), &plan)
        .await
        .unwrap();
    for _ in begun.missing {
        send(server, id, session, bytes).await.unwrap();
    }
    server
        .commit_upload(&job(id), SessionId(session))
        .await
        .unwrap();
}

fn registered(members: &[&[u8]]) -> JobEvent {
    JobEvent::Registered {
        digests: members.iter().map(|b| Digest::of(b)).collect(),
    }
}

fn refusal(failure: Failure) -> Refusal {
    match failure {
        Failure::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn leases_quotas_and_limits() {
    let lab = Lab::new();
    let mut config = lab.config();
    config.settings.largest_blob = 50_000;
    config.settings.job_quota = 80_000;
    let server = lab.open(config).await;
    let bytes = noise(1, 40_000);
    upload(&server, "a", 1, &bytes, Class::Retained).await;
    let of = key("a", &bytes);
    let lease = LeaseId::parse("cli").unwrap();
    server
        .acquire_lease(&of, lease.clone(), 4000)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let report = server.sweep(Mode::Apply).await.unwrap();
    assert_eq!(report.decisions[0].reason, SweepReason::Held { holders: 1 });
    server.renew(&of, lease.clone(), 4000).await.unwrap();
    // A look says what would happen, and does nothing.
    tokio::time::sleep(Duration::from_millis(4100)).await;
    assert_eq!(server.sweep(Mode::DryRun).await.unwrap().removed, 0);
    assert_eq!(server.get(&of).await.unwrap().bytes().await.unwrap(), bytes);
    let lapsed = || async {
        server.sweep(Mode::Apply).await.unwrap();
        server.get(&of).await.is_err()
    };
    until_asked("the lease lapses, and then the interval", lapsed).await;
    assert_eq!(
        refusal(server.get(&of).await.unwrap_err()),
        Refusal::NotFound(of.clone())
    );
    assert_eq!(
        refusal(server.renew(&of, lease, 1).await.unwrap_err()),
        Refusal::NotFound(of.clone())
    );
    assert_eq!(server.metrics().deletes.get(), 1);

    let large = noise(2, 50_001);
    let plan = [planned(&large, Class::Retained)];
    let refused = server
        .begin_upload(&job("a"), SessionId(2), &plan)
        .await
        .unwrap_err();
    assert!(matches!(refusal(refused), Refusal::TooLarge(_, 50_000)));
    let plan = [
        planned(&noise(3, 45_000), Class::Retained),
        planned(&noise(4, 45_000), Class::Retained),
    ];
    let refused = server
        .begin_upload(&job("a"), SessionId(2), &plan)
        .await
        .unwrap_err();
    assert!(matches!(refusal(refused), Refusal::Quota(_, 80_000)));
    // Without a plan the bytes themselves are looked at.
    server
        .begin_upload(&job("a"), SessionId(3), &[])
        .await
        .unwrap();
    let body = |bytes: Vec<u8>| futures::stream::iter([Ok(Bytes::from(bytes))]);
    let refused = server
        .put(&job("a"), SessionId(3), None, None, body(large))
        .await;
    assert!(
        matches!(refused, Err(Failure::TooLarge { limit: 50_000, .. })),
        "{refused:?}"
    );
    let unplanned = noise(5, 100);
    let digest = server
        .put(
            &job("a"),
            SessionId(3),
            None,
            Some(100),
            body(unplanned.clone()),
        )
        .await
        .unwrap();
    assert_eq!(digest, Digest::of(&unplanned));
    server.commit_upload(&job("a"), SessionId(3)).await.unwrap();
    assert_eq!(
        server
            .get(&key("a", &unplanned))
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap(),
        unplanned
    );
}

#[tokio::test]
async fn a_reader_of_a_damaged_file_leaves_the_one_that_took_its_place() {
    let lab = Lab::new();
    let server = lab.open(lab.config()).await;
    let bytes = noise(1, 400_000);
    upload(&server, "a", 1, &bytes, Class::Recreatable).await;
    let handle = server.get(&key("a", &bytes)).await.unwrap();
    let path = handle.path().unwrap().to_path_buf();
    // The file that is open is damaged, and a good one is at its path by now.
    let old = lab.dir.path().join("old");
    std::fs::rename(&path, &old).unwrap();
    std::fs::copy(&old, &path).unwrap();
    std::fs::set_permissions(&old, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut harmed = bytes.clone();
    harmed[1] ^= 1;
    std::fs::write(&old, harmed).unwrap();
    assert!(handle.bytes().await.is_err());
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    let again = server.get(&key("a", &bytes)).await.unwrap();
    assert_eq!(again.bytes().await.unwrap(), bytes);
}

#[tokio::test]
async fn an_open_handle_outlives_its_job() {
    let lab = Lab::new();
    let server = lab.open(lab.config()).await;
    let bytes = noise(1, 400_000);
    upload(&server, "a", 1, &bytes, Class::Retained).await;
    server
        .job_event(&job("a"), registered(&[&bytes]))
        .await
        .unwrap();
    let handle = server.get(&key("a", &bytes)).await.unwrap();
    let outcome = Outcome::Cancelled;
    server
        .job_event(&job("a"), JobEvent::Terminal { outcome })
        .await
        .unwrap();
    assert!(matches!(
        refusal(server.get(&key("a", &bytes)).await.unwrap_err()),
        Refusal::JobOver(..)
    ));
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.sweep(Mode::Apply).await.unwrap();
    // Its file is there, under the path that was handed out.
    let path = handle.path().unwrap().to_path_buf();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert_eq!(handle.bytes().await.unwrap(), bytes);
    drop(handle);
    assert!(!path.exists());
    server.sweep(Mode::Apply).await.unwrap();
    let left = lab.stores.list(&lab.ha).await.unwrap();
    assert!(
        !left
            .iter()
            .any(|(at, _)| at.to_string().contains("/retained/")),
        "{left:?}"
    );
}

#[tokio::test]
async fn a_restart_recovers_the_jobs_it_is_told_and_suspended_ones() {
    let lab = Lab::new();
    let server = lab.open(lab.config()).await;
    let all = ["back", "gone", "suspended"];
    for (n, id) in all.iter().enumerate() {
        let bytes = noise(n as u64, 10_000);
        upload(&server, id, 1, &bytes, Class::Retained).await;
        upload(
            &server,
            id,
            2,
            &noise(50 + n as u64, 500),
            Class::Recreatable,
        )
        .await;
        server
            .job_event(&job(id), registered(&[&bytes]))
            .await
            .unwrap();
    }
    server
        .job_event(&job("suspended"), JobEvent::Suspended)
        .await
        .unwrap();
    let local = |id: &str| lab.dir.path().join("data/jobs").join(id).exists();
    server.sweep(Mode::Apply).await.unwrap();
    assert!(local("back") && !local("suspended"));
    server.close().await.unwrap();
    let mut config = lab.config();
    let unknown = job("never-heard-of");
    config.recover = RecoverJobs::Only(BTreeSet::from([job("back"), unknown.clone()]));
    let (server, report) = BlobServer::open(config, lab.stores.clone()).await.unwrap();
    assert_eq!(
        (report.epoch, report.jobs, report.unknown),
        (2, 3, vec![unknown])
    );
    assert_eq!(server.metrics().fetches.get(), 0);
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.sweep(Mode::Apply).await.unwrap();
    for (n, id) in all.iter().enumerate() {
        let bytes = noise(n as u64, 10_000);
        let there = server.get(&key(id, &bytes)).await;
        assert_eq!(there.is_ok(), *id != "gone", "{id}");
        // Re-creatable blobs were known to the process that ended alone.
        assert!(
            server
                .get(&key(id, &noise(50 + n as u64, 500)))
                .await
                .is_err()
        );
    }
    // A suspended job comes back somewhere.
    let bytes = noise(2, 10_000);
    server
        .job_event(&job("suspended"), registered(&[&bytes]))
        .await
        .unwrap();
    // Receivers are holders of retained blobs too, and survive.
    let who = forkpoint::blob::ReceiverId::parse("tm-1").unwrap();
    server
        .acquire_for(&key("back", &noise(0, 10_000)), vec![who.clone()])
        .await
        .unwrap();
    server.close().await.unwrap();
    let server = lab.open(lab.config()).await;
    let listed = server.list_blobs(&job("back")).unwrap();
    let holders: Vec<&Holder> = listed.blobs[0].holders.iter().map(|h| &h.by).collect();
    assert_eq!(holders, [&Holder::Job, &Holder::Receiver(who)]);
}

/// Every step of an upload by a caller who goes away: nothing stays behind.
#[tokio::test(flavor = "multi_thread")]
async fn callers_who_go_away_leave_nothing_behind() {
    let lab = Lab::new();
    let server = lab.open(lab.config()).await;
    let bytes = noise(1, 300_000);
    for n in 0..60u64 {
        let plan = [planned(&bytes, Class::Retained)];
        let id = format!("job-{}", n % 4);
        server
            .begin_upload(&job(&id), SessionId(n), &plan)
            .await
            .unwrap();
        let sending = send(&server, &id, n, &bytes);
        let cut = tokio::time::timeout(Duration::from_micros(100 * n), sending).await;
        if cut.is_err() && n % 2 == 0 {
            server.abort_upload(&job(&id), SessionId(n)).await.unwrap();
        }
        if n % 3 == 0 {
            let of = job(&id);
            let committing = server.commit_upload(&of, SessionId(n));
            let _ = tokio::time::timeout(Duration::from_micros(20 * n), committing).await;
        }
        server.sweep(Mode::Apply).await.unwrap();
    }
    for n in 0..4 {
        let outcome = Outcome::Failed;
        server
            .job_event(&job(&format!("job-{n}")), JobEvent::Terminal { outcome })
            .await
            .unwrap();
    }
    let tidy = || async {
        server.sweep(Mode::Apply).await.unwrap();
        let objects = lab.stores.list(&lab.ha).await.unwrap();
        let objects = objects
            .iter()
            .filter(|(at, _)| at.to_string().contains("/retained/"))
            .count();
        let files = super::support::walk(&lab.dir.path().join("data/jobs")).len();
        let parts = super::support::walk(&lab.dir.path().join("data/tmp")).len();
        (objects, files, parts) == (0, 0, 0)
    };
    until_asked("nothing is left", tidy).await;
}

/// Events of one job that wait at the same time share a commit, and each gets its own answer.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_wait_together_share_a_commit() {
    let lab = Lab::new();
    let server = lab.open(lab.config()).await;
    let all: Vec<Vec<u8>> = (0..40).map(|n| noise(n, 500)).collect();
    for (n, bytes) in all.iter().enumerate() {
        let plan = [planned(bytes, Class::Retained)];
        server
            .begin_upload(&job("a"), SessionId(n as u64), &plan)
            .await
            .unwrap();
        // The last one is not complete.
        if n < 39 {
            send(&server, "a", n as u64, bytes).await.unwrap();
        }
    }
    let of = job("a");
    let commits = (0..40).map(|n| server.commit_upload(&of, SessionId(n)));
    let answers = futures::future::join_all(commits).await;
    for (n, (answer, bytes)) in answers.into_iter().zip(&all).enumerate() {
        match n {
            39 => assert!(matches!(
                refusal(answer.unwrap_err()),
                Refusal::Incomplete(..)
            )),
            _ => assert_eq!(answer.unwrap().digests, BTreeSet::from([Digest::of(bytes)])),
        }
    }
    let took = server.metrics().commits.get();
    assert!((1..20).contains(&took), "{took} commits for 39 events");
    server.close().await.unwrap();
    let server = lab.open(lab.config()).await;
    assert_eq!(server.list_blobs(&job("a")).unwrap().blobs.len(), 39);
}

/// Of a lost blob that is sent again the local copy is good before the upload is committed. A scrub that comes between
/// must not take the blob for good while its object is not: the commit would drop the object that has just arrived.
#[tokio::test]
async fn a_scrub_while_a_lost_blob_is_sent_again_counts_on_no_damaged_object() {
    for sent_again in [true, false] {
        let lab = Lab::new();
        let bytes = noise(1, 40_000);
        let of = key("a", &bytes);
        let server = lab.open(lab.config()).await;
        upload(&server, "a", 1, &bytes, Class::Retained).await;
        let event = registered(&[&bytes]);
        server.job_event(&job("a"), event).await.unwrap();

        let folder = lab.ha.join("lab/jobs/a/retained").unwrap();
        let object = lab.stores.list(&folder).await.unwrap().remove(0).0;
        lab.stores.delete(&object).await.unwrap();
        let wrong = noise(2, 40_000);
        lab.stores.put(&object, wrong.into(), true).await.unwrap();
        let data = lab.dir.path().join("data");
        std::fs::remove_dir_all(data.join("jobs/a")).unwrap();
        let report = server.scrub(Mode::Apply).await.unwrap();
        assert_eq!(report.lost, slice::from_ref(&of));

        let plan = [planned(&bytes, Class::Retained)];
        let begun = server.begin_upload(&job("a"), SessionId(2), &plan).await;
        assert_eq!(begun.unwrap().missing, [of.digest]);
        send(&server, "a", 2, &bytes).await.unwrap();
        let report = server.scrub(Mode::Apply).await.unwrap();
        assert_eq!(report.lost, [], "the local copy is good");
        if sent_again {
            let committed = server.commit_upload(&job("a"), SessionId(2)).await;
            committed.unwrap();
        }
        assert_eq!(server.get(&of).await.unwrap().bytes().await.unwrap(), bytes);
        server.sweep(Mode::Apply).await.unwrap();
        drop(server);
        std::fs::remove_dir_all(&data).unwrap();
        let server = lab.open(lab.config()).await;
        let read = server.get(&of).await.unwrap().bytes().await.unwrap();
        assert_eq!(read, bytes, "sent again: {sent_again}");
        server.sweep(Mode::Apply).await.unwrap();
        assert_eq!(lab.stores.list(&folder).await.unwrap().len(), 1);
    }
}

/// How long a thousand jobs take to come back, for those who ask for it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures"]
async fn a_thousand_jobs_recover() {
    let lab = Lab::new();
    let server = lab.open(lab.config()).await;
    for n in 0..1000u64 {
        let id = format!("job-{n}");
        let bytes = noise(n, 100);
        upload(&server, &id, 1, &bytes, Class::Retained).await;
        server
            .job_event(&job(&id), registered(&[&bytes]))
            .await
            .unwrap();
    }
    server.close().await.unwrap();
    let began = Instant::now();
    let (server, report) = BlobServer::open(lab.config(), lab.stores.clone())
        .await
        .unwrap();
    let took = began.elapsed();
    println!("1000 jobs recovered in {took:?}: {report:?}");
    assert_eq!(report.jobs, 1000);
    drop(server);
}

#[tokio::test]
async fn keys_are_equal_by_content() {
    let lab = Lab::new();
    let server = lab.open(lab.config()).await;
    let bytes = noise(1, 2000);
    for session in 1..=10 {
        upload(&server, "a", session, &bytes, Class::Retained).await;
    }
    assert_eq!(server.metrics().uploads.get(), 1, "sent again");
    let of: BlobKey = key("a", &bytes);
    let entry = server.why(&of).unwrap().blob;
    assert_eq!(entry.name.unwrap().to_string(), "job.jar");
    let next = lab.dir.path().join("other");
    let mut config = lab.config();
    config.local.directory = next;
    let successor = lab.open(config).await;
    assert_eq!(
        successor.get(&of).await.unwrap().bytes().await.unwrap(),
        bytes
    );
    // The older one notices with its next event, and says who it is not.
    let failure = server
        .job_event(&job("a"), JobEvent::Failed)
        .await
        .unwrap_err();
    assert!(
        matches!(failure, Failure::NotOwner { epoch: 1, .. }),
        "{failure:?}"
    );
    assert!(!server.is_ready() && server.fenced().unwrap().by == Some(2));
    assert!(matches!(
        server.sweep(Mode::Apply).await,
        Err(Failure::NotOwner { .. })
    ));
}
