//! No error and no debug output shows a secret. Every other test looks at its errors too.

use forkpoint::store::{DuplicateOptions, Location, Options, Stores};

use crate::fault::{Action, FaultServer, Kind, Rule, Service};
use crate::{SAS, assert_shows_no_secret};

/// Stores with wrong secrets for this server, or with a signature instead of a key.
fn strangers(server: &FaultServer) -> Vec<(&'static str, Stores)> {
    let known = || {
        server
            .settings()
            .into_iter()
            .fold(Options::default(), |o, (name, value)| o.with(name, value))
    };
    vec![
        ("known", Stores::new(known())),
        (
            "with another key",
            Stores::new(
                known()
                    .with("AWS_ACCESS_KEY_ID", "NEVERSHOWN")
                    .with("AWS_SECRET_ACCESS_KEY", "never/show/this/either"),
            ),
        ),
        (
            "with a signature",
            Stores::new(
                known()
                    .with("AZURE_STORAGE_ACCOUNT_KEY", "")
                    .with("AZURE_STORAGE_SAS_KEY", SAS),
            ),
        ),
    ]
}

#[tokio::test]
async fn no_error_shows_a_secret() {
    let server = FaultServer::start().await;
    let fail = |status, code| Action::Fail { status, code };
    let mut errors = 0;
    for (who, stores) in strangers(&server) {
        for action in [
            fail(400, "InvalidRequest"),
            fail(403, "AccessDenied"),
            fail(404, "NoSuchKey"),
            fail(409, "Conflict"),
            fail(412, "PreconditionFailed"),
            fail(501, "NotImplemented"),
            Action::FailInside {
                code: "AccessDenied",
            },
            Action::LoseReply { after: Some(1) },
        ] {
            for kind in [Kind::Head, Kind::Copy, Kind::Rewrite, Kind::Put, Kind::Get] {
                server.faults().clear_rules();
                // Once is enough for the errors that are not repeated.
                server.add(Rule::on(kind, action.clone()).times(1));
                for (from, to) in [
                    ("s3://one/a", "s3://two/b"),
                    ("gs://one/a", "gs://two/b"),
                    ("az://one/a", "az://two/b"),
                    ("s3://one/a", "az://two/c"),
                    ("az://one/a", "gs://two/c"),
                    ("az://none/a", "az://two/c"),
                ] {
                    server.put_seed(Service::S3, "one", "a", 1, 100);
                    server.put_seed(Service::Gcs, "one", "a", 1, 100);
                    server.put_seed(Service::Azure, "faultone/one", "a", 1, 100);
                    let (from, to) = (Location::parse(from), Location::parse(to));
                    let (from, to) = (from.unwrap(), to.unwrap());
                    let options = DuplicateOptions::default();
                    if let Err(e) = stores.duplicate(&from, &to, &options).await {
                        assert_shows_no_secret(&e);
                        errors += 1;
                    }
                    let _ = stores.delete(&to).await;
                }
            }
        }
        let shown = format!("{who} {stores:?} {stores:#?}");
        assert!(!shown.contains("never"), "{shown}");
        for at in ["s3://one/a", "gs://one/a", "az://one/a"] {
            let store = stores.open(&Location::parse(at).unwrap()).unwrap();
            let shown = format!("{store:?} {store:#?}");
            assert!(!shown.contains("never") && !shown.contains(SAS), "{shown}");
        }
    }
    assert!(errors > 100, "{errors} errors were looked at");
}

#[tokio::test]
async fn no_error_of_a_server_that_is_gone_shows_a_secret() {
    let server = FaultServer::start().await;
    let all = strangers(&server);
    drop(server);
    let looks = all.iter().flat_map(|(_, stores)| {
        ["s3://one/a", "az://one/a"].map(|at| (stores, Location::parse(at).unwrap()))
    });
    // The store client's own repetitions take their time: all at once.
    let looks = looks.map(|(stores, at)| async move { stores.stat(&at).await });
    for result in futures::future::join_all(looks).await {
        let e = result.unwrap_err();
        assert_shows_no_secret(&e);
        assert!(e.to_string().contains("onnection refused"), "{e}");
    }
}
