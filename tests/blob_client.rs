//! The client of the blob service against a real server: batches, ranges, broken connections, references,
//! tokens and mutual TLS.

#![cfg(unix)]
// Helpers of tests fail by panicking, like the tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "blob_client/served.rs"]
mod served;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forkpoint::ErrorKind;
use forkpoint::blob::client::{BlobClient, ClientConfig, Content, Upload};
use forkpoint::blob::wire::PlannedMember;
use forkpoint::blob::{
    BlobSource, BlobState, Class, ClusterId, Digest, DisplayName, HaSource, Holder, JobEvent,
    JobState, LeaseId, Outcome, SweepReason, TlsFiles, fetch_file, read_range,
};
use forkpoint::store::Location;
use served::{Proxy, Served, Trick, bytes, job, key, quick, source};

fn upload(name: &str, class: Class, content: Content) -> Upload {
    Upload {
        name: Some(DisplayName::parse(name).unwrap()),
        class,
        content,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_becomes_visible_together_and_what_is_there_is_not_sent_again() {
    let served = Served::start().await;
    let (client, j) = (served.client(), job("j1"));
    let (one, two) = (bytes(3_000_000, 1), bytes(10, 2));
    let file = served.dir.path().join("one.jar");
    std::fs::write(&file, &one).unwrap();
    let batch = [
        upload("one.jar", Class::Retained, Content::File(file.clone())),
        upload(
            "two",
            Class::Recreatable,
            Content::Bytes(two.clone().into()),
        ),
        upload(
            "empty",
            Class::Retained,
            Content::Bytes(bytes::Bytes::new()),
        ),
    ];
    let report = client.upload(&j, &batch).await.unwrap();
    assert_eq!(
        report.digests,
        [Digest::of(&one), Digest::of(&two), Digest::of(b"")]
    );
    assert_eq!(report.sent.len(), 2);
    assert!(report.staged.digests.contains(&Digest::of(&one)));
    let again = client.upload(&j, &batch).await.unwrap();
    assert!(again.sent.is_empty());

    let list = client.blobs(&j).await.unwrap();
    assert_eq!(list.state, JobState::Staging);
    let found: Vec<_> = list
        .blobs
        .iter()
        .map(|b| (b.digest, b.state, b.class))
        .collect();
    assert!(found.contains(&(Digest::of(&one), BlobState::Staged, Class::Retained)));
    assert!(found.contains(&(Digest::of(&two), BlobState::Staged, Class::Recreatable)));
    let jobs = client.jobs().await.unwrap();
    assert_eq!((jobs.jobs.len(), jobs.jobs[0].bytes), (1, 3_000_010));

    // Nothing of a batch is visible before its commit, and nothing after an abort.
    let three = bytes(100, 3);
    let member = PlannedMember {
        digest: Digest::of(&three),
        class: Class::Retained,
        name: None,
    };
    let mut session = client.begin_upload(&j, vec![member.clone()]).await.unwrap();
    assert!(session.missing().contains(&member.digest));
    assert!(session.commit().await.unwrap().is_none());
    session
        .put(&member.digest, &Content::Bytes(three.into()))
        .await
        .unwrap();
    assert_eq!(client.blobs(&j).await.unwrap().blobs.len(), 2);
    session.abort().await.unwrap();
    let gone = client.why(&key(&j, &member.digest)).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_bytes_than_promised_are_refused_and_a_file_that_shrinks_is_told() {
    let served = Served::start().await;
    let (client, j) = (served.client(), job("j1"));
    let member = PlannedMember {
        digest: Digest::of(b"abc"),
        class: Class::Retained,
        name: None,
    };
    let mut session = client.begin_upload(&j, vec![member.clone()]).await.unwrap();
    let wrong = session
        .put(&member.digest, &Content::Bytes("abd".into()))
        .await
        .unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Corrupt, "{wrong}");
    let file = served.dir.path().join("shrinks");
    std::fs::write(&file, b"ab").unwrap();
    let short = session
        .put(&member.digest, &Content::File(file))
        .await
        .unwrap_err();
    assert_eq!(short.kind(), ErrorKind::Conflict, "{short}");
    assert!(session.commit().await.unwrap().is_none());
    session
        .put(&member.digest, &Content::Bytes("abc".into()))
        .await
        .unwrap();
    assert!(session.commit().await.unwrap().is_some());
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_are_exactly_what_was_asked_for() {
    let served = Served::start().await;
    let (client, j) = (served.client(), job("j1"));
    let whole = bytes(700_000, 4);
    let digest = served.ship(&j, &whole, Class::Retained).await;
    for range in [
        0..1,
        0..700_000,
        131_071..131_073,
        699_999..700_000,
        5..5,
        700_000..700_000,
    ] {
        let mut got = Vec::new();
        let mut download = client
            .download(&key(&j, &digest), Some(range.clone()))
            .await
            .unwrap();
        while let Some(chunk) = download.chunk().await.unwrap() {
            got.extend_from_slice(&chunk);
        }
        assert_eq!(
            got,
            whole[range.start as usize..range.end as usize],
            "{range:?}"
        );
    }
    let behind = client
        .download(&key(&j, &digest), Some(0..700_001))
        .await
        .unwrap_err();
    assert_eq!(behind.kind(), ErrorKind::Invalid);
    let other = client
        .download(&key(&j, &Digest::of(b"no")), None)
        .await
        .unwrap_err();
    assert_eq!(other.kind(), ErrorKind::NotFound);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_download_goes_on_where_it_stopped() {
    let served = Served::start().await;
    let j = job("j1");
    let whole = bytes(8 << 20, 5);
    let digest = served.ship(&j, &whole, Class::Retained).await;
    let cut = Trick::CutAfter(2_500_000);
    let proxy = Proxy::start(served.address, &[cut, cut, cut, Trick::Fair]).await;
    let file = served.dir.path().join("got");
    let used = fetch_file(vec![source(proxy.address)], &key(&j, &digest), &file, false)
        .await
        .unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), whole);
    assert_eq!(
        (
            used[0].asked,
            used[0].broken,
            used[0].fetched,
            used[0].wrong
        ),
        (4, 3, 1, 0)
    );
    // What had come was not sent again: a cut loses what was under way.
    let sent = proxy.answered.load(Ordering::SeqCst);
    assert!(sent < whole.len() as u64 + 3 * (3 << 20), "{sent}");

    let taken = fetch_file(vec![served.source()], &key(&j, &digest), &file, false)
        .await
        .unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
    let cut = Trick::CutAfter(1_000_000);
    let proxy = Proxy::start(served.address, &[cut, cut, Trick::Fair]).await;
    let mut got = Vec::new();
    let (from, blob) = (source(proxy.address), key(&j, &digest));
    let part = read_range(&*from, &blob, 1000..3_000_000, |b| {
        got.extend_from_slice(&b);
        Ok(())
    });
    part.await.unwrap();
    assert_eq!(got, whole[1000..3_000_000]);
    // Nothing else lies beside the file.
    assert!(
        !served::files(served.dir.path())
            .iter()
            .any(|p| p.to_str().unwrap().ends_with(".part"))
    );
    served.stop().await;
}

/// Whatever one source gives or does not give, the next one finds its way free, and nothing lies beside the file.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_fails_leaves_the_way_free_for_the_next() {
    let served = Served::start().await;
    let out = tempfile::tempdir().unwrap();
    let whole = bytes(300_000, 9);
    let elsewhere = out.path().join("elsewhere");
    let place = |url: &std::path::Path, cluster: &str| {
        let url = Location::parse(url.to_str().unwrap()).unwrap();
        let cluster = ClusterId::parse(cluster).unwrap();
        let source = HaSource::new(served::stores(), &url, &cluster).unwrap();
        Arc::new(source) as Arc<dyn BlobSource>
    };
    type Damage = fn(&mut Vec<u8>);
    let cases: [(&str, Option<Damage>); 5] = [
        ("flipped", Some(|b| b[150_000] ^= 0x10)),
        ("truncated", Some(|b| b.truncate(299_999))),
        ("emptied", Some(Vec::clear)),
        ("other-cluster", None),
        ("other-place", None),
    ];
    for (name, damage) in cases {
        let j = job(name);
        let digest = served.ship(&j, &whole, Class::Retained).await;
        let ha = served.dir.path().join("ha");
        let source = match name {
            "other-cluster" => place(&ha, "c2"),
            "other-place" => place(&elsewhere, "c1"),
            _ => place(&ha, "c1"),
        };
        if let Some(damage) = damage {
            served::tamper(&served.objects(&j)[0], damage);
        }
        for round in 0..20 {
            let file = out.path().join(format!("{name}-{round}"));
            let sources = vec![Arc::clone(&source), served.source()];
            let used = fetch_file(sources, &key(&j, &digest), &file, false).await;
            let used = used.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(
                (used[0].fetched, used[1].fetched),
                (0, 1),
                "{name}: {used:?}"
            );
            assert_eq!(std::fs::read(&file).unwrap(), whole, "{name}");
            std::fs::remove_file(&file).unwrap();
            assert_eq!(
                served::files(out.path()),
                [] as [std::path::PathBuf; 0],
                "{name}"
            );
        }
        // Where nobody has it, nothing is left either, and the file is called what people call it.
        let file = out.path().join("nobody");
        let e = fetch_file(vec![source], &key(&j, &digest), &file, false).await;
        assert!(!e.unwrap_err().to_string().contains(".part"));
        assert_eq!(
            served::files(out.path()),
            [] as [std::path::PathBuf; 0],
            "{name}"
        );
    }
    let nowhere = out.path().join("no/such/folder/x");
    let j = job("flipped");
    let digest = Digest::of(&whole);
    let e = fetch_file(vec![served.source()], &key(&j, &digest), &nowhere, false).await;
    let e = e.unwrap_err().to_string();
    assert!(
        e.contains("no/such/folder/x: ") && !e.contains(".part"),
        "{e}"
    );
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_repeated_until_there_is_an_answer_and_not_for_ever() {
    let served = Served::start().await;
    let j = job("j1");
    served.ship(&j, b"abc", Class::Retained).await;
    // The reply to the upload is lost twice: the repeated call finds what was done.
    let tricks = [
        Trick::Refuse,
        Trick::CutAfter(20),
        Trick::CutAfter(20),
        Trick::Fair,
    ];
    let proxy = Proxy::start(served.address, &tricks).await;
    let client = BlobClient::new(quick(proxy.address)).unwrap();
    let content = Content::Bytes(bytes(1_000_000, 6).into());
    let report = client
        .upload(&j, &[upload("x", Class::Retained, content)])
        .await
        .unwrap();
    assert_eq!(report.sent.len(), 1);

    let proxy = Proxy::start(served.address, &[Trick::Silent]).await;
    let mut config = quick(proxy.address);
    config.idle_timeout = Duration::from_millis(100);
    config.retries = 2;
    let began = Instant::now();
    let silent = BlobClient::new(config).unwrap().jobs().await.unwrap_err();
    assert_eq!(silent.kind(), ErrorKind::Unavailable, "{silent}");
    // Three times the idle time of a client that was not told otherwise.
    assert!(began.elapsed() < Duration::from_secs(15));
    assert_eq!(proxy.connections.load(Ordering::SeqCst), 3);
    // What is refused is not repeated.
    let proxy = Proxy::start(served.address, &[Trick::Fair]).await;
    let client = BlobClient::new(quick(proxy.address)).unwrap();
    assert_eq!(
        client.blobs(&job("nobody")).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(proxy.connections.load(Ordering::SeqCst), 1);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_elsewhere_is_found_while_a_call_waits() {
    let served = Served::start().await;
    let j = job("j1");
    served.ship(&j, b"abc", Class::Retained).await;
    // It repeats for longer than a busy machine takes to start a server.
    let mut config = served.config();
    config.backoff = Duration::from_millis(500);
    let client = BlobClient::new(config).unwrap();
    let dir = served.stop().await;
    let waiting = tokio::spawn({
        let (client, j) = (client.clone(), j.clone());
        async move { client.blobs(&j).await }
    });
    let served = Served::start_in(dir, "127.0.0.1:0", |_, _| {}).await;
    client
        .set_server(&format!("http://{}", served.address))
        .unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().blobs.len(), 1);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn references_events_and_reasons() {
    let served = Served::start().await;
    let (client, j) = (served.client(), job("j1"));
    let content = Content::Bytes("abc".into());
    let report = client
        .upload(&j, &[upload("x", Class::Retained, content)])
        .await
        .unwrap();
    let blob = key(&j, &report.digests[0]);
    assert!(matches!(
        client.why(&blob).await.unwrap().why,
        SweepReason::KeptUntil { .. }
    ));
    let lease = LeaseId::parse("mine").unwrap();
    for _ in 0..2 {
        client
            .acquire_lease(&blob, &lease, Duration::from_secs(60))
            .await
            .unwrap();
    }
    client
        .renew(&blob, &lease, Duration::from_secs(120))
        .await
        .unwrap();
    let held = client.why(&blob).await.unwrap();
    assert_eq!(held.why, SweepReason::Held { holders: 1 });
    assert_eq!(held.blob.holders[0].by, Holder::Lease(lease.clone()));
    for _ in 0..2 {
        client.release(&blob, &lease).await.unwrap();
    }
    let ended = client
        .renew(&blob, &lease, Duration::from_secs(1))
        .await
        .unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::Conflict);

    let strange = [Digest::of(b"other")].into();
    let none = client
        .job_event(&j, &JobEvent::Registered { digests: strange })
        .await
        .unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound);
    let digests = [blob.digest].into();
    client
        .job_event(&j, &JobEvent::Registered { digests })
        .await
        .unwrap();
    client.job_event(&j, &JobEvent::Failed).await.unwrap();
    assert_eq!(
        client.why(&blob).await.unwrap().why,
        SweepReason::Held { holders: 1 }
    );
    for _ in 0..2 {
        let outcome = Outcome::Finished;
        client
            .job_event(&j, &JobEvent::Terminal { outcome })
            .await
            .unwrap();
    }
    let over = client.download(&blob, None).await.unwrap_err();
    assert_eq!(over.kind(), ErrorKind::Refused, "{over}");
    client.release(&blob, &lease).await.unwrap();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_sent_and_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.json");
    let document =
        r#"[{"name":"reader","token":"s3cret-reader-token","jobs":"j*","rights":["read"]}]"#;
    std::fs::write(&tokens, document).unwrap();
    let served = Served::start_in(dir, "127.0.0.1:0", |_, http| http.tokens = Some(tokens)).await;
    let nobody = served.client().jobs().await.unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::Denied);
    let mut config = served.config();
    config.token = Some("s3cret-reader-token".to_string());
    assert!(!format!("{config:?}").contains("s3cret"));
    let reader = BlobClient::new(config).unwrap();
    assert!(!format!("{reader:?}").contains("s3cret"));
    assert!(reader.jobs().await.unwrap().jobs.is_empty());
    let content = Content::Bytes("abc".into());
    let refused = reader
        .upload(&job("j1"), &[upload("x", Class::Retained, content)])
        .await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
    assert!(!format!("{refused:?}").contains("s3cret"));
    served.stop().await;
}

/// An authority with a certificate for 127.0.0.1 and one for a client; PEM.
struct Pki {
    authority: String,
    server: (String, String),
    client: String,
}

fn pki() -> Pki {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let leaf = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_string()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        (certificate.pem(), key.serialize_pem())
    };
    let (certificate, key) = leaf("client");
    Pki {
        authority: authority.pem(),
        server: leaf("127.0.0.1"),
        client: certificate + &key,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mutual_tls_lets_in_who_has_a_certificate_and_believes_only_the_right_server() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, others) = (pki(), pki());
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let files = TlsFiles {
        certificates: write("server.pem", &ours.server.0),
        key: write("server.key", &ours.server.1),
        client_authorities: Some(write("ca.pem", &ours.authority)),
    };
    let served = Served::start_in(dir, "127.0.0.1:0", |_, http| http.tls = Some(files)).await;
    let with = |trusted: &Pki, identity: Option<&Pki>, host: &str| {
        let url = format!("https://{host}:{}", served.address.port());
        let mut config = ClientConfig::new(&url).unwrap();
        config.trusted = Some(trusted.authority.clone().into_bytes());
        config.identity = identity.map(|p| p.client.clone().into_bytes());
        config.backoff = Duration::from_millis(10);
        config.retries = 1;
        config
    };
    let good = BlobClient::new(with(&ours, Some(&ours), "127.0.0.1")).unwrap();
    let content = Content::Bytes(bytes(3 << 20, 7).into());
    let report = good
        .upload(&job("j1"), &[upload("x", Class::Retained, content)])
        .await
        .unwrap();
    let file = served.dir.path().join("got");
    let from = std::sync::Arc::new(forkpoint::blob::ServerSource::new(good));
    fetch_file(
        vec![from],
        &key(&job("j1"), &report.digests[0]),
        &file,
        false,
    )
    .await
    .unwrap();
    for bad in [
        with(&ours, None, "127.0.0.1"),
        with(&ours, Some(&others), "127.0.0.1"),
        with(&others, Some(&ours), "127.0.0.1"),
        with(&ours, Some(&ours), "localhost"),
    ] {
        let refused = BlobClient::new(bad).unwrap().jobs().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    }
    let mut any_name = with(&ours, Some(&ours), "localhost");
    any_name.any_name = true;
    BlobClient::new(any_name).unwrap().jobs().await.unwrap();
    let mut unpinned = with(&ours, Some(&ours), "localhost");
    (unpinned.any_name, unpinned.trusted) = (true, None);
    assert_eq!(
        BlobClient::new(unpinned).unwrap_err().kind(),
        ErrorKind::Invalid
    );
    served.stop().await;
}

#[test]
fn addresses_are_checked() {
    for bad in [
        "",
        "blobs:7878",
        "ftp://h",
        "http://u:p@h",
        "http://h/?x=1",
        "http://h/#x",
    ] {
        assert_eq!(
            ClientConfig::new(bad).unwrap_err().kind(),
            ErrorKind::Invalid,
            "{bad}"
        );
    }
    let shown = ClientConfig::new("http://user:hush@h")
        .unwrap_err()
        .to_string();
    assert!(!shown.contains("hush"), "{shown}");
}
