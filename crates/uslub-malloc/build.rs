//! Links the library so that it is never unloaded: threads may be inside its sequences. And so that it is
//! initialised before all others: its fork handlers are then the outermost, as the C library's own are.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
}
