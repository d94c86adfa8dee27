//! What a subtask hands over to be written.

use bytes::Bytes;

use crate::snapshot::KeyGroupRange;
use crate::snapshot::native::{ManifestScope, Partition};
use crate::store::Content;

use super::order::FileRef;

/// One state of a subtask, with its files.
///
/// ```
/// use forkpoint::snapshot::KeyGroupRange;
/// use forkpoint::writer::State;
///
/// # fn demo() -> forkpoint::Result<()> {
/// let counts = State::keyed("counts", KeyGroupRange::new(0, 64)?)
///     .shared("000012.sst", std::path::Path::new("/data/db/000012.sst"))
///     .exclusive("MANIFEST-000003", std::path::Path::new("/data/db/MANIFEST-000003"))
///     .inline(b"000012.sst".to_vec());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct State {
    pub(super) name: String,
    pub(super) partition: Partition,
    pub(super) files: Vec<StateContent>,
    pub(super) inline: Option<Bytes>,
}

#[derive(Debug)]
pub(super) struct StateContent {
    pub(super) name: String,
    pub(super) scope: ManifestScope,
    pub(super) from: FileSource,
}

#[derive(Debug)]
pub(super) enum FileSource {
    Content(Content),
    There(FileRef),
}

impl State {
    /// A state without files yet.
    pub fn new(name: impl Into<String>, partition: Partition) -> State {
        State {
            name: name.into(),
            partition,
            files: Vec::new(),
            inline: None,
        }
    }

    /// State of keys: with another number of subtasks it goes to whoever has one of these key groups.
    pub fn keyed(name: impl Into<String>, range: KeyGroupRange) -> State {
        State::new(name, Partition::KeyGroups { range })
    }

    /// One indivisible part, such as the shard of a rank: with fewer subtasks some get several.
    pub fn shard(name: impl Into<String>) -> State {
        State::new(name, Partition::Split { elements: 1 })
    }

    /// A file that later snapshots may refer to: it must never change under this name. It is not uploaded
    /// if a file that may be referred to has its size and digest.
    #[must_use]
    pub fn shared(self, name: impl Into<String>, content: impl Into<Content>) -> State {
        self.with(
            name,
            ManifestScope::Shared,
            FileSource::Content(content.into()),
        )
    }

    /// A file of this snapshot alone. Of the files of one state each has another name.
    #[must_use]
    pub fn exclusive(self, name: impl Into<String>, content: impl Into<Content>) -> State {
        let content = FileSource::Content(content.into());
        self.with(name, ManifestScope::Exclusive, content)
    }

    /// A file that is known to be there, one of
    /// [`SubtaskOrder::reusable`](super::SubtaskOrder::reusable): nothing of it is read.
    #[must_use]
    pub fn reuse(self, name: impl Into<String>, file: &FileRef) -> State {
        let there = FileSource::There(file.clone());
        self.with(name, ManifestScope::Shared, there)
    }

    /// Bytes that go into the manifest itself, at most 1 MiB for a subtask: what is small is cheaper there
    /// than as an object.
    #[must_use]
    pub fn inline(mut self, bytes: impl Into<Bytes>) -> State {
        self.inline = Some(bytes.into());
        self
    }

    fn with(mut self, name: impl Into<String>, scope: ManifestScope, from: FileSource) -> State {
        self.files.push(StateContent {
            name: name.into(),
            scope,
            from,
        });
        self
    }
}
