//! Compares two documents that were written with `--json`.

use anyhow::{Context, Result, bail, ensure};
use bellwire_examples::Size;
use serde::Deserialize;
use std::fmt::Write as _;
use std::fs::read_to_string;
use std::path::Path;

/// The fields of a document that are compared.
#[derive(Debug, Deserialize)]
struct Document {
    schema: u32,
    machine: Machine,
    device: Device,
    #[serde(default)]
    results: Vec<Measured>,
    #[serde(default)]
    clients: Vec<OfClients>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Machine {
    model: String,
    cores: usize,
    crowded: bool,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Device {
    name: String,
    mode: String,
}

#[derive(Debug, Deserialize)]
struct Measured {
    #[serde(flatten)]
    key: Key,
    latency: Option<Latency>,
    rate: Option<Rate>,
}

/// What has to be equal for figures to be of the same.
#[derive(Debug, PartialEq, Deserialize)]
struct Key {
    op: String,
    size: u64,
    inline: bool,
    depth: u32,
    batch: u32,
    signal_every: u32,
    /// Older documents have none.
    #[serde(default = "one")]
    queue_pairs: u32,
    #[serde(default)]
    bidirectional: bool,
}

fn one() -> u32 {
    1
}

#[derive(Debug, Deserialize)]
struct Latency {
    block_ns: f64,
}

#[derive(Debug, Deserialize)]
struct Rate {
    per_second: f64,
}

#[derive(Debug, Deserialize)]
struct OfClients {
    clients: u32,
    per_second: f64,
    single: Single,
}

#[derive(Debug, Deserialize)]
struct Single {
    median: f64,
}

/// A line of the table.
struct Line {
    name: String,
    /// Nanoseconds.
    time: Option<f64>,
    per_second: Option<f64>,
}

/// The table of two documents.
///
/// # Errors
/// A file that cannot be read, or is no document of figures; two without a line in common.
pub fn compare(before: &Path, after: &Path) -> Result<String> {
    let (old, new) = (read(before)?, read(after)?);
    let mut table = String::new();
    if old.machine != new.machine || old.device != new.device {
        writeln!(
            table,
            "WARNING  the conditions differ: {:?} {:?}, then {:?} {:?}",
            old.machine, old.device, new.machine, new.device
        )?;
    }
    writeln!(
        table,
        "{:<48} {:>9} {:>9} {:>8} {:>9} {:>9} {:>8}",
        "", "ns", "ns", "", "Mmsg/s", "Mmsg/s", ""
    )?;
    let (old, new) = (lines(old), lines(new));
    let mut common = 0;
    for line in &old {
        let Some(other) = new.iter().find(|new| new.name == line.name) else {
            continue;
        };
        common += 1;
        write!(table, "{:<48}", line.name)?;
        pair(&mut table, line.time, other.time)?;
        let mega = |rate: Option<f64>| rate.map(|rate| rate / 1e6);
        pair(&mut table, mega(line.per_second), mega(other.per_second))?;
        table.truncate(table.trim_end().len());
        table.push('\n');
    }
    ensure!(
        common != 0,
        "{} and {} have no measurement in common: give both runs the same command and options",
        before.display(),
        after.display()
    );
    for (lines, others, path) in [(&old, &new, before), (&new, &old, after)] {
        for line in lines {
            if !others.iter().any(|other| other.name == line.name) {
                writeln!(table, "only in {}: {}", path.display(), line.name)?;
            }
        }
    }
    write!(
        table,
        "\nns: block of operations, or median of clients; less is faster. Mmsg/s: more is faster."
    )?;
    Ok(table)
}

fn read(path: &Path) -> Result<Document> {
    let name = path.display();
    let text = read_to_string(path).with_context(|| format!("reading {name}"))?;
    let document: Document = serde_json::from_str(&text).with_context(|| {
        format!("{name} is no document of figures: give one that `perf lat`, `bw` or `perf` wrote with --json")
    })?;
    if document.schema != super::report::VERSION {
        bail!(
            "{name} has the form of version {}, and this perf reads version {}: measure again",
            document.schema,
            super::report::VERSION
        );
    }
    Ok(document)
}

fn lines(document: Document) -> Vec<Line> {
    let results = document.results.into_iter().map(|measured| Line {
        name: measured.key.name(),
        time: measured.latency.map(|latency| latency.block_ns),
        per_second: measured.rate.map(|rate| rate.per_second),
    });
    let clients = document.clients.into_iter().map(|of| Line {
        name: format!("{} clients", of.clients),
        time: Some(of.single.median),
        per_second: Some(of.per_second),
    });
    results.chain(clients).collect()
}

impl Key {
    /// Two keys with the same name are equal.
    fn name(&self) -> String {
        let Self {
            op,
            size,
            depth,
            batch,
            signal_every,
            queue_pairs,
            ..
        } = self;
        let data = if self.inline { "inline" } else { "memory" };
        let size = Size(*size);
        let ways = if self.bidirectional { " both ways" } else { "" };
        format!("{op} {size} {data} {depth}/{batch}/{signal_every} x{queue_pairs}{ways}")
    }
}

/// Two figures, and by how much the second differs.
fn pair(line: &mut String, before: Option<f64>, after: Option<f64>) -> std::fmt::Result {
    let (Some(before), Some(after)) = (before, after) else {
        return write!(line, " {:>28}", "");
    };
    let change = match before > 0.0 {
        true => format!("{:+.1}%", 100.0 * (after / before - 1.0)),
        false => String::new(),
    };
    write!(line, " {before:>9.3} {after:>9.3} {change:>8}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(results: &str) -> String {
        format!(
            r#"{{"schema":1,"machine":{{"model":"m","cores":2,"crowded":false}},
            "device":{{"name":"soft","mode":"inline"}},"results":[{results}]}}"#
        )
    }

    fn result(size: u64, more: &str, block: f64) -> String {
        format!(
            r#"{{"op":"SEND","size":{size},"inline":true,"depth":128,"batch":16,"signal_every":64{more},
            "latency":{{"block_ns":{block}}},"rate":null}}"#
        )
    }

    fn of(before: &str, after: &str) -> Result<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        std::fs::write(path("a.json"), before).unwrap();
        std::fs::write(path("b.json"), after).unwrap();
        compare(&path("a.json"), &path("b.json"))
    }

    #[test]
    fn lines_that_are_in_both_are_compared() {
        let old = document(&[result(8, "", 100.0), result(9, "", 1.0)].join(","));
        let one = r#","queue_pairs":1,"bidirectional":false"#;
        let two = r#","queue_pairs":2,"bidirectional":true"#;
        let new = document(&[result(8, one, 120.0), result(8, two, 90.0)].join(","));
        let table = of(&old, &new).unwrap();
        let line = "SEND 8 inline 128/16/64 x1";
        let line = table.lines().find(|it| it.starts_with(line)).expect(&table);
        assert!(line.ends_with("  100.000   120.000   +20.0%"), "{line}");
        assert!(table.contains("a.json: SEND 9 inline"), "{table}");
        assert!(
            table.contains("b.json: SEND 8 inline 128/16/64 x2 both ways"),
            "{table}"
        );
        assert!(!table.contains("WARNING"), "{table}");
        let elsewhere = new.replace("soft", "mlx5_0");
        assert!(of(&old, &elsewhere).unwrap().contains("WARNING"));
    }

    #[test]
    fn what_cannot_be_compared_is_refused_with_advice() {
        let good = document(&result(8, "", 1.0));
        let other = document(&result(9, "", 1.0));
        let newer = good.replace(r#""schema":1"#, r#""schema":2"#);
        for (text, advice) in [
            ("", "no document of figures"),
            ("{}", "no document of figures"),
            (r#"{"devices":[],"absent":[]}"#, "no document of figures"),
            (&good.replace("128", "-1"), "no document of figures"),
            (&document(""), "in common"),
            (&other, "in common"),
            (&newer, "measure again"),
        ] {
            for error in [of(&good, text), of(text, &good)] {
                let error = format!("{:#}", error.unwrap_err());
                assert!(error.contains(advice), "{text}: {error}");
            }
        }
        let missing = compare(Path::new("/no/such.json"), Path::new("/no/such.json"));
        let error = format!("{:#}", missing.unwrap_err());
        assert!(error.contains("/no/such.json"), "{error}");
    }
}
