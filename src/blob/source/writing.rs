//! Bytes on their way into a file: written and hashed on a thread of their own, so that the network and the
//! hash work at the same time.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::clock;
use crate::error::{Error, ErrorKind, Result};

use super::super::key::{Digest, Digester};
use super::super::local::{Temporary, io_error};

/// Pieces that wait for the writer at most.
const PIECES_WAITING: usize = 16;

/// A file that takes bytes and knows their digest at the end. Dropped, it leaves nothing behind.
pub(crate) trait Part: Send + Sized + 'static {
    /// What is handed over at the end.
    type Done: Send + 'static;

    /// Takes the next bytes.
    fn write(&mut self, pieces: &[Bytes]) -> Result<()>;

    /// No more bytes come.
    fn finish(self) -> Result<(Digest, Self::Done)>;
}

/// A part under way.
pub(crate) struct Writing<P: Part> {
    to: mpsc::Sender<Bytes>,
    thread: JoinHandle<Result<P>>,
    /// Bytes taken so far.
    pub(crate) taken: u64,
}

impl<P: Part> Writing<P> {
    /// Begins a part on a thread for blocking work.
    pub(crate) fn begin(begin: impl FnOnce() -> Result<P> + Send + 'static) -> Writing<P> {
        let (to, mut from) = mpsc::channel::<Bytes>(PIECES_WAITING);
        let thread = tokio::task::spawn_blocking(move || {
            let mut part = begin()?;
            let mut pieces = Vec::with_capacity(PIECES_WAITING);
            while let Some(piece) = from.blocking_recv() {
                pieces.push(piece);
                while pieces.len() < PIECES_WAITING
                    && let Ok(piece) = from.try_recv()
                {
                    pieces.push(piece);
                }
                part.write(&pieces)?;
                pieces.clear();
            }
            Ok(part)
        });
        Writing {
            to,
            thread,
            taken: 0,
        }
    }

    /// Hands over the next bytes; false if the writer has failed, and [`finish`](Writing::finish) says why.
    pub(crate) async fn write(&mut self, bytes: Bytes) -> bool {
        self.taken = self.taken.saturating_add(bytes.len() as u64);
        self.to.send(bytes).await.is_ok()
    }

    /// The bytes are not wanted: what was written of them is gone when this is done, so that it is in nobody's way.
    pub(crate) async fn give_up(self) {
        drop(self.to);
        let _ = self.thread.await;
    }

    /// No more bytes come.
    pub(crate) async fn finish(self) -> Result<(Digest, P::Done)> {
        drop(self.to);
        let part = self.thread.await.unwrap_or_else(|e| {
            let text = format!("a writer thread ended: {e}");
            Err(Error::new(ErrorKind::Internal, text))
        })?;
        crate::store::blocking(move || part.finish()).await
    }
}

/// A plain file beside the one that it shall become, which is removed unless it is given that name.
pub(crate) struct FilePart {
    file: File,
    path: Temporary,
    /// What it shall become: the name that people know.
    becomes: PathBuf,
    digester: Digester,
}

impl FilePart {
    /// Makes the file, under a name that nobody has.
    pub(crate) fn begin(becomes: PathBuf) -> Result<FilePart> {
        let mut path = becomes.as_os_str().to_owned();
        path.push(format!(".{:016x}.part", clock::random_id()));
        let path = PathBuf::from(path);
        let made = File::create_new(&path);
        Ok(FilePart {
            file: made.map_err(|e| io_error(e, "write", &becomes))?,
            path: Temporary::new(path),
            becomes,
            digester: Digester::default(),
        })
    }
}

impl Part for FilePart {
    type Done = Temporary;

    fn write(&mut self, pieces: &[Bytes]) -> Result<()> {
        for piece in pieces {
            let written = self.file.write_all(piece);
            written.map_err(|e| io_error(e, "write", &self.becomes))?;
            self.digester.update(piece);
        }
        Ok(())
    }

    fn finish(self) -> Result<(Digest, Temporary)> {
        Ok((self.digester.finish(), self.path))
    }
}
