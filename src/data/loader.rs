//! Background loader: prepares global batches ahead of the training loop. Adds worker threads while the training loop
//! has to wait.

use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};
use lambert_dataset::DatasetError;
use lambert_plan::memory;

use super::reader::BatchReader;
use super::{BatchRequest, GlobalBatch, LoaderOptions, SampleSource};
use crate::error::Error;
use crate::torch;

/// Prefetches global batches on a background thread.
pub struct Loader {
    batches: Receiver<Result<GlobalBatch, DatasetError>>,
    /// Loader thread, which returns the panic message after a panic.
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Loader {
    /// Starts loading one global batch per request.
    pub fn start(
        source: SampleSource,
        options: LoaderOptions,
        requests: impl Iterator<Item = BatchRequest> + Clone + Send + 'static,
    ) -> std::io::Result<Self> {
        let data = source.mixture.shape();
        let (sender, batches) =
            crossbeam_channel::bounded(memory::batches_ahead(options.max_batch, options.world_size, data));
        let serve = move || match BatchReader::new(source) {
            Ok(mut reader) => send_batches(&mut reader, &options, requests, &sender),
            // A failure to send means that the receiver was dropped. Then nobody needs the error.
            Err(error) => drop(sender.send(Err(error))),
        };
        let work = move || torch::caught(serve);
        let thread = std::thread::Builder::new().name("loader".to_owned()).spawn(work)?;
        Ok(Self { batches, thread: Some(thread) })
    }

    /// Returns the next global batch; `None` after the last one, or if the thread panicked (see [`Loader::finish`]).
    pub fn next_batch(&mut self) -> Option<Result<GlobalBatch, DatasetError>> {
        self.batches.recv().ok()
    }

    /// Joins the thread, after the last batch.
    ///
    /// # Errors
    /// The thread panicked.
    pub fn finish(&mut self) -> Result<(), Error> {
        let ended = self.thread.take().map_or(Ok(Ok(())), JoinHandle::join);
        let ended = ended.unwrap_or_else(|_| Err("thread panicked without a message".to_owned()));
        ended.map_err(|message| Error::Panic { thread: "the data loader", message })
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Disconnects the channel, so that a thread blocked on sending a batch exits.
        self.batches = crossbeam_channel::never();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends global batches until the requests end or the receiver is dropped.
fn send_batches(
    reader: &mut BatchReader,
    options: &LoaderOptions,
    requests: impl Iterator<Item = BatchRequest> + Clone,
    batches: &Sender<Result<GlobalBatch, DatasetError>>,
) {
    let (mut cursor, mut threads) = (options.position.next, 1);
    // Requests without an upper bound may be endless.
    let is_finite = requests.size_hint().1.is_some();
    let samples = is_finite.then(|| requests.clone().map(|request| request.samples as u64).sum());
    if let Err(error) = reader.start_prefetch(&options.position, samples) {
        return drop(batches.send(Err(error)));
    }
    for request in requests {
        let batch = reader.global_batch(options, cursor, request, threads);
        threads = next_threads(threads, options.max_threads, batches.is_empty(), batches.is_full());
        let end = batch.as_ref().ok().map(|batch| batch.sample_range.end);
        let taken = batches.send(batch).is_ok();
        match end.filter(|_| taken) {
            Some(end) => cursor = end,
            None => return,
        }
    }
}

/// Number of threads for the next batch. Adds one thread (up to `max_threads`) if the queue is empty, and
/// removes one thread if the queue is full.
fn next_threads(threads: usize, max_threads: usize, is_empty: bool, is_full: bool) -> usize {
    match (is_empty, is_full) {
        (true, _) => (threads + 1).min(max_threads.max(1)),
        (false, true) => (threads - 1).max(1),
        (false, false) => threads,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finish_returns_the_panic_message() {
        let (sender, batches) = crossbeam_channel::bounded::<Result<GlobalBatch, DatasetError>>(1);
        let serve = move || {
            let _held = sender;
            panic!("row {} is missing", 7);
        };
        let thread = std::thread::spawn(move || torch::caught(serve));
        let mut loader = Loader { batches, thread: Some(thread) };
        assert!(loader.next_batch().is_none());
        let error = loader.finish().unwrap_err();
        assert_eq!(error.to_string(), "internal error in the data loader; please report it: row 7 is missing");
        loader.finish().unwrap();
    }
}
