//! `cargo xtask sys`: the declarations of libibverbs and librdmacm in `hw/sys`. They are what
//! `rdma-sys` declares of what the project uses, without what is declared by hand there because
//! `rdma-sys` lacks it or has it wrong.

mod select;
mod source;
mod symbols;
mod used;
mod write;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use self::{
    select::Selection,
    source::Source,
    write::{Input, Library},
};
use crate::workspace::Workspace;

/// Declared by hand, see `hw/sys/src/lib.rs`; or libc's.
const BY_HAND: [&str; 8] = [
    "ibv_ack_async_event",
    "ibv_async_event",
    "ibv_event_type",
    "ibv_get_async_event",
    "ibv_gid_entry",
    "ibv_query_qp_data_in_order",
    "ibv_rereg_mr_err_code",
    "in_addr",
];

/// Whose fields are used where its name is not.
const UNNAMED: [&str; 1] = ["ibv_wq"];

static LIBRARIES: [Library; 2] = [
    Library {
        name: "libibverbs",
        link: "ibverbs",
        needs: "",
        folder: "hw/sys/src/ibverbs",
        is_its: |name| !is_of_librdmacm(name),
        more: &[
            "required \"IBVERBS_1.1\" fn ibv_ack_async_event(event: *mut ibv_async_event) -> ();",
            "required \"IBVERBS_1.1\" fn ibv_get_async_event(\n        context: *mut ibv_context,\n        \
             event: *mut ibv_async_event,\n    ) -> c_int;",
            "since(32) \"IBVERBS_1.11\" fn _ibv_query_gid_ex(\n        context: *mut ibv_context,\n        \
             port_num: u32,\n        gid_index: u32,\n        entry: *mut ibv_gid_entry,\n        \
             flags: u32,\n        entry_size: usize,\n    ) -> c_int;",
            "since(36) \"IBVERBS_1.14\" fn ibv_query_qp_data_in_order(\n        qp: *mut ibv_qp,\n        \
             op: ibv_wr_opcode::Type,\n        flags: u32,\n    ) -> c_int;",
            // For providers: its version is another in each release.
            "since(15) \"\" fn ibv_cmd_destroy_qp(qp: *mut ibv_qp) -> c_int;",
        ],
    },
    Library {
        name: "librdmacm",
        link: "rdmacm",
        needs: " needs ibverbs",
        folder: "hw/sys/src/rdmacm",
        is_its: is_of_librdmacm,
        more: &[],
    },
];

/// Also what `rdma-sys` calls the unions in its structures.
fn is_of_librdmacm(name: &str) -> bool {
    let unions = [
        "addr_union_t",
        "dst_addr_union_t",
        "param_t",
        "src_addr_union_t",
    ];
    (name.starts_with("rdma_") && name != "rdma_t") || unions.contains(&name)
}

/// Gives the text of a file.
type Writer = fn(&Input<'_>) -> String;

/// The files of a library.
const PARTS: [(&str, Writer); 3] = [
    ("numbers.rs", write::numbers),
    ("types.rs", write::types),
    ("functions.rs", write::functions),
];

/// Writes the files.
///
/// # Errors
/// `rdma-sys` cannot be built here, or a file not be read or written.
pub fn write(workspace: &Workspace) -> Result<()> {
    for (path, text) in files(workspace)? {
        fs::write(&path, text).with_context(|| format!("cannot write {path:?}"))?;
    }
    Ok(())
}

/// Whether the files are what would be written; says which are not.
///
/// # Errors
/// As [`write()`].
pub fn are_fresh(workspace: &Workspace) -> Result<bool> {
    let mut fresh = true;
    for (path, text) in files(workspace)? {
        let there = fs::read_to_string(&path).with_context(|| format!("cannot read {path:?}"))?;
        if there != text {
            println!("{} is not what `cargo xtask sys` writes", path.display());
            fresh = false;
        }
    }
    Ok(fresh)
}

/// The files, each with the text that it should have.
fn files(workspace: &Workspace) -> Result<Vec<(PathBuf, String)>> {
    let source = Source::build(&workspace.target("rdma-sys"))?;
    let parts = |library: &'static Library| {
        PARTS.map(|(name, text)| (library, Path::new(library.folder).join(name), text))
    };
    let all: Vec<_> = LIBRARIES.iter().flat_map(parts).collect();
    let paths: Vec<_> = all.iter().map(|(_, path, _)| path.clone()).collect();
    let mut used = used::identifiers(&paths)?;
    used.extend(UNNAMED.map(str::to_owned));
    let selection = Selection::new(&source, &used, &BY_HAND);
    let file = |(library, path, text): (&'static Library, PathBuf, Writer)| {
        let input = Input {
            library,
            source: &source,
            selection: &selection,
            used: &used,
        };
        (path, text(&input))
    };
    Ok(all.into_iter().map(file).collect())
}
