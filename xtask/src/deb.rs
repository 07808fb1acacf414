//! `cargo xtask deb`: Debian packages of what `install` installs, and of programs.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    command::{command, output, output_of, shown},
    install::{self, Place},
    library,
    run::Run,
    steps::need_package,
    workspace::Workspace,
};

/// Examples that are programs of `bellwire-tools`, where each has this before its name.
pub const TOOLS: [&str; 3] = ["perf", "pingpong", "rping"];
const BEFORE: &str = "bellwire-";

/// Prints which crates the library may be built of: of every target and feature.
const SBOM: &str = "cargo sbom --cargo-package bellwire-ffi --output-format spdx_json_2_3";

/// Loaded at run time where there are devices.
const RECOMMENDS: &str = "libibverbs1, librdmacm1, ibverbs-providers";

/// What `cargo xtask deb` takes.
#[derive(clap::Args)]
pub struct Options {
    /// The folder of the packages [default: target/deb]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Builds the library and the programs, and makes the packages.
///
/// # Errors
/// Something does not build; a program of dpkg's is not there.
pub fn deb(workspace: &Workspace, options: &Options) -> Result<ExitCode> {
    let mut build = command("cargo build --release -p bellwire-examples");
    for name in TOOLS {
        build.args(["--example", name]);
    }
    library::without_paths(workspace, &mut build)?;
    ensure!(Run::default().command(&mut build), "it does not build");
    let out = match &options.out {
        Some(out) => out.clone(),
        None => workspace.target("deb"),
    };
    for package in make(workspace, &workspace.target("release/examples"), &out, "xz")? {
        println!("{}", package.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// The package of the shared library, whose name is that of the ABI: those of two can be installed together.
///
/// # Errors
/// As [`install::abi`].
pub fn library_package(workspace: &Workspace) -> Result<String> {
    Ok(format!("libbellwire{}", install::abi(workspace)?))
}

/// Makes the packages in the folder `out`, with `TOOLS` as they were built in `programs`, compressed as `dpkg-deb -Z`
/// calls it. They are in the order in which they can be installed.
///
/// # Errors
/// As [`deb`].
pub fn make(
    workspace: &Workspace,
    programs: &Path,
    out: &Path,
    compressed: &str,
) -> Result<Vec<PathBuf>> {
    need_package("dpkg-dev", "dpkg-shlibdeps")?;
    let dir = tempfile::tempdir()?;
    let all = Packages::new(workspace, dir.path())?;
    fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let library = all.library()?;
    let made = [library, all.development()?, all.tools(programs)?];
    (made.iter())
        .map(|package| all.pack(package, out, compressed))
        .collect()
}

/// A package, whose files are in a folder of its name.
struct Package {
    name: String,
    section: &'static str,
    /// Further fields of its control file.
    fields: Vec<(&'static str, String)>,
    about: &'static str,
}

/// What the packages have in common.
struct Packages<'a> {
    workspace: &'a Workspace,
    /// The folder of the packages' folders.
    dir: &'a Path,
    version: String,
    architecture: String,
}

impl<'a> Packages<'a> {
    fn new(workspace: &'a Workspace, dir: &'a Path) -> Result<Self> {
        let architecture = output_of("dpkg --print-architecture").context("dpkg is not there")?;
        Ok(Self {
            workspace,
            dir,
            version: install::version(workspace)?,
            architecture: architecture.trim_end().to_owned(),
        })
    }

    /// The shared library. What is for developers goes to [`development`](Self::development).
    fn library(&self) -> Result<Package> {
        let (name, abi) = (
            library_package(self.workspace)?,
            install::abi(self.workspace)?,
        );
        let place = Place::in_package(&self.dir.join(DEVELOPMENT));
        install::put(self.workspace, &place, false)?;
        let from = place.staged(&place.libdir());
        let to = Place::in_package(&self.dir.join(&name)).staged(&place.libdir());
        fs::create_dir_all(&to)?;
        let file = format!("libbellwire.so.{}", self.version);
        for file in [&file, &install::soname(self.workspace)?] {
            fs::rename(from.join(file), to.join(file)).with_context(|| file.clone())?;
        }
        self.bill_of_materials(&name)?;
        let control = self.dir.join(&name).join("DEBIAN");
        fs::create_dir_all(&control)?;
        let shlibs = format!("libbellwire {abi} {name} (>= {})\n", self.version);
        fs::write(control.join("shlibs"), shlibs)?;
        fs::write(control.join("triggers"), "activate-noawait ldconfig\n")?;
        Ok(Package {
            fields: vec![
                ("Multi-Arch", "same".to_owned()),
                ("Depends", self.needs(&[to.join(file)])?),
                ("Recommends", RECOMMENDS.to_owned()),
            ],
            name,
            section: "libs",
            about: "RDMA data plane, shared library",
        })
    }

    /// Writes an SBOM of the library, in the form of SPDX, if cargo-sbom is there.
    fn bill_of_materials(&self, name: &str) -> Result<()> {
        let Some(bill) = output_of(SBOM) else {
            println!("{name} has no SBOM: `cargo install cargo-sbom` provides what makes it");
            return Ok(());
        };
        let place = self.dir.join(name).join("usr/share/doc").join(name);
        fs::create_dir_all(&place)?;
        fs::write(place.join("sbom.spdx.json"), bill)?;
        Ok(())
    }

    /// Headers, manual pages, the static library, and what pkg-config and CMake need.
    fn development(&self) -> Result<Package> {
        let place = Place::in_package(&self.dir.join(DEVELOPMENT));
        // dpkg knows what it has installed.
        fs::remove_file(place.staged(&place.manifest()))?;
        let library = library_package(self.workspace)?;
        Ok(Package {
            name: DEVELOPMENT.to_owned(),
            section: "libdevel",
            fields: vec![
                ("Multi-Arch", "same".to_owned()),
                ("Depends", format!("{library} (= {})", self.version)),
            ],
            about: "RDMA data plane, headers for C and C++ and static library",
        })
    }

    fn tools(&self, programs: &Path) -> Result<Package> {
        let name = "bellwire-tools";
        let bin = self.dir.join(name).join("usr/bin");
        fs::create_dir_all(&bin)?;
        let mut installed = Vec::new();
        for tool in TOOLS {
            let to = bin.join(format!("{BEFORE}{tool}"));
            library::binutils(command("strip -o").arg(&to).arg(programs.join(tool)))?;
            installed.push(to);
        }
        Ok(Package {
            name: name.to_owned(),
            section: "net",
            fields: vec![
                ("Depends", self.needs(&installed)?),
                ("Recommends", RECOMMENDS.to_owned()),
            ],
            about: "RDMA data plane, programs that measure and test",
        })
    }

    /// The packages of the libraries that these files are linked with.
    fn needs(&self, files: &[PathBuf]) -> Result<String> {
        // It reads the names of packages from there.
        let source = self.dir.join("source");
        fs::create_dir_all(source.join("debian"))?;
        let control = "Source: bellwire\n\nPackage: bellwire\nArchitecture: any\n";
        fs::write(source.join("debian/control"), control)?;
        let mut shlibdeps = command("dpkg-shlibdeps -O");
        shlibdeps.current_dir(&source);
        for file in files {
            shlibdeps.arg(format!("-e{}", file.display()));
        }
        let found = output(&mut shlibdeps);
        let needs = found
            .as_deref()
            .and_then(|text| text.trim_end().split_once('='));
        let (_, needs) = needs.with_context(|| format!("`{}`: {found:?}", shown(&shlibdeps)))?;
        Ok(needs.to_owned())
    }

    /// Writes what every package has, and packs it.
    fn pack(&self, package: &Package, out: &Path, compressed: &str) -> Result<PathBuf> {
        let dir = self.dir.join(&package.name);
        let pages = dir.join("usr/share/doc").join(&package.name);
        fs::create_dir_all(&pages)?;
        let root = self.workspace.root();
        let texts =
            ["LICENSE-MIT", "LICENSE-APACHE"].map(|name| fs::read_to_string(root.join(name)));
        let [mit, apache] = texts;
        let copyright = format!(
            "bellwire: MIT OR Apache-2.0, as you like.\n\n{}\n{}",
            mit?, apache?
        );
        fs::write(pages.join("copyright"), copyright)?;
        fs::copy(root.join("CHANGELOG.md"), pages.join("changelog"))?;
        done(command("gzip -9n").arg(pages.join("changelog")))?;
        let man = dir.join("usr/share/man");
        if man.exists() {
            done(
                command("find")
                    .arg(&man)
                    .args("-type f -exec gzip -9n {} +".split(' ')),
            )?;
        }

        let control = dir.join("DEBIAN");
        fs::create_dir_all(&control)?;
        let sums = output(command("find usr -type f -exec md5sum {} +").current_dir(&dir));
        fs::write(
            control.join("md5sums"),
            sums.context("md5sum is not there")?,
        )?;
        fs::write(control.join("control"), self.control(package))?;
        // Whatever the umask.
        done(command("chmod -R u=rwX,go=rX").arg(&dir))?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(install::FOLDER_MODE))?;
        let name = format!(
            "{}_{}_{}.deb",
            package.name, self.version, self.architecture
        );
        let made = out.join(name);
        let mut build = command("dpkg-deb --root-owner-group");
        build.arg(format!("-Z{compressed}")).arg("--build");
        done(build.arg(&dir).arg(&made))?;
        Ok(made)
    }

    fn control(&self, package: &Package) -> String {
        let authors = env!("CARGO_PKG_AUTHORS");
        let mut text = format!(
            "Package: {}\nSource: bellwire\nVersion: {}\nArchitecture: {}\nMaintainer: {authors}\n\
             Section: {}\nPriority: optional\n",
            package.name, self.version, self.architecture, package.section
        );
        for (name, value) in &package.fields {
            text += &format!("{name}: {value}\n");
        }
        text + &format!(
            "Description: {}\n bellwire moves bytes between registered memory at two ends: on ConnectX \
             rings, by\n libibverbs, or by a software HCA. It reports one outcome for every request.\n",
            package.about
        )
    }
}

const DEVELOPMENT: &str = "libbellwire-dev";

fn done(command: &mut Command) -> Result<()> {
    let line = shown(command);
    ensure!(Run::default().command(command), "`{line}` failed");
    Ok(())
}
