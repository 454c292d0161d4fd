//! Links the library under its installed name, and so that it is never unloaded: threads may be
//! inside its sequences.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libuslub.so.0");
}
