//! For tests: sizes and offsets, as a C compiler sees them, beside those that are declared here.

use std::fmt::Write as _;
use std::process::Command;

/// Each as C calls it, and as it is here.
macro_rules! layouts {
    ($($c:literal $ty:ty { $($field:literal $($name:ident).+),* $(,)? };)*) => {
        /// The C expressions, and what they are to be.
        fn layouts() -> Vec<(String, usize)> {
            use std::mem::offset_of;
            vec![$(
                (format!("sizeof({})", $c), size_of::<$ty>()),
                $((format!("offsetof({}, {})", $c, $field), offset_of!($ty, $($name).+)),)*
            )*]
        }
    };
}

pub(crate) use layouts;

/// Asserts that a C program with these headers finds the expressions to be what they are to be.
pub(crate) fn compare_layouts(headers: &[&str], expected: &[(String, usize)]) {
    let mut program = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    for header in headers {
        writeln!(program, "#include <{header}>").unwrap();
    }
    program.push_str("int main(void) {\n");
    for (expression, _) in expected {
        writeln!(program, "printf(\"%zu\\n\", (size_t)({expression}));").unwrap();
    }
    program.push_str("return 0; }\n");
    let folder = tempfile::tempdir().expect("a folder");
    let (source, binary) = (
        folder.path().join("layouts.c"),
        folder.path().join("layouts"),
    );
    std::fs::write(&source, program).expect("written");
    let compiled = Command::new("cc")
        .arg(&source)
        .arg("-o")
        .arg(&binary)
        .status();
    assert!(compiled.expect("a C compiler").success());
    let printed = Command::new(&binary).output().expect("it runs");
    let printed = String::from_utf8(printed.stdout).expect("numbers");
    let printed: Vec<usize> = printed
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    assert_eq!(printed.len(), expected.len());
    for ((expression, here), there) in expected.iter().zip(printed) {
        assert_eq!(*here, there, "{expression}");
    }
}
