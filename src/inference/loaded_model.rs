//! A model out of a run or a checkpoint, for those that only read it.

use std::sync::Arc;

use lambert_config::RunConfig;
use lambert_config::run::{Cluster, Device, DeviceKind, TokenBudget};
use lambert_dataset::tokenizer::Tokenizer;
use lambert_dataset::{Dataset, check_fit};
use lambert_plan::architecture::Architecture;
use lambert_store::{Store, run};

use crate::checkpoint;
use crate::error::Error;
use crate::gpu::ComputeDevice;
use crate::objective::Objective;
use crate::state::Parameters;
use crate::train::evaluate::Question;
use crate::worker::session;

/// A model and what belongs to it.
pub struct Saved {
    /// The run's configuration, without its `[cluster]` and `[device]`, which are of other machines.
    pub config: RunConfig,
    /// The weights.
    pub parameters: Parameters,
    /// Encoder layers.
    pub layers: usize,
    /// Steps that it was trained for.
    pub step: u64,
    /// The run's vocabulary.
    pub tokenizer: Tokenizer,
    vocabulary_sha256: String,
}

impl Saved {
    /// Reads `url`: a run (its newest checkpoint that verifies) or `RUN/checkpoints/step-...`, to compute on `device`. To be
    /// called before anything else of libtorch.
    ///
    /// # Errors
    /// No such run, no good checkpoint, a device that cannot be used.
    pub fn open(url: &str, device: DeviceKind) -> Result<Self, Error> {
        let (of, name) = run::split_checkpoint_url(url);
        let store = Store::open(of)?;
        let (mut config, _) = session::read_config(&store)?;
        // Whoever trained it may not choose which library is loaded here: LAMBERT_LIBTORCH does.
        (config.cluster, config.device) = (Cluster::default(), Device { kind: device, ..Device::default() });
        let (kernels, _) = ComputeDevice::load(&config.device, config.cluster.all_reduce.backend)?
            .kernels(None, config.model.precision)?;
        tch::set_num_threads(std::thread::available_parallelism().map_or(1, |count| count.get() as i32));
        let (verified, facts, parameters) = checkpoint::read_chosen(&store, name, |verified, facts| {
            let layers = config.depth(verified.manifest.stage);
            let architecture = Architecture::of_run(&config, layers, facts.vocabulary.size);
            checkpoint::read_model(Arc::clone(&kernels), &store, verified, architecture)
        })?;
        let manifest = &verified.manifest;
        let layers = config.depth(manifest.stage);
        let vocabulary = store.get(run::VOCABULARY)?;
        let tokenizer = facts.vocabulary.tokenizer(&vocabulary)?;
        let vocabulary_sha256 = lambert_store::hash::sha256(&vocabulary);
        Ok(Self { config, parameters, layers, step: manifest.step, tokenizer, vocabulary_sha256 })
    }

    /// The passes of its run over these weights.
    pub fn objective(&self) -> Objective {
        Objective::new(&self.parameters, &self.config.model, &self.config.objective)
    }

    /// An evaluation on the dataset at `url`, which must have this model's vocabulary and objective.
    pub fn question(&self, url: &str, samples: u64) -> Result<Question, Error> {
        let dataset = Arc::new(Dataset::open(url)?);
        let mut faults = Vec::new();
        check_fit(&self.config, &[("--data".to_owned(), &dataset)], Some(&self.vocabulary_sha256), &mut faults);
        if !faults.is_empty() {
            return Err(Error::faults(url, faults));
        }
        let objective = self.config.objective.clone();
        Ok(Question { dataset, objective, samples, micro_batch_tokens: TokenBudget::DEFAULT, parts: None })
    }
}
