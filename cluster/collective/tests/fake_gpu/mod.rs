//! Fake GPU for tests. Its device memory is host memory. Its streams run their work late. The order of work is random
//! between the streams, but fixed within a stream. Streams wait for events as on a real GPU. This module also loads the
//! fake NCCL library (fake_nccl.c).

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use lambert_collective::nccl::{NcclDevice, NcclLibrary};
use lambert_collective::{Bucket, MemoryLocation, PendingAllReduce, Reducer, Result};
use libloading::os::unix::{Library as DynamicLibrary, Symbol};

/// Streams of a GPU.
#[derive(Clone, Copy, PartialEq)]
enum StreamId {
    Compute,
    Comm,
}

/// Work item of a stream.
enum StreamWork {
    /// Called repeatedly until it returns true.
    Run(Box<dyn FnMut() -> bool + Send>),
    RecordEvent(usize),
    WaitEvent(usize),
}

struct GpuState {
    queues: [VecDeque<StreamWork>; 2],
    /// One element per event: true if the event is complete.
    events: Vec<bool>,
    seed: u64,
    is_stopped: bool,
}

impl GpuState {
    fn random(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % below
    }

    fn is_ready(&self, stream: usize) -> bool {
        match self.queues[stream].front() {
            None => false,
            Some(StreamWork::WaitEvent(event)) => self.events[*event],
            Some(_) => true,
        }
    }
}

/// Stream, with the layout that the fake NCCL library expects.
#[repr(C)]
struct Stream {
    enqueue: extern "C" fn(*mut Stream, extern "C" fn(*mut c_void) -> c_int, *mut c_void),
    state: Arc<Mutex<GpuState>>,
}

struct Address(*mut c_void);
// SAFETY: the operation is used by one thread at a time.
unsafe impl Send for Address {}

extern "C" fn enqueue(stream: *mut Stream, run: extern "C" fn(*mut c_void) -> c_int, argument: *mut c_void) {
    let argument = Address(argument);
    let work = move || {
        let Address(argument) = &argument;
        run(*argument) == 0
    };
    // SAFETY: the stream of a live GPU.
    let state = unsafe { &(*stream).state };
    state.lock().unwrap().queues[StreamId::Comm as usize].push_back(StreamWork::Run(Box::new(work)));
}

/// Fake GPU. A thread runs its work. Clones refer to the same GPU.
#[derive(Clone)]
pub struct FakeGpu {
    state: Arc<Mutex<GpuState>>,
    stream: Arc<Mutex<Box<Stream>>>,
    /// bf16 buffer. There is only one, as on a real GPU.
    scratch: Arc<Mutex<Vec<u16>>>,
    /// Names of the threads for which the GPU was made current.
    entered: Arc<Mutex<Vec<String>>>,
}

impl FakeGpu {
    /// Creates a GPU whose execution order depends on `seed`.
    pub fn new(seed: u64) -> Self {
        let queues = [VecDeque::new(), VecDeque::new()];
        let state = Arc::new(Mutex::new(GpuState { queues, events: Vec::new(), seed, is_stopped: false }));
        let stream = Arc::new(Mutex::new(Box::new(Stream { enqueue, state: state.clone() })));
        let shared = state.clone();
        thread::spawn(move || run_streams(&shared));
        Self { state, stream, scratch: Arc::new(Mutex::new(vec![0; 1 << 20])), entered: Arc::default() }
    }

    /// Enqueues work on the compute stream.
    pub fn compute(&self, mut work: impl FnMut() + Send + 'static) {
        let run = move || {
            work();
            true
        };
        self.enqueue(StreamId::Compute, StreamWork::Run(Box::new(run)));
    }

    /// True if a thread with this name has made the GPU current.
    pub fn was_entered_by(&self, thread: &str) -> bool {
        self.entered.lock().unwrap().iter().any(|name| name == thread)
    }

    /// Stops the thread of the GPU. Pending work is not run.
    pub fn stop(&self) {
        self.state.lock().unwrap().is_stopped = true;
    }

    fn enqueue(&self, stream: StreamId, work: StreamWork) {
        self.state.lock().unwrap().queues[stream as usize].push_back(work);
    }

    fn record_event(&self, stream: StreamId) -> usize {
        let mut state = self.state.lock().unwrap();
        let event = state.events.len();
        state.events.push(false);
        state.queues[stream as usize].push_back(StreamWork::RecordEvent(event));
        event
    }
}

fn run_streams(state: &Mutex<GpuState>) {
    let mut preferred = 0;
    loop {
        let mut locked = state.lock().unwrap();
        if locked.is_stopped {
            return;
        }
        // Let one stream run ahead of the other for a while.
        if locked.random(8) == 0 {
            preferred = locked.random(2) as usize;
        }
        let ready: Vec<usize> =
            [preferred, 1 - preferred].into_iter().filter(|stream| locked.is_ready(*stream)).collect();
        let Some(&stream) = ready.first() else {
            drop(locked);
            thread::sleep(Duration::from_micros(100));
            continue;
        };
        match locked.queues[stream].pop_front() {
            Some(StreamWork::Run(mut run)) => {
                drop(locked);
                if !run() {
                    state.lock().unwrap().queues[stream].push_front(StreamWork::Run(run));
                    preferred = 1 - preferred;
                    thread::sleep(Duration::from_micros(20));
                }
            }
            Some(StreamWork::RecordEvent(event)) => locked.events[event] = true,
            Some(StreamWork::WaitEvent(_)) | None => {}
        }
    }
}

// SAFETY: an Arc of the GPU owns the stream; the bf16 buffer never moves.
unsafe impl NcclDevice for FakeGpu {
    type StreamEvent = usize;

    fn ordinal(&self) -> usize {
        0
    }

    fn make_current(&self) -> Result<()> {
        let name = thread::current().name().unwrap_or_default().to_owned();
        self.entered.lock().unwrap().push(name);
        Ok(())
    }

    fn comm_stream(&self) -> *mut c_void {
        std::ptr::from_mut(&mut **self.stream.lock().unwrap()).cast()
    }

    fn record_compute_event(&self) -> Result<usize> {
        Ok(self.record_event(StreamId::Compute))
    }

    fn record_comm_event(&self) -> Result<usize> {
        Ok(self.record_event(StreamId::Comm))
    }

    fn wait_event(&self, event: &usize) -> Result<()> {
        self.enqueue(StreamId::Comm, StreamWork::WaitEvent(*event));
        Ok(())
    }

    fn is_complete(&self, event: &usize) -> Result<bool> {
        Ok(self.state.lock().unwrap().events[*event])
    }

    fn cast_to_bf16(&self, from: u64, count: usize) -> Result<u64> {
        let scratch = self.scratch.clone();
        let address = scratch.lock().unwrap().as_ptr().expose_provenance() as u64;
        let run = move || {
            // SAFETY: the bucket's creator promised exclusive access.
            let values =
                unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<f32>(from as usize), count) };
            let rounded = |value: &f32| {
                let bits = value.to_bits();
                let nearest = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
                if value.is_nan() { (bits >> 16) as u16 | 0x40 } else { nearest }
            };
            scratch.lock().unwrap().iter_mut().zip(values).for_each(|(half, value)| *half = rounded(value));
            true
        };
        self.enqueue(StreamId::Comm, StreamWork::Run(Box::new(run)));
        Ok(address)
    }

    fn cast_from_bf16(&self, to: u64, count: usize) -> Result<()> {
        let scratch = self.scratch.clone();
        let run = move || {
            // SAFETY: as above.
            let values = unsafe {
                std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<f32>(to as usize), count)
            };
            let halves = scratch.lock().unwrap();
            values.iter_mut().zip(&*halves).for_each(|(value, half)| *value = f32::from_bits(u32::from(*half) << 16));
            true
        };
        self.enqueue(StreamId::Comm, StreamWork::Run(Box::new(run)));
        Ok(())
    }
}

/// Reducer that converts buckets in host memory to buckets of device 0 and passes them on. (The memory of this fake
/// device is host memory.)
pub struct HostAsDevice(pub Box<dyn Reducer>);

impl Reducer for HostAsDevice {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn start(&mut self, bucket: Bucket) -> Result<Box<dyn PendingAllReduce>> {
        match bucket.location() {
            // SAFETY: as promised for the bucket in host memory.
            MemoryLocation::Host => self.0.start(unsafe { Bucket::device(bucket.as_mut_ptr(), bucket.count(), 0) }),
            MemoryLocation::Device(_) => self.0.start(bucket),
        }
    }
}

/// Faults for [`FakeNccl::inject_fault`], with the same values as in fake_nccl.c.
pub mod faults {
    pub const REMOTE: c_int = 1;
    pub const STUCK: c_int = 2;
    pub const SLOW_ABORT: c_int = 4;
    pub const NO_INIT: c_int = 8;
    pub const REFUSED: c_int = 16;
    pub const UNREAD: c_int = 32;
    use std::ffi::c_int;
}

/// Copy of the fake NCCL library, with its own faults and counters.
pub struct FakeNccl {
    pub library: Arc<NcclLibrary>,
    dynamic: DynamicLibrary,
    _folder: tempfile::TempDir,
}

/// Numbers of aborts, of invalid calls and of launched all-reduces of a rank.
pub type Counts = [c_int; 3];

impl FakeNccl {
    /// Loads a separate copy, so that tests do not share state.
    pub fn load() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libnccl.so.2");
        std::fs::copy(compiled_library(), &path).unwrap();
        let library = Arc::new(NcclLibrary::open(&[folder.path().to_owned()]).unwrap());
        // SAFETY: the library is already loaded; this adds a reference.
        let dynamic = unsafe { DynamicLibrary::new(&path) }.unwrap();
        Self { library, dynamic, _folder: folder }
    }

    pub fn inject_fault(&self, rank: usize, fault: c_int) {
        // SAFETY: the types match fake_nccl.c.
        unsafe {
            let set: Symbol<unsafe extern "C" fn(c_int, c_int)> = self.dynamic.get(b"test_inject_fault").unwrap();
            set(rank as c_int, fault);
        }
    }

    pub fn counts(&self, rank: usize) -> Counts {
        // SAFETY: as above.
        unsafe {
            let count: Symbol<unsafe extern "C" fn(c_int, c_int) -> c_int> = self.dynamic.get(b"test_count").unwrap();
            [0, 1, 2].map(|counter| count(rank as c_int, counter))
        }
    }
}

/// Path of the fake NCCL library, compiled once per test program.
pub fn compiled_library() -> &'static Path {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nccl-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (source, library) =
            (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_gpu/fake_nccl.c"), folder.join("libnccl.so.2"));
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"]).arg(&library).arg(source);
        assert!(compiler.status().unwrap().success());
        library
    })
}
