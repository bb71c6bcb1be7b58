//! Plot of a run's duration and efficiency against its number of ranks, as SVG.

use lambert_plan::estimate::ScalingPoint;
use plotters::prelude::*;

/// Size of the chart, pixels.
const SIZE: (u32, u32) = (760, 340);
const LINE: RGBColor = RGBColor(24, 90, 169);

/// Draws hours (logarithmic) on the left and efficiency on the right.
///
/// # Errors
/// A message of the drawing library.
pub fn svg(points: &[ScalingPoint]) -> Result<String, String> {
    let mut svg = String::new();
    draw(points, &mut svg).map_err(|error| error.to_string())?;
    Ok(svg)
}

fn draw(points: &[ScalingPoint], svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let (left, right) = area.split_horizontally(SIZE.0 / 2);
    let ranks = 1.0..points.last().map_or(2.0, |point| point.ranks.max(2) as f64);
    let hours = |pick: fn(f64, f64) -> f64, start: f64| points.iter().map(|point| point.hours).fold(start, pick);
    let hours = (0.8 * hours(f64::min, f64::INFINITY)..1.25 * hours(f64::max, 0.0)).log_scale();
    let mut chart = margins(ChartBuilder::on(&left)).build_cartesian_2d(ranks.clone().log_scale().base(2.0), hours)?;
    chart.configure_mesh().x_desc("ranks").y_desc("hours").x_label_formatter(&whole).draw()?;
    chart.draw_series(
        LineSeries::new(points.iter().map(|point| (point.ranks as f64, point.hours)), LINE).point_size(3),
    )?;
    let ranks = ranks.log_scale().base(2.0);
    let mut chart = margins(ChartBuilder::on(&right)).build_cartesian_2d(ranks, 0.0..1.05)?;
    chart.configure_mesh().x_desc("ranks").y_desc("efficiency").x_label_formatter(&whole).draw()?;
    let efficiency = points.iter().map(|point| (point.ranks as f64, point.efficiency));
    chart.draw_series(LineSeries::new(efficiency, LINE).point_size(3))?;
    area.present()?;
    Ok(())
}

fn margins<'a, 'b, B: DrawingBackend>(mut builder: ChartBuilder<'a, 'b, B>) -> ChartBuilder<'a, 'b, B> {
    builder.margin(12).x_label_area_size(36).y_label_area_size(52);
    builder
}

fn whole(ranks: &f64) -> String {
    format!("{ranks:.0}")
}
