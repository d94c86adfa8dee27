//! What is uploaded, part by part.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::error::{Error, ErrorKind, Result};

use super::super::digest::{RunningSha256, Sha256Sum};

/// Read at once for a digest, in bytes.
const PIECE_BYTES: u64 = 1024 * 1024;

/// Where the bytes of a new object come from.
pub enum Content {
    /// From memory.
    Bytes(Bytes),
    /// From a file of this machine, which must not change meanwhile.
    File(PathBuf),
    /// From a stream.
    Stream {
        /// Its bytes, in pieces of any size; an error ends the upload.
        stream: BoxStream<'static, Result<Bytes>>,
        /// How many bytes there will be, if that is known. Without it at most 10,000 parts.
        size: Option<u64>,
    },
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Content::File(path) => f.debug_tuple("File").field(path).finish(),
            Content::Stream { size, .. } => f.debug_tuple("Stream").field(size).finish(),
        }
    }
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Content {
        Content::Bytes(bytes.into())
    }
}

impl From<Bytes> for Content {
    fn from(bytes: Bytes) -> Content {
        Content::Bytes(bytes)
    }
}

impl From<&'static [u8]> for Content {
    fn from(bytes: &'static [u8]) -> Content {
        Content::Bytes(Bytes::from_static(bytes))
    }
}

impl From<PathBuf> for Content {
    fn from(path: PathBuf) -> Content {
        Content::File(path)
    }
}

impl From<&std::path::Path> for Content {
    fn from(path: &std::path::Path) -> Content {
        Content::File(path.to_path_buf())
    }
}

impl Content {
    /// How many bytes there are, if that is known; a look at the file. The answer does not borrow the
    /// content, which may be a stream that only one thread may have.
    ///
    /// # Errors
    ///
    /// `NotFound` and the like for a file that cannot be looked at.
    pub fn size(&self) -> impl Future<Output = Result<Option<u64>>> + Send + use<> {
        let known = match self {
            Content::Bytes(bytes) => Ok(Some(bytes.len() as u64)),
            Content::Stream { size, .. } => Ok(*size),
            Content::File(path) => Err(path.clone()),
        };
        async move {
            match known {
                Ok(size) => Ok(size),
                Err(path) => {
                    super::super::blocking(move || match std::fs::metadata(&path) {
                        Ok(meta) => Ok(Some(meta.len())),
                        Err(e) => Err(of_file(e, &path)),
                    })
                    .await
                }
            }
        }
    }

    /// Its digest, if it can be read more than once: not that of a stream.
    ///
    /// # Errors
    ///
    /// As [`Content::size`].
    pub fn sha256(&self) -> impl Future<Output = Result<Option<Sha256Sum>>> + Send + use<> {
        let again = match self {
            Content::Stream { .. } => None,
            Content::Bytes(bytes) => Some(Content::Bytes(bytes.clone())),
            Content::File(path) => Some(Content::File(path.clone())),
        };
        async move {
            let Some(content) = again else {
                return Ok(None);
            };
            let mut reader = Reader::open(content).await?;
            let mut running = RunningSha256::default();
            loop {
                let piece = reader.next(PIECE_BYTES).await?;
                if piece.is_empty() {
                    return Ok(Some(running.sum()));
                }
                running = running.feed(&piece).await?;
            }
        }
    }
}

/// Contents that are being read.
pub(super) struct Reader {
    from: Origin,
    size: Option<u64>,
    read: u64,
}

enum Origin {
    Bytes(Bytes),
    File(PathBuf, Option<File>),
    Stream(BoxStream<'static, Result<Bytes>>, BytesMut, bool),
}

impl Reader {
    pub(super) async fn open(content: Content) -> Result<Reader> {
        let size = content.size();
        let size = size.await?;
        let from = match content {
            Content::Bytes(bytes) => Origin::Bytes(bytes),
            Content::Stream { stream, .. } => Origin::Stream(stream, BytesMut::new(), false),
            Content::File(path) => {
                let (path, file) = super::super::blocking(move || match File::open(&path) {
                    Ok(file) => Ok((path, file)),
                    Err(e) => Err(of_file(e, &path)),
                })
                .await?;
                Origin::File(path, Some(file))
            }
        };
        Ok(Reader {
            from,
            size,
            read: 0,
        })
    }

    /// How many bytes there will be, as far as is known.
    pub(super) fn size(&self) -> Option<u64> {
        self.size
    }

    /// How many bytes are still to come, as far as is known.
    pub(super) fn left(&self) -> Option<u64> {
        self.size.map(|size| size.saturating_sub(self.read))
    }

    /// The next `length` bytes, or fewer at the end.
    pub(super) async fn next(&mut self, length: u64) -> Result<Bytes> {
        // One byte more than there should be is enough to find out.
        let length = self.left().map_or(length, |left| length.min(left.max(1)));
        let wanted = usize::try_from(length).unwrap_or(usize::MAX);
        let part = match &mut self.from {
            Origin::Bytes(bytes) => bytes.split_to(wanted.min(bytes.len())),
            Origin::File(path, file) => {
                // Not there only if a read before was given up.
                let Some(own) = file.take() else {
                    return Err(Error::new(ErrorKind::Cancelled, "stopped on request"));
                };
                let at = path.clone();
                // Allocated here: allocators keep what each of many threads has freed.
                let part = Vec::with_capacity(wanted);
                let (own, part) =
                    super::super::blocking(move || read_file(own, &at, part, wanted)).await?;
                *file = Some(own);
                part
            }
            Origin::Stream(stream, kept, ended) => {
                while kept.len() < wanted && !*ended {
                    match stream.next().await {
                        Some(piece) => kept.extend_from_slice(&piece?),
                        None => *ended = true,
                    }
                }
                kept.split_to(wanted.min(kept.len())).freeze()
            }
        };
        self.read += part.len() as u64;
        match self.size {
            Some(size) if self.read > size => Err(self.wrong_size(size)),
            _ => Ok(part),
        }
    }

    /// All was read, and it was as much as there should be.
    pub(super) async fn finish(&mut self) -> Result<()> {
        match self.size {
            None => Ok(()),
            Some(size) if self.read != size => Err(self.wrong_size(size)),
            // More than there should be is found out by reading on.
            Some(_) => self.next(1).await.map(drop),
        }
    }

    fn wrong_size(&self, size: u64) -> Error {
        let more = if self.read > size { "or more " } else { "" };
        let error = Error::invalid(format!(
            "{} bytes {more}came where {size} were announced",
            self.read
        ));
        match &self.from {
            Origin::File(path, _) => error
                .at(path.display())
                .hint("a file must not change while it is uploaded"),
            _ => error,
        }
    }
}

fn read_file(
    mut file: File,
    at: &std::path::Path,
    mut part: Vec<u8>,
    wanted: usize,
) -> Result<(File, Bytes)> {
    use std::io::Read;
    (&mut file)
        .take(wanted as u64)
        .read_to_end(&mut part)
        .map_err(|e| of_file(e, at))?;
    Ok((file, part.into()))
}

/// The error of a file of this machine that shall be uploaded.
pub(crate) fn of_file(e: std::io::Error, path: &std::path::Path) -> Error {
    let kind = match e.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        std::io::ErrorKind::IsADirectory => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, e.to_string())
        .during("read")
        .at(path.display())
        .caused_by(e)
}
