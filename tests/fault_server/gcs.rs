//! The rules of Google Cloud Storage.

use std::time::Duration;

use bytes::Bytes;
use forkpoint::store::{DuplicateOptions, Location, Method};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, WriteMultipart,
};
use serde_json::Value;

use crate::fault::{FaultServer, Kind, Service};

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

async fn rewrite(server: &FaultServer, from: &str, to: &str, query: &str) -> (u16, Value) {
    let path = format!("/storage/v1/b/one/o/{from}/rewriteTo/b/two/o/{to}?{query}");
    let answer = server
        .request(Service::Gcs, "POST", &path, &[], Bytes::from_static(b"{}"))
        .await;
    let json = serde_json::from_slice(&answer.body).unwrap_or_default();
    (answer.status, json)
}

/// A token as it stands in a query.
fn token(answer: &Value) -> String {
    let token = answer["rewriteToken"].as_str().unwrap();
    url::form_urlencoded::byte_serialize(token.as_bytes()).collect()
}

#[tokio::test]
async fn the_store_client_puts_gets_lists_copies_and_deletes() {
    let server = FaultServer::start().await;
    let store = server.gcs("one");
    let at = Path::from("folder/a b");
    let first = store.put(&at, "1".into()).await.unwrap();
    let second = store.put(&at, "22".into()).await.unwrap();
    let number = |v: &Option<String>| v.as_deref().unwrap().parse::<u64>().unwrap();
    assert!(number(&second.version) > number(&first.version));
    let create = PutOptions::from(PutMode::Create);
    let again = store.put_opts(&at, "3".into(), create).await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })));
    let stale = PutOptions::from(PutMode::Update(first.clone().into()));
    let stale = store.put_opts(&at, "3".into(), stale).await;
    assert!(matches!(stale, Err(Error::Precondition { .. })));
    let old = GetOptions {
        version: first.version,
        ..Default::default()
    };
    assert!(matches!(
        store.get_opts(&at, old).await,
        Err(Error::NotFound { .. })
    ));
    let to = Path::from("folder/copy");
    store.copy(&at, &to).await.unwrap();
    assert!(matches!(
        store.copy_if_not_exists(&at, &to).await,
        Err(Error::AlreadyExists { .. })
    ));
    assert_eq!(store.get(&to).await.unwrap().bytes().await.unwrap(), "22");
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    assert_eq!(listed.len(), 2);
    store.delete(&at).await.unwrap();
    assert_eq!(server.keys(Service::Gcs, "one"), ["folder/copy"]);
}

#[tokio::test]
async fn an_upload_in_parts_is_one_object() {
    let server = FaultServer::start().await;
    server.put_seed(Service::Gcs, "one", "a", 3, 12 * MIB);
    let store = server.gcs("two");
    let at = Path::from("b");
    let mut upload = WriteMultipart::new(store.put_multipart(&at).await.unwrap());
    let read = server.gcs("one").get(&Path::from("a")).await.unwrap();
    upload.write(&read.bytes().await.unwrap());
    let put = upload.finish().await.unwrap();
    assert!(put.version.is_some());
    assert!(server.same(Service::Gcs, ("one", "a"), ("two", "b")));
}

#[tokio::test]
async fn a_rewrite_takes_several_calls_and_every_token_can_be_repeated() {
    let server = FaultServer::start().await;
    server.put_seed(Service::Gcs, "one", "a", 3, 5 * MIB);
    server.faults().rewrite_bytes_per_call = 2 * MIB;
    let (status, first) = rewrite(&server, "a", "b", "").await;
    assert_eq!((status, &first["done"]), (200, &false.into()));
    assert_eq!(first["totalBytesRewritten"], (2 * MIB).to_string());
    assert!(server.keys(Service::Gcs, "two").is_empty());
    let query = format!("rewriteToken={}", token(&first));
    let (_, second) = rewrite(&server, "a", "b", &query).await;
    let (_, repeated) = rewrite(&server, "a", "b", &query).await;
    assert_eq!(repeated["totalBytesRewritten"], (4 * MIB).to_string());
    let query = format!("rewriteToken={}", token(&second));
    let (_, third) = rewrite(&server, "a", "b", &query).await;
    assert_eq!(third["done"], true);
    assert_eq!(third["resource"]["size"], (5 * MIB).to_string());
    assert!(server.same(Service::Gcs, ("one", "a"), ("two", "b")));
}

#[tokio::test]
async fn a_token_is_bound_to_its_pair_and_grows_old() {
    let server = FaultServer::start().await;
    server.put_seed(Service::Gcs, "one", "a", 3, 5 * MIB);
    server.put_seed(Service::Gcs, "one", "other", 4, 5 * MIB);
    server.faults().rewrite_bytes_per_call = MIB;
    let (_, first) = rewrite(&server, "a", "b", "").await;
    let query = format!("rewriteToken={}", token(&first));
    assert_eq!(rewrite(&server, "a", "c", &query).await.0, 400);
    assert_eq!(rewrite(&server, "other", "b", &query).await.0, 400);
    assert_eq!(rewrite(&server, "a", "b", "rewriteToken=none").await.0, 410);
    server.faults().rewrite_token_lasts = Duration::ZERO;
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(rewrite(&server, "a", "b", &query).await.0, 410);
}

#[tokio::test]
async fn generations_are_preconditions() {
    let server = FaultServer::start().await;
    server.put_seed(Service::Gcs, "one", "a", 3, 10);
    server.put_seed(Service::Gcs, "two", "taken", 4, 10);
    let now = server.get(Service::Gcs, "one", "a").unwrap().generation;
    let there = server.get(Service::Gcs, "two", "taken").unwrap().generation;
    for (to, query, expected) in [
        ("taken", "ifGenerationMatch=0".to_string(), 412),
        ("taken", format!("ifGenerationMatch={}", there + 1), 412),
        ("b", "ifSourceGenerationMatch=1".to_string(), 412),
        ("b", "ifGenerationMatch=x".to_string(), 400),
        (
            "b",
            format!("ifGenerationMatch=0&ifSourceGenerationMatch={now}"),
            200,
        ),
        ("taken", format!("ifGenerationMatch={there}"), 200),
    ] {
        let (status, answer) = rewrite(&server, "a", to, &query).await;
        assert_eq!(status, expected, "{to}?{query}: {answer}");
    }
    assert_eq!(rewrite(&server, "none", "b", "").await.0, 404);
}

#[tokio::test]
async fn the_json_listing_shows_generations() {
    let server = FaultServer::start().await;
    server.fill(Service::Gcs, "one", "x/", 1500, 10);
    let (mut next, mut names) = (String::new(), Vec::new());
    loop {
        let path = format!(
            "/storage/v1/b/one/o?prefix=x/&fields=items(name,generation),nextPageToken&pageToken={next}"
        );
        let answer = server
            .request(Service::Gcs, "GET", &path, &[], Bytes::new())
            .await;
        let page: Value = serde_json::from_slice(&answer.body).unwrap();
        for item in page["items"].as_array().unwrap() {
            assert!(item["generation"].as_str().unwrap().parse::<u64>().is_ok());
            names.push(item["name"].as_str().unwrap().to_string());
        }
        match page["nextPageToken"].as_str() {
            Some(token) => next = token.to_string(),
            None => break,
        }
    }
    assert_eq!(names, server.keys(Service::Gcs, "one"));
    assert_eq!(server.log().count(Kind::List), 2);
}

#[tokio::test]
async fn our_stores_rewrite_until_it_is_done() {
    let server = FaultServer::start().await;
    server.put_seed(Service::Gcs, "one", "a", 3, 10 * GIB);
    server.faults().rewrite_bytes_per_call = GIB;
    let from = Location::parse("gs://one/a").unwrap();
    let to = Location::parse("gs://two/b").unwrap();
    let receipt = server
        .stores()
        .duplicate(&from, &to, &DuplicateOptions::default())
        .await
        .unwrap();
    assert_eq!(receipt.method, Method::GcsRewrite);
    assert_eq!(server.log().count(Kind::Rewrite), 10);
    assert!(server.same(Service::Gcs, ("one", "a"), ("two", "b")));
}
