//! An HA store whose answers are late, lost, or those of another place: what a server concludes from them.

use std::collections::BTreeSet;
use std::time::Duration;

use forkpoint::store::Location;

use super::fault::{Action, FaultServer, Kind, Rule, Service};
use super::harness::*;
use super::outage::on_fault_server;
use super::support::{local_stores, temp};

const MANIFESTS: &str = "ha/default/jobs/a/manifest";

fn objects(fault: &FaultServer, job: &str) -> usize {
    let below = format!("/jobs/{job}/retained/");
    let keys = fault.keys(Service::S3, "one");
    keys.iter().filter(|k| k.contains(&below)).count()
}

/// The end of a job was written and nobody heard of it: the job goes on, and so do its objects.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_nobody_answered_removes_nothing() {
    let fault = FaultServer::start().await;
    let (dir, _) = temp();
    let setup = on_fault_server(&dir.path().join("data"), &fault);
    let server = setup.start();
    let (held, late) = (noise(1, 50_000), noise(2, 60_000));
    assert!(server.batch("a", 1).upload(&[(&held, "retained")]));
    assert_eq!(register(&server, "a", &[&held]).unwrap().status, 204);
    let open = server.batch("a", 2);
    assert_eq!(open.begin(&[(&late, "retained")]).unwrap().status, 201);

    // The manifest is made, and what would tell so is not heard.
    let lost = Action::LoseReply { after: None };
    fault.add(Rule::on(Kind::Put, lost).for_keys(MANIFESTS).times(1));
    fault.add(
        Rule::on(Kind::List, Action::Reset)
            .for_keys(MANIFESTS)
            .after(1),
    );
    assert_eq!(finish(&server, "a").unwrap().status, 503);
    let newest = || {
        let keys = fault.keys(Service::S3, "one");
        let key = keys
            .into_iter()
            .rfind(|k| k.starts_with(MANIFESTS))
            .unwrap();
        let object = fault.get(Service::S3, "one", &key).unwrap();
        String::from_utf8(object.content.read(0..object.content.len()).to_vec()).unwrap()
    };
    assert!(newest().contains("terminal"), "{}", newest());
    // In the same outage an upload fails half-way: there is something to sweep.
    fault.add(Rule::on(Kind::Put, Action::Reset));
    assert_eq!(open.send(&late).unwrap().status, 503);
    fault.faults().clear_rules();

    let swept = server.metric("forkpoint_blob_sweeps_total");
    let thrice = || async { server.metric("forkpoint_blob_sweeps_total") >= swept + 3 };
    until_asked("three sweeps", thrice).await;
    assert_eq!(objects(&fault, "a"), 1, "the object of a held blob is gone");
    assert!(open.upload(&[(&late, "retained")]));
    assert_eq!(register(&server, "a", &[&held, &late]).unwrap().status, 204);
    server.kill();
    std::fs::remove_dir_all(dir.path().join("data")).unwrap();
    let server = setup.start();
    assert!(is_readable(&server, "a", &held) && is_readable(&server, "a", &late));
}

/// A member takes longer to the HA store than a session may be idle.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_does_not_lapse_while_its_member_is_on_its_way() {
    let fault = FaultServer::start().await;
    let (dir, _) = temp();
    let server = on_fault_server(&dir.path().join("data"), &fault)
        .with(&["--upload-idle-ttl", "3s"])
        .but("--ha-patience", "20s")
        .start();
    let bytes = noise(1, 5000);
    let slow = Action::Delay(Duration::from_secs(7));
    fault.add(
        Rule::on(Kind::Put, slow)
            .for_keys("ha/default/jobs/a/retained")
            .times(1),
    );
    let batch = server.batch("a", 1);
    assert_eq!(batch.begin(&[(&bytes, "retained")]).unwrap().status, 201);
    let sent = batch.send(&bytes).unwrap();
    assert_eq!(sent.status, 200, "{}", sent.text());
    assert_eq!(batch.commit().unwrap().status, 200);
    assert!(is_readable(&server, "a", &bytes));
    // One from which nothing comes does lapse.
    let idle = server.batch("a", 2);
    assert_eq!(
        idle.begin(&[(&noise(2, 10), "retained")]).unwrap().status,
        201
    );
    let lapsed = || async { server.metric("forkpoint_blob_sessions") == 0 };
    until_asked("an idle session lapses", lapsed).await;
}

/// A folder of the HA store that is not mounted any more is empty: that is no answer.
#[tokio::test(flavor = "multi_thread")]
async fn an_ha_folder_that_goes_away_acknowledges_nothing() {
    let (dir, root) = temp();
    let ha = root.join("ha").unwrap();
    let place = dir.path().join("ha");
    let away = dir.path().join("away");
    let setup = Setup::new(&dir.path().join("data"), &ha).with(&["--ha-patience", "5s"]);
    let server = setup.start();
    let (held, late) = (noise(1, 5000), noise(2, 6000));
    assert!(server.batch("a", 1).upload(&[(&held, "retained")]));
    assert_eq!(register(&server, "a", &[&held]).unwrap().status, 204);

    std::fs::rename(&place, &away).unwrap();
    std::fs::create_dir(&place).unwrap();
    assert!(is_readable(&server, "a", &held));
    // Neither of a job that has a manifest nor of one that has none.
    for (job, session) in [("a", 2), ("b", 3)] {
        assert!(
            !server.batch(job, session).upload(&[(&late, "retained")]),
            "{job} was acknowledged"
        );
    }
    let failed = server.json(
        "POST",
        "/v1/jobs/a/events",
        &serde_json::json!({ "event": "failed" }),
    );
    assert_eq!(failed.unwrap().status, 503);
    // Without a local copy there is none to be had, and it is not lost for that.
    let digest = forkpoint::blob::Digest::of(&held);
    let file = format!("jobs/a/{:02x}/{digest}", digest.sha256[0]);
    std::fs::remove_file(server.data.join(file)).unwrap();
    assert_eq!(read(&server, "a", &held).unwrap().status, 503);

    std::fs::remove_dir_all(&place).unwrap();
    std::fs::rename(&away, &place).unwrap();
    assert!(is_readable(&server, "a", &held));
    for (job, session) in [("a", 4), ("b", 5)] {
        assert!(server.batch(job, session).upload(&[(&late, "retained")]));
    }
    server.kill();
    let server = setup.start();
    assert!(is_readable(&server, "a", &held));
    assert!(is_readable(&server, "a", &late) && is_readable(&server, "b", &late));
    let found = lying(&local_stores(), &ha, &server.data).await;
    let acked = BTreeSet::from([key("a", &held)]);
    assert_eq!(found.violations(&acked), []);
}

/// `gc --apply` says what it leaves, and goes by the manifests' own times where it is told to.
#[tokio::test(flavor = "multi_thread")]
async fn gc_says_that_a_take_over_begins_times_again() {
    let (dir, root) = temp();
    let ha = root.join("ha").unwrap();
    let data = dir.path().join("data");
    let server = Setup::new(&data, &ha)
        .with(&["--retention-interval", "1s", "--sweep-period", "60s"])
        .start();
    let (held, staged) = (noise(1, 500), noise(2, 600));
    assert!(server.batch("a", 1).upload(&[(&held, "retained")]));
    assert_eq!(register(&server, "a", &[&held]).unwrap().status, 204);
    assert!(server.batch("a", 2).upload(&[(&staged, "retained")]));
    server.kill();
    // An upload that was under way: young.
    let stray = format!(
        "default/jobs/a/retained/{}.1-00000000000000ff",
        forkpoint::blob::Digest::of(b"x")
    );
    let stray: Location = ha.join(&stray).unwrap();
    local_stores().put(&stray, "x".into(), true).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let ha_text = ha.to_string();
    let gc = |more: &[&str]| {
        let args = [
            "blob",
            "gc",
            "--data",
            data.to_str().unwrap(),
            "--ha",
            &ha_text,
            "--apply",
        ];
        let output = super::support::run(&[&args[..], more].concat());
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = gc(&[]);
    assert!(text.contains("0 blobs were past their time"), "{text}");
    assert!(
        text.contains("1 blob stays though nobody holds it"),
        "{text}"
    );
    // That take-over wrote nothing longer into the manifest than it was.
    let text = gc(&["--retention-interval", "0"]);
    assert!(text.contains("1 blob was past its time"), "{text}");
    assert!(!text.contains("nobody holds"), "{text}");
    let found = lying(&local_stores(), &ha, &data).await;
    let left: BTreeSet<u64> = found
        .copies
        .objects
        .iter()
        .map(|(_, o)| o.digest.size)
        .collect();
    assert_eq!(left, BTreeSet::from([1, 500]), "{text}");
    let text = gc(&["--retention-interval", "0", "--orphan-min-age", "0"]);
    assert!(text.contains("1 object removed"), "{text}");
}
