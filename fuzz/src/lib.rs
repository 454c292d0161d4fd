//! What the fuzz targets share: sizes, setups, and the test platform of the core.

pub mod grace;
pub mod setup;
pub mod size;
#[path = "../../crates/uslub-core/tests/all/support/mod.rs"]
pub mod support;
pub mod world;

pub use size::Size;
pub use support::pattern::is_filled;
