//! Writes metadata that says that its files are elsewhere, and is otherwise the same.

use super::encode::{Encoder, Visitor};
use super::metadata::Metadata;
use super::references::Reference;
use crate::Result;

/// Where a file is from now on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NewPath {
    /// At this path, in the form of [`FlinkPath`](super::FlinkPath).
    Absolute(String),
    /// Below the directory that will hold the new `_metadata` file.
    Relative(String),
}

impl Metadata<'_> {
    /// The bytes of the file; the very ones it was decoded from.
    ///
    /// A tree that was changed by hand is not checked again: decode the bytes to do so.
    ///
    /// # Errors
    /// None for what [`decode`](super::decode) returned. `Invalid` where a changed tree holds more
    /// than the format can count.
    pub fn encode(&self) -> Result<Vec<u8>> {
        Encoder::new(self, Vec::with_capacity(self.file_len), Keep).run()
    }

    /// The bytes of the file with other locations, and nothing else changed.
    ///
    /// `place` is called for every reference, in the order of [`Metadata::walk`]; `None` keeps the
    /// location as it is, byte for byte. Files can change between absolute and relative. Segments
    /// and directories can get another absolute path. The names of inline state are identities, not
    /// places, and cannot be changed.
    ///
    /// # Errors
    /// What `place` returns. `Invalid` for a path that Flink would not take, that is longer than the
    /// format can hold, or where there is none to change; and for a relative path in versions 1 and
    /// 2, which don't have them.
    pub fn encode_with<'m>(
        &'m self,
        place: &mut dyn FnMut(Reference<'m>) -> Result<Option<NewPath>>,
    ) -> Result<Vec<u8>> {
        // Most forks lie in paths of about the same length.
        let capacity = self.file_len.saturating_add(self.file_len / 16);
        Encoder::new(self, Vec::with_capacity(capacity), Replace(place)).run()
    }
}

struct Keep;

impl<'m> Visitor<'m> for Keep {
    const LISTENS: bool = false;

    fn visit(&mut self, _: Reference<'m>) -> Result<Option<NewPath>> {
        Ok(None)
    }
}

struct Replace<'f, 'm>(&'f mut dyn FnMut(Reference<'m>) -> Result<Option<NewPath>>);

impl<'m> Visitor<'m> for Replace<'_, 'm> {
    const LISTENS: bool = true;

    fn visit(&mut self, reference: Reference<'m>) -> Result<Option<NewPath>> {
        (self.0)(reference)
    }
}
