//! Chrome trace of selected steps of this rank, for Perfetto or chrome://tracing.
//!
//! In other steps, the spans of the engine (`span!`) cost almost no time. Logs show them only with `RUST_LOG=debug`.

use std::fs::File;
use std::io::BufWriter;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_chrome::{ChromeLayerBuilder, FlushGuard};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, dynamic_filter_fn};
use tracing_subscriber::registry::LookupSpan;

/// True while the current step is traced.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// The active trace, if requested: its steps and the guard that finishes its file.
static TRACE: Mutex<Option<(Range<u64>, FlushGuard)>> = Mutex::new(None);

/// Tracing target of the traced spans.
const TARGET: &str = "lambert_trace";

/// Creates a layer that writes the spans of `steps` to the file `path`.
///
/// # Errors
/// The file cannot be created.
pub fn layer<S>(path: &Path, steps: Range<u64>) -> std::io::Result<impl Layer<S> + use<S>>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    let file = BufWriter::new(File::create(path)?);
    let (layer, guard) = ChromeLayerBuilder::new().writer(file).include_args(true).build();
    *TRACE.lock().unwrap_or_else(PoisonError::into_inner) = Some((steps, guard));
    let is_ours = |metadata: &Metadata<'_>| metadata.target() == TARGET;
    let filter = dynamic_filter_fn(move |metadata, _| is_ours(metadata) && IS_ON.load(Ordering::Relaxed));
    let once = move |metadata: &Metadata<'_>| if is_ours(metadata) { Interest::sometimes() } else { Interest::never() };
    let filter = filter.with_callsite_filter(once).with_max_level_hint(LevelFilter::DEBUG);
    Ok(layer.with_filter(filter))
}

/// Starts, continues or ends the trace. Call it before step `step`, numbered as in the records.
pub fn begin_step(step: u64) {
    let mut trace = TRACE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((steps, _)) = &*trace else { return };
    IS_ON.store(steps.contains(&step), Ordering::Relaxed);
    if step >= steps.end {
        // Dropping the guard finishes the file.
        *trace = None;
    }
}

/// Ends the trace if it is active. Call it before the process exits.
pub fn finish() {
    IS_ON.store(false, Ordering::Relaxed);
    *TRACE.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// Enters a span with the given name. The span ends when the result is dropped. `key = value` arguments add fields.
macro_rules! span {
    ($name:literal $(, $($field:tt)*)?) => {
        tracing::debug_span!(target: "lambert_trace", $name $(, $($field)*)?).entered()
    };
}

pub(crate) use span;
