//! Polls the store of a run and keeps its latest data.

use std::collections::BTreeSet;

use lambert_config::RunConfig;
use lambert_control::{Evaluation, EventKind, ExtraEvaluation};
use lambert_dataset::tokenizer::TokenTable;
use lambert_store::records::{RefreshReason, StepRecords};
use lambert_store::run::AttemptStep;
use lambert_store::{Store, StoredVocabulary};
use serde_json::{Map, Value, json};

use super::info::Info;
use super::marks::{self, ChartMark, DescribedFailure, StageBand};
use super::point::Point;
use super::progress::StepFlops;
use super::series::{Series, number};
use super::steps::Steps;
use crate::status::{RunState, Status, stored};
use crate::stored_config;

/// Maximum number of steps kept from the status, whose records are not in the store yet.
const LIVE: usize = 2000;
/// Maximum number of undone buckets and of evaluations.
const MAX_POINTS: usize = 1000;

/// Data of a run for the page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    pub info: Info,
    pub curves: Curves,
}

/// Curves and marks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curves {
    pub series: Series,
    /// Steps that a later attempt repeated or that were rolled back.
    pub undone: Value,
    /// Held-out losses and accuracies by step.
    pub evaluations: Value,
    pub stages: Vec<StageBand>,
    pub marks: Vec<ChartMark>,
}

/// Reader of a run.
#[derive(Debug)]
pub struct WatchedRun {
    store: Store,
    /// Stored data of the run; its records are moved to `steps`.
    records: StepRecords<Point>,
    steps: Steps,
    /// Damaged lines that were logged.
    logged: usize,
    /// The last status.
    status: Option<Status>,
    /// Configuration and vocabulary size of an attempt.
    config: Option<(u32, RunConfig)>,
    /// Text of a configuration of an attempt that cannot be parsed.
    invalid_config: Option<(u32, String)>,
    vocabulary: Option<usize>,
    /// Steps from the status that are newer than the stored records.
    live: Vec<(AttemptStep, Point)>,
    /// Failures among the last marks.
    failures: Vec<DescribedFailure>,
    last: Snapshot,
}

impl WatchedRun {
    pub fn new(store: Store) -> Self {
        let mut last =
            Snapshot { info: Info::new(store.url(), &title(store.url(), None), None), ..Snapshot::default() };
        last.info.notes = vec!["reading the run".to_owned()];
        Self {
            store,
            records: StepRecords::default(),
            steps: Steps::default(),
            logged: 0,
            status: None,
            config: None,
            invalid_config: None,
            vocabulary: None,
            live: Vec::new(),
            failures: Vec::new(),
            last,
        }
    }

    /// The data of the last refresh.
    pub fn last(&self) -> &Snapshot {
        &self.last
    }

    /// Reads what is new and returns the run's data. If the store cannot be read, they are the last ones with a note.
    pub fn refresh(&mut self) -> &Snapshot {
        let read = self.read();
        let title = title(self.store.url(), self.status.as_ref());
        let mut info = Info::new(self.store.url(), &title, self.status.as_ref());
        if info.objective.is_empty() {
            info.objective.clone_from(&self.last.info.objective);
        }
        match read {
            Ok(has_changed) => {
                if has_changed {
                    self.last.curves = self.curves();
                }
                info.notes.extend(self.damage());
            }
            Err(note) => info.notes.push(format!("{note}; showing the last data")),
        }
        self.last.info = info;
        &self.last
    }

    /// Reads status and records; true if there are new steps. The error is a note for the user.
    fn read(&mut self) -> Result<bool, String> {
        let cannot = |error: &dyn std::fmt::Display| format!("cannot read the run: {error}");
        match stored::read(&self.store).map_err(|error| cannot(&error))? {
            Some(status) => self.status = Some(status),
            None if self.status.is_some() => return Err("the run's folder or its status is gone".to_owned()),
            None => {}
        }
        self.read_config();
        let had = self.steps.last();
        let mut has_changed = self.read_records().map_err(|error| cannot(&error))?;
        if self.steps.last() == 0 && had > 0 {
            return Err("the run's step records are gone".to_owned());
        }
        has_changed |= self.read_live();
        let failures = self.status.as_ref().map(failures).unwrap_or_default();
        has_changed |= self.failures != failures;
        self.failures = failures;
        Ok(has_changed)
    }

    /// Reads new records into `steps`; true if there are any, or a rollback.
    fn read_records(&mut self) -> Result<bool, lambert_store::Error> {
        let steps = &mut self.steps;
        let config = self.config.as_ref().map(|(_, config)| config);
        let mut flops = StepFlops::new(config, self.vocabulary);
        let mut last_valid = None;
        let mut has_changed = self.records.refresh_in_parts(&self.store, |records, reason| {
            if reason == RefreshReason::Reread {
                *steps = Steps::default();
                return;
            }
            let is_first = last_valid.is_none();
            let last_valid = last_valid.get_or_insert_with(|| records.last_valid_steps());
            // An undone step that is already in a cell is detected below.
            if is_first && steps.remove_undone(last_valid).is_err() {
                return;
            }
            for recorded in records.all.drain(..) {
                let position = recorded.position;
                let valid = last_valid.get(&position.attempt).copied().unwrap_or(u64::MAX);
                steps.add(position, recorded.record, valid, &mut flops);
            }
        })?;
        if steps.remove_undone(&self.records.last_valid_steps()).is_err() {
            tracing::info!(
                "{}: an attempt undid steps that were already aggregated; rereading all step records",
                self.store.url()
            );
            (self.records, self.steps) = (StepRecords::default(), Steps::default());
            has_changed = self.read_records()?;
        }
        let damaged = &self.records.damaged;
        damaged.iter().skip(self.logged).for_each(|damaged| tracing::warn!("{damaged}; omitted"));
        self.logged = damaged.len();
        Ok(has_changed)
    }

    /// Reads configuration and vocabulary at the start of an attempt. Without them, FLOPs and layers are not known.
    fn read_config(&mut self) {
        let attempt = self.status.as_ref().map_or(0, |status| status.attempt);
        if self.config.as_ref().is_some_and(|(read, _)| *read == attempt) {
            return;
        }
        let text = stored_config::text(&self.store).ok().flatten().map(|text| (attempt, text));
        if text.is_some() && self.invalid_config == text {
            return;
        }
        let config = text.as_ref().and_then(|(_, text)| stored_config::parse(text, &self.store).ok());
        self.invalid_config = text.filter(|_| config.is_none());
        self.config = config.map(|config| (attempt, config));
        let vocabulary = StoredVocabulary::read(&self.store).ok();
        self.vocabulary = vocabulary.and_then(|vocabulary| TokenTable::count(&vocabulary.bytes));
    }

    /// Takes the step of the status, if its record is not stored yet; true if it is new.
    fn read_live(&mut self) -> bool {
        let Some(status) = &self.status else { return false };
        let recorded = self.records.saves().last().copied();
        let before = self.live.len();
        let attempt = status.attempt;
        self.live.retain(|(position, _)| position.attempt == attempt && Some(*position) > recorded);
        let mut has_changed = self.live.len() != before;
        if let Some(record) = &status.latest.record {
            let position = AttemptStep { attempt, step: record.step };
            let last = self.live.last().map(|(position, _)| *position).or(recorded);
            // At the start of an attempt, the status contains the last record of the previous one.
            let is_of_attempt = status.state == RunState::Training && record.step == status.progress.step;
            if is_of_attempt && Some(position) > last {
                self.live.push((position, Point::from(record)));
                has_changed = true;
            }
        }
        if self.live.len() > LIVE {
            let mut index = 0;
            self.live.retain(|_| {
                index += 1;
                index % 2 == 0
            });
        }
        has_changed
    }

    /// A note about damaged records.
    fn damage(&self) -> Option<String> {
        let damaged = &self.records.damaged;
        let first = damaged.first()?;
        let more = if damaged.len() > 1 { format!(" (and {} more)", damaged.len() - 1) } else { String::new() };
        Some(format!("damaged records are omitted: {first}{more}"))
    }

    fn curves(&self) -> Curves {
        let config = self.config.as_ref().map(|(_, config)| config);
        let (series, timeline) = self.steps.effective(&self.live, &mut StepFlops::new(config, self.vocabulary));
        let mut undone = self.steps.undone(&self.live);
        undone.buckets.drain(..undone.buckets.len().saturating_sub(MAX_POINTS));
        let stages = timeline.stages(config);
        let marks = [
            marks::checkpoints(&self.records.saves(), self.records.rollbacks()),
            marks::failures(&self.failures, self.records.rollbacks()),
            marks::growth(&stages),
            timeline.skipped().to_vec(),
        ];
        Curves { undone: undone.means(), evaluations: self.evaluations(), series, stages, marks: marks.concat() }
    }

    fn evaluations(&self) -> Value {
        let events = self.records.effective_events();
        let evaluations = events.into_iter().filter_map(|event| match serde_json::from_str(&event.text) {
            Ok(EventKind::Evaluation(evaluation)) => Some(evaluation),
            _ => None,
        });
        let evaluations: Vec<_> = evaluations.collect();
        // Of many, every second, third, ... and the last.
        let stride = evaluations.len().div_ceil(MAX_POINTS).max(1);
        let chosen = || evaluations.iter().rev().step_by(stride).rev();
        let mut columns = Map::new();
        columns.insert("step".into(), chosen().map(|evaluation| Value::from(evaluation.step)).collect());
        columns.insert("loss".into(), chosen().map(|evaluation| number(evaluation.scores.main().loss, 7)).collect());
        let total = |evaluation: &Evaluation| number(evaluation.total_loss(), 7);
        columns.insert("total".into(), chosen().map(total).collect());
        let baseline = evaluations.last().map(|evaluation| evaluation.unigram_entropy);
        let names: BTreeSet<&String> = evaluations.iter().flat_map(|evaluation| evaluation.extra.keys()).collect();
        let extra: Map<String, Value> = names
            .into_iter()
            .map(|name| {
                let column = |value: fn(&ExtraEvaluation) -> f64| -> Value {
                    let cell =
                        |evaluation: &Evaluation| evaluation.extra.get(name).map(|extra| number(value(extra), 7));
                    chosen().map(|evaluation| cell(evaluation).unwrap_or_default()).collect()
                };
                let losses = column(|extra| extra.scores.main().loss);
                (name.clone(), json!({ "loss": losses, "total": column(ExtraEvaluation::total_loss) }))
            })
            .collect();
        json!({ "columns": columns, "unigram_entropy": baseline, "extra": extra })
    }
}

fn failures(status: &Status) -> Vec<DescribedFailure> {
    let failures = status.restarts.failures.iter();
    failures.map(|failure| (failure.clone(), failure.recovery(status))).collect()
}

/// Name of the run in its last status; the last part of its URL before that.
fn title(url: &str, status: Option<&Status>) -> String {
    let last = url.trim_end_matches('/').rsplit('/').next().unwrap_or(url);
    let name = status.map(|status| status.name.as_str()).filter(|name| !name.is_empty() && *name != last);
    name.map_or_else(|| last.to_owned(), |name| format!("{last} ({name})"))
}

#[cfg(test)]
mod tests {
    use lambert_store::run::CONFIG;

    use super::*;
    use crate::metrics::history::tests::store;

    #[test]
    fn an_invalid_configuration_is_parsed_once() {
        let store = store("invalid-config");
        let mut run = WatchedRun::new(store.clone());
        store.put(CONFIG, "unknown = 1".into()).unwrap();
        run.read_config();
        assert_eq!((run.config.is_none(), run.invalid_config.clone()), (true, Some((0, "unknown = 1".to_owned()))));
        // Only a parse reads the vocabulary.
        run.vocabulary = Some(7);
        run.read_config();
        assert_eq!(run.vocabulary, Some(7));
        store.put(CONFIG, "[[stage]]\nname = \"a\"\ndata = \"d\"\nsteps = 1\n".into()).unwrap();
        run.read_config();
        assert_eq!((run.config.is_some(), run.invalid_config.is_none()), (true, true));
    }
}
