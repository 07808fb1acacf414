//! Manual pages of section 3, from the text of include/bellwire.h: one for each function.

use std::fmt::Write as _;

/// Paragraphs of a description that are sections of a page, by how they begin.
const SECTIONS: [(&str, &str); 3] = [
    ("Owner: ", "OWNER"),
    ("Errors: ", "ERRORS"),
    ("Thread: ", "THREADS"),
];

/// A page: the name of its file, and its text.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    pub file: String,
    pub text: String,
}

/// The pages of a header's functions.
pub fn pages(header: &str, version: &str) -> Vec<Page> {
    let mut pages = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    let mut lines = header.lines();
    while let Some(line) = lines.next() {
        if let Some(text) = line.strip_prefix("//") {
            comment.push(text.strip_prefix(' ').unwrap_or(text));
            continue;
        }
        let is_inline = line.starts_with("static inline ");
        if let Some(name) = function(line) {
            let mut declaration = vec![line];
            while !declaration
                .last()
                .is_some_and(|line| line.ends_with([';', ')']))
            {
                declaration.extend(lines.next());
            }
            let file = format!("{name}.3");
            let text = match is_inline {
                // Described at the function that it calls.
                true => format!(".so man3/{name}_sized.3\n"),
                false => page(name, version, &comment, &declaration),
            };
            let is_described = !is_inline || header.contains(&format!("{name}_sized("));
            if is_described {
                pages.push(Page { file, text });
            }
        }
        comment.clear();
    }
    pages
}

/// The name of the function that a line begins to declare.
fn function(line: &str) -> Option<&str> {
    let (before, _) = line.split_once('(')?;
    let starts = line.starts_with(|c: char| c.is_ascii_lowercase());
    let name = before.rsplit([' ', '*']).next()?;
    let is_one = starts && !line.starts_with("typedef") && name.starts_with("bw_");
    is_one.then_some(name)
}

fn page(name: &str, version: &str, comment: &[&str], declaration: &[&str]) -> String {
    let mut text = format!(".TH {name} 3 \"\" \"bellwire {version}\" \"bellwire\"\n.SH NAME\n");
    let first = comment.join(" ");
    let first = first.split(". ").next().unwrap_or_default();
    let _ = write!(
        text,
        "{name} \\- {}\n.SH SYNOPSIS\n.nf\n#include <bellwire.h>\n.PP\n",
        escaped(first.trim_end_matches('.'))
    );
    for line in declaration {
        text += &escaped(line);
        text.push('\n');
    }
    text += ".fi\n.SH DESCRIPTION\n";
    let mut in_code = false;
    for line in comment {
        let is_code = line.starts_with("    ");
        if is_code != in_code {
            text += if is_code { ".PP\n.nf\n" } else { ".fi\n" };
            in_code = is_code;
        }
        let section = SECTIONS.iter().find_map(|(start, title)| {
            let rest = line.strip_prefix(start)?;
            Some((*title, rest))
        });
        match section {
            Some((title, rest)) => {
                let _ = writeln!(text, ".SH {title}\n{}", escaped(rest));
            }
            None if line.is_empty() => text += ".PP\n",
            None => {
                text += &escaped(line);
                text.push('\n');
            }
        }
    }
    text
}

/// A line that has no meaning for roff.
fn escaped(line: &str) -> String {
    let plain = line
        .replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('`', "");
    match plain.starts_with(['.', '\'']) {
        true => format!("\\&{plain}"),
        false => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../../include/bellwire.h");

    #[test]
    fn a_page_has_what_the_header_says() {
        let header = "// Opens a door. It is locked.\n//\n//     code\n// 'quoted'\n//\n\
                      // Errors: `BW_EBUSY`.\n// Thread: any.\nint bw_open(int *a,\n            int b);\n";
        let expected = ".TH bw_open 3 \"\" \"bellwire 1.2.3\" \"bellwire\"\n.SH NAME\n\
            bw_open \\- Opens a door\n.SH SYNOPSIS\n.nf\n#include <bellwire.h>\n.PP\n\
            int bw_open(int *a,\n            int b);\n.fi\n.SH DESCRIPTION\n\
            Opens a door. It is locked.\n.PP\n.PP\n.nf\n    code\n.fi\n\\&'quoted'\n.PP\n\
            .SH ERRORS\nBW_EBUSY.\n.SH THREADS\nany.\n";
        let pages = pages(header, "1.2.3");
        assert_eq!((pages.len(), &*pages[0].file), (1, "bw_open.3"));
        assert_eq!(pages[0].text, expected);
    }

    #[test]
    fn every_function_has_a_page() {
        let pages = pages(HEADER, "0.1.0");
        let text = |name: &str| {
            let file = format!("{name}.3");
            let mut pages = pages.iter().filter(|page| page.file == file);
            let text = pages.next().map(|page| &*page.text).expect(name);
            assert!(pages.next().is_none(), "{name} has two");
            text
        };
        assert!(text("bw_qp_create").contains("BW_ECQROOM"));
        assert_eq!(text("bw_poll"), ".so man3/bw_poll_sized.3\n");
        for line in HEADER.lines().filter(|line| !line.starts_with("//")) {
            let starts = line.starts_with("int bw_") || line.starts_with("uint32_t bw_");
            if let Some(name) = function(line).filter(|_| starts) {
                assert!(text(name).contains(".SH THREADS"), "{name}");
            }
        }
    }
}
