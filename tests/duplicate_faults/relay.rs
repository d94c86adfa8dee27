//! Between services the bytes pass through this process.

use forkpoint::store::{DuplicateOptions, Location, Method, Stores};
use forkpoint::{Error, ErrorKind};

use crate::fault::{Action, Content, FaultServer, Kind, Rule, Service};
use crate::{MIB, assert_shows_no_secret};

struct Relay {
    server: FaultServer,
    stores: Stores,
    size: u64,
}

impl Relay {
    async fn new(size: u64) -> Relay {
        let server = FaultServer::start().await;
        server.put_seed(Service::S3, "one", "a", 1, size);
        Relay {
            stores: server.stores(),
            server,
            size,
        }
    }

    /// From S3 to `to`, with the rule that a success is there and equal.
    async fn duplicate(&self, to: &str) -> Result<(), Error> {
        let from = Location::parse("s3://one/a").unwrap();
        let at = Location::parse(to).unwrap();
        let options = DuplicateOptions::default();
        let result = self.stores.duplicate(&from, &at, &options).await;
        match result {
            Ok(receipt) => {
                assert_eq!(receipt.method, Method::Relay);
                assert_eq!(self.arrived(to), Some(true));
                Ok(())
            }
            Err(e) => {
                assert_shows_no_secret(&e);
                Err(e)
            }
        }
    }

    fn arrived(&self, to: &str) -> Option<bool> {
        let there = match to {
            "gs://two/b" => self.server.get(Service::Gcs, "two", "b"),
            _ => self.server.get(Service::Azure, "faultone/two", "b"),
        };
        Some(*there?.content == Content::of_seed(1, self.size))
    }
}

const TARGETS: [&str; 2] = ["gs://two/b", "az://two/b"];

#[tokio::test]
async fn small_and_large_objects_arrive() {
    for size in [0, 1, 8 * MIB, 8 * MIB + 1, 21 * MIB] {
        let relay = Relay::new(size).await;
        for to in TARGETS {
            relay.duplicate(to).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_does_not_pass_for_an_object() {
    for size in [MIB, 21 * MIB] {
        for to in TARGETS {
            let relay = Relay::new(size).await;
            let cut = Action::LoseReply { after: Some(1000) };
            relay.server.add(Rule::on(Kind::Get, cut).times(1));
            if relay.duplicate(to).await.is_err() {
                assert_eq!(relay.arrived(to), None);
            }
        }
    }
}

#[tokio::test]
async fn a_source_that_changes_between_two_parts_is_a_conflict() {
    let relay = Relay::new(40 * MIB).await;
    let slowly = Action::Delay(std::time::Duration::from_millis(300));
    relay.server.add(Rule::on(Kind::Get, slowly));
    let other = async {
        tokio::time::sleep(std::time::Duration::from_millis(450)).await;
        relay.server.put_seed(Service::S3, "one", "a", 2, 40 * MIB);
    };
    let (result, ()) = tokio::join!(relay.duplicate("gs://two/b"), other);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(relay.arrived("gs://two/b"), None);
    let open = relay.server.open_uploads(Service::Gcs, "two");
    assert!(open.is_empty(), "{open:?}");
}

#[tokio::test]
async fn a_lost_reply_to_a_small_write_is_a_success() {
    for to in TARGETS {
        let relay = Relay::new(MIB).await;
        let lost = Action::LoseReply { after: None };
        relay.server.add(Rule::on(Kind::Put, lost).times(1));
        // A reply that was lost may be an error, but not a foreign object.
        match relay.duplicate(to).await {
            Ok(()) => {}
            Err(e) => assert_eq!(e.kind(), ErrorKind::Unavailable, "{e:?}"),
        }
        assert_eq!(relay.arrived(to), Some(true));
    }
}

#[tokio::test]
async fn a_foreign_object_is_reported_and_kept() {
    for size in [MIB, 21 * MIB] {
        let relay = Relay::new(size).await;
        relay
            .server
            .put_bytes(Service::Gcs, "two", "b", b"of somebody else");
        relay
            .server
            .put_bytes(Service::Azure, "faultone/two", "b", b"of somebody else");
        for to in TARGETS {
            let result = relay.duplicate(to).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::AlreadyExists);
            assert_eq!(relay.arrived(to), Some(false));
        }
    }
}

#[tokio::test]
async fn a_denied_part_leaves_no_upload_behind() {
    let relay = Relay::new(40 * MIB).await;
    let denied = Action::Fail {
        status: 403,
        code: "AccessDenied",
    };
    relay.server.add(Rule::on(Kind::PutPart, denied).after(2));
    let result = relay.duplicate("gs://two/b").await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Denied);
    let open = relay.server.open_uploads(Service::Gcs, "two");
    assert!(open.is_empty(), "{open:?}");
}

#[tokio::test]
async fn a_lost_reply_to_the_end_of_an_upload_is_a_success_where_it_may_be_repeated() {
    let relay = Relay::new(21 * MIB).await;
    relay.server.faults().complete_is_repeatable = true;
    let lost = Action::LoseReply { after: None };
    relay
        .server
        .add(Rule::on(Kind::CompleteUpload, lost).times(1));
    relay.duplicate("gs://two/b").await.unwrap();
}

#[tokio::test]
async fn a_lost_reply_to_the_end_of_an_upload_never_leaves_a_part_of_an_object() {
    for to in TARGETS {
        let relay = Relay::new(21 * MIB).await;
        let lost = Action::LoseReply { after: None };
        relay
            .server
            .add(Rule::on(Kind::CompleteUpload, lost).times(1));
        // The second attempt finds the upload gone: whether that is an error is up to the relay.
        let _ = relay.duplicate(to).await;
        assert_eq!(relay.arrived(to), Some(true));
    }
}
