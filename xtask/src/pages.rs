//! Checks of the pages that people read: how long they are, and whether their links lead somewhere.

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
