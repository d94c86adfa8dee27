//! The rules of Azure Blob Storage.

use std::time::Duration;

use bytes::Bytes;
use forkpoint::store::{DuplicateOptions, Location, Method};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, WriteMultipart,
};

use crate::fault::{Answer, FaultServer, Kind, Pending, PendingEnd, Service};

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;
const ONE: &str = "faultone/one";
const TWO: &str = "faultone/two";

async fn ask(server: &FaultServer, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    server
        .request(Service::Azure, method, path, headers, Bytes::new())
        .await
}

#[tokio::test]
async fn the_store_client_puts_gets_lists_copies_and_deletes() {
    let server = FaultServer::start().await;
    let store = server.azure(0, "one");
    let at = Path::from("folder/a b");
    let attributes: Attributes = [
        (Attribute::ContentType, "text/x-test"),
        (Attribute::Metadata("owner".into()), "tests"),
    ]
    .into_iter()
    .collect();
    let options = PutOptions {
        attributes: attributes.clone(),
        ..Default::default()
    };
    let first = store
        .put_opts(&at, "1".into(), options.clone())
        .await
        .unwrap();
    store.put_opts(&at, "22".into(), options).await.unwrap();
    let create = PutOptions::from(PutMode::Create);
    let again = store.put_opts(&at, "3".into(), create).await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })));
    let stale = PutOptions::from(PutMode::Update(first.into()));
    let stale = store.put_opts(&at, "3".into(), stale).await;
    assert!(matches!(stale, Err(Error::Precondition { .. })));
    let to = Path::from("folder/copy");
    store.copy(&at, &to).await.unwrap();
    assert!(matches!(
        store.copy_if_not_exists(&at, &to).await,
        Err(Error::AlreadyExists { .. })
    ));
    let copy = store.get(&to).await.unwrap();
    assert_eq!(copy.attributes, attributes);
    assert_eq!(copy.bytes().await.unwrap(), "22");
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    assert_eq!(listed.len(), 2);
    let paths = futures::stream::iter([Ok(at), Ok(to)]);
    let gone: Vec<_> = store
        .delete_stream(Box::pin(paths))
        .try_collect()
        .await
        .unwrap();
    assert_eq!(gone.len(), 2);
    assert_eq!(server.log().count(Kind::DeleteMany), 1);
    assert!(server.keys(Service::Azure, ONE).is_empty());
}

#[tokio::test]
async fn listings_are_complete_over_pages() {
    let server = FaultServer::start().await;
    server.fill(Service::Azure, ONE, "x/", 5500, 10);
    let store = server.azure(0, "one");
    let all: Vec<_> = store.list(None).try_collect().await.unwrap();
    assert_eq!(all.len(), 5500);
    let after = Path::from("x/00005497");
    let rest: Vec<_> = store
        .list_with_offset(Some(&Path::from("x")), &after)
        .try_collect()
        .await
        .unwrap();
    assert_eq!(rest.len(), 2);
    let top = store.list_with_delimiter(None).await.unwrap();
    assert_eq!(top.common_prefixes, [Path::from("x")]);
}

#[tokio::test]
async fn blocks_become_a_blob() {
    let server = FaultServer::start().await;
    server.put_seed(Service::Azure, ONE, "a", 3, 12 * MIB);
    let store = server.azure(0, "two");
    let at = Path::from("b");
    let mut upload = WriteMultipart::new(store.put_multipart(&at).await.unwrap());
    let read = server.azure(0, "one").get(&Path::from("a")).await.unwrap();
    upload.write(&read.bytes().await.unwrap());
    upload.finish().await.unwrap();
    assert!(server.same(Service::Azure, (ONE, "a"), (TWO, "b")));
    assert!(server.open_uploads(Service::Azure, TWO).is_empty());
}

#[tokio::test]
async fn blocks_are_copied_from_urls_that_may_be_read() {
    let server = FaultServer::start().await;
    server.put_seed(Service::Azure, "faulttwo/one", "a", 3, 6 * GIB);
    let etag = ask(&server, "HEAD", "/faulttwo/one/a", &[]).await;
    let etag = etag.header("etag").to_string();
    let plain = format!("{}/faulttwo/one/a", server.url(Service::Azure));
    let with_sas = format!("{plain}?sv=2020&sig=abc");
    let put = async |id: &str, url: &str, range: &str, tag: &str| {
        let path = format!("/faultone/two/b?comp=block&blockid={id}");
        let headers = [
            ("x-ms-copy-source", url),
            ("x-ms-source-range", range),
            ("x-ms-source-if-match", tag),
        ];
        let answer = ask(&server, "PUT", &path, &headers).await;
        (answer.status, answer.element("Code"))
    };
    let range = |n: u64| format!("bytes={}-{}", n * 2 * GIB, (n + 1) * 2 * GIB - 1);
    let refused = |status, code: &str| (status, code.to_string());
    assert_eq!(
        put("aaaa", &plain, &range(0), &etag).await,
        refused(403, "CannotVerifyCopySource")
    );
    assert_eq!(
        put("aaaa", &with_sas, &range(0), "\"other\"").await,
        refused(412, "SourceConditionNotMet")
    );
    for (n, id) in [(0, "aaaa"), (1, "bbbb"), (2, "cccc")] {
        assert_eq!(put(id, &with_sas, &range(n), &etag).await.0, 201);
    }
    assert_eq!(
        put("dd", &with_sas, &range(0), &etag).await,
        refused(400, "InvalidBlobOrBlock")
    );
    let path = "/faultone/two/b?comp=blocklist";
    let open = ask(&server, "GET", &format!("{path}&blocklisttype=all"), &[]).await;
    assert_eq!(open.text().matches("<Size>2147483648</Size>").count(), 3);
    let list = "<BlockList><Uncommitted>aaaa</Uncommitted><Latest>bbbb</Latest><Latest>cccc</Latest></BlockList>";
    let commit = async || {
        server
            .request(Service::Azure, "PUT", path, &[("if-none-match", "*")], list)
            .await
    };
    assert_eq!(commit().await.status, 201);
    let again = commit().await;
    assert_eq!(
        (again.status, again.header("x-ms-error-code")),
        (409, "BlobAlreadyExists")
    );
    let source = server.get(Service::Azure, "faulttwo/one", "a").unwrap();
    let copy = server.get(Service::Azure, TWO, "b").unwrap();
    assert_eq!(source.content, copy.content);
    assert_eq!(copy.content.pieces(), 1);
}

#[tokio::test]
async fn a_whole_blob_is_put_from_a_url() {
    let server = FaultServer::start().await;
    server.put_seed(Service::Azure, ONE, "a", 3, GIB);
    server.put_seed(Service::Azure, ONE, "huge", 3, 5 * GIB);
    let put = async |from: &str| {
        let url = format!("{}/{ONE}/{from}", server.url(Service::Azure));
        let headers = [
            ("x-ms-copy-source", url.as_str()),
            ("x-ms-blob-type", "BlockBlob"),
            ("if-none-match", "*"),
        ];
        ask(&server, "PUT", "/faultone/two/b", &headers)
            .await
            .status
    };
    assert_eq!(put("huge").await, 413);
    assert_eq!(put("a").await, 201);
    assert_eq!(put("a").await, 409);
    assert_eq!(server.log().count(Kind::PutFromUrl), 3);
    assert!(server.same(Service::Azure, (ONE, "a"), (TWO, "b")));
}

#[tokio::test]
async fn a_pending_copy_is_empty_until_it_ends() {
    let server = FaultServer::start().await;
    server.put_seed(Service::Azure, ONE, "a", 3, 100);
    let url = format!("{}/{ONE}/a", server.url(Service::Azure));
    let source = [("x-ms-copy-source", url.as_str())];
    let copy = async |to: &str| ask(&server, "PUT", to, &source).await;
    let look = async |at: &str| {
        let head = ask(&server, "HEAD", at, &[]).await;
        let status = head.header("x-ms-copy-status").to_string();
        (status, head.header("content-length").to_string())
    };
    let state = |status: &str, len: &str| (status.to_string(), len.to_string());
    for (to, end, status, len) in [
        ("/faultone/two/b", PendingEnd::Success, "success", "100"),
        ("/faultone/two/c", PendingEnd::Failed, "failed", "0"),
        ("/faultone/two/d", PendingEnd::Aborted, "aborted", "0"),
    ] {
        server.faults().pending = Some(Pending {
            lasts: Duration::ZERO,
            polls: 2,
            end,
        });
        let begun = copy(to).await;
        assert_eq!(begun.status, 202);
        assert_eq!(begun.header("x-ms-copy-status"), "pending");
        assert_eq!(look(to).await, state("pending", "0"));
        assert_eq!(look(to).await, state("pending", "0"));
        assert_eq!(look(to).await, state(status, len));
    }
    server.faults().pending = Some(Pending::of(Duration::from_secs(600), PendingEnd::Success));
    let begun = copy("/faultone/two/e").await;
    assert_eq!(copy("/faultone/two/e").await.status, 409);
    let id = begun.header("x-ms-copy-id");
    let abort = async |id: &str| {
        let path = format!("/faultone/two/e?comp=copy&copyid={id}");
        ask(&server, "PUT", &path, &[("x-ms-copy-action", "abort")])
            .await
            .status
    };
    assert_eq!(abort("other").await, 409);
    assert_eq!(abort(id).await, 204);
    assert_eq!(abort(id).await, 409);
    assert_eq!(look("/faultone/two/e").await, state("aborted", "0"));
}

#[tokio::test]
async fn each_account_lets_in_its_own() {
    let server = FaultServer::start().await;
    server.put_seed(Service::Azure, ONE, "a", 3, 1);
    server.put_seed(Service::Azure, "faulttwo/one", "a", 3, 1);
    let status = async |path: &str, authorization: &str| {
        let headers = [("authorization", authorization)];
        server
            .bare_request(Service::Azure, "GET", path, &headers, Bytes::new())
            .await
            .unwrap()
            .status
    };
    assert_eq!(status("/faultone/one/a", "SharedKey faultone:0").await, 200);
    assert_eq!(status("/faulttwo/one/a", "SharedKey faultone:0").await, 403);
    assert_eq!(status("/faulttwo/one/a", "").await, 403);
    assert_eq!(status("/faulttwo/one/a?sig=0", "").await, 200);
    assert_eq!(status("/stranger/one/a", "SharedKey stranger:0").await, 403);
}

#[tokio::test]
async fn our_stores_wait_for_a_pending_copy() {
    let server = FaultServer::start().await;
    server.put_seed(Service::Azure, ONE, "a", 3, 10 * GIB);
    server.faults().pending = Some(Pending {
        polls: 3,
        ..Pending::of(Duration::ZERO, PendingEnd::Success)
    });
    let from = Location::parse("az://one/a").unwrap();
    let to = Location::parse("az://two/b").unwrap();
    let receipt = server
        .stores()
        .duplicate(&from, &to, &DuplicateOptions::default())
        .await
        .unwrap();
    assert_eq!(receipt.method, Method::AzureCopy);
    assert!(server.same(Service::Azure, (ONE, "a"), (TWO, "b")));
    assert!(server.log().count(Kind::Head) >= 3);
}
