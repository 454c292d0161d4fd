//! Random numbers for workloads: the same sequence for the same seed, on every machine.

/// A xorshift generator.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// A generator for a seed and a CPU.
    pub fn new(seed: u64, number: usize) -> Self {
        let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number as u64 + 1) << 20;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((z ^ (z >> 31)) | 1)
    }

    /// The next 64-bit word.
    #[inline]
    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `n`.
    #[inline]
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.roll()) * n as u128) >> 64) as usize
    }
}
