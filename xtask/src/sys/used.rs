//! Which names the project uses.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    str::FromStr as _,
};

use anyhow::{Context as _, Result};
use proc_macro2::{TokenStream, TokenTree};

/// Where the declarations are used, generated files aside.
const FOLDERS: [&str; 6] = [
    "hw/bellwire/src",
    "hw/verbs/src",
    "hw/mlx5/src",
    "hw/sys/src",
    "benches/verbs",
    "tests/mlx5_bytes",
];

/// Every identifier in the code there; comments do not count.
///
/// # Errors
/// A file cannot be read, or is not Rust.
pub fn identifiers(generated: &[PathBuf]) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for folder in FOLDERS {
        read_folder(Path::new(folder), generated, &mut found)?;
    }
    Ok(found)
}

fn read_folder(folder: &Path, generated: &[PathBuf], found: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {folder:?}"))? {
        let path = entry?.path();
        if generated.contains(&path) {
            continue;
        } else if path.is_dir() {
            read_folder(&path, generated, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            let tokens = TokenStream::from_str(&text);
            let tokens = tokens.map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
            read(tokens, found);
        }
    }
    Ok(())
}

fn read(tokens: TokenStream, found: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => _ = found.insert(ident.to_string()),
            TokenTree::Group(group) => read(group.stream(), found),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}
