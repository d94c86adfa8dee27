//! A double of object stores that does what real servers and emulators do not do on demand:
//! lose replies, fail in the middle, answer errors inside a success, ignore conditions, copy
//! slowly, throttle.
//!
//! It speaks enough of S3, of Google Cloud Storage (XML and JSON) and of Azure Blob Storage, each
//! on a port of its own, and keeps no bytes where it need not: see [`content`]. Tests start one
//! each with [`FaultServer::start`]; `examples/fault_server.rs` runs it for measurements.
//!
//! Source of the rules: the S3 API reference; the XML and JSON API references of Google Cloud
//! Storage; the Blob service REST reference of Azure.

// Each test binary uses its own part of this; and an example is no test to the linter.
#![allow(
    dead_code,
    unused_imports,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

mod admin;
mod azure;
mod azure_blocks;
mod azure_copy;
mod call;
mod client;
pub mod content;
pub mod faults;
mod gcs;
mod gcs_upload;
pub mod log;
mod reply;
mod server;
mod state;
mod xml;
mod xml_copy;
mod xml_list;
mod xml_upload;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, MutexGuard, OnceLock};

use bytes::Bytes;
use object_store::client::HttpClient;

pub use admin::{KNOBS, set as set_knob};
pub use client::Answer;
pub use content::Content;
pub use faults::{Action, Faults, Gate, Pending, PendingEnd, Rule};
pub use log::{Kind, Log, Record, Service};
use server::{Known, Listening, Shared};
pub use state::{Meta, Object};

/// The only access key that the S3 side accepts, and its secret.
pub const ACCESS_KEY: &str = "FAULTSERVERACCESSKEY";
pub const SECRET_KEY: &str = "never/show+this-secret-of-s3";
/// The two accounts of the Azure side, and their key.
pub const ACCOUNTS: [&str; 2] = ["faultone", "faulttwo"];
pub const ACCOUNT_KEY: &str = "bmV2ZXItc2hvdy10aGlzLXNlY3JldC1vZi1henVyZS0xMjM0NTY3OA==";
/// The buckets and containers that every server begins with.
pub const BUCKETS: [&str; 2] = ["one", "two"];

/// A running server. Stops when dropped.
#[derive(Debug)]
pub struct FaultServer {
    shared: Arc<Shared>,
    listening: [Listening; 3],
    /// For bare requests: made once, for it reads the certificates of the system.
    client: OnceLock<HttpClient>,
}

impl FaultServer {
    /// Starts on free ports.
    pub async fn start() -> FaultServer {
        Self::start_on([0; 3]).await.unwrap()
    }

    /// Starts on the given ports: S3, Google, Azure.
    pub async fn start_on(ports: [u16; 3]) -> io::Result<FaultServer> {
        let shared = Arc::new(Shared::new(Known {
            access_key: ACCESS_KEY.into(),
            accounts: ACCOUNTS.map(String::from),
            bearer: None,
        }));
        for bucket in BUCKETS {
            shared.state.create_bucket(Service::S3, bucket);
            shared.state.create_bucket(Service::Gcs, bucket);
            for account in ACCOUNTS {
                let container = format!("{account}/{bucket}");
                shared.state.create_bucket(Service::Azure, &container);
            }
        }
        let listen =
            |service| server::listen(Arc::clone(&shared), service, ports[service as usize]);
        let listening = [
            listen(Service::S3).await?,
            listen(Service::Gcs).await?,
            listen(Service::Azure).await?,
        ];
        Ok(FaultServer {
            shared,
            listening,
            client: OnceLock::new(),
        })
    }

    /// Where one service listens, without a path.
    pub fn url(&self, service: Service) -> String {
        format!("http://{}", self.listening[service as usize].address)
    }

    /// The knobs. Do not hold over an await.
    pub fn faults(&self) -> MutexGuard<'_, Faults> {
        self.shared.faults()
    }

    /// Adds a rule.
    pub fn add(&self, rule: Rule) {
        self.faults().add(rule);
    }

    pub fn log(&self) -> &Log {
        &self.shared.log
    }

    /// The settings by which a client finds the server and is let in.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", self.url(Service::S3)),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.into()),
            ("AWS_REGION", "us-east-1".into()),
            ("STORAGE_EMULATOR_HOST", self.url(Service::Gcs)),
            (
                "AZURE_STORAGE_ENDPOINT",
                format!("{}/{}", self.url(Service::Azure), ACCOUNTS[0]),
            ),
            ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNTS[0].into()),
            ("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY.into()),
        ]
    }

    /// Makes a bucket if it is not there; for Azure `account/container`.
    pub fn create_bucket(&self, service: Service, bucket: &str) {
        self.shared.state.create_bucket(service, bucket);
    }

    /// Puts an object there, without a request. For Azure `bucket` is `account/container`.
    pub fn put(&self, service: Service, bucket: &str, key: &str, content: Content, meta: Meta) {
        self.put_object(
            service,
            bucket,
            key,
            Object::new(Arc::new(content), Arc::new(meta)),
        );
    }

    fn put_object(&self, service: Service, bucket: &str, key: &str, object: Object) {
        let bucket = self.shared.state.create_bucket(service, bucket);
        let all = |_: Option<&Object>| Ok::<(), ()>(());
        self.shared.state.put(&bucket, key, object, all).unwrap();
    }

    /// Puts an object of `len` bytes that `seed` describes.
    pub fn put_seed(&self, service: Service, bucket: &str, key: &str, seed: u64, len: u64) {
        let content = Content::of_seed(seed, len);
        self.put(service, bucket, key, content, Meta::default());
    }

    pub fn put_bytes(&self, service: Service, bucket: &str, key: &str, bytes: &'static [u8]) {
        let content = Content::of_bytes(Bytes::from_static(bytes));
        self.put(service, bucket, key, content, Meta::default());
    }

    /// Puts an object as a multipart upload would have made it.
    pub fn put_in_parts(
        &self,
        service: Service,
        bucket: &str,
        key: &str,
        content: Content,
        part_size: u64,
        meta: Meta,
    ) {
        let len = content.len();
        let ranges: Vec<_> = (0..len.div_ceil(part_size))
            .map(|n| n * part_size..((n + 1) * part_size).min(len))
            .collect();
        let tags: Vec<_> = ranges
            .iter()
            .map(|r| state::Tag::of(&content.slice(r.clone())))
            .collect();
        let mut object = Object::with_tag(
            Arc::new(content),
            state::Tag::of_parts(tags.iter()),
            Arc::new(meta),
        );
        object.parts = Some(ranges.iter().map(|r| r.end - r.start).collect());
        self.put_object(service, bucket, key, object);
    }

    /// Puts `count` objects `prefix00000000` and so on, each with a seed of its own.
    pub fn fill(&self, service: Service, bucket: &str, prefix: &str, count: u64, len: u64) {
        let meta = Arc::new(Meta::default());
        for n in 0..count {
            let content = Arc::new(Content::of_seed(n + 1, len));
            let object = Object::new(content, Arc::clone(&meta));
            self.put_object(service, bucket, &format!("{prefix}{n:08}"), object);
        }
    }

    /// The object as it is now.
    pub fn get(&self, service: Service, bucket: &str, key: &str) -> Option<Arc<Object>> {
        let bucket = self.shared.state.bucket(service, bucket)?;
        azure_copy::settle(&self.shared.state, &bucket, key);
        bucket.get(key)
    }

    /// True if both objects are there and their bytes are equal.
    pub fn same(&self, service: Service, one: (&str, &str), other: (&str, &str)) -> bool {
        match (
            self.get(service, one.0, one.1),
            self.get(service, other.0, other.1),
        ) {
            (Some(a), Some(b)) => a.content == b.content,
            _ => false,
        }
    }

    /// The keys of a bucket, in order.
    pub fn keys(&self, service: Service, bucket: &str) -> Vec<String> {
        match self.shared.state.bucket(service, bucket) {
            Some(bucket) => bucket.objects().keys().cloned().collect(),
            None => Vec::new(),
        }
    }

    /// Uploads that were begun and neither completed nor aborted, by key. For Azure, blobs with
    /// blocks that no list names.
    pub fn open_uploads(&self, service: Service, bucket: &str) -> BTreeMap<String, usize> {
        let mut open = BTreeMap::new();
        if let Some(bucket) = self.shared.state.bucket(service, bucket) {
            for upload in bucket.uploads().values() {
                *open.entry(upload.key.clone()).or_default() += 1;
            }
            for (key, blocks) in bucket.blocks().iter() {
                if !blocks.uncommitted.is_empty() {
                    *open.entry(key.clone()).or_default() += 1;
                }
            }
        }
        open
    }
}
