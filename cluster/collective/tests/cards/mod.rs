//! Cards for tests: main memory in the place of a device's, and streams whose work is done late, in any order that streams and marks
//! allow, drawn by a seed. And the test library in the place of NCCL (nccl.c).

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use lambert_collective::nccl::{Device, Library};
use lambert_collective::{Bucket, Pending, Place, Reducer, Result};
use libloading::os::unix::{Library as Shared, Symbol};

/// Streams of a card.
#[derive(Clone, Copy, PartialEq)]
enum Lane {
    Compute,
    Sums,
}

/// What a stream is given; done when it says so.
enum Work {
    Run(Box<dyn FnMut() -> bool + Send>),
    Mark(usize),
    Hold(usize),
}

struct State {
    lanes: [VecDeque<Work>; 2],
    /// Which marks are reached.
    marks: Vec<bool>,
    seed: u64,
    over: bool,
}

impl State {
    fn draw(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % below
    }

    fn is_ready(&self, lane: usize) -> bool {
        match self.lanes[lane].front() {
            None => false,
            Some(Work::Hold(mark)) => self.marks[*mark],
            Some(_) => true,
        }
    }
}

/// As the test library knows a stream.
#[repr(C)]
struct Stream {
    enqueue: extern "C" fn(*mut Stream, extern "C" fn(*mut c_void) -> c_int, *mut c_void),
    state: Arc<Mutex<State>>,
}

struct Address(*mut c_void);
// SAFETY: an operation of the test library's, which one thread at a time runs.
unsafe impl Send for Address {}

extern "C" fn enqueue(stream: *mut Stream, run: extern "C" fn(*mut c_void) -> c_int, argument: *mut c_void) {
    let argument = Address(argument);
    let work = move || {
        let Address(argument) = &argument;
        run(*argument) == 0
    };
    // SAFETY: a stream of a card that lives.
    let state = unsafe { &(*stream).state };
    state.lock().unwrap().lanes[Lane::Sums as usize].push_back(Work::Run(Box::new(work)));
}

/// A card. Its work is done by a thread of its own; clones are the same card.
#[derive(Clone)]
pub struct LazyCard {
    state: Arc<Mutex<State>>,
    stream: Arc<Mutex<Box<Stream>>>,
    /// bf16 on its way, one buffer for all, as a real card's.
    scratch: Arc<Mutex<Vec<u16>>>,
}

impl LazyCard {
    /// One whose order is drawn by `seed`.
    pub fn new(seed: u64) -> Self {
        let lanes = [VecDeque::new(), VecDeque::new()];
        let state = Arc::new(Mutex::new(State { lanes, marks: Vec::new(), seed, over: false }));
        let stream = Arc::new(Mutex::new(Box::new(Stream { enqueue, state: state.clone() })));
        let working = state.clone();
        std::thread::spawn(move || work(&working));
        Self { state, stream, scratch: Arc::new(Mutex::new(vec![0; 1 << 20])) }
    }

    /// Gives the compute stream something to do.
    pub fn compute(&self, mut work: impl FnMut() + Send + 'static) {
        let run = move || {
            work();
            true
        };
        self.push(Lane::Compute, Work::Run(Box::new(run)));
    }

    /// Ends its thread; what is not done stays so.
    pub fn end(&self) {
        self.state.lock().unwrap().over = true;
    }

    fn push(&self, lane: Lane, work: Work) {
        self.state.lock().unwrap().lanes[lane as usize].push_back(work);
    }

    fn mark(&self, lane: Lane) -> usize {
        let mut state = self.state.lock().unwrap();
        let mark = state.marks.len();
        state.marks.push(false);
        state.lanes[lane as usize].push_back(Work::Mark(mark));
        mark
    }
}

fn work(state: &Mutex<State>) {
    let mut favourite = 0;
    loop {
        let mut locked = state.lock().unwrap();
        if locked.over {
            return;
        }
        // One lane is ahead of the other for a while.
        if locked.draw(8) == 0 {
            favourite = locked.draw(2) as usize;
        }
        let ready: Vec<usize> = [favourite, 1 - favourite].into_iter().filter(|lane| locked.is_ready(*lane)).collect();
        let Some(&lane) = ready.first() else {
            drop(locked);
            std::thread::sleep(Duration::from_micros(100));
            continue;
        };
        match locked.lanes[lane].pop_front() {
            Some(Work::Run(mut run)) => {
                drop(locked);
                if !run() {
                    state.lock().unwrap().lanes[lane].push_front(Work::Run(run));
                    favourite = 1 - favourite;
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
            Some(Work::Mark(mark)) => locked.marks[mark] = true,
            Some(Work::Hold(_)) | None => {}
        }
    }
}

// SAFETY: the stream lives in an Arc of the card; the scratch is never moved.
unsafe impl Device for LazyCard {
    type Mark = usize;

    fn number(&self) -> usize {
        0
    }

    fn enter(&self) -> Result<()> {
        Ok(())
    }

    fn stream(&self) -> *mut c_void {
        std::ptr::from_mut(&mut **self.stream.lock().unwrap()).cast()
    }

    fn mark_compute(&self) -> Result<usize> {
        Ok(self.mark(Lane::Compute))
    }

    fn mark_sums(&self) -> Result<usize> {
        Ok(self.mark(Lane::Sums))
    }

    fn hold_sums(&self, mark: &usize) -> Result<()> {
        self.push(Lane::Sums, Work::Hold(*mark));
        Ok(())
    }

    fn is_reached(&self, mark: &usize) -> Result<bool> {
        Ok(self.state.lock().unwrap().marks[*mark])
    }

    fn narrow(&self, from: u64, count: usize) -> Result<u64> {
        let scratch = self.scratch.clone();
        let address = scratch.lock().unwrap().as_ptr().expose_provenance() as u64;
        let run = move || {
            // SAFETY: a bucket, which nobody else touches.
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
        self.push(Lane::Sums, Work::Run(Box::new(run)));
        Ok(address)
    }

    fn widen(&self, to: u64, count: usize) -> Result<()> {
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
        self.push(Lane::Sums, Work::Run(Box::new(run)));
        Ok(())
    }
}

/// Takes buckets in main memory for buckets of device 0, which they are here.
pub struct OnCard(pub Box<dyn Reducer>);

impl Reducer for OnCard {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn start(&mut self, bucket: Bucket) -> Result<Box<dyn Pending>> {
        match bucket.place() {
            // SAFETY: as it was promised for the bucket in main memory.
            Place::Host => self.0.start(unsafe { Bucket::device(bucket.first(), bucket.count(), 0) }),
            Place::Device(_) => self.0.start(bucket),
        }
    }
}

/// What [`TestLibrary::break_rank`] breaks, as nccl.c has it.
pub mod faults {
    pub const REMOTE: c_int = 1;
    pub const STUCK: c_int = 2;
    pub const SLOW_ABORT: c_int = 4;
    pub const NO_INIT: c_int = 8;
    pub const REFUSED: c_int = 16;
    use std::ffi::c_int;
}

/// A copy of the test library, with what it counts.
pub struct TestLibrary {
    pub library: Arc<Library>,
    shared: Shared,
    _folder: tempfile::TempDir,
}

/// Aborts, misuses and launched sums, of a rank.
pub type Counts = [c_int; 3];

impl TestLibrary {
    /// One of its own, so that tests do not meet.
    pub fn load() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libnccl.so.2");
        std::fs::copy(compiled(), &path).unwrap();
        let library = Arc::new(Library::open(&[folder.path().to_owned()]).unwrap());
        // SAFETY: the library from above, once more.
        let shared = unsafe { Shared::new(&path) }.unwrap();
        Self { library, shared, _folder: folder }
    }

    pub fn break_rank(&self, rank: usize, how: c_int) {
        // SAFETY: the types of nccl.c.
        unsafe {
            let set: Symbol<unsafe extern "C" fn(c_int, c_int)> = self.shared.get(b"test_break").unwrap();
            set(rank as c_int, how);
        }
    }

    pub fn counts(&self, rank: usize) -> Counts {
        // SAFETY: as above.
        unsafe {
            let count: Symbol<unsafe extern "C" fn(c_int, c_int) -> c_int> = self.shared.get(b"test_count").unwrap();
            [0, 1, 2].map(|what| count(rank as c_int, what))
        }
    }
}

/// Compiled once in each test program.
pub fn compiled() -> &'static Path {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nccl-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (source, library) =
            (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cards/nccl.c"), folder.join("libnccl.so.2"));
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"]).arg(&library).arg(source);
        assert!(compiler.status().unwrap().success());
        library
    })
}
