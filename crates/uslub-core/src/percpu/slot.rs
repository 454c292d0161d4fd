//! What the word of a per-CPU slot says.
//!
//! | state | word | in the slots | meaning |
//! |---|---|---|---|
//! | `Absent` | 0 | spare | no sheaf |
//! | | | rcu | no free has waited for a grace period yet |
//! | `Busy` | odd | all | a thread holds the word's [lock bit](crate::percpu::try_lock) |
//! | `Bootstrap` | [`bootstrap`] | main, rcu | no sheaf yet, or a thread has taken it |
//! | `Stopped` | [`stopped`] | all | the CPU has no region, or is being drained |
//! | | | main, spare | the cache is closed (`percpu::closed`) |
//! | `Sheaf` | a top | all | a sheaf that no thread owns |
//!
//! A peek finds a state; only a compare-and-swap confirms it. Callers: `sheaf` and `cache`.

use crate::percpu::sheaf::{LAST, SHEAF_BYTES, bootstrap, capacity_at, stopped};

/// The lock bit of a word.
pub(crate) const LOCKED: usize = 1;

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// No sheaf.
    Absent,
    /// Locked by a thread.
    Busy,
    /// No sheaf; the slot looks like an empty and full sheaf.
    Bootstrap,
    /// The slot may not be used.
    Stopped,
    /// A sheaf with this top.
    Sheaf(Top),
}

impl SlotState {
    /// The state that a word stands for.
    #[inline]
    pub fn of(word: usize) -> Self {
        match word {
            0 => Self::Absent,
            _ if word & LOCKED != 0 => Self::Busy,
            _ if word == bootstrap() => Self::Bootstrap,
            _ if word == stopped() => Self::Stopped,
            _ => Self::Sheaf(Top(word)),
        }
    }

    /// The sheaf of a word, also of a locked one.
    #[inline]
    pub(crate) fn sheaf_in(word: usize) -> Option<Top> {
        match Self::of(word & !LOCKED) {
            Self::Sheaf(top) => Some(top),
            _ => None,
        }
    }

    /// Whether a thread may install a sheaf here: the slot has none, or one that is `spent`.
    #[inline]
    pub(crate) fn is_free_or(self, spent: impl FnOnce(Top) -> bool) -> bool {
        match self {
            Self::Bootstrap => true,
            Self::Sheaf(top) => spent(top),
            Self::Absent | Self::Busy | Self::Stopped => false,
        }
    }
}

/// The word of an installed sheaf. What it says is racy: another thread may take the sheaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Top(pub(super) usize);

impl Top {
    /// The word.
    #[inline]
    pub fn word(self) -> usize {
        self.0
    }

    /// Whether the sheaf has no room.
    #[inline]
    pub fn is_full(self) -> bool {
        (self.0 + 8).is_multiple_of(SHEAF_BYTES)
    }

    /// Objects that still fit into the sheaf.
    #[inline]
    pub fn room(self) -> usize {
        (LAST - self.0 % SHEAF_BYTES) / 8
    }

    /// Objects in the sheaf.
    #[inline]
    pub fn len(self) -> usize {
        (self.0 % SHEAF_BYTES + 8 * self.capacity()).saturating_sub(LAST) / 8
    }

    /// Objects that the sheaf can hold.
    #[inline]
    pub fn capacity(self) -> usize {
        capacity_at(self.0)
    }

    /// Whether the sheaf has no object.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::percpu::sheaf::Sheaf;

    #[test]
    fn each_word_stands_for_its_state() {
        let top = Sheaf::leaked(4).into_top();
        for (word, state, takes_sheaf) in [
            (0, SlotState::Absent, false),
            (bootstrap(), SlotState::Bootstrap, true),
            (stopped(), SlotState::Stopped, false),
            (top, SlotState::Sheaf(Top(top)), true),
        ] {
            assert_eq!(SlotState::of(word), state);
            assert_eq!(SlotState::of(word | LOCKED), SlotState::Busy);
            assert_eq!(state.is_free_or(Top::is_empty), takes_sheaf);
            let sheaf = (word == top).then_some(Top(top));
            assert_eq!(SlotState::sheaf_in(word), sheaf);
            assert_eq!(SlotState::sheaf_in(word | LOCKED), sheaf);
        }
        assert!(!SlotState::of(top).is_free_or(Top::is_full));
    }
}
