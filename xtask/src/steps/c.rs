//! The step that installs the C library, checks what was installed (`installed`), and builds and runs every C and
//! C++ program against that: under sanitizers, under Valgrind, and with one of the compilers and ways to link, which take
//! turns. What is found by CMake is built in each way.

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::fs::Mode;

use super::{deep::build_c_library_under_asan, installed, tools};
use crate::{
    command::{command, limited, output_of},
    install::{self, Place},
    run::Run,
    workspace::Workspace,
};

/// A compiler of C, and the one of C++ that comes with it.
const COMPILERS: [(&str, &str); 2] = [("gcc", "g++"), ("clang", "clang++")];

/// Ways to build a program in C. Under Valgrind, and in the step `bare`, all are built by gcc, shared.
const C_WAYS: [(&str, Linking<'static>); 3] = [
    ("clang -std=c11", Linking::Shared),
    ("gcc -std=c11", Linking::Static),
    ("clang -std=c11", Linking::Static),
];

/// Ways to build a program in C++.
const CPP_WAYS: [(&str, Linking<'static>); 8] = [
    ("g++ -std=c++17", Linking::Shared),
    ("g++ -std=c++20", Linking::Static),
    ("clang++ -std=c++17", Linking::Static),
    ("clang++ -std=c++20", Linking::Shared),
    ("g++ -std=c++17", Linking::Static),
    ("g++ -std=c++20", Linking::Shared),
    ("clang++ -std=c++17", Linking::Shared),
    ("clang++ -std=c++20", Linking::Static),
];

/// Of these, as many for each program: there are few in C++.
const CPP_WAYS_EACH: usize = 4;

pub const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// All programs: examples, and tests that each are about one thing.
const FOLDERS: [&str; 4] = [
    "examples/c",
    "examples/cpp",
    "ffi-c/tests/c",
    "ffi-c/tests/cpp",
];

/// The NVMe-oF target, of more than one source file.
pub const NVMF_SOURCE: &str = "examples/nvmf";

/// What makes programs that measure do little.
const SHORT: [(&str, &str); 1] = [("perf_write", "1000")];

/// Far more than any of them takes, also under Valgrind on a busy machine.
pub const PROGRAM_LIMIT: Duration = Duration::from_secs(900);

/// How a program is linked with bellwire.
#[derive(Clone, Copy, PartialEq, Eq)]
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
    tools::need_packages(&tools::NVMF)?;
    let dir = tempfile::tempdir()?;
    let prefix = dir.path().join("prefix");
    let place = Place::in_prefix(&prefix);
    // Such a umask lets no other user read what is made, unless it gets its mode otherwise.
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    install::put(workspace, &place, false)?;
    rustix::process::umask(before);
    let bench = Bench::new(dir.path(), &place);
    let sanitized = dir.path().join("asan");
    let mut run = Run::default();
    installed::check(workspace, &prefix, dir.path(), &mut run)?;
    let linking = match sanitized_library(workspace, &sanitized, &mut run)? {
        true => Linking::Sanitized(&sanitized),
        false => Linking::Shared,
    };
    run.on_each_core(&with_ways(programs()?), |(source, ways), run| {
        for (compiler, linking) in ways {
            bench.build_and_run(compiler, source, *linking, run)?;
        }
        bench.with_sanitizers(source, linking, run)?;
        bench.with_valgrind(source, run)
    })?;
    bench.with_cmake(&prefix, &mut run);
    bench.with_nvmf(&prefix, &mut run)?;
    install::remove(&place)?;
    if prefix.exists() {
        run.command(command("find").arg(&prefix));
        run.problems
            .push("uninstalling left something, listed above".to_owned());
    }
    Ok(run)
}

/// Builds the library under AddressSanitizer, with debug assertions, from what the step `asan` has built, and
/// makes it known in the new folder `dir`. Whether it is there; if not, that is a problem of `run`.
fn sanitized_library(workspace: &Workspace, dir: &Path, run: &mut Run) -> Result<bool> {
    if !run.command(&mut build_c_library_under_asan(workspace)) {
        return Ok(false);
    }
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let built = workspace
        .target("asan")
        .join(target)
        .join("sanitized/libbellwire.so");
    fs::create_dir_all(dir)?;
    for name in ["libbellwire.so".to_owned(), install::soname(workspace)?] {
        symlink(workspace.root().join(&built), dir.join(name))?;
    }
    Ok(true)
}

/// Builds C programs against an installed library, for other steps. Those for the guest are below the target
/// folder, which it sees.
pub struct Installed<'a> {
    bench: Bench<'a>,
    prefix: PathBuf,
}

impl<'a> Installed<'a> {
    /// Installs the library in `dir`, an absolute path.
    ///
    /// # Errors
    /// Those of installing.
    pub fn in_folder(workspace: &Workspace, dir: &'a Path) -> Result<Self> {
        let prefix = dir.join("prefix");
        let place = Place::in_prefix(&prefix);
        install::put(workspace, &place, false)?;
        let bench = Bench::new(dir, &place);
        Ok(Self { bench, prefix })
    }

    /// The folder of the programs of a CMake project; what does not build is a problem of `run`.
    pub fn project(&self, source: &str, run: &mut Run) -> Option<PathBuf> {
        self.bench
            .project(source, "project", &self.prefix, &[], run)
    }

    /// The program of this source; what does not build is a problem of `run`.
    ///
    /// # Errors
    /// pkg-config does not find the library.
    pub fn program(&self, source: &str, run: &mut Run) -> Result<Option<PathBuf>> {
        let compiler = "gcc -std=c11 -O2";
        self.bench
            .build(compiler, Path::new(source), Linking::Shared, run)
    }
}

/// Their sources.
///
/// # Errors
/// There are none.
pub fn programs() -> Result<Vec<PathBuf>> {
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

/// A compiler, and how it links a program with bellwire.
type Way = (&'static str, Linking<'static>);

/// Programs, and how each is built: all ways take turns.
fn with_ways(programs: Vec<PathBuf>) -> Vec<(PathBuf, Vec<Way>)> {
    let mut ways_of_c = C_WAYS.into_iter().cycle();
    let mut ways_of_cpp = CPP_WAYS.into_iter().cycle();
    let mut ways = |source: &Path| match is_cpp(source) {
        true => ways_of_cpp.by_ref().take(CPP_WAYS_EACH).collect(),
        false => ways_of_c.by_ref().take(1).collect(),
    };
    (programs.into_iter())
        .map(|source| {
            let ways = ways(&source);
            (source, ways)
        })
        .collect()
}

/// Whether it is a source of C++, rather than C.
pub fn is_cpp(source: &Path) -> bool {
    source.extension() == Some(OsStr::new("cpp"))
}

/// What the programs are built and run with.
struct Bench<'a> {
    dir: &'a Path,
    libdir: PathBuf,
    /// Programs built so far.
    built: AtomicUsize,
}

impl<'a> Bench<'a> {
    fn new(dir: &'a Path, place: &Place) -> Self {
        Self {
            dir,
            libdir: place.libdir(),
            built: AtomicUsize::new(0),
        }
    }

    /// The program under sanitizers, with a library that is under AddressSanitizer itself: it is seen what both
    /// allocate and copy.
    fn with_sanitizers(&self, source: &Path, linking: Linking<'_>, run: &mut Run) -> Result<()> {
        let compiler = match is_cpp(source) {
            true => "g++ -std=c++17",
            false => "gcc -std=c11",
        };
        let compiler =
            format!("{compiler} -g -fsanitize=address,undefined -fno-sanitize-recover=all");
        self.build_and_run(&compiler, source, linking, run)
    }

    fn with_valgrind(&self, source: &Path, run: &mut Run) -> Result<()> {
        // Valgrind has a memmove of its own, of which the library does not know where it was called.
        if source.file_stem() == Some(OsStr::new("memory_gone")) {
            return Ok(());
        }
        let compiler = match is_cpp(source) {
            true => "g++ -std=c++17 -g",
            false => "gcc -std=c11 -g",
        };
        if let Some(program) = self.build(compiler, source, Linking::Shared, run)? {
            // A child of fork has none of its parent's threads, and nothing that refers to the memory on their stacks.
            let leaks = match source.file_stem() == Some(OsStr::new("fork")) {
                true => "no",
                false => "full",
            };
            let mut valgrind = command(&format!(
                "valgrind --quiet --fair-sched=try --error-exitcode=99 --leak-check={leaks}",
            ));
            valgrind.arg(&program).args(args(source));
            run.command(&mut limited(&valgrind, PROGRAM_LIMIT));
            fs::remove_file(program)?;
        }
        Ok(())
    }

    fn with_cmake(&self, prefix: &Path, run: &mut Run) {
        for (cc, cxx) in COMPILERS {
            let compilers = [
                format!("-DCMAKE_C_COMPILER={cc}"),
                format!("-DCMAKE_CXX_COMPILER={cxx}"),
            ];
            let name = format!("cmake-{cc}");
            if let Some(build) = self.project("examples", &name, prefix, &compilers, run) {
                let mut test = command("ctest --output-on-failure --test-dir");
                run.command(test.arg(&build));
            }
        }
    }

    /// The NVMe-oF target and its hosts: as each compiler builds them, under sanitizers, and in Valgrind.
    fn with_nvmf(&self, prefix: &Path, run: &mut Run) -> Result<()> {
        let sanitizers = "-DCMAKE_C_FLAGS=-fsanitize=address,undefined -fno-sanitize-recover=all";
        let [gcc, clang] = COMPILERS.map(|(cc, _)| format!("-DCMAKE_C_COMPILER={cc}"));
        let valgrind = "valgrind --quiet --fair-sched=try --error-exitcode=99 --leak-check=full";
        // Valgrind takes seconds to start each of its programs. What waits for deadlines does so once.
        for (name, options, wrapper, parts) in [
            ("nvmf-gcc", vec![gcc.clone()], valgrind, "hosts file"),
            (
                "nvmf-clang",
                vec![clang],
                "",
                "limits hosts faults file replicated terminated refused",
            ),
            (
                "nvmf-sanitized",
                vec![gcc, sanitizers.to_owned()],
                "",
                "limits hosts faults file replicated bounds terminated",
            ),
        ] {
            let Some(build) = self.project(NVMF_SOURCE, name, prefix, &options, run) else {
                continue;
            };
            let mut check = command("sh examples/nvmf/check.sh");
            check.arg(&build).args(wrapper.split_whitespace());
            check.env("PARTS", parts);
            run.command(&mut limited(&check, PROGRAM_LIMIT));
        }
        Ok(())
    }

    /// Builds a CMake project in a folder of this name, and returns that.
    fn project(
        &self,
        source: &str,
        name: &str,
        prefix: &Path,
        options: &[String],
        run: &mut Run,
    ) -> Option<PathBuf> {
        let build = self.dir.join(name);
        let mut configure = command("cmake -S");
        configure.args([source, "-B"]).arg(&build).args(options);
        configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
        let built =
            run.command(&mut configure) && run.command(command("cmake --build").arg(&build));
        built.then_some(build)
    }

    /// Builds a program, by what pkg-config says.
    fn build(
        &self,
        compiler: &str,
        source: &Path,
        linking: Linking<'_>,
        run: &mut Run,
    ) -> Result<Option<PathBuf>> {
        // Relaxed: only the number counts.
        let number = self.built.fetch_add(1, Ordering::Relaxed);
        let program = self.dir.join(format!("program-{number}"));
        let by_name = format!(
            "env PKG_CONFIG_PATH={}/pkgconfig pkg-config --cflags --libs",
            self.libdir.display()
        );
        let mut cc = command(compiler);
        cc.args(WARNINGS).arg(source).arg("-o").arg(&program);
        if source.file_stem() == Some(OsStr::new("no_exceptions")) {
            cc.args(["-fno-exceptions", "-fno-rtti"]);
        }
        let flags = match linking {
            Linking::Shared => {
                cc.arg(format!("-Wl,-rpath,{}", self.libdir.display()));
                output_of(&format!("{by_name} bellwire"))
            }
            Linking::Static => {
                // The linker warns of getaddrinfo and dlopen, which want the libc that it was linked with.
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
        Ok(run.command(&mut cc).then_some(program))
    }

    /// Removes the program afterwards: hundreds of them, half of them static, fill a disk.
    fn build_and_run(
        &self,
        compiler: &str,
        source: &Path,
        linking: Linking<'_>,
        run: &mut Run,
    ) -> Result<()> {
        if let Some(program) = self.build(compiler, source, linking, run)? {
            let mut ready = Command::new(&program);
            ready.args(args(source));
            run.command(&mut limited(&ready, PROGRAM_LIMIT));
            fs::remove_file(program)?;
        }
        Ok(())
    }
}

/// What makes the program of this source do little, where that takes an argument.
pub fn args(source: &Path) -> Option<&'static str> {
    let name = source.file_stem()?;
    let mut short = SHORT.iter().filter(|(of, _)| name == OsStr::new(of));
    short.next().map(|(_, arg)| *arg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_gets_its_turn() {
        // As many as there are in C++, and fewer than in C.
        let names = ["c", "cpp"].map(|kind| (0..4).map(move |at| format!("{at}.{kind}")));
        let programs = names.into_iter().flatten().map(PathBuf::from).collect();
        let programs = with_ways(programs);
        assert!(programs.iter().all(|(_, ways)| !ways.is_empty()));
        for (ways, cpp) in [(&C_WAYS[..], false), (&CPP_WAYS[..], true)] {
            for way in ways {
                let used = |(source, ways): &(PathBuf, Vec<Way>)| {
                    is_cpp(source) == cpp && ways.contains(way)
                };
                assert!(programs.iter().any(used), "{}", way.0);
            }
        }
    }
}
