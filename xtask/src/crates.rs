//! `cargo xtask crates`: which crate of the library is built on which, as ARCHITECTURE.md shows it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use cargo_metadata::{DependencyKind, Metadata};

use crate::page::Page;

/// Where the library's crates are. Programs, tests and tools are built on it, and are left out.
const FOLDERS: [&str; 3] = ["core", "hw", "ffi-c"];

/// What a crate is built on, by folder.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Where the picture is.
pub const PAGE: Page = Page {
    path: "ARCHITECTURE.md",
    name: "crates",
};

/// The picture: a line for each crate, above those that it is built on. What those are built on themselves is
/// not named again.
///
/// # Errors
/// Cargo lets no crates depend on each other in a circle; an optional one could.
pub fn picture(metadata: &Metadata) -> Result<String> {
    let graph = graph(metadata);
    let mut text = "```\n".to_owned();
    let mut lines = Vec::new();
    for (folder, uses) in &graph {
        let below: BTreeSet<_> = uses
            .iter()
            .flat_map(|used| all_below(&graph, used))
            .collect();
        let direct: Vec<_> = uses.iter().filter(|used| !below.contains(*used)).collect();
        let level = level(&graph, folder, graph.len())?;
        lines.push((std::cmp::Reverse(level), folder, direct));
    }
    lines.sort();
    for (_, folder, direct) in lines {
        let direct: Vec<_> = direct.into_iter().map(String::as_str).collect();
        let line = match direct.is_empty() {
            true => format!("{folder}\n"),
            false => format!("{folder:12} is built on  {}\n", direct.join(", ")),
        };
        text += &line;
    }
    Ok(text + "```\n")
}

fn graph(metadata: &Metadata) -> Graph {
    let root = &metadata.workspace_root;
    let folders: BTreeMap<_, _> = (metadata.workspace_packages().into_iter())
        .filter_map(|package| {
            let folder = package.manifest_path.parent()?.strip_prefix(root).ok()?;
            let first = folder.components().next()?.as_str().to_owned();
            let is_part = FOLDERS.contains(&first.as_str());
            is_part.then(|| (package.name.to_string(), (folder.to_string(), package)))
        })
        .collect();
    folders
        .values()
        .map(|(folder, package)| {
            let built_on = (package.dependencies.iter())
                .filter(|dependency| dependency.kind == DependencyKind::Normal)
                .filter_map(|dependency| Some(folders.get(&dependency.name)?.0.clone()));
            (folder.clone(), built_on.collect())
        })
        .collect()
}

fn all_below(graph: &Graph, folder: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left = vec![folder.to_owned()];
    while let Some(folder) = left.pop() {
        for used in graph.get(&folder).into_iter().flatten() {
            if found.insert(used.clone()) {
                left.push(used.clone());
            }
        }
    }
    found
}

/// How many crates stand below one another under this one.
fn level(graph: &Graph, folder: &str, bound: usize) -> Result<usize> {
    let bound = (bound.checked_sub(1)).with_context(|| format!("{folder} is in a circle"))?;
    let below = graph.get(folder).into_iter().flatten();
    let mut highest = 0;
    for used in below {
        highest = highest.max(level(graph, used, bound)? + 1);
    }
    Ok(highest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cargo_metadata::MetadataCommand;

    #[test]
    fn the_picture_is_fresh() {
        let metadata = MetadataCommand::new().exec().expect("cargo metadata");
        std::env::set_current_dir(&metadata.workspace_root).expect("the root");
        let drawn = PAGE.read().expect("the page");
        let picture = picture(&metadata).expect("no circle");
        assert_eq!(drawn.trim(), picture.trim(), "run cargo xtask crates");
    }

    #[test]
    fn a_circle_is_an_error() {
        let edge = |from: &str, to: &str| (from.to_owned(), BTreeSet::from([to.to_owned()]));
        let circle = Graph::from([edge("a", "b"), edge("b", "a")]);
        assert!(level(&circle, "a", circle.len()).is_err());
        let chain = Graph::from([edge("a", "b"), edge("b", "c")]);
        assert_eq!(level(&chain, "a", 3).expect("no circle"), 2);
    }
}
