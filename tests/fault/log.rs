//! What was asked of the server: counters by kind, and every request with its outcome.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The service whose interface a request came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Service {
    S3,
    Gcs,
    Azure,
}

impl Service {
    pub const ALL: [Service; 3] = [Service::S3, Service::Gcs, Service::Azure];

    pub fn as_str(self) -> &'static str {
        match self {
            Service::S3 => "s3",
            Service::Gcs => "gcs",
            Service::Azure => "azure",
        }
    }
}

macro_rules! kinds {
    ($($name:ident $text:literal $what:literal,)*) => {
        /// What a request asks for, under one name for all services.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind { $(#[doc = $what] $name,)* }

        impl Kind {
            pub const ALL: &[Kind] = &[$(Kind::$name,)*];

            pub fn as_str(self) -> &'static str {
                match self { $(Kind::$name => $text,)* }
            }
        }
    };
}

kinds! {
    Put "put" "PutObject, Put Blob",
    Get "get" "GetObject, Get Blob",
    Head "head" "HeadObject, Get Blob Properties, objects.get",
    Delete "delete" "DeleteObject, Delete Blob",
    DeleteMany "delete-many" "DeleteObjects, Blob Batch",
    List "list" "ListObjectsV2, List Blobs, objects.list",
    Copy "copy" "CopyObject, Copy Blob, XML copy",
    Rewrite "rewrite" "objects.rewrite, each call",
    PutFromUrl "put-from-url" "Put Blob From URL",
    AbortCopy "abort-copy" "Abort Copy Blob",
    CreateUpload "create-upload" "CreateMultipartUpload",
    PutPart "put-part" "UploadPart, Put Block",
    CopyPart "copy-part" "UploadPartCopy, Put Block From URL",
    ListParts "list-parts" "ListParts, Get Block List",
    ListUploads "list-uploads" "ListMultipartUploads",
    CompleteUpload "complete-upload" "CompleteMultipartUpload, Put Block List",
    AbortUpload "abort-upload" "AbortMultipartUpload",
    GetTags "get-tags" "GetObjectTagging, Get Blob Tags",
    PutTags "put-tags" "PutObjectTagging, Set Blob Tags",
    Bucket "bucket" "requests about a bucket itself",
    Other "other" "anything this server does not know",
}

/// One request and what came of it.
#[derive(Debug, Clone)]
pub struct Record {
    pub service: Service,
    pub kind: Kind,
    pub method: String,
    pub bucket: String,
    pub key: String,
    /// What was answered; 0 if the connection was cut without an answer.
    pub status: u16,
    pub started: Instant,
}

impl Record {
    /// On one line: `s3 copy PUT two/key 200`.
    pub fn line(&self) -> String {
        let (service, kind) = (self.service.as_str(), self.kind.as_str());
        let (method, bucket, key) = (&self.method, &self.bucket, &self.key);
        format!("{service} {kind} {method} {bucket}/{key} {}", self.status)
    }
}

/// Counters, and the requests themselves while [`Log::keep`] is on.
#[derive(Debug)]
pub struct Log {
    counts: Vec<AtomicU64>,
    failures: Vec<AtomicU64>,
    keep: AtomicBool,
    records: Mutex<Vec<Record>>,
}

impl Log {
    pub fn new() -> Log {
        let zeros = || {
            (0..Service::ALL.len() * Kind::ALL.len())
                .map(|_| AtomicU64::new(0))
                .collect()
        };
        Log {
            counts: zeros(),
            failures: zeros(),
            keep: AtomicBool::new(true),
            records: Mutex::default(),
        }
    }

    /// Whether every request is kept, or only counted.
    pub fn keep(&self, on: bool) {
        self.keep.store(on, Ordering::Relaxed);
    }

    fn index(service: Service, kind: Kind) -> usize {
        service as usize * Kind::ALL.len() + kind as usize
    }

    pub fn add(&self, record: impl FnOnce() -> Record, service: Service, kind: Kind, status: u16) {
        self.counts[Self::index(service, kind)].fetch_add(1, Ordering::Relaxed);
        if !(200..400).contains(&status) {
            self.failures[Self::index(service, kind)].fetch_add(1, Ordering::Relaxed);
        }
        if self.keep.load(Ordering::Relaxed) {
            self.lock().push(record());
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests of one kind since the last reset, all services together.
    pub fn count(&self, kind: Kind) -> u64 {
        Service::ALL
            .iter()
            .map(|s| self.counts[Self::index(*s, kind)].load(Ordering::Relaxed))
            .sum()
    }

    /// All requests since the last reset.
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|c| c.load(Ordering::Relaxed)).sum()
    }

    /// Counters above zero: `s3.copy`, and `s3.copy.failed` for those not answered with success.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for service in Service::ALL {
            for kind in Kind::ALL {
                let at = Self::index(service, *kind);
                for (counter, suffix) in [(&self.counts[at], ""), (&self.failures[at], ".failed")] {
                    let count = counter.load(Ordering::Relaxed);
                    if count > 0 {
                        let name = format!("{}.{}{suffix}", service.as_str(), kind.as_str());
                        all.insert(name, count);
                    }
                }
            }
        }
        all
    }

    pub fn records(&self) -> Vec<Record> {
        self.lock().clone()
    }

    /// The requests that named `key`.
    pub fn records_of(&self, key: &str) -> Vec<Record> {
        let mut records = self.records();
        records.retain(|r| r.key == key);
        records
    }

    pub fn reset(&self) {
        for counter in self.counts.iter().chain(&self.failures) {
            counter.store(0, Ordering::Relaxed);
        }
        self.lock().clear();
    }
}
