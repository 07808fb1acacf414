//! The step that builds and runs on a host that has the oldest Rust and a C linker alone: the C library, as one
//! installs it, the programs in C; and an example, which any Rust has built.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{
    c,
    tests::{EXAMPLES_BUILT, build_examples},
    tools,
};
use crate::{
    bare::Host,
    command::{command, limited, shown, stream},
    run::Run,
    workspace::Workspace,
};

/// The only device of a host without libibverbs.
const SOFTWARE: &str = "soft";

/// Where the C library is installed there.
const PREFIX: &str = "/target/prefix";

pub fn bare(workspace: &Workspace) -> Result<Run> {
    tools::need_packages(&tools::BARE)?;
    tools::oldest_rust(workspace)?.need()?;
    let mut run = Run::default();
    // There, cargo is offline.
    if !run.command(&mut command("cargo fetch --locked")) {
        return Ok(run);
    }
    let host = Host::make(workspace)?;
    c_programs(&host, &mut run)?;
    perf(workspace, &host, &mut run)?;
    workspace.remove_apart("bare");
    Ok(run)
}

/// Has an example look for devices, and use the one that there is. It is built as for other steps.
fn perf(workspace: &Workspace, host: &Host, run: &mut Run) -> Result<()> {
    if !run.command(&mut build_examples()) {
        return Ok(());
    }
    let built = workspace.target(EXAMPLES_BUILT).join("perf");
    let perf = host.folder("examples")?.join("perf");
    fs::copy(&built, host.outside(&perf)).with_context(|| built.display().to_string())?;
    let perf = |args: &str| host.command(&format!("{} {args}", perf.display()));
    let mut list = perf("devices --json");
    println!("$ {}", shown(&list));
    let mut json = String::new();
    let status = stream(&mut list, |line| json.push_str(line))?;
    let names = devices(&json);
    if !status.success() || names.as_deref().ok() != Some(&[SOFTWARE.to_owned()]) {
        run.problems.push(format!(
            "`{}`: {status}, devices {names:?}; it has to list `{SOFTWARE}`, and nothing else",
            shown(&list)
        ));
    }
    run.command(&mut perf("lat --iters 1000 --warmup 10"));
    Ok(())
}

/// The names in what perf lists.
fn devices(json: &str) -> Result<Vec<String>> {
    let document: Value = serde_json::from_str(json)?;
    let devices = document["devices"].as_array().context("no devices")?;
    let name = |device: &Value| Some(device["name"].as_str()?.to_owned());
    (devices.iter())
        .map(|device| name(device).context("a device without a name"))
        .collect()
}

/// Installs the C library, and builds and runs the programs in C with what was installed.
fn c_programs(host: &Host, run: &mut Run) -> Result<()> {
    let install = format!("cargo xtask install --prefix {PREFIX}");
    if !run.command(&mut host.command(&install)) {
        return Ok(());
    }
    let dir = host.folder("c")?;
    let mut sources = c::programs()?;
    sources.retain(|source| !c::is_cpp(source));
    run.notes.push(format!("{} programs in C", sources.len()));
    run.on_each_core(&sources, |source, run| {
        let name = source.with_extension("").display().to_string();
        let program = dir.join(name.replace('/', "-"));
        c_program(host, source, &program, run);
        Ok(())
    })
}

fn c_program(host: &Host, source: &Path, program: &Path, run: &mut Run) {
    let mut cc = host.command("cc -std=c11 -pthread");
    cc.args(c::WARNINGS).arg(source).arg("-o").arg(program);
    let flags = format!("-I{PREFIX}/include -L{PREFIX}/lib -Wl,-rpath,{PREFIX}/lib -lbellwire");
    if run.command(cc.args(flags.split(' '))) {
        let mut ready = host.command("");
        ready.arg(program).args(c::args(source));
        run.command(&mut limited(&ready, c::PROGRAM_LIMIT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_from_what_perf_prints() {
        let names = |json| devices(json).ok();
        let two = r#"{"schema":1,"devices":[{"name":"soft","ports":[]},{"name":"mlx5_0"}]}"#;
        assert_eq!(names(two), Some(vec!["soft".into(), "mlx5_0".into()]));
        assert_eq!(names(r#"{"devices":[]}"#), Some(Vec::new()));
        for bad in ["", "{}", r#"{"devices":[{}]}"#] {
            assert_eq!(names(bad), None, "{bad}");
        }
    }
}
