//! What is promised of the whole allocator, whichever layer has the last word.

mod contexts;
mod destroy;
mod failslab;
mod faults;
mod faults_calls;
mod interpreted;
mod misuse;
mod misuse_limits;
mod misuse_links;
mod misuse_marks;
mod model;
mod prefill;
mod rcu;
mod threads;
