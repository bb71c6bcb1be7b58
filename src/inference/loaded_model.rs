//! Loading of a model from a run or a checkpoint, for inference.

use std::sync::Arc;

use lambert_config::RunConfig;
use lambert_config::run::{Cluster, Device, DeviceKind, Precision, TokenBudget};
use lambert_dataset::tokenizer::Tokenizer;
use lambert_dataset::{Dataset, ModelVocabulary, check_compatibility};
use lambert_plan::architecture::Architecture;
use lambert_progress::Progress;
use lambert_store::checkpoint as stored;
use lambert_store::{Store, StoredVocabulary, run};

use crate::checkpoint;
use crate::error::Error;
use crate::gpu::ComputeDevice;
use crate::model;
use crate::objective::Objective;
use crate::state::Parameters;
use crate::train::evaluate::EvalRequest;
use crate::worker::session;

/// Precision of the computation of a loaded model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InferencePrecision {
    /// `model.precision` of the run, as in its evaluations.
    OfRun,
    /// fp32, as transformers computes with the export of the run.
    Fp32,
}

/// Model loaded for inference, with its configuration and tokenizer.
pub struct LoadedModel {
    /// Configuration of the run. `[cluster]` has default values. `[device]` has default
    /// values and the chosen device kind. `model.precision` is that of the computation.
    pub config: RunConfig,
    /// Weights.
    pub parameters: Parameters,
    /// Number of encoder layers.
    pub layers: usize,
    /// Training step of the checkpoint.
    pub step: u64,
    /// Tokenizer with the vocabulary of the run.
    pub tokenizer: Tokenizer,
    vocabulary_sha256: String,
    /// True if the tokenizer lowercases text.
    lowercase: bool,
}

impl LoadedModel {
    /// Loads a model on `device`. `url` is the URL of a checkpoint (`RUN/checkpoints/step-...`) or of a run. For a run,
    /// loads the newest valid checkpoint. Shows the bytes that are read as `progress`. Call this function before any other
    /// use of libtorch.
    ///
    /// # Errors
    /// The run does not exist, has no valid checkpoint, or the device cannot be used.
    pub fn open(
        url: &str,
        device: DeviceKind,
        precision: InferencePrecision,
        progress: &Progress,
    ) -> Result<Self, Error> {
        let (of, name) = run::split_checkpoint_url(url);
        let store = progress.observe(&Store::open(of)?);
        let (mut config, _) = session::read_config(&store)?;
        // The configuration of the run must not choose the library that this host loads. The environment
        // variable LAMBERT_LIBTORCH chooses the library.
        (config.cluster, config.device) = (Cluster::default(), Device { kind: device, ..Device::default() });
        if precision == InferencePrecision::Fp32 {
            config.model.precision = Precision::Fp32;
        }
        let (kernels, _) = ComputeDevice::load(&config.device, config.cluster.all_reduce.backend)?
            .kernels(None, config.model.precision)?;
        tch::set_num_threads(std::thread::available_parallelism().map_or(1, |count| count.get() as i32));
        let (verified, info, parameters) = checkpoint::read_chosen(&store, name, |verified, info| {
            let layers = config.depth(verified.manifest.stage);
            let architecture = Architecture::of_run(&config, layers, info.vocabulary.size);
            checkpoint::read_model(Arc::clone(&kernels), &store, verified, architecture, checkpoint::ReadMode::Alone)
        })?;
        let manifest = &verified.manifest;
        let layers = config.depth(manifest.stage);
        let vocabulary = StoredVocabulary::read(&store)?.bytes;
        let tokenizer = info.vocabulary.tokenizer(&vocabulary)?;
        let vocabulary_sha256 = lambert_store::hash::sha256(&vocabulary);
        let lowercase = info.vocabulary.lowercase;
        Ok(Self { config, parameters, layers, step: manifest.step, tokenizer, vocabulary_sha256, lowercase })
    }

    /// Like [`LoadedModel::open`] in the precision of the run, with the mean of the weights of the newest `count` checkpoints of the run at `url`. The mean
    /// has the bits that `lambert checkpoint average` writes.
    ///
    /// # Errors
    /// As for [`LoadedModel::open`], or the run has fewer checkpoints, or their models differ.
    pub fn open_average(url: &str, count: usize, device: DeviceKind, progress: &Progress) -> Result<Self, Error> {
        if run::split_checkpoint_url(url).1.is_some() {
            let text = format!("{url} is one checkpoint; to average the newest {count} checkpoints, name the run");
            return Err(Error::Usage(text));
        }
        let store = progress.observe(&Store::open(url)?);
        let names = stored::newest(&store, count)?;
        let newest = Self::open(&run::checkpoint_url(url, &names[0]), device, InferencePrecision::OfRun, progress)?;
        let mut mean = WeightMean::new(&newest.parameters);
        for name in &names {
            let verified = stored::verify(&store, name)?;
            let architecture = Architecture::clone(newest.parameters.architecture());
            let kernels = Arc::clone(newest.parameters.kernels());
            mean.add(&checkpoint::read_model(kernels, &store, &verified, architecture, checkpoint::ReadMode::Alone)?);
        }
        mean.write(&newest.parameters, names.len());
        Ok(newest)
    }

    /// Objective of the run, over the weights of this model.
    pub fn objective(&self) -> Objective {
        Objective::new(&self.parameters, &self.config.model, &self.config.objective)
    }

    /// Creates an evaluation on the dataset at `url`, which must match the vocabulary and the objective of the model.
    pub fn eval_request(&self, url: &str, samples: u64) -> Result<EvalRequest, Error> {
        let dataset = Arc::new(Dataset::open(url)?);
        let mut errors = Vec::new();
        check_compatibility(
            &self.config,
            &[("--data".to_owned(), &dataset)],
            Some(ModelVocabulary { sha256: &self.vocabulary_sha256, lowercase: Some(self.lowercase) }),
            &mut errors,
        );
        if !errors.is_empty() {
            return Err(Error::invalid_config(url, errors));
        }
        Ok(EvalRequest {
            dataset,
            objective: self.config.evaluation_objective(),
            samples,
            micro_batch_tokens: TokenBudget::AUTO_ON_CPU,
            layout: model::layout(&self.config, &**self.parameters.kernels()),
            parts: None,
        })
    }
}

/// Sums of the weights of models with the same parameters.
struct WeightMean(Vec<Vec<f64>>);

impl WeightMean {
    fn new(parameters: &Parameters) -> Self {
        Self(parameters.specs().iter().map(|spec| vec![0.0; spec.count()]).collect())
    }

    fn add(&mut self, parameters: &Parameters) {
        for (sums, spec) in self.0.iter_mut().zip(parameters.specs()) {
            let weights = parameters.read(spec);
            sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += f64::from(weight));
        }
    }

    /// Writes the mean of `count` models to `parameters`.
    fn write(self, parameters: &Parameters, count: usize) {
        for (sums, spec) in self.0.into_iter().zip(parameters.specs()) {
            let mean: Vec<f32> = sums.into_iter().map(|sum| (sum / count as f64) as f32).collect();
            parameters.write(spec, &mean);
        }
    }
}
