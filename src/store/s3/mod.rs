//! S3 and what speaks its protocol.
//!
//! object_store's own copy takes a `200 OK` with an error in its body for success, cannot cross
//! buckets, pins no source, stops at 5 GiB and returns nothing; so copies are requests of our own,
//! signed with the store's credentials.
//! Source of the rules: the pages CopyObject, CreateMultipartUpload, UploadPartCopy,
//! CompleteMultipartUpload, ListParts, ListMultipartUploads and ListObjectsV2 of the S3 API reference.

mod bucket;
mod copy;
mod listing;
mod parts;
mod source;
mod uploads;
mod write;
mod xml;

pub(crate) use bucket::S3Bucket;
pub(crate) use parts::{PartOptions, PartSource};
