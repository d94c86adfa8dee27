//! Duplicates while the stores misbehave. The rule of all these tests: what is reported as a
//! success is there and equal, what was there of others is kept, and no error shows a secret.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fault;

#[path = "duplicate_faults/azure.rs"]
mod azure;
#[path = "duplicate_faults/every_service.rs"]
mod every_service;
#[path = "duplicate_faults/gcs.rs"]
mod gcs;
#[path = "duplicate_faults/relay.rs"]
mod relay;
#[path = "duplicate_faults/s3.rs"]
mod s3;
#[path = "duplicate_faults/secrets.rs"]
mod secrets;
#[path = "support/waits.rs"]
mod waits;

use fault::{Action, Content, FaultServer, Kind, Meta, Rule, Service};
use forkpoint::store::{DuplicateOptions, Existing, Location, Receipt, Stat, Stores};
use forkpoint::{Error, ErrorKind};

const MIB: u64 = 1024 * 1024;
const SIZE: u64 = 3 * MIB;

/// A signature as Azure has them in URLs.
const SAS: &str = "sv=2022-11-02&se=2030-01-01&sig=never%2Bshow-this-signature";

/// One service with an object `a` in the first bucket, to be duplicated to `b` in the second.
struct Bench {
    server: FaultServer,
    service: Service,
    stores: Stores,
}

impl Bench {
    /// A bench whose buckets have been found to honour conditions.
    async fn new(service: Service) -> Bench {
        let bench = Bench::unknown(service).await;
        let (from, to) = (bench.at(0, "known"), bench.at(1, "known"));
        bench.put_seed(0, "known", 9);
        bench
            .stores
            .duplicate(&from, &to, &DuplicateOptions::default())
            .await
            .unwrap();
        bench.stores.delete(&from).await.unwrap();
        bench.stores.delete(&to).await.unwrap();
        bench.server.log().reset();
        bench
    }

    /// A bench whose buckets nobody has tried yet.
    async fn unknown(service: Service) -> Bench {
        let server = FaultServer::start().await;
        let bench = Bench {
            stores: server.stores(),
            service,
            server,
        };
        bench.put_seed(0, "a", 1);
        bench
    }

    fn at(&self, bucket: usize, key: &str) -> Location {
        let scheme = match self.service {
            Service::S3 => "s3",
            Service::Gcs => "gs",
            Service::Azure => "az",
        };
        let bucket = fault::BUCKETS[bucket];
        Location::parse(&format!("{scheme}://{bucket}/{key}")).unwrap()
    }

    fn bucket(&self, bucket: usize) -> String {
        match self.service {
            Service::Azure => format!("{}/{}", fault::ACCOUNTS[0], fault::BUCKETS[bucket]),
            _ => fault::BUCKETS[bucket].to_string(),
        }
    }

    /// An object of the one size of these tests, with bytes of its own.
    fn put_seed(&self, bucket: usize, key: &str, seed: u64) {
        let bucket = self.bucket(bucket);
        self.server.put_seed(self.service, &bucket, key, seed, SIZE);
    }

    /// The same, with an ETag that is no hash of its bytes.
    fn put_in_parts(&self, bucket: usize, key: &str, seed: u64) {
        let content = Content::of_seed(seed, SIZE);
        let bucket = self.bucket(bucket);
        let (service, meta) = (self.service, Meta::default());
        self.server
            .put_in_parts(service, &bucket, key, content, MIB, meta);
    }

    /// Is there an object at the destination, and is it made of this seed?
    fn holds(&self, seed: u64) -> Option<bool> {
        let bucket = self.bucket(1);
        let there = self.server.get(self.service, &bucket, "b")?;
        Some(*there.content == Content::of_seed(seed, SIZE))
    }

    /// The requests that copied to the destination: one, if nothing goes wrong.
    fn copies(&self) -> usize {
        let mut records = self.server.log().records_of("b");
        records.retain(|r| r.kind == self.copy_kind());
        records.len()
    }

    fn copy_kind(&self) -> Kind {
        match self.service {
            Service::Gcs => Kind::Rewrite,
            _ => Kind::Copy,
        }
    }

    /// A rule for the copy to the destination: our stores may try other copies first, to find out
    /// what the server does.
    fn on_copy(&self, action: Action) -> Rule {
        Rule::on(self.copy_kind(), action).for_keys("b")
    }

    async fn stat(&self) -> Stat {
        self.stores.stat(&self.at(0, "a")).await.unwrap()
    }

    async fn duplicate(&self) -> Result<Receipt, Error> {
        self.duplicate_with(&DuplicateOptions::default()).await
    }

    /// As a caller does it who has just seen that the destination is free.
    async fn duplicate_to_free(&self) -> Result<Receipt, Error> {
        self.duplicate_with(&DuplicateOptions {
            destination_is_free: true,
            ..DuplicateOptions::default()
        })
        .await
    }

    async fn overwrite(&self) -> Result<Receipt, Error> {
        self.duplicate_with(&DuplicateOptions {
            existing: Existing::Overwrite,
            ..DuplicateOptions::default()
        })
        .await
    }

    async fn duplicate_with(&self, options: &DuplicateOptions) -> Result<Receipt, Error> {
        let (from, to) = (self.at(0, "a"), self.at(1, "b"));
        let result = self.stores.duplicate(&from, &to, options).await;
        if let Err(e) = &result {
            assert_shows_no_secret(e);
        }
        result
    }
}

/// Neither an error nor what lies below it shows a secret.
fn assert_shows_no_secret(error: &Error) {
    let mut texts = vec![format!("{error} {error:?} {error:#?}")];
    let mut next = std::error::Error::source(error);
    while let Some(below) = next {
        texts.push(format!("{below} {below:?}"));
        next = below.source();
    }
    for secret in [
        fault::SECRET_KEY,
        fault::ACCOUNT_KEY,
        "never",
        "sig=",
        "Signature",
        "SharedKey",
    ] {
        for text in &texts {
            assert!(!text.contains(secret), "{secret} is shown: {text}");
        }
    }
}

#[track_caller]
fn assert_kind(result: Result<Receipt, Error>, kind: ErrorKind) {
    match result {
        Ok(receipt) => panic!("it was reported as done: {receipt:?}"),
        Err(e) => assert_eq!(e.kind(), kind, "{e:?}"),
    }
}
