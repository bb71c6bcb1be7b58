//! What a run's configuration must satisfy before anything is started.

mod cluster;

use super::{
    Attention, DeviceKind, Guard, Masking, Model, Objective, Optimizer, OptimizerKind, Order, RENAMED, RunConfig,
    Stage, TokenBudget,
};
use crate::load::{Checked, Fault};

impl Checked for RunConfig {
    const RENAMED: &'static [(&'static str, &'static str)] = &RENAMED;

    fn check(&self, faults: &mut Vec<Fault>) {
        self.model.check(faults);
        self.objective.check(faults);
        self.optimizer.check(faults);
        if self.stage.is_empty() {
            faults.push(Fault::new("stage", "at least one [[stage]] is needed"));
        }
        for (index, stage) in self.stage.iter().enumerate() {
            stage.check(index, faults);
            // What the first one grows from is known when `run.from` is opened.
            if let Some(before) = index.checked_sub(1).map(|before| &self.stage[before]) {
                stage.check_growth(index, before.depth(&self.model), &self.model, faults);
            }
        }
        self.check_plateaus(faults);
        self.check_budgets(faults);
        self.check_canonical(faults);
        self.check_machines(faults);
        let wrong = self.slurm.faults(self.cluster.ranks);
        faults.extend(wrong.into_iter().map(|(key, message)| Fault::new(key, message)));
        self.guard.check(faults);
        positive("evaluation.every_steps", self.evaluation.every_steps as f64, faults);
        positive("checkpoint.keep", self.checkpoint.keep as f64, faults);
        not_negative("checkpoint.every_minutes", self.checkpoint.every_minutes, faults);
        not_negative("checkpoint.give_up_minutes", self.checkpoint.give_up_minutes, faults);
        if self.checkpoint.keep_best && self.evaluation.data.is_empty() {
            faults.push(Fault::new("checkpoint.keep_best", "needs evaluation.data: best is the lowest held-out loss"));
        }
        if self.run.from_optimizer && self.run.from.is_none() {
            faults.push(Fault::new("run.from_optimizer", "needs run.from: the checkpoint whose optimizer is taken"));
        }
    }
}

impl RunConfig {
    /// A card that is only known when the run starts is asked then.
    fn check_budgets(&self, faults: &mut Vec<Fault>) {
        let is_fused = match self.model.attention {
            Attention::Auto => self.device.kind == DeviceKind::Cuda,
            Attention::Keyed => false,
            Attention::Fused => true,
        };
        let open = self.stage.iter().enumerate().filter(|(_, stage)| stage.micro_batch_tokens == TokenBudget::Auto);
        for (index, _) in open.filter(|_| is_fused && self.model.drops_attention()) {
            faults.push(Fault::new(format!("stage.{index}.micro_batch_tokens"), TokenBudget::NOT_FUSED));
        }
    }

    fn check_plateaus(&self, faults: &mut Vec<Fault>) {
        let plateaus = self.stage.iter().enumerate();
        for (index, plateau) in plateaus.filter_map(|(index, stage)| Some((index, stage.plateau?))) {
            let key = format!("stage.{index}.plateau");
            if self.evaluation.data.is_empty() {
                faults.push(Fault::new(&*key, "needs evaluation.data: it is the held-out loss that is flat"));
            }
            positive(&format!("{key}.evaluations"), plateau.evaluations as f64, faults);
            not_negative(&format!("{key}.min_delta"), plateau.min_delta, faults);
        }
    }
}

/// No model is larger in any direction; products of such numbers can be computed with.
const LARGEST: usize = 1 << 20;

impl Model {
    fn sizes(&self) -> [(&'static str, usize); 5] {
        [
            ("model.layers", self.layers),
            ("model.hidden", self.hidden),
            ("model.heads", self.heads),
            ("model.intermediate", self.intermediate),
            ("model.positions", self.positions),
        ]
    }

    /// Whether all sizes are such that formulas may be computed with them.
    pub fn is_sized(&self) -> bool {
        self.sizes().iter().all(|(_, size)| (1..=LARGEST).contains(size))
    }

    fn check(&self, faults: &mut Vec<Fault>) {
        for (key, value) in self.sizes() {
            positive(key, value as f64, faults);
            if value > LARGEST {
                faults.push(Fault::new(key, format!("is {value}; must be at most {LARGEST}")));
            }
        }
        if self.heads > 0 && !self.hidden.is_multiple_of(self.heads) {
            faults
                .push(Fault::new("model.heads", format!("{} heads do not divide {} hidden", self.heads, self.hidden)));
        }
        if !(1..=1024).contains(&self.pad_vocabulary_to) {
            faults.push(Fault::new("model.pad_vocabulary_to", "must be from 1 to 1024"));
        }
        share("model.dropout", self.dropout, faults);
        share("model.attention_dropout", self.attention_dropout.unwrap_or(0.0), faults);
        positive("model.initializer_range", self.initializer_range, faults);
        positive("model.layer_norm_eps", self.layer_norm_eps, faults);
    }
}

impl Objective {
    fn check(&self, faults: &mut Vec<Fault>) {
        share("objective.mask_probability", self.mask_probability, faults);
        positive("objective.mask_probability", self.mask_probability, faults);
        positive("objective.static_masks", self.static_masks as f64, faults);
        if self.masking == Masking::Dynamic && self.static_masks > 1 {
            let message = "has no meaning for dynamic masks; objective.masking = \"static\" takes so many in turn";
            faults.push(Fault::new("objective.static_masks", message));
        }
    }
}

impl Optimizer {
    fn check(&self, faults: &mut Vec<Fault>) {
        share("optimizer.beta1", self.beta1, faults);
        share("optimizer.beta2", self.beta2, faults);
        positive("optimizer.eps", self.eps, faults);
        not_negative("optimizer.weight_decay", self.weight_decay, faults);
        not_negative("optimizer.clip_norm", self.clip_norm, faults);
        if self.trust_ratio.is_some_and(|[least, most]| !(0.0 <= least && least <= most)) {
            faults.push(Fault::new("optimizer.trust_ratio", "must be [least, most], neither below 0"));
        }
        if self.kind != OptimizerKind::Lamb && (self.trust_undecayed || self.trust_ratio.is_some()) {
            faults.push(Fault::new("optimizer", "trust_undecayed and trust_ratio are settings of lamb"));
        }
    }
}

impl Stage {
    fn check(&self, index: usize, faults: &mut Vec<Fault>) {
        let key = |name: &str| format!("stage.{index}.{name}");
        if self.name.is_empty() {
            faults.push(Fault::new(key("name"), "missing: a name for the records"));
        }
        if self.data.is_empty() {
            faults.push(Fault::new(key("data"), "missing: the dataset's folder or URL"));
        }
        if !(1..=LARGEST).contains(&self.layers.unwrap_or(1)) {
            faults.push(Fault::new(key("layers"), format!("must be from 1 to {LARGEST}")));
        }
        positive(&key("steps"), self.steps as f64, faults);
        positive(&key("global_batch"), self.global_batch as f64, faults);
        if let Some(ramp) = self.batch_ramp
            && !((1..=self.global_batch).contains(&ramp.start) && (1..=self.steps).contains(&ramp.steps))
        {
            let message = "start is from 1 to global_batch, steps from 1 to the stage's steps";
            faults.push(Fault::new(key("batch_ramp"), message));
        }
        positive(&key("micro_batch_tokens"), self.micro_batch_tokens.or_default() as f64, faults);
        positive(&key("learning_rate"), self.learning_rate, faults);
        positive(&key("decay_power"), self.decay_power, faults);
        not_negative(&key("learning_rate_end"), self.learning_rate_end, faults);
        if !(0.0..=1.0).contains(&self.warmup) {
            faults.push(Fault::new(key("warmup"), "is a share of the steps: from 0 to 1"));
        }
    }
}

impl Stage {
    /// Checks the growth from `from` layers, those of the stage or the checkpoint before, to this stage's.
    pub fn check_growth(&self, index: usize, from: usize, model: &Model, faults: &mut Vec<Fault>) {
        let to = self.depth(model);
        let key = |name: &str| format!("stage.{index}.{name}");
        if to < from {
            faults.push(Fault::new(key("layers"), format!("{to} layers after {from}: layers cannot be taken away")));
        }
        if to > from && self.growth.order == Order::Interleave && !to.is_multiple_of(from.max(1)) {
            let message = format!("{to} layers after {from}: interleave reaches multiples of {from} only");
            faults.push(Fault::new(key("growth.order"), message));
        }
        if to <= from && !self.growth.is_default() {
            faults.push(Fault::new(key("growth"), "the stage has no more layers than the one before"));
        }
        if self.restart_optimizer && self.growth.moments.is_some() {
            faults.push(Fault::new(key("growth.moments"), "with restart_optimizer none are kept"));
        }
        if self.growth.new_layers_only > self.steps {
            let message = format!("is {}; the stage has {} steps", self.growth.new_layers_only, self.steps);
            faults.push(Fault::new(key("growth.new_layers_only"), message));
        }
    }
}

/// Steps that the training state may have to remember one by one.
const MOST_REMEMBERED: u64 = 1000;

impl Guard {
    fn check(&self, faults: &mut Vec<Fault>) {
        for (key, value) in [("nonfinite_steps", self.nonfinite_steps), ("batches_before", self.batches_before)] {
            if value > MOST_REMEMBERED {
                faults.push(Fault::new(format!("guard.{key}"), format!("must be at most {MOST_REMEMBERED}")));
            }
        }
        not_negative("guard.loss_band", self.loss_band, faults);
        positive("guard.loss_window", self.loss_window as f64, faults);
    }
}

fn positive(key: &str, value: f64, faults: &mut Vec<Fault>) {
    if !(value > 0.0 && value.is_finite()) {
        faults.push(Fault::new(key, format!("is {value}; must be above 0")));
    }
}

fn not_negative(key: &str, value: f64, faults: &mut Vec<Fault>) {
    if !(value >= 0.0 && value.is_finite()) {
        faults.push(Fault::new(key, format!("is {value}; must be 0 or above")));
    }
}

fn share(key: &str, value: f64, faults: &mut Vec<Fault>) {
    if !(0.0..1.0).contains(&value) {
        faults.push(Fault::new(key, format!("is {value}; must be at least 0 and below 1")));
    }
}
