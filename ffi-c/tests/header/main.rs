//! The header in `include` is what the source gives, and its numbers are core's.

use hw::AccessFlags;
use hw::fault::{Blame, CmEvent, EventType, Execution, Recovery, Retry, Scope, WcStatus};
use hw::state::{Mtu, QpAttrMask, QpState};
use hw::wr::{SendFlags, WcOpcode, WrOpcode};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Once;

mod numbers;

fn ours() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header() -> PathBuf {
    ours().join("../include/bellwire.h")
}

fn bless() -> bool {
    std::env::var_os("BELLWIRE_BLESS").is_some_and(|value| value == "1")
}

/// The text at `path` is `text`, or is so from now on with `BELLWIRE_BLESS=1`.
fn fresh(path: &Path, text: &str) {
    if bless() {
        std::fs::write(path, text).unwrap();
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        there == text,
        "{} is stale: run `cargo xtask header`, or this test with BELLWIRE_BLESS=1",
        path.display()
    );
}

/// The header that the source gives. Its constants of faults are checked, or written, before.
fn generate() -> String {
    static NUMBERS: Once = Once::new();
    NUMBERS.call_once(|| fresh(&numbers::path(), &numbers::generate()));
    let config = cbindgen::Config::from_file(ours().join("cbindgen.toml")).unwrap();
    let mut text = Vec::new();
    cbindgen::generate_with_config(ours(), config)
        .unwrap()
        .write(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn the_header_is_fresh() {
    fresh(&header(), &generate());
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
    macro_rules! same {
        ($($family:ident $name:literal $prefix:literal)*) => {$(
            let rows = $family::ALL.iter();
            let rows = rows.map(|row| (row.name(), row.number().into()));
            assert_eq!(numbers($name, $prefix), set(rows));
        )*};
    }
    same! {
        WcStatus "bw_wc_status" "BW_WC_"
        EventType "bw_event_type" "BW_EVENT_"
        CmEvent "bw_cm_event_type" "BW_CM_EVENT_"
        Scope "bw_scope" "BW_SCOPE_"
        Blame "bw_blame" "BW_BLAME_"
        Retry "bw_retry" "BW_RETRY_"
        Execution "bw_execution" "BW_EXECUTION_"
        Recovery "bw_recovery" "BW_RECOVERY_"
    }

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
