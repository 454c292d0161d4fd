//! Test programs in C and C++, compiled and run on uslub in every mode.
//!
//! The programs are in `tests/c/` of the workspace; the first lines of each say
//! what it proves, and it can be compiled and run by hand. The tests here
//! compile them once and run them in every [`Way`]: preloaded with glibc's rseq
//! area, with an area that uslub must find for itself, without restartable
//! sequences, and under `uslub run`, where the helper thread may start.
//!
//! ```text
//!  tests/c/*   which program is run how, and what it must say
//!  compile     a C or C++ source becomes a program or a library, once
//!  way         how a program comes to run on uslub
//!  run         one run: time limit, output, what is said when it fails
//!  subject     the command and the library under test, built once
//!  tools       programs that a machine may lack; one test at a time
//! ```
//!
//! Variables:
//!
//! | variable | effect |
//! |---|---|
//! | `USLUB_STRESS_SECONDS=N` | length of each stress run; 5 otherwise |
//! | `USLUB_FORKS=N` | forks of the fork test; 200 otherwise |
//! | `USLUB_REQUIRE_PROGRAMS=1` | a tool that is not installed fails its test; otherwise the test says so on stderr and passes |
//! | `USLUB_COMMAND=PATH`, `USLUB_LIBRARY=PATH` | test these and build nothing |
//! | `USLUB_TESTS_PLAIN=1` | run everything on the C library's own malloc, to see whether a test that fails is to blame itself |
//! | `CC`, `CXX`, `CFLAGS`, `CXXFLAGS` | as usual |

pub mod compile;
pub mod run;
pub mod subject;
pub mod tools;
pub mod way;

pub use compile::{atfork, deep_library, early, library, program};
pub use run::{Outcome, Run};
pub use way::{Launch, Rseq, Way};
