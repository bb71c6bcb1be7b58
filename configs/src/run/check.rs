//! Validation of a run's configuration.

mod cluster;
mod replaced_tokens;
mod stage;

use std::net::SocketAddr;

use super::{
    Attention, DeviceKind, Family, Guard, MaskUnit, Masking, Model, NormKind, Objective, Optimizer, OptimizerKind,
    Pair, Precision, RENAMED, RunConfig, Unpadded,
};
use crate::duration;
use crate::load::{Checked, ConfigIssue, ConfigKind, strict};

impl Checked for RunConfig {
    const RENAMED: &'static [(&'static str, &'static str)] = &RENAMED;
    const KIND: Option<ConfigKind> = Some(ConfigKind::Run);

    fn insert_defaults(tree: &mut toml::Value) {
        Family::insert_defaults(tree);
    }

    fn read(tree: toml::Value, issues: &mut Vec<ConfigIssue>) -> Option<Self> {
        strict::read_all(tree, issues)
    }

    fn check(&self, issues: &mut Vec<ConfigIssue>) {
        self.model.check(issues);
        if self.objective.pair != Pair::None && !self.model.family.has_pair_head() {
            let message =
                format!("must be \"none\": a model of family {} has no sentence-pair head", self.model.family);
            issues.push(ConfigIssue::new("objective.pair", message));
        }
        self.objective.check("objective", issues);
        self.check_replaced_tokens(issues);
        self.check_span_boundary(issues);
        self.objective.teacher.iter().for_each(|teacher| teacher.check(self, issues));
        self.optimizer.check(issues);
        if self.stage.is_empty() {
            issues.push(ConfigIssue::new("stage", "at least one [[stage]] is needed"));
        }
        for (index, stage) in self.stage.iter().enumerate() {
            stage.check(index, issues);
            if !stage.objective.is_default() {
                stage.objective.of(&self.objective).check(&format!("stage.{index}.objective"), issues);
            }
            if stage.depth(&self.model) < self.model.groups {
                let message = format!("must be at least model.groups = {}", self.model.groups);
                issues.push(ConfigIssue::new(format!("stage.{index}.layers"), message));
            }
            // The number of layers before the first stage is known only once the checkpoint `run.from` is opened.
            if let Some(before) = index.checked_sub(1).map(|before| &self.stage[before]) {
                stage.check_growth(index, before.depth(&self.model), &self.model, issues);
            }
        }
        self.check_plateaus(issues);
        self.check_unpadded(issues);
        self.check_canonical(issues);
        self.check_machines(issues);
        issues.extend(self.slurm.issues(self.cluster.ranks));
        self.guard.check(issues);
        self.check_reports(issues);
        self.evaluation.check(issues);
        let intervals = [("evaluation", self.evaluation.every_tokens), ("checkpoint", self.checkpoint.every_tokens)];
        for (section, tokens) in intervals {
            tokens
                .into_iter()
                .for_each(|tokens| stage::token_count(&format!("{section}.every_tokens"), tokens, issues));
        }
        positive("checkpoint.keep", self.checkpoint.keep as f64, issues);
        minutes("checkpoint.every_minutes", self.checkpoint.every_minutes, issues);
        minutes("checkpoint.give_up_minutes", self.checkpoint.give_up_minutes, issues);
        if self.checkpoint.keep_best && self.evaluation.data.is_empty() {
            issues.push(ConfigIssue::new(
                "checkpoint.keep_best",
                "needs evaluation.data: the best checkpoint has the lowest held-out loss",
            ));
        }
        if self.run.from_optimizer && self.run.from.is_none() {
            issues.push(ConfigIssue::new(
                "run.from_optimizer",
                "needs run.from: the checkpoint to load the optimizer from",
            ));
        }
    }
}

impl RunConfig {
    /// True if libtorch's flash kernels, which unpadded micro-batches use on a GPU, have the sizes of the attention heads of
    /// all networks: multiples of 8, at most 256 elements.
    pub fn has_flash_heads(&self) -> bool {
        let generator = self.objective.replaced_tokens.as_ref().map(|settings| settings.generator(&self.model));
        let teacher = self.objective.teacher.as_ref().and_then(|teacher| teacher.info.as_ref());
        let others = generator.as_ref().into_iter().chain(teacher.map(|info| &info.model));
        std::iter::once(&self.model).chain(others).all(|model| {
            let size = model.hidden / model.heads.max(1);
            size.is_multiple_of(8) && (8..=256).contains(&size)
        })
    }

    /// Rejects `device.unpadded = "always"` for models and attention that need padded samples.
    fn check_unpadded(&self, issues: &mut Vec<ConfigIssue>) {
        if self.device.unpadded != Unpadded::Always {
            return;
        }
        let mut wrong = |message: &str| issues.push(ConfigIssue::of_value("device.unpadded", "\"always\"", message));
        let is_keyed = match self.model.attention {
            Attention::Auto => self.device.kind != DeviceKind::Cuda,
            Attention::Keyed => true,
            Attention::Fused => false,
        };
        if self.model.position_buckets > 0 {
            wrong("relative positions (model.position_buckets) need padded samples");
        }
        if is_keyed && self.model.drops_attention() {
            wrong(
                "its attention dropout is not keyed: set model.attention = \"fused\" or \
                 model.attention_dropout = 0.0",
            );
        }
        if self.device.kind == DeviceKind::Cuda {
            self.unpadded_gpu_issues().into_iter().for_each(wrong);
        }
    }

    /// Reasons why a GPU cannot compute this model with `device.unpadded = "always"`.
    pub fn unpadded_gpu_issues(&self) -> Vec<&'static str> {
        let precision = (self.model.precision != Precision::Bf16).then_some("a GPU needs model.precision = \"bf16\"");
        let heads = (!self.has_flash_heads()).then_some("a GPU needs attention heads of 8, 16, ... 256 elements");
        let is_always = self.device.unpadded == Unpadded::Always;
        precision.into_iter().chain(heads).filter(|_| is_always).collect()
    }

    /// Checks notifications, metrics for Prometheus and the page of the run.
    fn check_reports(&self, issues: &mut Vec<ConfigIssue>) {
        positive("notify.timeout_seconds", self.notify.timeout_seconds, issues);
        duration::check("notify.timeout_seconds", self.notify.timeout_seconds, 1.0, issues);
        if self.notify.command.first().is_some_and(String::is_empty) {
            issues.push(ConfigIssue::new("notify.command", "the program is empty"));
        }
        let prometheus = &self.prometheus;
        if !prometheus.address.is_empty() && prometheus.address.parse::<SocketAddr>().is_err() {
            let address = &prometheus.address;
            let message = "expected an IP address and a port, e.g. \"0.0.0.0:9400\"";
            issues.push(ConfigIssue::of_value("prometheus.address", format!("{address:?}"), message));
        }
        if prometheus.address.is_empty() && !prometheus.discovery_file.is_empty() {
            issues.push(ConfigIssue::new("prometheus.discovery_file", "needs prometheus.address"));
        }
        if self.watch.port != 0 && self.watch.url_file.is_empty() {
            issues.push(ConfigIssue::new("watch.port", "needs watch.url_file"));
        }
    }

    /// Checks the span boundary objective.
    fn check_span_boundary(&self, issues: &mut Vec<ConfigIssue>) {
        let (key, weight) = ("objective.span_boundary_weight", self.objective.span_boundary_weight);
        not_negative(key, weight, issues);
        let is_on = weight > 0.0;
        if is_on && self.objective.mask_unit != MaskUnit::Span {
            issues.push(ConfigIssue::new(key, "needs objective.mask_unit = \"span\""));
        }
        if is_on && !self.model.family.has_span_boundary_head() {
            let message = format!("must be 0: a model of family {} has no span boundary head", self.model.family);
            issues.push(ConfigIssue::new(key, message));
        }
    }

    fn check_plateaus(&self, issues: &mut Vec<ConfigIssue>) {
        let plateaus = self.stage.iter().enumerate();
        for (index, plateau) in plateaus.filter_map(|(index, stage)| Some((index, stage.plateau?))) {
            let key = format!("stage.{index}.plateau");
            if self.evaluation.data.is_empty() {
                issues.push(ConfigIssue::new(&*key, "needs evaluation.data to measure the held-out loss"));
            }
            positive(&format!("{key}.evaluations"), plateau.evaluations as f64, issues);
            not_negative(&format!("{key}.min_delta"), plateau.min_delta, issues);
        }
    }
}

/// Upper limit of each model dimension. With this limit, products of dimensions do not overflow.
const MAX_DIMENSION: usize = 1 << 20;

impl Model {
    fn sizes(&self) -> [(&'static str, usize); 6] {
        [
            ("model.layers", self.layers),
            ("model.hidden", self.hidden),
            ("model.heads", self.heads),
            ("model.intermediate", self.intermediate),
            ("model.positions", self.positions),
            ("model.embedding", self.embedding.unwrap_or(self.hidden.max(1))),
        ]
    }

    /// True if all sizes are within the limits, so that memory and FLOP formulas do not overflow.
    pub fn is_sized(&self) -> bool {
        self.sizes().iter().all(|(_, size)| (1..=MAX_DIMENSION).contains(size))
    }

    fn check(&self, issues: &mut Vec<ConfigIssue>) {
        for (key, value) in self.sizes() {
            positive(key, value as f64, issues);
            if value > MAX_DIMENSION {
                issues.push(ConfigIssue::of_value(key, value, format!("must be at most {MAX_DIMENSION}")));
            }
        }
        if self.heads > 0 && !self.hidden.is_multiple_of(self.heads) {
            issues.push(ConfigIssue::new(
                "model.heads",
                format!("{} heads do not divide hidden size {}", self.heads, self.hidden),
            ));
        }
        if self.segments > MAX_DIMENSION {
            issues.push(ConfigIssue::new("model.segments", format!("must be at most {MAX_DIMENSION}")));
        }
        if self.groups > self.layers {
            issues.push(ConfigIssue::new("model.groups", format!("must be at most model.layers = {}", self.layers)));
        }
        self.family.check(self, issues);
        self.check_attention(issues);
        if self.norm_kind == NormKind::Rms && self.norm_bias {
            issues.push(ConfigIssue::new("model.norm_bias", "must be false: RMS normalization has no bias"));
        }
        if !(1..=1024).contains(&self.pad_vocabulary_to) {
            issues.push(ConfigIssue::new("model.pad_vocabulary_to", "must be from 1 to 1024"));
        }
        fraction("model.dropout", self.dropout, issues);
        fraction("model.attention_dropout", self.attention_dropout.unwrap_or(0.0), issues);
        positive("model.initializer_range", self.initializer_range, issues);
        positive("model.layer_norm_eps", self.layer_norm_eps, issues);
    }
}

impl Model {
    /// Checks rotary positions and local attention.
    fn check_attention(&self, issues: &mut Vec<ConfigIssue>) {
        for (key, base) in
            [("model.rotary_base", self.rotary_base), ("model.local_rotary_base", self.local_rotary_base)]
        {
            positive(key, base.unwrap_or(1.0), issues);
        }
        let head = self.hidden / self.heads.max(1);
        if self.rotary_base.is_some() && head % 2 == 1 {
            let message =
                format!("{} heads have an odd size of {head}: rotary positions need an even size", self.heads);
            issues.push(ConfigIssue::new("model.heads", message));
        }
        if self.family == Family::DebertaV2 && !(2..=MAX_DIMENSION).contains(&self.position_buckets) {
            let message = format!("must be from 2 to {MAX_DIMENSION}");
            issues.push(ConfigIssue::of_value("model.position_buckets", self.position_buckets, message));
        } else if self.position_buckets > 0 && self.positions < self.position_buckets / 2 + 2 {
            let least = self.position_buckets / 2 + 2;
            let message = format!("must be at least {least} (model.position_buckets / 2 + 2)");
            issues.push(ConfigIssue::of_value("model.positions", self.positions, message));
        }
        if self.attention_window > MAX_DIMENSION {
            let message = format!("must be at most {MAX_DIMENSION}");
            issues.push(ConfigIssue::of_value("model.attention_window", self.attention_window, message));
        }
        positive("model.global_attention_every", self.global_attention_every as f64, issues);
        fraction("model.attention_output_dropout", self.attention_output_dropout.unwrap_or(0.0), issues);
    }
}

impl Objective {
    /// Checks the settings of `section`.
    fn check(&self, section: &str, issues: &mut Vec<ConfigIssue>) {
        let key = |name: &str| format!("{section}.{name}");
        fraction(&key("mask_probability"), self.mask_probability, issues);
        positive(&key("mask_probability"), self.mask_probability, issues);
        for (name, share) in [("mask_share", self.mask_share), ("random_share", self.random_share)] {
            if !(0.0..=1.0).contains(&share) {
                issues.push(ConfigIssue::of_value(key(name), share, "must be from 0 to 1"));
            }
        }
        if self.mask_share + self.random_share > 1.0 {
            let message = format!("{} + mask_share = {} is more than 1", self.random_share, self.mask_share);
            issues.push(ConfigIssue::new(key("random_share"), message));
        }
        let exponent = self.mask_frequency_exponent;
        if !(0.0..=1.0).contains(&exponent) {
            issues.push(ConfigIssue::of_value(key("mask_frequency_exponent"), exponent, "must be from 0 to 1"));
        }
        if self.phrases.is_some() && self.mask_unit == MaskUnit::Piece {
            let message = "needs a mask_unit of whole words: word, span or ngram";
            issues.push(ConfigIssue::new("objective.phrases", message));
        }
        positive("objective.static_masks", self.static_masks as f64, issues);
        if self.masking == Masking::Dynamic && self.static_masks > 1 {
            let message = "has no effect with dynamic masks; set objective.masking = \"static\"";
            issues.push(ConfigIssue::new("objective.static_masks", message));
        }
    }
}

impl Optimizer {
    fn check(&self, issues: &mut Vec<ConfigIssue>) {
        fraction("optimizer.beta1", self.beta1, issues);
        fraction("optimizer.beta2", self.beta2, issues);
        positive("optimizer.eps", self.eps, issues);
        if self.eps > 0.0 && self.eps < f64::from(f32::MIN_POSITIVE) {
            let message = "must be at least 1.2e-38, because the update computes in f32";
            issues.push(ConfigIssue::of_value("optimizer.eps", self.eps, message));
        }
        not_negative("optimizer.weight_decay", self.weight_decay, issues);
        not_negative("optimizer.clip_norm", self.clip_norm, issues);
        if self.trust_ratio.is_some_and(|[least, most]| !(0.0 <= least && least <= most)) {
            issues.push(ConfigIssue::new("optimizer.trust_ratio", "must be [min, max] with 0 <= min <= max"));
        }
        if self.kind == OptimizerKind::Lamb && self.decay_relative_to_peak {
            let message = "is not available for LAMB, whose trust ratio includes the weight decay";
            issues.push(ConfigIssue::new("optimizer.decay_relative_to_peak", message));
        }
        if self.kind != OptimizerKind::Lamb && (self.trust_undecayed || self.trust_ratio.is_some()) {
            issues.push(ConfigIssue::new("optimizer", "trust_undecayed and trust_ratio require kind = \"lamb\""));
        }
        let muon = &self.muon;
        fraction("optimizer.muon.momentum", muon.momentum, issues);
        if !(1..=100).contains(&muon.iterations) {
            issues.push(ConfigIssue::of_value("optimizer.muon.iterations", muon.iterations, "must be from 1 to 100"));
        }
        not_negative("optimizer.muon.adamw_learning_rate_ratio", muon.adamw_learning_rate_ratio, issues);
    }
}

/// Maximum number of steps that the training state records individually.
const MAX_RECORDED_STEPS: u64 = 1000;

impl Guard {
    fn check(&self, issues: &mut Vec<ConfigIssue>) {
        for (key, value) in [("nonfinite_steps", self.nonfinite_steps), ("batches_before", self.batches_before)] {
            if value > MAX_RECORDED_STEPS {
                let message = format!("must be at most {MAX_RECORDED_STEPS}");
                issues.push(ConfigIssue::of_value(format!("guard.{key}"), value, message));
            }
        }
        not_negative("guard.loss_band", self.loss_band, issues);
        positive("guard.loss_window", self.loss_window as f64, issues);
    }
}

pub(super) fn positive(key: &str, value: f64, issues: &mut Vec<ConfigIssue>) {
    if !(value > 0.0 && value.is_finite()) {
        issues.push(ConfigIssue::of_value(key, value, "must be above 0"));
    }
}

pub(super) fn not_negative(key: &str, value: f64, issues: &mut Vec<ConfigIssue>) {
    if !(value >= 0.0 && value.is_finite()) {
        issues.push(ConfigIssue::of_value(key, value, "must be 0 or above"));
    }
}

/// Checks a duration in minutes, which may be 0.
pub(super) fn minutes(key: &str, value: f64, issues: &mut Vec<ConfigIssue>) {
    not_negative(key, value, issues);
    duration::check(key, value, 60.0, issues);
}

pub(super) fn fraction(key: &str, value: f64, issues: &mut Vec<ConfigIssue>) {
    if !(0.0..1.0).contains(&value) {
        issues.push(ConfigIssue::of_value(key, value, "must be at least 0 and below 1"));
    }
}
