//! The command line of QEMU.

use std::{
    ffi::OsString,
    fs,
    os::{
        fd::AsRawFd,
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::Path,
    process::Command,
};

use super::arch::Arch;
use crate::command::command;

/// What the guest's machine is made of.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Machine {
    /// The guest's processor: aarch64 runs what was built across
    #[arg(long, value_enum, default_value_t = Arch::default(), conflicts_with = "kvm")]
    pub arch: Arch,
    /// Processors
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
    /// Memory, in MiB
    #[arg(long, default_value_t = 2048, value_name = "MIB", value_parser = clap::value_parser!(u32).range(512..))]
    memory: u32,
    /// Let the processor run the guest, by /dev/kvm, rather than emulate it
    #[arg(long)]
    kvm: bool,
    /// Let the guest's clock count instructions: one processor, each instruction a nanosecond
    #[arg(long, conflicts_with_all = ["kvm", "cpus"])]
    icount: bool,
}

impl Machine {
    /// One whose clock counts instructions.
    pub fn counting() -> Self {
        Self {
            cpus: 1,
            icount: true,
            ..Self::default()
        }
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            arch: Arch::default(),
            cpus: 2,
            memory: 2048,
            kvm: false,
            icount: false,
        }
    }
}

/// The kernel's command line. One that fails in any way ends; -no-reboot makes that QEMU's end.
const KERNEL: &str = "loglevel=5 oops=panic panic=-1";

/// What is added on x86-64.
const KERNEL_X86: [&str; 3] = [
    // An emulated timer that interrupts late, because this machine is busy, is no broken one.
    "no_timer_check",
    // Emulated processors do not speculate.
    "mitigations=off",
    // A level less to walk at each miss of the emulated TLB.
    "no5lvl",
];

/// Takes the processors' counter for the time, which is this machine's. Linux does not do so by itself, and then
/// asks an emulated device, which leaves the emulation each time.
const COUNTER: &str = "tsc=reliable clocksource=tsc";

fn kernel_options(arch: Arch) -> String {
    let mut options = vec![format!("console={} {KERNEL}", arch.console())];
    if arch == Arch::X86_64 {
        let here =
            fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        // It is a clock if this machine's kernel takes it for one.
        let counter = here.is_ok_and(|name| ["tsc", "kvm-clock"].contains(&name.trim()));
        options.extend(KERNEL_X86.map(str::to_owned));
        options.extend(counter.then(|| COUNTER.to_owned()));
    }
    options.join(" ")
}

/// A folder of the host that the guest can mount.
pub struct Share<'a> {
    tag: &'static str,
    path: &'a Path,
    writable: bool,
}

impl<'a> Share<'a> {
    /// One that the guest can only read.
    pub fn read_only(tag: &'static str, path: &'a Path) -> Self {
        let writable = false;
        Self {
            tag,
            path,
            writable,
        }
    }

    /// One that the guest can write, too.
    pub fn writable(tag: &'static str, path: &'a Path) -> Self {
        let writable = true;
        Self {
            tag,
            path,
            writable,
        }
    }
}

/// What the guest is connected with.
pub struct Wiring<'a> {
    pub kernel: &'a Path,
    pub initrd: &'a Path,
    /// A file for what the kernel and the init script say.
    pub console: &'a Path,
    pub shares: &'a [Share<'a>],
    /// Sockets, by the name that the port has in the guest. QEMU has to inherit them.
    pub ports: &'a [(&'static str, &'a dyn AsRawFd)],
}

impl Machine {
    /// QEMU, which ends when the thread that started it does, however that ends.
    pub fn qemu(self, wiring: &Wiring<'_>) -> Command {
        let mut qemu = command(&format!(
            "setpriv --pdeathsig KILL -- {} -nodefaults -no-user-config -no-reboot -display none",
            self.arch.qemu()
        ));
        let (accel, processor) = match (self.kvm, self.icount) {
            (true, _) => ("kvm", "host"),
            (_, true) => ("tcg", self.arch.processor()),
            // Each processor on one of this machine's; what may be seen out of order there is in order here.
            _ => ("tcg,thread=multi", self.arch.processor()),
        };
        qemu.args(["-accel", accel, "-cpu", processor]);
        if self.icount {
            qemu.args(["-icount", "shift=0,sleep=off"]);
        }
        let cpus = if self.icount { 1 } else { self.cpus };
        qemu.arg("-smp").arg(cpus.to_string());
        qemu.arg("-m").arg(format!("{}M", self.memory));
        qemu.arg("-kernel").arg(wiring.kernel);
        qemu.arg("-initrd").arg(wiring.initrd);
        qemu.arg("-append").arg(kernel_options(self.arch));
        qemu.arg("-chardev")
            .arg(option("file,id=console,path=", wiring.console));
        qemu.args(["-serial", "chardev:console"]);
        for share in wiring.shares {
            let readonly = if share.writable { "off" } else { "on" };
            let tag = share.tag;
            let options = format!(
                "local,mount_tag={tag},security_model=none,multidevs=remap,readonly={readonly},path="
            );
            qemu.arg("-virtfs").arg(option(&options, share.path));
        }
        qemu.args(["-device", "virtio-serial-pci"]);
        for (name, socket) in wiring.ports {
            let fd = socket.as_raw_fd();
            qemu.arg("-chardev")
                .arg(format!("socket,id={name},fd={fd}"));
            qemu.arg("-device")
                .arg(format!("virtserialport,chardev={name},name={name}"));
        }
        qemu
    }

    /// What to try when the guest does not come up.
    pub fn hint(self) -> &'static str {
        if self.kvm {
            " (/dev/kvm does not work on every machine: try without --kvm)"
        } else {
            ""
        }
    }
}

/// An option that ends with a path; QEMU wants a comma in it twice.
fn option(start: &str, path: &Path) -> OsString {
    let mut bytes = start.as_bytes().to_vec();
    for &byte in path.as_os_str().as_bytes() {
        bytes.push(byte);
        if byte == b',' {
            bytes.push(byte);
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(machine: Machine) -> String {
        let wiring = Wiring {
            kernel: Path::new("vmlinuz"),
            initrd: Path::new("initrd"),
            console: Path::new("a,b"),
            shares: &[
                Share::read_only("root", Path::new("/")),
                Share::writable("work", Path::new("/w")),
            ],
            ports: &[("stdout", &std::io::stdout())],
        };
        crate::command::shown(&machine.qemu(&wiring))
    }

    #[test]
    fn emulation_is_the_default() {
        let line = line(Machine::default());
        assert!(line.contains("-accel tcg,thread=multi"), "{line}");
        assert!(line.contains("-smp 2 -m 2048M"), "{line}");
    }

    #[test]
    fn instructions_are_counted_on_one_processor() {
        let line = line(Machine {
            icount: true,
            ..Machine::default()
        });
        assert!(line.contains("-icount shift=0,sleep=off -smp 1"), "{line}");
    }

    #[test]
    fn only_what_is_to_be_written_can_be() {
        let line = line(Machine::default());
        let share = |tag| {
            let start = line.find(&format!("mount_tag={tag}")).unwrap();
            line[start..].split_whitespace().next().unwrap()
        };
        assert!(share("root").ends_with("readonly=on,path=/"), "{line}");
        assert!(share("work").ends_with("readonly=off,path=/w"), "{line}");
    }

    #[test]
    fn commas_of_paths_are_doubled() {
        assert!(line(Machine::default()).contains("path=a,,b"));
    }
}
