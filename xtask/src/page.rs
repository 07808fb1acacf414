//! What commands write into pages: each between two lines that name its command.

use anyhow::{Context, Result};
use std::fs;

/// A place in a page.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The page, from the workspace's root.
    pub path: &'static str,
    /// The command.
    pub name: &'static str,
}

/// Tables that a command measures.
const MEASURED: &str = "docs/performance.md";

/// Puts what the command of this name has measured in its place.
///
/// # Errors
/// As [`Page::write`].
pub fn write(name: &'static str, text: &str) -> Result<()> {
    let path = MEASURED;
    Page { path, name }.write(text)
}

impl Page {
    fn marks(self) -> (String, String) {
        let Self { name, .. } = self;
        (
            format!("<!-- {name}: written by cargo xtask {name} -->"),
            format!("<!-- {name}: end -->"),
        )
    }

    /// What stands before the place, in it, and behind it.
    fn parts(self) -> Result<[String; 3]> {
        let Self { path, .. } = self;
        let page = fs::read_to_string(path).context(path)?;
        let (begin, end) = self.marks();
        let lacks = |line: &str| format!("{path} has no line {line}");
        let (before, rest) = page.split_once(&begin).with_context(|| lacks(&begin))?;
        let (within, after) = rest.split_once(&end).with_context(|| lacks(&end))?;
        Ok([before, within, after].map(str::to_owned))
    }

    /// What stands there.
    ///
    /// # Errors
    /// The page cannot be read, or has no such place.
    #[cfg(test)]
    pub fn read(self) -> Result<String> {
        let [_, within, _] = self.parts()?;
        Ok(within)
    }

    /// Puts this there.
    ///
    /// # Errors
    /// The page cannot be read or written, or has no such place.
    pub fn write(self, text: &str) -> Result<()> {
        let [before, _, after] = self.parts()?;
        let (begin, end) = self.marks();
        fs::write(
            self.path,
            format!("{before}{begin}\n\n{text}\n{end}{after}"),
        )?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_place_for_each() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/performance.md");
        let page = fs::read_to_string(page).expect("the page");
        for name in ["race", "cost", "c-cost", "mlx5-cost"] {
            let path = MEASURED;
            let (begin, end) = Page { path, name }.marks();
            assert!(page.contains(&begin) && page.find(&begin) < page.find(&end));
        }
    }
}
