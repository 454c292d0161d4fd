//! The fast paths of `malloc` and `free`.
//!
//! Each is one restartable sequence (see `uslub-rseq`) without a frame, a call or a lock. It finds
//! the class (or the cache of the page), the CPU's region, the top and the object, and commits by
//! one store. All other cases jump to the slow functions with the argument unchanged: other sizes,
//! empty or full sheaves, aborted sequences.
//!
//! | state of [`FRONT`](crate::gate::FRONT) | when | effect |
//! |---|---|---|
//! | closed: bounds are 0 | before set-up; without sequences; in a `vfork` | slow paths |
//! | open | otherwise | fast paths |
//!
//! Any thread may call [`malloc`] and [`free`]. [`Front::open`], [`Front::close`] and
//! [`Front::follow`] are for slow paths.
//!
//! Both functions exist twice, because the thread's area has two fields that may index the regions,
//! and looking the field up would cost each call a load. Calls enter the function for the
//! concurrency id. On kernels before 6.3, which have no such id, it is closed and leads to the
//! function for the CPU's number.

// A file an architecture, with the same functions in each.
#[cfg_attr(target_arch = "x86_64", path = "fast_path/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "fast_path/aarch64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "fast_path/riscv64.rs")]
mod fast;

pub(crate) use fast::free_of;
pub use fast::{free, malloc};
