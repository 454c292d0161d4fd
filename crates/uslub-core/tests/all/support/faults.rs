//! Failures inside the allocator, by site and by probability: the kernel's `failslab` and
//! `fail_page_alloc`.

use uslub_core::platform::FaultSite;

use super::thread::splitmix;

/// What decides whether an allocation of the allocator's own fails.
#[derive(Default)]
pub struct Faults {
    /// The only site that fails; any, where there is none.
    site: Option<FaultSite>,
    /// Questions that are still answered by success, then those answered by failure.
    granted: usize,
    refused: usize,
    /// Failures in 1000 questions, also of the system's.
    per_mille: u64,
    random: u64,
    asked: usize,
    failed: usize,
}

impl Faults {
    /// From now on the next `granted` allocations at `site` (at any, where there is none) succeed,
    /// and `refused` after them fail.
    pub fn at(&mut self, site: Option<FaultSite>, granted: usize, refused: usize) {
        *self = Self {
            site,
            granted,
            refused,
            ..Self::default()
        };
    }

    /// From now on so many in 1000 allocations fail at each site, and requests to the system with
    /// them.
    pub fn often(&mut self, per_mille: u64, seed: u64) {
        *self = Self {
            per_mille,
            random: seed,
            ..Self::default()
        };
    }

    /// Ends what was begun; returns how often there was a question, and how often it was refused.
    pub fn heal(&mut self) -> (usize, usize) {
        let Self { asked, failed, .. } = std::mem::take(self);
        (asked, failed)
    }

    /// Whether a request to the system fails by probability.
    pub fn asked_in_vain(&mut self) -> bool {
        if self.per_mille == 0 {
            return false;
        }
        self.asked += 1;
        self.random = splitmix(self.random);
        let fails = self.random % 1000 < self.per_mille;
        self.failed += usize::from(fails);
        fails
    }

    /// Whether an allocation at a site fails.
    pub fn should_fail(&mut self, site: FaultSite) -> bool {
        if self.per_mille > 0 {
            return self.asked_in_vain();
        }
        if self.site.is_some_and(|only| only != site) {
            return false;
        }
        self.asked += 1;
        if self.granted > 0 {
            self.granted -= 1;
            return false;
        }
        let fails = self.refused > 0;
        self.refused -= usize::from(fails);
        self.failed += usize::from(fails);
        fails
    }
}
