//! Training data, training and results in a model card.

use lambert_config::run::{MaskUnit, OptimizerKind, Pair, Stage, Teacher};
use lambert_plan::objectives;
use lambert_plan::timeline::{self, EarlyStops};
use serde::Serialize;

use super::super::collect::StageReport;
use super::super::document::{Block, head};
use super::{ModelCard, filled, table};
use crate::text::percent;

impl ModelCard<'_> {
    /// Names of the objectives: `masked language modeling and next sentence prediction`.
    pub(super) fn objective(&self) -> String {
        let pair = match self.config.objective.pair {
            Pair::Nsp => " and next sentence prediction",
            Pair::Sop => " and sentence order prediction",
            Pair::None => "",
        };
        let detection = if self.config.objective.replaced_tokens.is_some() {
            " by a generator and replaced-token detection by a discriminator"
        } else {
            ""
        };
        let taught = if self.config.objective.teacher.is_some() { " and knowledge distillation" } else { "" };
        let spans = match self.config.objective.span_boundary_weight {
            0.0 => "",
            _ => " with the span boundary objective",
        };
        format!("masked language modeling{spans}{pair}{detection}{taught}")
    }

    pub(super) fn training_data(&self) -> Vec<Block> {
        if self.data.is_empty() {
            return Vec::new();
        }
        let mut blocks = vec![Block::Heading("Training data".to_owned())];
        for data in self.data {
            let mut rows = vec![("SHA-256 of manifest.json", data.sha256.clone())];
            if let Some((name, manifest)) = &data.found {
                let counts = &manifest.counts;
                rows.insert(0, ("dataset", name.clone()));
                if counts.documents > 0 {
                    rows.push(("documents", counts.documents.to_string()));
                }
                rows.push(("samples", counts.samples.to_string()));
                rows.push(("tokens", counts.tokens.to_string()));
                if !manifest.corpus.sha256.is_empty() {
                    rows.push(("SHA-256 of the corpus", manifest.corpus.sha256.clone()));
                }
                rows.push(("SHA-256 of the vocabulary", manifest.vocabulary.sha256.clone()));
            }
            rows.push(("samples read in training", data.samples_read.to_string()));
            blocks.push(table(&["property", "value"], rows));
        }
        blocks
    }

    pub(super) fn training(&self) -> Vec<Block> {
        let (config, records) = (self.config, self.complete_records());
        let planned = timeline::total_steps(config, &EarlyStops::new());
        let mut rows = vec![
            ("objective", self.objective()),
            ("masking", self.masking()),
            ("steps", format!("{} of {planned} planned", self.checkpoint.step)),
        ];
        match records {
            Some(records) => {
                rows.push(("samples", records.samples.to_string()));
                rows.push(("tokens without padding", records.tokens.to_string()));
                rows.extend(records.flops.map(|flops| ("training FLOPs", format!("{flops:.3e}"))));
                rows.push(("skipped samples", records.skipped_samples.to_string()));
            }
            None => {
                let samples = self.checkpoint.cursor.values().fold(0_u64, |sum, samples| sum.saturating_add(*samples));
                rows.push(("samples", samples.to_string()));
            }
        }
        rows.push(("optimizer", self.optimizer()));
        rows.extend(config.objective.teacher.as_ref().map(|teacher| ("teacher", of_teacher(teacher))));
        let model = &config.model;
        rows.push(("dropout", model.dropout.to_string()));
        let others = [
            ("dropout of attention weights", model.attention_dropout),
            ("dropout of attention outputs", model.attention_output_dropout),
        ];
        let others = others.into_iter().filter_map(|(name, dropout)| Some((name, dropout?)));
        rows.extend(others.filter(|(_, dropout)| *dropout != model.dropout).map(|(name, it)| (name, it.to_string())));
        rows.push(("precision", key(config.model.precision)));
        rows.push(("seed", config.run.seed.to_string()));
        rows.push(("workers", self.checkpoint.world.to_string()));
        vec![Block::Heading("Training".to_owned()), table(&["property", "value"], rows), self.stages()]
    }

    fn masking(&self) -> String {
        let objective = &self.config.objective;
        let unit = match objective.mask_unit {
            MaskUnit::Piece => "single tokens",
            MaskUnit::Word => "whole words",
            MaskUnit::Span => "spans of words",
            MaskUnit::Ngram => "n-grams of words",
        };
        let phrases = if objective.phrases.is_some() { " and phrases" } else { "" };
        let of_stage = |stage: &Stage| {
            let objective = stage.objective.of(objective);
            let frequency = match objective.mask_frequency_exponent {
                0.0 => String::new(),
                exponent => format!(", rare tokens more often (count^-{exponent})"),
            };
            let limit = match objective.max_predictions {
                0 => String::new(),
                most => format!(", at most {most} per sample"),
            };
            let shares = match (objective.mask_share, objective.random_share) {
                (0.8, 0.1) => String::new(),
                (mask, random) => format!(" ({} replaced, {} random)", percent(mask), percent(random)),
            };
            let share = percent(objective.mask_probability);
            format!("{share} of the tokens{shares}, {unit}{phrases}{frequency}{limit}")
        };
        let mut stages: Vec<String> =
            self.config.stage.iter().take(self.checkpoint.stage.saturating_add(1)).map(of_stage).collect();
        stages.dedup();
        stages.join("; then ")
    }

    fn optimizer(&self) -> String {
        let optimizer = &self.config.optimizer;
        let muon = &optimizer.muon;
        let name = match optimizer.kind {
            OptimizerKind::Lamb => "LAMB".to_owned(),
            OptimizerKind::Adamw => "AdamW".to_owned(),
            OptimizerKind::StableAdamw => "StableAdamW".to_owned(),
            OptimizerKind::AdamBert => "Adam of BERT".to_owned(),
            OptimizerKind::Muon => format!(
                "Muon for the matrices of the layers (momentum {}, {} iterations in {}), AdamW for the rest",
                muon.momentum,
                muon.iterations,
                key(muon.precision)
            ),
        };
        let clipping = match optimizer.clip_norm {
            0.0 => "no gradient clipping".to_owned(),
            norm => format!("gradients clipped to norm {norm}"),
        };
        format!(
            "{name}, beta1 {}, beta2 {}, epsilon {:e}, weight decay {}, {clipping}",
            optimizer.beta1, optimizer.beta2, optimizer.eps, optimizer.weight_decay
        )
    }

    /// Table of the stages up to the checkpoint.
    fn stages(&self) -> Block {
        let names = ["stage", "layers", "steps", "batch", "peak learning rate", "schedule", "FLOPs", "final loss"];
        let stages = self.config.stage.iter().take(self.checkpoint.stage.saturating_add(1)).enumerate();
        let row = |(index, stage): (usize, &Stage)| {
            let report = self.complete_records().and_then(|records| records.stages.get(index));
            let known = |text: fn(&StageReport) -> String| report.map_or(String::new(), text);
            vec![
                stage.name.clone(),
                self.depth(index, stage),
                known(|report| report.steps.to_string()),
                batch(stage),
                format!("{:e}", stage.learning_rate),
                format!("{} warm-up, {} decay", percent(stage.warmup), key(stage.decay)),
                known(|report| format!("{:.3e}", report.flops)),
                known(|report| match report.final_loss.is_finite() {
                    true => format!("{:.4}", report.final_loss),
                    false => String::new(),
                }),
            ]
        };
        filled(std::iter::once(head(&names)).chain(stages.map(row)).collect())
    }

    /// Number of layers of a stage, and the source of its new layers if the model grew.
    fn depth(&self, index: usize, stage: &Stage) -> String {
        let layers = stage.depth(&self.config.model);
        let before = index.checked_sub(1).map(|before| self.config.depth(before));
        match before.filter(|before| *before < layers) {
            Some(before) => format!("{layers} (grown from {before}: {})", key(stage.growth.order)),
            None => layers.to_string(),
        }
    }

    /// True if the loss on held-out data is known.
    pub(super) fn has_held_out(&self) -> bool {
        self.checkpoint.held_out_loss.is_some() || self.records().is_some_and(|records| !records.held_out.is_empty())
    }

    /// Losses and accuracies. The columns of training are left out without records, as are those of held-out data if it
    /// was never evaluated.
    pub(super) fn results(&self) -> Vec<Block> {
        let losses = objectives::losses(&self.config.objective);
        let nats = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.4} nats"));
        let share = |value: Option<&f64>| value.map_or(String::new(), |value| percent(*value));
        let names = ["objective", "training loss", "training accuracy", "held-out loss", "held-out accuracy"];
        let mut rows = vec![head(&names)];
        for loss in &losses {
            // The checkpoint has only the total.
            let is_total = losses.len() == 1 && loss.weight == 1.0;
            let saved = self.checkpoint.held_out_loss.filter(|_| is_total);
            let row = match self.records() {
                Some(records) => [
                    nats(records.losses.get(loss.name).copied()),
                    share(records.accuracies.get(loss.name)),
                    nats(records.held_out.get(loss.name).copied().or(saved)),
                    share(records.held_out_accuracies.get(loss.name)),
                ],
                None => [String::new(), String::new(), nats(saved), String::new()],
            };
            if row.iter().any(|cell| !cell.is_empty()) {
                rows.push(std::iter::once(loss.title.to_owned()).chain(row).collect());
            }
        }
        for extra in self.records().into_iter().flat_map(|records| &records.extra) {
            for loss in &losses {
                if let Some(value) = extra.losses.get(loss.name) {
                    let title = format!("{} ({})", loss.title, extra.name);
                    let accuracy = share(extra.accuracies.get(loss.name));
                    rows.push(vec![title, String::new(), String::new(), nats(Some(*value)), accuracy]);
                }
            }
        }
        if rows.len() == 1 {
            return Vec::new();
        }
        let mut notes = Vec::new();
        if let Some(records) = self.records() {
            notes.push("Training figures are means of the last 20 steps.".to_owned());
            if let (Some(step), Some(samples)) = (records.held_out_step, records.held_out_samples) {
                notes.push(format!("Held-out figures are from {samples} samples after step {step}."));
            }
            let baseline = records.unigram_entropy.map(|nats| format!("A unigram model has a loss of {nats:.4} nats."));
            notes.extend(baseline);
        }
        let mut blocks = vec![Block::Heading("Results".to_owned()), filled(rows)];
        blocks.extend((!notes.is_empty()).then(|| Block::Paragraph(notes.join(" "))));
        blocks
    }
}

/// Number of samples of a global batch.
fn batch(stage: &Stage) -> String {
    match stage.batch_ramp {
        Some(ramp) => format!("{} to {} samples over {} steps", ramp.start, stage.global_batch, ramp.steps),
        None => format!("{} samples", stage.global_batch),
    }
}

/// Name of a value in the configuration.
fn key(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Describes a teacher with its losses.
fn of_teacher(teacher: &Teacher) -> String {
    let Teacher { from, temperature, soft_target_weight, cosine_weight, masked_language_weight, .. } = teacher;
    format!(
        "{from}: weights {soft_target_weight} of the soft targets (temperature {temperature}), {cosine_weight} of the cosine loss, \
         {masked_language_weight} of masked language modeling"
    )
}
