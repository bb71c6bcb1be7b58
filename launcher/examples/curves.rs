//! Draws the loss curves of a run: `cargo run --release --example curves -- RUN OUTPUT.svg`.
//!
//! Shows the training loss of the main objective, the held-out loss, the unigram baseline, restarts after failures and
//! growth of the model. Steps that a restart repeated are drawn once, as the last attempt recorded them.

use std::collections::BTreeMap;
use std::error::Error;

use lambert::decide::RestartHistory;
use lambert::decide::history::Restart;
use lambert_config::{Layers, RunConfig};
use lambert_control::{EventKind, StepRecord};
use lambert_store::Store;
use lambert_store::records::StepRecords;
use lambert_store::run::{self, CONFIG, COORDINATOR, RECORDS};
use plotters::chart::SeriesAnno;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
/// Step and loss in nats.
type Point = (f64, f64);

/// Size of the image, pixels.
const SIZE: (u32, u32) = (900, 420);
/// Number of SVG units per pixel. Coordinates are whole numbers of units.
const UNITS: u32 = 4;
/// Maximum number of points in a line.
const POINTS: usize = 1500;
/// Number of points before and after a point that the smoothed line includes in the mean.
const SMOOTHING: usize = 12;

const TRAINING: RGBColor = RGBColor(176, 203, 235);
const SMOOTHED: RGBColor = RGBColor(24, 90, 169);
const HELD_OUT: RGBColor = RGBColor(217, 95, 2);
const BASELINE: RGBColor = RGBColor(90, 90, 90);
const MARK: RGBColor = RGBColor(120, 30, 110);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, output] = arguments.as_slice() else { return Err("expected RUN OUTPUT.svg".into()) };
    let curves = Curves::read(&Store::open(url)?)?;
    let mut svg = String::new();
    curves.draw(&mut svg)?;
    let size = |factor: u32| format!("width=\"{}\" height=\"{}\"", SIZE.0 * factor, SIZE.1 * factor);
    std::fs::write(output, svg.replacen(&size(UNITS), &size(1), 1))?;
    Ok(())
}

/// Content of the image.
struct Curves {
    /// Name of the main objective, such as `mlm`.
    objective: String,
    /// Training losses by stage.
    training: Vec<Vec<Point>>,
    held_out: Vec<Point>,
    /// Unigram entropy of the held-out data.
    baseline: Option<f64>,
    /// Steps to mark, each with the lines of its label.
    marks: Vec<(f64, Vec<String>)>,
}

impl Curves {
    fn read(store: &Store) -> Result<Self> {
        let records = StepRecords::<StepRecord>::read(store)?;
        let history: Vec<&StepRecord> = records.effective().into_iter().map(|recorded| &recorded.record).collect();
        let objective = history.first().ok_or("the run has no step records")?.scores.main().name;
        let stages = history.chunk_by(|a, b| a.stage == b.stage);
        let training = stages.map(|stage| stage.iter().map(|record| (record.step as f64, record.scores.main().loss)));
        let training = training.map(|stage| stage.filter(|(_, loss)| loss.is_finite()).collect()).collect();
        let (held_out, baseline) = evaluations(store)?;
        let mut marks = restarts(store, &records)?;
        marks.extend(growth(store, &history)?);
        Ok(Self { objective: objective.to_uppercase(), training, held_out, baseline, marks })
    }
}

/// Reads the held-out losses and the unigram baseline. If several attempts evaluated the same step, the last evaluation
/// counts.
fn evaluations(store: &Store) -> Result<(Vec<Point>, Option<f64>)> {
    let objects = store.list(RECORDS)?.into_iter();
    let mut objects: Vec<_> =
        objects.filter_map(|object| Some((run::position_of_records(&object.path)?, object.path))).collect();
    objects.sort();
    let (mut losses, mut baseline) = (BTreeMap::new(), None);
    for (_, path) in objects {
        let text = store.get(&path)?;
        for line in text.split(|byte| *byte == b'\n') {
            if let Ok(EventKind::Evaluation(evaluation)) = serde_json::from_slice(line) {
                losses.insert(evaluation.step, evaluation.scores.main().loss);
                baseline = Some(evaluation.unigram_entropy);
            }
        }
    }
    Ok((losses.into_iter().map(|(step, loss)| (step as f64, loss)).collect(), baseline))
}

/// Marks each failure, with the step from which the next attempt continued.
fn restarts(store: &Store, records: &StepRecords<StepRecord>) -> Result<Vec<(f64, Vec<String>)>> {
    let history: RestartHistory = match store.get(COORDINATOR) {
        Ok(bytes) => serde_json::from_slice(&bytes)?,
        Err(error) if error.is_not_found() => RestartHistory::default(),
        Err(error) => return Err(error.into()),
    };
    let mark = |restart: &Restart| {
        let end = if restart.cause.contains("killed") { "killed" } else { "failed" };
        let first = records.all.iter().find(|recorded| recorded.position.attempt > restart.attempt);
        let mut label = vec![format!("worker {end} at step {}", restart.step)];
        label.extend(first.map(|first| format!("restarted from step {}", first.position.step - 1)));
        (restart.step as f64, label)
    };
    Ok(history.restarts.iter().map(mark).collect())
}

/// Marks the start of each stage that has more layers than the previous stage.
fn growth(store: &Store, history: &[&StepRecord]) -> Result<Vec<(f64, Vec<String>)>> {
    let text = String::from_utf8(store.get(CONFIG)?.to_vec())?;
    let config: RunConfig = Layers::default().parse(&text, CONFIG)?;
    let layers = |record: &StepRecord| {
        let stage = config.stage.iter().position(|stage| stage.name == record.stage);
        stage.map(|stage| config.depth(stage)).unwrap_or_default()
    };
    let pairs = history.windows(2).map(|pair| (pair[0], layers(pair[0]), layers(pair[1])));
    let grown = pairs.filter(|(_, before, after)| before < after);
    Ok(grown
        .map(|(last, before, after)| (last.step as f64, vec![format!("grown from {before} to {after} layers")]))
        .collect())
}

impl Curves {
    fn draw(&self, svg: &mut String) -> Result<()> {
        let losses =
            || self.training.iter().flatten().chain(&self.held_out).map(|(_, loss)| *loss).chain(self.baseline);
        let bottom = losses().fold(f64::INFINITY, f64::min).floor();
        let top = losses().fold(f64::NEG_INFINITY, f64::max).ceil();
        let last = self.training.iter().flatten().map(|(step, _)| *step).fold(1.0, f64::max);

        let area = SVGBackend::with_string(svg, (SIZE.0 * UNITS, SIZE.1 * UNITS)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(units(14))
            .margin_right(units(26))
            .x_label_area_size(units(52))
            .y_label_area_size(units(54))
            .build_cartesian_2d(0.0..last, bottom..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(RGBColor(228, 228, 228).stroke_width(UNITS))
            .axis_style(BLACK.stroke_width(UNITS))
            .set_all_tick_mark_size(units(4))
            .label_style(font(18))
            .axis_desc_style(font(19))
            .x_desc("step")
            .y_desc("loss (nats)")
            .x_label_formatter(&|step| format!("{step}"))
            .y_label_formatter(&|loss| format!("{loss}"))
            .y_labels((top - bottom) as usize + 1)
            .draw()?;
        self.draw_marks(&mut chart, bottom..top)?;
        self.draw_losses(&mut chart, last)?;
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerLeft)
            .label_font(font(18))
            .legend_area_size(units(30))
            .margin(units(8))
            .background_style(WHITE)
            .draw()?;
        area.present()?;
        Ok(())
    }

    fn draw_losses(&self, chart: &mut Chart<'_>, last: f64) -> Result<()> {
        for (index, stage) in self.training.iter().enumerate() {
            let line = TRAINING.stroke_width(UNITS);
            let drawn = chart.draw_series(LineSeries::new(thinned(stage), line))?;
            legend(drawn, (index == 0).then(|| format!("training {} loss", self.objective)), line);
        }
        for (index, stage) in self.training.iter().enumerate() {
            let line = SMOOTHED.stroke_width(UNITS * 5 / 2);
            let drawn = chart.draw_series(LineSeries::new(thinned(&smoothed(stage)), line))?;
            legend(drawn, (index == 0).then(|| format!("mean of {} steps", 2 * SMOOTHING + 1)), line);
        }
        if let Some(baseline) = self.baseline {
            let line = BASELINE.stroke_width(UNITS * 3 / 2);
            let ends = [(0.0, baseline), (last, baseline)];
            chart.draw_series(DashedLineSeries::new(ends, units(8), units(6), line))?;
            let style = font(18).color(&BASELINE).pos(Pos::new(HPos::Right, VPos::Bottom));
            let text = Text::new("unigram baseline", (-units(4), -units(4)), style);
            chart.draw_series([EmptyElement::at((last, baseline)) + text])?;
        }
        let point = |point: &Point| Circle::new(*point, units(4), HELD_OUT.filled());
        let drawn = chart.draw_series(self.held_out.iter().map(point))?;
        drawn
            .label(format!("held-out {} loss", self.objective))
            .legend(|(x, y)| Circle::new((x + units(12), y), units(4), HELD_OUT.filled()));
        Ok(())
    }

    fn draw_marks(&self, chart: &mut Chart<'_>, losses: std::ops::Range<f64>) -> Result<()> {
        for (step, label) in &self.marks {
            let ends = [(*step, losses.start), (*step, losses.end)];
            chart.draw_series(LineSeries::new(ends, MARK.stroke_width(UNITS * 3 / 2)))?;
            for (index, line) in label.iter().enumerate() {
                let offset = (units(7), units(2) + units(20) * index as i32);
                let text = Text::new(line.clone(), offset, font(18).color(&MARK));
                chart.draw_series([EmptyElement::at((*step, losses.end)) + text])?;
            }
        }
        Ok(())
    }
}

/// Converts pixels to SVG units.
fn units(pixels: i32) -> i32 {
    pixels * UNITS as i32
}

fn font(pixels: i32) -> TextStyle<'static> {
    ("sans-serif", units(pixels)).into_text_style(&SIZE).color(&BLACK)
}

fn legend(series: &mut SeriesAnno<'_, SVGBackend<'_>>, label: Option<String>, line: ShapeStyle) {
    if let Some(label) = label {
        series.label(label).legend(move |(x, y)| PathElement::new([(x, y), (x + units(24), y)], line));
    }
}

/// Returns every n-th point. The number n is chosen so that a line has at most [`POINTS`] points.
fn thinned(points: &[Point]) -> impl Iterator<Item = Point> {
    points.iter().copied().step_by(points.len().div_ceil(POINTS).max(1))
}

/// Replaces each loss by the mean of the losses of the point and its neighbors.
fn smoothed(points: &[Point]) -> Vec<Point> {
    let mean = |window: &[Point]| window.iter().map(|(_, loss)| loss).sum::<f64>() / window.len() as f64;
    let around = |index: usize| &points[index.saturating_sub(SMOOTHING)..points.len().min(index + SMOOTHING + 1)];
    points.iter().enumerate().map(|(index, (step, _))| (*step, mean(around(index)))).collect()
}
