//! The rules of S3.

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, PutPayload, WriteMultipart,
};

use crate::fault::{ACCESS_KEY, Answer, Content, FaultServer, Kind, Meta, Service};

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

async fn ask(server: &FaultServer, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    server
        .request(Service::S3, method, path, headers, Bytes::new())
        .await
}

#[tokio::test]
async fn an_object_comes_back_with_its_metadata_until_it_is_deleted() {
    let server = FaultServer::start().await;
    let store = server.s3("one");
    let at = Path::from("folder/with space/état+1");
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
    let put = store
        .put_opts(&at, PutPayload::from_static(b"hello"), options)
        .await
        .unwrap();
    // The true MD5 of the bytes.
    assert_eq!(
        put.e_tag.as_deref(),
        Some("\"5d41402abc4b2a76b9719d911017c592\"")
    );
    let got = store.get(&at).await.unwrap();
    assert_eq!(got.meta.e_tag, put.e_tag);
    assert_eq!(got.attributes, attributes);
    assert_eq!(got.bytes().await.unwrap(), "hello");
    store.delete(&at).await.unwrap();
    assert!(matches!(store.head(&at).await, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn conditions_of_writes_and_reads_are_enforced() {
    let server = FaultServer::start().await;
    let store = server.s3("one");
    let at = Path::from("a");
    let create = PutOptions::from(PutMode::Create);
    let first = store
        .put_opts(&at, "1".into(), create.clone())
        .await
        .unwrap();
    let again = store.put_opts(&at, "2".into(), create).await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })));
    store
        .put_opts(
            &at,
            "2".into(),
            PutMode::Update(first.clone().into()).into(),
        )
        .await
        .unwrap();
    let stale = store
        .put_opts(
            &at,
            "3".into(),
            PutMode::Update(first.clone().into()).into(),
        )
        .await;
    assert!(matches!(stale, Err(Error::Precondition { .. })));
    let pinned = GetOptions {
        if_match: first.e_tag,
        ..Default::default()
    };
    let read = store.get_opts(&at, pinned).await;
    assert!(matches!(read, Err(Error::Precondition { .. })));
}

#[tokio::test]
async fn ranges_of_an_object_without_stored_bytes_fit_together() {
    let server = FaultServer::start().await;
    server.put_seed(Service::S3, "one", "big", 7, 64 * GIB);
    let store = server.s3("one");
    let at = Path::from("big");
    assert_eq!(store.head(&at).await.unwrap().size, 64 * GIB);
    let whole = store
        .get_range(&at, 40 * GIB..40 * GIB + 3000)
        .await
        .unwrap();
    let tail = store
        .get_range(&at, 40 * GIB + 1001..40 * GIB + 3000)
        .await
        .unwrap();
    assert_eq!(whole.slice(1001..), tail);
    let last = GetOptions {
        range: Some(GetRange::Suffix(5)),
        ..Default::default()
    };
    let last = store.get_opts(&at, last).await.unwrap();
    assert_eq!(last.bytes().await.unwrap().len(), 5);
    let beyond = ask(
        &server,
        "GET",
        "/one/big",
        &[("range", "bytes=68719476736-")],
    )
    .await;
    assert_eq!(beyond.status, 416);
}

#[tokio::test]
async fn what_was_read_and_written_back_is_recognised_and_takes_no_memory() {
    let server = FaultServer::start().await;
    server.put_seed(Service::S3, "one", "big", 7, 23 * MIB + 5);
    let store = server.s3("one");
    let (from, to) = (Path::from("big"), Path::from("back"));
    let mut upload = WriteMultipart::new(store.put_multipart(&to).await.unwrap());
    let mut read = store.get(&from).await.unwrap().into_stream();
    while let Some(chunk) = read.try_next().await.unwrap() {
        upload.write(&chunk);
    }
    let put = upload.finish().await.unwrap();
    assert!(put.e_tag.unwrap().ends_with("-5\""));
    assert!(server.same(Service::S3, ("one", "big"), ("one", "back")));
    let back = server.get(Service::S3, "one", "back").unwrap();
    assert_eq!((back.content.pieces(), back.content.real_bytes()), (1, 0));
    assert!(server.open_uploads(Service::S3, "one").is_empty());
}

#[tokio::test]
async fn listings_are_complete_over_pages_and_fold_at_the_delimiter() {
    let server = FaultServer::start().await;
    server.fill(Service::S3, "one", "data/x", 2500, 10);
    server.put_bytes(Service::S3, "one", "data/sub/1", b"1");
    server.put_bytes(Service::S3, "one", "data/sub/2", b"2");
    server.put_bytes(Service::S3, "one", "other/<&>\"", b"3");
    let store = server.s3("one");
    let all: Vec<_> = store.list(None).try_collect().await.unwrap();
    assert_eq!(all.len(), 2503);
    assert_eq!(server.log().count(Kind::List), 3);
    let folder = Path::from("data");
    let folded = store.list_with_delimiter(Some(&folder)).await.unwrap();
    assert_eq!(folded.common_prefixes, [Path::from("data/sub")]);
    assert_eq!(folded.objects.len(), 2500);
    let after = Path::from("data/x00002497");
    let rest: Vec<_> = store
        .list_with_offset(Some(&folder), &after)
        .try_collect()
        .await
        .unwrap();
    assert_eq!(rest.len(), 2);
    let encoded = ask(
        &server,
        "GET",
        "/one?list-type=2&prefix=other/&encoding-type=url",
        &[],
    )
    .await;
    assert_eq!(encoded.element("Key"), "other/%3C%26%3E%22");
    // One entry a page: a folded prefix is one entry, and comes once.
    let (mut token, mut seen) = (String::new(), Vec::new());
    loop {
        let path = format!("/one?list-type=2&delimiter=/&max-keys=1&continuation-token={token}");
        let page = ask(&server, "GET", &path, &[]).await;
        seen.push(page.element("CommonPrefixes"));
        if page.element("IsTruncated") == "false" {
            break;
        }
        token = page.element("NextContinuationToken");
    }
    assert_eq!(seen, ["<Prefix>data/</Prefix>", "<Prefix>other/</Prefix>"]);
}

#[tokio::test]
async fn many_objects_are_deleted_with_one_request() {
    let server = FaultServer::start().await;
    server.fill(Service::S3, "one", "x", 100, 10);
    let store = server.s3("one");
    let paths = store.list(None).map_ok(|o| o.location);
    let gone: Vec<Path> = store
        .delete_stream(Box::pin(paths))
        .try_collect()
        .await
        .unwrap();
    assert_eq!(gone.len(), 100);
    assert_eq!(server.log().count(Kind::DeleteMany), 1);
    assert!(server.keys(Service::S3, "one").is_empty());
}

#[tokio::test]
async fn a_copy_keeps_what_aws_keeps() {
    let server = FaultServer::start().await;
    let meta = Meta {
        headers: [("meta-owner".to_string(), "tests".to_string())].into(),
        tags: "team=a".into(),
        class: Some("GLACIER_IR".into()),
    };
    let content = Content::of_seed(1, 30 * MIB);
    server.put_in_parts(Service::S3, "one", "a", content, 8 * MIB, meta);
    let source = ask(&server, "HEAD", "/one/a", &[]).await;
    assert!(source.header("etag").ends_with("-4\""));
    assert_eq!(source.header("x-amz-storage-class"), "GLACIER_IR");
    let part = ask(&server, "HEAD", "/one/a?partNumber=1", &[]).await;
    assert_eq!(
        (
            part.header("x-amz-mp-parts-count"),
            part.header("content-length")
        ),
        ("4", "8388608")
    );
    let copied = ask(&server, "PUT", "/two/b", &[("x-amz-copy-source", "/one/a")]).await;
    assert_eq!(copied.status, 200);
    let copy = ask(&server, "HEAD", "/two/b", &[]).await;
    assert_eq!(copy.header("etag"), copied.element("ETag"));
    assert_eq!(copy.header("etag").len(), 34, "one piece: no part count");
    assert_eq!(copy.header("x-amz-meta-owner"), "tests");
    assert_eq!(
        copy.header("x-amz-storage-class"),
        "",
        "back to the default"
    );
    let tags = ask(&server, "GET", "/two/b?tagging", &[]).await;
    assert_eq!(tags.element("Key"), "team");
    assert!(server.same(Service::S3, ("one", "a"), ("two", "b")));
    let replace = [
        ("x-amz-copy-source", "one/a"),
        ("x-amz-metadata-directive", "REPLACE"),
        ("x-amz-meta-other", "1"),
        ("x-amz-tagging-directive", "REPLACE"),
        ("x-amz-tagging", "x=y"),
        ("x-amz-storage-class", "STANDARD_IA"),
    ];
    assert_eq!(ask(&server, "PUT", "/two/c", &replace).await.status, 200);
    let copy = ask(&server, "HEAD", "/two/c", &[]).await;
    assert_eq!(copy.header("x-amz-meta-owner"), "");
    assert_eq!(copy.header("x-amz-meta-other"), "1");
    assert_eq!(copy.header("x-amz-storage-class"), "STANDARD_IA");
}

#[tokio::test]
async fn conditions_and_limits_of_copies_are_enforced() {
    let server = FaultServer::start().await;
    server.put_seed(Service::S3, "one", "a", 1, 100);
    server.put_seed(Service::S3, "one", "huge", 1, 5 * GIB + 1);
    server.put_seed(Service::S3, "two", "taken", 2, 100);
    let copy = async |to: &str, from: &str, more: &[(&str, &str)]| {
        let headers = [&[("x-amz-copy-source", from)], more].concat();
        let answer = ask(&server, "PUT", to, &headers).await;
        (answer.status, answer.element("Code"))
    };
    let refused = |status, code: &str| (status, code.to_string());
    for (to, from, more, expected) in [
        ("/two/b", "one/none", None, refused(404, "NoSuchKey")),
        ("/two/b", "none/a", None, refused(404, "NoSuchBucket")),
        ("/none/b", "one/a", None, refused(404, "NoSuchBucket")),
        ("/one/a", "one/a", None, refused(400, "InvalidRequest")),
        ("/two/b", "one/huge", None, refused(400, "InvalidRequest")),
        (
            "/two/b",
            "one/a",
            Some(("x-amz-copy-source-if-match", "\"other\"")),
            refused(412, "PreconditionFailed"),
        ),
        (
            "/two/taken",
            "one/a",
            Some(("if-none-match", "*")),
            refused(412, "PreconditionFailed"),
        ),
        (
            "/two/taken",
            "one/a",
            Some(("if-match", "\"other\"")),
            refused(412, "PreconditionFailed"),
        ),
        (
            "/two/b",
            "one/a",
            Some(("if-none-match", "*")),
            (200, String::new()),
        ),
    ] {
        assert_eq!(
            copy(to, from, more.as_slice()).await,
            expected,
            "{from} to {to} with {more:?}"
        );
    }
    assert_eq!(server.keys(Service::S3, "two"), ["b", "taken"]);
    assert!(!server.same(Service::S3, ("one", "a"), ("two", "taken")));
}

#[tokio::test]
async fn sixty_four_gib_copied_in_parts_are_recognised_as_equal() {
    let server = FaultServer::start().await;
    let content = Content::of_seed(9, 64 * GIB);
    server.put_in_parts(Service::S3, "one", "a", content, 4 * GIB, Meta::default());
    let source = server.get(Service::S3, "one", "a").unwrap();
    let tag = source.tag.to_string();
    let created = ask(
        &server,
        "POST",
        "/two/b?uploads",
        &[
            ("x-amz-meta-owner", "tests"),
            ("x-amz-storage-class", "GLACIER_IR"),
        ],
    )
    .await;
    let id = created.element("UploadId");
    let mut list = String::new();
    for n in 1..=16 {
        let range = format!("bytes={}-{}", (n - 1) * 4 * GIB, n * 4 * GIB - 1);
        let part = ask(
            &server,
            "PUT",
            &format!("/two/b?partNumber={n}&uploadId={id}"),
            &[
                ("x-amz-copy-source", "one/a"),
                ("x-amz-copy-source-range", &range),
                ("x-amz-copy-source-if-match", &tag),
            ],
        )
        .await;
        assert_eq!(part.status, 200, "{}", part.text());
        list.push_str(&format!(
            "<Part><PartNumber>{n}</PartNumber><ETag>{}</ETag></Part>",
            part.element("ETag")
        ));
    }
    let parts = ask(
        &server,
        "GET",
        &format!("/two/b?uploadId={id}&max-parts=10"),
        &[],
    )
    .await;
    assert_eq!(parts.element("NextPartNumberMarker"), "10");
    assert_eq!(parts.element("IsTruncated"), "true");
    let open = ask(&server, "GET", "/two?uploads", &[]).await;
    assert_eq!(open.element("UploadId"), id);
    let body = format!("<CompleteMultipartUpload>{list}</CompleteMultipartUpload>");
    let path = format!("/two/b?uploadId={id}");
    let complete = async || {
        server
            .request(
                Service::S3,
                "POST",
                &path,
                &[("if-none-match", "*")],
                body.clone(),
            )
            .await
    };
    let done = complete().await;
    assert_eq!(done.status, 200);
    // The same parts give the same tag.
    assert_eq!(done.element("ETag"), tag);
    assert!(server.same(Service::S3, ("one", "a"), ("two", "b")));
    let copy = server.get(Service::S3, "two", "b").unwrap();
    assert_eq!(copy.content.pieces(), 1);
    assert_eq!(copy.meta.class.as_deref(), Some("GLACIER_IR"));
    let again = complete().await;
    assert_eq!(
        (again.status, again.element("Code").as_str()),
        (412, "PreconditionFailed")
    );
}

#[tokio::test]
async fn an_upload_is_refused_where_aws_refuses_it() {
    let server = FaultServer::start().await;
    server.put_seed(Service::S3, "one", "a", 1, 20 * MIB);
    server.put_seed(Service::S3, "one", "small", 1, MIB);
    let id = ask(&server, "POST", "/one/b?uploads", &[])
        .await
        .element("UploadId");
    let part = async |n: u32, from: &str, range: &str| {
        let path = format!("/one/b?partNumber={n}&uploadId={id}");
        let headers = [
            ("x-amz-copy-source", from),
            ("x-amz-copy-source-range", range),
        ];
        ask(&server, "PUT", &path, &headers).await
    };
    assert_eq!(part(1, "one/small", "bytes=0-9").await.status, 400);
    assert_eq!(part(1, "one/a", "bytes=0-99999999").await.status, 400);
    assert_eq!(part(0, "one/a", "bytes=0-9").await.status, 400);
    let one = part(1, "one/a", "bytes=0-9").await.element("ETag");
    let two = part(2, "one/a", "bytes=10-19").await.element("ETag");
    let complete = async |parts: &[(u32, &str)]| {
        let parts: String = parts
            .iter()
            .map(|(n, tag)| format!("<Part><PartNumber>{n}</PartNumber><ETag>{tag}</ETag></Part>"))
            .collect();
        let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        let path = format!("/one/b?uploadId={id}");
        let answer = server.request(Service::S3, "POST", &path, &[], body).await;
        answer.element("Code")
    };
    assert_eq!(complete(&[(1, &one), (2, &two)]).await, "EntityTooSmall");
    assert_eq!(complete(&[(2, &two), (1, &one)]).await, "InvalidPartOrder");
    assert_eq!(complete(&[(1, &two)]).await, "InvalidPart");
    assert_eq!(complete(&[]).await, "MalformedXML");
    let path = format!("/one/b?uploadId={id}");
    assert_eq!(ask(&server, "DELETE", &path, &[]).await.status, 204);
    assert_eq!(complete(&[(1, &one)]).await, "NoSuchUpload");
    assert!(server.get(Service::S3, "one", "b").is_none());
}

#[tokio::test]
async fn strangers_are_not_let_in() {
    let server = FaultServer::start().await;
    server.put_seed(Service::S3, "one", "a", 1, 1);
    let code = async |headers: &[(&str, &str)], path: &str| {
        let answer = server
            .bare_request(Service::S3, "GET", path, headers, Bytes::new())
            .await
            .unwrap();
        (answer.status, answer.element("Code"))
    };
    assert_eq!(code(&[], "/one/a").await, (403, "AccessDenied".into()));
    let other = "AWS4-HMAC-SHA256 Credential=OTHER/20260101/r/s3/aws4_request, SignedHeaders=host, Signature=0";
    assert_eq!(
        code(&[("authorization", other)], "/one/a").await,
        (403, "InvalidAccessKeyId".into())
    );
    let presigned = format!("/one/a?X-Amz-Credential={ACCESS_KEY}%2Fx&X-Amz-Signature=0");
    assert_eq!(code(&[], &presigned).await.0, 200);
}

#[tokio::test]
async fn tags_are_set_and_read() {
    let server = FaultServer::start().await;
    server.put_seed(Service::S3, "one", "a", 1, 1);
    let body =
        "<Tagging><TagSet><Tag><Key>k&amp;1</Key><Value>v 1</Value></Tag></TagSet></Tagging>";
    let put = server
        .request(Service::S3, "PUT", "/one/a?tagging", &[], body)
        .await;
    assert_eq!(put.status, 200);
    let got = ask(&server, "GET", "/one/a?tagging", &[]).await;
    assert_eq!(got.element("Key"), "k&amp;1");
    assert_eq!(got.element("Value"), "v 1");
    let head = ask(&server, "HEAD", "/one/a", &[]).await;
    assert_eq!(head.header("x-amz-tagging-count"), "1");
}
