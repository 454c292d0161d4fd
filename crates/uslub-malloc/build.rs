//! Links the library so that it is never unloaded, as threads may be inside its sequences, and so that its functions
//! call each other and not a wrapper that another library has preloaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
