//! Between services the bytes pass through this process.

use forkpoint::store::{DuplicateOptions, Journal, Location, Method, Options, Stores};
use forkpoint::{Error, ErrorKind};

use crate::fault::{Action, Content, FaultServer, Gate, Kind, Rule, Service};
use crate::waits::until;
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
        server.put_seed(Service::Gcs, "one", "a", 1, size);
        // Little memory makes small chunks: of some MiB there are several, to every service.
        let little = [("FORKPOINT_RELAY_MEMORY_MIB", "32".to_string())];
        let settings = server.settings().into_iter().chain(little);
        let options = settings.fold(Options::default(), |all, (name, value)| {
            all.with(name, value)
        });
        Relay {
            stores: Stores::new(options),
            server,
            size,
        }
    }

    /// From S3 to `to`, with the rule that a success is there and equal.
    async fn duplicate(&self, to: &str) -> Result<(), Error> {
        self.duplicate_with(to, &DuplicateOptions::default()).await
    }

    async fn duplicate_with(&self, to: &str, options: &DuplicateOptions) -> Result<(), Error> {
        let from = if to.starts_with("s3:") {
            "gs://one/a"
        } else {
            "s3://one/a"
        };
        let from = Location::parse(from).unwrap();
        let at = Location::parse(to).unwrap();
        let result = self.stores.duplicate(&from, &at, options).await;
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
            "s3://two/b" => self.server.get(Service::S3, "two", "b"),
            _ => self.server.get(Service::Azure, "faultone/two", "b"),
        };
        Some(*there?.content == Content::of_seed(1, self.size))
    }
}

const TARGETS: [&str; 3] = ["gs://two/b", "az://two/b", "s3://two/b"];

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
    let gate = Gate::new();
    let wait = Action::Wait(gate.clone());
    relay.server.add(Rule::on(Kind::Get, wait).after(1));
    let other = async {
        until("a part is read, and the next is asked for", || {
            relay.server.log().count(Kind::Get) == 1
        })
        .await;
        gate.reached().await;
        relay.server.put_seed(Service::S3, "one", "a", 2, 40 * MIB);
        gate.open_for_good();
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
        relay
            .server
            .put_bytes(Service::S3, "two", "b", b"of somebody else");
        for to in TARGETS {
            let result = relay.duplicate(to).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::AlreadyExists);
            assert_eq!(relay.arrived(to), Some(false));
        }
    }
}

/// What is at the destination when the reply to the end of an upload is lost is looked at and compared.
#[tokio::test]
async fn a_lost_reply_to_the_end_of_an_upload_is_a_success() {
    for to in TARGETS {
        let relay = Relay::new(9 * MIB).await;
        let lost = Action::LoseReply { after: None };
        relay
            .server
            .add(Rule::on(Kind::CompleteUpload, lost).times(1));
        relay.duplicate(to).await.unwrap();
    }
}

#[tokio::test]
async fn a_denied_part_makes_no_object_and_leaves_no_upload() {
    for to in TARGETS {
        let relay = Relay::new(34 * MIB).await;
        let denied = Action::Fail {
            status: 403,
            code: "AccessDenied",
        };
        relay.server.add(Rule::on(Kind::PutPart, denied).after(2));
        let result = relay.duplicate(to).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Denied);
        assert_eq!(relay.arrived(to), None);
        let open = relay.server.open_uploads(Service::S3, "two");
        assert!(open.is_empty(), "{open:?}");
    }
}

#[tokio::test]
async fn a_byte_that_is_damaged_on_the_way_to_the_store_is_sent_again() {
    for size in [MIB, 9 * MIB] {
        for to in TARGETS {
            for kind in [Kind::Put, Kind::PutPart, Kind::CompleteUpload] {
                // The last chunk to Google has no checksum of its own: its object is removed.
                if to == "gs://two/b" && kind != Kind::Put {
                    continue;
                }
                let relay = Relay::new(size).await;
                relay.server.add(Rule::on(kind, Action::Damage).times(1));
                match (to, kind) {
                    // The list of parts is no content.
                    ("s3://two/b", Kind::CompleteUpload) => {
                        if relay.duplicate(to).await.is_err() {
                            assert_eq!(relay.arrived(to), None);
                        }
                    }
                    _ => relay.duplicate(to).await.unwrap(),
                }
            }
        }
    }
}

#[tokio::test]
async fn chunks_that_are_damaged_make_no_object() {
    for kind in [Kind::PutPart, Kind::CompleteUpload] {
        let relay = Relay::new(9 * MIB).await;
        relay.server.add(Rule::on(kind, Action::Damage).times(1));
        let result = relay.duplicate("gs://two/b").await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(relay.arrived("gs://two/b"), None);
    }
}

#[tokio::test]
async fn a_byte_that_is_read_wrong_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("file:{}/b", folder.path().display());
    for size in [MIB, 9 * MIB] {
        for to in TARGETS.into_iter().chain([&*file]) {
            let relay = Relay::new(size).await;
            let flip = Action::Flip { at: size - 10 };
            // The first reading of all, not the second.
            let reads = size.div_ceil(8 * MIB);
            relay.server.add(Rule::on(Kind::Get, flip).times(reads));
            let from = match to {
                "s3://two/b" => "gs://one/a",
                _ => "s3://one/a",
            };
            let (from, at) = (Location::parse(from).unwrap(), Location::parse(to).unwrap());
            let options = DuplicateOptions::default();
            let result = relay.stores.duplicate(&from, &at, &options).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Unavailable, "{to}");
            assert!(relay.stores.find(&at).await.unwrap().is_none(), "{to}");
        }
    }
}

/// With encryption by a service's key an ETag has the form of a checksum and is none.
#[tokio::test]
async fn tags_that_are_no_checksums_are_found_out_once() {
    let relay = Relay::new(MIB).await;
    // Above the size to which the double computes true checksums.
    for key in ["x", "y"] {
        relay.server.put_seed(Service::S3, "one", key, 1, 33 * MIB);
    }
    let mut reads = Vec::new();
    for key in ["x", "y"] {
        relay.server.log().reset();
        let from = Location::parse(&format!("s3://one/{key}")).unwrap();
        let at = Location::parse(&format!("az://two/{key}")).unwrap();
        let options = DuplicateOptions::default();
        relay.stores.duplicate(&from, &at, &options).await.unwrap();
        let records = relay.server.log().records_of(key);
        reads.push(records.iter().filter(|r| r.kind == Kind::Get).count());
    }
    assert_eq!(reads, [10, 5]);
}

/// A rerun reads and sends only what is missing, where the service keeps parts between runs.
#[tokio::test]
async fn a_killed_relay_goes_on_with_the_missing_parts() {
    for (to, journal) in [("az://two/b", false), ("s3://two/b", true)] {
        let relay = Relay::new(64 * MIB).await;
        let root = Location::parse("s3://two/root").unwrap();
        let log = || async {
            let journal = Journal::open(&relay.stores, &root, "run").await.unwrap();
            std::sync::Arc::new(journal)
        };
        let options = async || match journal {
            true => DuplicateOptions {
                log: log().await,
                ..DuplicateOptions::default()
            },
            false => DuplicateOptions::default(),
        };
        // The fifth part hangs, and the process ends.
        let hang = Action::Wait(Gate::new());
        relay.server.add(Rule::on(Kind::PutPart, hang).after(4));
        let first = options().await;
        let parts = || {
            let records = relay.server.log().records_of("b");
            records.iter().filter(|r| r.kind == Kind::PutPart).count()
        };
        tokio::select! {
            result = relay.duplicate_with(to, &first) => panic!("not killed: {result:?}"),
            () = until("four parts are there", || parts() == 4) => {}
        }
        drop(first);
        relay.server.faults().clear_rules();
        relay.server.log().reset();
        relay.duplicate_with(to, &options().await).await.unwrap();
        assert_eq!(parts(), 4, "{to}");
        let open = relay.server.open_uploads(Service::S3, "two");
        assert!(open.is_empty(), "{open:?}");
    }
}

/// Two writers: only one object, and the loser learns so.
#[tokio::test]
async fn an_object_that_appears_meanwhile_is_kept() {
    for to in TARGETS {
        let relay = Relay::new(9 * MIB).await;
        let gate = Gate::new();
        let wait = Action::Wait(gate.clone());
        relay.server.add(Rule::on(Kind::PutPart, wait));
        let other = async {
            gate.reached().await;
            let (service, bucket) = match to {
                "gs://two/b" => (Service::Gcs, "two"),
                "s3://two/b" => (Service::S3, "two"),
                _ => (Service::Azure, "faultone/two"),
            };
            let theirs = b"of somebody else";
            relay.server.put_bytes(service, bucket, "b", theirs);
            gate.open_for_good();
        };
        let (result, ()) = tokio::join!(relay.duplicate(to), other);
        assert_eq!(result.unwrap_err().kind(), ErrorKind::AlreadyExists, "{to}");
        assert_eq!(relay.arrived(to), Some(false));
        let open = relay.server.open_uploads(Service::S3, "two");
        assert!(open.is_empty(), "{open:?}");
    }
}
