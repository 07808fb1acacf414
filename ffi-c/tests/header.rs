//! The header in `include` is what the source gives, and its numbers are core's.

use hw::AccessFlags;
use hw::event::EventType;
use hw::state::{Mtu, QpAttrMask, QpState};
use hw::wr::{SendFlags, WcOpcode, WcStatus, WrOpcode};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn ours() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header() -> PathBuf {
    ours().join("../include/bellwire.h")
}

/// What `cargo xtask header` writes too.
fn generate() -> String {
    let config = cbindgen::Config::from_file(ours().join("cbindgen.toml")).unwrap();
    let mut text = Vec::new();
    cbindgen::generate_with_config(ours(), config)
        .unwrap()
        .write(&mut text);
    String::from_utf8(text).unwrap()
}

/// With `BELLWIRE_BLESS=1` the header is written.
#[test]
fn the_header_is_fresh() {
    let text = generate();
    if std::env::var_os("BELLWIRE_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(header(), &text).unwrap();
    }
    let there = std::fs::read_to_string(header()).unwrap_or_default();
    assert!(
        there == text,
        "include/bellwire.h is stale: run `cargo xtask header`, or this test with BELLWIRE_BLESS=1"
    );
}

/// The names, less `prefix`, and the numbers of an enum of the header.
fn numbers(name: &str, prefix: &str) -> BTreeSet<(String, i64)> {
    let text = generate();
    let start = text.split_once(&format!("typedef enum {name} {{"));
    let (body, _) = start.expect(name).1.split_once('}').unwrap();
    body.lines()
        .filter_map(|line| line.trim().strip_suffix(',')?.split_once(" = "))
        .map(|(name, number)| {
            let name = name.strip_prefix(prefix).expect(name);
            (name.to_owned(), number.parse().unwrap())
        })
        .collect()
}

fn set<'a>(pairs: impl IntoIterator<Item = (&'a str, u32)>) -> BTreeSet<(String, i64)> {
    pairs
        .into_iter()
        .map(|(name, number)| (name.to_owned(), number.into()))
        .collect()
}

#[test]
fn its_numbers_are_those_of_core() {
    let statuses = WcStatus::ALL.iter().map(|s| (s.name(), s.number().into()));
    assert_eq!(numbers("bw_wc_status", "BW_WC_"), set(statuses));

    let opcodes = WcOpcode::ALL.iter().map(|o| (o.name(), o.number().into()));
    assert_eq!(numbers("bw_wc_opcode", "BW_WC_"), set(opcodes));

    // This cannot be posted through the header.
    let posted = |o: &&WrOpcode| !matches!(o, WrOpcode::Tso);
    let opcodes = WrOpcode::ALL.iter().filter(posted);
    let opcodes = opcodes.map(|o| (o.name(), o.number().into()));
    assert_eq!(numbers("bw_wr_opcode", "BW_WR_"), set(opcodes));

    let flags = SendFlags::all().iter_names();
    let flags = flags.map(|(name, flag)| (name, flag.bits().into()));
    assert_eq!(numbers("bw_send_flags", "BW_SEND_"), set(flags));

    let rights = AccessFlags::all().iter_names();
    let rights = rights.map(|(name, flag)| (name, flag.bits()));
    assert_eq!(numbers("bw_access_flags", "BW_ACCESS_"), set(rights));

    let events = EventType::ALL.iter().map(|e| (e.name(), e.number().into()));
    assert_eq!(numbers("bw_event_type", "BW_EVENT_"), set(events));

    let mask = QpAttrMask::all().iter_names();
    let mask = mask.map(|(name, bit)| (name, bit.bits()));
    assert_eq!(numbers("bw_qp_attr_mask", "BW_QP_"), set(mask));

    let states = QpState::ALL.iter().map(|s| (s.name(), s.number().into()));
    assert_eq!(numbers("bw_qp_state", "BW_QPS_"), set(states));

    for (name, number) in numbers("bw_mtu", "BW_MTU_") {
        let mtu = Mtu::from_number(number.try_into().unwrap()).unwrap();
        assert_eq!(mtu.bytes().to_string(), name);
    }
}
