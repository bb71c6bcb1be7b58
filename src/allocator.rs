//! Global allocator of every program that links the engine. It replaces the malloc of glibc with jemalloc, also for
//! libtorch. The malloc of glibc does not reuse freed aligned blocks that lie between live blocks. With that malloc, up
//! to a third of the memory of a training step is lost in such blocks (docs/experiments/memory.md).

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// A NUL-terminated string for C.
#[repr(transparent)]
struct CString(*const u8);

// SAFETY: the pointer points to an immutable literal.
unsafe impl Sync for CString {}

/// Options that jemalloc reads at startup. Pages are never returned to the operating system (decay -1). On
/// a virtual machine, new page faults would cost up to a third of the time of a step. Blocks of 8 MiB and
/// more get no separate arena (oversize_threshold), so that smaller blocks can reuse their memory. Large
/// blocks get no extra page (cache_oblivious).
#[unsafe(export_name = "malloc_conf")]
static OPTIONS: CString =
    CString(c"dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0,cache_oblivious:false".as_ptr().cast());
