//! The body of an answer: a text that is there, or pieces that come while it is read.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::mpsc;

/// Pieces that may wait for a reader.
const PIECES_MAX: usize = 4;

/// The body of an answer.
pub(crate) enum Answered {
    /// All of it.
    Whole(Option<Bytes>),
    /// What is sent to it, until the sender is dropped.
    Pieces(mpsc::Receiver<Bytes>),
}

impl Answered {
    /// Returns a body, and where its pieces go. It holds no more than four of them.
    pub(crate) fn pieces() -> (mpsc::Sender<Bytes>, Self) {
        let (sender, receiver) = mpsc::channel(PIECES_MAX);
        (sender, Self::Pieces(receiver))
    }
}

impl Body for Answered {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let framed = |piece: Bytes| Ok(Frame::data(piece));
        match &mut *self {
            Self::Whole(text) => Poll::Ready(text.take().map(framed)),
            Self::Pieces(receiver) => receiver.poll_recv(context).map(|it| it.map(framed)),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(text) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
            Self::Pieces(_) => SizeHint::default(),
        }
    }
}
