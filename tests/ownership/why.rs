//! "May I delete chk-42?" on real checkpoints and on the histories that users report.

use crate::support::{fixture, fixtures, local_stores, temp};
use forkpoint::ownership::{Answer, Lineage, NeedReason, Survey, Verdict, judge, survey};
use forkpoint::progress::Silent;
use forkpoint::store::{Location, Stores};

async fn look(stores: &Stores, root: &Location) -> Survey {
    survey(stores, std::slice::from_ref(root), &Silent)
        .await
        .unwrap()
}

fn verdict(survey: &Survey, snapshot: &Location) -> Verdict {
    let lineage = Lineage::new(survey);
    let node = survey
        .find(snapshot)
        .unwrap_or_else(|| panic!("no {snapshot}"));
    judge(&lineage, node, survey.taken_at).unwrap()
}

/// Lays a chain fixture and returns the verdict on the older job's snapshot.
async fn verdict_on_older_job(name: &str, path_of_job: &str) -> Verdict {
    let (_dir, root) = temp();
    let stores = local_stores();
    let chain = fixture(name);
    chain.lay(&stores, &root).await;
    let oldest = chain
        .snapshots()
        .into_iter()
        .find(|p| chain.about(p)["job"] == path_of_job)
        .unwrap();
    let survey = look(&stores, &root).await;
    assert_eq!(survey.missing, []);
    verdict(&survey, &root.join(&oldest).unwrap())
}

#[tokio::test]
async fn a_claimed_and_a_legacy_restored_snapshot_is_kept_and_a_no_claim_one_may_go() {
    let claim = verdict_on_older_job("1.20.5-chain-claim", "a").await;
    assert_eq!(claim.answer, Answer::Kept);
    let users: Vec<&str> = claim
        .reasons
        .iter()
        .map(|r| match r {
            NeedReason::UsedBy { snapshot, .. } => snapshot.name.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(users, ["chk-4", "chk-5"]);
    assert!(claim.freed.bytes < claim.total.bytes, "{claim:?}");
    let legacy = verdict_on_older_job("1.20.5-chain-legacy", "a").await;
    assert_eq!(legacy.answer, Answer::Kept);
    let no_claim = verdict_on_older_job("1.20.5-chain-noclaim", "a").await;
    assert_eq!(no_claim.answer, Answer::Deletable, "{no_claim:?}");
    assert_eq!(no_claim.freed, no_claim.total);
}

#[tokio::test]
async fn every_fixture_is_understood_whole() {
    for fixture in fixtures() {
        let (_dir, root) = temp();
        let stores = local_stores();
        fixture.lay(&stores, &root).await;
        let survey = look(&stores, &root).await;
        assert_eq!(survey.missing, [], "{}", fixture.name);
        assert!(!survey.nodes.is_empty());
        for node in &survey.nodes {
            let broken = fixture
                .broken()
                .iter()
                .any(|p| root.join(p).unwrap() == node.directory);
            assert_eq!(node.missing > 0, broken, "{} {}", fixture.name, node.id);
        }
    }
}
