//! Copies that change at rest: no reader sees a wrong byte, and they are replaced from the other place.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use forkpoint::blob::Digest;
use forkpoint::store::{Location, Stores};

use super::harness::*;
use super::support::{Service, command, emulator_stores, local_stores, run_json, temp};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    FlipFirst,
    FlipLast,
    Truncate,
    Extend,
    Swap,
    Remove,
}

const ALL: [Harm; 6] = [
    Harm::FlipFirst,
    Harm::FlipLast,
    Harm::Truncate,
    Harm::Extend,
    Harm::Swap,
    Harm::Remove,
];

impl Harm {
    fn of(self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut harmed = bytes.to_vec();
        match self {
            Harm::FlipFirst => harmed[0] ^= 1,
            Harm::FlipLast => *harmed.last_mut().unwrap() ^= 0x80,
            Harm::Truncate => harmed.truncate(bytes.len() / 2),
            Harm::Extend => harmed.push(0),
            Harm::Swap => harmed = noise(99, bytes.len()),
            Harm::Remove => return None,
        }
        Some(harmed)
    }
}

fn local_file(data: &Path, job: &str, bytes: &[u8]) -> PathBuf {
    let digest = Digest::of(bytes);
    data.join(format!("jobs/{job}/{:02x}/{digest}", digest.sha256[0]))
}

/// Harms a file in place, and makes its modification time what it was.
fn harm_file(file: &Path, harm: Harm, bytes: &[u8]) {
    let meta = std::fs::metadata(file).unwrap();
    let Some(harmed) = harm.of(bytes) else {
        return std::fs::remove_file(file).unwrap();
    };
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).unwrap();
    // All through one handle: a scrub may move the file away as soon as its bytes are wrong.
    let mut opened = std::fs::OpenOptions::new();
    let mut opened = opened.write(true).truncate(true).open(file).unwrap();
    opened.write_all(&harmed).unwrap();
    opened.set_modified(meta.modified().unwrap()).unwrap();
    let shut = std::fs::Permissions::from_mode(0o444);
    opened.set_permissions(shut).unwrap();
}

async fn object_of(stores: &Stores, ha: &Location, bytes: &[u8]) -> Location {
    let folder = ha.join("default/jobs/a/retained").unwrap();
    let digest = Digest::of(bytes).to_string();
    let listed = stores.list(&folder).await.unwrap();
    let of_blob = |at: &Location| at.name().starts_with(&digest);
    let mut found: Vec<Location> = listed
        .into_iter()
        .map(|(at, _)| at)
        .filter(of_blob)
        .collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

async fn harm_object(stores: &Stores, at: &Location, harm: Harm, bytes: &[u8]) {
    stores.delete(at).await.unwrap();
    if let Some(harmed) = harm.of(bytes) {
        stores.put(at, harmed.into(), true).await.unwrap();
    }
}

/// A server with one registered blob of several blocks.
fn with_blob(setup: &Setup, bytes: &[u8]) -> Server {
    let server = setup.start();
    let batch = server.batch("a", 1);
    assert!(batch.upload(&[(bytes, "retained")]));
    assert_eq!(register(&server, "a", &[bytes]).unwrap().status, 204);
    server
}

/// While the server runs and has verified the file before. Ranges too: of the harmed bytes, and of others.
#[tokio::test(flavor = "multi_thread")]
async fn a_local_copy_that_changes_is_never_sent_and_is_replaced() {
    let (dir, root) = temp();
    let data = dir.path().join("data");
    let bytes = noise(1, 700_000);
    let server = with_blob(&Setup::new(&data, &root.join("ha").unwrap()), &bytes);
    let file = local_file(&data, "a", &bytes);
    let at = path("a", &bytes);
    let mut quarantined = 0;
    for (round, harm) in ALL.iter().cycle().take(12).enumerate() {
        assert!(is_readable(&server, "a", &bytes), "{harm:?}");
        harm_file(&file, *harm, &bytes);
        quarantined += u64::from(*harm != Harm::Remove);
        let mut attempts = 0;
        if round < 6 {
            // Whole. A change that its size gives away, or in the first block, is replaced unnoticed.
            while !is_readable(&server, "a", &bytes) {
                attempts += 1;
            }
            assert_eq!(attempts, u32::from(*harm == Harm::FlipLast), "{harm:?}");
        } else {
            for (from, to) in [(0, 9), (300_000, 400_000), (699_990, 699_999)] {
                loop {
                    let range = format!("bytes={from}-{to}");
                    let answer =
                        request(&server.url, "GET", &at, &[("range", &range)], b"").unwrap();
                    assert_eq!(answer.status, 206, "{harm:?}");
                    assert!(
                        bytes[from..=to].starts_with(&answer.body),
                        "{harm:?}: wrong bytes"
                    );
                    if answer.complete {
                        break;
                    }
                    attempts += 1;
                    assert!(attempts < 5, "{harm:?}");
                }
            }
        }
        assert_eq!(std::fs::read(&file).unwrap(), bytes, "{harm:?}");
        assert_eq!(
            server.metric("forkpoint_blob_quarantined"),
            quarantined,
            "{harm:?}"
        );
    }
    assert_eq!(server.metric("forkpoint_blob_damaged_ha_total"), 0);
}

/// Scrubbing while it serves: finds and repairs either copy, and tells when none is left.
async fn scrubs(stores: &Stores, ha: &Location) {
    let (dir, _) = temp();
    let data = dir.path().join("data");
    let bytes = noise(2, 500_000);
    let setup = Setup::new(&data, ha).with(&["--scrub-every", "300ms", "--sweep-period", "200ms"]);
    let server = with_blob(&setup, &bytes);
    let file = local_file(&data, "a", &bytes);
    let acked = BTreeSet::from([key("a", &bytes)]);
    for harm in ALL {
        let object = object_of(stores, ha, &bytes).await;
        harm_object(stores, &object, harm, &bytes).await;
        let replaced = || async {
            let found = lying(stores, ha, &data).await;
            let objects: Vec<String> = found
                .ha
                .keys()
                .filter(|n| n.contains("/retained/"))
                .cloned()
                .collect();
            let name = object.name().to_string();
            // Written, and then named by the manifest: between the two a read without a local copy finds nothing.
            objects.len() == 1
                && !objects[0].ends_with(&name)
                && found.violations(&acked).is_empty()
        };
        until_asked(&format!("{harm:?} of the object"), replaced).await;
        let now = object_of(stores, ha, &bytes).await;
        assert_eq!(stores.read(&now, 1 << 20).await.unwrap(), bytes, "{harm:?}");
        assert!(is_readable(&server, "a", &bytes), "{harm:?}");

        harm_file(&file, harm, &bytes);
        if harm != Harm::Remove {
            let replaced = || async { std::fs::read(&file).is_ok_and(|b| b == bytes) };
            until_asked(&format!("{harm:?} of the file"), replaced).await;
        }
        assert!(is_readable(&server, "a", &bytes), "{harm:?}");
        assert_eq!(
            lying(stores, ha, &data).await.violations(&acked),
            [],
            "{harm:?}"
        );
    }
    // Both at once: it is lost, says so, and comes back with an upload.
    let object = object_of(stores, ha, &bytes).await;
    harm_object(stores, &object, Harm::FlipLast, &bytes).await;
    harm_file(&file, Harm::FlipFirst, &bytes);
    let lost = || async { read(&server, "a", &bytes).unwrap().status == 410 };
    until_asked("it is known as lost", lost).await;
    assert_eq!(read(&server, "a", &bytes).unwrap().code(), "lost");
    let batch = server.batch("a", 2);
    assert!(batch.upload(&[(&bytes, "retained")]));
    assert!(is_readable(&server, "a", &bytes));
    // Still held by the job, across a restart with nothing local.
    server.kill();
    std::fs::remove_dir_all(&data).unwrap();
    let server = setup.start();
    let answer = read(&server, "a", &bytes).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(lying(stores, ha, &data).await.violations(&acked), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrub_repairs_either_copy_on_local_disk() {
    let (_dir, root) = temp();
    scrubs(&local_stores(), &root).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrub_repairs_either_copy_on_s3() {
    if Service::S3.is_there("scrubbing") {
        scrubs(&emulator_stores(), &Service::S3.place(0, "blob-scrub")).await;
    }
}

/// A new server with nothing local must not hand out what an object has become.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_changed_is_never_sent() {
    for harm in ALL {
        let (dir, root) = temp();
        let data = dir.path().join("data");
        let ha = root.join("ha").unwrap();
        let stores = local_stores();
        let bytes = noise(3, 300_000);
        let setup = Setup::new(&data, &ha);
        drop(with_blob(&setup, &bytes));
        let object = object_of(&stores, &ha, &bytes).await;
        harm_object(&stores, &object, harm, &bytes).await;
        std::fs::remove_dir_all(&data).unwrap();
        let server = setup.start();
        let answer = read(&server, "a", &bytes).unwrap();
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (410, "lost"),
            "{harm:?}"
        );
        // It is said, and not forgotten: its holder is still there.
        let why = server
            .call("GET", &format!("{}/why", path("a", &bytes)), b"")
            .unwrap()
            .json();
        assert_eq!(why["blob"]["state"], "lost", "{harm:?}: {why}");
        assert_eq!(why["blob"]["holders"][0]["by"]["kind"], "job");
    }
}

/// With local files kept, a start notices by their sizes what lacks in the HA store, and puts it there again.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_writes_missing_objects_again() {
    let (dir, root) = temp();
    let data = dir.path().join("data");
    let ha = root.join("ha").unwrap();
    let stores = local_stores();
    let bytes = noise(4, 9_000);
    let setup = Setup::new(&data, &ha).with(&["--on-exit", "keep"]);
    drop(with_blob(&setup, &bytes));
    let object = object_of(&stores, &ha, &bytes).await;
    stores.delete(&object).await.unwrap();
    let server = setup.start();
    assert!(
        server
            .said
            .iter()
            .any(|l| l.contains("1 object written again")),
        "{:?}",
        server.said
    );
    assert_ne!(object_of(&stores, &ha, &bytes).await, object);
    assert!(is_readable(&server, "a", &bytes));
}

/// The same without a server: looking changes nothing, applying repairs, exit codes tell.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_scrubs_without_a_server() {
    let (dir, root) = temp();
    let data = dir.path().join("data");
    let ha = root.join("ha").unwrap();
    let stores = local_stores();
    let bytes = noise(5, 200_000);
    let setup = Setup::new(&data, &ha).with(&["--on-exit", "keep"]);
    assert_eq!(with_blob(&setup, &bytes).stop(), Some(0));
    let (data_text, ha_text) = (data.to_str().unwrap(), ha.to_string());
    let scrub = ["blob", "scrub", "--data", data_text, "--ha", &ha_text];
    let (code, report) = run_json(&scrub);
    assert_eq!(
        (code, &report["scrub"]["copies"]),
        (0, &2.into()),
        "{report}"
    );
    harm_file(&local_file(&data, "a", &bytes), Harm::FlipLast, &bytes);
    let harmed = std::fs::read(local_file(&data, "a", &bytes)).unwrap();
    let (code, report) = run_json(&scrub);
    assert_eq!(
        (code, &report["scrub"]["findings"][0]["repaired"]),
        (5, &false.into()),
        "{report}"
    );
    assert_eq!(
        std::fs::read(local_file(&data, "a", &bytes)).unwrap(),
        harmed
    );
    let (code, report) = run_json(&[&scrub[..], &["--apply"]].concat());
    assert_eq!(
        (code, &report["scrub"]["findings"][0]["repaired"]),
        (0, &true.into()),
        "{report}"
    );
    assert_eq!(
        std::fs::read(local_file(&data, "a", &bytes)).unwrap(),
        bytes
    );
    // A look from outside, for whoever has no local directory.
    let recover = ["blob", "recover", "--ha", &ha_text];
    assert_eq!(run_json(&recover).0, 0);
    let object = object_of(&stores, &ha, &bytes).await;
    harm_object(&stores, &object, Harm::Truncate, &bytes).await;
    let (code, found) = run_json(&recover);
    assert_eq!(
        (code, &found["jobs"][0]["missing"][0]),
        (5, &Digest::of(&bytes).to_string().into())
    );
    let gc = ["blob", "gc", "--data", data_text, "--ha", &ha_text];
    assert_eq!(command(&gc).output().unwrap().status.code(), Some(5));
    assert_eq!(run_json(&[&scrub[..], &["--apply"]].concat()).0, 0);
    assert_eq!(run_json(&recover).0, 0);
}

/// Of a job whose manifest cannot be read nothing is served and nothing touched; the others go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_manifest_stops_its_job_alone() {
    let (dir, root) = temp();
    let data = dir.path().join("data");
    let ha = root.join("ha").unwrap();
    let stores = local_stores();
    let (one, other) = (noise(6, 2000), noise(7, 2000));
    let setup = Setup::new(&data, &ha).with(&[
        "--on-exit",
        "keep",
        "--sweep-period",
        "100ms",
        "--retention-interval",
        "3s",
    ]);
    let server = with_blob(&setup, &one);
    let batch = server.batch("b", 1);
    assert!(batch.upload(&[(&other, "retained")]));
    assert_eq!(register(&server, "b", &[&other]).unwrap().status, 204);
    server.kill();
    let folder = ha.join("default/jobs/a/manifest").unwrap();
    let mut manifests: Vec<Location> = stores
        .list(&folder)
        .await
        .unwrap()
        .into_iter()
        .map(|(at, _)| at)
        .collect();
    manifests.sort_by_key(ToString::to_string);
    let newest = manifests.pop().unwrap();
    stores.delete(&newest).await.unwrap();
    stores
        .put(&newest, "{\"version\": 1, torn".into(), true)
        .await
        .unwrap();
    let before = stores
        .list(&ha.join("default/jobs/a").unwrap())
        .await
        .unwrap()
        .len();
    let server = setup.start();
    assert!(
        server.said.iter().any(|l| l.contains("not served: job a")),
        "{:?}",
        server.said
    );
    assert!(is_readable(&server, "b", &other));
    let refused = read(&server, "a", &one).unwrap();
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.text().contains("manifest"), "{}", refused.text());
    std::thread::sleep(std::time::Duration::from_secs(5));
    let after = stores
        .list(&ha.join("default/jobs/a").unwrap())
        .await
        .unwrap()
        .len();
    assert_eq!(before, after);
    assert!(local_file(&data, "a", &one).exists());
}
