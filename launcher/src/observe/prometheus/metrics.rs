//! The metrics of a run's status.

use std::fmt;
use std::sync::atomic::AtomicU64;

use lambert_control::{GpuStatus, StepRecord};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::Snapshot;
use crate::status::goodput::TimeCategory;
use crate::status::{RankStatus, RunState, Status};

/// Labels of a metric: names and values.
type Labels = Vec<(&'static str, String)>;

/// States, one of which has the value 1.
const STATES: [RunState; 7] = [
    RunState::Starting,
    RunState::Training,
    RunState::Restarting,
    RunState::Stopping,
    RunState::Stopped,
    RunState::Finished,
    RunState::Failed,
];

/// Metric of a GPU: name, help and value.
type GpuMetric = (&'static str, &'static str, fn(&GpuStatus) -> Option<f64>);

/// Metrics of the GPU of each rank.
const GPU_METRICS: [GpuMetric; 6] = [
    ("gpu_utilization_ratio", "Share of the time in which a kernel ran", |gpu| gpu.sample.utilization),
    ("gpu_memory_used_bytes", "GPU memory in use", |gpu| gpu.sample.memory_used.map(|bytes| bytes as f64)),
    ("gpu_memory_total_bytes", "GPU memory", |gpu| gpu.sample.memory_total.map(|bytes| bytes as f64)),
    ("gpu_power_watts", "GPU power", |gpu| gpu.sample.power),
    ("gpu_temperature_celsius", "GPU temperature", |gpu| gpu.sample.temperature),
    ("gpu_last_xid", "Number of the newest Xid error in this attempt", |gpu| gpu.xids.last().map(|xid| *xid as f64)),
];

/// Formats the metrics in the OpenMetrics format.
pub fn text(snapshot: &Snapshot) -> Result<String, fmt::Error> {
    let mut metrics = Metrics(Registry::with_prefix("lambert"));
    let status = &snapshot.status;
    metrics.run(snapshot);
    if let Some(record) = &status.latest.record {
        metrics.step(record);
    }
    metrics.restarts(status);
    metrics.gpus(&status.workers.ranks);
    metrics.goodput(status);
    metrics.times(snapshot);
    let mut text = String::new();
    encode(&mut text, &metrics.0)?;
    Ok(text)
}

/// Escapes a label's value, which prometheus-client writes as it is.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn gpu_labels(rank: &RankStatus, gpu: &GpuStatus) -> Labels {
    let (number, index) = (rank.rank.to_string(), gpu.index.to_string());
    vec![("rank", number), ("host", escaped(&rank.host)), ("gpu", index), ("uuid", escaped(&gpu.uuid))]
}

struct Metrics(Registry);

impl Metrics {
    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.0.register(name, help, ConstGauge::new(value));
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.0.register(name, help, ConstCounter::new(value));
    }

    /// A gauge for each value of a label.
    fn family(&mut self, name: &str, help: &str, label: &'static str, values: impl Iterator<Item = (String, f64)>) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (of, value) in values {
            family.get_or_create(&vec![(label, escaped(&of))]).set(value);
        }
        self.0.register(name, help, family);
    }

    fn run(&mut self, Snapshot { url, status, .. }: &Snapshot) {
        let labels: Labels = vec![
            ("name", escaped(&status.name)),
            ("url", escaped(url)),
            ("version", lambert_control::version_text().to_string()),
        ];
        self.0.register("run", "The run and the version of its coordinator", Info::new(labels));
        let states = STATES.into_iter().map(|state| (state.to_string(), f64::from(u8::from(state == status.state))));
        self.family("state", "1 for the current state of the run, 0 for all other states", "state", states);
        let progress = &status.progress;
        self.gauge("step", "Completed steps", progress.step as f64);
        self.gauge("steps", "Steps of all stages", progress.steps as f64);
        self.gauge("samples_per_second", "Samples per second, averaged over recent steps", progress.samples_per_second);
        if let Some(seconds) = progress.seconds_left {
            self.gauge("left_seconds", "Estimated seconds until completion", seconds);
        }
    }

    fn step(&mut self, record: &StepRecord) {
        self.gauge("loss", "Total loss of the last step, nats", record.loss);
        let losses = record.scores.iter().map(|score| (score.name.clone(), score.loss));
        self.family("training_loss", "Losses of the last step, nats", "loss", losses);
        self.gauge("learning_rate", "Learning rate of the last step", record.update.learning_rate);
        if let Some(norm) = record.update.grad_norm {
            self.gauge("gradient_norm", "L2 norm of the last gradient before clipping", norm);
        }
        let times = &record.times;
        self.gauge("step_seconds", "Duration of the last step", times.seconds);
        self.gauge("data_wait_seconds", "Waiting for samples in the last step", times.data_wait);
        self.gauge("communication_seconds", "Exposed communication in the last step", times.communication);
        let throughput = &record.throughput;
        self.gauge("tokens_per_second", "Tokens per second of the last step", throughput.tokens_per_second);
        self.gauge("flops_utilization", "Share of the peak FLOP/s in the last step", throughput.flops_utilization);
        if let Some(bytes) = record.peak_memory {
            self.gauge("peak_memory_bytes", "Peak memory of the rank with the highest peak", bytes as f64);
        }
        self.counter("skipped_updates", "Updates skipped because they were not finite", record.skipped.updates);
        self.counter("skipped_samples", "Samples skipped", record.skipped.samples);
    }

    fn restarts(&mut self, status: &Status) {
        if let Some(evaluation) = &status.latest.evaluation {
            let losses = evaluation.scores.iter().map(|score| (score.name.clone(), score.loss));
            self.family("evaluation_loss", "Held-out losses, nats", "loss", losses);
            let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
            for (dataset, extra) in &evaluation.extra {
                for score in extra.scores.iter() {
                    let labels = vec![("dataset", escaped(dataset)), ("loss", escaped(&score.name))];
                    family.get_or_create(&labels).set(score.loss);
                }
            }
            if !evaluation.extra.is_empty() {
                self.0.register("evaluation_extra_loss", "Losses on extra held-out datasets, nats", family);
            }
        }
        self.gauge("attempt", "Current attempt", f64::from(status.attempt));
        self.counter("restarts", "Restarts under this coordinator", status.restarts.count);
        self.gauge("ranks", "Ranks that have reported in this attempt", status.workers.ranks.len() as f64);
        let silent = status.workers.ranks.iter().map(|rank| rank.seconds_since_heartbeat).max_by(f64::total_cmp);
        if let Some(silent) = silent {
            self.gauge("oldest_heartbeat_seconds", "Longest time since the last report of any rank", silent);
        }
        self.gauge("refused_requests", "Requests refused by the control server", status.workers.refused as f64);
    }

    /// A gauge for each rank whose GPU has the value.
    fn gpus(&mut self, ranks: &[RankStatus]) {
        for (name, help, value) in GPU_METRICS {
            let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
            let gpus = ranks.iter().filter_map(|rank| Some((rank, rank.gpu.as_ref()?)));
            let values: Vec<(Labels, f64)> =
                gpus.filter_map(|(rank, gpu)| Some((gpu_labels(rank, gpu), value(gpu)?))).collect();
            for (labels, value) in &values {
                family.get_or_create(labels).set(*value);
            }
            if !values.is_empty() {
                self.0.register(name, help, family);
            }
        }
    }

    fn goodput(&mut self, status: &Status) {
        let seconds = TimeCategory::ALL.map(|category| (category.name().to_owned(), status.goodput.of(category)));
        let help = "Wall-clock seconds since the first start of the run";
        self.family("time_seconds", help, "category", seconds.into_iter());
        self.gauge("goodput_ratio", "Productive share of the wall-clock time", status.goodput.share());
    }

    fn times(&mut self, snapshot: &Snapshot) {
        let times = [
            ("last_step_timestamp_seconds", "Time of the last step", snapshot.last_step),
            ("last_checkpoint_timestamp_seconds", "Time of the last checkpoint", snapshot.last_checkpoint),
        ];
        for (name, help, time) in times {
            if let Some(time) = time {
                self.gauge(name, help, time);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lambert_control::{GpuSample, Score, SkipCounts};

    use super::*;

    #[test]
    fn a_status_becomes_open_metrics() {
        let scores = [Score::new("mlm", 6.5, None)].into_iter().collect();
        let skipped = SkipCounts { updates: 2, samples: 32 };
        let peak_memory = Some(1 << 30);
        let record = StepRecord { step: 7, loss: f64::NAN, scores, skipped, peak_memory, ..StepRecord::default() };
        let mut status = Status { name: "a \"b\"\n\\".to_owned(), state: RunState::Training, ..Status::default() };
        (status.progress.step, status.latest.record) = (7, Some(record));
        let sample = GpuSample { power: Some(610.5), ..GpuSample::default() };
        let gpu =
            Some(GpuStatus { index: 3, uuid: "u".to_owned(), sample, xids: vec![79, 45], ..GpuStatus::default() });
        let (host, phase) = ("a".to_owned(), String::new());
        status.workers.ranks =
            vec![RankStatus { rank: 1, host, pid: 7, step: 7, phase, seconds_since_heartbeat: 0.0, gpu }];
        let snapshot = Snapshot { url: "/runs/a".to_owned(), status, last_step: Some(5.5), last_checkpoint: None };
        let text = text(&snapshot).unwrap();
        let expected = [
            "lambert_run_info{name=\"a \\\"b\\\"\\n\\\\\",url=\"/runs/a\",version=",
            "lambert_state{state=\"training\"} 1.0",
            "lambert_state{state=\"failed\"} 0.0",
            "lambert_step 7.0",
            "lambert_loss NaN",
            "lambert_training_loss{loss=\"mlm\"} 6.5",
            "lambert_peak_memory_bytes 1073741824.0",
            "# TYPE lambert_skipped_updates counter",
            "lambert_skipped_updates_total 2",
            "lambert_time_seconds{category=\"evaluation\"} 0.0",
            "lambert_last_step_timestamp_seconds 5.5",
            "lambert_gpu_power_watts{rank=\"1\",host=\"a\",gpu=\"3\",uuid=\"u\"} 610.5",
            "lambert_gpu_last_xid{rank=\"1\",host=\"a\",gpu=\"3\",uuid=\"u\"} 45.0",
        ];
        for line in expected {
            assert!(text.contains(line), "no {line} in {text}");
        }
        let is_absent = |name: &str| !text.contains(name);
        assert!(text.ends_with("# EOF\n") && is_absent("last_checkpoint") && is_absent("gpu_temperature"), "{text}");
    }
}
