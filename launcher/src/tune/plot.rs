//! SVG plot of the held-out loss against a swept key.

use std::collections::BTreeMap;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::results::Results;

/// Ratio of the largest to the smallest value above which an axis is logarithmic.
const WIDE: f64 = 8.0;
const SIZE: (u32, u32) = (800, 480);

/// A point: value of the key, remaining settings, and mean loss over seeds.
struct Point {
    x: f64,
    series: String,
    y: f64,
}

/// Renders the plot. Returns `None` unless some key other than the seed has two numeric values among the finished runs.
pub fn svg(results: &Results) -> Option<String> {
    let mut recipes: Vec<(Vec<&str>, f64)> =
        results.recipes().iter().filter_map(|recipe| Some((recipe.trials.first()?.recipe(), recipe.mean))).collect();
    // The sort makes the plot independent of the order in which the runs ended.
    recipes.sort_by(|a, b| a.0.cmp(&b.0));
    let key = axis(&recipes)?;
    let points: Vec<Point> = recipes.iter().filter_map(|(settings, mean)| point(settings, *mean, &key)).collect();
    let mut text = String::new();
    draw(&mut text, &key, &points)?;
    Some(text)
}

/// Returns the first key with two different numeric values.
fn axis(recipes: &[(Vec<&str>, f64)]) -> Option<String> {
    let mut keys = recipes.iter().flat_map(|(settings, _)| settings).filter_map(|setting| setting.split_once('='));
    let differs = |key: &str| {
        let mut values: Vec<f64> = recipes.iter().filter_map(|(settings, _)| number(settings, key)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        values.len() > 1
    };
    keys.find(|(key, _)| differs(key)).map(|(key, _)| key.to_owned())
}

fn number(settings: &[&str], key: &str) -> Option<f64> {
    let value = settings.iter().find_map(|setting| setting.strip_prefix(key)?.strip_prefix('='))?;
    value.parse().ok().filter(|value: &f64| value.is_finite())
}

fn point(settings: &[&str], y: f64, key: &str) -> Option<Point> {
    let others = settings.iter().copied().filter(|setting| !setting.starts_with(&format!("{key}=")));
    let series = others.collect::<Vec<_>>().join(" ");
    Some(Point { x: number(settings, key)?, series, y })
}

fn draw(text: &mut String, key: &str, points: &[Point]) -> Option<()> {
    let range = |of: fn(&Point) -> f64| {
        let values = || points.iter().map(of);
        (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max))
    };
    let ((left, right), (low, high)) = (range(|point| point.x), range(|point| point.y));
    let margin = 0.05 * (high - low).max(1e-3);
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE).ok()?;
    let mut builder = ChartBuilder::on(&area);
    builder.margin(16).x_label_area_size(40).y_label_area_size(64);
    let y = low - margin..high + margin;
    // The chart with a logarithmic axis has a different type, so the two branches cannot share a variable.
    if left > 0.0 && right / left >= WIDE {
        let chart = builder.build_cartesian_2d((left * 0.8..right * 1.25).log_scale(), y).ok()?;
        series(chart, key, points)?;
    } else {
        let chart = builder.build_cartesian_2d(left..right, y).ok()?;
        series(chart, key, points)?;
    }
    area.present().ok()
}

fn series<'a, X>(
    mut chart: ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, RangedCoordf64>>,
    key: &str,
    points: &[Point],
) -> Option<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let number = |value: &f64| format!("{value:e}");
    chart.configure_mesh().x_desc(key).y_desc("held-out loss, nats").x_label_formatter(&number).draw().ok()?;
    let mut lines = BTreeMap::<&str, Vec<(f64, f64)>>::new();
    for point in points {
        lines.entry(&point.series).or_default().push((point.x, point.y));
    }
    for (index, (name, mut line)) in lines.into_iter().enumerate() {
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
        let color = Palette99::pick(index).to_rgba();
        let drawn =
            chart.draw_series(LineSeries::new(line.iter().copied(), color.stroke_width(2)).point_size(4)).ok()?;
        if !name.is_empty() {
            drawn.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color));
        }
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw().ok()
}

#[cfg(test)]
mod tests {
    use super::super::results::{Trial, TrialOutcome};
    use super::*;

    fn trial(settings: &[&str], loss: f64, end: TrialOutcome) -> Trial {
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let (held_out, name) = (Some(loss), String::new());
        Trial { name, settings, end, held_out, main: None, training: None, steps: 1, seconds: 1.0 }
    }

    #[test]
    fn each_value_of_the_other_keys_has_a_line() {
        let mut results = Results::default();
        for (kind, rate, loss) in [("lamb", "1e-3", 5.0), ("lamb", "1e-2", 4.5), ("adamw", "1e-3", 4.75)] {
            let settings = [format!("optimizer.kind={kind}"), format!("stage.0.learning_rate={rate}")];
            results.trials.push(trial(&settings.each_ref().map(String::as_str), loss, TrialOutcome::Finished));
        }
        results.trials.push(trial(&["optimizer.kind=wild", "stage.0.learning_rate=1"], 9.0, TrialOutcome::Diverged));
        let svg = svg(&results).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("stage.0.learning_rate") && svg.contains("held-out loss"));
        assert!(svg.contains("optimizer.kind=lamb") && svg.contains("optimizer.kind=adamw"));
        assert!(!svg.contains("optimizer.kind=wild"), "it has no loss to show");
    }

    #[test]
    fn seeds_are_one_point() {
        let runs = [("1", "1", 4.0), ("1", "2", 5.0), ("2", "1", 4.25)];
        let trials = runs.map(|(rate, seed, loss)| {
            trial(&[&format!("rate={rate}"), &format!("run.seed={seed}")], loss, TrialOutcome::Finished)
        });
        let svg = svg(&Results { trials: trials.into() }).unwrap();
        assert!(!svg.contains("run.seed"), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
    }

    #[test]
    fn nonnumeric_keys_are_not_plotted() {
        let results = Results {
            trials: vec![trial(&["a=b"], 1.0, TrialOutcome::Finished), trial(&["a=c"], 2.0, TrialOutcome::Finished)],
        };
        assert_eq!(svg(&results), None);
    }
}
