//! `cargo xtask vm`: a guest of QEMU with real RDMA devices, made by Linux's Soft-RoCE (rxe), in which
//! programs of the host run.
//!
//! The guest sees the host's files, but cannot change them; what it may write is one folder.

mod apt;
mod arch;
mod folder;
mod guest;
mod image;
mod kernel;
mod qemu;
mod script;

use std::{
    ffi::OsString,
    path::PathBuf,
    process::{Command, ExitCode},
    time::Duration,
};

pub use arch::Arch;
pub use guest::{Guest, Status, need_guest};
pub use qemu::Machine;

use crate::{steps, workspace::Workspace};
use guest::TimedOut;
use kernel::Kernel;

/// Downloads the kernel of the guest on x86-64, unless it is there already.
///
/// # Errors
/// It is not available.
pub fn fetch_kernel() -> anyhow::Result<()> {
    Kernel::get(Arch::X86_64).map(drop)
}

/// What `cargo xtask vm` takes.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Options {
    #[command(flatten)]
    machine: Machine,
    /// Seconds after which the guest is ended, whatever it does
    #[arg(long, default_value_t = 1800, value_name = "SECONDS")]
    timeout: u64,
    /// The folder that the guest may write, made if it is not there [default: vm/work in the target
    /// folder]
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// What to run in the guest; the tests of the guest when there is none
    #[arg(last = true)]
    command: Vec<OsString>,
}

const AFTER_HELP: &str = "\
The guest has Debian's kernel and the host's files, read-only; COMMAND starts in the workspace.
BELLWIRE_VM_WORK names the folder that it may write; /tmp, /run and /dev/shm are the guest's own.
COMMAND has no standard input. Build on the host, run in the guest. The devices:
  rxe0        on dummy0, 10.77.0.1
  rxe1, rxe2  on veth1, 10.78.0.1, and veth2, 10.78.0.2: a cable, cut by `ip link set veth1 down`
GID index 1 is the IPv4 address.

The exit status is COMMAND's, 128 and the signal's number if a signal ended it; 124 if the time limit
did; 125 if there was no guest, or it died.

With --arch aarch64 the guest's programs are those of Debian's packages for aarch64, with the workspace
and its target folder; COMMAND has to be built across:
  cargo build --target aarch64-unknown-linux-gnu

Installs the Debian packages that it needs. The kernel is kept in bellwire/vm in the cache folder
($XDG_CACHE_HOME, or ~/.cache), for aarch64 in bellwire/vm-aarch64; to be rid of it, delete that. No two guests of a target folder run at
once: the second waits.

  cargo xtask vm -- ibv_devinfo -v -d rxe0
  cargo xtask vm --icount -- target/release/examples/perf lat
  cargo xtask vm -- sh xtask/src/vm/pair.sh 18515 'ibv_rc_pingpong -d rxe1 -g 1' \\
      'ibv_rc_pingpong -d rxe2 -g 1 10.78.0.1'";

/// The exit statuses that are not the command's.
const TIMED_OUT: u8 = 124;
const NO_GUEST: u8 = 125;

/// Does what the options say.
pub fn vm(workspace: &Workspace, options: &Options) -> ExitCode {
    let guest = Guest {
        machine: options.machine,
        limit: Duration::from_secs(options.timeout),
        work: options.work.clone(),
    };
    let Some((program, args)) = options.command.split_first() else {
        return steps::test_in(&guest, workspace);
    };
    let mut command = Command::new(program);
    command.args(args);
    let statuses = guest.run(workspace, &[command], |_| ());
    match statuses.map(|statuses| statuses.first().copied()) {
        Ok(status) => ExitCode::from(status.map_or(NO_GUEST, |status| status.0)),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(if error.is::<TimedOut>() {
                TIMED_OUT
            } else {
                NO_GUEST
            })
        }
    }
}
