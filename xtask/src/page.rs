//! Tables that commands measure, in docs/performance.md: each between two lines that name its command.

use anyhow::{Context, Result};
use std::fs;

const PAGE: &str = "docs/performance.md";

fn marks(name: &str) -> (String, String) {
    (
        format!("<!-- {name}: written by cargo xtask {name} -->"),
        format!("<!-- {name}: end -->"),
    )
}

/// Puts what the command of this name has measured in its place.
///
/// # Errors
/// The page cannot be read or written, or has no such place.
pub fn write(name: &str, text: &str) -> Result<()> {
    let page = fs::read_to_string(PAGE).context(PAGE)?;
    let (begin, end) = marks(name);
    let (before, rest) = page
        .split_once(&begin)
        .with_context(|| format!("{PAGE} has no line {begin}"))?;
    let (_, after) = rest
        .split_once(&end)
        .with_context(|| format!("{PAGE} has no line {end}"))?;
    fs::write(PAGE, format!("{before}{begin}\n\n{text}\n{end}{after}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_place_for_each() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/performance.md");
        let page = fs::read_to_string(page).expect("the page");
        for (begin, end) in ["race", "cost", "c-cost", "mlx5-cost"].map(marks) {
            assert!(page.contains(&begin) && page.find(&begin) < page.find(&end));
        }
    }
}
