//! Gives the shared library the name of its ABI, by which the dynamic linker finds it.

mod soname;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=soname.rs");
    let abi = soname::abi(env!("CARGO_PKG_VERSION"));
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libbellwire.so.{abi}");
}
