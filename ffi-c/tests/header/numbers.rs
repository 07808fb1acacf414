//! `src/fault_number.rs`: the constants of the faults and of their classes, of core's table. It is
//! written out because what reads the source for the header knows no macros.

use hw::fault::{Blame, CmEvent, EventType, Execution, Recovery, Retry, Scope, WcStatus};
use std::fmt::Write;
use std::path::{Path, PathBuf};

const WIDTH: usize = 100;

pub fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fault_number.rs")
}

fn comment(to: &mut String, indent: &str, text: &str) {
    let start = format!("{indent}///");
    let mut line = start.clone();
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            writeln!(to, "{line}").unwrap();
            line.clone_from(&start);
        }
        line.push(' ');
        line.push_str(word);
    }
    writeln!(to, "{line}").unwrap();
}

/// The enum of a family of core's.
macro_rules! constants {
    ($to:expr, $family:ident, $name:literal, $prefix:literal, $doc:literal) => {
        $to.push('\n');
        comment($to, "", $doc);
        let head = "#[derive(Clone, Copy, Debug, PartialEq, Eq)]\n#[repr(C)]\npub enum";
        writeln!($to, "{head} {} {{", $name).unwrap();
        for row in $family::ALL {
            comment($to, "    ", &row.text());
            writeln!($to, "    {}{} = {},", $prefix, row.name(), row.number()).unwrap();
        }
        $to.push_str("}\n");
    };
}

pub fn generate() -> String {
    let mut text = String::from(
        "//! The numbers of faults and of their classes. Generated from core's table of faults by\n\
         //! `cargo xtask header`.\n",
    );
    let to = &mut text;
    constants!(
        to,
        WcStatus,
        "bw_wc_status",
        "BW_WC_",
        "What became of a request (`ibv_wc_status`)."
    );
    constants!(
        to,
        EventType,
        "bw_event_type",
        "BW_EVENT_",
        "What happened that no completion reports (`ibv_event_type`)."
    );
    constants!(
        to,
        CmEvent,
        "bw_cm_event_type",
        "BW_CM_EVENT_",
        "What the communication manager reports (`rdma_cm_event_type`)."
    );
    constants!(
        to,
        Scope,
        "bw_scope",
        "BW_SCOPE_",
        "How far a fault reaches."
    );
    constants!(
        to,
        Blame,
        "bw_blame",
        "BW_BLAME_",
        "The part that most likely caused a fault."
    );
    constants!(
        to,
        Retry,
        "bw_retry",
        "BW_RETRY_",
        "Whether the same request, or call, can succeed if it is tried again after the recovery."
    );
    constants!(
        to,
        Execution,
        "bw_execution",
        "BW_EXECUTION_",
        "What a fault says of the request at the peer."
    );
    constants!(
        to,
        Recovery,
        "bw_recovery",
        "BW_RECOVERY_",
        "What makes work possible again."
    );
    text
}
