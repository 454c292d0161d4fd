//! Lists of sheaves that no thread owns, linked through their windows. Callers: barns, under their
//! lock, and threads that move several sheaves at once.

use core::ptr::NonNull;

use crate::layout::{Row, rows};
use crate::percpu::sheaf::{Sheaf, Window};

/// A list of sheaves that no thread owns, such as a barn's.
#[derive(Debug, Default)]
pub struct SheafList {
    head: Option<NonNull<Window>>,
    len: usize,
}

// SAFETY: the windows of a list are accessed through the list only.
unsafe impl Send for SheafList {}

impl SheafList {
    pub(crate) const ROWS: &'static [Row] = rows!("SheafList", Self, [head, len]);

    /// An empty list.
    pub const fn new() -> Self {
        Self { head: None, len: 0 }
    }

    /// Sheaves in the list.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a sheaf.
    pub fn push(&mut self, sheaf: Sheaf) {
        let window = sheaf.keep();
        // SAFETY: the caller gave us the sheaf.
        unsafe { (*window.as_ptr()).link = self.head };
        self.head = Some(window);
        self.len += 1;
    }

    /// Removes the newest sheaf.
    pub fn pop(&mut self) -> Option<Sheaf> {
        let window = self.head?;
        // SAFETY: the list owns its windows, and got them from `keep`.
        unsafe {
            let sheaf = Sheaf::from_window(window);
            self.head = window.as_ref().link;
            self.len -= 1;
            Some(sheaf)
        }
    }

    /// Removes the newest `n` sheaves, or all if there are fewer.
    pub fn split(&mut self, n: usize) -> SheafList {
        let mut newest = SheafList::new();
        while newest.len() < n
            && let Some(sheaf) = self.pop()
        {
            newest.push(sheaf);
        }
        newest
    }

    /// Adds the sheaves of another list.
    pub fn append(&mut self, mut other: SheafList) {
        while let Some(sheaf) = other.pop() {
            self.push(sheaf);
        }
    }

    /// Calls `visit` with the objects of each sheaf.
    pub fn for_each(&self, mut visit: impl FnMut(&[*mut u8])) {
        let mut at = self.head;
        while let Some(window) = at {
            // SAFETY: as in `pop`.
            unsafe {
                visit(Sheaf::from_window(window).objects());
                at = window.as_ref().link;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_keeps_its_sheaves_whole() {
        let mut list = SheafList::new();
        for n in 0..5 {
            let mut s = Sheaf::leaked(12);
            for i in 0..n {
                s.push((8 * (i + 1)) as *mut u8);
            }
            list.push(s);
        }
        let mut seen = 0;
        list.for_each(|objects| seen += objects.len());
        assert_eq!((list.len(), seen), (5, 10));
        for n in (0..5).rev() {
            assert_eq!(list.pop().unwrap().len(), n);
        }
        assert!(list.pop().is_none());
    }
}
