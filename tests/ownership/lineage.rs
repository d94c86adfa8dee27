//! From where jobs and forks grew, where they share nothing with it any more.

use std::time::Duration;

use crate::support::engine::{checkpoint, fresh, from, job, round, start};
use crate::support::lab::Lab;
use crate::support::{fixture, fixtures, local_stores, run, run_json, temp};
use forkpoint::fork::{ForkRequest, fork};
use forkpoint::ownership::{FamilyTree, GrowthEvidence, Lineage, family_tree, survey};
use forkpoint::progress::{Cancel, Silent};
use forkpoint::restore::Naming;
use forkpoint::snapshot::{CommitObject, RestoreMode};
use forkpoint::store::{Location, Stores};
use serde_json::{Value, json};

async fn tree(stores: &Stores, roots: &[Location]) -> FamilyTree {
    let seen = survey(stores, roots, &Silent).await.unwrap();
    family_tree(&Lineage::new(&seen), &seen.roots)
}

async fn fork_to(
    stores: &Stores,
    snapshot: &Location,
    root: &Location,
    naming: Naming,
) -> Location {
    let mut request = ForkRequest::new(snapshot.clone(), root.clone());
    request.naming = naming;
    // A file system may tell times in milliseconds.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let done = fork(stores, &request, &Silent, &Cancel::default()).await;
    done.unwrap().snapshot
}

/// Which snapshot the one in this folder was started from, and what says so.
fn origin(tree: &FamilyTree, snapshot: &Location) -> Option<(Location, GrowthEvidence)> {
    let (branch, place) = tree.find(snapshot).unwrap();
    let from = tree.branches[branch].snapshots[place]
        .started_from
        .clone()?;
    Some((from.directory, from.evidence))
}

#[tokio::test]
async fn a_fork_of_every_fixture_is_shown_as_started_from_its_source_if_it_has_any_object() {
    let (mut by_names, mut by_objects) = (0, 0);
    for fixture in fixtures() {
        for naming in [Naming::Engine, Naming::WholeKeys] {
            let (_dir, root) = temp();
            let stores = local_stores();
            let (source, target) = (root.join("prod").unwrap(), root.join("stage").unwrap());
            fixture.lay(&stores, &source).await;
            let newest = source.join(&fixture.newest()).unwrap();
            if fixture.broken().contains(&fixture.newest()) {
                continue;
            }
            let forked = fork_to(&stores, &newest, &target, naming).await;
            let tree = tree(&stores, &[source.clone(), target.clone()]).await;
            let objects = CommitObject::read(&stores, &newest).await.unwrap();
            let objects = objects.snapshot().unwrap().objects;
            let what = format!("{} {naming:?}", fixture.name);
            match origin(&tree, &forked) {
                Some((from, evidence)) => {
                    assert_eq!(from, newest, "{what}");
                    by_names += u32::from(evidence == GrowthEvidence::ForkNames);
                    by_objects += u32::from(evidence == GrowthEvidence::SameObjects);
                    let (branch, _) = tree.find(&forked).unwrap();
                    let growth = tree.branches[branch].grew_from.unwrap();
                    assert_eq!(
                        (growth.shared_objects, growth.evidence),
                        (0, evidence),
                        "{what}"
                    );
                }
                None => assert!(objects.is_empty(), "{what}: {} objects", objects.len()),
            }
            // The source grew from no fork, and without it nothing is said of the fork.
            assert_eq!(origin(&tree, &newest), None, "{what}");
            let alone = self::tree(&stores, std::slice::from_ref(&target)).await;
            assert_eq!(origin(&alone, &forked), None, "{what}");
            assert!(
                alone.branches.iter().all(|b| b.grew_from.is_none()),
                "{what}"
            );
        }
    }
    assert!(by_names > 10 && by_objects > 2, "{by_names} {by_objects}");
}

#[tokio::test]
async fn the_edge_is_in_text_document_and_picture_however_the_roots_are_given() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let (source, target) = (root.join("prod").unwrap(), root.join("stage").unwrap());
    let fixture = fixture("1.20.5-rocks-inc-p2");
    fixture.lay(&stores, &source).await;
    let newest = source.join(&fixture.newest()).unwrap();
    fork_to(&stores, &newest, &target, Naming::Engine).await;
    let (prod, stage) = (source.to_string(), target.to_string());
    for roots in [
        &["lineage", &prod, &stage][..],
        &["lineage", &prod, "--also", &stage],
        &["lineage", &stage, "--also", &prod],
        &["lineage", &root.to_string()],
    ] {
        let (code, document) = run_json(roots);
        assert_eq!(code, 0);
        let jobs = document["jobs"].as_array().unwrap();
        let grown: Vec<&Value> = jobs.iter().filter(|j| !j["grew_from"].is_null()).collect();
        assert_eq!(grown.len(), 1, "{document}");
        let growth = &grown[0]["grew_from"];
        assert_eq!(growth["evidence"], json!("fork-names"));
        assert_eq!(growth["shared_objects"], json!(0));
        let at = |n: &Value| n.as_u64().unwrap() as usize;
        let from = &jobs[at(&growth["branch"])]["snapshots"][at(&growth["snapshot"])];
        assert_eq!(from["directory"], json!(newest.to_string()));
        let text = String::from_utf8(run(roots).stdout).unwrap();
        assert_eq!(
            text.matches(", started from it, independent").count(),
            1,
            "{text}"
        );
        let picture = run(&[roots, &["--format", "svg"]].concat()).stdout;
        let picture = String::from_utf8(picture).unwrap();
        assert_eq!(picture.matches("stroke-dasharray").count(), 1, "{picture}");
    }
    for alone in [&prod, &stage] {
        let (_, document) = run_json(&["lineage", alone]);
        assert!(!document.to_string().contains("grew_from"), "{document}");
        let picture = run(&["lineage", alone, "--format", "svg"]).stdout;
        assert!(
            !String::from_utf8(picture)
                .unwrap()
                .contains("stroke-dasharray")
        );
    }
}

#[tokio::test]
async fn each_fork_to_one_root_has_an_edge_of_its_own() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let (home, target) = (root.join("orders").unwrap(), root.join("kept").unwrap());
    let running = fresh(&stores, &home, &job()).await;
    let mut forks = Vec::new();
    for n in 1..=3 {
        let directory = checkpoint(&stores, &running, round(n)).await.directory;
        if n != 2 {
            let forked = fork_to(&stores, &directory, &target, Naming::Engine).await;
            forks.push((forked, directory));
        }
    }
    let tree = tree(&stores, std::slice::from_ref(&root)).await;
    for (forked, source) in &forks {
        let proven = (source.clone(), GrowthEvidence::ForkNames);
        assert_eq!(origin(&tree, forked), Some(proven));
    }
    let text = String::from_utf8(run(&["lineage", &root.to_string()]).stdout).unwrap();
    assert_eq!(
        text.matches("started from it, independent").count(),
        1,
        "{text}"
    );
    let second = format!(", started from {}, independent", forks[1].1);
    assert_eq!(text.matches(&second).count(), 1, "{text}");
    let picture = run(&["lineage", &root.to_string(), "--format", "svg"]).stdout;
    let picture = String::from_utf8(picture).unwrap();
    assert_eq!(picture.matches("stroke-dasharray").count(), 2, "{picture}");
}

#[tokio::test]
async fn a_job_started_without_claim_is_shown_as_long_as_it_refers_to_a_duplicate() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let (source, home) = (root.join("prod").unwrap(), root.join("copy").unwrap());
    let running = fresh(&stores, &source, &job()).await;
    checkpoint(&stores, &running, round(1)).await;
    let snapshot = checkpoint(&stores, &running, round(2)).await.directory;
    checkpoint(&stores, &running, round(3)).await;
    let no_claim = from(&snapshot, RestoreMode::NoClaim);
    let (started, _) = start(&stores, &home, &job(), &no_claim).await;
    let first = checkpoint(&stores, &started, round(3)).await.directory;
    let second = checkpoint(&stores, &started, round(4)).await.directory;
    let proven = Some((snapshot.clone(), GrowthEvidence::ForkNames));
    let seen = tree(&stores, &[source.clone(), home.clone()]).await;
    for directory in [&first, &second] {
        assert_eq!(origin(&seen, directory), proven);
    }
    // The first one goes; the next still refers to what was duplicated then.
    stores
        .delete(&first.join("_forkpoint.json").unwrap())
        .await
        .unwrap();
    let seen = tree(&stores, &[source.clone(), home.clone()]).await;
    let (branch, place) = seen.find(&second).unwrap();
    assert_eq!(place, 0);
    let growth = seen.branches[branch].grew_from.unwrap();
    let from = &seen.branches[growth.branch].snapshots[growth.snapshot];
    assert_eq!(from.directory, snapshot);
    // Its source goes, and two siblings of that, with the same files, stay: neither is taken for it.
    stores
        .delete(&snapshot.join("_forkpoint.json").unwrap())
        .await
        .unwrap();
    let seen = tree(&stores, &[source, home]).await;
    assert_eq!(origin(&seen, &second), None);
    assert!(seen.branches.iter().all(|b| b.grew_from.is_none()));
}

#[tokio::test]
async fn nothing_is_made_up_where_there_is_no_evidence() {
    // A Flink job that was started without claim, and of which nobody has written anything down.
    let (_dir, root) = temp();
    let stores = local_stores();
    let chain = fixture("1.20.5-chain-noclaim");
    chain.lay(&stores, &root).await;
    let seen = tree(&stores, std::slice::from_ref(&root)).await;
    assert!(seen.branches.len() > 1);
    assert!(seen.branches.iter().all(|b| b.grew_from.is_none()));
    // Names that look like duplicates and are none, and equal numbers of two jobs.
    let lab = Lab::new();
    lab.complete("a", 4, &["a:one", "a:4/x"]).await;
    lab.complete("b", 4, &["b:one", "b:4/y"]).await;
    let name = lab.file("a:one").name().to_string();
    let like = lab
        .home("c")
        .join(&format!("shared/{name}-0123456789abcdef"));
    let like = like.unwrap();
    lab.write_at(&like).await;
    let named = [(like.to_string(), crate::support::lab::FILE_BYTES)];
    let bytes = crate::support::synthetic::numbered_metadata(4, &named);
    let at = lab.directory("c", 4).join("_metadata").unwrap();
    lab.stores.put(&at, bytes.into(), true).await.unwrap();
    let seen = tree(&lab.stores, std::slice::from_ref(&lab.root)).await;
    assert_eq!(seen.branches.len(), 3);
    for branch in &seen.branches {
        assert_eq!(branch.grew_from, None, "{}", branch.job);
        assert!(branch.snapshots.iter().all(|s| s.started_from.is_none()));
    }
}
