//! Cleans while the store misbehaves: never a wrong delete, and the rerun finishes.

use crate::fault::{Action, FaultServer, Kind, Rule, Service};
use crate::support::lab::Lab;
use crate::tampered::Tampered;
use bytes::Bytes;
use forkpoint::ErrorKind;
use forkpoint::ownership::clean::{
    ApplyOptions, PlanSource, SpareReason, Status, apply_plan, plan_clean,
};
use forkpoint::ownership::{Access, CleanPolicy, Lineage, MissingReason, survey, usage};
use forkpoint::progress::{Cancel, Silent};
use forkpoint::store::Location;

const SERVICES: [Service; 3] = [Service::S3, Service::Gcs, Service::Azure];

fn scheme(service: Service) -> &'static str {
    match service {
        Service::S3 => "s3",
        Service::Gcs => "gs",
        Service::Azure => "az",
    }
}

/// Two jobs: of job a the first two go, of job b all stay; they share files.
async fn laid(lab: &Lab) {
    lab.complete("a", 1, &["a:1/x", "a:one", "a:two", "a:both"])
        .await;
    lab.complete("a", 2, &["a:2/x", "a:two", "a:three", "a:both"])
        .await;
    lab.complete("a", 3, &["a:3/x", "a:three"]).await;
    lab.complete("b", 4, &["b:4/x", "a:both"]).await;
    lab.write("a:lost").await;
}

const GOES: [&str; 5] = ["a:1/x", "a:2/x", "a:one", "a:two", "a:lost"];
const STAYS: [&str; 4] = ["a:3/x", "a:three", "b:4/x", "a:both"];

async fn all_there(lab: &Lab, files: &[&str]) -> bool {
    let mut there = true;
    for file in files {
        there &= lab.is_there(&lab.file(file)).await;
    }
    there
}

async fn finished(lab: &Lab) {
    assert!(all_there(lab, &STAYS).await);
    assert!(lab.has(&lab.directory("a", 3)).await && lab.has(&lab.directory("b", 4)).await);
    for file in GOES {
        assert!(!lab.is_there(&lab.file(file)).await, "{file}");
    }
    assert!(!lab.has(&lab.directory("a", 1)).await && !lab.has(&lab.directory("a", 2)).await);
}

async fn bench(service: Service) -> (FaultServer, Lab) {
    let server = FaultServer::start().await;
    let root = crate::support::at(&format!(
        "{}://{}/ckpt",
        scheme(service),
        crate::fault::BUCKETS[0]
    ));
    let stores = server.stores();
    let root = stores.real(&root).await.unwrap();
    let lab = Lab::at(stores, root);
    laid(&lab).await;
    (server, lab)
}

#[tokio::test]
async fn nothing_is_deleted_while_a_listing_or_a_snapshot_cannot_be_read_and_the_rerun_finishes() {
    for service in SERVICES {
        let (server, lab) = bench(service).await;
        let (_, plan) = lab.plan(&["last=1"]).await;
        let denied = Action::Fail {
            status: 403,
            code: "AccessDenied",
        };
        let b = format!("ckpt/{}", lab.home("b").name());
        for rule in [
            Rule::on(Kind::List, denied.clone()),
            Rule::on(Kind::Get, denied.clone()).for_keys(&b),
        ] {
            server.add(rule);
            let e = lab.apply(&plan).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Incomplete, "{service:?}: {e:?}");
            server.faults().clear_rules();
            assert!(
                all_there(&lab, &STAYS).await && all_there(&lab, &GOES).await,
                "{service:?}"
            );
        }
        // Damaged metadata blocks too, and the plan of a damaged root is not written.
        let at = lab.directory("b", 4).join("_metadata").unwrap();
        let good = lab.stores.read(&at, 1 << 20).await.unwrap();
        lab.stores
            .put(&at, good.slice(..good.len() / 2), false)
            .await
            .unwrap();
        assert_eq!(
            lab.apply(&plan).await.unwrap_err().kind(),
            ErrorKind::Incomplete
        );
        let (blocked, text) = lab.plan(&["last=1"]).await;
        assert_eq!(blocked.missing[0].reason, MissingReason::DamagedMetadata);
        assert!(text.header().is_err());
        assert!(
            all_there(&lab, &STAYS).await && all_there(&lab, &GOES).await,
            "{service:?}"
        );
        lab.stores.put(&at, good, false).await.unwrap();
        let report = lab.apply(&plan).await.unwrap();
        assert_eq!(
            (report.status, report.failed),
            (Status::Done, 0),
            "{service:?}"
        );
        finished(&lab).await;
    }
}

#[tokio::test]
async fn deletes_that_fail_half_way_leave_whole_snapshots_or_none_and_the_rerun_finishes() {
    for service in SERVICES {
        let (server, lab) = bench(service).await;
        let (_, plan) = lab.plan(&["last=1"]).await;
        let denied = Action::Fail {
            status: 403,
            code: "AccessDenied",
        };
        // The commit objects are not let go: then nothing of their snapshots goes.
        let home = format!("ckpt/{}/chk-", lab.home("a").name());
        match service {
            Service::Gcs => server.add(Rule::on(Kind::Delete, denied.clone()).for_keys(&home)),
            _ => server.add(Rule::on(Kind::DeleteMany, denied.clone()).times(1)),
        }
        let report = lab.apply(&plan).await.unwrap();
        assert_eq!(
            (report.status, report.failed),
            (Status::Partly, 2),
            "{service:?}: {report:?}"
        );
        assert_eq!(
            report.spared[&SpareReason::SnapshotStillThere],
            4,
            "{service:?}"
        );
        assert!(report.failures[0].contains("denied"), "{report:?}");
        assert!(
            lab.has(&lab.directory("a", 1)).await
                && all_there(&lab, &["a:one", "a:1/x", "a:two"]).await
        );
        server.faults().clear_rules();
        // They go, and then the others are not let go.
        match service {
            Service::Gcs => server.add(
                Rule::on(Kind::Delete, denied)
                    .for_keys(&format!("ckpt/{}/shared", lab.home("a").name())),
            ),
            _ => server.add(Rule::on(Kind::DeleteMany, denied).after(1)),
        }
        let report = lab.apply(&plan).await.unwrap();
        assert_eq!(report.status, Status::Partly, "{service:?}");
        assert!(!lab.has(&lab.directory("a", 1)).await && all_there(&lab, &STAYS).await);
        server.faults().clear_rules();
        // The reply to a delete is lost: it is repeated.
        server.add(
            Rule::always(Action::LoseReply { after: None })
                .and_on(Kind::DeleteMany)
                .and_on(Kind::Delete)
                .times(1),
        );
        let report = lab.apply(&plan).await.unwrap();
        assert_eq!(report.status, Status::Done, "{service:?}: {report:?}");
        finished(&lab).await;
        assert!(
            lab.stores
                .list(&lab.root.join(".forkpoint").unwrap())
                .await
                .unwrap()
                .is_empty()
        );
    }
}

#[tokio::test]
async fn odd_keys_are_seen_and_left_or_make_the_evidence_incomplete() {
    for service in SERVICES {
        let (server, lab) = bench(service).await;
        let bucket = match service {
            Service::Azure => format!("{}/{}", crate::fault::ACCOUNTS[0], crate::fault::BUCKETS[0]),
            _ => crate::fault::BUCKETS[0].to_string(),
        };
        let home = lab.home("a").key().to_string();
        server.put_bytes(service, &bucket, &format!("{home}/shared/"), b"");
        let markers_only = lab.plan(&["last=1"]).await.0;
        assert_eq!(markers_only.missing, [], "{service:?}");
        let odd = [
            format!("{home}//shared/x"),
            format!("{home}/./shared/y"),
            format!("{home}/shared/z\u{1}z"),
        ];
        for key in &odd {
            server.put_bytes(service, &bucket, key, b"x");
        }
        let (plan, text) = lab.plan(&["last=1"]).await;
        if service == Service::S3 {
            let survey = lab.look().await;
            let usage = usage(&Lineage::new(&survey), std::slice::from_ref(&lab.root), 0);
            assert_eq!(usage.classes["unknown"].objects, 3);
            assert_eq!(usage.classes["marker"].objects, 1);
            let report = lab.apply(&text).await.unwrap();
            assert_eq!(report.status, Status::Done);
            finished(&lab).await;
        } else {
            assert_eq!(
                plan.missing[0].reason,
                MissingReason::IncompleteListing,
                "{service:?}"
            );
            assert!(text.header().is_err());
        }
        let keys = server.keys(service, &bucket);
        for key in &odd {
            assert!(keys.contains(key), "{service:?}: {key:?}");
        }
    }
}

#[tokio::test]
async fn a_thousand_objects_are_deleted_with_one_request_and_few_by_sixteen_at_once() {
    let (server, lab) = bench(Service::S3).await;
    for (objects, requests) in [(64, 1), (200, 4), (2_500, 16), (20_000, 20)] {
        let names: Vec<String> = (0..objects).map(|n| format!("a:n{n}")).collect();
        let files: Vec<Location> = names.iter().map(|n| lab.file(n)).collect();
        server.log().reset();
        let outcomes = lab.stores.delete_all(files).await;
        let deleted = outcomes.iter().filter(|(_, r)| r.is_ok()).count();
        assert_eq!(deleted, objects);
        assert_eq!(server.log().count(Kind::DeleteMany), requests, "{objects}");
    }
}

#[tokio::test]
async fn a_listing_that_is_cut_short_without_a_word_never_costs_an_object_in_use() {
    let options = ApplyOptions {
        grace_ms: 0,
        max_delete: None,
    };
    for after in 0..20 {
        for at_plan in [true, false] {
            let lab = Lab::new();
            laid(&lab).await;
            let cut = Tampered::cut_after(&lab.stores, after);
            let whole = lab.stores.clone();
            let (first, second): (&dyn Access, &dyn Access) = if at_plan {
                (&cut, &whole)
            } else {
                (&whole, &cut)
            };
            let survey = survey(first, std::slice::from_ref(&lab.root), &Silent)
                .await
                .unwrap();
            let lineage = Lineage::new(&survey);
            let policy = CleanPolicy {
                keep: vec!["last=1".parse().unwrap()],
                min_age_ms: 0,
            };
            let roots = std::slice::from_ref(&lab.root);
            let plan = plan_clean(&lineage, roots, &[], &policy, survey.taken_at + 1);
            let mut text = Vec::new();
            if plan.write(&lineage, &mut text).is_ok() {
                let text = PlanSource::Text(Bytes::from(text));
                let _ = apply_plan(second, &text, &options, &Silent, &Cancel::default()).await;
            }
            assert!(
                all_there(&lab, &STAYS).await,
                "cut after {after}, in the plan: {at_plan}"
            );
            assert!(lab.has(&lab.directory("b", 4)).await && lab.has(&lab.directory("a", 3)).await);
            lab.clean(&["last=1"]).await;
            finished(&lab).await;
        }
    }
}
