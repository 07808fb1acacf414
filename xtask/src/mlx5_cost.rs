//! `cargo xtask mlx5-cost`: posting and polling on a ConnectX device by its rings, beside libmlx5's own
//! ways, in one process on the stand-in for the kernel: nanoseconds, and instructions by Valgrind.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, ensure};

use crate::{
    callgrind::instructions,
    command::{command, stream},
    page,
    run::Run,
    steps::need_packages,
    workspace::Workspace,
};

const DEVICE: &str = "mlx5_0";

/// As the program names them, and the table.
const WAYS: [(&str, &str); 3] = [
    ("bellwire", "bellwire"),
    ("post_send", "ibv_post_send, ibv_poll_cq"),
    ("wr", "ibv_wr_*, ibv_start_poll"),
];
const KINDS: [(&str, &str); 4] = [
    ("inline-32", "32 B inline"),
    ("sge-64", "64 B by SGE"),
    ("batch-32", "64 B by SGE, 32 at once"),
    ("unsignaled", "64 B by SGE, one of 64 signalled"),
];

/// Requests of a round of the program.
const REQUESTS: u64 = 64;

/// Rounds whose instructions are counted, and what of a process with none is taken off.
const ROUNDS: u64 = 20;

/// Of a way and a kind: to post, and to poll.
type Figures = BTreeMap<(String, String), [f64; 2]>;

/// Compares, prints the table, and writes it to the page.
///
/// # Errors
/// What is lacking or does not build, or a program that failed.
pub fn mlx5_cost(workspace: &Workspace) -> Result<ExitCode> {
    need_packages(&["gcc", "ibverbs-providers", "libibverbs-dev", "valgrind"])?;
    let folder = workspace.target("mlx5-cost");
    std::fs::create_dir_all(&folder)?;
    let theirs = workspace.root().join(folder.join("libtheirs.so"));
    let mut run = Run::default();
    let mut cc = command(
        "cc -std=gnu11 -O2 -Wall -Wextra -Werror -shared -fPIC benches/mlx5/theirs.c -libverbs -o",
    );
    let mut ours = command("cargo build --release -p bellwire-benches --example mlx5-cost");
    let mut preload = command("cargo build --release -p bellwire-uverbs-preload");
    let built = run.command(cc.arg(&theirs)) && run.command(&mut ours) && run.command(&mut preload);
    ensure!(built, "it does not build");
    let bench = Bench {
        program: workspace
            .root()
            .join(workspace.target("release/examples/mlx5-cost")),
        preload: workspace
            .root()
            .join(workspace.target("release/libuverbs_preload.so")),
        theirs,
    };
    let times = bench.times()?;
    let instructions = bench.instructions()?;
    let text = table(&times, &instructions)?;
    println!("{text}");
    page::write("mlx5-cost", &text)?;
    Ok(ExitCode::SUCCESS)
}

struct Bench {
    program: PathBuf,
    preload: PathBuf,
    theirs: PathBuf,
}

impl Bench {
    fn times(&self) -> Result<Figures> {
        let mut program = command(&self.program.display().to_string());
        program
            .env("LD_PRELOAD", &self.preload)
            .arg(DEVICE)
            .arg(&self.theirs);
        let mut figures = Figures::new();
        let status = stream(&mut program, |line| figures.extend(times(line)))?;
        ensure!(status.success(), "mlx5-cost: {status}");
        ensure!(
            figures.len() == WAYS.len() * KINDS.len(),
            "mlx5-cost printed something else"
        );
        Ok(figures)
    }

    fn instructions(&self) -> Result<Figures> {
        let mut figures = Figures::new();
        for (way, _) in WAYS {
            for (kind, _) in KINDS {
                let both = ["post", "poll"].map(|what| self.counted(way, kind, what));
                let [post, poll] = both;
                figures.insert((way.to_owned(), kind.to_owned()), [post?, poll?]);
            }
        }
        Ok(figures)
    }

    /// Instructions of a request.
    fn counted(&self, way: &str, kind: &str, what: &str) -> Result<f64> {
        let counted = instructions(&format!("*measured_*_{what}*"), |valgrind| {
            valgrind
                .arg(&self.program)
                .env("LD_PRELOAD", &self.preload)
                .arg(DEVICE)
                .arg(&self.theirs)
                .args([way, kind, &ROUNDS.to_string()]);
        })?;
        Ok(counted as f64 / (ROUNDS * REQUESTS) as f64)
    }
}

/// What a line of the program says.
fn times(line: &str) -> Option<((String, String), [f64; 2])> {
    let mut words = line.split_whitespace();
    let (way, kind) = (words.next()?, words.next()?);
    let known =
        WAYS.iter().any(|(name, _)| *name == way) && KINDS.iter().any(|(name, _)| *name == kind);
    let figures = [words.next()?.parse().ok()?, words.next()?.parse().ok()?];
    known.then(|| ((way.to_owned(), kind.to_owned()), figures))
}

fn table(times: &Figures, instructions: &Figures) -> Result<String> {
    let mut text = String::from("| each request |");
    for (_, way) in WAYS {
        text += &format!(" {way} |");
    }
    text += "\n|---|---|---|---|\n";
    for (kind, kind_text) in KINDS {
        for (at, what) in ["post", "poll"].into_iter().enumerate() {
            text += &format!("| {what}, {kind_text} |");
            for (way, _) in WAYS {
                let key = (way.to_owned(), kind.to_owned());
                let (time, count) = times
                    .get(&key)
                    .zip(instructions.get(&key))
                    .context("a figure")?;
                let (time, count) = (time[at], count[at]);
                let digits = usize::from(count < 10.0);
                text += &format!(" {time:.1} ns, {count:.digits$} |");
            }
            text += "\n";
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_programs_lines_are_figures() {
        let key = ("wr".to_owned(), "sge-64".to_owned());
        assert_eq!(times("wr sge-64 10.5 2.25\n"), Some((key, [10.5, 2.25])));
        for other in [
            "",
            "wr",
            "wr sge-64",
            "wr sge-64 1",
            "x sge-64 1 2",
            "wr x 1 2",
            "wr sge-64 a b",
        ] {
            assert_eq!(times(other), None);
        }
    }

    #[test]
    fn a_table_has_every_way() {
        let mut figures = Figures::new();
        for (way, _) in WAYS {
            for (kind, _) in KINDS {
                figures.insert((way.to_owned(), kind.to_owned()), [20.0, 10.0]);
            }
        }
        let text = table(&figures, &figures).expect("all there");
        assert!(text.contains("| post, 32 B inline | 20.0 ns, 20 | 20.0 ns, 20 | 20.0 ns, 20 |"));
        assert_eq!(text.lines().count(), 2 + 2 * KINDS.len());
        figures.clear();
        assert!(table(&figures, &figures).is_err());
    }
}
