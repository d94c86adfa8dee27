//! Google Cloud Storage.
//!
//! Source of the rules: the pages "Objects: rewrite", "Objects: insert" and "Resumable uploads" of
//! Google's JSON API reference, and "PUT Object" of its XML API reference.

mod bucket;
mod rewrite;
mod write;

pub(crate) use bucket::GcsBucket;
pub(crate) use write::{Chunk, unfinished};
