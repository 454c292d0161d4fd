//! The broker: `uslub run` opens files of its program for a command that may not read the program.
//!
//! Yama (`kernel.yama.ptrace_scope = 1`), user namespaces and other restrictions let only an
//! ancestor read a process. `uslub run` is the ancestor of its program.
//!
//! ```text
//!   uslub info PID                        uslub run (ancestor of PID)
//!     │ refused by the kernel               │ listens on FOLDER/<own pid>.sock
//!     │ for each ancestor of PID:           │
//!     ├── connect ─────────────────────────▶│ same user? descendant? (server.rs)
//!     ├── "ulk1", PID ─────────────────────▶│ opens mem, pagemap, maps, smaps of /proc/PID
//!     │◀───────── status, 4 descriptors ────┤
//!     │ reads by itself                     │ closes them
//! ```
//!
//! The kernel checks rights when a file of `/proc` is opened, so the command then reads by itself:
//! a slow reader never delays the watcher. `FOLDER` is private to the user.
//!
//! | file | concept |
//! |---|---|
//! | `folder` | where the sockets are |
//! | `message` | the request and the answer |
//! | `server` | the watcher's side: who may ask, for which process |
//! | `client` | the reader's side |

mod client;
mod folder;
mod message;
mod server;

pub use client::{Answer, ask};
pub use server::Broker;
