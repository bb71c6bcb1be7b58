//! Progress of a command.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use lambert_store::{Store, TransferObserver};

use crate::display;
use crate::state::{DONE, PLANNED, Shared, Stage, Unit};
use crate::terminal::shows_bars;

/// Progress of a command. A thread draws it as a bar on stderr, once the command has run for two seconds. The bar is
/// removed when the value is dropped.
///
/// The bar shows the amounts done and in total, the rate and the time left. Without a total, it shows the time elapsed.
/// Updates never wait for the terminal. Without a terminal, nothing is drawn.
///
/// A signal that ends the process removes the bar first. A command that handles signals itself calls
/// [`crate::signals::leave_to_command`].
#[derive(Debug)]
pub struct Progress {
    shared: Arc<Shared>,
    display: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts to show the progress of a phase such as `verifying`, in bytes.
    pub fn start(label: &str) -> Self {
        let shared = Arc::new(Shared::new(label));
        let drawn = Arc::clone(&shared);
        let draw = || std::thread::Builder::new().name("progress".into()).spawn(move || display::run(&drawn));
        // A command works without its bar, too.
        let display = if shows_bars() { draw().ok() } else { None };
        Self { shared, display }
    }

    /// Begins a phase, from zero.
    pub fn phase(&self, label: &str, unit: Unit) {
        self.shared.begin(label, unit);
    }

    /// Changes the name of the phase.
    pub fn set_label(&self, label: &str) {
        self.shared.set_label(label);
    }

    /// Sets the total of the phase.
    pub fn set_total(&self, total: u64) {
        self.shared.set(PLANNED, total);
    }

    /// Sets the amount that is done.
    pub fn set_done(&self, done: u64) {
        self.shared.set(DONE, done);
    }

    /// Shows `detail` in place of the rate.
    pub fn set_detail(&self, detail: String) {
        self.shared.set_detail(detail);
    }

    /// Observer that adds the bytes of a store to the amount that is done, and the expected bytes to the total. It has no
    /// effect on a phase with another unit than bytes.
    pub fn observer(&self) -> Arc<dyn TransferObserver> {
        self.shared.clone()
    }

    /// Returns `store` with the observer of this progress.
    #[must_use]
    pub fn observe(&self, store: &Store) -> Store {
        store.observed_by(self.observer())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shared.enter(Stage::Ending);
        if self.display.is_some() {
            // A stopped terminal blocks the thread.
            self.shared.wait(LIMIT, |stage| stage == Stage::Ended);
        }
    }
}

/// Time limit for the removal of the bar.
const LIMIT: Duration = Duration::from_secs(1);
