//! Starts other programs: prints the command line, passes their output on, and reads along.

use std::{
    env,
    ffi::{OsStr, OsString},
    io::{BufRead, BufReader, Read},
    os::unix::ffi::{OsStrExt, OsStringExt},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use wait4::Wait4 as _;

/// The checkout may belong to another user than the user that tests it.
pub const GIT: &str = "git -c safe.directory=*";

/// A command from words; arguments that may hold a space are added with [`Command::arg`].
pub fn command(words: &str) -> Command {
    let mut words = words.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// `inner` under coreutils' `timeout`, which ends the whole process group: a hung grandchild too.
pub fn limited(inner: &Command, limit: Duration) -> Command {
    let outer = format!("timeout --kill-after=10 {}", limit.as_secs());
    under(&outer, inner)
}

/// `inner` as what another program starts, with the environment that it adds and in its folder.
pub fn under(outer: &str, inner: &Command) -> Command {
    let mut outer = command(outer);
    outer.arg(inner.get_program()).args(inner.get_args());
    for (key, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(key, value),
            None => outer.env_remove(key),
        };
    }
    if let Some(folder) = inner.get_current_dir() {
        outer.current_dir(folder);
    }
    outer
}

/// The command line as one would type it, with the environment that it adds.
pub fn shown(command: &Command) -> String {
    let vars = command.get_envs().filter_map(|(key, value)| {
        Some(format!(
            "{}={}",
            key.display(),
            quoted(value?).to_string_lossy()
        ))
    });
    vars.chain([words(command).to_string_lossy().into_owned()])
        .collect::<Vec<_>>()
        .join(" ")
}

/// The program and its arguments, each as one word of a shell's.
pub fn words(command: &Command) -> OsString {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(quoted)
        .collect::<Vec<_>>()
        .join(OsStr::new(" "))
}

/// One word of a shell's, whatever bytes it has.
pub fn quoted(word: &OsStr) -> OsString {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_=+./:,@%".contains(byte);
    if !word.is_empty() && word.as_bytes().iter().all(plain) {
        return word.to_owned();
    }
    let mut quoted = vec![b'\''];
    for &byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend(br"'\''"),
            _ => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    OsString::from_vec(quoted)
}

/// Runs the command without standard input, its output passed on as it comes, and gives each line
/// of its standard output to `on_line`.
///
/// # Errors
/// The program could not be started, or its output not be read.
pub fn stream(command: &mut Command, on_line: impl FnMut(&str)) -> Result<ExitStatus> {
    let mut child = start(command.stderr(Stdio::inherit()))?;
    let from = child.stdout.take().context("no pipe to the child")?;
    each_line(from, |text| print!("{text}"), on_line)?;
    Ok(child.wait()?)
}

/// How a command ended.
pub struct Ended {
    pub status: ExitStatus,
    /// Processor time that it took, with all that it started and waited for.
    pub cpu: Duration,
}

/// As [`stream`], and gives each line of its standard error to `on_error`, from another thread. A label
/// stands before each line that is passed on.
///
/// # Errors
/// As there.
pub fn stream_both(
    command: &mut Command,
    label: &str,
    on_line: impl FnMut(&str),
    on_error: impl FnMut(&str) + Send,
) -> Result<Ended> {
    let mut child = start(command.stderr(Stdio::piped()))?;
    let from = child.stdout.take().context("no pipe to the child")?;
    let errors = child.stderr.take().context("no pipe to the child")?;
    thread::scope(|scope| {
        let show = |text: &str| eprint!("{label}{text}");
        let errors = scope.spawn(move || each_line(errors, show, on_error));
        each_line(from, |text| print!("{label}{text}"), on_line)?;
        errors.join().expect("lines are read without a panic")
    })?;
    let ended = child.wait4()?;
    Ok(Ended {
        status: ended.status,
        cpu: ended.rusage.utime + ended.rusage.stime,
    })
}

fn start(command: &mut Command) -> Result<Child> {
    let name = command.get_program().display().to_string();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {name}"))
}

/// Shows what comes, and gives each line to `on_line`. By `print`, which tests capture.
fn each_line(from: impl Read, show: impl Fn(&str), mut on_line: impl FnMut(&str)) -> Result<()> {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        show(&text);
        on_line(&text);
        line.clear();
    }
    Ok(())
}

/// What the command prints on its standard output, or `None` when it fails or cannot be started.
pub fn output_of(words: &str) -> Option<String> {
    output(&mut command(words))
}

/// The like of [`output_of`] for a command.
pub fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
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

/// `PATH`, and where Debian has what is root's, which a user's `PATH` may lack.
pub fn path_with_sbin() -> OsString {
    let mut path = env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    path.push(":/usr/sbin:/sbin");
    path
}

/// Whether nobody watches: CI systems set `CI=true`.
pub fn unattended() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

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
    fn a_limited_command_runs_in_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let mut pwd = command("pwd");
        pwd.current_dir(folder.path());
        let said = output(&mut limited(&pwd, Duration::from_secs(60))).unwrap();
        assert_eq!(
            Path::new(said.trim_end()),
            folder.path().canonicalize().unwrap()
        );
    }

    #[test]
    fn a_shell_reads_quoted_words_as_they_were() {
        let odd: [&[u8]; 6] = [
            b"",
            b"it's",
            b"two\nlines\n",
            b"$HOME `x` \\ \"",
            b"\xff\xfe'",
            b"*",
        ];
        let mut printf = command("printf %s\\0");
        printf.args(odd.map(OsStr::from_bytes));
        let mut shell = command("sh -c");
        let output = shell.arg(words(&printf)).output().unwrap();
        let read: Vec<&[u8]> = output.stdout.split_inclusive(|&byte| byte == 0).collect();
        assert_eq!(read, odd.map(|word| [word, b"\0"].concat()));
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
    fn lines_of_both_outputs_are_read() {
        let (mut lines, mut errors) = (Vec::new(), Vec::new());
        let mut shell = command("sh -c");
        shell.arg("echo one; echo bad >&2; echo two");
        let ended = stream_both(
            &mut shell,
            "",
            |line| lines.push(line.to_owned()),
            |line| errors.push(line.to_owned()),
        );
        assert!(ended.unwrap().status.success());
        assert_eq!(
            (lines, errors),
            (
                vec!["one\n".to_owned(), "two\n".to_owned()],
                vec!["bad\n".to_owned()]
            )
        );
    }

    #[test]
    fn processor_time_is_that_of_all_that_was_started() {
        let cpu = |script: &str| {
            let mut shell = command("sh -c");
            shell.arg(script);
            stream_both(&mut shell, "", |_| (), |_| ()).unwrap().cpu
        };
        let count = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        assert!(cpu(&format!("sh -c '{count}'; exit")) > cpu("exit"));
    }

    #[test]
    fn a_hung_program_is_ended() {
        let mut slow = limited(&command("sleep 600"), Duration::from_secs(1));
        let status = stream(&mut slow, |_| ()).unwrap();
        assert_eq!(status.code(), Some(124));
    }
}
