//! Curves of runs as SVG.

use std::ops::Range;

use plotters::chart::SeriesAnno;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
/// Result of drawing.
pub type DrawResult<T> = Result<T, Box<dyn std::error::Error>>;
/// Step and value.
pub type Point = (f64, f64);

/// A chart cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw a chart: {0}")]
pub struct ChartError(String);

/// Size of the loss chart, pixels.
const SIZE: (u32, u32) = (900, 420);
/// Size of the other charts, pixels.
pub const SMALL: (u32, u32) = (900, 220);
/// SVG units per pixel. Coordinates are whole numbers of units.
pub const UNITS: u32 = 4;
/// Maximum number of points of a line.
const POINTS: usize = 1500;
/// Largest absolute value of a point. With larger values, the range of an axis would not be finite.
const MAX_VALUE: f64 = 1e300;
/// Steps on each side that the smoothed line averages.
const SMOOTHING: usize = 12;

const BASELINE: RGBColor = RGBColor(90, 90, 90);
const MARK: RGBColor = RGBColor(120, 30, 110);
const UNDONE: RGBColor = RGBColor(200, 200, 200);
/// Colors of the runs: smoothed line, line of single steps, held-out points.
const COLORS: [[RGBColor; 3]; 6] = [
    [RGBColor(24, 90, 169), RGBColor(176, 203, 235), RGBColor(217, 95, 2)],
    [RGBColor(20, 120, 60), RGBColor(180, 220, 190), RGBColor(20, 120, 60)],
    [RGBColor(170, 40, 40), RGBColor(235, 190, 190), RGBColor(170, 40, 40)],
    [RGBColor(110, 70, 160), RGBColor(210, 195, 230), RGBColor(110, 70, 160)],
    [RGBColor(140, 100, 10), RGBColor(230, 215, 170), RGBColor(140, 100, 10)],
    [RGBColor(0, 120, 130), RGBColor(170, 220, 222), RGBColor(0, 120, 130)],
];

/// Colors of the extra held-out datasets of a single run.
const EXTRA_COLORS: [RGBColor; 4] =
    [RGBColor(20, 120, 60), RGBColor(110, 70, 160), RGBColor(140, 100, 10), RGBColor(0, 120, 130)];

/// True if a point can have this value.
pub fn is_drawable(value: f64) -> bool {
    value.abs() <= MAX_VALUE
}

/// Curves of a run.
#[derive(Debug, Default)]
pub struct Curves {
    pub name: String,
    /// Name of the main objective, such as `MLM`.
    pub objective: String,
    /// Training losses by stage.
    pub training: Vec<Vec<Point>>,
    /// Training losses of undone steps.
    pub undone: Vec<Point>,
    pub held_out: Vec<Point>,
    /// Losses on the extra held-out datasets, by the name of the dataset.
    pub extra: Vec<(String, Vec<Point>)>,
    /// Unigram entropy of the held-out data.
    pub baseline: Option<f64>,
    pub learning_rate: Vec<Point>,
    pub gradient_norm: Vec<Point>,
    pub samples_per_second: Vec<Point>,
    /// Failures and growth.
    pub marks: Vec<EventLine>,
}

impl Curves {
    /// All losses in the chart, without those of undone steps.
    fn losses(&self) -> impl Iterator<Item = f64> {
        let extra = self.extra.iter().flat_map(|(_, points)| points);
        self.training.iter().flatten().chain(&self.held_out).chain(extra).map(|(_, loss)| *loss).chain(self.baseline)
    }

    /// Steps of all points and marks in the chart of losses.
    fn steps(&self) -> impl Iterator<Item = f64> {
        let extra = self.extra.iter().flat_map(|(_, points)| points);
        let points = self.training.iter().flatten().chain(&self.undone).chain(&self.held_out).chain(extra);
        points.map(|(step, _)| *step).chain(self.marks.iter().map(|mark| mark.step))
    }
}

/// Vertical line in the chart of losses.
#[derive(Debug)]
pub struct EventLine {
    pub step: f64,
    pub label: String,
}

/// Metric of a small chart.
#[derive(Debug, Clone, Copy)]
pub enum PlottedMetric {
    LearningRate,
    GradientNorm,
    SamplesPerSecond,
}

impl PlottedMetric {
    fn of(self, curves: &Curves) -> &[Point] {
        match self {
            Self::LearningRate => &curves.learning_rate,
            Self::GradientNorm => &curves.gradient_norm,
            Self::SamplesPerSecond => &curves.samples_per_second,
        }
    }
}

/// Draws the training and held-out losses of runs. The marks of failures and growth are drawn for a single run.
///
/// # Errors
/// A failure of the drawing library.
pub fn losses(runs: &[&Curves]) -> Result<String, ChartError> {
    svg(SIZE, |svg| draw_losses(runs, svg))
}

/// Draws one metric of each run against the steps.
///
/// # Errors
/// A failure of the drawing library.
pub fn small(runs: &[&Curves], metric: PlottedMetric, name: &str) -> Result<String, ChartError> {
    svg(SMALL, |svg| draw_small(runs, metric, name, svg))
}

/// Draws a chart of `size` pixels.
///
/// # Errors
/// A failure of the drawing library.
pub fn svg(size: (u32, u32), draw: impl FnOnce(&mut String) -> DrawResult<()>) -> Result<String, ChartError> {
    let mut svg = String::new();
    draw(&mut svg).map_err(|error| ChartError(error.to_string()))?;
    // The viewBox has units; width and height are in pixels.
    let attributes = |factor: u32| format!("width=\"{}\" height=\"{}\"", size.0 * factor, size.1 * factor);
    Ok(svg.replacen(&attributes(UNITS), &attributes(1), 1))
}

fn draw_small(runs: &[&Curves], metric: PlottedMetric, name: &str, svg: &mut String) -> DrawResult<()> {
    let points = || runs.iter().flat_map(|run| metric.of(run));
    let last = points().map(|(step, _)| *step).fold(1.0, f64::max);
    let top = points().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let area = SVGBackend::with_string(svg, (SMALL.0 * UNITS, SMALL.1 * UNITS)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = frame(&area, 0.0..last, 0.0..1.05 * top, name)?;
    for (run, [color, ..]) in runs.iter().zip(COLORS.iter().cycle()) {
        // The axis begins at 0.
        let points = thinned(metric.of(run)).filter(|(_, value)| *value >= 0.0);
        chart.draw_series(LineSeries::new(points, color.stroke_width(UNITS * 3 / 2)))?;
    }
    area.present()?;
    Ok(())
}

fn draw_losses(runs: &[&Curves], svg: &mut String) -> DrawResult<()> {
    let losses = || runs.iter().flat_map(|run| run.losses());
    let bottom = losses().fold(f64::INFINITY, f64::min).floor();
    let top = losses().fold(f64::NEG_INFINITY, f64::max).ceil();
    let range = axis(bottom, top);
    let last = runs.iter().flat_map(|run| run.steps()).fold(1.0, f64::max);
    let area = SVGBackend::with_string(svg, (SIZE.0 * UNITS, SIZE.1 * UNITS)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = frame(&area, 0.0..last, range.clone(), "loss (nats)")?;
    if let [run] = runs {
        draw_marks(&mut chart, &run.marks, range.clone())?;
    }
    for (run, colors) in runs.iter().zip(COLORS.iter().cycle()) {
        draw_run(&mut chart, run, colors, &range, runs.len() > 1)?;
    }
    if let Some(baseline) = runs.first().and_then(|run| run.baseline) {
        draw_baseline(&mut chart, baseline, last)?;
    }
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

/// Range of an axis with these values. Values that are almost equal are at its start. There are no values if `top` is below
/// `bottom`.
fn axis(bottom: f64, top: f64) -> Range<f64> {
    match bottom.abs().max(top.abs()) {
        _ if top < bottom => 0.0..1.0,
        largest if top - bottom > 1e-6 * largest => bottom..top,
        largest => bottom..bottom + largest.max(1.0),
    }
}

fn frame<'a>(
    area: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    steps: Range<f64>,
    values: Range<f64>,
    name: &str,
) -> DrawResult<Chart<'a>> {
    let mut chart = ChartBuilder::on(area)
        .margin(units(14))
        .margin_right(units(26))
        .x_label_area_size(units(52))
        .y_label_area_size(units(74))
        .build_cartesian_2d(steps, values.clone())?;
    let digits = |value: &f64| match values.end {
        end if end < 0.1 => format!("{value:.0e}"),
        end if end < 5.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    };
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
        .y_desc(name)
        .x_label_formatter(&|step| format!("{step}"))
        .y_label_formatter(&digits)
        .y_labels(if values.end - values.start < 20.0 && values.end > 2.0 {
            (values.end - values.start) as usize + 1
        } else {
            5
        })
        .draw()?;
    Ok(chart)
}

fn draw_run(
    chart: &mut Chart<'_>,
    run: &Curves,
    [smooth, single, point]: &[RGBColor; 3],
    range: &Range<f64>,
    is_compared: bool,
) -> DrawResult<()> {
    // Undone steps above the range, such as those of a diverged loss, are not drawn.
    let undone = run.undone.iter().filter(|(_, loss)| range.contains(loss));
    chart.draw_series(undone.map(|point| Circle::new(*point, units(2), UNDONE.filled())))?;
    let name = |text: String| if is_compared { run.name.clone() } else { text };
    for (index, stage) in run.training.iter().enumerate() {
        let line = single.stroke_width(UNITS);
        let drawn = chart.draw_series(LineSeries::new(thinned(stage), line))?;
        legend(drawn, (index == 0 && !is_compared).then(|| format!("training {} loss", run.objective)), line);
    }
    for (index, stage) in run.training.iter().enumerate() {
        let line = smooth.stroke_width(UNITS * 5 / 2);
        let drawn = chart.draw_series(LineSeries::new(thinned(&smoothed(stage)), line))?;
        legend(drawn, (index == 0).then(|| name(format!("mean of {} steps", 2 * SMOOTHING + 1))), line);
    }
    let circle = |at: &Point| Circle::new(*at, units(4), point.filled());
    let (color, drawn) = (*point, chart.draw_series(run.held_out.iter().map(circle))?);
    if !is_compared && !run.held_out.is_empty() {
        drawn
            .label(format!("held-out {} loss", run.objective))
            .legend(move |(x, y)| Circle::new((x + units(12), y), units(4), color.filled()));
    }
    for ((name, points), color) in run.extra.iter().zip(EXTRA_COLORS.iter().cycle()) {
        let color = if is_compared { *point } else { *color };
        let triangle = |at: &Point| TriangleMarker::new(*at, units(6), color.filled());
        let drawn = chart.draw_series(points.iter().map(triangle))?;
        if !is_compared && !points.is_empty() {
            drawn
                .label(format!("held-out {} loss: {name}", run.objective))
                .legend(move |(x, y)| TriangleMarker::new((x + units(12), y), units(6), color.filled()));
        }
    }
    Ok(())
}

fn draw_baseline(chart: &mut Chart<'_>, baseline: f64, last: f64) -> DrawResult<()> {
    let line = BASELINE.stroke_width(UNITS * 3 / 2);
    chart.draw_series(DashedLineSeries::new([(0.0, baseline), (last, baseline)], units(8), units(6), line))?;
    let style = font(18).color(&BASELINE).pos(Pos::new(HPos::Right, VPos::Bottom));
    let text = Text::new("unigram baseline", (-units(4), -units(4)), style);
    chart.draw_series([EmptyElement::at((last, baseline)) + text])?;
    Ok(())
}

fn draw_marks(chart: &mut Chart<'_>, marks: &[EventLine], losses: Range<f64>) -> DrawResult<()> {
    for (index, mark) in marks.iter().enumerate() {
        let ends = [(mark.step, losses.start), (mark.step, losses.end)];
        chart.draw_series(LineSeries::new(ends, MARK.stroke_width(UNITS * 3 / 2)))?;
        // Labels of neighbours are in different lines.
        let offset = (units(7), units(2) + units(20) * (index % 3) as i32);
        let text = Text::new(mark.label.clone(), offset, font(18).color(&MARK));
        chart.draw_series([EmptyElement::at((mark.step, losses.end)) + text])?;
    }
    Ok(())
}

/// Pixels in SVG units.
pub fn units(pixels: i32) -> i32 {
    pixels * UNITS as i32
}

/// Font of labels.
pub fn font(pixels: i32) -> TextStyle<'static> {
    ("sans-serif", units(pixels)).into_text_style(&SIZE).color(&BLACK)
}

fn legend(series: &mut SeriesAnno<'_, SVGBackend<'_>>, label: Option<String>, line: ShapeStyle) {
    if let Some(label) = label {
        series.label(label).legend(move |(x, y)| PathElement::new([(x, y), (x + units(24), y)], line));
    }
}

/// Every n-th point, so that a line has at most [`POINTS`].
fn thinned(points: &[Point]) -> impl Iterator<Item = Point> {
    points.iter().copied().step_by(points.len().div_ceil(POINTS).max(1))
}

/// Means over the neighbouring points.
fn smoothed(points: &[Point]) -> Vec<Point> {
    let mean = |window: &[Point]| window.iter().map(|(_, loss)| loss).sum::<f64>() / window.len() as f64;
    let around = |index: usize| &points[index.saturating_sub(SMOOTHING)..points.len().min(index + SMOOTHING + 1)];
    points.iter().enumerate().map(|(index, (step, _))| (*step, mean(around(index)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(points: &[Point], step: f64) {
        let curves = Curves {
            training: vec![points.to_vec()],
            undone: vec![(step, points[0].1)],
            held_out: vec![(step, points[0].1)],
            extra: vec![("x".to_owned(), vec![(7.0, points[0].1)])],
            baseline: Some(points[0].1),
            gradient_norm: points.to_vec(),
            marks: vec![EventLine { step, label: "restart".to_owned() }],
            ..Curves::default()
        };
        assert!(losses(&[&curves]).unwrap().contains("restart"), "{points:?}");
        small(&[&curves], PlottedMetric::GradientNorm, "gradient norm").unwrap();
    }

    #[test]
    fn extreme_values_are_drawn() {
        for value in [MAX_VALUE, -MAX_VALUE, f64::MIN_POSITIVE, -1.0, 0.0] {
            draw(&[(1.0, value), (2.0, 0.5), (3.0, 0.25)], u64::MAX as f64);
            draw(&[(1.0, value), (2.0, value.next_up())], 9.0);
        }
        assert!(![f64::NAN, f64::INFINITY, 1.79e308, -1.7e308].into_iter().any(is_drawable));
    }
}
