//! The output: tables for people, one JSON document for programs.

use super::clients::OfClients;
use super::machine::{Machine, MachineFacts};
use super::measure::{Latency, Rate};
use super::workload::Workload;
use bellwire_examples::Size;
use serde::Serialize;

/// The JSON document's form, for `--help`. Keep it in step with the types below.
pub const SCHEMA: &str = "\
JSON (--json), one document on stdout; times in nanoseconds, rates per second:
  schema    1
  machine   model, cores, threads_on [leader, follower], clock, clock_ns (a reading),
            clock_source (the kernel's), crowded (fewer cores than threads that poll)
  device    name, description, mode (inline, engine), choice (why it was taken, unless it was named)
  results   a list of
    op, size, inline, depth, batch, signal_every, queue_pairs (each way), bidirectional (messages of
    both ends are counted), memory (the pages obtained)
    latency   null, or
      kind      one_way (half a round trip) or operation (post to completion)
      single    of operations timed one by one:
                samples, min, mean, median, p99, p999, max
      block_ns  operations timed by the thousand, median
      bounce_ns one way of the bare cache line, measured in between
      ratio     block_ns / bounce_ns
      rounds    a list of block_ns, bounce_ns: each round's medians
    rate      null, or
      messages, per_second, bytes_per_second (medians over the rounds),
      rounds    messages per second of each round
`perf lat --clients --json` has, instead of results,
  message   bytes of a message, and of its answer
  clients   a list of clients (how many), per_second (answers to all of them), single (as above: from
            sending a message to its answer)
`perf compare` takes two of these documents.
`perf devices --json` has instead
  devices   a list of
    name, description, attr (the limits, by their names in the verbs), error (only when it could not
    be opened, and has no ports)
    ports     a list of
      port_num, state (down, active), max_mtu, active_mtu (bytes), lid, sm_lid, max_msg_sz,
      gid_tbl_len, pkey_tbl_len
      gids, pkeys   lists of index, gid and index, pkey: those that are set
  absent    a list of what is not there: source (verbs, mlx5), device (unless it is all of the source's), why

Exit status: 0 measured, 1 failed, 2 the options cannot be.";

/// The version of that form.
pub const VERSION: u32 = 1;

/// The JSON document of a measurement.
#[derive(Debug, Serialize)]
pub struct Document {
    schema: u32,
    machine: MachineFacts,
    device: DeviceFacts,
    results: Vec<Measured>,
}

/// The JSON document of a measurement of clients.
#[derive(Debug, Serialize)]
pub struct ClientsDocument {
    schema: u32,
    machine: MachineFacts,
    device: DeviceFacts,
    message: u32,
    clients: Vec<OfClients>,
}

impl ClientsDocument {
    pub fn new(
        machine: &Machine,
        device: &DeviceFacts,
        message: u32,
        clients: Vec<OfClients>,
    ) -> Self {
        Self {
            schema: VERSION,
            machine: machine.facts(),
            device: device.clone(),
            message,
            clients,
        }
    }
}

/// The device as it was opened.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceFacts {
    pub name: String,
    pub description: String,
    pub mode: &'static str,
    /// Why it was taken, unless it was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<String>,
}

/// A workload's figures.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    op: &'static str,
    size: usize,
    inline: bool,
    depth: u32,
    batch: u32,
    signal_every: u32,
    queue_pairs: u32,
    bidirectional: bool,
    memory: String,
    pub latency: Option<Latency>,
    pub rate: Option<Rate>,
}

impl Document {
    pub fn new(machine: &Machine, device: &DeviceFacts, results: Vec<Measured>) -> Self {
        Self {
            schema: VERSION,
            machine: machine.facts(),
            device: device.clone(),
            results,
        }
    }
}

impl Measured {
    pub fn new(work: &Workload, memory: String) -> Self {
        Self {
            op: work.op.title(),
            size: work.size,
            inline: work.inline,
            depth: work.depth,
            batch: work.batch,
            signal_every: work.signal_every,
            queue_pairs: work.queue_pairs,
            bidirectional: work.bidirectional,
            memory,
            latency: None,
            rate: None,
        }
    }

    /// Bytes of a message.
    pub fn size(&self) -> usize {
        self.size
    }
}

/// The heading that belongs to [`row`].
pub fn heading() -> String {
    format!(
        "{:<20} {:>5} {:<6} {:>7} {:>7} {:>7} {:>7} {:>9} {:>7} {:>8} {:>9} {:>9}",
        "operation",
        "size",
        "data",
        "min",
        "median",
        "99%",
        "99.9%",
        "max",
        "block",
        "x bounce",
        "Mmsg/s",
        "GB/s"
    )
}

/// One line of the table: nanoseconds, then rates.
pub fn row(measured: &Measured) -> String {
    let mut line = format!(
        "{:<20} {:>5} {:<6}",
        measured.op,
        Size(measured.size as u64),
        if measured.inline { "inline" } else { "memory" },
    );
    match &measured.latency {
        Some(Latency {
            single,
            block_ns,
            ratio,
            ..
        }) => {
            for (ns, width) in [
                (single.min, 7),
                (single.median, 7),
                (single.p99, 7),
                (single.p999, 7),
                (single.max, 9),
                (*block_ns, 7),
            ] {
                line += &format!(" {:>width$}", nanoseconds(ns));
            }
            line += &format!(" {ratio:>8.2}");
        }
        None => line += &" ".repeat(4 * 8 + 10 + 8 + 9),
    }
    if let Some(rate) = &measured.rate {
        let (messages, bytes) = (rate.per_second / 1e6, rate.bytes_per_second / 1e9);
        line += &format!(" {messages:>9.3} {bytes:>9.3}");
    }
    line
}

/// With as many digits as are worth reading.
fn nanoseconds(ns: f64) -> String {
    if ns < 100.0 {
        format!("{ns:.1}")
    } else {
        format!("{ns:.0}")
    }
}

/// What the columns of the table are.
pub const LEGEND: &str = "\
Times in ns. SEND*, WRITE*: one way, half of a round trip between the two cores; READ and atomics:
the whole operation at the requester. min to max: operations timed one by one; block: timed by the
thousand, without the clock; x bounce: block over the time in which a bare cache line crosses.
data: within the request (inline) or in registered memory. Mmsg/s, GB/s: batches, many in flight.";

#[cfg(test)]
mod tests {
    use super::super::devices::Listing;
    use super::super::stats::Samples;
    use super::super::workload::Op;
    use super::*;

    fn measured() -> Measured {
        let work = Workload {
            op: Op::WriteImm,
            size: 4096,
            inline: false,
            depth: 8,
            batch: 4,
            signal_every: 2,
            queue_pairs: 1,
            bidirectional: false,
        };
        Measured::new(&work, "pages".to_owned())
    }

    #[test]
    fn columns_stand_below_their_headings() {
        let mut samples = Samples::new();
        samples.record(1234);
        let mut measured = measured();
        measured.rate = Some(Rate {
            messages: 1,
            per_second: 12.5e6,
            bytes_per_second: 51.2e9,
            rounds: vec![],
        });
        let only_rate = row(&measured);
        measured.latency = Some(Latency {
            kind: "one_way",
            single: samples.percentiles(1.0),
            block_ns: 99.94,
            bounce_ns: 50.0,
            ratio: 2.0,
            rounds: vec![],
            curve: vec![],
            counts: vec![],
        });
        let both = row(&measured);
        assert!(both.contains("RDMA_WRITE_WITH_IMM     4k memory"), "{both}");
        assert!(
            both.ends_with("    99.9     2.00    12.500    51.200"),
            "{both}"
        );
        assert_eq!(both.len(), heading().len());
        assert_eq!(only_rate.len(), heading().len());
    }

    #[test]
    fn the_schema_names_every_field() {
        let mut measured = measured();
        measured.latency = Some(Latency {
            kind: "one_way",
            single: Samples::new().percentiles(1.0),
            block_ns: 1.0,
            bounce_ns: 1.0,
            ratio: 1.0,
            rounds: vec![super::super::measure::Round {
                block_ns: 1.0,
                bounce_ns: 1.0,
            }],
            curve: vec![],
            counts: vec![],
        });
        measured.rate = Some(Rate {
            messages: 1,
            per_second: 1.0,
            bytes_per_second: 1.0,
            rounds: vec![1.0],
        });
        let device = DeviceFacts {
            name: String::new(),
            description: String::new(),
            mode: "inline",
            choice: Some(String::new()),
        };
        let document = Document::new(&Machine::find((0, 0), 0).unwrap(), &device, vec![measured]);
        fn names(value: &serde_json::Value, into: &mut Vec<String>) {
            match value {
                serde_json::Value::Object(map) => {
                    for (name, value) in map {
                        into.push(name.clone());
                        names(value, into);
                    }
                }
                serde_json::Value::Array(list) => list.iter().for_each(|v| names(v, into)),
                _ => {}
            }
        }
        let mut all = Vec::new();
        names(&serde_json::to_value(&document).unwrap(), &mut all);
        let mut devices = serde_json::to_value(Listing::all()).unwrap();
        for device in devices["devices"].as_array_mut().unwrap() {
            // Its names are the verbs'.
            device["attr"] = serde_json::Value::Null;
        }
        names(&devices, &mut all);
        assert!(all.len() > 50, "{all:?}");
        for name in all {
            let documented = SCHEMA
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|word| word == name);
            assert!(documented, "{name} is not in the schema");
        }
    }
}
