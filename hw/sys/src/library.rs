//! Loading the libraries, and the errors of loading them.

use std::fmt;
#[cfg(not(feature = "link-system"))]
use std::mem::ManuallyDrop;

#[cfg(not(feature = "link-system"))]
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// Finds the functions of a library: the linker does, so that a package depends on it.
#[cfg(feature = "link-system")]
macro_rules! find {
    ($library:literal $link:literal; $($since:ident fn $name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {
        mod linked {
            use super::*;

            #[link(name = $link)]
            unsafe extern "C" {
                $(pub fn $name($($arg: $ty),*) -> $out;)*
            }
        }

        impl Functions {
            fn find() -> Result<Self, crate::library::Unloaded> {
                Ok(Self {
                    $($name: find!(@$since linked::$name),)*
                })
            }
        }
    };
    (@required $function:path) => { $function };
    (@since $function:path) => { Some($function) };
}

/// Finds the functions of a library: it is loaded at run time.
#[cfg(not(feature = "link-system"))]
macro_rules! find {
    ($library:literal $link:literal; $($since:ident fn $name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {
        impl Functions {
            fn find() -> Result<Self, crate::library::Unloaded> {
                let library = crate::library::Opened::open($library)?;
                // SAFETY: the types are those that the library's header declares.
                Ok(unsafe {
                    Self {
                        $($name: find!(@$since library stringify!($name)),)*
                    }
                })
            }
        }
    };
    (@required $library:ident $name:expr) => { $library.required($name)? };
    (@since $library:ident $name:expr) => { $library.optional($name) };
}

/// Loads libibverbs, librdmacm and libmlx5, unless they are loaded already. Call it before the program drops
/// the privilege to load them, or changes its root directory.
///
/// # Errors
/// Why libibverbs could not be loaded. Functions of the other two libraries return their own error.
pub fn load() -> Result<(), &'static Unloaded> {
    crate::ibverbs::load()?;
    let _ = crate::rdmacm::load();
    let _ = crate::mlx5dv::load();
    Ok(())
}

/// Why a library is not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unloaded {
    /// This build does not load the libraries.
    NotBuilt,
    /// The library is not installed on this host.
    NotFound {
        /// Its name, such as `libibverbs.so.1`.
        library: &'static str,
    },
    /// The dynamic linker cannot load the library.
    Refused {
        /// Its name.
        library: &'static str,
        /// The message of the dynamic linker.
        reason: String,
    },
    /// The library lacks a required symbol: its version is too old.
    TooOld {
        /// Its name.
        library: &'static str,
        /// The symbol.
        symbol: &'static str,
    },
}

/// The packages that contain a library, named as in Debian and in Fedora.
fn packages(library: &str) -> [&'static str; 2] {
    match library {
        "librdmacm.so.1" => ["librdmacm1", "librdmacm"],
        "libmlx5.so.1" => ["ibverbs-providers", "libibverbs"],
        _ => ["libibverbs1", "libibverbs"],
    }
}

/// A version of rdma-core whose library has all required symbols. For libmlx5 it is the one that introduced
/// `mlx5dv_is_supported`; the other libraries had theirs before 16.
fn oldest(library: &str) -> u32 {
    match library {
        "libmlx5.so.1" => 22,
        _ => 16,
    }
}

impl fmt::Display for Unloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBuilt => f.write_str(
                "this build loads no libraries of RDMA: build with the feature \"hardware\"",
            ),
            Self::NotFound { library } => {
                let [debian, fedora] = packages(library);
                write!(
                    f,
                    "{library} was not found: install {debian} (Debian, Ubuntu) or {fedora} (Fedora, RHEL)"
                )
            }
            Self::Refused { library, reason } => {
                write!(f, "{library} cannot be loaded: {reason}")
            }
            Self::TooOld { library, symbol } => {
                let release = oldest(library);
                write!(
                    f,
                    "{library} is too old: it has no {symbol}; install rdma-core {release} or newer"
                )
            }
        }
    }
}

impl std::error::Error for Unloaded {}

/// The library on this host does not have this function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its name.
    pub symbol: &'static str,
    /// The name of the library.
    pub library: &'static str,
    /// The version of rdma-core that introduced the function.
    pub since: u32,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            symbol,
            library,
            since,
        } = self;
        write!(
            f,
            "{library} has no {symbol}, which came with rdma-core {since}: install that or a newer one"
        )
    }
}

impl std::error::Error for Missing {}

impl From<Missing> for std::io::Error {
    fn from(missing: Missing) -> Self {
        Self::new(std::io::ErrorKind::Unsupported, missing)
    }
}

/// A library that is loaded and never unloaded.
#[cfg(not(feature = "link-system"))]
pub(crate) struct Opened {
    name: &'static str,
    /// Never unloaded, because providers start threads and have exit handlers.
    library: ManuallyDrop<Library>,
}

#[cfg(not(feature = "link-system"))]
impl Opened {
    pub fn open(name: &'static str) -> Result<Self, Unloaded> {
        if !cfg!(feature = "hardware") {
            return Err(Unloaded::NotBuilt);
        }
        // SAFETY: these libraries may be loaded at any time, by any thread.
        match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => Ok(Self {
                name,
                library: ManuallyDrop::new(library),
            }),
            Err(error) => Err(refusal(name, &error)),
        }
    }

    /// Returns the function with this name, or an error if the library does not have it.
    ///
    /// # Safety
    /// The symbol is a function of type `F`.
    pub unsafe fn required<F: Copy>(&self, symbol: &'static str) -> Result<F, Unloaded> {
        // SAFETY: the caller guarantees that the symbol is a function of type `F`.
        unsafe { self.optional(symbol) }.ok_or(Unloaded::TooOld {
            library: self.name,
            symbol,
        })
    }

    /// Returns the function with this name, in its default, that is newest, version (dlsym(3)).
    ///
    /// # Safety
    /// The symbol is a function of type `F`.
    pub unsafe fn optional<F: Copy>(&self, symbol: &'static str) -> Option<F> {
        // SAFETY: the caller guarantees that the symbol is a function of type `F`.
        unsafe { self.library.get::<F>(symbol.as_bytes()) }
            .ok()
            .map(|found| *found)
    }
}

/// Classifies an error of the dynamic linker. "cannot open shared object file: No such file or directory" may
/// concern the library itself, or a library that it depends on.
#[cfg(not(feature = "link-system"))]
fn refusal(library: &'static str, error: &libloading::Error) -> Unloaded {
    use std::error::Error as _;

    let reason = match error.source() {
        Some(source) => source.to_string(),
        None => error.to_string(),
    };
    let not_found = reason.starts_with(library) && reason.contains("No such file");
    match not_found {
        true => Unloaded::NotFound { library },
        false => Unloaded::Refused { library, reason },
    }
}
