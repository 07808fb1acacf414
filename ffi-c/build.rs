//! Gives the shared library the name of its ABI, by which the dynamic linker finds the library, and its symbols a
//! version of the same name: a program and its plug-in that use two ABIs each get the functions of their own.

mod soname;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=soname.rs");
    let abi = soname::abi(env!("CARGO_PKG_VERSION"));
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libbellwire.so.{abi}");
    // rustc's version script has no name for a version, and cannot be combined with one that has; lld lacks the option.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--default-symver");
}
