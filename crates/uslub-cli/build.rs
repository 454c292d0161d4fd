//! Tells the command where the build has the library that it carries.
//!
//! The command depends on `uslub-malloc`, so cargo links the library first. A release build takes
//! the linked file in (`src/carried.rs`). Then `cargo install` needs to install one file only.

use std::env;
use std::fs::File;
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(carries_library)");
    // A debug build runs where it was built. A package outside of the workspace is built without
    // the workspace's profile, so its library would need std.
    let here = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    let in_workspace = Path::new(&here).join("../uslub-malloc/Cargo.toml").exists();
    if env::var("PROFILE").as_deref() != Ok("release") || !in_workspace {
        return;
    }
    // OUT_DIR is PROFILE/build/uslub-cli-HASH/out.
    let out = env::var_os("OUT_DIR").unwrap_or_default();
    let Some(profile) = Path::new(&out).ancestors().nth(3) else {
        return;
    };
    let library = profile.join("deps/libuslub_malloc.so");
    // `cargo check` links no library, but reads the file. An empty one carries nothing.
    let _ = File::create_new(&library);
    println!("cargo:rustc-env=USLUB_CARRIED={}", library.display());
    println!("cargo:rustc-cfg=carries_library");
}
