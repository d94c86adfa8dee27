//! A server dies as by `kill -9` at each point, and starts again: nothing acknowledged is lost, nothing that was
//! not is half there, the client's retry works, and in the end nothing is left behind.
//!
//! Which test has which crash point; all of them run real processes:
//!
//! | Point | After | Test |
//! | --- | --- | --- |
//! | C1, C2 | a part, or all, of a body is in the temporary file | [`at_upload`]: `part-written`, `part-complete` |
//! | C3 | the local file is published, its object not begun or half written | `published`, `object-half-written` (in one request and in parts) |
//! | C4 | the object is complete, the manifest is not written | `object-written`, `manifest-not-written` |
//! | C5 | the manifest is written, the reply is lost | `manifest-written`, `batch-staged` |
//! | C6 | some members of a batch are there | `member-arrived`, once and twice |
//! | C7, C8 | a batch is staged, and its client dies, or the server | [`a_staged_batch_outlives_a_restart_and_then_lapses`] |
//! | C9, C10 | a registration is not durable yet, or is | [`at_upload`]: `manifest-not-written:2`, `manifest-written:2` |
//! | C11 | an acknowledgement came and was not counted | [`a_crash_between_an_acknowledgement_and_the_count_leaves_no_file`] |
//! | C12, C13 | the manifest has dropped a blob, no copy or some are removed | [`at_removal`]: `manifest-dropped`, `object-removed` |
//! | C14 | the end of a job is durable, its objects are there | `terminal-written`, `object-removed`, `manifest-written:3` |
//! | C15 | an owner is paused, another takes over, the first goes on | all of `fencing` |
//! | C16 | a cache is killed while it downloads | `cache::a_cache_that_dies_while_it_downloads_leaves_no_part_of_a_file` |
//! | C17 | a cache is killed with files of live jobs | `cache::a_cache_that_dies_with_files_in_use_leaves_them_to_the_next` |
//! | C18 | power is lost after a file was published | [`a_torn_local_file_is_replaced_from_the_ha_store`] |
//! | C19 | the disk is full at any step | `outage::a_full_disk_is_an_answer`, `outage::a_file_system_that_is_full_is_an_answer` |
//! | C20 | the HA store is down | `outage::an_ha_store_that_is_down_stops_only_what_needs_it` |
//! | C21 | a clock jumps | both of `clock`, while the server runs and between two of them |

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use forkpoint::blob::{BlobKey, Digest};
use forkpoint::store::{Location, Stores};
use serde_json::json;

use super::harness::*;
use super::support::{Service, emulator_stores, temp};

/// Short times, so that staged cleanup is part of the test, and long enough for a machine that is busy.
const INTERVAL: Duration = Duration::from_secs(6);
const TIMES: [&str; 8] = [
    "--retention-interval",
    "6s",
    "--sweep-period",
    "150ms",
    "--orphan-min-age",
    "0",
    "--on-exit",
    "keep",
];

struct Case {
    /// As the specification numbers crash points.
    number: &'static str,
    point: &'static str,
    what: &'static str,
}

const fn case(number: &'static str, point: &'static str, what: &'static str) -> Case {
    Case {
        number,
        point,
        what,
    }
}

/// While a batch of a small and a large blob is uploaded, committed and registered. The large one takes an upload
/// in parts.
const UPLOADS: &[Case] = &[
    case(
        "C1",
        "part-written",
        "a part of the body is in the temporary file",
    ),
    case("C2", "part-complete", "the temporary file is complete"),
    case(
        "C3",
        "published",
        "the local file has its path, the object is not begun",
    ),
    case("C3", "object-half-written:2", "the object is half written"),
    case(
        "C3",
        "object-half-written:70",
        "the upload in parts is open",
    ),
    case("C4", "object-written", "the object is complete"),
    case("C4", "object-written:2", "both objects are complete"),
    case("C6", "member-arrived", "one member is there, the other not"),
    case("C6", "member-arrived:2", "all are there and not committed"),
    case(
        "C4",
        "manifest-not-written",
        "the manifest is about to be written",
    ),
    case(
        "C5",
        "manifest-written",
        "the manifest is written, the reply is lost",
    ),
    case(
        "C5",
        "batch-staged",
        "the batch is staged, the reply is lost",
    ),
    case(
        "C9",
        "manifest-not-written:2",
        "the registration is not durable",
    ),
    case("C10", "manifest-written:2", "the registration is durable"),
];

async fn at_upload(stores: &Stores, root: &Location, case: &Case) {
    let what = format!("{} {}: {}", case.number, case.point, case.what);
    let (dir, _) = temp();
    let data = dir.path().join("data");
    let ha = root.join(&case.point.replace(':', "-")).unwrap();
    let (small, large) = (noise(1, 5000), noise(2, 9 << 20));
    let members: [(&[u8], &str); 2] = [(&small, "retained"), (&large, "retained")];
    let both: [&[u8]; 2] = [&small, &large];
    let setup = Setup::new(&data, &ha).with(&TIMES);

    let dying = setup.clone().dying_at(case.point).start();
    let batch = dying.batch("a", 7);
    let committed = batch.upload(&members);
    let registered = committed && register(&dying, "a", &both).is_some_and(|a| a.status == 204);
    assert!(!registered, "{what}: everything was acknowledged");
    dying.has_died(&what);

    let server = setup.start();
    // Nothing is half there: all members or none, and never a wrong byte.
    let readable = both.map(|b| is_readable(&server, "a", b));
    assert_eq!(readable[0], readable[1], "{what}: one without the other");
    assert!(
        readable[0] || !committed,
        "{what}: an acknowledged batch is gone"
    );
    let after_restart = lying(stores, &ha, &data).await;
    assert_eq!(after_restart.foreign, [] as [&str; 0], "{what}");
    assert_eq!(after_restart.violations(&BTreeSet::new()), [], "{what}");
    // What died in the temporary folder went with the start.
    assert_eq!(
        std::fs::read_dir(data.join("tmp")).unwrap().count(),
        0,
        "{what}"
    );

    // The client repeats what it had no answer to, with the same session.
    let again = server.batch("a", 7);
    assert!(again.upload(&members), "{what}: the retry fails");
    let first = again.commit().unwrap();
    assert_eq!(first.status, 200, "{what}");
    assert_eq!(
        first.json(),
        again.commit().unwrap().json(),
        "{what}: another answer"
    );
    assert_eq!(register(&server, "a", &both).unwrap().status, 204, "{what}");
    let acked: BTreeSet<BlobKey> = both.iter().map(|b| key("a", b)).collect();

    // Held, it outlives the interval; what the crash left does not.
    let quiet = || async {
        let found = lying(stores, &ha, &data).await;
        assert_eq!(found.violations(&acked), [], "{what}");
        found.unreachable().is_empty()
    };
    until_asked(&format!("{what}: nothing unreachable"), quiet).await;
    let objects = lying(stores, &ha, &data).await.copies.objects.len();
    assert_eq!(objects, 2, "{what}: one object for each content");
    server.kill();
    let server = setup.start();
    assert_eq!(
        both.map(|b| is_readable(&server, "a", b)),
        [true, true],
        "{what}"
    );
    assert_eq!(
        lying(stores, &ha, &data).await.violations(&acked),
        [],
        "{what}"
    );
    ends(stores, &ha, &data, server, &both, &what).await;
}

/// The end of a job leaves a tombstone alone.
async fn ends(
    stores: &Stores,
    ha: &Location,
    data: &std::path::Path,
    server: Server,
    both: &[&[u8]],
    what: &str,
) {
    assert_eq!(finish(&server, "a").unwrap().status, 204, "{what}");
    for bytes in both {
        assert_eq!(
            read(&server, "a", bytes).unwrap().code(),
            "job-over",
            "{what}"
        );
    }
    let empty = || async {
        let found = lying(stores, ha, data).await;
        found.copies.objects.is_empty() && found.copies.local.is_empty()
    };
    until_asked(&format!("{what}: nothing is left"), empty).await;
    let left = lying(stores, ha, data).await;
    assert_eq!(left.violations(&BTreeSet::new()), [], "{what}");
    let strange = |n: &&String| {
        !(*n == "format.json" || n.starts_with("epoch/") || n.starts_with("jobs/a/manifest/"))
    };
    assert_eq!(left.ha.keys().find(strange), None, "{what}");
}

/// While a registered job's blobs are removed.
const REMOVALS: &[Case] = &[
    case(
        "C12",
        "manifest-dropped",
        "the manifest has dropped the blobs, no delete is done",
    ),
    case("C13", "object-removed", "one object is gone, the other not"),
    case(
        "C14",
        "terminal-written",
        "the job is over, its objects are there",
    ),
    case(
        "C14",
        "object-removed",
        "the job is over, one object is gone",
    ),
    case(
        "C14",
        "manifest-written:3",
        "the end is durable and not answered",
    ),
];

async fn at_removal(stores: &Stores, root: &Location, case: &Case, by_end: bool) {
    let what = format!("{} {}: {}", case.number, case.point, case.what);
    let (dir, _) = temp();
    let data = dir.path().join("data");
    let name = format!("{}-{by_end}", case.point.replace(':', "-"));
    let ha = root.join(&name).unwrap();
    let (one, two) = (noise(3, 20_000), noise(4, 300_000));
    let both: [&[u8]; 2] = [&one, &two];
    let members: [(&[u8], &str); 2] = [(&one, "retained"), (&two, "retained")];
    let setup = Setup::new(&data, &ha).with(&TIMES);
    let dying = setup.clone().dying_at(case.point).start();
    let batch = dying.batch("a", 1);
    assert!(batch.upload(&members), "{what}");
    if by_end {
        assert_eq!(register(&dying, "a", &both).unwrap().status, 204, "{what}");
        let answer = finish(&dying, "a");
        assert!(answer.is_none(), "{what}: {answer:?}");
    }
    // Otherwise nobody registers: the batch lapses, and the sweep dies.
    dying.has_died(&what);
    let server = setup.start();
    for bytes in both {
        let answer = read(&server, "a", bytes).unwrap();
        let expected = if by_end { 410 } else { 404 };
        assert_eq!(answer.status, expected, "{what}: {}", answer.text());
    }
    if by_end {
        let again = register(&server, "a", &[]).unwrap();
        assert_eq!(again.code(), "job-over", "{what}: it came back");
        // A repeated end is an end.
        assert_eq!(finish(&server, "a").unwrap().status, 204, "{what}");
    }
    let empty = || async {
        let found = lying(stores, &ha, &data).await;
        assert_eq!(found.violations(&BTreeSet::new()), [], "{what}");
        found.copies.objects.is_empty() && found.copies.local.is_empty()
    };
    until_asked(&format!("{what}: nothing is left"), empty).await;
    if !by_end {
        // The same content again is a new upload.
        let batch = server.batch("a", 2);
        assert!(batch.upload(&members), "{what}");
        assert!(is_readable(&server, "a", &one), "{what}");
    }
}

async fn crashes(stores: &Stores, root: &Location) {
    for case in UPLOADS {
        at_upload(stores, root, case).await;
    }
    for (n, case) in REMOVALS.iter().enumerate() {
        at_removal(stores, root, case, n >= 2).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_at_any_point_loses_nothing_on_s3() {
    if Service::S3.is_there("crashes of a blob server") {
        crashes(&emulator_stores(), &Service::S3.place(0, "blob-crash")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_at_any_point_loses_nothing_on_local_disk() {
    let (_dir, root) = temp();
    crashes(&super::support::local_stores(), &root).await;
}

/// C7 and C8: a batch that nobody registers goes after the interval, and a restart starts that anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_staged_batch_outlives_a_restart_and_then_lapses() {
    let (dir, root) = temp();
    let data = dir.path().join("data");
    let stores = super::support::local_stores();
    let bytes = noise(5, 1000);
    let setup = Setup::new(&data, &root.join("ha").unwrap()).with(&TIMES);
    let server = setup.start();
    let batch = server.batch("a", 1);
    assert!(batch.upload(&[(&bytes, "retained")]));
    std::thread::sleep(INTERVAL / 3);
    server.kill();
    let restarted = Instant::now();
    let server = setup.start();
    let ha = root.join("ha").unwrap();
    let empty = || async { lying(&stores, &ha, &data).await.copies.objects.is_empty() };
    until_asked("the batch lapses", empty).await;
    not_before(restarted, INTERVAL, "the batch lapses");
    assert_eq!(read(&server, "a", &bytes).unwrap().code(), "not-found");
}

/// C11: references to re-creatable blobs are memory only; a crash drops them, and the file with them.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_an_acknowledgement_and_the_count_leaves_no_file() {
    let (dir, root) = temp();
    let data = dir.path().join("data");
    let ha = root.join("ha").unwrap();
    let stores = super::support::local_stores();
    let message = noise(6, 70_000);
    let setup = Setup::new(&data, &ha).with(&TIMES);
    let dying = setup.clone().dying_at("ack-received").start();
    let batch = dying.batch("a", 1);
    assert!(batch.upload(&[(&message, "recreatable")]));
    let refs = format!("{}/refs", path("a", &message));
    let acquire = json!({ "kind": "receivers", "receivers": ["tm-1", "tm-2"] });
    assert_eq!(dying.json("POST", &refs, &acquire).unwrap().status, 204);
    assert!(is_readable(&dying, "a", &message));
    // Not in the HA store, and not needed there.
    assert!(lying(&stores, &ha, &data).await.copies.objects.is_empty());
    let ack = format!("{}/acks/tm-1", path("a", &message));
    assert!(dying.call("POST", &ack, b"").is_none());
    dying.has_died("C11");
    let server = setup.start();
    assert_eq!(read(&server, "a", &message).unwrap().status, 404);
    // Known or not, an acknowledgement is a success.
    assert_eq!(server.call("POST", &ack, b"").unwrap().status, 204);
    let empty = || async { lying(&stores, &ha, &data).await.copies.local.is_empty() };
    until_asked("the file goes", empty).await;
}

/// C18: after a loss of power a file may be torn although its name is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_torn_local_file_is_replaced_from_the_ha_store() {
    let (dir, root) = temp();
    let data = dir.path().join("data");
    let bytes = noise(7, 400_000);
    let setup = Setup::new(&data, &root.join("ha").unwrap()).with(&TIMES);
    let server = setup.start();
    let batch = server.batch("a", 1);
    assert!(batch.upload(&[(&bytes, "retained")]));
    assert_eq!(register(&server, "a", &[&bytes]).unwrap().status, 204);
    server.kill();
    let digest = Digest::of(&bytes);
    let file = data.join(format!("jobs/a/{:02x}/{digest}", digest.sha256[0]));
    // The size is right and the end was never written.
    let mut torn = bytes.clone();
    torn[200_000..].fill(0);
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, &torn).unwrap();
    let server = setup.start();
    assert!(is_readable(&server, "a", &bytes));
    assert_eq!(server.metric("forkpoint_blob_damaged_local_total"), 1);
    assert_eq!(server.metric("forkpoint_blob_quarantined"), 1);
    assert_eq!(std::fs::read(&file).unwrap(), bytes);
}

/// Local files go when the server ends in order, unless they are to stay; the HA store is not touched.
#[tokio::test(flavor = "multi_thread")]
async fn an_orderly_end_removes_local_files_alone() {
    for keep in [false, true] {
        let (dir, root) = temp();
        let data = dir.path().join("data");
        let ha = root.join("ha").unwrap();
        let stores = super::support::local_stores();
        let bytes = noise(8, 10_000);
        let exit = if keep { "keep" } else { "delete" };
        let setup = Setup::new(&data, &ha).with(&["--on-exit", exit]);
        let server = setup.start();
        let batch = server.batch("a", 1);
        assert!(batch.upload(&[(&bytes, "retained")]));
        assert_eq!(register(&server, "a", &[&bytes]).unwrap().status, 204);
        assert_eq!(server.stop(), Some(0));
        let left = lying(&stores, &ha, &data).await;
        assert_eq!(
            (left.copies.objects.len(), left.copies.local.len()),
            (1, usize::from(keep))
        );
        let server = setup.start();
        assert!(is_readable(&server, "a", &bytes));
        let fetches = server.metric("forkpoint_blob_fetches_total");
        assert_eq!(fetches, u64::from(!keep), "keep: {keep}");
    }
}

/// A second process stays out of the directory; what a dead one left there is no obstacle.
#[tokio::test(flavor = "multi_thread")]
async fn one_process_has_a_directory() {
    let (dir, root) = temp();
    let data = dir.path().join("data");
    let setup = Setup::new(&data, &root.join("ha").unwrap());
    setup.start().kill();
    std::fs::write(data.join("tmp/0123456789abcdef.part"), b"x").unwrap();
    std::fs::write(data.join("tmp/junk"), b"x").unwrap();
    let server = setup.start();
    assert!(
        server
            .said
            .iter()
            .any(|l| l.contains("left alone: tmp/junk")),
        "{:?}",
        server.said
    );
    assert!(!data.join("tmp/0123456789abcdef.part").exists());
    let other = Setup::new(&data, &root.join("elsewhere").unwrap());
    let (code, said) = other.try_start().err().unwrap();
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("another process has it"), "{said}");
    drop(server);
    other.start();
    // And a directory that is somebody else's is not taken.
    let foreign = dir.path().join("foreign");
    std::fs::create_dir_all(&foreign).unwrap();
    std::fs::write(foreign.join("letter.txt"), b"x").unwrap();
    let (code, said) = Setup::new(&foreign, &root.join("ha").unwrap())
        .try_start()
        .err()
        .unwrap();
    assert_eq!(
        (code, said.contains("letter.txt")),
        (Some(3), true),
        "{said}"
    );
}
