//! Turns the announcements of `uslub-core/src/sync/timed_atomics.rs` on, for this package only.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=timed");
}
