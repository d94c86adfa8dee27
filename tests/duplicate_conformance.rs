//! The rules of "duplicate" on every store and between them.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fault;
mod support;

use fault::FaultServer;
use forkpoint::store::{Location, Stores, conformance};
use support::mounted::Mounted;
use support::{Service, at, emulator_stores, local_stores};

/// What a server is known to do otherwise: the rule, and why that is the server's matter.
type Excused = &'static [(&'static str, &'static str)];

async fn check(stores: &Stores, from: &Location, to: &Location, excused: Excused) {
    let cases = conformance::check_duplicate(stores, from, to)
        .await
        .unwrap();
    let broken: Vec<String> = cases
        .iter()
        .filter(|case| excused.iter().all(|(name, _)| *name != case.name))
        .filter_map(|case| {
            let why = case.result.as_ref().err()?;
            Some(format!("duplicate {}: {why}", case.name))
        })
        .collect();
    assert!(
        cases.len() >= 11 && broken.is_empty(),
        "{from} -> {to}: {broken:#?}"
    );
    for folder in [from, to] {
        let left = stores.list(folder).await.unwrap_or_default();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory() {
    let stores = local_stores();
    let (from, to) = (at("memory:/one"), at("memory:/two"));
    check(&stores, &from, &to, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn local_disk() {
    let dir = tempfile::tempdir().unwrap();
    let root = at(dir.path().to_str().unwrap());
    let stores = local_stores();
    check(&stores, &root, &root, &[]).await;
    check(&stores, &root, &at("memory:/x"), &[]).await;
    check(&stores, &at("memory:/x"), &root, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_file_systems() {
    for make in [
        &["mkfs.ext4", "-q"][..],
        &["mkfs.xfs", "-q"],
        &["mkfs.btrfs", "-q"],
    ] {
        let Some(mounted) = Mounted::new(make) else {
            continue;
        };
        let folder = mounted.folder.join("folder");
        std::fs::create_dir(&folder).unwrap();
        let there = at(folder.to_str().unwrap());
        let stores = local_stores();
        check(&stores, &there, &there, &[]).await;
        // From one file system to another.
        let dir = tempfile::tempdir().unwrap();
        let here = at(dir.path().to_str().unwrap());
        check(&stores, &here, &there, &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_server() {
    let server = FaultServer::start().await;
    let stores = server.stores();
    let places = ["s3://one/c", "gs://one/c", "az://one/c"].map(at);
    for from in &places {
        for to in &places {
            let to = to.to_string().replace("//one/", "//two/");
            check(&stores, from, &at(&to), &[]).await;
        }
    }
}

/// Accounts of Azure whose blobs the service copies for the other.
#[tokio::test(flavor = "multi_thread")]
async fn fault_server_between_accounts() {
    let server = FaultServer::start().await;
    let (from, to) = (
        at("abfss://one@faultone.dfs.core.windows.net/c"),
        at("abfss://two@faulttwo.dfs.core.windows.net/c"),
    );
    check(&server.stores_of_both_accounts(), &from, &to, &[]).await;
}

async fn emulator(service: Service, excused: Excused) {
    if !service.is_there("the rules of duplicate") {
        return;
    }
    let stores = emulator_stores();
    let name = format!("conformance-{}", std::process::id());
    let (from, to) = (service.place(0, &name), service.place(1, &name));
    check(&stores, &from, &to, excused).await;
    let dir = tempfile::tempdir().unwrap();
    let disk = at(dir.path().to_str().unwrap());
    check(&stores, &disk, &to, excused).await;
    check(&stores, &from, &disk, excused).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_emulator() {
    emulator(Service::S3, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gcs_emulator() {
    emulator(Service::Gcs, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn azure_emulator() {
    emulator(Service::Azure, &[]).await;
}
