//! What a duplicate leaves behind: the evidence for resume and proof.

use serde::{Deserialize, Serialize};

use super::location::Location;
use super::method::Method;
use super::stat::Stat;

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

impl Receipt {
    /// Does it prove that the object `there` at its destination is ours? It does if it names this
    /// very object, and the source as it was planned: at `source`, seen as `stat`.
    pub fn proves(&self, source: &Location, stat: &Stat, there: &Stat) -> bool {
        self.is_of(there)
            && self.source == *source
            && same_tag(self.source_tag.as_deref(), stat.pin(source.provider()))
    }

    /// Is `there`, at the receipt's destination, the very object that was written?
    pub fn is_of(&self, there: &Stat) -> bool {
        let pin = there.pin(self.destination.provider());
        pin.is_some() && there.size == self.bytes && same_tag(self.destination_tag.as_deref(), pin)
    }
}

/// Tags are compared without their quotes.
pub(crate) fn same_tag(one: Option<&str>, other: Option<&str>) -> bool {
    let plain = |tag: Option<&str>| tag.map(|t| t.trim_matches('"').to_string());
    plain(one) == plain(other)
}
