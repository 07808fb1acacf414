//! What the steps need on the machine: a table of it, and the steps that install it.

use std::{
    collections::BTreeSet,
    env,
    io::{self, IsTerminal as _, Write as _},
    process::Command,
    thread,
};

use anyhow::Result;

use super::aarch64;
use crate::{
    command::{command, on_path, output_of},
    run::{Run, Skip},
    vm,
    workspace::Workspace,
};

/// Debian packages that building and testing needs. This, [`AARCH64`], [`BARE`], [`UVERBS`], [`GUEST`],
/// [`GUEST_AARCH64`], [`NVMF`], [`NVMF_GUEST`] and [`RDMA_SYS`] are the places that name them.
const APT: [&str; 15] = [
    "bubblewrap",
    "clang",
    "cmake",
    "g++",
    "gcc",
    "git",
    "libc6-dev",
    "libclang-dev",
    "libibverbs-dev",
    "librdmacm-dev",
    "liburing-dev",
    "libuv1-dev",
    "pkg-config",
    "strace",
    "valgrind",
];

/// Debian packages that build for aarch64, and run what they built; qemu-user steps through programs, too.
pub const AARCH64: [&str; 3] = [
    "gcc-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
    "qemu-user",
];

/// Debian packages that `cargo xtask vm` needs: to boot a guest, and what runs in it.
pub const GUEST: [&str; 10] = [
    "busybox-static",
    "cpio",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "kmod",
    "perftest",
    "qemu-system-x86",
    "rdmacm-utils",
    "xz-utils",
];

/// Debian packages that `cargo xtask vm --arch aarch64` needs: what builds for it, and boots it. What runs in the
/// guest is downloaded beside its kernel.
pub const GUEST_AARCH64: [&str; 6] = [
    "cpio",
    "gcc-aarch64-linux-gnu",
    "kmod",
    "libc6-dev-arm64-cross",
    "qemu-system-arm",
    "xz-utils",
];

/// Debian packages that the NVMe-oF target is built with.
pub const NVMF: [&str; 4] = ["cmake", "gcc", "liburing-dev", "pkg-config"];

/// Debian packages of the programs that use its disk in the guest.
pub const NVMF_GUEST: [&str; 5] = ["e2fsprogs", "fio", "nvme-cli", "rocksdb-tools", "sqlite3"];

/// Debian packages of which a host is made that has Rust and a C linker alone, and what runs programs there.
pub const BARE: [&str; 3] = ["bubblewrap", "gcc", "libc6-dev"];

/// Debian packages whose programs and libraries run on the stand-in for the kernel.
pub const UVERBS: [&str; 4] = [
    "gcc",
    "ibverbs-providers",
    "ibverbs-utils",
    "libibverbs-dev",
];

/// Debian packages that `rdma-sys` is built with.
pub const RDMA_SYS: [&str; 4] = [
    "libclang-dev",
    "libibverbs-dev",
    "librdmacm-dev",
    "pkg-config",
];

const CARGO_HACK: &str = "0.6.46";
const MDBOOK: &str = "0.5.4";

/// A target without an operating system: code that reaches for `std` does not build for it.
pub const BARE_TARGET: &str = "x86_64-unknown-none";

/// The same of another architecture.
pub const BARE_AARCH64: &str = "aarch64-unknown-none";

/// A target with another C library than GNU's, and with 32-bit pointers and numbers of the system.
pub const MUSL_32: &str = "i686-unknown-linux-musl";

/// The other order of bytes.
pub const BIG_ENDIAN: &str = "s390x-unknown-linux-gnu";

/// Something that rustup or cargo installs.
pub struct Tool {
    name: String,
    /// A command that has a line starting with `expect` in its output when the tool is there.
    probe: &'static str,
    expect: String,
    install: String,
}

impl Tool {
    fn new(
        name: impl Into<String>,
        probe: &'static str,
        expect: impl Into<String>,
        install: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            probe,
            expect: expect.into(),
            install: install.into(),
        }
    }

    fn installed(&self) -> bool {
        output_of(self.probe)
            .is_some_and(|text| text.lines().any(|line| line.starts_with(&self.expect)))
    }

    /// Ends the calling step when the tool is not there.
    ///
    /// # Errors
    /// A [`Skip`] that says how to get it.
    pub fn need(&self) -> Result<()> {
        if self.installed() {
            return Ok(());
        }
        Err(Skip::lacking(
            format!("{} is not installed", self.name),
            format!("`cargo xtask test tools` or `{}`", self.install),
        ))
    }
}

/// The like of [`Tool::need`] for a program that comes with a Debian package of the same name.
///
/// # Errors
/// A [`Skip`] that says how to get it.
pub fn need_program(name: &str) -> Result<()> {
    if on_path(name) {
        return Ok(());
    }
    Err(Skip::lacking(
        format!("{name} is not installed"),
        format!("`cargo xtask test packages` or `apt-get install {name}`"),
    ))
}

/// Installs a Debian package that few need, if its program is not there.
///
/// # Errors
/// A [`Skip`] that says how to get it.
pub fn need_package(package: &'static str, program: &str) -> Result<()> {
    if !on_path(program) {
        install(&[package]);
    }
    if on_path(program) {
        return Ok(());
    }
    Err(Skip::lacking(
        format!("{program} is not installed"),
        format!("`apt-get install {package}`"),
    ))
}

/// Installs the packages that are missing.
///
/// # Errors
/// A [`Skip`] that says how to get them.
pub fn need_packages(packages: &[&'static str]) -> Result<()> {
    let missing = missing_packages(packages);
    if missing.is_empty() {
        return Ok(());
    }
    install(&missing);
    let lacking = missing_packages(&missing);
    if lacking.is_empty() {
        return Ok(());
    }
    Err(Skip::lacking(
        format!("not installed: {}", lacking.join(", ")),
        format!("`apt-get install {}`", lacking.join(" ")),
    ))
}

pub fn rustfmt() -> Tool {
    let install = "rustup component add rustfmt";
    Tool::new("rustfmt", "cargo fmt --version", "rustfmt", install)
}

pub fn clippy() -> Tool {
    let install = "rustup component add clippy";
    Tool::new("clippy", "cargo clippy --version", "clippy", install)
}

pub fn bare_targets() -> [Tool; 2] {
    [BARE_TARGET, BARE_AARCH64].map(rust_target)
}

pub fn rust_target(name: &str) -> Tool {
    Tool::new(
        format!("the target {name}"),
        "rustup target list --installed",
        name,
        format!("rustup target add {name}"),
    )
}

pub fn cargo_hack() -> Tool {
    cargo_program("cargo-hack", CARGO_HACK)
}

/// Without its server, and without what searches books.
pub fn mdbook() -> Tool {
    let mut tool = cargo_program("mdbook", MDBOOK);
    tool.install.push_str(" --no-default-features");
    tool
}

/// The oldest Rust that the workspace builds with.
///
/// # Errors
/// No manifest names it.
pub fn oldest_rust(workspace: &Workspace) -> Result<Tool> {
    let version = workspace.oldest_rust()?;
    Ok(Tool::new(
        format!("Rust {version}"),
        "rustup toolchain list",
        format!("{version}-"),
        format!("rustup toolchain install {version} --profile minimal"),
    ))
}

/// The runner and the library speak a private protocol: both must have the same version.
pub fn gungraun_runner(workspace: &Workspace) -> Option<Tool> {
    let version = workspace.locked_version("gungraun")?;
    Some(cargo_program("gungraun-runner", &version))
}

fn cargo_program(name: &str, version: &str) -> Tool {
    Tool::new(
        format!("{name} {version}"),
        "cargo install --list",
        format!("{name} v{version}:"),
        format!("cargo install {name} --debug --locked --version ={version}"),
    )
}

pub fn for_miri() -> [Tool; 3] {
    [
        nightly(),
        nightly_component("miri"),
        nightly_component("rust-src"),
    ]
}

pub fn for_tsan() -> [Tool; 2] {
    [nightly(), nightly_component("rust-src")]
}

fn nightly() -> Tool {
    Tool::new(
        "a nightly toolchain",
        "rustup toolchain list",
        "nightly",
        "rustup toolchain install nightly --profile minimal",
    )
}

fn nightly_component(name: &str) -> Tool {
    Tool::new(
        name,
        "rustup +nightly component list --installed",
        name,
        format!("rustup +nightly component add {name}"),
    )
}

/// The room on the disks, of which a whole run takes some 10 GB.
fn disk_space() -> Option<String> {
    let free = output_of("df --output=avail -BG . /tmp")?;
    let free: Vec<_> = free.split_whitespace().skip(1).collect();
    Some(format!(
        "free on the disks of target and /tmp: {}",
        free.join(", ")
    ))
}

/// What is installed of rustup's.
fn parts(workspace: &Workspace) -> Result<Vec<Tool>> {
    let mut parts = vec![rustfmt(), clippy()];
    parts.extend(bare_targets());
    parts.extend([aarch64::TARGET, MUSL_32, BIG_ENDIAN].map(rust_target));
    parts.push(oldest_rust(workspace)?);
    parts.extend(for_miri());
    Ok(parts)
}

/// The programs that cargo installs.
fn programs(workspace: &Workspace) -> Vec<Tool> {
    let mut programs = vec![cargo_hack(), mdbook()];
    programs.extend(gungraun_runner(workspace));
    programs
}

/// Groups of Debian packages: what one lacks keeps no other from being installed.
const GROUPS: [&[&str]; 5] = [&APT, &AARCH64, &GUEST, &NVMF, &NVMF_GUEST];

/// All packages that the step `packages` installs.
fn all_packages() -> Vec<&'static str> {
    let mut all = GROUPS.concat();
    all.sort_unstable();
    all.dedup();
    all
}

/// In the environment of steps, "no": they install nothing.
const MAY_INSTALL: &str = "BELLWIRE_INSTALL";

/// Asks whether steps may install what is missing, where somebody can answer, and has them install nothing
/// otherwise.
///
/// # Errors
/// No manifest names the oldest Rust.
pub fn ask_to_install(workspace: &Workspace, steps: &mut Command) -> Result<()> {
    let tools = parts(workspace)?.into_iter().chain(programs(workspace));
    let missing = tools.filter(|tool| !tool.installed()).map(|tool| tool.name);
    let packages = missing_packages(&all_packages());
    let packages = packages.iter().map(|name| format!("package {name}"));
    let missing: Vec<String> = missing.chain(packages).collect();
    if !missing.is_empty() && !agreed(&missing) {
        println!("Nothing will be installed. --yes installs without asking.");
        steps.env(MAY_INSTALL, "no");
    }
    Ok(())
}

fn agreed(missing: &[String]) -> bool {
    println!("missing, of all that steps use: {}", missing.join(", "));
    if !io::stdin().is_terminal() {
        return false;
    }
    print!(
        "May steps install what they need, by rustup, cargo and apt-get (as root, or by sudo)? [y/N] "
    );
    let mut answer = String::new();
    // What cannot be read is no.
    let _ = io::stdout().flush();
    let _ = io::stdin().read_line(&mut answer);
    is_yes(&answer)
}

fn is_yes(answer: &str) -> bool {
    ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}

/// Installs what is missing of rustup and cargo, and says what is there. What cannot be installed makes the step
/// "could not run"; the steps that need it say so again.
pub fn tools(workspace: &Workspace) -> Result<Run> {
    let (parts, programs) = (parts(workspace)?, programs(workspace));
    // Parts of toolchains are downloaded, programs are built meanwhile.
    let refused = thread::scope(|scope| {
        let parts = scope.spawn(|| parts.iter().filter_map(refused).collect::<Vec<_>>());
        let mut refused: Vec<String> = programs.iter().filter_map(refused).collect();
        refused.extend(parts.join().expect("installing does not panic"));
        refused
    });
    installed("tools", refused)
}

/// The same of Debian's packages, and of the guest's kernel.
pub fn packages(_: &Workspace) -> Result<Run> {
    let lacking = install_packages(&all_packages());
    let mut refused = Vec::new();
    for group in GROUPS.iter().filter(|_| !lacking.is_empty()) {
        let lacking = install_packages(group);
        if !lacking.is_empty() {
            refused.push(format!("apt-get install {}", lacking.join(" ")));
        }
    }
    // The step that boots the guest says why, if there is none.
    if refused.is_empty() && vm::fetch_kernel().is_err() {
        println!("NOT DOWNLOADED: the guest's kernel");
    }
    installed("packages", refused)
}

/// The result of a step that installs: the commands that failed to.
fn installed(what: &str, mut refused: Vec<String>) -> Result<Run> {
    refused.sort();
    if refused.is_empty() {
        let mut run = Run::default();
        run.notes.extend(disk_space());
        return Ok(run);
    }
    let reason = format!("{} of the {what} could not be installed", refused.len());
    Err(Skip::lacking(reason, format!("`{}`", refused.join("`, `"))))
}

/// Installs a tool, and gives the command if that failed to.
fn refused(tool: &Tool) -> Option<String> {
    if tool.installed() {
        println!("there already: {}", tool.name);
        return None;
    }
    attempt(&mut command(&tool.install));
    if tool.installed() {
        println!("installed: {}", tool.name);
        return None;
    }
    println!("NOT INSTALLED: {}", tool.name);
    Some(tool.install.clone())
}

/// Installs those of the packages that are missing, and says what became of each; returns those that
/// are missing still.
fn install_packages(packages: &[&'static str]) -> Vec<&'static str> {
    let missing = missing_packages(packages);
    for package in packages.iter().filter(|package| !missing.contains(package)) {
        println!("there already: package {package}");
    }
    if missing.is_empty() {
        return missing;
    }
    install(&missing);
    let still_missing = missing_packages(packages);
    for package in missing {
        let result = if still_missing.contains(&package) {
            "NOT INSTALLED"
        } else {
            "installed"
        };
        println!("{result}: package {package}");
    }
    still_missing
}

fn install(packages: &[&str]) {
    if attempt(&mut as_root("apt-get update")) {
        let install = "apt-get install -y --no-install-recommends";
        attempt(as_root(install).args(packages));
    }
}

fn missing_packages(packages: &[&'static str]) -> Vec<&'static str> {
    let query = "dpkg-query -W --showformat=${Package}:${db:Status-Status}\\n";
    let listing = output_of(query).unwrap_or_default();
    let there = installed_packages(&listing);
    (packages.iter().copied())
        .filter(|package| !there.contains(package))
        .collect()
}

/// The names in dpkg-query's `package:status` lines whose status is `installed`.
fn installed_packages(listing: &str) -> BTreeSet<&str> {
    listing
        .lines()
        .filter_map(|line| line.strip_suffix(":installed"))
        .collect()
}

/// The command as root, by sudo where we are not; never asking for a password.
pub fn as_root(words: &str) -> Command {
    let root = output_of("id -u").is_some_and(|id| id.trim() == "0");
    let sudo = if root { "" } else { "sudo -n " };
    command(&format!("{sudo}env DEBIAN_FRONTEND=noninteractive {words}"))
}

/// Runs an installer. Its failure is no failed test: what counts is whether the tool is there.
fn attempt(installer: &mut Command) -> bool {
    if env::var_os(MAY_INSTALL).is_some_and(|value| value == "no") {
        return false;
    }
    Run::default().command(installer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_packages_are_not_installed() {
        let listing =
            "gcc:installed\nstrace:config-files\nvalgrind:half-configured\ng++:installed\n";
        assert_eq!(
            installed_packages(listing).into_iter().collect::<Vec<_>>(),
            ["g++", "gcc"]
        );
        assert!(installed_packages("").is_empty());
    }

    #[test]
    fn only_yes_is_an_agreement() {
        assert!(["y\n", "Yes\n"].iter().all(|answer| is_yes(answer)));
        assert!(
            ["", "\n", "n\n", "why\n"]
                .iter()
                .all(|answer| !is_yes(answer))
        );
    }

    #[test]
    fn a_tool_is_known_by_how_a_line_starts() {
        let tool = |expect: &str| Tool::new("x", "echo cargo-hack v0.6.4:", expect, "false");
        assert!(tool("cargo-hack v0.6.4:").installed());
        assert!(!tool("cargo-hack v0.6.46:").installed());
        assert!(!tool("hack").installed());
    }

    #[test]
    fn a_missing_tool_is_a_skip_that_says_how_to_get_it() {
        let tool = Tool::new("x", "false", "", "install it");
        let skip = tool.need().unwrap_err().downcast::<Skip>().unwrap();
        assert!(skip.get.contains("install it"));
        let skip = need_program("no-such-program").unwrap_err();
        assert!(skip.is::<Skip>());
    }
}
