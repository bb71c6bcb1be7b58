//! Evaluation of a model on a held-out dataset.

use lambert_collective::local;
use lambert_plan::objectives::{self, TargetKind};
use lambert_progress::{Progress, Unit};

use crate::error::Error;
use crate::inference::loaded_model::LoadedModel;
use crate::train::evaluate::{self, EvalOutcome};
use crate::worker::output;

/// Evaluates a model on a held-out dataset and prints the losses and accuracies. `samples` is the maximum number of samples; 0: all.
///
/// # Errors
/// The dataset does not fit the model or cannot be read, or the device fails.
pub fn eval(model: &LoadedModel, data: &str, samples: u64, json: bool, progress: Progress) -> Result<(), Error> {
    let request = model.eval_request(data, samples)?;
    progress.phase("evaluating", Unit::Count("samples"));
    progress.set_total(request.samples());
    let update = |samples| {
        progress.set_done(samples);
        false
    };
    let evaluated = evaluate::evaluate(&model.objective(), &mut *local::single().group, &request, model.step, update)?;
    drop(progress);
    let result = match evaluated {
        EvalOutcome::Completed(evaluation) => evaluation,
        // There is only one rank, so a read failure always includes the error.
        EvalOutcome::Unreadable(Some(unread)) => return Err(Error::Dataset(unread)),
        EvalOutcome::Unreadable(None) | EvalOutcome::Stopped => return Err(Error::NoMoreSamples(model.step)),
    };
    if json {
        return output::line(&serde_json::to_string(&result).map_err(Error::Json)?);
    }
    let mut lines = vec![
        format!("step             {}", result.step),
        format!("samples          {}", result.samples),
        format!("masked tokens    {}", result.masked_tokens),
    ];
    for loss in objectives::losses(&model.config.objective) {
        let (title, Some(score)) = (loss.title, result.scores.get(loss.name)) else { continue };
        lines.push(format!("{:<17}{:.4} nats", format!("{title} loss"), score.loss));
        if loss.targets == TargetKind::MaskedTokens {
            let entropy = result.unigram_entropy;
            lines.push(format!("  baseline       {entropy:.4} nats (unigram entropy of the dataset)"));
        }
        let share = |name: &str, share: f64| format!("{:<17}{:.2}%", format!("{title} {name}"), 100.0 * share);
        lines.extend(score.accuracy.map(|accuracy| share("accuracy", accuracy)));
        lines.extend(score.precision.map(|precision| share("precision", precision)));
        lines.extend(score.recall.map(|recall| share("recall", recall)));
    }
    output::line(&lines.join("\n"))
}
