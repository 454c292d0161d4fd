//! The helper thread; not there yet.

pub(crate) fn prepare() {}
pub(crate) fn after_free() {}
pub(crate) fn before_fork() {}
pub(crate) fn after_fork_in_parent() {}
pub(crate) fn after_fork_in_child() {}
