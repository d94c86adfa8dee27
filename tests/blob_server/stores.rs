//! Every kind of HA store does: the same life of a cluster on each.

use std::collections::BTreeSet;

use forkpoint::store::{Location, Stores};

use super::harness::*;
use super::support::{Service, emulator_stores, local_stores, run_json, temp};

async fn lives(stores: &Stores, ha: &Location) {
    let (dir, _) = temp();
    let data = dir.path().join("data");
    let (code, found) = run_json(&["blob", "probe", "--ha", &ha.to_string()]);
    assert_eq!(code, 0, "{found}");
    assert!(
        stores.list(ha).await.unwrap().is_empty(),
        "the probe left something"
    );

    let times = [
        "--retention-interval",
        "5s",
        "--sweep-period",
        "200ms",
        "--orphan-min-age",
        "0",
    ];
    let setup = Setup::new(&data, ha).with(&times);
    let server = setup.start();
    // One request, one part more than that, several parts.
    let blobs = [
        noise(1, 10),
        noise(2, 8 << 20),
        noise(3, (8 << 20) + 1),
        noise(4, 20 << 20),
    ];
    let members: Vec<(&[u8], &str)> = blobs.iter().map(|b| (&b[..], "retained")).collect();
    let all: Vec<&[u8]> = blobs.iter().map(|b| &b[..]).collect();
    let batch = server.batch("a", 1);
    assert!(batch.upload(&members));
    assert_eq!(register(&server, "a", &all).unwrap().status, 204);
    let acked: BTreeSet<_> = blobs.iter().map(|b| key("a", b)).collect();
    for n in 0..5u64 {
        // Batches that nobody wants: they go, and manifests do not pile up.
        let bytes = noise(10 + n, 1000);
        let batch = server.batch("a", 10 + n);
        assert!(batch.upload(&[(&bytes, "retained")]));
    }
    let tidy = || async {
        let found = lying(stores, ha, &data).await;
        assert_eq!(found.violations(&acked), []);
        found.copies.objects.len() == blobs.len() && found.manifests[&job("a")].len() <= 2
    };
    until_asked("what nobody holds goes", tidy).await;
    assert_eq!(server.stop(), Some(0));

    // Nothing local: everything comes from the HA store.
    let other = dir.path().join("other");
    let server = Setup::new(&other, ha).with(&times).start();
    assert!(
        server
            .said
            .iter()
            .any(|l| l.starts_with("epoch 2: 1 job with 4 blobs")),
        "{:?}",
        server.said
    );
    for bytes in &blobs {
        assert!(is_readable(&server, "a", bytes));
    }
    assert_eq!(server.metric("forkpoint_blob_fetches_total"), 4);
    let (code, found) = run_json(&["blob", "recover", "--ha", &ha.to_string()]);
    assert_eq!(
        (code, &found["epoch"], &found["jobs"][0]["blobs"]),
        (0, &2.into(), &4.into())
    );
    // Many want the same at once: one fetch.
    drop(server);
    let third = dir.path().join("third");
    let server = Setup::new(&third, ha).with(&times).start();
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| assert!(is_readable(&server, "a", &blobs[3])));
        }
    });
    assert_eq!(server.metric("forkpoint_blob_fetches_total"), 1);
    assert_eq!(finish(&server, "a").unwrap().status, 204);
    assert_eq!(read(&server, "a", &blobs[0]).unwrap().code(), "job-over");
    let empty = || async {
        let found = lying(stores, ha, &third).await;
        found.copies.objects.is_empty() && found.copies.local.is_empty()
    };
    until_asked("nothing is left of the job", empty).await;
    drop(server);

    // A tombstone that has had its time goes too, by the command that needs no server.
    let short = ["--tombstone-keep", "0"];
    let server = Setup::new(&third, ha).with(&times).with(&short).start();
    let forgotten = || async { lying(stores, ha, &third).await.manifests.is_empty() };
    until_asked("the tombstone goes", forgotten).await;
    drop(server);
    // What an upload left that never was committed goes by `gc`.
    let stray = "jobs/z/retained/2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881-1.1-00000000000000ff";
    stores
        .put(
            &ha.join("default").unwrap().join(stray).unwrap(),
            "x".into(),
            true,
        )
        .await
        .unwrap();
    let fourth = dir.path().join("fourth");
    let gc = [
        "blob",
        "gc",
        "--data",
        fourth.to_str().unwrap(),
        "--ha",
        &ha.to_string(),
        "--orphan-min-age",
        "0",
    ];
    let (code, dry) = run_json(&gc);
    assert_eq!((code, dry["orphans"].as_array().unwrap().len()), (0, 1));
    let (code, report) = run_json(&[&gc[..], &["--apply"]].concat());
    assert_eq!(
        (code, &report["sweep"]["removed"]),
        (0, &1.into()),
        "{report}"
    );
    let left = lying(stores, ha, &fourth).await;
    assert!(
        left.ha
            .keys()
            // And the place of the job that it was an object of.
            .all(|n| n == "format.json"
                || n.starts_with("epoch/")
                || n.starts_with("jobs/z/manifest/")),
        "{:?}",
        left.ha
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn local_disk_is_an_ha_store() {
    let (_dir, root) = temp();
    lives(&local_stores(), &root.join("ha").unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_is_an_ha_store() {
    if Service::S3.is_there("an HA store") {
        lives(&emulator_stores(), &Service::S3.place(0, "blob-ha")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn google_cloud_storage_is_an_ha_store() {
    if Service::Gcs.is_there("an HA store") {
        lives(&emulator_stores(), &Service::Gcs.place(0, "blob-ha")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn azure_is_an_ha_store() {
    if Service::Azure.is_there("an HA store") {
        lives(&emulator_stores(), &Service::Azure.place(0, "blob-ha")).await;
    }
}
