//! Pictures of a dataset as SVG.

use plotters::prelude::*;

use crate::report::chart::{ChartError, DrawResult, SMALL, UNITS, font, svg, units};

/// Maximum number of bars of a histogram.
const BARS: usize = 64;
/// Maximum number of points of a line.
const POINTS: usize = 400;
const COLOR: RGBColor = RGBColor(24, 90, 169);
const GRID: RGBColor = RGBColor(228, 228, 228);

/// Draws the number of samples by length. `longest` is the maximum length of the dataset.
///
/// # Errors
/// A failure of the drawing library.
pub fn lengths(histogram: &[(usize, u64)], longest: usize) -> Result<String, ChartError> {
    svg(SMALL, |svg| draw_lengths(&bars(histogram, longest), svg))
}

/// Draws the number of occurrences of each token against its rank, both on logarithmic scales.
///
/// # Errors
/// A failure of the drawing library.
pub fn frequencies(by_rank: &[u64]) -> Result<String, ChartError> {
    svg(SMALL, |svg| draw_frequencies(by_rank, svg))
}

/// First and last length of a bar, and its number of samples.
type Bar = (usize, usize, u64);

/// Joins lengths to at most [`BARS`] bars of equal width.
fn bars(histogram: &[(usize, u64)], longest: usize) -> Vec<Bar> {
    let width = longest.div_ceil(BARS).max(1);
    let mut bars: Vec<Bar> = (0..longest.div_ceil(width)).map(|bar| (bar * width + 1, (bar + 1) * width, 0)).collect();
    for (length, count) in histogram {
        if let Some(bar) = bars.get_mut(length.saturating_sub(1) / width) {
            bar.2 += count;
        }
    }
    bars
}

fn draw_lengths(bars: &[Bar], svg: &mut String) -> DrawResult<()> {
    let last = bars.last().map_or(1, |(_, last, _)| *last) as f64;
    let top = bars.iter().map(|(_, _, count)| *count).max().unwrap_or(0).max(1) as f64;
    let area = SVGBackend::with_string(svg, (SMALL.0 * UNITS, SMALL.1 * UNITS)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(units(14))
        .x_label_area_size(units(52))
        .y_label_area_size(units(104))
        .build_cartesian_2d(0.0..last, 0.0..1.05 * top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID.stroke_width(UNITS))
        .axis_style(BLACK.stroke_width(UNITS))
        .label_style(font(18))
        .axis_desc_style(font(19))
        .x_desc("length (tokens)")
        .y_desc("samples")
        .x_label_formatter(&|length| format!("{length}"))
        .y_label_formatter(&|count| format!("{count}"))
        .y_labels(5)
        .draw()?;
    let rectangle = |(first, last, count): &Bar| {
        Rectangle::new([((first - 1) as f64, 0.0), (*last as f64, *count as f64)], COLOR.filled())
    };
    chart.draw_series(bars.iter().map(rectangle))?;
    area.present()?;
    Ok(())
}

fn draw_frequencies(by_rank: &[u64], svg: &mut String) -> DrawResult<()> {
    let ranks = by_rank.len().max(2) as f64;
    let top = by_rank.first().copied().unwrap_or(1).max(2) as f64;
    let area = SVGBackend::with_string(svg, (SMALL.0 * UNITS, SMALL.1 * UNITS)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(units(14))
        .x_label_area_size(units(52))
        .y_label_area_size(units(104))
        .build_cartesian_2d((1.0..ranks).log_scale(), (1.0..top).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID.stroke_width(UNITS))
        .axis_style(BLACK.stroke_width(UNITS))
        .label_style(font(18))
        .axis_desc_style(font(19))
        .x_desc("rank of the token")
        .y_desc("occurrences")
        .x_label_formatter(&|rank| format!("{rank}"))
        .y_label_formatter(&|count| format!("{count}"))
        .draw()?;
    let points = ranks_to_draw(by_rank.len()).map(|index| ((index + 1) as f64, by_rank[index] as f64));
    chart.draw_series(LineSeries::new(points, COLOR.stroke_width(UNITS * 2)))?;
    area.present()?;
    Ok(())
}

/// Indices at nearly equal distances on a logarithmic scale, at most about [`POINTS`].
fn ranks_to_draw(count: usize) -> impl Iterator<Item = usize> {
    let factor = (count.max(1) as f64).powf(1.0 / POINTS as f64);
    let next = move |index: &usize| Some(((((index + 1) as f64) * factor) as usize).max(index + 1));
    std::iter::successors(Some(0), next).take_while(move |index| *index < count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_joined_to_bars() {
        assert_eq!(bars(&[(1, 2), (3, 5)], 3), [(1, 1, 2), (2, 2, 0), (3, 3, 5)]);
        let wide = bars(&[(1, 2), (8, 1), (512, 5)], 512);
        assert_eq!((wide.len(), wide[0], wide[63]), (64, (1, 8, 3), (505, 512, 5)));
    }

    #[test]
    fn empty_datasets_and_large_vocabularies_can_be_drawn() {
        assert!(lengths(&[], 64).unwrap().contains("<svg") && frequencies(&[]).unwrap().contains("<svg"));
        let drawn: Vec<usize> = ranks_to_draw(30_000).collect();
        assert!(drawn.len() <= POINTS && drawn.starts_with(&[0, 1, 2]) && drawn.is_sorted(), "{}", drawn.len());
    }
}
