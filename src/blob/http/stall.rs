//! A connection whose peer must take what is sent to it: one that stalls is cut.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::super::server::BlobServer;

/// What a peer must take within the time at least, in bytes.
const LEAST_BYTES: u64 = 16 * 1024;

/// Cuts a connection on which too little was written for too long while something was to be written.
pub(super) struct StallGuard<T> {
    inner: T,
    window: Duration,
    /// Runs while writing waits.
    waiting: Option<Pin<Box<Sleep>>>,
    moved: u64,
    server: Option<BlobServer>,
}

impl<T> StallGuard<T> {
    pub(super) fn new(inner: T, window: Duration, server: Option<BlobServer>) -> StallGuard<T> {
        StallGuard {
            inner,
            window,
            waiting: None,
            moved: 0,
            server,
        }
    }

    /// What came of trying to write, or the end of a peer that takes nothing.
    fn written(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match polled {
            Poll::Pending => match self.wait(cx) {
                Ok(()) => Poll::Pending,
                Err(e) => Poll::Ready(Err(e)),
            },
            Poll::Ready(Ok(n)) => {
                self.moved(n);
                Poll::Ready(Ok(n))
            }
            failed => failed,
        }
    }

    fn moved(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes as u64);
        if self.moved >= LEAST_BYTES {
            self.rest();
        }
    }

    /// Nothing is to be written, or enough was.
    fn rest(&mut self) {
        (self.waiting, self.moved) = (None, 0);
    }

    fn wait(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let window = self.window;
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(window)));
        match waiting.as_mut().poll(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => {
                if let Some(server) = &self.server {
                    server.metrics().stalled.add(1);
                }
                Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the peer takes nothing",
                ))
            }
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for StallGuard<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for StallGuard<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.written(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.written(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.inner).poll_flush(cx) {
            Poll::Pending => match self.wait(cx) {
                Ok(()) => Poll::Pending,
                Err(e) => Poll::Ready(Err(e)),
            },
            Poll::Ready(Ok(())) => {
                self.rest();
                Poll::Ready(Ok(()))
            }
            failed => failed,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.inner).poll_shutdown(cx) {
            Poll::Pending => match self.wait(cx) {
                Ok(()) => Poll::Pending,
                Err(e) => Poll::Ready(Err(e)),
            },
            done => done,
        }
    }
}
