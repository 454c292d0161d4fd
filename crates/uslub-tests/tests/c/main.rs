//! The C and C++ programs of `tests/c/`, each in every way to run on uslub.

mod bounds;
mod checked;
mod contracts;
mod conventions;
mod debug;
mod faults;
mod forking;
mod guard;
mod instruments;
mod interposed;
mod life;
mod limits;
mod memory;
mod misuse;
mod pages;
mod sharing;
mod shut_in;
mod stack;
mod stress;
mod switched;
mod thirty;
