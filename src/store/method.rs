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
    /// Many UploadPartCopy requests at once; the service moves the bytes.
    S3PartCopy,
    /// JSON rewrite calls until done; no bytes move where location and class are equal.
    GcsRewrite,
    /// Copy Blob, waited for until the service says that it is done.
    AzureCopy,
    /// Put Block From URL between accounts, and a block list; the service moves the bytes.
    AzureBlockCopy,
    /// A clone that shares blocks until one side is written (FICLONE): constant time.
    LocalReflink,
    /// The kernel copies between two files (copy_file_range), or reads and writes where it cannot.
    LocalCopy,
    /// A second name for the same file: not independent, and only when asked for.
    LocalHardLink,
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
            Method::S3PartCopy => "s3-part-copy",
            Method::GcsRewrite => "gcs-rewrite",
            Method::AzureCopy => "azure-copy",
            Method::AzureBlockCopy => "azure-block-copy",
            Method::LocalReflink => "local-reflink",
            Method::LocalCopy => "local-copy",
            Method::LocalHardLink => "local-hard-link",
            Method::MemoryCopy => "memory-copy",
            Method::Relay => "relay",
        }
    }

    /// True if the bytes do not pass through this process's memory.
    pub fn is_server_side(self) -> bool {
        !matches!(self, Method::Relay)
    }

    pub(crate) fn is_s3(self) -> bool {
        matches!(self, Method::S3Copy | Method::S3PartCopy)
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
    /// One of them demands customer-provided encryption keys, which need headers that only
    /// the store client itself sends.
    pub customer_keys: bool,
    /// Objects from this size on are better copied in parts.
    pub split_at: u64,
    /// The destination copies parts, as far as is known.
    pub part_copy: bool,
    /// A second name for the same local file was asked for.
    pub hard_link: bool,
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
        (Provider::Local, Provider::Local) if facts.hard_link => pick(
            Method::LocalHardLink,
            "asked for; the two names share one file",
        ),
        (Provider::Local, Provider::Local) => pick(
            Method::LocalCopy,
            "both are files of this machine: reflink where the file system can, else kernel copy",
        ),
        (Provider::Memory, Provider::Memory) => {
            pick(Method::MemoryCopy, "both are in this process's memory")
        }
        (a, b) if a != b => pick(Method::Relay, "different services cannot copy between them"),
        (Provider::Azure, _) if !facts.one_service && facts.part_copy && !facts.customer_keys => {
            pick(
                Method::AzureBlockCopy,
                "two accounts: the service reads blocks from a signed URL",
            )
        }
        _ if !facts.one_service => pick(
            Method::Relay,
            "the two buckets have different endpoints or accounts",
        ),
        _ if facts.customer_keys => pick(
            Method::Relay,
            "customer-provided encryption keys do not travel with a server-side copy",
        ),
        (Provider::S3, _) => choose_s3(facts),
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

fn choose_s3(facts: Facts) -> Choice {
    let pick = |method, reason| Choice { method, reason };
    let too_large = facts.size > S3_COPY_LIMIT_BYTES;
    match (facts.part_copy, facts.size >= facts.split_at.max(1)) {
        (true, true) => pick(
            Method::S3PartCopy,
            "large: its parts are copied side by side",
        ),
        (true, false) if too_large => pick(
            Method::S3PartCopy,
            "above the 5 GiB that one CopyObject takes",
        ),
        (false, _) if too_large => pick(
            Method::Relay,
            "above the 5 GiB that one CopyObject takes, and the service does not copy parts",
        ),
        _ => pick(
            Method::S3Copy,
            "one service: CopyObject moves the bytes inside it",
        ),
    }
}

/// The method on a service that was seen to ignore the condition that keeps an existing object.
pub(crate) fn conditions_ignored(size: u64) -> Choice {
    match size {
        // An upload must have at least one part with a byte.
        0 => Choice {
            method: Method::Relay,
            reason: "the service ignores conditions on copies, but not on writes",
        },
        _ => Choice {
            method: Method::S3PartCopy,
            reason: "the service ignores conditions on CopyObject, but not on completing an upload",
        },
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

    const GIB: u64 = 1024 * 1024 * 1024;
    const SMALL: Facts = Facts {
        size: 1,
        one_service: true,
        customer_keys: false,
        split_at: GIB,
        part_copy: true,
        hard_link: false,
    };

    #[test]
    fn one_service_copies_by_itself_and_everything_else_is_relayed() {
        use Provider::*;
        let no_parts = Facts {
            part_copy: false,
            ..SMALL
        };
        for (from, to, facts, method) in [
            (S3, S3, SMALL, Method::S3Copy),
            (
                S3,
                S3,
                Facts {
                    size: GIB - 1,
                    ..SMALL
                },
                Method::S3Copy,
            ),
            (S3, S3, Facts { size: GIB, ..SMALL }, Method::S3PartCopy),
            (
                S3,
                S3,
                Facts {
                    size: 6 * GIB,
                    split_at: u64::MAX,
                    ..SMALL
                },
                Method::S3PartCopy,
            ),
            (
                S3,
                S3,
                Facts {
                    size: 5 * GIB,
                    ..no_parts
                },
                Method::S3Copy,
            ),
            (
                S3,
                S3,
                Facts {
                    size: 5 * GIB + 1,
                    ..no_parts
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
            (
                Azure,
                Azure,
                Facts {
                    one_service: false,
                    ..SMALL
                },
                Method::AzureBlockCopy,
            ),
            (
                Azure,
                Azure,
                Facts {
                    one_service: false,
                    ..no_parts
                },
                Method::Relay,
            ),
            (S3, Gcs, SMALL, Method::Relay),
            (Local, S3, SMALL, Method::Relay),
            (Local, Local, SMALL, Method::LocalCopy),
            (
                Local,
                Local,
                Facts {
                    hard_link: true,
                    ..SMALL
                },
                Method::LocalHardLink,
            ),
            (Memory, Memory, SMALL, Method::MemoryCopy),
        ] {
            assert_eq!(
                choose(&bucket(from, "a"), &bucket(to, "b"), facts).method,
                method
            );
        }
    }
}
