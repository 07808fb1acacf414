//! Where the links are, and what their page says of it.

use super::super::hca::Hca;
use super::super::world::{Shape, World};
use super::Page;
use bellwire::cqe::Syndrome;
use bellwire::wr::WcStatus;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the links are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On a software HCA whose clock moves when it is advanced.
    Soft,
    /// On a ConnectX device by its rings, in real time.
    ConnectX,
}

const SOFT: &str = "# Fault matrix\n\n\
         Every fault that the software HCA can be made to have, met by two [links](../hw/bellwire/src/link/mod.rs) \
         with traffic both ways. Written by `cargo xtask faults`; a test holds it to what happens.\n\n\
         Six requests are posted at once, and the fault befalls the third: a SEND, a WRITE, a READ or \
         an atomic. A row shows what became of it, and of a SEND, a WRITE and a READ behind it where the \
         third was a SEND, under `Replay::Surface`. Every row is run under `IfSafe` and `Anyway` as \
         well. In every row each request is reported once, the reports and the memory agree with the device's journal, \
         and all buffers come back. Unless the links were given up, messages flow both ways afterwards. `works on`: no new connection. What each fault means: \
         [faults](faults.md).\n";

const CONNECTX: &str = "# Fault matrix of ConnectX devices\n\n\
     The [fault matrix](fault-matrix.md), which says how to read it, on a ConnectX device by its own \
     rings: on [the stand-in for the kernel](../ARCHITECTURE.md#the-stand-in-for-the-kernel), whose \
     device has the faults injected. Events come through libibverbs, statuses as syndromes of error \
     entries. Written by `cargo xtask faults --mlx5`; the step `uverbs` holds it to what happens.\n";

impl Place {
    /// Two links there.
    pub fn world(self) -> World {
        let hca = match self {
            Self::Soft => Hca::soft(1),
            Self::ConnectX => Hca::connectx(),
        };
        World::on(hca, 1, false, Shape::PLAIN)
    }

    pub const fn page(self) -> &'static str {
        match self {
            Self::Soft => "fault-matrix.md",
            Self::ConnectX => "fault-matrix-mlx5.md",
        }
    }

    /// Where the page is.
    pub fn path(self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../docs")
            .join(self.page())
    }

    /// What writes the page.
    pub const fn renew(self) -> &'static str {
        match self {
            Self::Soft => "cargo xtask faults",
            Self::ConnectX => "cargo xtask faults --mlx5",
        }
    }

    pub const fn intro(self) -> &'static str {
        match self {
            Self::Soft => SOFT,
            Self::ConnectX => CONNECTX,
        }
    }

    /// Whether a completion can report it.
    pub fn reports(self, status: WcStatus) -> bool {
        // A syndrome without a name is a general error.
        self == Self::Soft || status == WcStatus::GeneralErr || Syndrome::of(status).is_some()
    }
}

/// Says which rows came out as on the software HCA, and which cannot be there.
pub fn compare(page: &mut Page) {
    let soft = fs::read_to_string(Place::Soft.path()).unwrap_or_default();
    let rows = |of: &'static str, text: &str| -> Vec<String> {
        let rows = text.lines().filter(|line| line.starts_with(of));
        rows.map(str::to_owned).collect()
    };
    let (there, here) = (rows("| ", &soft), rows("| ", &page.text));
    let name = |row: &String| row.split('|').nth(1).unwrap_or_default().trim().to_owned();
    let names: Vec<String> = here.iter().map(name).collect();
    let heading = |row: &&String| name(row) != "fault";
    let same = here
        .iter()
        .filter(heading)
        .filter(|row| there.contains(row));
    let same = same.count();
    let other = here
        .iter()
        .filter(heading)
        .filter(|row| !there.contains(row));
    let other: Vec<String> = other.map(name).collect();
    let lacking = there.iter().map(name).filter(|row| !names.contains(row));
    let lacking: Vec<String> = lacking.collect();
    let other = match &other[..] {
        [] => "none otherwise".to_owned(),
        some => format!("otherwise {}", some.join(", ")),
    };
    let about = format!(
        "\n{same} rows came out as on the software HCA, {other}. Not here, for no syndrome says them: {}. A \
         device that meant one of them would say it by a syndrome without a name, which is GENERAL_ERR. Where \
         the device breaks the stand-in flushes the requests in flight, with FATAL_ERR in reserved bytes; a real \
         one may report nothing, which `tests/tests/link/device/stand_in.rs` has.\n",
        lacking.join(", ")
    );
    page.text.insert_str(Place::ConnectX.intro().len(), &about);
}
