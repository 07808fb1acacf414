//! A run of the guest: what it is to do goes in, its output comes out as it is made, and how each
//! command ended comes back.

use std::{
    env, fmt,
    io::{BufRead as _, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::io::{FdFlags, fcntl_setfd};

use super::{
    arch::Arch,
    folder::Folder,
    image,
    kernel::Kernel,
    qemu::{Machine, Share, Wiring},
};
use crate::{
    command::shown,
    run::{Skip, WORTH_REPORTING},
    steps::{GUEST, GUEST_AARCH64, need_packages},
    workspace::Workspace,
};

/// Far more than it takes to come up, also on a busy machine.
const BOOT_LIMIT: Duration = Duration::from_secs(900);

/// What QEMU has to end by itself after it has closed its output.
const END_LIMIT: Duration = Duration::from_secs(5);

/// How often the guest is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// A guest to be booted.
#[derive(Debug)]
pub struct Guest {
    /// What it is made of.
    pub machine: Machine,
    /// From its start to its end.
    pub limit: Duration,
    /// The folder that it may write; `vm/work` in the target folder if `None`.
    pub work: Option<PathBuf>,
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            machine: Machine::default(),
            limit: Duration::from_secs(2 * 3600),
            work: None,
        }
    }
}

/// How a command ended, as a shell reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u8);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("success"),
            124 => f.write_str("exit status 124: its time limit?"),
            127 => f.write_str("exit status 127: no such program in the guest?"),
            status @ 129..=192 => write!(f, "exit status {status}: signal {}", status - 128),
            status => write!(f, "exit status {status}"),
        }
    }
}

/// The guest was ended because its time was over.
#[derive(Debug)]
pub struct TimedOut(Duration);

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = self.0.as_secs();
        write!(f, "the guest was ended after {limit} s, its time limit")
    }
}

impl std::error::Error for TimedOut {}

/// Installs what a guest needs.
///
/// # Errors
/// A [`Skip`] that says what is lacking.
pub fn need_guest(arch: Arch) -> Result<()> {
    match arch {
        Arch::X86_64 if env::consts::ARCH != "x86_64" => {
            let reason = format!("the guest is x86-64, this machine {}", env::consts::ARCH);
            Err(Skip::lacking(reason, "an x86-64 machine"))
        }
        Arch::X86_64 => need_packages(&GUEST),
        Arch::Aarch64 => need_packages(&GUEST_AARCH64),
    }
}

impl Guest {
    /// Boots the guest, runs the commands in it, one after the other whatever becomes of them, and
    /// ends it. The arguments and the environment of the commands are used. Their output is passed
    /// on, and each line of their standard output given to `on_line`. Nothing that a command starts
    /// outlives it.
    ///
    /// # Errors
    /// A [`Skip`] where the guest is not available; [`TimedOut`]; that it died, with
    /// the last lines of its console.
    pub fn run(
        &self,
        workspace: &Workspace,
        commands: &[Command],
        on_line: impl FnMut(&str) + Send,
    ) -> Result<Vec<Status>> {
        let arch = self.machine.arch;
        need_guest(arch)?;
        let kernel = Kernel::get(arch)?;
        let folder = Folder::make(workspace, self.work.as_deref(), commands)?;
        let system = kernel.system();
        let busybox = arch.busybox(system.clone());
        image::write(&busybox, &kernel.modules(), &folder.initrd())?;
        let (run, mut shares) = (folder.run(), vec![Share::read_only("root", Path::new("/"))]);
        shares.push(Share::writable("run", &run));
        shares.push(Share::writable("work", &folder.work));
        if let Some(system) = &system {
            folder.make_places(workspace, system)?;
            shares.push(Share::read_only("system", system));
        }

        let (stdout, stdout_of_qemu) = UnixStream::pair()?;
        let (stderr, stderr_of_qemu) = UnixStream::pair()?;
        for socket in [&stdout_of_qemu, &stderr_of_qemu] {
            fcntl_setfd(socket, FdFlags::empty())?;
        }
        let mut qemu = self.machine.qemu(&Wiring {
            kernel: &kernel.image(),
            initrd: &folder.initrd(),
            console: &folder.console(),
            shares: &shares,
            ports: &[("stdout", &stdout_of_qemu), ("stderr", &stderr_of_qemu)],
        });
        let child = qemu
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start setpriv, of util-linux")?;
        // QEMU has the only ones now: its end is the end of what it sends.
        drop((stdout_of_qemu, stderr_of_qemu));

        let ended = thread::scope(|scope| {
            let stdout = scope.spawn(|| pass_on(stdout, std::io::stdout(), on_line));
            let stderr = scope.spawn(|| pass_on(stderr, std::io::stderr(), |_| ()));
            let closed = || stdout.is_finished() || stderr.is_finished();
            let ended = self.watch(Running(child), &folder, closed);
            for passed_on in [stdout, stderr] {
                let passed_on = passed_on.join().expect("passing on does not panic");
                passed_on.context("the guest was ended: its output could not be passed on")?;
            }
            ended
        });
        let statuses = folder.statuses(commands.len());
        // One alone is somebody's, who wants its output and nothing else.
        if commands.len() > 1 {
            for (command, took) in commands.iter().zip(folder.times(statuses.len())) {
                if took > WORTH_REPORTING {
                    let took = took.as_secs_f64();
                    println!("took {took:.1} s in the guest: {}", shown(command));
                }
            }
        }
        let Some(command) = commands.get(statuses.len()) else {
            return ended.map(|()| statuses);
        };
        let line = shown(command);
        if folder.is_up() {
            ended.with_context(|| format!("under `{line}`"))?;
        } else {
            ended?;
        }
        let tail = folder.console_tail();
        bail!("the guest died under `{line}`; the end of its console:\n{tail}");
    }

    /// Waits until QEMU has ended, or ends it: when the time is over, or its output goes nowhere.
    fn watch(
        &self,
        mut qemu: Running,
        folder: &Folder,
        output_closed: impl Fn() -> bool,
    ) -> Result<()> {
        let begun = Instant::now();
        let mut closed_since = None;
        loop {
            let up = folder.is_up();
            if let Some(status) = qemu.0.try_wait()? {
                if up {
                    return Ok(());
                }
                let tail = folder.console_tail();
                bail!(
                    "QEMU ended before the guest was up ({status}); the end of its console:\n{tail}"
                );
            }
            let limit = if up {
                self.limit
            } else {
                self.limit.min(BOOT_LIMIT)
            };
            if begun.elapsed() > limit {
                if up {
                    return Err(TimedOut(limit).into());
                }
                let (limit, tail) = (limit.as_secs(), folder.console_tail());
                let hint = self.machine.hint();
                bail!(
                    "the guest was not up after {limit} s{hint}; the end of its console:\n{tail}"
                );
            }
            if output_closed() {
                let since = closed_since.get_or_insert_with(Instant::now);
                if since.elapsed() > END_LIMIT {
                    return Ok(());
                }
            }
            thread::sleep(LOOK);
        }
    }
}

/// A QEMU that does not outlive this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Mostly it has ended by itself.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Copies what comes, as it comes.
fn pass_on(from: UnixStream, mut to: impl Write, mut on_line: impl FnMut(&str)) -> Result<()> {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        let bytes = from.fill_buf()?;
        if bytes.is_empty() {
            break;
        }
        to.write_all(bytes)?;
        to.flush()?;
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                on_line(&String::from_utf8_lossy(&line));
                line.clear();
            }
        }
        let length = bytes.len();
        from.consume(length);
    }
    if !line.is_empty() {
        on_line(&String::from_utf8_lossy(&line));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_what_it_means() {
        assert_eq!(Status(3).to_string(), "exit status 3");
        assert_eq!(Status(139).to_string(), "exit status 139: signal 11");
    }

    #[test]
    fn bytes_and_lines_are_passed_on() {
        let (mut from, to) = UnixStream::pair().unwrap();
        from.write_all(b"one\ntw\xff\n\nlast").unwrap();
        drop(from);
        let (mut bytes, mut lines) = (Vec::new(), Vec::new());
        pass_on(to, &mut bytes, |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(bytes, b"one\ntw\xff\n\nlast");
        assert_eq!(lines, ["one\n", "tw\u{fffd}\n", "\n", "last"]);
    }
}
