//! Registers of 32 bytes, where the processor and the system have them.

use core::arch::x86_64::{
    __cpuid, __m256, _mm_and_ps, _mm_castps_si128, _mm_cvtsi128_si64, _mm_movehl_ps, _mm_or_ps,
    _mm256_and_ps, _mm256_castps256_ps128, _mm256_extractf128_ps, _mm256_loadu_ps, _mm256_or_ps,
    _xgetbv,
};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

/// Addresses of a block: two registers.
const BLOCK: usize = 8;
/// So many addresses are worth a look by wide registers.
const MANY: usize = 48;

/// Whether they are used.
pub(crate) static WIDE: AtomicBool = AtomicBool::new(false);

/// Lets copies of eight objects and more move 32 bytes at a time, and [`bits_of`] look at as many, if the processor and the system
/// can; or lets them not. Returns which it is; at first they do not.
pub fn move_wide(wide: bool) -> bool {
    let wide = wide && has_avx();
    // Relaxed: either is right at any time.
    WIDE.store(wide, Relaxed);
    wide
}

/// Whether there are registers of 32 bytes, and the system keeps them.
fn has_avx() -> bool {
    const OSXSAVE_AND_AVX: u32 = 1 << 27 | 1 << 28;
    const XMM_AND_YMM: u64 = 1 << 1 | 1 << 2;
    __cpuid(1).ecx & OSXSAVE_AND_AVX == OSXSAVE_AND_AVX
        // SAFETY: the system lets it be read, as the first bit says.
        && unsafe { _xgetbv(0) } & XMM_AND_YMM == XMM_AND_YMM
}

/// The bits that all addresses have, and those that any has; `None` where wide registers are not used, or would gain nothing.
///
/// ```
/// let mut addresses = [core::ptr::without_provenance_mut(0x1100); 64];
/// addresses[7] = core::ptr::without_provenance_mut(0x1200);
/// if uslub_rseq::move_wide(true) {
///     assert_eq!(uslub_rseq::bits_of(&addresses), Some((0x1000, 0x1300)));
/// }
/// ```
#[inline]
pub fn bits_of(addresses: &[*mut u8]) -> Option<(usize, usize)> {
    // Relaxed: either is right at any time.
    let wide = addresses.len() >= MANY && WIDE.load(Relaxed);
    // SAFETY: there are such registers, and so many addresses.
    wide.then(|| unsafe { bits_of_many(addresses) })
}

/// As [`bits_of`], by wide registers. From the last address on, as bulks are copied in blocks that end there: a load finds its bytes
/// in one store. The block at the front may have been seen in part.
///
/// # Safety
///
/// There is a [`BLOCK`] of addresses.
#[target_feature(enable = "avx")]
unsafe fn bits_of_many(addresses: &[*mut u8]) -> (usize, usize) {
    let load = |at: usize| {
        // SAFETY: a block begins there.
        unsafe { _mm256_loadu_ps(addresses.as_ptr().add(at).cast()) }
    };
    let mut at = addresses.len() - BLOCK;
    let mut all = [load(at), load(at + BLOCK / 2)];
    let mut any = all;
    while at > 0 {
        at = at.saturating_sub(BLOCK);
        for (half, from) in [at, at + BLOCK / 2].into_iter().enumerate() {
            let some = load(from);
            all[half] = _mm256_and_ps(all[half], some);
            any[half] = _mm256_or_ps(any[half], some);
        }
    }
    let halves = |both: __m256| {
        (
            _mm256_castps256_ps128(both),
            _mm256_extractf128_ps::<1>(both),
        )
    };
    let (low, high) = halves(_mm256_and_ps(all[0], all[1]));
    let all = _mm_and_ps(low, high);
    let all = _mm_and_ps(all, _mm_movehl_ps(all, all));
    let (low, high) = halves(_mm256_or_ps(any[0], any[1]));
    let any = _mm_or_ps(low, high);
    let any = _mm_or_ps(any, _mm_movehl_ps(any, any));
    let word = |bits| _mm_cvtsi128_si64(_mm_castps_si128(bits)) as usize;
    (word(all), word(any))
}
