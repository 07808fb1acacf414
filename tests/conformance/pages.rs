//! What is written about a run: the verdicts, which the tree keeps, and the full tables.

use crate::matrix::{Matrix, Verdict};
use crate::rule::Group;
use std::fmt::{Result, Write};
use std::fs;
use std::path::{Path, PathBuf};

/// Where the verdicts of a run are kept, and the command that writes them.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// The name of the files, without extension.
    pub name: &'static str,
    /// The command.
    pub renew: &'static str,
}

impl Kept {
    /// The verdicts that the tree keeps.
    pub fn verdicts(self) -> PathBuf {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/conformance");
        data.join(self.name).with_extension("txt")
    }

    /// Compares the verdicts of the run with those that the tree keeps.
    ///
    /// # Errors
    /// They differ; the text says where, and what to do.
    pub fn check(self, matrix: &Matrix) -> std::result::Result<(), String> {
        let there = fs::read_to_string(self.verdicts()).unwrap_or_default();
        let here = verdicts(matrix, self.renew);
        if there == here {
            return Ok(());
        }
        let mut differences = String::new();
        for (mark, from, to) in [('-', &there, &here), ('+', &here, &there)] {
            let to: Vec<_> = to.lines().collect();
            for line in from.lines().filter(|line| !to.contains(line)) {
                writeln!(differences, "{mark} {}", line.trim()).expect("writing to a String");
            }
        }
        let file = self.verdicts();
        Err(format!(
            "{} has other verdicts than this run:\n{differences}run `{}`, and review what it changes",
            file.display(),
            self.renew
        ))
    }

    /// Writes the verdicts, and the full tables into a folder under `target`. A guest of `cargo xtask vm` writes both
    /// into its own folder.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(self, matrix: &Matrix) -> std::io::Result<()> {
        let work = std::env::var_os("BELLWIRE_VM_WORK").map(PathBuf::from);
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("conformance");
        let tables = work.clone().unwrap_or(target);
        let kept = match work {
            Some(work) => work.join(self.name).with_extension("txt"),
            None => self.verdicts(),
        };
        fs::create_dir_all(&tables)?;
        let tables = tables.join(self.name).with_extension("md");
        fs::write(&tables, full(matrix, self.renew))?;
        println!("tables: {}", tables.display());
        fs::write(kept, verdicts(matrix, self.renew))
    }
}

/// The verdicts of a rule with every provider, in the order of the columns.
fn cells(matrix: &Matrix, rule: &str) -> Vec<&'static str> {
    let providers = matrix.providers.iter();
    let verdicts = providers.map(|provider| matrix.verdict(provider, rule));
    verdicts
        .map(|verdict| verdict.map_or("-", Verdict::text))
        .collect()
}

/// One verdict where all providers have the same.
fn short(cells: &[&str]) -> String {
    match cells.iter().all(|cell| *cell == cells[0]) {
        true => cells[0].to_owned(),
        false => cells.join(", "),
    }
}

/// Every verdict but `yes`, each on a line.
fn verdicts(matrix: &Matrix, renew: &str) -> String {
    let mut text = format!(
        "# Verdicts of the conformance suite, written by `{renew}`. A rule that is not named passed.\n"
    );
    let named = matrix.providers.iter().map(|provider| provider.name);
    writeln!(text, "# {}", named.collect::<Vec<_>>().join(", ")).expect("writing to a String");
    for provider in matrix.providers {
        writeln!(text, "{}", matrix.counts(provider)).expect("writing to a String");
    }
    for group in &matrix.groups {
        write_verdicts(matrix, group, &mut text).expect("writing to a String");
    }
    text
}

fn write_verdicts(matrix: &Matrix, group: &Group, text: &mut String) -> Result {
    let rules = group.rules.iter();
    let all: Vec<_> = rules.map(|rule| cells(matrix, &rule.name)).collect();
    write!(text, "{} {}", group.name, group.rules.len())?;
    let first = all.first().map(Vec::as_slice).unwrap_or_default();
    if all.iter().all(|cells| cells == first) {
        return match short(first).as_str() {
            "yes" => writeln!(text),
            verdict => writeln!(text, ": {verdict}"),
        };
    }
    writeln!(text)?;
    for (rule, cells) in group.rules.iter().zip(all) {
        let verdict = short(&cells);
        if verdict != "yes" {
            writeln!(text, "    {}: {verdict}", rule.name)?;
        }
    }
    Ok(())
}

/// Every rule with every verdict, as a page.
fn full(matrix: &Matrix, renew: &str) -> String {
    let mut text = format!(
        "# Conformance\n\n\
         Written by `{renew}` from a run of `tests/conformance`. A cell says `yes` only if the rule ran and passed. \
         {} rules. IBTA is the InfiniBand Architecture Specification, with the section numbers of release 1.3; \
         ibv_… are manual pages of rdma-core.\n\n",
        matrix.rules()
    );
    for provider in matrix.providers {
        let lacks: Vec<_> = provider.lacking().map(|one| one.to_string()).collect();
        let (name, about) = (provider.name, provider.about);
        writeln!(text, "- **{name}**: {about}. Lacks: {}.", lacks.join(", "))
            .expect("writing to a String");
        for (rules, instead) in provider.otherwise.iter().copied().flatten() {
            writeln!(text, "  - `{rules}` otherwise: {instead}").expect("writing to a String");
        }
    }
    text.push('\n');
    for provider in matrix.providers {
        writeln!(text, "    {}", matrix.counts(provider)).expect("writing to a String");
    }
    for group in &matrix.groups {
        section(matrix, group, &mut text).expect("writing to a String");
    }
    text
}

fn section(matrix: &Matrix, group: &Group, text: &mut String) -> Result {
    write!(text, "\n## {}\n\n{}\n\n| rule |", group.name, group.about)?;
    for provider in matrix.providers {
        write!(text, " {} |", provider.name)?;
    }
    write!(text, " what it says | source |\n|---|---|---|")?;
    text.push_str(&"---|".repeat(matrix.providers.len()));
    for rule in &group.rules {
        write!(text, "\n| `{}` |", rule.within(group))?;
        for cell in cells(matrix, &rule.name) {
            write!(text, " {cell} |")?;
        }
        write!(text, " {} | {} |", rule.says, rule.source)?;
    }
    text.push('\n');
    Ok(())
}
