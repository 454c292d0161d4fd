//! Fast random numbers for workloads, with the same sequence in every run.

/// A xorshift generator.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// A generator with its own seed number.
    pub fn new(number: u64) -> Self {
        Self((number.wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next 64-bit word.
    #[inline]
    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A random number below `n`.
    #[inline]
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.roll()) * n as u128) >> 64) as usize
    }

    /// Shuffles a slice.
    pub fn shuffle<T>(&mut self, slice: &mut [T]) {
        for i in (1..slice.len()).rev() {
            slice.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_keeps_everything_and_numbers_stay_below_their_bound() {
        let mut dice = Dice::new(7);
        let mut slice: Vec<_> = (0..100).collect();
        dice.shuffle(&mut slice);
        assert_ne!(slice, (0..100).collect::<Vec<_>>());
        slice.sort_unstable();
        assert_eq!(slice, (0..100).collect::<Vec<_>>());
        let mut seen = [false; 5];
        (0..200).for_each(|_| seen[dice.below(5)] = true);
        assert_eq!(seen, [true; 5]);
    }
}
