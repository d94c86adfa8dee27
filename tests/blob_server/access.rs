//! Who may ask what, and what is no request at all: refused with the right status, and nothing written.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use forkpoint::blob::Digest;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::json;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::harness::*;
use super::support::{local_stores, temp};

/// Every file below the data directory, and what a test put beside it.
fn files(dir: &Path) -> Vec<String> {
    let names = super::support::walk(dir);
    names
        .iter()
        .map(|p| p.strip_prefix(dir).unwrap().to_str().unwrap().to_string())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_path_leads_anywhere_else() {
    let (dir, root) = temp();
    let server = Setup::new(&dir.path().join("data"), &root.join("ha").unwrap()).start();
    std::fs::write(dir.path().join("secret"), b"secret").unwrap();
    let before = files(dir.path());
    let digest = Digest::of(b"x").to_string();
    let mut corpus: Vec<String> = [
        "/../secret",
        "/..%2fsecret",
        "/v1/../../secret",
        "/v1/jobs/../../secret",
        "/v1/jobs/..",
        "/v1/jobs/.",
        "/v1/jobs/%2e%2e/blobs",
        "/v1/jobs/..%2f..%2fsecret/blobs",
        "/v1/jobs/a%00/blobs",
        "/v1/jobs//blobs",
        "/v1/jobs/a/blobs/..",
        "/v1/jobs/a/blobs/../../../secret",
        "/v1/jobs/a/blobs/%2e%2e%2f%2e%2e%2fsecret",
        "/v1/jobs/a/blobs//etc/passwd",
        "/v1/jobs/a\\..\\..\\secret/blobs",
        "/v1/jobs/A/blobs",
        "/v1/jobs/ä/blobs",
        "/v1/jobs/%c0%ae%c0%ae/blobs",
        "/v1/jobs/%e0%80%ae/blobs",
        "/v1/jobs/a/uploads/../blobs",
        "//v1/jobs",
        "/v1/jobs/a/blobs?x=1",
        "/v1/jobs?",
        "/v2/jobs",
        "/",
        "/v1",
        "/jobs",
        "/livez/..",
        "/.git/config",
        "/v1/jobs/con/blobs/nul",
        "/v1/jobs/-a/blobs",
    ]
    .map(String::from)
    .to_vec();
    let long = "a".repeat(129);
    corpus.push(format!("/v1/jobs/{long}/blobs"));
    corpus.push(format!("/v1/jobs/a/blobs/{}", digest.to_uppercase()));
    corpus.push(format!("/v1/jobs/a/blobs/{digest}/../{digest}"));
    corpus.push(format!("/v1/jobs/a/blobs/{}", digest.replace("-1", "-01")));
    corpus.push(format!("/v1/jobs/a/blobs/{digest}%2f.."));
    corpus.push(format!("/v1/jobs/../a/blobs/{digest}"));
    corpus.push(format!("/v1/jobs/a/blobs/{}", "9".repeat(3000)));
    for method in ["GET", "PUT", "POST", "DELETE", "HEAD"] {
        for path in &corpus {
            let answer = server.call(method, path, b"{}").unwrap();
            let refused = [400, 404, 405].contains(&answer.status);
            assert!(
                refused,
                "{method} {path}: {} {}",
                answer.status,
                answer.text()
            );
            assert!(!answer.text().contains("secret\n") && answer.text() != "secret");
        }
    }
    // Names in bodies are names, never paths.
    let begin = |members: serde_json::Value| {
        let body = json!({ "session": "0000000000000001", "members": members });
        server.json("POST", "/v1/jobs/a/uploads", &body).unwrap()
    };
    for digest in ["../../secret", "..", "/etc/passwd", "", "a-1"] {
        assert_eq!(
            begin(json!([{ "digest": digest, "class": "retained" }])).status,
            400,
            "{digest}"
        );
    }
    let named = json!([{ "digest": Digest::of(b"x").to_string(), "class": "retained", "name": "../../../evil.jar" }]);
    assert_eq!(begin(named).status, 201);
    assert_eq!(
        server
            .call(
                "PUT",
                &format!("/v1/jobs/a/uploads/0000000000000001/blobs/{digest}"),
                b"x"
            )
            .unwrap()
            .status,
        200
    );
    assert_eq!(
        server
            .call("DELETE", "/v1/jobs/a/uploads/0000000000000001", b"")
            .unwrap()
            .status,
        204
    );
    let gone = || async { files(&dir.path().join("data/jobs")).is_empty() };
    until_asked("the aborted member goes", gone).await;
    let added: Vec<String> = files(dir.path())
        .into_iter()
        .filter(|f| !before.contains(f) && !f.starts_with("ha/"))
        .collect();
    assert_eq!(added, [] as [&str; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_is_refused() {
    let (dir, root) = temp();
    let server = Setup::new(&dir.path().join("data"), &root.join("ha").unwrap()).start();
    let raw = |bytes: &[u8]| {
        let mut stream = connect(&server.url).unwrap();
        let _ = stream.write_all(bytes);
        read_answer(&mut stream, false).map(|a| a.status)
    };
    let header = |name: &str, size: usize| {
        format!(
            "GET /v1/jobs HTTP/1.1\r\nhost: localhost\r\n{name}: {}\r\nconnection: close\r\n\r\n",
            "x".repeat(size)
        )
    };
    assert_eq!(raw(header("x-small", 1000).as_bytes()), Some(200));
    assert_eq!(raw(header("x-large", 200_000).as_bytes()), Some(431));
    let many: String = (0..200).map(|n| format!("x-{n}: y\r\n")).collect();
    assert_eq!(
        raw(format!("GET /v1/jobs HTTP/1.1\r\nhost: localhost\r\n{many}\r\n").as_bytes()),
        Some(431)
    );
    let target = format!(
        "GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "a".repeat(100_000)
    );
    assert!(matches!(raw(target.as_bytes()), Some(414 | 431)));
    for junk in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"SSH-2.0-x\r\n\r\n",
        b"GET\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
    ] {
        assert!(matches!(raw(junk), None | Some(400)), "{junk:?}");
    }
    let smuggled = b"POST /v1/jobs/a/events HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\ncontent-length: 9\r\n\r\n{}{}";
    assert!(matches!(raw(smuggled), None | Some(400)));
    // Bodies.
    let body = |bytes: &[u8]| server.call("POST", "/v1/jobs/a/uploads", bytes).unwrap();
    for bad in [
        &b"{"[..],
        b"[]",
        b"{\"session\": 1}",
        b"\xff\xfe",
        b"{\"session\": \"0000000000000001\", \"members\": [], \"more\": 1}",
    ] {
        let answer = body(bad);
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (400, "bad-request"),
            "{bad:?}"
        );
    }
    let huge = vec![b' '; (4 << 20) + 1];
    assert_eq!(body(&huge).status, 413);
    assert_eq!(
        server.call("GET", "/v1/jobs", b"").unwrap().json()["jobs"],
        json!([]),
        "a refused call made a job"
    );
    // A page in a browser of the same machine.
    for header in [
        ("origin", "http://evil.example"),
        ("sec-fetch-site", "same-origin"),
        ("host", "evil.example:7878"),
        ("host", "127.0.0.1.evil.example"),
    ] {
        let page = request(&server.url, "GET", "/v1/jobs", &[header], b"").unwrap();
        assert_eq!(page.code(), "denied", "{header:?}");
    }
    for host in ["127.0.0.1:7878", "[::1]:7878", "LocalHost"] {
        let own = request(&server.url, "GET", "/v1/jobs", &[("host", host)], b"").unwrap();
        assert_eq!(own.status, 200, "{host}");
    }
    // Ranges.
    let bytes = noise(1, 200_000);
    let batch = server.batch("a", 1);
    assert!(batch.upload(&[(&bytes, "retained")]));
    let at = path("a", &bytes);
    let ranged = |headers: &[(&str, &str)]| request(&server.url, "GET", &at, headers, b"").unwrap();
    let tag = format!("\"{}\"", Digest::of(&bytes));
    for (asked, from, to) in [
        ("bytes=0-0", 0, 1),
        ("bytes=131071-131073", 131_071, 131_074),
        ("bytes=-5", 199_995, 200_000),
        ("bytes=199999-", 199_999, 200_000),
        ("bytes=5-999999999", 5, 200_000),
    ] {
        let answer = ranged(&[("range", asked)]);
        assert_eq!(
            (answer.status, &answer.body[..]),
            (206, &bytes[from..to]),
            "{asked}"
        );
        assert_eq!(
            answer.headers["content-range"],
            format!("bytes {from}-{}/200000", to - 1)
        );
        assert_eq!(answer.headers["etag"], tag);
    }
    let past = ranged(&[("range", "bytes=200000-")]);
    assert_eq!(
        (past.status, past.headers["content-range"].as_str()),
        (416, "bytes */200000")
    );
    for whole in ["bytes=0-1,3-4", "lines=1-2", "bytes=z"] {
        assert_eq!(ranged(&[("range", whole)]).body.len(), 200_000, "{whole}");
    }
    assert_eq!(
        ranged(&[("range", "bytes=0-1"), ("if-range", &tag)]).status,
        206
    );
    assert_eq!(
        ranged(&[("range", "bytes=0-1"), ("if-range", "\"other\"")]).status,
        200
    );
    assert_eq!(ranged(&[("if-none-match", &tag)]).status, 304);
    let head = server.call("HEAD", &at, b"").unwrap();
    assert_eq!(
        (head.status, head.headers["content-length"].as_str()),
        (200, "200000")
    );
}

fn now_ms() -> u64 {
    u64::try_from(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_millis(),
    )
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_say_who_may_what() {
    let (dir, root) = temp();
    let file = dir.path().join("tokens.json");
    let all = ["read", "upload", "refs", "admin"];
    let hash: String = {
        use sha2::Digest as _;
        sha2::Sha256::digest("reader-reader-reader")
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect()
    };
    let tokens = json!([
        { "name": "writer", "token": "writer-writer-writer", "jobs": "orders-*", "rights": all },
        { "name": "reader", "sha256": hash, "jobs": "*", "rights": ["read"] },
        { "name": "late", "token": "late-late-late-late", "jobs": "*", "rights": all, "expires_unix_ms": now_ms() - 1 },
    ]);
    std::fs::write(&file, tokens.to_string()).unwrap();
    let ha = root.join("ha").unwrap();
    let args = ["--tokens", file.to_str().unwrap()];
    let server = Setup::new(&dir.path().join("data"), &ha)
        .with(&args)
        .start();
    let before = files(dir.path());
    let bytes = noise(1, 1000);
    let session = json!({ "session": "0000000000000001", "members": [{ "digest": Digest::of(&bytes).to_string(), "class": "retained" }] });
    let ask = |token: Option<&str>, method: &str, path: &str, body: &[u8]| {
        let bearer = token.map(|t| format!("Bearer {t}"));
        let headers: Vec<(&str, &str)> = bearer
            .iter()
            .map(|b| ("authorization", b.as_str()))
            .collect();
        request(&server.url, method, path, &headers, body).unwrap()
    };
    let begin = "/v1/jobs/orders-1/uploads";
    let body = session.to_string();
    for token in [
        None,
        Some("wrong-wrong-wrong-wrong"),
        Some("late-late-late-late"),
        Some(""),
        Some(hash.as_str()),
    ] {
        for (method, path) in [
            ("POST", begin),
            ("GET", "/v1/jobs"),
            ("GET", "/metrics"),
            ("GET", "/no/such/path"),
        ] {
            let answer = ask(token, method, path, body.as_bytes());
            assert_eq!(
                (answer.status, answer.code().as_str()),
                (401, "unauthorized"),
                "{token:?} {path}"
            );
            assert_eq!(answer.headers["www-authenticate"], "Bearer");
            assert!(!answer.text().contains("wrong-wrong"));
        }
    }
    // The right person, the wrong job; the wrong right.
    let writer = Some("writer-writer-writer");
    let reader = Some("reader-reader-reader");
    assert_eq!(
        ask(writer, "POST", "/v1/jobs/payments/uploads", body.as_bytes()).code(),
        "denied"
    );
    assert_eq!(ask(reader, "POST", begin, body.as_bytes()).code(), "denied");
    let end = json!({ "event": "terminal", "outcome": "finished" }).to_string();
    assert_eq!(
        ask(reader, "POST", "/v1/jobs/orders-1/events", end.as_bytes()).code(),
        "denied"
    );
    let lease = json!({ "kind": "lease", "id": "x", "millis": 1 }).to_string();
    assert_eq!(
        ask(
            reader,
            "POST",
            &format!("{}/refs", path("orders-1", &bytes)),
            lease.as_bytes()
        )
        .code(),
        "denied"
    );
    assert_eq!(files(dir.path()), before, "a refused call wrote something");
    // And those who may.
    assert_eq!(ask(writer, "POST", begin, body.as_bytes()).status, 201);
    let member = format!("{begin}/0000000000000001/blobs/{}", Digest::of(&bytes));
    assert_eq!(ask(reader, "PUT", &member, &bytes).status, 403);
    assert_eq!(ask(writer, "PUT", &member, &bytes).status, 200);
    assert_eq!(
        ask(
            writer,
            "POST",
            &format!("{begin}/0000000000000001/commit"),
            b""
        )
        .status,
        200
    );
    assert_eq!(
        ask(reader, "GET", &path("orders-1", &bytes), b"").body,
        bytes
    );
    assert_eq!(
        ask(writer, "GET", "/v1/jobs", b"").json()["jobs"][0]["job"],
        "orders-1"
    );
    assert_eq!(ask(None, "GET", "/livez", b"").status, 200);
    // Read again when the file changes; a file that cannot be read locks nobody out and lets nobody in.
    std::fs::write(&file, b"[{").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1200));
    assert_eq!(ask(reader, "GET", "/v1/jobs", b"").status, 200);
    assert_eq!(ask(None, "GET", "/v1/jobs", b"").status, 401);
    let only = json!([{ "name": "new", "token": "new-new-new-new-new", "jobs": "payments", "rights": ["read"] }]);
    std::fs::write(&file, only.to_string()).unwrap();
    let changed = || async { ask(reader, "GET", "/v1/jobs", b"").status == 401 };
    until_asked("the token is revoked", changed).await;
    let new = Some("new-new-new-new-new");
    assert_eq!(
        ask(new, "GET", "/v1/jobs", b"").json()["jobs"],
        json!([]),
        "other jobs are not shown"
    );
    assert_eq!(ask(new, "GET", &path("orders-1", &bytes), b"").status, 403);
}

struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Authority {
            issuer: CertifiedIssuer::self_signed(params, key).unwrap(),
        }
    }

    /// Certificate and key as PEM.
    fn issue(&self, name: &str) -> (String, String) {
        let params = CertificateParams::new(vec![name.to_string()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn pem(&self) -> String {
        self.issuer.pem()
    }
}

/// One request over TLS; an error is a handshake that failed or a connection that was cut.
async fn over_tls(
    url: &str,
    authority: &Authority,
    client: Option<&(String, String)>,
    request: &str,
) -> std::io::Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap())
        .unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match client {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => config
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap(),
    };
    let at = url.strip_prefix("https://").unwrap();
    let stream = tokio::net::TcpStream::connect(at).await?;
    let name = ServerName::try_from("blobs.example").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    match answer.is_empty() {
        true => Err(std::io::ErrorKind::ConnectionReset.into()),
        false => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_client_certificate_nobody_gets_in() {
    let (dir, root) = temp();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let server_pair = ours.issue("blobs.example");
    let write = |name: &str, text: &str| {
        let at = dir.path().join(name);
        std::fs::write(&at, text).unwrap();
        at.to_str().unwrap().to_string()
    };
    let (cert, key, ca) = (
        write("cert.pem", &server_pair.0),
        write("key.pem", &server_pair.1),
        write("ca.pem", &ours.pem()),
    );
    let setup = Setup::new(&dir.path().join("data"), &root.join("ha").unwrap());
    let args = [
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
        "--tls-client-ca",
        &ca,
        "--operations",
        "127.0.0.1:0",
    ];
    let server = setup.clone().with(&args).start();
    let get = "GET /v1/jobs HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let good = ours.issue("tm-1");
    let answer = over_tls(&server.url, &ours, Some(&good), get)
        .await
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(over_tls(&server.url, &ours, None, get).await.is_err());
    let foreign = theirs.issue("tm-1");
    assert!(
        over_tls(&server.url, &ours, Some(&foreign), get)
            .await
            .is_err()
    );
    // The client checks the server as well.
    assert!(
        over_tls(&server.url, &theirs, Some(&good), get)
            .await
            .is_err()
    );
    // Plain HTTP on the TLS port.
    let plain = request(
        &server.url.replace("https", "http"),
        "GET",
        "/v1/jobs",
        &[],
        b"",
    );
    assert!(plain.is_none_or(|a| a.status != 200));
    // Health is asked for on a listener of its own, where there is nothing else.
    let operations = server
        .said
        .iter()
        .find_map(|l| l.strip_prefix("operations on "))
        .unwrap();
    assert_eq!(
        request(operations, "GET", "/readyz", &[], b"")
            .unwrap()
            .status,
        200
    );
    assert_eq!(
        request(operations, "GET", "/v1/jobs", &[], b"")
            .unwrap()
            .status,
        404
    );
    drop(server);

    // Beyond the local machine only with tokens, client certificates, or eyes open.
    for (args, allowed) in [
        (vec![], false),
        (vec!["--tls-cert", &cert, "--tls-key", &key], false),
        (
            vec![
                "--tls-cert",
                &cert,
                "--tls-key",
                &key,
                "--tls-client-ca",
                &ca,
            ],
            true,
        ),
        (vec!["--insecure"], true),
    ] {
        let setup = setup.clone().with(&["--bind", "0.0.0.0:0"]).with(&args);
        match setup.try_start() {
            Ok(server) => {
                assert!(allowed, "{args:?}");
                assert_eq!(
                    server.said.iter().any(|l| l.starts_with("warning:")),
                    args == ["--insecure"]
                );
            }
            Err((code, said)) => assert_eq!((allowed, code), (false, Some(3)), "{args:?}: {said}"),
        }
    }
    assert!(
        lying(
            &local_stores(),
            &root.join("ha").unwrap(),
            &dir.path().join("data")
        )
        .await
        .manifests
        .is_empty()
    );
    let (code, said) = setup
        .with(&["--tls-cert", &ca, "--tls-key", &ca])
        .try_start()
        .err()
        .unwrap();
    assert_eq!(code, Some(2), "{said}");
}
