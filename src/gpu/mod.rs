//! The device that a rank computes on: main memory, or a card of its host. What a card needs (the driver, the CUDA half of
//! libtorch, NVRTC) is loaded when the program runs, so that one program serves both kinds of machine.
//!
//! - [`Chosen`]: what a rank computes on; [`conflicts`]: whether the devices of all ranks go together
//! - [`Driver`]: which cards there are; kernels that are started on one
//! - [`Libtorch`]: where the CUDA half of libtorch is
//! - [`Nvrtc`]: the compiler of our own kernels; cubin: their code, and the files that keep it
//! - [`Nccl`]: what sums between cards; [`SumStream`]: where it does

pub mod conflicts;
mod cubin;
mod device;
mod driver;
mod libtorch;
mod nccl;
mod nvrtc;
mod stream;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lambert_collective::nccl::Library;
use lambert_collective::world::World;
use lambert_config::run::{Backend, Device, DeviceKind, Precision};

use crate::kernels::{Cuda, Host, Kernels};
use crate::torch;

use device::Gpu;

pub use driver::{CardFacts, Driver, DriverError, Loaded};
pub use libtorch::Libtorch;
pub use nccl::{Nccl, infiniband};
pub use nvrtc::{CompileError, Nvrtc};
pub use stream::SumStream;

/// Why a card cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A folder that was named has no CUDA libtorch.
    #[error("{}, which {origin} names, has no {}, nor has lib/ in it", folder.display(), libtorch::NAME)]
    NotThere {
        /// The folder.
        folder: PathBuf,
        /// What names it.
        origin: &'static str,
    },
    /// There is none anywhere.
    #[error(
        "there is no {} here: device.libtorch and {} name no folder, and it is not in {}; `cluster/setup.sh --cuda` fetches \
         it, and device.kind = \"cpu\" does without",
        libtorch::NAME,
        libtorch::VARIABLE,
        list(looked)
    )]
    Nowhere {
        /// Folders that it was looked for in.
        looked: Vec<PathBuf>,
    },
    /// It does not say what it is.
    #[error("{} has no version.py beside it that tells which libtorch it is", folder.display())]
    NoVersion {
        /// The folder.
        folder: PathBuf,
    },
    /// It is the half of another libtorch.
    #[error("libtorch in {} is {version}, and this program was built with {built_with}", folder.display())]
    OtherVersion {
        /// The folder.
        folder: PathBuf,
        /// Its version.
        version: String,
        /// What it has to be.
        built_with: String,
    },
    /// It cannot be loaded, or something that it needs.
    #[error("cannot load {}", path.display())]
    Load {
        /// The library.
        path: PathBuf,
        /// Why not.
        source: libloading::Error,
    },
    /// The driver refuses, or there is none.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The driver is older than libtorch's CUDA.
    #[error(
        "the NVIDIA driver supports CUDA {}.{}, and libtorch {version} was built with CUDA {cuda}: it needs driver 580 or \
         later",
        there / 1000, there % 1000 / 10
    )]
    OldDriver {
        /// As the driver says it: 12040 is 12.4.
        there: i32,
        /// libtorch's version.
        version: String,
        /// Its CUDA.
        cuda: String,
    },
    /// The driver sees no card.
    #[error("the NVIDIA driver sees no card{}", visible())]
    NoCards,
    /// libtorch has no code for the card.
    #[error(
        "card {index} ({name}) has compute capability {}.{}, and this libtorch has code for 7.5 and later; docs/guides/gpus.md \
         says how to build for an older card",
        capability.0, capability.1
    )]
    OldCard {
        /// Its number.
        index: usize,
        /// Its name.
        name: String,
        /// Its compute capability.
        capability: (i32, i32),
    },
    /// There is a driver and a libtorch, and they do not work together.
    #[error("libtorch {version} finds no card, although the driver does; {said}")]
    Unusable {
        /// libtorch's version.
        version: String,
        /// What is known.
        said: String,
    },
    /// No compiler for the kernels.
    #[error("there is no {} here, which compiles lambert's kernels for the card; it is not in {}", nvrtc::NAMES[0], list(looked))]
    NoCompiler {
        /// Folders that it was looked for in.
        looked: Vec<PathBuf>,
    },
    /// The kernels do not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// NCCL is missing, or refuses.
    #[error("gradients cannot be summed between cards")]
    Nccl(#[from] lambert_collective::Error),
    /// The ranks' devices do not go together.
    #[error(transparent)]
    World(#[from] conflicts::Clash),
    /// A run would fit into a card that nobody else used.
    #[error("{0}\n  all of it would fit into a card that nothing else uses")]
    Occupied(String),
    /// libtorch fails.
    #[error(transparent)]
    Torch(#[from] torch::TorchError),
}

impl DeviceError {
    /// Whether the machine lacks something; else a card failed.
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Torch(_) | Self::Occupied(_) => false,
            Self::Driver(error) => error.has_no_card(),
            Self::Nccl(error) => error.is_refusal(),
            _ => true,
        }
    }
}

fn list(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn visible() -> String {
    std::env::var("CUDA_VISIBLE_DEVICES")
        .map_or_else(|_| String::new(), |value| format!(" (CUDA_VISIBLE_DEVICES={value:?})"))
}

/// Oldest compute capability that libtorch's wheels have code for.
const OLDEST: (i32, i32) = (7, 5);

/// What a rank computes on.
pub enum Chosen {
    /// Main memory.
    Host,
    /// A card of this host.
    Card(Driver, Libtorch, Option<Nccl>),
}

impl Chosen {
    /// As the configuration says; what a card needs is loaded, NCCL too where `backend` asks for it. With `auto` a card is taken where there is a driver with one.
    /// To be called before anything else of libtorch.
    ///
    /// # Errors
    /// A card is to be used and cannot be. Nobody trains on a processor by mistake.
    pub fn load(device: &Device, backend: Backend) -> Result<Self, DeviceError> {
        if device.kind == DeviceKind::Cpu {
            return Ok(Self::Host);
        }
        let asked = device.kind == DeviceKind::Cuda;
        let wants_nccl = Nccl::is_wanted(backend, lambert_collective::world::detect().as_ref());
        let driver = match Driver::open() {
            Err(error) if !asked && error.has_no_card() => return Ok(Self::Host),
            Err(error) => {
                // What is wrong beside the driver is to be told first: it can be mended without the machine's operator.
                let libtorch = Libtorch::find(&device.libtorch, torch::BUILT_WITH)?;
                if wants_nccl {
                    Library::find(&libtorch.nvidia_folders()).map_err(DeviceError::Nccl)?;
                }
                return Err(error.into());
            }
            Ok(driver) => driver,
        };
        if driver.cards()? == 0 {
            return if asked { Err(DeviceError::NoCards) } else { Ok(Self::Host) };
        }
        let libtorch = Libtorch::find(&device.libtorch, torch::BUILT_WITH)?;
        let (there, needed) = (driver.version()?, libtorch.cuda.split('.').next().and_then(|major| major.parse().ok()));
        if needed.is_some_and(|major: i32| there / 1000 < major) {
            let Libtorch { version, cuda, .. } = libtorch;
            return Err(DeviceError::OldDriver { there, version, cuda });
        }
        libtorch.load()?;
        if device.deterministic {
            torch::guard(torch::card::add_in_one_order)?;
        }
        let nccl = if wants_nccl { Some(Nccl::load(&libtorch)?) } else { None };
        Ok(Self::Card(driver, libtorch, nccl))
    }

    /// What sums between cards, where several ranks have one.
    pub fn take_nccl(&mut self) -> Option<Nccl> {
        match self {
            Self::Host => None,
            Self::Card(_, _, nccl) => nccl.take(),
        }
    }

    /// The kernels of the device, and what the card is if it is one. Which card follows from the rank's place on its host;
    /// `precision` is what its matrix products of 32 bits follow.
    ///
    /// # Errors
    /// The card, or the compiler of its kernels, cannot be used.
    pub fn kernels(
        self,
        world: Option<&World>,
        precision: Precision,
    ) -> Result<(Arc<dyn Kernels>, Option<Card>), DeviceError> {
        let Self::Card(driver, libtorch, _) = self else { return Ok((Arc::new(Host), None)) };
        let cards = driver.cards()?;
        let index = world.map_or(0, |world| world.local_rank) % cards.max(1);
        let facts = driver.facts(index)?;
        if facts.capability < OLDEST {
            return Err(DeviceError::OldCard { index, name: facts.name, capability: facts.capability });
        }
        if !torch::guard(tch::Cuda::is_available)? {
            let said = format!("it was loaded from {}", libtorch.folder.display());
            return Err(DeviceError::Unusable { version: libtorch.version, said });
        }
        torch::guard(|| {
            torch::card::allow_tf32(precision == Precision::Tf32);
            torch::card::leave_out_cudnn();
        })?;
        let looked = libtorch.nvidia_folders();
        let mut compiler = None;
        for folder in &looked {
            compiler = compiler.or(Nvrtc::open(folder)?);
        }
        let compiler = compiler.ok_or(DeviceError::NoCompiler { looked })?;
        let code = compiler.kernels(&facts.architecture(), cache().as_deref())?;
        // Before anything of libtorch's is there.
        let free = settled(facts.memory, &mut || driver.free(index), &mut std::thread::sleep)?;
        let driver = Arc::new(driver);
        let loaded = Gpu::load(&driver, index, &code)?;
        let card =
            Card { index, facts, free, libtorch, nvrtc: compiler.version()?, kernels: Some(Arc::clone(&loaded)) };
        let gpu = Gpu::new(driver, index, loaded);
        Ok((Arc::new(Cuda::new(Arc::new(gpu))), Some(card)))
    }
}

/// The card of a rank, as it is told at the start.
#[derive(Debug, Clone)]
pub struct Card {
    /// Its number on its host, as this process sees it.
    pub index: usize,
    /// What it is.
    pub facts: CardFacts,
    /// Bytes of its memory that were free when this process came to it.
    pub free: u64,
    /// The libtorch that uses it.
    pub libtorch: Libtorch,
    /// Version of the compiler of the kernels.
    pub nvrtc: String,
    /// The kernels on it.
    pub kernels: Option<Arc<Loaded>>,
}

impl Card {
    /// As a message names it.
    pub fn name(&self) -> String {
        format!("{} ({}, {})", self.index, self.facts.name, self.facts.bus)
    }
}

impl std::fmt::Display for Card {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { index, facts, free, libtorch, nvrtc, kernels: _ } = self;
        write!(
            f,
            "card {index}, {} ({}, {} GiB, {:.1} free, {}); libtorch {} from {} ({}), NVRTC {nvrtc}",
            facts.name,
            facts.architecture(),
            facts.memory >> 30,
            *free as f64 / f64::from(1 << 30),
            facts.bus,
            libtorch.version,
            libtorch.folder.display(),
            libtorch.origin
        )
    }
}

/// Seconds that memory of processes that have ended may take to be free.
const SECONDS: usize = 10;

/// The free ones of `all` bytes: where a tenth is taken, once no more come back. A rank that was killed a moment ago still has its
/// memory.
fn settled(
    all: u64,
    free: &mut dyn FnMut() -> Result<u64, DriverError>,
    wait: &mut dyn FnMut(Duration),
) -> Result<u64, DriverError> {
    let mut last = free()?;
    for _ in 0..SECONDS {
        if last >= all - all / 10 {
            break;
        }
        wait(Duration::from_secs(1));
        let now = free()?;
        if now <= last {
            break;
        }
        last = now;
    }
    Ok(last)
}

/// Where compiled kernels are kept.
fn cache() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(cache.join("lambert"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_comes_back_is_waited_for() {
        let settle = |readings: &[u64]| {
            let (mut readings, mut waited) = (readings.iter().copied(), 0);
            let free = settled(100, &mut || Ok(readings.next().unwrap()), &mut |_| waited += 1).unwrap();
            (free, waited)
        };
        assert_eq!(settle(&[95]), (95, 0));
        assert_eq!(settle(&[20, 60, 97]), (97, 2));
        assert_eq!(settle(&[50, 50]), (50, 1), "somebody else's");
        assert_eq!(settle(&[50, 40]), (50, 1));
        assert_eq!(settle(&(10..30).collect::<Vec<_>>()), (20, 10), "for ten seconds");
    }

    #[test]
    fn a_processor_needs_nothing_and_a_card_says_what_is_missing() {
        let device = |kind| Device { kind, libtorch: "/nowhere".to_owned(), ..Device::default() };
        let load = |kind| Chosen::load(&device(kind), Backend::Auto);
        assert!(matches!(load(DeviceKind::Cpu), Ok(Chosen::Host)));
        let Err(error) = load(DeviceKind::Cuda) else { panic!("a card out of nowhere") };
        assert!(
            error.to_string().starts_with("/nowhere, which device.libtorch names, has no libtorch_cuda.so"),
            "{error}"
        );
        assert!(error.is_missing());
    }
}
