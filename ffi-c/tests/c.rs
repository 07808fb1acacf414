//! C programs against the library of this profile: they compile without a warning and run. The step `c`
//! of the test command runs them against an installed one, in every way.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

#[path = "../soname.rs"]
mod soname;

const WARNINGS: [&str; 5] = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Where the programs go, with the library under the name that they look for at run time.
struct Bench {
    out: PathBuf,
    libs: PathBuf,
}

/// Builds the library once, in the profile of this test. `None`, and why, without a C compiler.
fn bench() -> Option<&'static Bench> {
    static BENCH: OnceLock<Option<Bench>> = OnceLock::new();
    BENCH
        .get_or_init(|| {
            if !there_is("cc") {
                return None;
            }
            // This test is in <target>/<profile>/deps.
            let this = std::env::current_exe().unwrap();
            let libs = this.ancestors().nth(2).unwrap().to_owned();
            let profile = match libs.file_name().unwrap().to_str().unwrap() {
                "debug" => "dev",
                other => other,
            };
            run(Command::new(env!("CARGO"))
                .current_dir(root())
                .args(["build", "-p", "bellwire-ffi", "--profile", profile])
                .arg("--target-dir")
                .arg(libs.parent().unwrap()));
            let out = libs.join("c-tests");
            std::fs::create_dir_all(&out).unwrap();
            let abi = soname::abi(env!("CARGO_PKG_VERSION"));
            let soname = out.join(format!("libbellwire.so.{abi}"));
            let _ = std::fs::remove_file(&soname);
            std::os::unix::fs::symlink(libs.join("libbellwire.so"), soname).unwrap();
            Some(Bench { out, libs })
        })
        .as_ref()
}

fn there_is(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output();
    if let Err(error) = &found {
        println!("left out: no {program} ({error})");
    }
    found.is_ok()
}

#[track_caller]
fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn cc(source: &Path) -> Command {
    let mut cc = Command::new("cc");
    cc.args(WARNINGS)
        .arg("-g")
        .arg("-I")
        .arg(root().join("include"));
    cc.arg(source);
    cc
}

impl Bench {
    fn program(&self, source: &Path, kind: &str) -> PathBuf {
        let name = source.file_stem().unwrap().to_str().unwrap();
        self.out.join(format!("{name}-{kind}"))
    }

    /// `kind` distinguishes the program from those of tests that run at the same time.
    fn shared(&self, source: &Path, kind: &str) -> Command {
        let program = self.program(source, kind);
        run(cc(source)
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(&self.libs)
            .args(["-lbellwire", "-pthread"]));
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", &self.out);
        command
    }
}

/// The C programs in a folder of the workspace.
fn sources(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut sources: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|ext| ext == "c"))
        .collect();
    sources.sort();
    assert!(!sources.is_empty());
    sources
}

#[test]
fn examples_run_with_the_shared_library() {
    let Some(bench) = bench() else { return };
    for source in sources("examples/c") {
        run(&mut bench.shared(&source, "shared"));
    }
}

/// Layouts and numbers as C sees them, and every function's address.
#[test]
fn the_header_is_what_programs_were_compiled_with() {
    let Some(bench) = bench() else { return };
    let source = root().join("ffi-c/tests/c/abi.c");
    run(&mut bench.shared(&source, "shared"));
}

/// Programs of one idea each, but for `abi`, which only C can read.
fn programs() -> Vec<PathBuf> {
    let mut sources = sources("ffi-c/tests/c");
    sources.retain(|path| path.file_stem() != Some("abi".as_ref()));
    sources
}

#[test]
fn programs_run_as_c() {
    let Some(bench) = bench() else { return };
    for source in programs() {
        run(&mut bench.shared(&source, "c"));
    }
}

/// Where the system has no more of something. Not under sanitizers and Valgrind, which need it themselves.
#[test]
fn programs_go_on_under_limits() {
    let Some(bench) = bench() else { return };
    for source in sources("ffi-c/tests/c/limits") {
        run(&mut bench.shared(&source, "c"));
    }
}

/// What only a library with debug assertions notices.
#[test]
#[cfg(debug_assertions)]
fn mistakes_are_noticed() {
    let Some(bench) = bench() else { return };
    for source in sources("ffi-c/tests/c/debug") {
        run(&mut bench.shared(&source, "c"));
    }
}

#[test]
fn programs_run_as_cpp() {
    let Some(bench) = bench() else { return };
    if !there_is("c++") {
        return;
    }
    for source in programs() {
        let program = bench.program(&source, "cpp");
        run(Command::new("c++")
            .args(["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
            .arg("-I")
            .arg(root().join("include"))
            .args(["-x", "c++"])
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(&bench.libs)
            .args(["-lbellwire", "-pthread"]));
        run(Command::new(program).env("LD_LIBRARY_PATH", &bench.out));
    }
}

#[test]
fn the_header_is_good_cpp() {
    if !there_is("c++") {
        return;
    }
    run(Command::new("c++")
        .args(["-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .args(["-fsyntax-only", "-x", "c++"])
        .arg(root().join("include/bellwire.h")));
}

/// None of its structs has bytes that no field names, which would come to mean something when a field
/// is appended.
#[test]
fn structs_have_no_padding() {
    if !there_is("cc") {
        return;
    }
    run(Command::new("cc")
        .args([
            "-std=c11",
            "-Wpadded",
            "-Werror",
            "-fsyntax-only",
            "-x",
            "c",
        ])
        .arg(root().join("include/bellwire.h")));
}

/// What the shared library exports is what the header declares, each in the version that the library's name has.
#[test]
fn nothing_else_is_exported() {
    let Some(bench) = bench() else { return };
    if !there_is("nm") {
        return;
    }
    let library = bench.libs.join("libbellwire.so");
    let output = run(Command::new("nm")
        .args(["-D", "--defined-only", "-P"])
        .arg(library));
    let listed = String::from_utf8(output.stdout).unwrap();
    // That has a symbol of its own.
    let version = concat!(
        "libbellwire.so.",
        env!("CARGO_PKG_VERSION_MAJOR"),
        ".",
        env!("CARGO_PKG_VERSION_MINOR")
    );
    let mut exported: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|symbol| *symbol != version)
        .map(|symbol| {
            let versioned = symbol.split_once("@@");
            let (name, of) = versioned.unwrap_or_else(|| panic!("{symbol} has no version"));
            assert_eq!(of, version, "{symbol}");
            name
        })
        .collect();
    let mut declared = declared();
    exported.sort_unstable();
    declared.sort_unstable();
    assert!(declared.len() > 40);
    assert_eq!(exported, declared);
}

/// The functions of the header, each with what stands behind its name.
fn declarations() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(root().join("include/bellwire.h")).unwrap();
    let is_function = |line: &&str| {
        ["int ", "uint32_t ", "const char *", "void *"]
            .iter()
            .any(|result| line.starts_with(result))
    };
    // A declaration has no comment within.
    text.split(';')
        .filter_map(|part| {
            let start = part.lines().find(is_function)?;
            let (name, arguments) = part[part.find(start)?..].split_once('(')?;
            let name = name.rsplit([' ', '*']).next()?;
            Some((name.to_owned(), arguments.to_owned()))
        })
        .collect()
}

/// The functions of the header.
fn declared() -> Vec<String> {
    declarations().into_iter().map(|(name, _)| name).collect()
}

/// The name by which programs call a function: for one that takes the size of its elements that of the
/// header's inline function.
fn called(function: &str) -> &str {
    function.strip_suffix("_sized").unwrap_or(function)
}

/// What a source says to the compiler. (None of them has a `/*` in a string.)
fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let mut code = parts.next().unwrap().to_owned();
    for part in parts {
        code += part.split_once("*/").expect("a comment ends").1;
    }
    code
}

fn calls(code: &str, function: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    code.match_indices(&format!("{function}("))
        .any(|(at, _)| !code[..at].ends_with(is_name))
}

/// By a program that means it, and by `null`, which gives it what it cannot take.
#[test]
fn each_function_is_called_from_c() {
    let (null, others): (Vec<_>, Vec<_>) = sources("ffi-c/tests/c")
        .into_iter()
        .partition(|path| path.file_stem() == Some("null".as_ref()));
    let read = |source: &PathBuf| without_comments(&std::fs::read_to_string(source).unwrap());
    let null: String = null.iter().map(read).collect();
    let others: String = others.iter().map(read).collect();
    let shared = ["ffi-c/tests/c/program.h", "ffi-c/tests/c/link.h"];
    let shared: String = shared.iter().map(|path| read(&root().join(path))).collect();
    let others = others + &shared;
    let mut missing = declarations();
    assert!(missing.len() > 40);
    missing.retain(|(function, arguments)| {
        let with_null = !arguments.contains('*') || calls(&null, called(function));
        !(with_null && calls(&others, called(function)))
    });
    assert!(
        missing.is_empty(),
        "no C test calls {missing:?}, with good or with NULL pointers"
    );
}

/// The structs of the header that begin with their size, and come from programs.
fn sized() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("include/bellwire.h")).unwrap();
    let structs = text.split("typedef struct ").skip(1).filter_map(|part| {
        let (name, fields) = part.split_once(" {")?;
        let first = fields
            .lines()
            .map(str::trim)
            .find(|line| !(line.is_empty() || line.starts_with("//")))?;
        (first == "uint32_t size;").then(|| name.to_owned())
    });
    structs.collect()
}

/// By `sizes`, with a size that the struct cannot have.
#[test]
fn each_struct_of_each_function_is_given_a_wrong_size() {
    let source = root().join("ffi-c/tests/c/sizes.c");
    let code = without_comments(&std::fs::read_to_string(source).unwrap());
    let sized = sized();
    assert!(sized.len() > 20);
    let tried = |name: &str, function: &str| {
        ["REFUSES(", "FILLS("].iter().any(|how| {
            code.match_indices(&format!("{how}{name},"))
                .any(|(at, _)| calls(&code[at..code[at..].find(';').unwrap() + at], function))
        })
    };
    let mut found = 0;
    for (function, arguments) in declarations() {
        for name in &sized {
            if arguments.contains(&format!("struct {name} *")) {
                found += 1;
                assert!(tried(name, &function), "{function} with a {name}");
            }
        }
    }
    assert!(found > 50, "{found}");
}

/// By `away`, with a queue pair that is on an id.
#[test]
fn each_function_of_queue_pairs_is_given_one_that_is_elsewhere() {
    let source = root().join("ffi-c/tests/c/away.c");
    let code = without_comments(&std::fs::read_to_string(source).unwrap());
    let refused = code.split_once("static void refused(").unwrap().1;
    let refused = refused.split_once("\n}\n").unwrap().0;
    let mut missing = declarations();
    missing.retain(|(function, arguments)| {
        let takes = arguments.contains("struct bw_qp *") && !arguments.contains("struct bw_qp **");
        let takes = takes && function != "bw_qp_destroy";
        takes && !calls(refused, called(function))
    });
    assert!(missing.is_empty(), "{missing:?}");
    assert!(refused.matches("AWAY(").count() > 30);
}

#[test]
fn a_call_is_known_from_a_longer_name_and_from_a_comment() {
    let code = "OK(bw_qp_init_attr_default(&a, 1)); xbw_poll(1);";
    assert!(calls(code, "bw_qp_init_attr_default"));
    assert!(!calls(code, "bw_qp_init") && !calls(code, "bw_poll"));
    assert_eq!(
        without_comments("bw_a(1); /* bw_b(2) */ bw_c(3);"),
        "bw_a(1);  bw_c(3);"
    );
}
