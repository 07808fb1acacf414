//! The step about libibverbs, librdmacm and libmlx5: their declarations, and who is linked with them.

use anyhow::Result;

use super::tools;
use crate::{
    command::{command, output_of},
    run::{Run, Skip},
    sys,
    workspace::Workspace,
};

const LIBRARIES: [&str; 3] = ["libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1"];

/// Holds the declarations in `hw/sys` against those of `rdma-sys`, where that can be built, and looks at what
/// the C library is linked with.
pub fn sys(workspace: &Workspace) -> Result<Run> {
    tools::need_packages(&tools::RDMA_SYS)?;
    let mut run = Run::default();
    for (features, linked) in [("", false), (" --features link-system", true)] {
        run.command(&mut command(&format!(
            "cargo test -p bellwire-sys{features}"
        )));
        let build = format!("cargo build -p bellwire-ffi{features}");
        if run.command(&mut command(&build)) {
            let library = workspace.target("debug/libbellwire.so");
            let needed = output_of(&format!("objdump -p {}", library.display()));
            let needed = needed.unwrap_or_default();
            let is_needed = |name: &&str| needed.lines().any(|line| line.ends_with(*name));
            let found = LIBRARIES.iter().filter(|name| is_needed(name)).count();
            if found != if linked { LIBRARIES.len() } else { 0 } {
                let problem = format!("after `{build}` the library needs {found} of {LIBRARIES:?}");
                run.problems.push(problem);
            }
        }
    }
    let fresh = sys::are_fresh(workspace).map_err(|error| {
        let get = "libclang-dev of a version before 16, by LIBCLANG_PATH where there are others";
        Skip::lacking(format!("{error:#}"), get)
    })?;
    if !fresh {
        run.problems.push("run `cargo xtask sys`".to_owned());
    }
    Ok(run)
}
