//! Which copy method serves a pair of stores: a pure table with reasons.

use serde::{Deserialize, Serialize};

use super::location::{Bucket, Provider};

/// How the bytes of a duplicate get to their place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Method {
    /// One CopyObject request; the service moves the bytes. At most 5 GiB on AWS.
    S3Copy,
    /// JSON rewrite calls until done; no bytes move where location and class are equal.
    GcsRewrite,
    /// Copy Blob, waited for until the service says that it is done.
    AzureCopy,
    /// A clone that shares blocks until one side is written (FICLONE): constant time.
    LocalReflink,
    /// The kernel copies between two files (copy_file_range), or reads and writes where it cannot.
    LocalCopy,
    /// Two names in the memory of this process for the same immutable bytes.
    MemoryCopy,
    /// Through this process: ranged reads, streamed writes, bounded memory.
    Relay,
}

impl Method {
    /// The name in reports and receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Method::S3Copy => "s3-copy",
            Method::GcsRewrite => "gcs-rewrite",
            Method::AzureCopy => "azure-copy",
            Method::LocalReflink => "local-reflink",
            Method::LocalCopy => "local-copy",
            Method::MemoryCopy => "memory-copy",
            Method::Relay => "relay",
        }
    }

    /// True if the bytes do not pass through this process's memory.
    pub fn is_server_side(self) -> bool {
        !matches!(self, Method::Relay)
    }
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Largest object that one CopyObject request takes on AWS, in bytes.
/// Source: the CopyObject page of the S3 API reference.
pub const S3_COPY_LIMIT_BYTES: u64 = 5 * 1024 * 1024 * 1024;

/// What the choice of a method depends on besides the two buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Size of the object in bytes.
    pub size: u64,
    /// Both buckets are served by one endpoint with one identity.
    pub one_service: bool,
    /// The destination demands customer-provided encryption keys, which need headers that only
    /// the store client itself sends.
    pub customer_keys: bool,
}

/// A method and why it was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// How to copy.
    pub method: Method,
    /// Why, as a fragment for people.
    pub reason: &'static str,
}

/// Chooses the method for one object.
pub fn choose(source: &Bucket, destination: &Bucket, facts: Facts) -> Choice {
    let pick = |method, reason| Choice { method, reason };
    match (source.provider, destination.provider) {
        (Provider::Local, Provider::Local) => pick(
            Method::LocalCopy,
            "both are files of this machine: reflink where the file system can, else kernel copy",
        ),
        (Provider::Memory, Provider::Memory) => {
            pick(Method::MemoryCopy, "both are in this process's memory")
        }
        (a, b) if a != b => pick(Method::Relay, "different services cannot copy between them"),
        _ if !facts.one_service => pick(
            Method::Relay,
            "the two buckets have different endpoints or accounts",
        ),
        _ if facts.customer_keys => pick(
            Method::Relay,
            "customer-provided encryption keys do not travel with a server-side copy",
        ),
        (Provider::S3, _) if facts.size > S3_COPY_LIMIT_BYTES => {
            pick(Method::Relay, "above the 5 GiB that one CopyObject takes")
        }
        (Provider::S3, _) => pick(
            Method::S3Copy,
            "one service: CopyObject moves the bytes inside it",
        ),
        (Provider::Gcs, _) => pick(
            Method::GcsRewrite,
            "one service: rewrite moves the bytes inside it",
        ),
        (Provider::Azure, _) => pick(
            Method::AzureCopy,
            "one account: Copy Blob moves the bytes inside it",
        ),
        _ => pick(Method::Relay, "no server-side copy is known for this pair"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(provider: Provider, name: &str) -> Bucket {
        Bucket {
            provider,
            name: name.into(),
            account: None,
        }
    }

    const SMALL: Facts = Facts {
        size: 1,
        one_service: true,
        customer_keys: false,
    };

    #[test]
    fn one_service_copies_by_itself_and_everything_else_is_relayed() {
        use Provider::*;
        for (from, to, facts, method) in [
            (S3, S3, SMALL, Method::S3Copy),
            (
                S3,
                S3,
                Facts {
                    size: S3_COPY_LIMIT_BYTES,
                    ..SMALL
                },
                Method::S3Copy,
            ),
            (
                S3,
                S3,
                Facts {
                    size: S3_COPY_LIMIT_BYTES + 1,
                    ..SMALL
                },
                Method::Relay,
            ),
            (
                S3,
                S3,
                Facts {
                    one_service: false,
                    ..SMALL
                },
                Method::Relay,
            ),
            (
                S3,
                S3,
                Facts {
                    customer_keys: true,
                    ..SMALL
                },
                Method::Relay,
            ),
            (Gcs, Gcs, SMALL, Method::GcsRewrite),
            (Azure, Azure, SMALL, Method::AzureCopy),
            (S3, Gcs, SMALL, Method::Relay),
            (Local, S3, SMALL, Method::Relay),
            (Local, Local, SMALL, Method::LocalCopy),
            (Memory, Memory, SMALL, Method::MemoryCopy),
        ] {
            assert_eq!(
                choose(&bucket(from, "a"), &bucket(to, "b"), facts).method,
                method
            );
        }
    }
}
