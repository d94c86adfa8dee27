//! What a store says of an object without reading it.

use super::location::Provider;

/// Size and tags of one object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stat {
    /// Size in bytes.
    pub size: u64,
    /// The ETag; for a local file inode, modification time and size.
    pub tag: Option<String>,
    /// The version or generation, where the store has one.
    pub version: Option<String>,
    /// The storage class, where a listing told it.
    pub storage_class: Option<String>,
    /// When it was written, in milliseconds since 1970, where a look or a listing told it.
    pub modified: Option<u64>,
}

impl Stat {
    /// What a copy can be pinned to: the generation on Google Cloud Storage, the ETag elsewhere.
    pub fn pin(&self, provider: Provider) -> Option<&str> {
        match provider {
            Provider::Gcs => self.version.as_deref(),
            Provider::Memory => None,
            _ => self.tag.as_deref(),
        }
    }
}

/// What came of a write that may be under the condition that nothing is there.
#[derive(Debug)]
pub(crate) enum Put {
    /// It was written.
    Written(Stat),
    /// Something is there already: somebody else's, or our own of an attempt whose reply was lost.
    Taken {
        /// An attempt before may have written it.
        uncertain: bool,
    },
}

impl From<object_store::ObjectMeta> for Stat {
    fn from(meta: object_store::ObjectMeta) -> Stat {
        Stat {
            size: meta.size,
            modified: u64::try_from(meta.last_modified.timestamp_millis()).ok(),
            tag: meta.e_tag,
            version: meta.version,
            storage_class: None,
        }
    }
}
