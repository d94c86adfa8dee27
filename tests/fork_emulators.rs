//! Forks of every fixture to each emulator, and from bucket to bucket inside each.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use forkpoint::fork::{ForkRequest, fork};
use forkpoint::progress::{Cancel, Silent};
use forkpoint::store::{Location, Method, Stores};
use forkpoint::verify::verify;
use support::{Fixture, Service, delete_all, emulator_stores, fixtures, shape, temp};

/// Forks `path` of the fixture laid at `original` to `target`, deletes the original, and checks the
/// fork. Returns the method that copied the objects.
async fn fork_and_check(
    stores: &Stores,
    fixture: &Fixture,
    path: &str,
    original: &Location,
    target: &Location,
) -> Vec<Method> {
    let context = format!("{} {path}: {original} -> {target}", fixture.name);
    fixture.lay(stores, original).await;
    let snapshot = original.join(path).unwrap();
    let before = shape(stores, &snapshot).await;
    let request = ForkRequest::new(snapshot, target.clone());
    let report = fork(stores, &request, &Silent, &Cancel::default())
        .await
        .unwrap_or_else(|e| panic!("{context}: {e:?}"));
    assert!(report.independent, "{context}");
    assert_eq!(report.copied, report.objects, "{context}");
    assert_eq!(
        verify(stores, &report.snapshot, &Silent)
            .await
            .unwrap()
            .problems,
        [],
        "{context}"
    );
    delete_all(stores, original).await;
    assert_eq!(
        verify(stores, &report.snapshot, &Silent)
            .await
            .unwrap()
            .problems,
        [],
        "{context}"
    );
    assert_eq!(shape(stores, &report.snapshot).await, before, "{context}");
    delete_all(stores, target).await;
    report.methods.into_keys().collect()
}

async fn from_local_disk(service: Service) {
    if !service.is_there("forks from local disk") {
        return;
    }
    let stores = emulator_stores();
    for fixture in fixtures() {
        let (_dir, root) = temp();
        let target = service.place(0, "fork");
        let methods = fork_and_check(&stores, &fixture, &fixture.newest(), &root, &target).await;
        assert!(methods.is_empty() || methods == [Method::Relay]);
    }
}

async fn to_another_bucket(service: Service, method: Method) {
    if !service.is_there("forks to another bucket") {
        return;
    }
    let stores = emulator_stores();
    for fixture in fixtures() {
        let (original, target) = (service.place(0, "original"), service.place(1, "fork"));
        let methods =
            fork_and_check(&stores, &fixture, &fixture.newest(), &original, &target).await;
        assert!(methods.is_empty() || methods == [method]);
    }
}

#[tokio::test]
async fn every_fixture_forks_from_local_disk_to_s3() {
    from_local_disk(Service::S3).await;
}

#[tokio::test]
async fn every_fixture_forks_from_local_disk_to_gcs() {
    from_local_disk(Service::Gcs).await;
}

#[tokio::test]
async fn every_fixture_forks_from_local_disk_to_azure() {
    from_local_disk(Service::Azure).await;
}

#[tokio::test]
async fn every_fixture_forks_from_bucket_to_bucket_inside_s3() {
    to_another_bucket(Service::S3, Method::S3Copy).await;
}

#[tokio::test]
async fn every_fixture_forks_from_bucket_to_bucket_inside_gcs() {
    to_another_bucket(Service::Gcs, Method::GcsRewrite).await;
}

#[tokio::test]
async fn every_fixture_forks_from_container_to_container_inside_azure() {
    to_another_bucket(Service::Azure, Method::AzureCopy).await;
}

#[tokio::test]
async fn a_fork_goes_from_service_to_service_and_back_to_disk() {
    for (from, to) in [
        (Service::S3, Service::Gcs),
        (Service::Gcs, Service::Azure),
        (Service::Azure, Service::S3),
    ] {
        if !from.is_there("forks between services") || !to.is_there("forks between services") {
            continue;
        }
        let stores = emulator_stores();
        let fixture = support::fixture("1.20.5-filemerge-p2");
        let methods = fork_and_check(
            &stores,
            &fixture,
            &fixture.newest(),
            &from.place(0, "original"),
            &to.place(0, "fork"),
        )
        .await;
        assert_eq!(methods, [Method::Relay]);
        let (_dir, root) = temp();
        let methods = fork_and_check(
            &stores,
            &fixture,
            &fixture.newest(),
            &from.place(0, "original"),
            &root,
        )
        .await;
        assert_eq!(methods, [Method::Relay]);
    }
}

/// A small container beside a MinIO may have no certificate of any authority: plain HTTP needs none, and HTTPS says so.
#[tokio::test]
async fn without_certificates_plain_http_works_and_https_says_what_is_missing() {
    let (_dir, here) = temp();
    let folder = here.local_path().unwrap();
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("file");
    std::fs::write(&file, b"content").unwrap();
    let bare = |args: &[&str]| {
        let mut command = support::command(args);
        let nowhere = folder.join("nowhere");
        command.env("SSL_CERT_FILE", &nowhere);
        command.env("SSL_CERT_DIR", &nowhere);
        command
    };
    for service in [Service::S3, Service::Gcs, Service::Azure] {
        if !service.is_there("plain HTTP without certificates") {
            continue;
        }
        let to = service.place(0, "bare").join("file").unwrap();
        let output = bare(&["duplicate", file.to_str().unwrap(), &to.to_string()])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
    }
    let output = bare(&["usage", "s3://bucket/folder"])
        .env("AWS_ENDPOINT_URL", "https://127.0.0.1:9")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("SSL_CERT_FILE"), "{said}");
}
