//! The step that installs the C library, and builds and runs every C and C++ program against what was
//! installed: with each compiler, found by pkg-config and by CMake, shared and static, under
//! sanitizers and Valgrind.

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::tools;
use crate::{
    command::{command, limited, output_of},
    install::{self, Place},
    run::Run,
    workspace::Workspace,
};

/// A compiler of C, and the one of C++ that comes with it.
const COMPILERS: [(&str, &str); 2] = [("gcc", "g++"), ("clang", "clang++")];

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// All programs: examples, and tests that each are about one thing.
const FOLDERS: [&str; 4] = [
    "examples/c",
    "examples/cpp",
    "ffi-c/tests/c",
    "ffi-c/tests/cpp",
];

/// What makes programs that measure do little.
const SHORT: [(&str, &str); 1] = [("perf_write", "1000")];

/// Far more than any of them takes, also under Valgrind on a busy machine.
const PROGRAM_LIMIT: Duration = Duration::from_secs(120);

/// How a program is linked with bellwire.
#[derive(Clone, Copy)]
enum Linking<'a> {
    /// As it was installed.
    Shared,
    Static,
    /// With the shared library in this folder, which is under AddressSanitizer.
    Sanitized(&'a Path),
}

pub fn c(workspace: &Workspace) -> Result<Run> {
    for program in ["gcc", "g++", "clang", "cmake", "pkg-config", "valgrind"] {
        tools::need_program(program)?;
    }
    let dir = tempfile::tempdir()?;
    let prefix = dir.path().join("prefix");
    let place = Place::in_prefix(&prefix);
    install::put(workspace, &place, false)?;
    let mut bench = Bench::new(dir.path(), &place);
    let sanitized = dir.path().join("asan");
    let linkings: &[Linking<'_>] = match sanitized_library(workspace, &sanitized, &mut bench.run)? {
        true => &[Linking::Shared, Linking::Sanitized(&sanitized)],
        false => &[Linking::Shared],
    };
    for source in programs()? {
        bench.with_each_compiler(&source)?;
        bench.with_sanitizers(&source, linkings)?;
        bench.with_valgrind(&source)?;
    }
    bench.with_cmake(&prefix)?;
    let mut run = bench.run;
    install::remove(&place)?;
    if prefix.exists() {
        run.command(command("find").arg(&prefix));
        run.problems
            .push("uninstalling left something, listed above".to_owned());
    }
    Ok(run)
}

/// Builds the library under AddressSanitizer, with debug assertions, as the step `asan` builds Rust's
/// tests, and makes it known in the new folder `dir`. Whether it is there; if not, that is a problem of
/// `run`.
fn sanitized_library(workspace: &Workspace, dir: &Path, run: &mut Run) -> Result<bool> {
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let mut build = command(&format!("cargo build --target {target} -p bellwire-ffi"));
    build
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address");
    workspace.build_apart(&mut build, "asan");
    if !run.command(&mut build) {
        return Ok(false);
    }
    let built = workspace
        .target("asan")
        .join(target)
        .join("debug/libbellwire.so");
    fs::create_dir_all(dir)?;
    for name in ["libbellwire.so".to_owned(), install::soname(workspace)?] {
        symlink(workspace.root().join(&built), dir.join(name))?;
    }
    Ok(true)
}

/// Builds C programs against a library with devices of libibverbs. Those for the guest are below the target
/// folder, which it sees.
pub struct WithVerbs<'a> {
    bench: Bench<'a>,
}

impl<'a> WithVerbs<'a> {
    /// Installs the library in `dir`, an absolute path.
    ///
    /// # Errors
    /// Those of installing.
    pub fn install(workspace: &Workspace, dir: &'a Path) -> Result<Self> {
        let place = Place::in_prefix(&dir.join("prefix"));
        install::put(workspace, &place, true)?;
        let bench = Bench::new(dir, &place);
        Ok(Self { bench })
    }

    /// The program of this source; what does not build is a problem of `run`.
    ///
    /// # Errors
    /// pkg-config does not find the library.
    pub fn program(&mut self, source: &str, run: &mut Run) -> Result<Option<PathBuf>> {
        let program = self
            .bench
            .build("gcc -std=c11 -O2", Path::new(source), Linking::Shared)?;
        run.problems.append(&mut self.bench.run.problems);
        Ok(program)
    }
}

fn programs() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        for entry in fs::read_dir(folder).context(folder)? {
            let path = entry?.path();
            if is_cpp(&path) || path.extension() == Some(OsStr::new("c")) {
                found.push(path);
            }
        }
    }
    found.sort();
    ensure!(!found.is_empty(), "there are no C programs");
    Ok(found)
}

fn is_cpp(source: &Path) -> bool {
    source.extension() == Some(OsStr::new("cpp"))
}

/// What the programs are built and run with.
struct Bench<'a> {
    run: Run,
    dir: &'a Path,
    libdir: PathBuf,
    /// Programs built so far.
    built: usize,
}

impl<'a> Bench<'a> {
    fn new(dir: &'a Path, place: &Place) -> Self {
        Self {
            run: Run::default(),
            dir,
            libdir: place.libdir(),
            built: 0,
        }
    }

    fn with_each_compiler(&mut self, source: &Path) -> Result<()> {
        for (cc, cxx) in COMPILERS {
            let compilers = match is_cpp(source) {
                true => vec![format!("{cxx} -std=c++17"), format!("{cxx} -std=c++20")],
                false => vec![format!("{cc} -std=c11")],
            };
            for compiler in compilers {
                for linking in [Linking::Shared, Linking::Static] {
                    if let Some(program) = self.build(&compiler, source, linking)? {
                        self.run.command(&mut self.ready(&program, source));
                    }
                }
            }
        }
        Ok(())
    }

    /// The program under sanitizers: with the library as it is, of which is seen what it allocates and
    /// copies, and with one that is under AddressSanitizer itself.
    fn with_sanitizers(&mut self, source: &Path, linkings: &[Linking<'_>]) -> Result<()> {
        let compiler = match is_cpp(source) {
            true => "g++ -std=c++17",
            false => "gcc -std=c11",
        };
        let compiler =
            format!("{compiler} -g -fsanitize=address,undefined -fno-sanitize-recover=all");
        for linking in linkings {
            if let Some(program) = self.build(&compiler, source, *linking)? {
                self.run.command(&mut self.ready(&program, source));
            }
        }
        Ok(())
    }

    fn with_valgrind(&mut self, source: &Path) -> Result<()> {
        let compiler = match is_cpp(source) {
            true => "g++ -std=c++17 -g",
            false => "gcc -std=c11 -g",
        };
        if let Some(program) = self.build(compiler, source, Linking::Shared)? {
            let mut valgrind = command(
                "valgrind --quiet --fair-sched=try --error-exitcode=99 --leak-check=full \
                 --suppressions=xtask/valgrind.supp",
            );
            valgrind.arg(program).args(args(source));
            self.run.command(&mut limited(&valgrind, PROGRAM_LIMIT));
        }
        Ok(())
    }

    fn with_cmake(&mut self, prefix: &Path) -> Result<()> {
        for (cc, cxx) in COMPILERS {
            let build = self.dir.join(format!("cmake-{cc}"));
            let mut configure = command("cmake -S examples -B");
            configure.arg(&build).args([
                format!("-DCMAKE_PREFIX_PATH={}", prefix.display()),
                format!("-DCMAKE_C_COMPILER={cc}"),
                format!("-DCMAKE_CXX_COMPILER={cxx}"),
            ]);
            if self.run.command(&mut configure)
                && self.run.command(command("cmake --build").arg(&build))
            {
                let mut test = command("ctest --output-on-failure --test-dir");
                self.run.command(test.arg(&build));
            }
        }
        Ok(())
    }

    /// Builds a program, by what pkg-config says.
    fn build(
        &mut self,
        compiler: &str,
        source: &Path,
        linking: Linking<'_>,
    ) -> Result<Option<PathBuf>> {
        self.built += 1;
        let program = self.dir.join(format!("program-{}", self.built));
        let by_name = format!(
            "env PKG_CONFIG_PATH={}/pkgconfig pkg-config --cflags --libs",
            self.libdir.display()
        );
        let mut cc = command(compiler);
        cc.args(WARNINGS).arg(source).arg("-o").arg(&program);
        let flags = match linking {
            Linking::Shared => {
                cc.arg(format!("-Wl,-rpath,{}", self.libdir.display()));
                output_of(&format!("{by_name} bellwire"))
            }
            Linking::Static => {
                // The linker warns of getaddrinfo, which wants the libc that it was linked with.
                cc.arg("-static");
                output_of(&format!("{by_name} --static bellwire"))
            }
            // Found nowhere else: it has another search path than what was installed.
            Linking::Sanitized(dir) => {
                cc.arg(format!("-Wl,-rpath,{}", dir.display()));
                Some(format!("-Iinclude -L{} -lbellwire", dir.display()))
            }
        };
        let flags = flags.context("pkg-config does not find what was installed")?;
        cc.args(flags.split_whitespace()).arg("-pthread");
        Ok(self.run.command(&mut cc).then_some(program))
    }

    fn ready(&self, program: &Path, source: &Path) -> Command {
        let mut ready = Command::new(program);
        ready.args(args(source));
        limited(&ready, PROGRAM_LIMIT)
    }
}

fn args(source: &Path) -> Option<&'static str> {
    let name = source.file_stem()?;
    let mut short = SHORT.iter().filter(|(of, _)| name == OsStr::new(of));
    short.next().map(|(_, arg)| *arg)
}
