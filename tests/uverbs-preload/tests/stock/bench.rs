//! The library, the compiler, and what else the programs need.

use libtest_mimic::Failed;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Far longer than any of them takes on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(120);

const WARNINGS: [&str; 4] = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"];

/// Where the programs are built, and what they are run on.
pub struct Bench {
    library: PathBuf,
    out: PathBuf,
}

/// Names of the C programs.
pub fn sources() -> Vec<String> {
    let files = std::fs::read_dir(folder()).into_iter().flatten().flatten();
    let mut names: Vec<String> = files
        .map(|file| file.path())
        .filter(|path| path.extension() == Some(OsStr::new("c")))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    names
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c")
}

impl Bench {
    /// Builds the library in the profile of this test, unless the tests are only listed.
    ///
    /// # Errors
    /// What the machine lacks.
    pub fn new(only_list: bool) -> Result<Self, String> {
        let there: [(&str, &[&str], &str); 3] = [
            ("cc", &["--version"], "gcc"),
            ("ibv_devinfo", &["-h"], "ibverbs-utils"),
            ("ibv_rc_pingpong", &["-h"], "ibverbs-utils"),
        ];
        for (program, with, package) in there {
            if Command::new(program).args(with).output().is_err() {
                return Err(format!("no {program}: `apt-get install {package}`"));
            }
        }
        // This test is in <target>/<profile>/deps.
        let this = std::env::current_exe().map_err(|error| error.to_string())?;
        let libs = this
            .ancestors()
            .nth(2)
            .ok_or("no target folder")?
            .to_owned();
        let bench = Self {
            library: libs.join("libuverbs_preload.so"),
            out: libs.join("uverbs-preload-tests"),
        };
        std::fs::create_dir_all(&bench.out).map_err(|error| error.to_string())?;
        if only_list {
            return Ok(bench);
        }
        bench.check_headers()?;
        let profile = match libs.file_name().and_then(OsStr::to_str) {
            Some("debug") | None => "dev",
            Some(other) => other,
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["build", "-p", env!("CARGO_PKG_NAME"), "--profile", profile])
            .arg("--target-dir")
            .arg(libs.parent().ok_or("no target folder")?);
        match cargo.status() {
            Ok(status) if status.success() => Ok(bench),
            // A library that does not build is a failure, not something that is lacking.
            other => panic!("{cargo:?}: {other:?}"),
        }
    }

    /// Whether programs can be linked with libibverbs and libmlx5.
    fn check_headers(&self) -> Result<(), String> {
        let linked = self.compile("bad");
        let text = match linked {
            Ok(_) => return Ok(()),
            Err(text) => text,
        };
        let lacking = ["infiniband/verbs.h", "-libverbs", "-lmlx5"];
        if lacking.iter().any(|name| text.contains(name)) {
            return Err("`apt-get install libibverbs-dev ibverbs-providers`".to_owned());
        }
        Ok(())
    }

    fn compile(&self, name: &str) -> Result<PathBuf, String> {
        let program = self.out.join(name);
        let mut cc = Command::new("cc");
        cc.args(WARNINGS)
            .args(["-O1", "-g", "-o"])
            .arg(&program)
            .arg(folder().join(name).with_extension("c"))
            .args(["-libverbs", "-lmlx5"]);
        let output = cc.output().map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(program),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Builds one of the C programs.
    pub fn build(&self, name: &str) -> Result<PathBuf, Failed> {
        Ok(self.compile(name)?)
    }

    /// A program that is to run on the stand-in.
    pub fn preloaded(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_PRELOAD", &self.library)
            .env_remove("UVERBS_PRELOAD_FABRIC")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// Runs a program to its end, which has to be a good one; gives what it printed.
pub fn output_of(command: &mut Command) -> Result<String, Failed> {
    let child = command.spawn()?;
    check(command, finish(child)?)
}

/// Waits for a program, and ends it when it takes too long.
pub fn finish(mut child: std::process::Child) -> Result<Output, Failed> {
    let begun = Instant::now();
    while child.try_wait()?.is_none() {
        if begun.elapsed() > LIMIT {
            child.kill()?;
            let output = child.wait_with_output()?;
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(format!("no end after {} s\n{text}", LIMIT.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(child.wait_with_output()?)
}

/// What a program printed, if it ended well.
pub fn check(command: &Command, output: Output) -> Result<String, Failed> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}\n{text}{errors}", output.status).into())
}
