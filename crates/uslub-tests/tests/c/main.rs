//! The C and C++ programs of `tests/c/`, each in every way to run on uslub.

mod contracts;
mod faults;
mod instruments;
mod life;
mod limits;
mod memory;
mod misuse;
mod stack;
mod stress;
