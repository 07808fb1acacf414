//! Pictures, as SVG.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (900, 540);
const MARGIN: u32 = 16;
const FONT: (&str, u32) = ("sans-serif", 22);

/// Writes the latency percentiles: `curve` is quantiles and nanoseconds. Each step of the horizontal
/// axis leaves a tenth of the operations.
pub fn percentiles(path: &Path, title: &str, curve: &[(f64, f64)]) -> Result<()> {
    let points: Vec<(f64, f64)> = curve
        .iter()
        .filter(|(quantile, _)| *quantile < 1.0)
        .map(|&(quantile, ns)| (nines(quantile), ns.max(1.0)))
        .collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Err(anyhow!(
            "too few samples for a plot: raise --iters or --seconds"
        ));
    };
    let (x, y) = (0.0..last.0.max(1.0), range(first.1, last.1));
    draw(
        path,
        title,
        ("operations faster", "ns"),
        (x, y),
        &points,
        |n| percent(*n),
        |ns| format!("{ns:.0}"),
    )
}

/// Writes bandwidth over message size: `curve` is bytes and bytes a second.
pub fn bandwidth(path: &Path, title: &str, curve: &[(f64, f64)]) -> Result<()> {
    let points: Vec<(f64, f64)> = curve
        .iter()
        .map(|&(size, rate)| (size.max(1.0).log2(), (rate / 1e6).max(1e-3)))
        .collect();
    let low = points.iter().map(|p| p.1).fold(f64::MAX, f64::min);
    let high = points.iter().map(|p| p.1).fold(0.0, f64::max);
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Err(anyhow!("nothing to plot"));
    };
    let (x, y) = (first.0..last.0.max(first.0 + 1.0), range(low, high));
    let size = |log: &f64| bellwire_examples::Size(log.exp2().round() as u64).to_string();
    draw(
        path,
        title,
        ("message size, bytes", "MB/s"),
        (x, y),
        &points,
        size,
        |rate| format!("{rate}"),
    )
}

/// 0 for none, 1 for 90 %, 2 for 99 %, …
fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile).log10()
}

fn percent(nines: f64) -> String {
    let percent = 100.0 * (1.0 - 10f64.powf(-nines));
    let digits = (nines.ceil() as usize).saturating_sub(2);
    format!("{percent:.digits$}%")
}

/// Not empty, whatever the figures.
fn range(low: f64, high: f64) -> std::ops::Range<f64> {
    low * 0.8..(high * 1.25).max(low * 1.6)
}

fn draw(
    path: &Path,
    title: &str,
    (x_name, y_name): (&str, &str),
    (x, y): (std::ops::Range<f64>, std::ops::Range<f64>),
    points: &[(f64, f64)],
    x_label: impl Fn(&f64) -> String,
    y_label: impl Fn(&f64) -> String,
) -> Result<()> {
    let failed = |error: &dyn std::fmt::Display| anyhow!("writing {}: {error}", path.display());
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(|e| failed(&e))?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, FONT)
        .margin(MARGIN)
        .x_label_area_size(48)
        .y_label_area_size(80)
        .build_cartesian_2d(x, y.log_scale())
        .map_err(|e| failed(&e))?;
    chart
        .configure_mesh()
        .x_desc(x_name)
        .y_desc(y_name)
        .x_label_formatter(&x_label)
        .y_label_formatter(&y_label)
        .draw()
        .map_err(|e| failed(&e))?;
    chart
        .draw_series(LineSeries::new(
            points.iter().copied(),
            BLUE.stroke_width(2),
        ))
        .map_err(|e| failed(&e))?;
    area.present().map_err(|e| failed(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nines_are_labelled_as_percentages() {
        assert_eq!(percent(nines(0.5)), "50%");
        assert_eq!(percent(nines(0.9)), "90%");
        assert_eq!(percent(nines(0.99)), "99%");
        assert_eq!(percent(nines(0.999)), "99.9%");
    }

    #[test]
    fn plots_are_drawn_even_of_flat_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plot.svg");
        percentiles(
            &path,
            "latency of nothing",
            &[(0.0, 5.0), (0.5, 5.0), (1.0, 5.0)],
        )
        .unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(svg.contains("latency of nothing") && svg.contains("polyline"));
        bandwidth(&path, "bandwidth", &[(1.0, 1e6), (1024.0, 1e9)]).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("MB/s"));
    }

    #[test]
    fn a_path_that_cannot_be_written_is_named() {
        let error = percentiles(Path::new("/no/such/folder/x.svg"), "t", &[(0.0, 1.0)]);
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("/no/such/folder/x.svg")
        );
    }
}
