//! The pages that people read. Checked here: how long they are, whether their links lead somewhere, and whether the
//! programs in the guide are files that the test command runs.

/// The pages of the guide.
pub const GUIDE: &str = "docs/guide/src";

/// The blocks of code of a page: their language, and their lines.
pub fn blocks(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut blocks = Vec::new();
    let mut open: Option<(&str, Vec<&str>)> = None;
    for line in page.lines() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some((language, Vec::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some((_, lines))) => lines.push(line),
            (None, None) => (),
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::{GUIDE, blocks};
    use std::collections::HashSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// The longest that a page may be, in bytes. A page that grows beyond that moves its details to the docs of the
    /// modules that they describe.
    const SIZES: [(&str, u64); 5] = [
        ("README.md", 8_000),
        ("ARCHITECTURE.md", 20_000),
        ("CHANGELOG.md", 3_200),
        ("docs/conformance.md", 10_000),
        ("docs/performance.md", 8_000),
    ];

    /// Every page of the workspace.
    fn pages() -> Vec<PathBuf> {
        let mut left = vec![root().to_owned()];
        let mut pages = Vec::new();
        while let Some(folder) = left.pop() {
            for entry in fs::read_dir(folder).expect("a folder").flatten() {
                let path = entry.path();
                let name = entry.file_name();
                let is_page = path.extension().is_some_and(|extension| extension == "md");
                if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
                    left.push(path);
                } else if is_page {
                    pages.push(path);
                }
            }
        }
        pages
    }

    fn root() -> &'static Path {
        let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
        xtask.parent().expect("the workspace")
    }

    /// What the links of a page name, without links to other sites.
    fn targets(text: &str) -> impl Iterator<Item = &str> {
        let links = text.split("](").skip(1);
        let targets = links.filter_map(|rest| Some(rest.split_once(')')?.0));
        targets.filter(|target| !target.contains("://"))
    }

    /// The anchors of a page, as GitHub derives them from its headings.
    fn anchors(text: &str) -> impl Iterator<Item = String> {
        let headings = text.lines().filter(|line| line.starts_with('#'));
        headings.map(|heading| {
            let heading = heading.trim_start_matches('#').trim().to_lowercase();
            heading
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
    }

    #[test]
    fn pages_are_short() {
        for (page, limit) in SIZES {
            let size = fs::metadata(root().join(page)).expect(page).len();
            assert!(
                size <= limit,
                "{page} has {size} bytes, and may have {limit}"
            );
        }
    }

    #[test]
    fn links_lead_somewhere() {
        let pages = pages();
        assert!(pages.contains(&root().join("README.md")), "{pages:?}");
        let mut broken = Vec::new();
        for page in pages {
            let text = fs::read_to_string(&page).expect("a page");
            for target in targets(&text) {
                let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
                let path = match file {
                    "" => page.clone(),
                    file => page.with_file_name("").join(file),
                };
                let has = |anchor: &str| match fs::read_to_string(&path) {
                    Ok(text) => anchors(&text).any(|has| has == anchor),
                    Err(_) => false,
                };
                if !path.exists() || !anchor.is_empty() && !has(anchor) {
                    broken.push(format!("{}: {target}", page.display()));
                }
            }
        }
        assert!(broken.is_empty(), "{broken:#?}");
    }

    /// Source files that ARCHITECTURE.md names exist.
    #[test]
    fn named_files_exist() {
        let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page");
        let quoted = page.split('`').skip(1).step_by(2);
        let files: Vec<_> = quoted
            .filter(|text| {
                Path::new(text)
                    .extension()
                    .is_some_and(|extension| extension == "rs")
            })
            .collect();
        assert!(!files.is_empty());
        for file in files {
            assert!(root().join(file).exists(), "{file}");
        }
    }

    /// The README's excerpt in C is of the program that it names.
    #[test]
    fn the_excerpt_in_c_is_of_hello() {
        let readme = fs::read_to_string(root().join("README.md")).expect("the page");
        let hello = fs::read_to_string(root().join("examples/c/hello.c")).expect("the program");
        let (_, rest) = readme.split_once("```c\n").expect("an excerpt");
        let (excerpt, _) = rest.split_once("```").expect("its end");
        let mut rest = hello.as_str();
        for line in excerpt
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
        {
            let found = rest.split_once(line);
            rest = found
                .unwrap_or_else(|| panic!("hello.c has no such line there: {line}"))
                .1;
        }
    }

    /// A program in the guide is a part of a file, and commands are run by the step `guide`.
    #[test]
    fn the_guide_shows_files() {
        let folder = root().join(GUIDE);
        let summary = fs::read_to_string(folder.join("SUMMARY.md")).expect("its contents");
        let (mut chapters, mut programs) = (0, 0);
        for file in targets(&summary) {
            chapters += 1;
            let page = fs::read_to_string(folder.join(file)).expect(file);
            for (language, lines) in blocks(&page) {
                if ["sh", "text"].contains(&language) {
                    continue;
                }
                let include = lines.concat();
                let include = include
                    .strip_prefix("{{#include ")
                    .and_then(|rest| rest.strip_suffix("}}"));
                let include = include
                    .unwrap_or_else(|| panic!("{file}: a block `{language}` without a file"));
                let (path, anchor) = include.split_once(':').unwrap_or((include, ""));
                let text = fs::read_to_string(folder.join(path)).expect(path);
                let ends = [format!("ANCHOR: {anchor}"), format!("ANCHOR_END: {anchor}")];
                let has = |end: &String| {
                    text.lines()
                        .any(|line| line.trim_end_matches(" */").ends_with(end.as_str()))
                };
                assert!(
                    anchor.is_empty() || ends.iter().all(has),
                    "{file}: {include}"
                );
                programs += 1;
            }
        }
        let pages = fs::read_dir(&folder).expect("its folder").flatten();
        let pages = pages.filter(|page| {
            page.path()
                .extension()
                .is_some_and(|extension| extension == "md")
        });
        assert_eq!(pages.count(), chapters + 1, "pages that are chapters");
        assert!(programs > 10);
    }

    /// Functions and constants of C that the guide names are in the header.
    #[test]
    fn the_guide_names_what_the_header_has() {
        let header = fs::read_to_string(root().join("include/bellwire.h")).expect("the header");
        let of_header: HashSet<&str> = names(&header).collect();
        for page in fs::read_dir(root().join(GUIDE))
            .expect("its folder")
            .flatten()
        {
            let text = fs::read_to_string(page.path()).expect("a page");
            for name in names(&text).filter(|name| !name.ends_with('_')) {
                assert!(
                    of_header.contains(name),
                    "{}: {name}",
                    page.path().display()
                );
            }
        }
    }

    /// Names of the C interface.
    fn names(text: &str) -> impl Iterator<Item = &str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("bw_") || word.starts_with("BW_"))
    }
}
