//! `cargo xtask install` and `uninstall`: the C library, its headers, and what pkg-config and CMake
//! need to find them.
//!
//! An installation has a list of what it put down, beside its CMake files. `uninstall` goes by that,
//! and so does an `install` over an older one: neither has to know what other versions had.

use std::{
    env, fs,
    io::ErrorKind,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Component, Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    library::{self, Built},
    man,
    workspace::Workspace,
};

#[path = "../../ffi-c/soname.rs"]
mod soname;

/// What a program that links the static library links as well: what `rustc --print
/// native-static-libs` says, but for the compiler's own.
const PRIVATE: [&str; 5] = ["util", "rt", "pthread", "dl", "m"];

/// Those that are loaded at run time, where they are linked instead.
const PRIVATE_SYSTEM: [&str; 3] = ["rdmacm", "mlx5", "ibverbs"];

/// Whatever the umask: all users compile with it.
pub const FILE_MODE: u32 = 0o644;
/// The same of folders.
pub const FOLDER_MODE: u32 = 0o755;

/// The flags by which a program that links the static library links the others.
pub fn private(link_system: bool) -> Vec<String> {
    let system = PRIVATE_SYSTEM.iter().filter(|_| link_system);
    (system.chain(&PRIVATE))
        .map(|name| format!("-l{name}"))
        .collect()
}

const HEADERS: [&str; 2] = ["bellwire.h", "bellwire.hpp"];

/// Where an installation is.
#[derive(clap::Args, Clone, Debug)]
pub struct Place {
    /// Where programs will look for it; an absolute path
    #[arg(long, default_value = "/usr/local", value_name = "DIR")]
    prefix: PathBuf,
    /// Puts everything below DIR, from where it is copied to its place: for packages
    #[arg(long, value_parser = absolute, value_name = "DIR")]
    destdir: Option<PathBuf>,
    /// Of the libraries, in the prefix [default: lib; on Debian in /usr, lib/ARCH-linux-gnu]
    #[arg(long, value_name = "DIR")]
    libdir: Option<PathBuf>,
    /// Of the headers, in the prefix
    #[arg(long, default_value = "include", value_name = "DIR")]
    includedir: PathBuf,
}

/// What `cargo xtask install` takes.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    place: Place,
    /// Links libibverbs, librdmacm and libmlx5, which are loaded at run time otherwise: for packages that
    /// must depend on them (needs libibverbs-dev and librdmacm-dev)
    #[arg(long)]
    link_system: bool,
}

/// Relative to where the command was given.
fn absolute(path: &str) -> std::io::Result<PathBuf> {
    std::path::absolute(path)
}

impl Place {
    /// A prefix for itself.
    pub fn in_prefix(prefix: &Path) -> Self {
        Self {
            prefix: prefix.to_owned(),
            destdir: None,
            libdir: None,
            includedir: "include".into(),
        }
    }

    /// For a package whose files are collected in this folder.
    pub fn in_package(dir: &Path) -> Self {
        Self {
            destdir: Some(dir.to_owned()),
            ..Self::in_prefix(Path::new("/usr"))
        }
    }

    /// Where the libraries are.
    pub fn libdir(&self) -> PathBuf {
        let libdir = self.libdir.clone().unwrap_or_else(|| {
            let debian = Path::new("/etc/debian_version").exists();
            if debian && self.prefix == Path::new("/usr") {
                format!("lib/{}-linux-gnu", env::consts::ARCH).into()
            } else {
                "lib".into()
            }
        });
        self.prefix.join(libdir)
    }

    /// Where the headers are.
    pub fn includedir(&self) -> PathBuf {
        self.prefix.join(&self.includedir)
    }

    /// The path as files of the installation name it, for which `prefix` stands for the prefix: they are right where
    /// the installation is moved to.
    fn in_prefix_of(&self, path: &Path, prefix: &str) -> String {
        match path.strip_prefix(&self.prefix) {
            Ok(inside) => format!("{prefix}/{}", inside.display()),
            Err(_) => path.display().to_string(),
        }
    }

    /// The way from a folder to the prefix; nothing when the folder is elsewhere.
    fn up(&self, dir: &Path) -> String {
        let inside = dir.strip_prefix(&self.prefix);
        let parts = inside.map_or(0, |inside| inside.components().count());
        vec![".."; parts].join("/")
    }

    /// The list of what is there.
    pub fn manifest(&self) -> PathBuf {
        self.libdir().join("cmake/bellwire/install_manifest.txt")
    }

    /// Where a path of the installation is now.
    pub fn staged(&self, path: &Path) -> PathBuf {
        match &self.destdir {
            Some(dir) => dir.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }

    /// Paths go into files of other programs' formats.
    fn check(&self) -> Result<()> {
        for path in [self.libdir(), self.includedir()] {
            let shown = path.display();
            ensure!(
                path.is_absolute(),
                "{shown}: --prefix has to be an absolute path"
            );
            ensure!(
                path.components().all(|part| part != Component::ParentDir),
                "{shown}: give a path without .."
            );
            let text = path.to_str().context("the path is not UTF-8")?;
            let plain = |c: char| c.is_alphanumeric() || "/._+-~".contains(c);
            ensure!(
                text.chars().all(plain),
                "{shown}: pkg-config and CMake files cannot name it: use letters, digits and /._+-~"
            );
        }
        Ok(())
    }
}

/// The version of the C library.
///
/// # Errors
/// There is no such package.
pub fn version(workspace: &Workspace) -> Result<String> {
    (workspace.locked_version("bellwire-ffi")).context("there is no package bellwire-ffi")
}

/// The version of its ABI.
///
/// # Errors
/// As [`version`].
pub fn abi(workspace: &Workspace) -> Result<String> {
    Ok(soname::abi(&version(workspace)?))
}

/// The name by which the dynamic linker looks for the library.
///
/// # Errors
/// As [`version`].
pub fn soname(workspace: &Workspace) -> Result<String> {
    Ok(format!("libbellwire.so.{}", abi(workspace)?))
}

/// Builds the library and installs it.
///
/// # Errors
/// It does not build, or a file could not be written.
pub fn install(workspace: &Workspace, options: &Options) -> Result<ExitCode> {
    let place = &options.place;
    put(workspace, place, options.link_system)?;
    let libdir = place.libdir();
    println!("installed in {}", place.staged(&libdir).display());
    if place.destdir.is_none() {
        let libdir = libdir.display();
        println!(
            "if programs do not find it: run ldconfig where {libdir} is a folder of the system's, \
             else set PKG_CONFIG_PATH={libdir}/pkgconfig and LD_LIBRARY_PATH={libdir}"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The like, without a word.
///
/// # Errors
/// As [`install`].
pub fn put(workspace: &Workspace, place: &Place, link_system: bool) -> Result<()> {
    place.check()?;
    let dir = tempfile::tempdir()?;
    let built = library::build(workspace, link_system, dir.path())?;
    let version = version(workspace)?;
    remove(place)?;
    Installation::new(place).all(workspace.root(), &built, &version, link_system)
}

/// An installation that is being made.
struct Installation<'a> {
    place: &'a Place,
    /// What was made: folders that were not there, and files, in this order.
    made: Vec<PathBuf>,
}

impl<'a> Installation<'a> {
    fn new(place: &'a Place) -> Self {
        let made = Vec::new();
        Self { place, made }
    }

    /// `root` is the workspace.
    fn all(mut self, root: &Path, built: &Built, version: &str, link_system: bool) -> Result<()> {
        let (libdir, includedir) = (self.place.libdir(), self.place.includedir());
        let abi = soname::abi(version);
        let names = [
            format!("libbellwire.so.{version}"),
            format!("libbellwire.so.{abi}"),
            "libbellwire.so".to_owned(),
        ];
        let [file, of_abi, plain] = names.each_ref().map(|name| libdir.join(name));

        // The list first: what is cut short can be uninstalled.
        self.file(&self.place.manifest(), b"")?;
        self.copy(&built.shared, &file)?;
        self.link(&of_abi, &names[0])?;
        self.link(&plain, &names[1])?;
        self.copy(&built.archive, &libdir.join("libbellwire.a"))?;
        for header in HEADERS {
            self.copy(&root.join("include").join(header), &includedir.join(header))?;
        }

        let man = self.place.prefix.join("share/man/man3");
        let header = fs::read_to_string(root.join("include").join(HEADERS[0]))?;
        for page in man::pages(&header, version) {
            self.file(&man.join(page.file), page.text.as_bytes())?;
        }

        let flags = private(link_system);
        let names: Vec<_> = flags.iter().map(|flag| &flag[2..]).collect();
        let cmake = libdir.join("cmake/bellwire");
        let up = self.place.up(&cmake);
        let fill = |template: &str, prefix: &str| {
            let in_prefix = |path: &Path| self.place.in_prefix_of(path, prefix);
            let values = [
                ("@prefix@", self.place.prefix.display().to_string()),
                ("@cmake@", cmake.display().to_string()),
                ("@up@", up.clone()),
                ("@libdir@", in_prefix(&self.place.libdir())),
                ("@includedir@", in_prefix(&self.place.includedir())),
                ("@version@", version.to_owned()),
                ("@abi@", abi.clone()),
                ("@pointer@", size_of::<usize>().to_string()),
                ("@private@", flags.join(" ")),
                ("@private_list@", names.join(";")),
            ];
            let text = template.to_owned();
            (values.iter()).fold(text, |text, (name, value)| text.replace(name, value))
        };
        let pc = include_str!("../../ffi-c/install/bellwire.pc.in");
        let pc = fill(pc, "${prefix}");
        let config = include_str!("../../ffi-c/install/bellwire-config.cmake.in");
        let config = fill(config, "${bellwire_prefix}");
        let of_version = include_str!("../../ffi-c/install/bellwire-config-version.cmake.in");
        let of_version = fill(of_version, "");
        self.file(&libdir.join("pkgconfig/bellwire.pc"), pc.as_bytes())?;
        self.file(&cmake.join("bellwire-config.cmake"), config.as_bytes())?;
        let name = cmake.join("bellwire-config-version.cmake");
        self.file(&name, of_version.as_bytes())
    }

    fn copy(&mut self, from: &Path, to: &Path) -> Result<()> {
        let bytes = fs::read(from).with_context(|| from.display().to_string())?;
        self.file(to, &bytes)
    }

    fn file(&mut self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.make(path, |to| {
            fs::write(to, bytes)?;
            fs::set_permissions(to, fs::Permissions::from_mode(FILE_MODE))
        })
    }

    fn link(&mut self, path: &Path, to: &str) -> Result<()> {
        self.make(path, |path| symlink(to, path))
    }

    /// Makes a file and the folders that it needs, and writes down what was made.
    fn make(&mut self, path: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
        let to = self.place.staged(path);
        let failed = || format!("{}: cannot be written", to.display());
        let missing = (path.ancestors().skip(1)).take_while(|dir| !self.place.staged(dir).exists());
        let missing: Vec<&Path> = missing.collect();
        for dir in missing.into_iter().rev() {
            let staged = self.place.staged(dir);
            fs::create_dir_all(&staged).with_context(failed)?;
            let mode = fs::Permissions::from_mode(FOLDER_MODE);
            fs::set_permissions(&staged, mode).with_context(failed)?;
            self.made.push(dir.to_owned());
        }
        // Not written over: a program may be running with it.
        remove_if_there(&to, |to| fs::remove_file(to)).with_context(failed)?;
        make(&to).with_context(failed)?;
        self.made.push(path.to_owned());
        let lines = self.made.iter().map(|path| format!("{}\n", path.display()));
        let manifest = self.place.staged(&self.place.manifest());
        fs::write(manifest, lines.collect::<String>()).with_context(failed)
    }
}

/// Removes an installation.
///
/// # Errors
/// There is none, or a file could not be removed.
pub fn uninstall(place: &Place) -> Result<ExitCode> {
    place.check()?;
    if !remove(place)? {
        let manifest = place.staged(&place.manifest());
        bail!(
            "nothing is installed there: there is no {}; name --prefix, --libdir and --destdir as \
             for install",
            manifest.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes what was put down, and the folders that were made for it if they are empty. Returns
/// whether there was anything.
///
/// # Errors
/// A file could not be removed, or the list is not one of ours.
pub fn remove(place: &Place) -> Result<bool> {
    let manifest = place.staged(&place.manifest());
    let list = match fs::read_to_string(&manifest) {
        Ok(list) => list,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).context(manifest.display().to_string()),
    };
    for line in list.lines().rev() {
        let path = Path::new(line);
        let plain = path.components().all(|part| part != Component::ParentDir);
        ensure!(
            path.is_absolute() && plain,
            "{}: `{line}` is not a path that we put there",
            manifest.display()
        );
        let path = place.staged(path);
        let failed = || format!("{} cannot be removed", path.display());
        match fs::symlink_metadata(&path) {
            // A folder that has others' files stays.
            Ok(found) if found.is_dir() => match fs::remove_dir(&path) {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => (),
                other => other.with_context(failed)?,
            },
            _ => remove_if_there(&path, |path| fs::remove_file(path)).with_context(failed)?,
        }
    }
    Ok(true)
}

fn remove_if_there(
    path: &Path,
    remove: impl FnOnce(&Path) -> std::io::Result<()>,
) -> std::io::Result<()> {
    match remove(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt as _;

    /// All files below a folder.
    fn files(dir: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                found.extend(files(&path));
            }
            found.push(path);
        }
        found
    }

    fn built() -> (tempfile::TempDir, Built) {
        let dir = tempfile::tempdir().unwrap();
        let built = Built::in_folder(dir.path());
        for file in [&built.shared, &built.archive] {
            fs::write(file, file.file_name().unwrap().as_bytes()).unwrap();
        }
        (dir, built)
    }

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    #[test]
    fn an_abi_is_what_the_version_check_takes() {
        for (version, abi) in [
            ("0.1.0", "0.1"),
            ("0.12.3", "0.12"),
            ("1.4.2", "1"),
            ("10.0.0", "10"),
        ] {
            assert_eq!(soname::abi(version), abi);
        }
    }

    #[test]
    fn what_was_there_before_stays() {
        let ((_made, built), dir) = (built(), tempfile::tempdir().unwrap());
        let kept = dir.path().join("lib/pkgconfig/other.pc");
        fs::create_dir_all(kept.parent().unwrap()).unwrap();
        fs::write(&kept, "").unwrap();
        let before = files(dir.path());
        let place = Place::in_prefix(dir.path());
        let all = |version| Installation::new(&place).all(root(), &built, version, false);
        all("0.1.0").unwrap();
        let link = dir.path().join("lib/libbellwire.so");
        assert_eq!(fs::read_to_string(link).unwrap(), "libbellwire.so");
        let first = files(dir.path()).len();

        // Over an older one, of which nothing stays.
        assert!(remove(&place).unwrap());
        all("0.2.7").unwrap();
        assert_eq!(files(dir.path()).len(), first);
        let pc = fs::read_to_string(dir.path().join("lib/pkgconfig/bellwire.pc")).unwrap();
        assert!(pc.contains("\nVersion: 0.2.7\n") && !pc.contains('@'));

        assert!(remove(&place).unwrap());
        assert_eq!(files(dir.path()), before);
        assert!(!remove(&place).unwrap(), "there is none any more");
    }

    #[test]
    fn a_package_has_the_paths_of_its_place() {
        let ((_made, built), dir) = (built(), tempfile::tempdir().unwrap());
        let place = Place {
            destdir: Some(dir.path().join("package")),
            ..Place::in_prefix(Path::new("/usr"))
        };
        Installation::new(&place)
            .all(root(), &built, "0.1.0", true)
            .unwrap();
        let pc = place.staged(&place.libdir().join("pkgconfig/bellwire.pc"));
        let pc = fs::read_to_string(pc).unwrap();
        assert!(pc.contains("prefix=/usr\n") && pc.contains("\nincludedir=${prefix}/include\n"));
        assert!(pc.contains("-libverbs"));
        assert!(dir.path().join("package/usr/include/bellwire.h").exists());
        assert!(remove(&place).unwrap());
        assert_eq!(files(dir.path()), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_place_that_cannot_be_written_down_is_refused() {
        for prefix in ["relative", "/a prefix", "/a/../b", "/a$b"] {
            assert!(
                Place::in_prefix(Path::new(prefix)).check().is_err(),
                "{prefix}"
            );
        }
        assert!(
            Place::in_prefix(Path::new("/opt/bellwire-0.1"))
                .check()
                .is_ok()
        );
    }
}
