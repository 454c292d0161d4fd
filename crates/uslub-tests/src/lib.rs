//! Runs test programs in C and C++ on uslub in every mode.
//!
//! The programs are in `tests/c/` of the workspace. The first lines of each program state the
//! property that it proves; it can also be compiled and run by hand. The tests compile the programs
//! once and run them in every [`Way`]: preloaded with glibc's rseq area, with an area that uslub
//! must find itself, without restartable sequences, and under `uslub run`, where the helper thread
//! may start.
//!
//! ```text
//!  tests/c/*   the runs of each program, and the expected output
//!  compile     compiles a C or C++ source once
//!  way         the ways to run a program on uslub
//!  run         one run: time limit, output, failure message
//!  subject     the command and the library under test, built once
//!  release     release builds, for the tests of each crate
//!  tools       programs that a machine may lack; exclusive tests
//! ```
//!
//! Variables:
//!
//! | variable | effect |
//! |---|---|
//! | `USLUB_STRESS_SECONDS=N` | length of each stress run; default 5 |
//! | `USLUB_FORKS=N` | forks of the fork test; default 200 |
//! | `USLUB_REQUIRE_PROGRAMS=1` | a missing tool fails its test, not only skips it with a note |
//! | `USLUB_COMMAND=PATH`, `USLUB_LIBRARY=PATH` | test these files and build nothing |
//! | `USLUB_TESTS_PLAIN=1` | run on the C library's malloc, to find faults of the tests |
//! | `CC`, `CXX`, `CFLAGS`, `CXXFLAGS` | as usual |

pub mod compile;
pub mod release;
pub mod run;
pub mod subject;
pub mod tools;
pub mod way;

pub use compile::{atfork, deep_library, early, library, program};
pub use run::{Outcome, Run};
pub use way::{Launch, Rseq, Way};
