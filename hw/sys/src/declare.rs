//! Macros for the declarations. Each also lists what it declares, so that tests can compare the declarations
//! with the C headers.

/// Declares opaque types, which are used by pointer only.
macro_rules! opaque {
    ($($name:ident,)*) => {
        $(
            #[repr(C)]
            pub struct $name {
                _opaque: [u8; 0],
            }
        )*
    };
}

/// Declares structures and unions.
macro_rules! types {
    ($($kind:tt $name:ident { $($field:ident: $ty:ty,)* })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub $kind $name {
                $(pub $field: $ty,)*
            }
        )*

        #[cfg(test)]
        pub(crate) const TYPES: &[crate::headers::Layout] = &[$(crate::headers::Layout {
            kind: stringify!($kind),
            name: stringify!($name),
            size: size_of::<$name>(),
            align: align_of::<$name>(),
            fields: &[$((
                stringify!($field),
                std::mem::offset_of!($name, $field),
                size_of::<$ty>(),
            ),)*],
        },)*];
    };
}

/// Declares enumerations, as modules of constants or as flag types.
macro_rules! numbers {
    ($($kind:ident $name:ident { $($value:ident = $number:literal),* $(,)? })*) => {
        $(numbers!(@$kind $name { $($value = $number),* });)*

        #[cfg(test)]
        pub(crate) const NUMBERS: &[(&str, u64)] = &[$($((stringify!($value), $number),)*)*];
    };
    (@mod $name:ident { $($value:ident = $number:literal),* }) => {
        pub mod $name {
            pub type Type = std::ffi::c_uint;
            $(pub const $value: Type = $number;)*
        }
    };
    (@flags $name:ident { $($value:ident = $number:literal),* }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(transparent)]
        pub struct $name(pub std::ffi::c_uint);

        impl $name {
            $(pub const $value: Self = Self($number);)*
        }

        impl std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl std::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }
    };
}

/// Declares the functions of a library. Each is `required`, or available `since` a version of rdma-core, and
/// has a symbol version. A library whose objects contain those of another library `needs` that library:
/// whenever the first is loaded, so is the second.
///
/// A required function is declared as a function; its callers guarantee what its manual page requires, and
/// that the library is loaded. Any other function is declared as an accessor that returns the function.
macro_rules! functions {
    (
        $library:literal $link:literal $(needs $first:ident)?;
        $($since:ident $(($release:literal))? $version:literal fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $out:ty;)*
    ) => {
        /// The addresses of the functions.
        struct Functions {
            $($name: functions!(@field $since unsafe extern "C" fn($($arg: $ty),*) -> $out),)*
        }

        find! { $library $link; $($since fn $name($($arg: $ty),*) -> $out;)* }

        impl Functions {
            fn load() -> Result<Self, crate::library::Unloaded> {
                $(crate::$first::load().map_err(Clone::clone)?;)?
                Self::find()
            }
        }

        static FUNCTIONS: crate::once::Once<Result<Functions, crate::library::Unloaded>> =
            crate::once::Once::new();

        /// Loads the library, unless it is loaded already.
        ///
        /// # Errors
        /// The library is missing, cannot be loaded, or lacks a required symbol.
        pub fn load() -> Result<(), &'static crate::library::Unloaded> {
            FUNCTIONS.get_or_init(Functions::load).as_ref().map(|_| ())
        }

        /// The library is loaded: its functions take objects that exist only after that.
        fn functions() -> &'static Functions {
            let loaded = FUNCTIONS.get().and_then(|loaded| loaded.as_ref().ok());
            loaded.expect("the library is loaded before its functions are called")
        }

        $(functions!(@call $since $($release)? $library fn $name($($arg: $ty),*) -> $out);)*

        #[cfg(test)]
        pub(crate) const FUNCTIONS_OF_C: &[crate::headers::Function] = &[$(crate::headers::Function {
            name: stringify!($name),
            version: $version,
            arguments: &[$(stringify!($ty)),*],
            returns: stringify!($out),
            address: || functions!(@address $since functions().$name),
        },)*];
    };

    (@field required $function:ty) => { $function };
    (@field since $function:ty) => { Option<$function> };
    (@address required $function:expr) => { Some($function as *const ()) };
    (@address since $function:expr) => { $function.map(|function| function as *const ()) };

    (@call required $library:literal fn $name:ident($($arg:ident: $ty:ty),*) -> $out:ty) => {
        pub unsafe fn $name($($arg: $ty),*) -> $out {
            // SAFETY: the caller guarantees what the function's manual page requires.
            unsafe { (functions().$name)($($arg),*) }
        }
    };
    (@call since $release:literal $library:literal fn $name:ident($($arg:ident: $ty:ty),*) -> $out:ty) => {
        pub fn $name() -> Result<unsafe extern "C" fn($($arg: $ty),*) -> $out, crate::Missing> {
            functions().$name.ok_or(crate::Missing {
                symbol: stringify!($name),
                library: $library,
                since: $release,
            })
        }
    };
}
