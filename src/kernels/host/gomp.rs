//! Parallel loops on libtorch's OpenMP threads (libgomp). OpenMP threads spin after each operation, so additional
//! threads would compete with them for CPU cores.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// `GOMP_parallel`, which implements `#pragma omp parallel`: function, argument, threads, flags.
type GompParallel = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void, u32, u32);

fn gomp_parallel() -> Option<GompParallel> {
    static SYMBOL: OnceLock<Option<GompParallel>> = OnceLock::new();
    *SYMBOL.get_or_init(|| {
        // SAFETY: the name is NUL-terminated, and `GOMP_parallel` has had this signature since GCC 4.9.
        unsafe {
            let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"GOMP_parallel".as_ptr());
            (!symbol.is_null()).then(|| std::mem::transmute::<*mut c_void, GompParallel>(symbol))
        }
    })
}

/// Calls `work` with the index and values of each chunk of `length` values. The last chunk may be
/// shorter. If `work` panics, the panic is resumed on the calling thread after all threads finish.
/// A panic must not unwind through libgomp.
pub fn each_chunk<T: Send>(values: &mut [T], length: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    struct ChunkQueue<'a, T, W> {
        next: AtomicUsize,
        first: *mut T,
        count: usize,
        length: usize,
        work: &'a W,
        panicked: Mutex<Option<Box<dyn Any + Send>>>,
    }
    extern "C" fn take<T: Send, W: Fn(usize, &mut [T]) + Sync>(shared: *mut c_void) {
        // SAFETY: each_chunk passes a ChunkQueue of this type and waits for all threads.
        let shared = unsafe { &*shared.cast::<ChunkQueue<'_, T, W>>() };
        loop {
            let index = shared.next.fetch_add(1, Ordering::Relaxed);
            let start = index.saturating_mul(shared.length);
            if start >= shared.count {
                return;
            }
            let length = shared.length.min(shared.count - start);
            // SAFETY: the range is within the slice that each_chunk borrows mutably, and no
            // other thread gets this index.
            let chunk = unsafe { std::slice::from_raw_parts_mut(shared.first.add(start), length) };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (shared.work)(index, chunk))) {
                // Stop handing out chunks.
                shared.next.store(usize::MAX / 2, Ordering::Relaxed);
                shared.panicked.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
                return;
            }
        }
    }
    fn task<T: Send, W: Fn(usize, &mut [T]) + Sync>(_: &W) -> extern "C" fn(*mut c_void) {
        take::<T, W>
    }
    let (first, count) = (values.as_mut_ptr(), values.len());
    let (next, panicked) = (AtomicUsize::new(0), Mutex::new(None));
    let mut shared = ChunkQueue { next, first, count, length: length.max(1), work: &work, panicked };
    let (task, data) = (task::<T, _>(&work), (&raw mut shared).cast::<c_void>());
    match gomp_parallel() {
        // SAFETY: `task` reads `data` as a ChunkQueue, and GOMP_parallel returns after all threads leave `task`.
        Some(parallel) => unsafe { parallel(task, data, tch::get_num_threads().max(1) as u32, 0) },
        None => task(data),
    }
    if let Some(panic) = shared.panicked.into_inner().unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_in_a_chunk_reaches_the_caller() {
        let mut values = vec![1.0_f32; 100];
        let work = |index: usize, chunk: &mut [f32]| {
            assert_ne!(index, 7, "chunk {index} is wrong");
            chunk.fill(2.0);
        };
        let panic = catch_unwind(AssertUnwindSafe(|| each_chunk(&mut values, 10, work))).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains("chunk 7 is wrong"));
        assert_eq!(values[70..80], [1.0; 10]);
        each_chunk(&mut values, 10, |_, chunk| chunk.fill(3.0));
        assert_eq!(values, [3.0; 100], "threads are usable after a panic");
    }
}
