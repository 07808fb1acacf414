//! The project's own commands: `cargo xtask test` runs everything that decides whether the tree is
//! good, `cargo xtask header` regenerates the C header, `cargo xtask conformance` the verdicts of
//! the conformance suite, `cargo xtask faults` the page of faults, `cargo xtask race`
//! races it against UCX and iceoryx2, `cargo xtask cost` compares it with libibverbs, `cargo xtask vm` runs
//! programs where there are real RDMA devices.

mod bare;
mod c_cost;
mod callgrind;
mod command;
mod cost;
mod crates;
mod deb;
mod excerpt;
mod install;
mod latency;
mod library;
mod libtest;
mod man;
mod mlx5_cost;
mod page;
mod pages;
mod prose;
mod race;
mod report;
mod run;
mod stepper;
mod steps;
mod sys;
mod vm;
mod workspace;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand, builder::PossibleValuesParser};

use crate::workspace::Workspace;

/// bellwire's own commands.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    job: Job,
}

#[derive(Subcommand)]
enum Job {
    /// Run the whole test command, or only the steps that are named.
    Test {
        /// Steps to run, in the order of `--list`; all when none is named. `quick` is none of those: what
        /// finds most in a few minutes, before a commit.
        #[arg(value_parser = PossibleValuesParser::new(steps::list().map(|(name, _)| name)), hide_possible_values = true)]
        step: Vec<String>,
        /// List the steps and run nothing.
        #[arg(long)]
        list: bool,
        /// Install what steps need without asking; so does CI=true in the environment.
        #[arg(long)]
        yes: bool,
    },
    /// Run one step of `test` in this process, and leave how it ended in a file.
    #[command(hide = true)]
    Step { name: String, result: PathBuf },
    /// Regenerate include/bellwire.h from ffi-c.
    Header,
    /// Run the conformance suite on the software HCA, and write its verdicts: those of tests/data/conformance,
    /// docs/conformance.md, and the full table of rules in target/conformance.
    Conformance {
        /// On Soft-RoCE in the guest.
        #[arg(long)]
        verbs: bool,
        /// On ConnectX rings and on libmlx5, with the stand-in for the kernel.
        #[arg(long, conflicts_with = "verbs")]
        mlx5: bool,
    },
    /// Regenerate docs/faults.md from core's tables of faults, and docs/fault-matrix.md from what links
    /// do about them.
    Faults {
        /// docs/fault-matrix-mlx5.md instead, from a run on the stand-in for the kernel.
        #[arg(long)]
        mlx5: bool,
    },
    /// Race bellwire against UCX and iceoryx2 between two processes, and write docs/performance.md's tables.
    /// Installs ucx-utils, libucx-dev and valgrind. For a quiet machine.
    Race(race::Options),
    /// Count the instructions of operations on Soft-RoCE, by bellwire and by libibverbs itself, time them
    /// beside perftest, and write docs/performance.md's tables. Installs libibverbs-dev and what the
    /// guest needs.
    Cost,
    /// Time calls of the C interface beside the same from Rust, and write docs/performance.md's table. For a
    /// quiet machine.
    CCost,
    /// Time and count posting and polling on a ConnectX device by its rings, beside libmlx5's own ways, on the
    /// stand-in for the kernel, and write docs/performance.md's table. For a quiet machine.
    Mlx5Cost,
    /// Write ARCHITECTURE.md's picture of the crates.
    Crates,
    /// Write the declarations of libibverbs and librdmacm in hw/sys, from rdma-sys. Needs libibverbs-dev,
    /// librdmacm-dev, and libclang-dev of a version before 16.
    Sys {
        /// Write nothing: fail if they are not what would be written.
        #[arg(long)]
        check: bool,
    },
    /// Build the C library, and install it: libraries, headers, manual pages, and files for pkg-config and CMake.
    Install(install::Options),
    /// Make Debian packages of the C library and of programs. Installs dpkg-dev.
    Deb(deb::Options),
    /// Remove what `install` with the same options has put down.
    Uninstall(install::Place),
    /// Boot a guest that has real RDMA devices (Soft-RoCE), and run COMMAND in it.
    Vm(vm::Options),
}

fn main() -> Result<ExitCode> {
    match Cli::parse().job {
        Job::Test { list: true, .. } => {
            for (name, about) in steps::list() {
                println!("{name:14}{about}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Job::Test { step, yes, .. } => steps::test(&Workspace::load()?, &step, yes),
        Job::Step { name, result } => steps::carry_out(&Workspace::load()?, &name, &result),
        Job::Header => steps::bless("cargo test -p bellwire-ffi --test header"),
        Job::Conformance { verbs: true, .. } => steps::bless_conformance(&Workspace::load()?),
        Job::Conformance { mlx5: true, .. } => steps::bless_mlx5(&Workspace::load()?),
        Job::Conformance { .. } => steps::bless(steps::CONFORMANCE),
        Job::Faults { mlx5: true } => steps::bless_mlx5_faults(&Workspace::load()?),
        Job::Faults { .. } => {
            steps::bless("cargo test -p bellwire-tests --test soft --test simulation fresh")
        }
        Job::Race(options) => {
            Workspace::load()?;
            race::race(&options)
        }
        Job::Cost => cost::cost(&Workspace::load()?),
        Job::CCost => c_cost::c_cost(&Workspace::load()?),
        Job::Mlx5Cost => mlx5_cost::mlx5_cost(&Workspace::load()?),
        Job::Crates => {
            let picture = crates::picture(Workspace::load()?.metadata())?;
            crates::PAGE.write(&picture)?;
            Ok(ExitCode::SUCCESS)
        }
        Job::Sys { check: false } => {
            sys::write(&Workspace::load()?)?;
            Ok(ExitCode::SUCCESS)
        }
        Job::Sys { check: true } => Ok(match sys::are_fresh(&Workspace::load()?)? {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }),
        Job::Install(options) => install::install(&Workspace::load()?, &options),
        Job::Deb(options) => deb::deb(&Workspace::load()?, &options),
        Job::Uninstall(place) => install::uninstall(&place),
        Job::Vm(options) => Ok(vm::vm(&Workspace::load()?, &options)),
    }
}
