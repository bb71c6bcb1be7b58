//! The allocator of every program that links the engine, libtorch included: jemalloc in place of glibc's malloc. glibc
//! finds no use for an aligned block that was freed among blocks that stay, which costs a training step up to a third of
//! its memory (docs/experiments/memory.md).

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// A string that ends with a zero, as C declares it.
#[repr(transparent)]
struct CString(*const u8);

// SAFETY: points to a literal, which nothing changes.
unsafe impl Sync for CString {}

/// Read by jemalloc at its start. Pages are kept: fresh ones are faulted in one by one, which costs a step of a virtual
/// machine up to a third of its time. Blocks of 8 MiB and more are no kind of their own, which smaller ones could not use
/// again, and large ones get no page more than they need.
#[unsafe(export_name = "malloc_conf")]
static OPTIONS: CString =
    CString(c"dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0,cache_oblivious:false".as_ptr().cast());
