//! The macros that generate enums, texts and classes from the tables.

use core::ffi::CStr;
use core::{fmt, ops::Deref};

/// A text of the tables: a `str` for Rust and a NUL-terminated string for C.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Text(&'static CStr);

impl Text {
    /// Wraps a literal that ends with NUL.
    pub(super) const fn new(with_nul: &'static str) -> Self {
        match CStr::from_bytes_with_nul(with_nul.as_bytes()) {
            Ok(text) => Self(text),
            Err(_) => panic!("a text of the tables has a NUL, or none at its end"),
        }
    }

    /// The text as a `str`.
    pub const fn as_str(self) -> &'static str {
        match self.0.to_str() {
            Ok(text) => text,
            Err(_) => "",
        }
    }

    /// The text as a C string.
    pub const fn as_c_str(self) -> &'static CStr {
        self.0
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Makes a [`Text`] of string literals.
macro_rules! text {
    ($($part:expr),+) => {
        const { $crate::fault::Text::new(concat!($($part,)+ "\0")) }
    };
}

/// An enum whose variants have a number, a name and a text.
macro_rules! terms {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $value:literal, $verbs:literal, $text:literal;)* }) => {
        $crate::wr::numbered! {
            $(#[$doc])*
            $name { $(#[doc = $text] $variant = $value, $verbs;)* }
        }

        impl $name {
            /// The meaning of the value, in one sentence.
            pub const fn text(self) -> $crate::fault::Text {
                match self { $($name::$variant => $crate::fault::table::text!($text),)* }
            }

            /// Its [`name`](Self::name), also as a C string.
            pub const fn c_name(self) -> $crate::fault::Text {
                match self { $($name::$variant => $crate::fault::table::text!($verbs),)* }
            }
        }
    };
}

/// A family of faults. Each row has: the variant, its number and its verbs name; what happened; the scope,
/// the blame, whether a retry helps, what it says about execution, and the recovery; the cause; the advice.
macro_rules! faults {
    ($(#[$doc:meta])* $name:ident { $(
        $variant:ident = $value:literal, $verbs:literal, $text:literal,
        $scope:ident $blame:ident $retry:ident $execution:ident $recovery:ident,
        cause $cause:literal,
        advice $advice:literal;
    )* }) => {
        $crate::fault::table::terms! {
            $(#[$doc])*
            $name { $($variant = $value, $verbs, $text;)* }
        }

        impl $name {
            /// The row of the table for this fault; [`classify`](crate::fault::classify) refines it.
            pub(super) const fn row(self) -> $crate::fault::Class {
                use $crate::fault::{Blame, Class, Execution, Recovery, Retry, Scope};
                match self { $(
                    $name::$variant => Class {
                        scope: Scope::$scope,
                        cause: $crate::fault::table::text!($cause),
                        blame: Blame::$blame,
                        retry: Retry::$retry,
                        execution: Execution::$execution,
                        recovery: Recovery::$recovery,
                        advice: $crate::fault::table::text!($advice),
                    },
                )* }
            }
        }
    };
}

pub(super) use {faults, terms, text};
