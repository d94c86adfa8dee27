//! Two servers on one cluster: the older one is deposed, whatever it was doing. What it acknowledged is kept, and
//! it deletes nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use forkpoint::store::{Location, Stores};
use serde_json::json;

use super::harness::*;
use super::support::{Service, emulator_stores, local_stores, temp};

const TIMES: [&str; 6] = [
    "--retention-interval",
    "5s",
    "--sweep-period",
    "200ms",
    "--orphan-min-age",
    "1s",
];

async fn the_older_is_deposed(stores: &Stores, ha: &Location) {
    let (dir, _) = temp();
    let (first_data, second_data) = (dir.path().join("first"), dir.path().join("second"));
    let advertise = ["--advertise", "http://second.example:7878"];
    let first = Setup::new(&first_data, ha).with(&TIMES).start();
    let (held, staged, late) = (noise(1, 60_000), noise(2, 400), noise(3, 80_000));
    let batch = |server, session| Batch {
        server,
        job: "a",
        session,
    };
    assert!(batch(&first, 1).upload(&[(&held, "retained")]));
    assert_eq!(register(&first, "a", &[&held]).unwrap().status, 204);
    assert!(batch(&first, 2).upload(&[(&staged, "retained")]));
    let answered = batch(&first, 2).commit().unwrap().json();
    // A batch that is complete and not committed, and a job that only the first one knows of.
    let open = batch(&first, 3);
    assert_eq!(open.begin(&[(&late, "retained")]).unwrap().status, 201);
    assert_eq!(open.send(&late).unwrap().status, 200);
    let unknown = first.batch("b", 4);
    assert_eq!(unknown.begin(&[(&late, "retained")]).unwrap().status, 201);
    assert_eq!(unknown.send(&late).unwrap().status, 200);

    // It is paused, so that it notices nothing, and another one takes over.
    first.pause();
    let second = Setup::new(&second_data, ha)
        .with(&TIMES)
        .with(&advertise)
        .start();
    assert!(
        second.said.iter().any(|l| l.starts_with("epoch 2:")),
        "{:?}",
        second.said
    );
    assert!(is_readable(&second, "a", &held));
    assert!(
        is_readable(&second, "a", &staged),
        "staged at the first one"
    );
    assert_eq!(read(&second, "a", &late).unwrap().code(), "not-found");
    // The session id makes the answer of a repeated commit exact: the same deadline.
    assert_eq!(batch(&second, 2).commit().unwrap().json(), answered);
    first.resume();

    // Both the job that was sealed and the one that was not.
    for batch in [&open, &unknown] {
        let refused = batch.commit().unwrap();
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (421, "not-owner")
        );
        assert_eq!(refused.json()["owner"], "http://second.example:7878");
    }
    for (method, path, body) in [
        ("GET", path("a", &held), json!({})),
        (
            "POST",
            "/v1/jobs/a/events".to_string(),
            json!({ "event": "failed" }),
        ),
        (
            "POST",
            "/v1/jobs/c/uploads".to_string(),
            json!({ "session": "0000000000000009", "members": [] }),
        ),
        ("GET", "/v1/jobs".to_string(), json!({})),
    ] {
        let answer = first.json(method, &path, &body).unwrap();
        assert_eq!(answer.status, 421, "{method} {path}: {}", answer.text());
    }
    assert_eq!(first.call("GET", "/readyz", b"").unwrap().status, 503);
    assert_eq!(first.call("GET", "/livez", b"").unwrap().status, 200);
    assert_eq!(first.metric("forkpoint_blob_fenced"), 1);
    assert_eq!(second.call("GET", "/readyz", b"").unwrap().status, 200);

    // The client repeats at the new owner.
    assert!(batch(&second, 3).upload(&[(&late, "retained")]));
    assert_eq!(register(&second, "a", &[&held, &late]).unwrap().status, 204);
    // Long after every deadline that the first one knows of.
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(first.metric("forkpoint_blob_deletes_total"), 0);
    assert!(is_readable(&second, "a", &held) && is_readable(&second, "a", &late));
    let acked = BTreeSet::from([key("a", &held), key("a", &late)]);
    let found = lying(stores, ha, &second_data).await;
    assert_eq!(found.violations(&acked), []);
    assert_eq!(first.stop(), Some(0));
    assert!(is_readable(&second, "a", &held));
    // What the first one left half done is gone: one object of each of the two contents.
    let tidy = || async { lying(stores, ha, &second_data).await.copies.objects.len() == 2 };
    until_asked("the first one's leftovers go", tidy).await;
    assert_eq!(lying(stores, ha, &second_data).await.violations(&acked), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_older_of_two_servers_is_deposed_on_local_disk() {
    let (_dir, root) = temp();
    the_older_is_deposed(&local_stores(), &root).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_older_of_two_servers_is_deposed_on_s3() {
    if Service::S3.is_there("two blob servers") {
        the_older_is_deposed(&emulator_stores(), &Service::S3.place(0, "blob-two")).await;
    }
}

/// Many take-overs while a client uploads to whoever answers: every acknowledged commit is there in the end.
#[tokio::test(flavor = "multi_thread")]
async fn take_overs_under_load_lose_nothing_acknowledged() {
    let (dir, root) = temp();
    let ha = root.join("ha").unwrap();
    let stores = local_stores();
    let times = [
        "--retention-interval",
        "60s",
        "--sweep-period",
        "100ms",
        "--orphan-min-age",
        "0",
    ];
    let mut acked = Vec::new();
    let mut deposed = 0;
    let mut current = Setup::new(&dir.path().join("0"), &ha).with(&times).start();
    for round in 1..=6u64 {
        // Uploads at the old one: before a new one begins, while it does, and after.
        let mut next = None;
        let mut after = 0;
        let mut number = 0;
        while after < 5 {
            if number == 8 {
                let setup = Setup::new(&dir.path().join(round.to_string()), &ha).with(&times);
                next = Some(std::thread::spawn(move || setup.start()));
            }
            after += u32::from(next.as_ref().is_some_and(|n| n.is_finished()));
            let id = round * 1000 + number;
            number += 1;
            let bytes = noise(id, 3000);
            let job = format!("job-{}", number % 3);
            let batch = current.batch(&job, id);
            match batch.upload(&[(&bytes, "retained")]) {
                true => acked.push((job, bytes)),
                false => deposed += 1,
            }
        }
        let before = std::mem::replace(&mut current, next.unwrap().join().unwrap());
        for (job, bytes) in &acked {
            assert!(is_readable(&current, job, bytes), "round {round}");
        }
        drop(before);
    }
    assert!(
        acked.len() >= 48 && deposed >= 6,
        "{} acknowledged, {deposed} refused",
        acked.len()
    );
    let found = lying(&stores, &ha, &dir.path().join("6")).await;
    assert_eq!(found.violations(&BTreeSet::new()), []);
}

/// A job without a manifest is not sealed by a take-over. The older owner, which does not know yet, writes its first
/// manifest: it is not acknowledged, it names nothing that the new owner has removed, and it keeps nothing alive.
async fn a_first_manifest_comes_late(stores: &Stores, ha: &Location, after_removal: bool) {
    let (dir, _) = temp();
    // It looks for a later owner when it must, and not by chance before.
    let slow = ["--retention-interval", "2s", "--sweep-period", "60s"];
    let first = Setup::new(&dir.path().join("first"), ha)
        .with(&slow)
        .start();
    let bytes = noise(1, 50_000);
    let open = first.batch("b", 1);
    assert_eq!(open.begin(&[(&bytes, "retained")]).unwrap().status, 201);
    assert_eq!(open.send(&bytes).unwrap().status, 200);
    first.pause();
    let age = if after_removal { "0" } else { "8s" };
    let setup = Setup::new(&dir.path().join("second"), ha)
        .with(&["--retention-interval", "2s", "--sweep-period", "100ms"])
        .with(&["--orphan-min-age", age]);
    let second = setup.start();
    let gone = || async {
        lying(stores, ha, &second.data)
            .await
            .copies
            .objects
            .is_empty()
    };
    match after_removal {
        true => until_asked("the object of no manifest goes", gone).await,
        false => assert!(!gone().await),
    }
    first.resume();
    let refused = open.commit().unwrap();
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (421, "not-owner")
    );
    let found = lying(stores, ha, &second.data).await;
    assert_eq!(found.violations(&BTreeSet::new()), []);
    if !after_removal {
        // The manifest was written, over an object that is there.
        let written = &found.manifests[&job("b")];
        assert!(written.values().any(|m| m.epoch == 1), "{written:?}");
    }
    // Whatever was written, the object goes, and the new owner has what it acknowledges.
    until_asked("the object goes", gone).await;
    assert_eq!(read(&second, "b", &bytes).unwrap().code(), "not-found");
    assert!(second.batch("b", 1).upload(&[(&bytes, "retained")]));
    assert_eq!(register(&second, "b", &[&bytes]).unwrap().status, 204);
    assert_eq!(first.stop(), Some(0));
    second.kill();
    let third = setup.start();
    assert!(is_readable(&third, "b", &bytes));
    let acked = BTreeSet::from([key("b", &bytes)]);
    let found = lying(stores, ha, &third.data).await;
    assert_eq!(found.violations(&acked), []);
    assert!(
        !third.said.iter().any(|l| l.contains("lost")),
        "{:?}",
        third.said
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_manifest_of_the_older_owner_comes_late() {
    for after_removal in [true, false] {
        let (_dir, root) = temp();
        a_first_manifest_comes_late(&local_stores(), &root, after_removal).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_manifest_of_the_older_owner_comes_late_on_s3() {
    if Service::S3.is_there("two blob servers") {
        let place = Service::S3.place(0, "blob-late");
        for after_removal in [true, false] {
            let ha = place.join(&after_removal.to_string()).unwrap();
            a_first_manifest_comes_late(&emulator_stores(), &ha, after_removal).await;
        }
    }
}
