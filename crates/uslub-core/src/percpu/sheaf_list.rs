//! Lists of sheaves that no thread owns, linked through their windows.

use core::ptr::NonNull;

use crate::percpu::sheaf::{Sheaf, Window};

/// A list of sheaves that no thread owns, such as a barn's.
#[derive(Debug)]
pub struct SheafList {
    head: *mut Window,
    len: usize,
}

// SAFETY: the windows of a list are accessed through the list only.
unsafe impl Send for SheafList {}

impl SheafList {
    /// An empty list.
    pub const fn new() -> Self {
        Self {
            head: core::ptr::null_mut(),
            len: 0,
        }
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
        let window = sheaf.keep().as_ptr();
        // SAFETY: the caller gave us the sheaf.
        unsafe { (*window).link = self.head };
        self.head = window;
        self.len += 1;
    }

    /// Removes the newest sheaf.
    pub fn pop(&mut self) -> Option<Sheaf> {
        let window = NonNull::new(self.head)?;
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

    /// Removes all sheaves.
    pub fn take(&mut self) -> SheafList {
        core::mem::take(self)
    }

    /// Calls `visit` with the objects of each sheaf.
    pub fn for_each(&self, mut visit: impl FnMut(&[*mut u8])) {
        let mut at = self.head;
        while let Some(window) = NonNull::new(at) {
            // SAFETY: as in `pop`.
            unsafe {
                visit(Sheaf::from_window(window).objects());
                at = window.as_ref().link;
            }
        }
    }
}

impl Default for SheafList {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::percpu::sheaf::tests::sheaf;

    #[test]
    fn a_list_keeps_its_sheaves_whole() {
        let mut list = SheafList::new();
        for n in 0..5 {
            let mut s = sheaf(12);
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
