//! Tests of .github/workflows: what they run is known here.

use std::{fs, path::Path};

use super::list;

/// Commands that prepare a machine, by how they begin.
const PREPARE: [&str; 2] = ["apt-get ", "rustup "];

fn commands() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.github/workflows");
    let mut commands = Vec::new();
    for file in fs::read_dir(folder).expect("workflows").flatten() {
        let text = fs::read_to_string(file.path()).expect("a workflow");
        for line in text.lines() {
            let step = line.trim_start().trim_start_matches("- ");
            if let Some(command) = step.strip_prefix("run:") {
                commands.push(command.trim().to_owned());
            }
        }
    }
    commands
}

/// Workflows run the test command and its steps, and nothing that one cannot run without them.
#[test]
fn workflows_run_what_the_test_command_runs() {
    let mut steps = 0;
    for command in commands() {
        if PREPARE.iter().any(|prepare| command.starts_with(prepare)) || command == ".ci/run" {
            continue;
        }
        let words = command.strip_prefix("cargo xtask test ");
        let words = words.unwrap_or_else(|| panic!("`{command}` is not a step"));
        for word in words.split_whitespace().filter(|word| *word != "--yes") {
            assert!(list().any(|(name, _)| name == word), "`{command}`: {word}");
            steps += 1;
        }
    }
    assert!(steps > 3);
}
