//! Debugged caches: each call takes the list lock, checks the object, and fills what must not
//! change.
//!
//! | module | contents |
//! |---|---|
//! | [`state`] | what all debugged caches share |
//! | [`depot`] | each stack once |
//! | [`track`] | who called: thread, CPU, time, stack |
//! | [`object`] | allocates and frees one object |
//! | [`check`] | checks of a slab and of an object |
//! | [`freelist`] | the walk of a freelist, and its repair |
//! | [`report`] | the lines of a report |
//! | [`validate`] | all slabs of a cache; leaks; groups of tracks |
//! | [`guard`] | guarded objects: a page each, between closed pages |
//! | `guard_slot` | a slot of a guarded object |
//! | [`guard_report`] | what is said about a guarded object |
//! | [`watch`] | what a checker of memory is told |
//!
//! A slab of a debugged cache has no fresh slots: all free slots are linked, and filled. It is on
//! its node's partial list, on the list of full slabs, or on none, if a check has failed: then it
//! is frozen, and never used again. Its state changes under the list lock only. Callers:
//! `cache::debug`.

pub mod check;
pub mod depot;
pub mod freelist;
pub mod guard;
pub mod guard_report;
pub(crate) mod guard_slot;
pub mod object;
pub mod report;
pub mod state;
pub mod track;
pub mod validate;
pub mod watch;
