//! Pictures, as SVG.

use super::clients::OfClients;
use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::fmt::Display;
use std::ops::Range;
use std::path::Path;

const SIZE: (u32, u32) = (900, 540);
const MARGIN: u32 = 16;
const FONT: (&str, u32) = ("sans-serif", 22);

type Points = Vec<(f64, f64)>;

/// Writes the latency percentiles: `curve` is quantiles and nanoseconds. Each step of the horizontal
/// axis leaves a tenth of the operations.
pub fn percentiles(path: &Path, title: &str, curve: &[(f64, f64)]) -> Result<()> {
    let points: Points = curve
        .iter()
        .filter(|(quantile, _)| *quantile < 1.0)
        .map(|&(quantile, ns)| (nines(quantile), ns.max(1.0)))
        .collect();
    let Some(last) = points.last() else {
        return Err(anyhow!(
            "too few samples for a plot: raise --iters or --seconds"
        ));
    };
    let chart = Chart {
        title,
        names: ("operations faster", "ns"),
        x: 0.0..last.0.max(1.0),
        lines: vec![(points, BLUE)],
        x_label: &|n| percent(*n),
        y_label: &|ns| format!("{ns:.0}"),
    };
    write(path, &[chart])
}

/// Bars of a histogram.
const BARS: usize = 90;

/// Writes how many operations took how long: `counts` is nanoseconds, and how often they occurred. The slowest
/// thousandth is not in the picture: it would press the others together.
pub fn histogram(path: &Path, title: &str, counts: &[(f64, u64)]) -> Result<()> {
    let all: u64 = counts.iter().map(|(_, count)| count).sum();
    let (Some(first), true) = (counts.first(), all >= BARS as u64) else {
        return Err(anyhow!(
            "too few samples for a histogram: raise --iters or --seconds"
        ));
    };
    let mut so_far = 0;
    let last = counts.iter().find(|(_, count)| {
        so_far += count;
        so_far * 1000 >= all * 999
    });
    let last = last.unwrap_or(first);
    // Not empty, even if each took the same time.
    let (low, high) = (first.0, last.0.max(first.0 * 1.01 + 0.1));
    let width = (high - low) / BARS as f64;
    let mut bars = [0; BARS];
    for (ns, count) in counts.iter().filter(|(ns, _)| *ns <= high) {
        bars[(((ns - low) / width) as usize).min(BARS - 1)] += count;
    }
    let share = |count: u64| 100.0 * count as f64 / all as f64;
    let highest = share(bars.into_iter().max().unwrap_or(0));
    let failed = |error: &dyn Display| anyhow!("writing {}: {error}", path.display());
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(|e| failed(&e))?;
    let draw = || {
        let mut chart = ChartBuilder::on(&area)
            .caption(title, FONT)
            .margin(MARGIN)
            .x_label_area_size(48)
            .y_label_area_size(80)
            .build_cartesian_2d(low..high, 0.0..highest * 1.1)?;
        chart
            .configure_mesh()
            .x_desc("ns (the slowest 0.1 % are left out)")
            .y_desc("% of operations")
            .x_label_formatter(&|ns| format!("{ns:.0}"))
            .draw()?;
        chart.draw_series(bars.iter().enumerate().map(|(bar, &count)| {
            let from = low + bar as f64 * width;
            Rectangle::new([(from, 0.0), (from + width, share(count))], BLUE.filled())
        }))?;
        area.present()
    };
    draw().map_err(|e| failed(&e))
}

/// Writes bandwidth over message size: `curve` is bytes and bytes a second.
pub fn bandwidth(path: &Path, title: &str, curve: &[(f64, f64)]) -> Result<()> {
    let points: Points = curve
        .iter()
        .map(|&(size, rate)| (size.max(1.0).log2(), (rate / 1e6).max(1e-3)))
        .collect();
    let chart = Chart {
        title,
        names: ("message size, bytes", "MB/s"),
        x: doublings(&points)?,
        lines: vec![(points, BLUE)],
        x_label: &|log| bellwire_examples::Size(log.exp2().round() as u64).to_string(),
        y_label: &|rate| format!("{rate}"),
    };
    write(path, &[chart])
}

/// Writes throughput, and the median and the 99th percentile of the latency, over the number of clients.
pub fn clients(path: &Path, title: &str, results: &[OfClients]) -> Result<()> {
    let mut results: Vec<&OfClients> = results.iter().collect();
    results.sort_by_key(|of| of.clients);
    let line = |figure: fn(&OfClients) -> f64| -> Points {
        let points = results.iter();
        points
            .map(|of| (f64::from(of.clients).log2(), figure(of).max(1e-3)))
            .collect()
    };
    let rates = line(|of| of.per_second / 1e3);
    let x = doublings(&rates)?;
    let chart = |title, y_name, lines| Chart {
        title,
        names: ("clients", y_name),
        x: x.clone(),
        lines,
        x_label: &|log: &f64| format!("{:.0}", log.exp2()),
        y_label: &|figure: &f64| format!("{figure}"),
    };
    let latency = vec![
        (line(|of| of.single.median / 1e3), BLUE),
        (line(|of| of.single.p99 / 1e3), RED),
    ];
    let caption = "latency: half (blue) and 99 % (red) are faster";
    write(
        path,
        &[
            chart(title, "1000 answers/s", vec![(rates, BLUE)]),
            chart(caption, "us", latency),
        ],
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

/// From the first point to the last, which stand at logarithms.
fn doublings(points: &[(f64, f64)]) -> Result<Range<f64>> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Err(anyhow!("nothing to plot"));
    };
    Ok(first.0..last.0.max(first.0 + 1.0))
}

/// Lines in a coordinate system whose vertical axis is logarithmic.
struct Chart<'a> {
    title: &'a str,
    /// Of the two axes.
    names: (&'a str, &'a str),
    x: Range<f64>,
    lines: Vec<(Points, RGBColor)>,
    x_label: &'a dyn Fn(&f64) -> String,
    y_label: &'a dyn Fn(&f64) -> String,
}

impl Chart<'_> {
    /// Not empty, whatever the figures.
    fn y(&self) -> Range<f64> {
        let figures = || self.lines.iter().flat_map(|(points, _)| points);
        let low = figures().map(|point| point.1).fold(f64::MAX, f64::min);
        let high = figures().map(|point| point.1).fold(0.0, f64::max);
        low * 0.8..(high * 1.25).max(low * 1.6)
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, FONT)
            .margin(MARGIN)
            .x_label_area_size(48)
            .y_label_area_size(80)
            .build_cartesian_2d(self.x.clone(), self.y().log_scale())?;
        chart
            .configure_mesh()
            .x_desc(self.names.0)
            .y_desc(self.names.1)
            .x_label_formatter(&self.x_label)
            .y_label_formatter(&self.y_label)
            .draw()?;
        for (points, color) in &self.lines {
            let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
            chart.draw_series(line)?;
        }
        Ok(())
    }
}

/// Draws charts, one below the other.
fn write(path: &Path, charts: &[Chart<'_>]) -> Result<()> {
    let failed = |error: &dyn Display| anyhow!("writing {}: {error}", path.display());
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(|e| failed(&e))?;
    for (chart, part) in charts.iter().zip(area.split_evenly((charts.len(), 1))) {
        chart.draw(&part).map_err(|e| failed(&e))?;
    }
    area.present().map_err(|e| failed(&e))
}

#[cfg(test)]
mod tests {
    use super::super::stats::Samples;
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
        histogram(&path, "of one time", &[(5.0, 100)]).unwrap();
        histogram(&path, "of two", &[(5.0, 900), (7.0, 1000), (1e9, 1)]).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(
            svg.contains("of two") && !svg.contains("1000000000"),
            "{svg}"
        );
        assert!(histogram(&path, "of few", &[(5.0, 10)]).is_err());
        assert!(histogram(&path, "of none", &[]).is_err());
        let single = Samples::new().percentiles(1.0);
        let of = |clients| OfClients {
            clients,
            per_second: 1e6,
            single: single.clone(),
        };
        clients(&path, "clients", &[of(1)]).unwrap();
        clients(&path, "clients", &[of(100), of(1)]).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(svg.contains("1000 answers/s") && svg.matches("polyline").count() > 2);
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
