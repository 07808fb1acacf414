//! The page: Prometheus' text format, version 0.0.4.

use bellwire::Device;
use bellwire::fault::Scope;
use bellwire::monitor::LinkSetMonitor;
use bellwire::wr::WrOpcode;
use std::fmt::{Display, Write as _};

/// A page that grows.
struct Page(String);

impl Page {
    /// A metric, with its values by their labels; `labels` is empty for a single one.
    fn metric<V: Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        values: impl IntoIterator<Item = (String, V)>,
    ) {
        // Writing to a String does not fail.
        let _ = writeln!(self.0, "# HELP bellwire_{name} {help}");
        let _ = writeln!(self.0, "# TYPE bellwire_{name} {kind}");
        for (labels, value) in values {
            let _ = match labels.is_empty() {
                true => writeln!(self.0, "bellwire_{name} {value}"),
                false => writeln!(self.0, "bellwire_{name}{{{labels}}} {value}"),
            };
        }
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.metric(name, "counter", help, [(String::new(), value)]);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.metric(name, "gauge", help, [(String::new(), value)]);
    }
}

/// The counters of a device and of a set on it, as they are now.
pub fn page(device: &Device, set: &LinkSetMonitor) -> String {
    let mut page = Page(String::new());
    of_queues(&mut page, set);
    of_links(&mut page, set);
    of_device(&mut page, device);
    page.0
}

fn of_queues(page: &mut Page, set: &LinkSetMonitor) {
    let queues = set.queues();
    let by_operation = |value: fn(bellwire::monitor::Posted) -> u64| {
        let posted = WrOpcode::ALL.iter().map(move |operation| {
            let label = format!("operation=\"{operation}\"");
            (label, value(queues.sends(*operation)))
        });
        // An operation that nobody posts has no line.
        posted.filter(|(_, value)| *value != 0)
    };
    let requests = by_operation(|posted| posted.requests);
    let help = "Requests posted, replays included.";
    page.metric("requests_total", "counter", help, requests);
    let bytes = by_operation(|posted| posted.bytes);
    page.metric("bytes_total", "counter", "Bytes of these requests.", bytes);
    page.counter("receives_total", "Receives posted.", queues.receives);
    let help = "Basic blocks of sends in flight.";
    page.gauge("send_slots_used", help, queues.sends_in_flight);
    let help = "Basic blocks that sends may occupy.";
    page.gauge("send_slots", help, queues.send_slots);
    let help = "Receives that wait for a message.";
    page.gauge("receives_posted", help, queues.receives_in_flight);
    let help = "Receives that may be posted.";
    page.gauge("receive_slots", help, queues.recv_slots);
    let help = "Late completions dropped.";
    page.counter("stale_total", help, set.stale());
}

fn of_links(page: &mut Page, set: &LinkSetMonitor) {
    let (counters, links) = (set.counters(), set.links());
    let ready = links.iter().filter(|(_, link)| link.is_ready()).count();
    let ended = links.iter().filter(|(_, link)| link.has_ended()).count();
    let states = [
        ("ready", ready),
        ("ended", ended),
        ("recovering", links.len().saturating_sub(ready + ended)),
    ];
    let states = states.map(|(state, count)| (format!("state=\"{state}\""), count));
    page.metric("links", "gauge", "Links of the set.", states);
    let faults = Scope::ALL.iter().skip(1).map(|scope| {
        let count = counters.faults[usize::from(scope.number())];
        (format!("scope=\"{}\"", scope.name()), count)
    });
    page.metric("faults_total", "counter", "Faults.", faults);
    let help = "Connections made, the first of each link included.";
    page.counter("connections_total", help, counters.recovered);
    let help = "Links that could not be recovered.";
    page.counter("gave_up_total", help, counters.gave_up);
    let help = "Time of all recoveries.";
    page.counter("recovery_seconds_total", help, counters.total.as_secs_f64());
    let help = "Time of the longest recovery.";
    page.gauge("recovery_seconds_max", help, counters.longest.as_secs_f64());
    page.counter(
        "replayed_total",
        "Requests posted again.",
        counters.replayed,
    );
    let outcomes = [
        ("send", "done", counters.done),
        ("send", "failed", counters.failed),
        ("send", "not_executed", counters.not_executed),
        ("send", "in_doubt", counters.in_doubt),
        ("receive", "failed", counters.recv_failed),
        ("receive", "not_executed", counters.recv_not_executed),
        ("receive", "in_doubt", counters.recv_in_doubt),
    ];
    let outcomes = outcomes
        .map(|(queue, outcome, count)| (format!("queue=\"{queue}\",outcome=\"{outcome}\""), count));
    let help = "Outcomes of requests of failed connections.";
    page.metric("outcomes_total", "counter", help, outcomes);
    page.counter("cancelled_total", "Requests cancelled.", counters.cancelled);
    let help = "Requests that missed their deadlines.";
    page.counter("deadlines_passed_total", help, counters.deadlines_passed);
}

fn of_device(page: &mut Page, device: &Device) {
    let counters = device.counters();
    if let Some(naks) = counters.rnr_naks {
        let help = "Waits for a receive of the peer.";
        page.counter("rnr_naks_total", help, naks);
    }
    if let Some(retries) = counters.retries {
        page.counter("retries_total", "Waits for an acknowledgement.", retries);
    }
    let there = device.resources();
    let objects = [
        ("pd", there.pd),
        ("cq", there.cq),
        ("qp", there.qp),
        ("mr", there.mr),
        ("mw", there.mw),
        ("srq", there.srq),
    ];
    let objects = objects.map(|(kind, count)| (format!("kind=\"{kind}\""), count));
    page.metric("objects", "gauge", "Objects on the device.", objects);
}
