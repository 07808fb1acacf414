//! The folder that a run of the guest works with: what the guest is given, and what it reports.

use std::{
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};

use super::{guest::Status, script};
use crate::workspace::Workspace;

/// How much of the console an error shows.
const TAIL_LINES: usize = 60;

/// `vm` in the target folder: what one guest at a time works with.
pub struct Folder {
    path: PathBuf,
    /// The folder that the guest may write.
    pub work: PathBuf,
    _lock: File,
}

impl Folder {
    /// Makes it, and puts into it what the guest is given; waits while another guest uses it.
    ///
    /// # Errors
    /// What could not be made or written.
    pub fn make(workspace: &Workspace, work: Option<&Path>, commands: &[Command]) -> Result<Self> {
        let path = workspace.target("vm");
        let work = work.map_or_else(|| path.join("work"), Path::to_path_buf);
        let made = |path: &Path| {
            fs::create_dir_all(path)
                .and_then(|()| path.canonicalize())
                .with_context(|| format!("cannot make {}", path.display()))
        };
        let (path, work) = (made(&path)?, made(&work)?);
        let lock = locked(&path.join("lock"))?;
        let folder = Self {
            path,
            work,
            _lock: lock,
        };
        let run = folder.run();
        if run.exists() {
            fs::remove_dir_all(&run)?;
        }
        fs::create_dir(&run)?;
        fs::write(folder.console(), "")?;
        let root = workspace.root().canonicalize()?;
        script::write_path(&run.join("workspace"), &root)?;
        script::write_path(&run.join("target"), &workspace.target("").canonicalize()?)?;
        script::write_path(&run.join("work"), &folder.work)?;
        for (number, command) in commands.iter().enumerate() {
            let text = script::script(command, &root, &folder.work);
            fs::write(run.join(format!("{number}.sh")), text)?;
        }
        Ok(folder)
    }

    /// Makes the folders in a root file system that the guest shows this machine's in: it cannot make any.
    ///
    /// # Errors
    /// What could not be made.
    pub fn make_places(&self, workspace: &Workspace, system: &Path) -> Result<()> {
        let root = workspace.root().canonicalize()?;
        let target = workspace.target("").canonicalize()?;
        for shown in [&root, &target, &self.work] {
            let place = system.join(shown.strip_prefix("/").unwrap_or(shown));
            fs::create_dir_all(&place)
                .with_context(|| format!("cannot make {}", place.display()))?;
        }
        Ok(())
    }

    /// What the guest is to do, and how that ended: shared with it.
    pub fn run(&self) -> PathBuf {
        self.path.join("run")
    }

    /// The guest's first file system.
    pub fn initrd(&self) -> PathBuf {
        self.path.join("initrd")
    }

    /// What the guest's kernel and its init script say.
    pub fn console(&self) -> PathBuf {
        self.path.join("console")
    }

    /// Whether the guest has begun with the commands.
    pub fn is_up(&self) -> bool {
        self.run().join("up").exists()
    }

    /// How the commands ended, up to the first that did not.
    pub fn statuses(&self, count: usize) -> Vec<Status> {
        (0..count)
            .map_while(|number| {
                let text = fs::read_to_string(self.run().join(format!("{number}.status")));
                Some(Status(text.ok()?.trim().parse().ok()?))
            })
            .collect()
    }

    /// How long each of the first commands took, by when its status was written.
    pub fn times(&self, count: usize) -> Vec<Duration> {
        let written = |name: &str| fs::metadata(self.run().join(name)).ok()?.modified().ok();
        let mut before = written("up");
        let took = |number| {
            let then = written(&format!("{number}.status"));
            let took = then
                .zip(before)
                .map(|(then, before)| then.duration_since(before));
            before = then;
            took.and_then(Result::ok).unwrap_or_default()
        };
        (0..count).map(took).collect()
    }

    /// The last lines of the console.
    pub fn console_tail(&self) -> String {
        let text = fs::read(self.console()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(TAIL_LINES);
        lines[from..].join("\n")
    }
}

/// A file that nobody else has locked; waits for it.
///
/// # Errors
/// It could not be made or locked.
pub fn locked(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| path.display().to_string())?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            eprintln!(
                "xtask: waiting for another run, which has locked {}",
                path.display()
            );
            file.lock()?;
        }
        tried => tried?,
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn what_the_guest_did_not_get_to_has_no_status() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder {
            path: dir.path().to_owned(),
            work: dir.path().to_owned(),
            _lock: locked(&dir.path().join("lock")).unwrap(),
        };
        fs::create_dir(folder.run()).unwrap();
        for (name, text) in [("0.status", "0\n"), ("1.status", "139\n"), ("2.status", "")] {
            fs::write(folder.run().join(name), text).unwrap();
        }
        assert_eq!(folder.statuses(4), [Status(0), Status(139)]);
        assert_eq!(folder.times(4).len(), 4);
        assert!(!folder.is_up());
        assert_eq!(folder.console_tail(), "");
        fs::write(folder.console(), "line\n".repeat(1000)).unwrap();
        assert_eq!(folder.console_tail().lines().count(), TAIL_LINES);
    }
    #[test]
    fn a_command_takes_from_the_end_of_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder {
            path: dir.path().to_owned(),
            work: dir.path().to_owned(),
            _lock: locked(&dir.path().join("lock")).unwrap(),
        };
        fs::create_dir(folder.run()).unwrap();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (name, seconds) in [("up", 100), ("0.status", 103), ("1.status", 110)] {
            let file = File::create(folder.run().join(name)).unwrap();
            file.set_modified(at(seconds)).unwrap();
        }
        let seconds = |took: Duration| took.as_secs();
        let times: Vec<_> = folder.times(3).into_iter().map(seconds).collect();
        assert_eq!(times, [3, 7, 0]);
    }
}
