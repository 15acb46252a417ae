//! The bytes of a connection, with or without TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

/// Time that the caller has to close a connection after this node did.
const LINGER: Duration = Duration::from_secs(1);

/// Bytes that are read at once and dropped, then.
const DROPPED_BYTES: usize = 4 << 10;

/// A connection with or without TLS.
pub(super) trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// A connection that can be cut while calls use it. HTTP/2 ends a connection with its last call
/// otherwise.
pub(super) struct CutWire {
    wire: Box<dyn Wire>,
    /// `None`: it is cut.
    cut: Option<oneshot::Receiver<()>>,
    heard: Option<oneshot::Sender<()>>,
}

impl CutWire {
    /// Returns what cuts it, which is closed when the connection has ended, and what shows the first
    /// bytes from the peer. After a TLS handshake these show that it has accepted this side.
    pub(super) fn new(wire: Box<dyn Wire>) -> (Self, oneshot::Sender<()>, oneshot::Receiver<()>) {
        let ((sender, cut), (hear, heard)) = (oneshot::channel(), oneshot::channel());
        (Self { wire, cut: Some(cut), heard: Some(hear) }, sender, heard)
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if let Some(cut) = &mut self.cut
            && Pin::new(cut).poll(context).is_ready()
        {
            self.cut = None;
        }
        match self.cut {
            Some(_) => Ok(()),
            None => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }
}

impl AsyncRead for CutWire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        let before = into.filled().len();
        let read = Pin::new(&mut self.wire).poll_read(context, into);
        if into.filled().len() > before
            && let Some(heard) = self.heard.take()
        {
            let _ = heard.send(());
        }
        read
    }
}

impl AsyncWrite for CutWire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.wire).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.wire).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.wire).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.wire).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }
}

/// A connection of another node. The kernel resets one that is closed with unread bytes in it, and the
/// caller would lose the last answers. So its end waits for that of the caller.
pub(super) struct LingeringWire {
    wire: Box<dyn Wire>,
    until: Option<Pin<Box<Sleep>>>,
}

impl LingeringWire {
    pub(super) fn new(wire: Box<dyn Wire>) -> Self {
        Self { wire, until: None }
    }
}

impl AsyncRead for LingeringWire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_read(context, into)
    }
}

impl AsyncWrite for LingeringWire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.wire).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { wire, until } = &mut *self;
        if until.is_none() {
            ready!(Pin::new(&mut *wire).poll_shutdown(context))?;
        }
        let until = until.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        // First: a peer that sends without end uses up the turn of the task.
        if until.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        loop {
            let mut bytes = [0; DROPPED_BYTES];
            let mut dropped = ReadBuf::new(&mut bytes);
            let read = Pin::new(&mut *wire).poll_read(context, &mut dropped);
            match read {
                Poll::Ready(Ok(())) if !dropped.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.wire).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }
}
