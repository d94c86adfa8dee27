//! What a duplicate leaves behind: the evidence for resume and proof.

use serde::{Deserialize, Serialize};

use super::location::Location;
use super::method::Method;

/// The evidence of one duplicate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The object that was read.
    pub source: Location,
    /// The object that was written.
    pub destination: Location,
    /// How the bytes got there.
    pub method: Method,
    /// Size of both objects in bytes.
    pub bytes: u64,
    /// The source's tag (ETag, generation, or inode-time-size for a local file) when it was read.
    pub source_tag: Option<String>,
    /// The destination's tag as the store answered or showed it afterwards.
    pub destination_tag: Option<String>,
    /// Requests sent for the copy itself; above 1 when some had to be repeated.
    pub attempts: u32,
}
