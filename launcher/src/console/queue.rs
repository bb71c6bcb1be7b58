//! Bounded queue of output lines with a writer thread, so that producers never wait for a slow reader.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum total size of several lines that are written together, bytes.
const BATCH: usize = 64 << 10;

/// State of a progress bar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BarState {
    /// Number of completed units.
    pub position: u64,
    /// Total number of units.
    pub length: u64,
    /// Text after the bar.
    pub message: String,
}

/// Progress bar command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bar {
    /// Shows this state.
    Shown(BarState),
    /// Removes the bar.
    Removed,
}

/// Destination of the lines of a queue.
pub trait Sink: Send + 'static {
    /// Writes whole lines. May block indefinitely.
    fn write(&mut self, lines: &[u8]);
    /// Returns the line that replaces `lines` dropped lines.
    fn gap(&self, lines: u64) -> String;
    /// Draws or removes the progress bar.
    fn draw(&mut self, bar: Bar);
}

/// Lines waiting for a [`Sink`]. When the queue is full, the oldest lines are dropped and counted.
#[derive(Debug)]
pub struct OutputQueue {
    shared: Arc<QueueShared>,
}

#[derive(Debug)]
struct QueueShared {
    limit: usize,
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Number of lines that were dropped since the last gap line was written.
    gap: u64,
    /// Total number of dropped lines.
    dropped: u64,
    /// Latest update of the progress bar, if it is not drawn yet.
    bar: Option<Bar>,
    /// Number of lines being written.
    writing: u64,
    is_busy: bool,
}

/// Next unit of work for the writer.
struct WriteBatch {
    gap: u64,
    lines: Vec<u8>,
    bar: Option<Bar>,
}

impl OutputQueue {
    /// Starts the writer thread `name` with a queue of at most `limit` bytes.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(name: &str, limit: usize, sink: impl Sink) -> io::Result<Self> {
        let shared = Arc::new(QueueShared { limit, state: Mutex::default(), changed: Condvar::new() });
        let writer = Arc::clone(&shared);
        std::thread::Builder::new().name(name.to_owned()).spawn(move || writer.write_all(sink))?;
        Ok(Self { shared })
    }

    /// Adds text that ends with a newline.
    pub fn push(&self, text: Vec<u8>) {
        let mut state = self.shared.lock();
        state.bytes += text.len();
        state.lines.push_back(text);
        while state.bytes > self.shared.limit
            && let Some(oldest) = state.lines.pop_front()
        {
            state.bytes -= oldest.len();
            state.gap += count(&oldest);
            state.dropped += count(&oldest);
        }
        self.shared.changed.notify_all();
    }

    /// Draws or removes the progress bar once all queued lines are written.
    pub fn draw(&self, bar: Bar) {
        self.shared.lock().bar = Some(bar);
        self.shared.changed.notify_all();
    }

    /// Waits at most `limit` until everything is written. Returns the number of lines that were dropped or are still
    /// unwritten.
    pub fn finish(&self, limit: Duration) -> u64 {
        let deadline = Instant::now() + limit;
        let mut state = self.shared.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if state.is_done() || left.is_zero() {
                return state.dropped + state.writing + state.lines.iter().map(|line| count(line)).sum::<u64>();
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl QueueState {
    fn is_done(&self) -> bool {
        !self.is_busy && !self.has_more()
    }

    fn has_more(&self) -> bool {
        !self.lines.is_empty() || self.gap > 0 || self.bar.is_some()
    }

    fn take(&mut self) -> WriteBatch {
        let mut lines = self.lines.pop_front().unwrap_or_default();
        while self.lines.front().is_some_and(|next| lines.len() + next.len() <= BATCH) {
            lines.append(&mut self.lines.pop_front().unwrap_or_default());
        }
        self.bytes -= lines.len();
        (self.is_busy, self.writing) = (true, count(&lines));
        let bar = if self.lines.is_empty() { self.bar.take() } else { None };
        WriteBatch { gap: std::mem::take(&mut self.gap), lines, bar }
    }
}

impl QueueShared {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_all(&self, mut sink: impl Sink) {
        loop {
            let mut state = self.lock();
            (state.is_busy, state.writing) = (false, 0);
            self.changed.notify_all();
            while !state.has_more() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let WriteBatch { gap, lines, bar } = state.take();
            drop(state);
            if gap > 0 {
                sink.write((sink.gap(gap) + "\n").as_bytes());
            }
            if !lines.is_empty() {
                sink.write(&lines);
            }
            if let Some(bar) = bar {
                sink.draw(bar);
            }
        }
    }
}

fn count(text: &[u8]) -> u64 {
    text.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const SOON: Duration = Duration::from_secs(20);

    /// Sink that completes one write per message from the test.
    struct Slow {
        reads: Receiver<()>,
        read: Sender<String>,
    }

    impl Sink for Slow {
        fn write(&mut self, lines: &[u8]) {
            let _ = self.reads.recv();
            let _ = self.read.send(String::from_utf8(lines.to_vec()).unwrap());
        }

        fn gap(&self, lines: u64) -> String {
            format!("{lines} dropped")
        }

        fn draw(&mut self, bar: Bar) {
            let position = match bar {
                Bar::Shown(progress) => Some(progress.position),
                Bar::Removed => None,
            };
            let _ = self.read.send(format!("{position:?}"));
        }
    }

    fn slow(limit: usize) -> (OutputQueue, Sender<()>, Receiver<String>) {
        let ((resume, reads), (read, output)) = (channel(), channel());
        (OutputQueue::start("test", limit, Slow { reads, read }).unwrap(), resume, output)
    }

    #[test]
    fn lines_arrive_in_order() {
        let (queue, resume, output) = slow(1 << 20);
        drop(resume);
        (0..1000).for_each(|number| queue.push(format!("{number}\n").into_bytes()));
        assert_eq!(queue.finish(SOON), 0);
        let expected: String = (0..1000).map(|number| format!("{number}\n")).collect();
        assert_eq!(output.try_iter().collect::<String>(), expected);
    }

    #[test]
    fn a_stalled_reader_loses_the_oldest_lines_with_a_notice() {
        let (queue, resume, output) = slow(30);
        queue.push(b"first\n".to_vec());
        while queue.shared.lock().writing == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let start = Instant::now();
        (0..1000).for_each(|number| queue.push(format!("{number}\n").into_bytes()));
        queue.push(b"last\n".to_vec());
        assert!(start.elapsed() < SOON, "nobody waits for the reader");
        // The queue contains six lines of four bytes and the line `last` of five bytes. The line `first` is being
        // written.
        assert_eq!(queue.finish(Duration::from_millis(50)), 1002);
        drop(resume);
        assert_eq!(queue.finish(SOON), 994, "what was dropped is lost, the rest has arrived");
        assert_eq!(
            output.try_iter().collect::<Vec<_>>(),
            ["first\n", "994 dropped\n", "994\n995\n996\n997\n998\n999\nlast\n"]
        );
    }

    #[test]
    fn only_the_newest_progress_line_is_printed() {
        let (queue, resume, output) = slow(1 << 20);
        queue.push(b"line\n".to_vec());
        while queue.shared.lock().writing == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let at = |position| Bar::Shown(BarState { position, length: 9, message: String::new() });
        (0..5).for_each(|position| queue.draw(at(position)));
        drop(resume);
        assert_eq!(queue.finish(SOON), 0);
        queue.draw(Bar::Removed);
        assert_eq!(queue.finish(SOON), 0);
        assert_eq!(output.try_iter().collect::<Vec<_>>(), ["line\n", "Some(4)", "None"]);
    }
}
