//! Links the library so that
//!
//! - it is never unloaded: threads may be inside its sequences;
//! - its functions call each other, and not a wrapper that another library has preloaded;
//! - it is initialised before all other libraries: its fork handlers are then the outermost, as those
//!   of the C library's own allocator are;
//! - it runs with glibc older than 2.34 too, where `dlsym` lies in a library of its own.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    if std::env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("gnu") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--no-as-needed");
        println!("cargo:rustc-cdylib-link-arg=-l:libdl.so.2");
        println!("cargo:rustc-cdylib-link-arg=-Wl,--as-needed");
    }
}
