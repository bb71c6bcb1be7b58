//! Plan as text.

use lambert_plan::estimate::{ScalingPoint, StageEstimate};

use super::Plan;
use crate::text::{align, duration, size};

/// Formats the stages, assumptions, notes, shortages, checkpoints and totals.
pub fn lines(plan: &Plan) -> Vec<String> {
    let head = ["stage", "parameters", "seq_len", "steps", "samples", "epochs", "FLOPs", "GiB/rank", "imbalance"];
    let times = ["s/step", "exposed s", "efficiency", "hours", "rank-hours"];
    let mut rows = vec![head.iter().chain(&times).map(|name| (*name).to_owned()).collect::<Vec<String>>()];
    rows.extend(plan.stages.iter().enumerate().map(|(index, stage)| row(index, stage)));
    let mut lines = align(&rows);
    lines.extend(plan.assumptions.iter().chain(&plan.notes).cloned());
    lines.extend(plan.shortages.iter().map(|shortage| format!("does not fit: {shortage}")));
    let best = plan.best_checkpoint_interval_seconds;
    let best = best.map_or(String::new(), |seconds| format!("; best interval: {} (Young/Daly)", duration(seconds)));
    let saved = plan.checkpoint_save_seconds;
    lines.push(format!("checkpoint: {}, written in about {saved:.1} s{best}", size(plan.checkpoint_bytes)));
    let time = match (&plan.machine, plan.total_hours, plan.total_rank_hours) {
        (Some(name), Some(hours), Some(all)) => {
            let precision = format!("{:?}", plan.precision).to_lowercase();
            format!(", {hours:.2} hours on {} ranks ({all:.1} rank-hours; machine: {name}, {precision})", plan.ranks)
        }
        _ => "; --machine or --bench estimates the hours".to_owned(),
    };
    let optimizer: f64 = plan.stages.iter().map(|stage| stage.optimizer_flops).sum();
    let optimizer = if optimizer > 0.0 { format!(" and {optimizer:.2e} of Muon") } else { String::new() };
    lines.push(format!("total: {:.2e} FLOPs{optimizer}{time}", plan.total_flops));
    lines
}

fn row(index: usize, stage: &StageEstimate) -> Vec<String> {
    let bytes = stage.memory.gpu_bytes.unwrap_or(stage.memory.host_bytes);
    let mut row = vec![
        format!("{index} {}", stage.name),
        stage.parameters.to_string(),
        stage.sequence_length_tokens.to_string(),
        stage.steps.to_string(),
        stage.samples.to_string(),
        stage.epochs.map_or("?".to_owned(), |epochs| format!("{epochs:.2}")),
        format!("{:.2e}", stage.flops),
        format!("{:.1}", bytes as f64 / f64::from(1 << 30)),
        format!("{:.2}", stage.imbalance),
    ];
    row.extend(match &stage.time {
        Some(time) => [
            format!("{:.3}", time.step_seconds),
            format!("{:.4}", time.exposed_seconds),
            format!("{:.2}", time.scaling_efficiency),
            format!("{:.2}", time.hours),
            format!("{:.1}", time.rank_hours),
        ],
        None => std::array::from_fn(|_| "?".to_owned()),
    });
    row
}

/// Formats the table of the run's duration by number of ranks.
pub fn scaling_lines(points: &[ScalingPoint]) -> Vec<String> {
    let mut rows = vec![["ranks", "hours", "rank-hours", "efficiency"].map(str::to_owned).to_vec()];
    rows.extend(points.iter().map(|point| {
        vec![
            point.ranks.to_string(),
            format!("{:.2}", point.hours),
            format!("{:.1}", point.rank_hours),
            format!("{:.2}", point.efficiency),
        ]
    }));
    align(&rows)
}
