//! Starts other programs: prints the command line, passes their output on, and reads along.

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result};

/// A command from words; arguments that may hold a space are added with [`Command::arg`].
pub fn command(words: &str) -> Command {
    let mut words = words.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// `inner` under coreutils' `timeout`, which ends the whole process group: a hung grandchild too.
pub fn limited(inner: &Command, limit: Duration) -> Command {
    let mut outer = command("timeout --kill-after=10");
    outer
        .arg(limit.as_secs().to_string())
        .arg(inner.get_program())
        .args(inner.get_args());
    for (key, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(key, value),
            None => outer.env_remove(key),
        };
    }
    outer
}

/// The command line as one would type it, with the environment that it adds.
pub fn shown(command: &Command) -> String {
    let vars = command.get_envs().filter_map(|(key, value)| {
        Some(format!(
            "{}={}",
            key.display(),
            quoted(&value?.to_string_lossy())
        ))
    });
    let words = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| quoted(&word.to_string_lossy()));
    vars.chain(words).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Runs the command without standard input, its output passed on as it comes, and gives each line
/// of its standard output to `on_line`.
///
/// # Errors
/// The program could not be started, or its output not be read.
pub fn stream(command: &mut Command, mut on_line: impl FnMut(&str)) -> Result<ExitStatus> {
    let name = command.get_program().display().to_string();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let mut from = BufReader::new(child.stdout.take().context("no pipe to the child")?);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        print!("{text}");
        on_line(&text);
        line.clear();
    }
    Ok(child.wait()?)
}

/// What the command prints on its standard output, or `None` when it fails or cannot be started.
pub fn output_of(words: &str) -> Option<String> {
    let output = command(words).stdin(Stdio::null()).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether `PATH` leads to a program of that name.
pub fn on_path(program: &str) -> bool {
    env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Whether nobody watches: CI systems set `CI=true`.
pub fn unattended() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_pasted() {
        let mut command = command("cargo test -p core");
        command.arg("two words").env("RUSTFLAGS", "--cfg loom");
        assert_eq!(
            shown(&command),
            "RUSTFLAGS='--cfg loom' cargo test -p core 'two words'"
        );
    }

    #[test]
    fn lines_are_read_and_the_status_kept() {
        let mut lines = Vec::new();
        let mut shell = command("sh -c");
        shell.arg("echo one; printf two; exit 3");
        let status = stream(&mut shell, |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(lines, ["one\n", "two"]);
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn a_hung_program_is_ended() {
        let mut slow = limited(&command("sleep 600"), Duration::from_secs(1));
        let status = stream(&mut slow, |_| ()).unwrap();
        assert_eq!(status.code(), Some(124));
    }
}
