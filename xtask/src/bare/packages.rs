//! Debian packages that are installed here: which of them another cannot do without, and their files.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use anyhow::{Context as _, Result, bail};

use crate::command::output_of;

/// What is asked of each package. Tabs stand between, which no value holds.
const FIELDS: &str = "${db:Status-Status}\\t${Architecture}\\t${Package}\\t${binary:Package}\\t\
     ${Provides}\\t${Pre-Depends},${Depends}\\n";

/// One package.
struct Package {
    /// The name by which dpkg distinguishes it from that of another architecture.
    full_name: String,
    /// What it needs: of each, one of the alternatives.
    needs: Vec<Vec<String>>,
}

/// All that are installed, but for those of another architecture.
#[derive(Default)]
pub struct Installed {
    packages: BTreeMap<String, Package>,
    /// Packages by what they provide.
    providers: BTreeMap<String, String>,
}

impl Installed {
    /// Asks dpkg.
    ///
    /// # Errors
    /// It does not answer.
    pub fn ask() -> Result<Self> {
        let ask = |words: &str| output_of(words).with_context(|| format!("`{words}` failed"));
        let architecture = ask("dpkg --print-architecture")?;
        let listing = ask(&format!("dpkg-query --show --showformat={FIELDS}"))?;
        Ok(Self::read(&listing, architecture.trim_end()))
    }

    fn read(listing: &str, native: &str) -> Self {
        let mut all = Self::default();
        for line in listing.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let &["installed", architecture, name, full_name, provides, needs] = &fields[..] else {
                continue;
            };
            if ![native, "all"].contains(&architecture) {
                continue;
            }
            for provided in alternatives(provides).flatten() {
                all.providers.insert(provided, name.to_owned());
            }
            let package = Package {
                full_name: full_name.to_owned(),
                needs: alternatives(needs).collect(),
            };
            all.packages.insert(name.to_owned(), package);
        }
        all
    }

    /// The names, as dpkg distinguishes them, of these packages and of all that they need.
    ///
    /// # Errors
    /// One of them is not installed.
    pub fn closure(&self, names: &[&str]) -> Result<BTreeSet<&str>> {
        let mut found = BTreeSet::new();
        let mut left = Vec::new();
        for name in names {
            left.push(self.one_of(&[(*name).to_owned()])?);
        }
        while let Some(package) = left.pop() {
            if found.insert(package.full_name.as_str()) {
                for need in &package.needs {
                    left.push(self.one_of(need)?);
                }
            }
        }
        Ok(found)
    }

    /// The first that is there.
    fn one_of(&self, alternatives: &[String]) -> Result<&Package> {
        let real = alternatives.iter().find_map(|name| self.packages.get(name));
        let provider = || {
            let mut providers = alternatives.iter().filter_map(|it| self.providers.get(it));
            self.packages.get(providers.next()?)
        };
        match real.or_else(provider) {
            Some(package) => Ok(package),
            None => {
                let names = alternatives.join(" | ");
                bail!("not installed: {names}; `apt-get install --fix-broken` mends dependencies")
            }
        }
    }
}

/// The names in a list of dependencies: between commas, alternatives. Versions and architectures fit, for
/// dpkg has installed it so.
fn alternatives(list: &str) -> impl Iterator<Item = Vec<String>> {
    let name = |text: &str| {
        let end = text.find([' ', ':', '(']).unwrap_or(text.len());
        text[..end].to_owned()
    };
    list.split(',')
        .filter(|need| !need.trim().is_empty())
        .map(move |need| need.split('|').map(|it| name(it.trim())).collect())
}

/// All paths of packages, folders among them.
///
/// # Errors
/// dpkg does not know one of them.
pub fn files(packages: &BTreeSet<&str>) -> Result<BTreeSet<PathBuf>> {
    let packages: Vec<&str> = packages.iter().copied().collect();
    let list = format!("dpkg-query --listfiles {}", packages.join(" "));
    let listing = output_of(&list).with_context(|| format!("`{list}` failed"))?;
    // Other lines are about diversions.
    let paths = listing.lines().filter(|line| line.starts_with('/'));
    Ok(paths.map(PathBuf::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "\
installed\tamd64\tgcc\tgcc\tc-compiler\tbase:any (>= 2),cpp (= 1), gcc-12 (>= 12) | gcc-11, libc6-dev
installed\tamd64\tcpp\tcpp\t\t,
installed\tamd64\tgcc-12\tgcc-12\t\t,gcc
installed\tall\tlinux-headers\tlinux-headers\tlibc6-dev (= 2), other\t,
installed\tamd64\tbase\tbase:amd64\t\t,
installed\ti386\tbase\tbase:i386\t\t,nowhere
config-files\tamd64\tgcc-11\tgcc-11\t\t,
installed\tamd64\tbroken\tbroken\t\t,gcc-11 | gcc-10
installed\tamd64\tapart\tapart\t\t,
";

    #[test]
    fn what_a_package_needs_is_found_once() {
        let installed = Installed::read(LISTING, "amd64");
        let found = installed.closure(&["gcc"]).unwrap();
        let expected = ["base:amd64", "cpp", "gcc", "gcc-12", "linux-headers"];
        assert!(found.iter().copied().eq(expected), "{found:?}");
    }

    #[test]
    fn what_is_missing_is_reported() {
        let installed = Installed::read(LISTING, "amd64");
        let error = |name| installed.closure(&[name]).unwrap_err().to_string();
        assert!(error("broken").contains("gcc-11 | gcc-10"));
        assert!(error("gcc-11").contains("not installed: gcc-11"));
    }
}
