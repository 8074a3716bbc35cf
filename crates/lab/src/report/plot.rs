//! Plots as plain SVG: one dot per round, a row per server.

use kuva::backend::svg::SvgBackend;
use kuva::plot::StripPlot;
use kuva::render::layout::Layout;
use kuva::render::plots::Plot;
use kuva::render::render::render_multiple;

use super::analysis::GroupResult;
use crate::scenario::Metric;

/// Plots every round of every server; returns nothing where no server has the figure.
pub(super) fn metric(group: &GroupResult, metric: Metric) -> Option<String> {
    let rows: Vec<(&str, &[f64])> = group
        .servers
        .iter()
        .filter_map(|server| {
            let spread = server.spread_by_metric.get(&metric)?;
            Some((server.name.as_str(), spread.values.as_slice()))
        })
        .collect();
    if rows.is_empty() {
        return None;
    }
    let mut strip = StripPlot::new()
        .with_color("#2f6f9f")
        .with_point_size(4.5)
        .with_marker_opacity(0.75)
        .with_swarm()
        .with_horizontal(true);
    for (name, values) in &rows {
        strip = strip.with_group(*name, values.iter().copied());
    }
    let plots = vec![Plot::Strip(strip)];
    // All figures are counts, times or shares: an axis from 0 shows how much they differ.
    let layout = Layout::auto_from_plots(&plots)
        .with_x_axis_min(0.0)
        .with_title(metric.title())
        .with_x_label("")
        .with_width(760.0)
        .with_height(110.0 + 34.0 * rows.len() as f64);
    Some(SvgBackend.render_scene(&render_multiple(plots, layout)))
}
