//! The step that builds the guide, and runs every command in it. Its programs are examples, which run before.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    tests::{EXAMPLES_BUILT, build_examples},
    tools,
};
use crate::{
    command::{command, limited},
    install::{self, Place},
    pages::{GUIDE, blocks},
    run::Run,
    workspace::Workspace,
};

/// Where `book.toml` puts the book, in the target folder.
const BOOK: &str = "guide/book";

/// Far more than the commands of a page take.
const LIMIT: Duration = Duration::from_secs(600);

/// What stands before the commands of a page: examples were built by another profile, the library was installed.
///
/// A reader types the command that connects when the other terminal listens: it is tried again here until then. If a
/// command fails, the programs in the background end, too: the whole process group, which is that of [`limited`].
const BEFORE: &str = r#"set -eu
trap 'trap "" TERM; kill 0' EXIT
run() {
    tries=0
    until "$@"; do
        status=$?
        tries=$((tries + 1))
        case " $* " in *" --connect "*) [ $tries -lt 300 ] || exit $status ;; *) exit $status ;; esac
        sleep 0.1
    done
}
cargo() {
    case "$1 $2" in
    "run --release")
        [ "$3" = --example ]
        program=$4
        shift 4
        [ $# = 0 ] || shift
        run "$EXAMPLES/$program" "$@"
        ;;
    "xtask install") [ "$3 $4" = "--prefix $HOME/.local" ] ;;
    *)
        echo "the step guide has no 'cargo $*'" >&2
        exit 1
        ;;
    esac
}
"#;

pub fn guide(workspace: &Workspace) -> Result<Run> {
    tools::mdbook().need()?;
    for program in ["cc", "pkg-config"] {
        tools::need_program(program)?;
    }
    let mut run = Run::default();
    let book = workspace.target(BOOK);
    if !run.command(command("mdbook build docs/guide -d").arg(workspace.root().join(&book)))
        || !run.command(&mut build_examples())
    {
        return Ok(run);
    }
    let dir = tempfile::tempdir()?;
    install::put(
        workspace,
        &Place::in_prefix(&dir.path().join(".local")),
        false,
    )?;
    symlink(
        workspace.root().join("examples"),
        dir.path().join("examples"),
    )?;
    let mut commands = 0;
    for page in pages()? {
        let script = script(&page)?;
        if script.is_empty() {
            continue;
        }
        commands += script.lines().count();
        let mut shell = shell(&script);
        let examples = workspace.root().join(workspace.target(EXAMPLES_BUILT));
        shell.env("EXAMPLES", examples).env("HOME", dir.path());
        let mut shell = limited(&shell, LIMIT);
        run.command(shell.current_dir(dir.path()));
    }
    run.notes.push(format!("{commands} lines of commands"));
    // Pictures that the commands have drawn.
    for file in fs::read_dir(dir.path())? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "svg") {
            fs::copy(&path, book.join(path.file_name().unwrap_or_default()))?;
        }
    }
    Ok(run)
}

/// Runs what a page has, and waits for its programs in the background.
fn shell(script: &str) -> Command {
    let mut shell = command("sh -c");
    shell.arg(format!("{BEFORE}set -x\n{script}wait\ntrap - EXIT\n"));
    shell
}

/// The text of each file in which there are commands.
fn pages() -> Result<Vec<(String, String)>> {
    let mut pages = Vec::new();
    for file in fs::read_dir(GUIDE).context(GUIDE)? {
        let path = file?.path();
        let text = fs::read_to_string(&path)?;
        pages.push((path.display().to_string(), text));
    }
    pages.sort();
    Ok(pages)
}

/// The commands of a page, or of a workflow.
fn script((path, text): &(String, String)) -> Result<String> {
    let mut script = String::new();
    if Path::new(path).extension().is_some_and(|it| it == "yml") {
        for line in text.lines() {
            if let Some(command) = line.trim_start().strip_prefix("- run: ") {
                script.push_str(command);
                script.push('\n');
            }
        }
        anyhow::ensure!(!script.is_empty(), "{path} runs nothing");
    }
    for (language, lines) in blocks(text) {
        if language == "sh" {
            script.push_str(&lines.join("\n"));
            script.push('\n');
        }
    }
    Ok(script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_taken_from_pages() {
        let of = |path: &str, text: &str| script(&(path.to_owned(), text.to_owned()));
        let page = "# A\n```sh\none\ntwo\n```\nthree\n```text\nfour\n```\n```sh\nfive\n```\n";
        assert_eq!(of("a.md", page).unwrap(), "one\ntwo\nfive\n");
        assert_eq!(of("a.yml", "steps:\n  - run: six\n").unwrap(), "six\n");
        assert!(of("a.yml", "steps:\n").is_err());
    }

    #[test]
    fn unknown_commands_of_cargo_fail() {
        // The signal that ends a failing page's programs may reach `timeout` first: so the status is any.
        let passes = |line: &str| {
            let mut shell = shell(&format!("{line}\n"));
            shell.env("EXAMPLES", "/bin").env("HOME", "/h");
            limited(&shell, LIMIT).status().unwrap().success()
        };
        assert!(passes("cargo run --release --example true"));
        assert!(!passes("cargo run --release --example false"));
        assert!(!passes("cargo run --release --example sh -- -c 'exit 3'"));
        assert!(passes("cargo xtask install --prefix /h/.local"));
        assert!(!passes("cargo publish now"));
        assert!(!passes("sleep 600 &\nexit 4"));
    }
}
