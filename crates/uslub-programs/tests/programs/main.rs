//! What real programs are asked to do, plainly and on uslub.

mod compilers;
mod databases;
mod itself;
mod languages;
mod text_tools;
mod version_control;

use std::path::{Path, PathBuf};

/// The script or source `name` that a program is given.
fn given(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("programs")
        .join(name)
}
