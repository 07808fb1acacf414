//! Gives the shared library the name of its ABI. An installation has the file as libbellwire.so.0, and
//! libbellwire.so as a link to it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libbellwire.so.0");
}
