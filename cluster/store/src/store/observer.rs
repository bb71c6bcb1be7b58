//! Reports of the bytes that a store reads and writes.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt;
use object_store::{GetResult, GetResultPayload};

use super::{Store, complete};
use crate::retry::Progress;

/// Receives the sizes of the reads and writes of a store, for example to show progress. Any thread of the store may call
/// it, so it must not block.
pub trait TransferObserver: Send + Sync {
    /// A further `bytes` bytes will be transferred. Reported before large reads and writes only.
    fn expected(&self, bytes: u64);
    /// `bytes` bytes were transferred.
    fn transferred(&self, bytes: u64);
    /// The last request failed after `bytes` bytes that were already reported. A retry transfers them again.
    fn retracted(&self, bytes: u64);
}

impl Store {
    /// Returns the same store, which reports its reads and writes of objects to `observer`.
    #[must_use]
    pub fn observed_by(&self, observer: Arc<dyn TransferObserver>) -> Self {
        Self { observer: Some(observer), ..self.clone() }
    }

    /// Reports to the observer that `bytes` bytes will be transferred.
    pub fn report_expected(&self, bytes: u64) {
        self.observer.iter().for_each(|observer| observer.expected(bytes));
    }

    /// Reports bytes of objects to the observer. Callers that read a local file of this store without the store use this,
    /// too.
    pub fn report_transferred(&self, bytes: u64) {
        self.observer.iter().for_each(|observer| observer.transferred(bytes));
    }

    /// Returns the body of a response, which must have `expected` bytes. Reports its bytes as they arrive.
    pub(crate) async fn body(
        &self,
        expected: u64,
        answer: GetResult,
        progress: &Progress,
    ) -> object_store::Result<Bytes> {
        progress.made();
        let body = match answer.payload {
            GetResultPayload::Stream(pieces) => {
                Received::new(self.observer.as_deref()).all(expected, pieces, progress).await?
            }
            payload => {
                let body = GetResult { payload, ..answer }.bytes().await?;
                self.report_transferred(body.len() as u64);
                body
            }
        };
        let bytes = body.len() as u64;
        complete(expected, body).inspect_err(|_| self.observer.iter().for_each(|observer| observer.retracted(bytes)))
    }
}

/// A response body that is being received. If it is dropped before its end, its bytes are retracted.
struct Received<'a> {
    observer: Option<&'a dyn TransferObserver>,
    bytes: u64,
}

impl<'a> Received<'a> {
    fn new(observer: Option<&'a dyn TransferObserver>) -> Self {
        Self { observer, bytes: 0 }
    }

    async fn all(
        mut self,
        expected: u64,
        mut pieces: impl futures_util::Stream<Item = object_store::Result<Bytes>> + Unpin,
        progress: &Progress,
    ) -> object_store::Result<Bytes> {
        let mut body = BytesMut::with_capacity(expected as usize);
        while let Some(piece) = pieces.try_next().await? {
            progress.made();
            self.observer.iter().for_each(|observer| observer.transferred(piece.len() as u64));
            self.bytes += piece.len() as u64;
            body.extend_from_slice(&piece);
        }
        self.bytes = 0;
        Ok(body.freeze())
    }
}

impl Drop for Received<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.observer.iter().for_each(|observer| observer.retracted(self.bytes));
        }
    }
}
