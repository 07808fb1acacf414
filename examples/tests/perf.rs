//! `perf` as a user runs it. Short runs: the tests check that figures come, not their values.

mod common;
mod processes;

use bellwire::Device;
use common::{Ran, run};
use processes::Listening;
use serde_json::Value;

const OPS: [&str; 7] = [
    "send",
    "send-imm",
    "write",
    "write-imm",
    "read",
    "cmp-swap",
    "fetch-add",
];

fn document(arguments: &[&str]) -> Value {
    let mut arguments = arguments.to_vec();
    if arguments[0] != "devices" {
        arguments.extend(["--warmup", "10"]);
    }
    let ran = run("perf", &arguments);
    assert_eq!(ran.status, Some(0), "{arguments:?}: {}", ran.stderr);
    assert_eq!(ran.stderr, "", "no progress bar where there is no terminal");
    serde_json::from_str(&ran.stdout).expect("one JSON document")
}

fn positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|figure| figure > 0.0)
}

#[test]
fn latency_of_every_operation_as_json() {
    for op in OPS {
        let document = document(&["lat", "--op", op, "--iters", "110", "--json"]);
        assert_eq!(document["schema"], 1);
        assert_eq!(document["device"]["name"], "soft");
        let choice = document["device"]["choice"].as_str().unwrap();
        assert!(choice.starts_with("there is no other device with an active port; verbs: "));
        let result = &document["results"][0];
        assert!(result["rate"].is_null());
        let latency = &result["latency"];
        assert_eq!(latency["single"]["samples"], 110, "{op}");
        let single = |name: &str| latency["single"][name].as_f64().unwrap();
        let order = ["min", "median", "p99", "p999", "max"].map(single);
        assert!(order[0] > 0.0 && order.is_sorted(), "{op}: {order:?}");
        assert!(positive(&latency["ratio"]) && positive(&latency["bounce_ns"]));
        assert_eq!(latency["rounds"].as_array().unwrap().len(), 11);
    }
}

#[test]
fn rate_of_every_operation_in_both_modes_as_json() {
    for mode in ["inline", "engine"] {
        for op in OPS {
            let arguments = [
                "bw", "--op", op, "--iters", "1100", "--mode", mode, "--json",
            ];
            let document = document(&arguments);
            assert_eq!(document["device"]["mode"], mode);
            let rate = &document["results"][0]["rate"];
            assert_eq!(rate["messages"], 1100, "{op}");
            assert!(positive(&rate["per_second"]), "{op}");
        }
    }
}

#[test]
fn queues_of_any_depth_and_batch_come_to_an_end() {
    for (depth, batch, every) in [
        ("1", "1", "1"),
        ("2", "2", "2"),
        ("5", "3", "5"),
        ("64", "64", "7"),
    ] {
        for op in ["send", "write"] {
            for size in ["8", "5000"] {
                let arguments = [
                    "bw",
                    "--op",
                    op,
                    "--iters",
                    "3000",
                    "--depth",
                    depth,
                    "--batch",
                    batch,
                    "--signal-every",
                    every,
                    "--size",
                    size,
                    "--json",
                ];
                assert!(positive(
                    &document(&arguments)["results"][0]["rate"]["per_second"]
                ));
            }
            let arguments = [
                "lat",
                "--op",
                op,
                "--iters",
                "1000",
                "--depth",
                depth,
                "--signal-every",
                every,
                "--json",
            ];
            assert!(positive(
                &document(&arguments)["results"][0]["latency"]["block_ns"]
            ));
        }
    }
}

#[test]
fn every_form_of_a_message_arrives() {
    for size in ["1", "7", "8", "28", "64", "512"] {
        for form in ["--inline", "--no-inline"] {
            for op in ["send", "write", "write-imm"] {
                let arguments = [
                    "lat", "--op", op, "--size", size, form, "--iters", "100", "--json",
                ];
                let document = document(&arguments);
                assert_eq!(document["results"][0]["inline"], form == "--inline");
            }
        }
    }
}

#[test]
fn plots_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plot.svg");
    let file = path.to_str().unwrap();
    let svg = || std::fs::read_to_string(&path).unwrap();
    document(&["lat", "--iters", "2000", "--json", "--plot", file]);
    assert!(svg().contains("<svg") && svg().contains("RDMA_WRITE of 8 bytes"));
    document(&[
        "bw",
        "--all-sizes",
        "--iters",
        "110",
        "--json",
        "--plot",
        file,
    ]);
    assert!(svg().contains("<svg") && svg().contains("message size"));
    document(&["lat", "--iters", "2000", "--json", "--histogram", file]);
    assert!(svg().contains("<svg") && svg().contains("% of operations"));
    let few = run("perf", &["lat", "-n", "1", "--histogram", file]);
    assert_eq!(few.status, Some(1));
    assert!(few.stderr.contains("raise --iters"), "{}", few.stderr);
}

#[test]
fn several_queue_pairs_send_one_way_and_both() {
    let both_ways = OPS.map(|op| (op, "2", "1100", 2));
    // More queue pairs than messages.
    let one_way = ["send", "write"].map(|op| (op, "5", "33", 1));
    for (op, pairs, iters, ways) in both_ways.into_iter().chain(one_way) {
        let line = [
            "bw", "--op", op, "-n", iters, "-q", pairs, "-t", "8", "--json", "-b",
        ];
        let document = document(&line[..line.len() + ways - 2]);
        let result = &document["results"][0];
        assert_eq!(result["queue_pairs"].to_string(), pairs);
        assert_eq!(result["bidirectional"], ways == 2);
        let messages = ways * iters.parse::<usize>().unwrap();
        assert_eq!(result["rate"]["messages"], messages, "{op}");
        assert!(positive(&result["rate"]["per_second"]), "{op}");
    }
    let ran = run("perf", &["bw", "-n", "110", "-q", "2", "-b"]);
    let queues = "queues   both ends send, by 2 queue pairs";
    assert!(ran.stdout.contains(queues), "{}", ran.stdout);
}

#[test]
fn documents_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name).display().to_string();
    let (lat, bw, clients) = (path("lat.json"), path("bw.json"), path("clients.json"));
    for (file, arguments) in [
        (&lat, &["lat", "-n", "110"][..]),
        (&bw, &["bw", "-n", "110"]),
        (&clients, &["lat", "--clients", "1,2", "-D", "0.05"]),
    ] {
        let ran = run("perf", &[arguments, &["--json"]].concat());
        std::fs::write(file, ran.stdout).unwrap();
    }
    for (file, line) in [
        (&lat, "RDMA_WRITE 8 inline 128/16/64 x1"),
        (&bw, "RDMA_WRITE 8 inline 128/16/64 x1"),
        (&clients, "2 clients"),
    ] {
        let ran = run("perf", &["compare", file, file]);
        assert_eq!(ran.status, Some(0), "{}", ran.stderr);
        let same = |it: &str| it.starts_with(line) && it.ends_with("+0.0%");
        assert!(ran.stdout.lines().any(same), "{}", ran.stdout);
    }
    for (other, advice) in [(&clients, "in common"), (&path("none"), "reading")] {
        let ran = run("perf", &["compare", &lat, other]);
        assert_eq!((ran.status, &*ran.stdout), (Some(1), ""));
        assert!(ran.stderr.contains(advice), "{}", ran.stderr);
    }
}

#[test]
fn tables_say_what_they_are_of() {
    let ran = run("perf", &["lat", "--op", "send", "--iters", "100"]);
    assert_eq!(ran.status, Some(0));
    for word in [
        "machine",
        "clock",
        "soft",
        "inline mode",
        "chosen   there is no other device",
        "memory",
        "SEND",
        "ratio",
    ] {
        assert!(
            ran.stdout.contains(word),
            "{word} is not in:\n{}",
            ran.stdout
        );
    }
}

#[test]
fn devices_are_listed_with_their_limits_and_ports() {
    let document = document(&["devices", "--json"]);
    let listed = document["devices"].as_array().unwrap();
    let why = document["absent"].as_array().unwrap();
    let bellwire::sources::DeviceList {
        devices, absent, ..
    } = Device::list();
    assert_eq!(listed.len(), devices.len());
    assert_eq!(why.len(), absent.len());
    for (why, absent) in why.iter().zip(&absent) {
        assert_eq!(why["source"], absent.source.to_string());
        assert_eq!(why["device"].as_str(), absent.device.as_deref());
        assert_eq!(why["why"], absent.cause.to_string());
    }
    for (listed, info) in listed.iter().zip(&devices) {
        assert_eq!(listed["name"], info.name);
        assert_eq!(listed["description"], info.description);
        let (attr, is) = (&listed["attr"], &info.attr);
        assert_eq!(attr["max_qp"], is.max_qp);
        assert_eq!(attr["max_inline_data"], is.max_inline_data);
        assert_eq!(attr["max_mr_size"], is.max_mr_size);
        assert_eq!(attr["max_srq_wr"], is.max_srq_wr);
        assert_eq!(attr["max_mcast_qp_attach"], is.max_mcast_qp_attach);
        assert!(listed.get("error").is_none(), "{listed}");

        let device = Device::open(&info.name).unwrap();
        let ports = listed["ports"].as_array().unwrap();
        assert_eq!(ports.len(), usize::from(is.phys_port_cnt));
        for (port, number) in ports.iter().zip(1..) {
            let is = device.query_port(number).unwrap();
            assert_eq!(port["port_num"], number);
            assert_eq!(port["active_mtu"], is.active_mtu.bytes());
            assert_eq!(port["lid"], is.lid);
            assert_eq!(port["gid_tbl_len"], is.gid_tbl_len);
            assert!(
                ["down", "active"]
                    .iter()
                    .any(|state| port["state"] == **state)
            );
        }
    }
}

/// That of a fabric, for people: its number is the process's.
#[test]
fn a_device_is_shown_by_its_name() {
    let name = format!("soft:{}", processes::name("shown"));
    let ran = run("perf", &["devices", "--device", &name]);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let mut lines = ran.stdout.lines();
    assert_eq!(lines.next().unwrap().split(": ").next(), Some(&*name));
    let value = |of: &str| {
        let mut lines = ran.stdout.lines();
        let line = lines
            .find(|line| line.trim_start().starts_with(of))
            .expect(of);
        line.trim_start()
            .strip_prefix(of)
            .unwrap()
            .trim()
            .to_owned()
    };
    for limit in [
        "max_qp_wr ",
        "max_inline_data ",
        "max_mw ",
        "phys_port_cnt ",
    ] {
        assert!(value(limit).parse::<u64>().unwrap() > 0, "{limit}");
    }
    assert_eq!(value("port "), "1");
    assert_eq!(
        (value("state "), value("active_mtu ")),
        ("active".into(), "4096".into())
    );
    assert!(value("lid ").parse::<u16>().unwrap() > 0);
    assert!(value("gid 0 ").starts_with("fe80:"));
    assert_eq!(value("pkey 0 "), "0xffff");
    assert_eq!(ran.stdout.matches(": ").count(), 1, "{}", ran.stdout);

    let unknown = run("perf", &["devices", "--device", "mlx5_99"]);
    assert_eq!(unknown.status, Some(2), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("no device"), "{}", unknown.stderr);
}

#[test]
fn options_that_cannot_be_end_with_status_2_and_advice() {
    for (arguments, advice) in [
        (
            &["lat", "--op", "cmp-swap", "--size", "0"][..],
            "works on 8 bytes",
        ),
        (&["lat", "--size", "0"], "at least 1"),
        (&["lat", "--inline", "--size", "513"], "at most 512"),
        (&["lat", "--op", "read", "--inline"], "leave --inline out"),
        (&["bw", "--batch", "129"], "--depth, 128"),
        (&["bw", "--signal-every", "0"], "between 1 and"),
        (&["bw", "--size", "2g"], "at most"),
        (&["bw", "--size", "1.5k"], "not a size"),
        (&["bw", "--depth", "100000"], "between 1 and"),
        (&["lat", "--seconds", "0"], "more than 0"),
        (&["bw", "-D", "1e9"], "more than 0"),
        (&["bw", "-q", "0"], "1..=1024"),
        (&["lat", "-q", "2"], "unexpected argument"),
        (&["lat", "--cpu", "x"], "invalid digit"),
        (&["lat", "--cpu", "0"], "two processors"),
        (&["lat", "--cpu", "0,99999"], "may run on"),
        (&["--connect", "x", "--cpu", "0,0"], "one processor"),
        (&["--listen", "x", "--cpu", "99999"], "may run on"),
        (&["lat", "--clients", "1", "--cpu", "0"], "--server"),
        (
            &["lat", "--clients", "1", "--histogram", "x.svg"],
            "cannot be used",
        ),
        (&["compare", "a.json"], "AFTER.json"),
        (&["compare", "a.json", "b.json", "--json"], "--json out"),
        (&["--device", "mlx5_0"], "no device"),
        (&["lat", "--op", "teleport"], "possible values"),
        (&["lat", "--listen", "x"], "without a command"),
        (&["--listen", "x", "--connect", "x"], "one of them"),
        (&["--connect", "x", "--mode", "engine"], "--mode engine"),
        (&["--connect", "x", "--device", "soft"], "soft:NAME"),
        (&["--connect", "a b"], "fabric"),
        (&["lat", "--clients", "0"], "1..=10000"),
        (&["lat", "--clients", "1,x"], "invalid digit"),
        (&["lat", "--clients", "1", "--op", "send"], "cannot be used"),
        (&["lat", "--clients", "1", "--size", "1m"], "1 to 64k"),
        (&["lat", "--clients", "1", "--connect", "x"], "--server"),
        (&["lat", "--server", "127.0.0.1:1"], "--clients"),
        (
            &["lat", "--clients", "1", "--server", "there"],
            "socket address",
        ),
        (
            &[
                "lat",
                "--clients",
                "1",
                "--server",
                "127.0.0.1:1",
                "--mode",
                "engine",
            ],
            "--mode engine",
        ),
        (&["serve", "--device", "soft"], "soft:NAME"),
        (&["serve", "--links", "0"], "1..=10000"),
        (&["serve", "--size", "65k"], "1 to 64k"),
    ] {
        let ran = run("perf", arguments);
        assert_eq!(ran.status, Some(2), "{arguments:?}");
        assert!(ran.stderr.contains(advice), "{arguments:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{arguments:?}");
    }
}

/// Checks the document of `lat --clients` with these numbers.
fn check_clients(ran: &Ran, counts: &[u64]) {
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let document: Value = serde_json::from_str(&ran.stdout).expect("one JSON document");
    assert_eq!(
        (&document["schema"], &document["message"]),
        (&1.into(), &100.into())
    );
    let clients = document["clients"].as_array().unwrap();
    assert_eq!(clients.len(), counts.len());
    for (of, count) in clients.iter().zip(counts) {
        assert_eq!(of["clients"], *count);
        assert!(of["single"]["samples"].as_u64() >= Some(*count), "{of}");
        assert!(
            positive(&of["per_second"]) && positive(&of["single"]["p999"]),
            "{of}"
        );
    }
}

const CLIENTS: [&str; 7] = [
    "lat",
    "--clients",
    "1,20,3",
    "--size",
    "100",
    "--seconds",
    "0.05",
];

#[test]
fn a_server_answers_clients_in_this_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plot.svg");
    let file = path.to_str().unwrap();
    let ran = run(
        "perf",
        &[&CLIENTS[..], &["--plot", file, "--json"]].concat(),
    );
    check_clients(&ran, &[1, 20, 3]);
    let svg = std::fs::read_to_string(&path).unwrap();
    assert!(svg.contains("answers/s") && svg.contains("message of 100 bytes"));
    let ran = run("perf", &CLIENTS);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    for word in ["machine", "answers/s", "99.9%", "from sending a message"] {
        assert!(ran.stdout.contains(word), "{word}: {}", ran.stdout);
    }
}

#[test]
fn a_server_answers_clients_of_other_processes() {
    let device = format!("soft:{}", processes::name("serve"));
    let serve = [
        "serve",
        "--at",
        "127.0.0.1:0",
        "--links",
        "20",
        "--size",
        "100",
    ];
    let serve = [&serve[..], &["--device", &device]].concat();
    let (server, line) = Listening::with_line("perf", &serve);
    let (_, rest) = line.split_once("--server ").expect("how to start clients");
    let at = rest.split(' ').next().unwrap();
    let to_it = ["--server", at, "--device", &device, "--json"];
    for _ in 0..2 {
        check_clients(&server.run(&[&CLIENTS[..], &to_it].concat()), &[1, 20, 3]);
    }
    let large = ["lat", "--clients", "1", "--size", "101"];
    let ran = server.run(&[&large[..], &to_it].concat());
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("--size 101"), "{}", ran.stderr);
    drop(server);
    let ran = run("perf", &[&CLIENTS[..], &to_it].concat());
    assert_eq!(ran.status, Some(1));
    assert!(
        ran.stderr.contains("`perf serve` runs there"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_plot_that_cannot_be_written_is_an_error() {
    let ran = run(
        "perf",
        &["lat", "--iters", "1000", "--plot", "/no/such/folder/x.svg"],
    );
    assert_eq!(ran.status, Some(1));
    assert!(
        ran.stderr.contains("/no/such/folder/x.svg"),
        "{}",
        ran.stderr
    );
}

/// Measures between two processes, under a name of the test's own.
fn between_two(name: &str, arguments: &[&str]) -> Ran {
    let name = processes::name(name);
    let listening = Listening::start("perf", &["--listen", &name]);
    let ran = listening.run(&[arguments, &["--connect", &name]].concat());
    let followed = listening.end();
    assert_eq!(followed.status, Some(0), "{}", followed.stderr);
    ran
}

#[test]
fn two_processes_measure_as_two_threads_do() {
    // A WRITE takes a peer that polls nothing but its memory.
    for (op, iters) in [
        ("write", "11"),
        ("send", "110"),
        ("read", "110"),
        ("fetch-add", "110"),
    ] {
        for (command, figures, figure) in
            [("lat", "latency", "ratio"), ("bw", "rate", "per_second")]
        {
            let arguments = [
                command, "--op", op, "--iters", iters, "--warmup", "2", "--json",
            ];
            let ran = between_two("figures", &arguments);
            assert_eq!(ran.status, Some(0), "{arguments:?}: {}", ran.stderr);
            let document: Value = serde_json::from_str(&ran.stdout).expect("one JSON document");
            let name = document["device"]["name"].as_str().unwrap();
            assert!(name.starts_with("soft:figures-"), "{name}");
            let figures = &document["results"][0][figures];
            assert!(positive(&figures[figure]), "{arguments:?}");
        }
    }
}

/// Each end has to answer the other's while it waits for its own.
#[test]
fn two_processes_send_to_each_other() {
    for op in OPS {
        let line = [
            "bw", "--op", op, "-n", "220", "--warmup", "2", "-q", "2", "-b",
        ];
        let ran = between_two("both-ways", &line);
        assert_eq!(ran.status, Some(0), "{op}: {}", ran.stderr);
    }
}

#[test]
fn two_processes_measure_one_workload_after_the_other() {
    let arguments = ["bw", "--all-sizes", "--op", "send", "--iters", "11"];
    let ran = between_two("sizes", &arguments);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let rows = ran.stdout.lines().filter(|line| line.starts_with("SEND "));
    assert_eq!(rows.count(), 21, "{}", ran.stdout);
}

#[test]
fn whoever_is_alone_gets_advice_on_what_to_do() {
    let name = processes::name("alone");
    let ran = run("perf", &["lat", "--connect", &name]);
    assert_eq!(ran.status, Some(1));
    let advice = format!("start `perf --listen {name}` first");
    assert!(ran.stderr.contains(&advice), "{}", ran.stderr);

    let listening = Listening::start("perf", &["--listen", &name]);
    let second = listening.run(&["--listen", &name]);
    assert_eq!(second.status, Some(1));
    assert!(second.stderr.contains("another name"), "{}", second.stderr);
    // It has reported that nothing can be measured before it came.
    let wrong = listening.run(&["lat", "--size", "0", "--connect", &name]);
    assert_eq!(wrong.status, Some(2), "{}", wrong.stderr);
    let ran = listening.run(&["lat", "--op", "send", "--iters", "11", "--connect", &name]);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert_eq!(listening.end().status, Some(0));
}

/// Operations that take any machine minutes.
const MANY: &str = "10000000000";

#[test]
fn a_process_that_is_killed_ends_the_other() {
    for op in ["send", "write", "read"] {
        for command in ["lat", "bw"] {
            let name = processes::name("killed");
            let listening = Listening::start("perf", &["--listen", &name]);
            // Not --seconds: how many operations these are is estimated, and too few beside other programs.
            let arguments = [command, "--op", op, "--iters", MANY, "--connect", &name];
            let ran = listening.killed_under(&arguments);
            assert_eq!(ran.status, Some(1), "{op}: {}", ran.stderr);
            assert!(ran.stderr.contains("has left"), "{op}: {}", ran.stderr);
        }
    }
}
