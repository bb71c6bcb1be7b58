//! Global allocator of every program that links the engine, including libtorch: jemalloc instead of glibc's malloc.
//! glibc does not reuse freed aligned blocks between live ones, which costs a training step up to a third of its
//! memory (docs/experiments/memory.md).

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// A NUL-terminated string for C.
#[repr(transparent)]
struct CString(*const u8);

// SAFETY: points to an immutable literal.
unsafe impl Sync for CString {}

/// Read by jemalloc at startup. Pages are never returned (decay -1): refaulting them costs a step on a virtual
/// machine up to a third of its time. Blocks of 8 MiB and more get no separate arena (oversize_threshold), so that
/// smaller ones can reuse them, and large ones get no extra page (cache_oblivious).
#[unsafe(export_name = "malloc_conf")]
static OPTIONS: CString =
    CString(c"dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0,cache_oblivious:false".as_ptr().cast());
