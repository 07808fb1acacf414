//! What the guest runs: a shell script for each command.

use std::{env, ffi::OsStr, fs, os::unix::ffi::OsStrExt as _, path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use crate::command::{path_with_sbin, quoted, words};

/// Variables that the guest's programs get from here, besides those that a command adds.
const PASSED: [&str; 6] = [
    "CARGO_TARGET_DIR",
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "USER",
];

/// The like, by how the name starts.
const PASSED_FAMILIES: [&str; 4] = ["BELLWIRE_", "IBV_", "RDMAV_", "RUST_"];

/// The script that runs `command` in `workspace`.
pub fn script(command: &Command, workspace: &Path, work: &Path) -> Vec<u8> {
    let mut text = Vec::new();
    let mut line = |words: &[&OsStr]| {
        for word in words {
            text.extend_from_slice(word.as_bytes());
        }
        text.push(b'\n');
    };
    let mut export = |name: &OsStr, value: Option<&OsStr>| match value {
        Some(value) => line(&[OsStr::new("export "), name, OsStr::new("="), &quoted(value)]),
        None => line(&[OsStr::new("unset "), name]),
    };
    for (name, value) in env::vars_os().filter(|(name, _)| is_passed(name)) {
        export(&name, Some(&value));
    }
    export(OsStr::new("PATH"), Some(&path_with_sbin()));
    export(OsStr::new("BELLWIRE_VM_WORK"), Some(work.as_os_str()));
    for (name, value) in command.get_envs() {
        export(name, value);
    }
    line(&[
        OsStr::new("cd "),
        &quoted(workspace.as_os_str()),
        OsStr::new(" || exit"),
    ]);
    line(&[OsStr::new("exec "), &words(command)]);
    text
}

fn is_passed(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    let plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let family = PASSED_FAMILIES
        .iter()
        .any(|family| name.starts_with(family));
    plain && (family || PASSED.contains(&name))
}

/// Writes a path for the guest's init script to read.
///
/// # Errors
/// The path has a line break, with which the script cannot read it, or could not be written.
pub fn write_path(to: &Path, path: &Path) -> Result<()> {
    let bytes = path.as_os_str().as_bytes();
    ensure!(
        !bytes.contains(&b'\n'),
        "{} has a line break",
        path.display()
    );
    fs::write(to, bytes).with_context(|| to.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_runs_as_it_was_given() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "printf '%s|' \"$PWD\" \"$ODD\" \"$BELLWIRE_VM_WORK\" \"$@\"",
            "sh",
        ]);
        let odd = OsStr::from_bytes(b"it's\n\xff $x `y`");
        command.arg(odd).env("ODD", odd).env_remove("HOME");
        let work = Path::new("/a work folder");
        let text = script(&command, Path::new("/"), work);
        let output = Command::new("sh")
            .arg("-c")
            .arg(OsStr::from_bytes(&text))
            .output()
            .unwrap();
        let words = [
            b"/",
            odd.as_bytes(),
            work.as_os_str().as_bytes(),
            odd.as_bytes(),
        ];
        let expected = words.map(|word| [word, b"|"].concat()).concat();
        assert_eq!(output.stdout, expected);
        assert!(String::from_utf8_lossy(&text).contains("\nunset HOME\n"));
    }

    #[test]
    fn what_the_programs_read_is_passed() {
        for name in ["BELLWIRE_BLESS", "RUST_BACKTRACE", "HOME"] {
            assert!(is_passed(OsStr::new(name)), "{name}");
        }
        for name in ["SECRET", "BELLWIRE_A B", "BASH_FUNC_x%%"] {
            assert!(!is_passed(OsStr::new(name)), "{name}");
        }
    }
}
