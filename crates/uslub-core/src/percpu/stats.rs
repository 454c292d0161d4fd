//! Statistics, under the kernel's names. Each CPU counts in its own region; see `info` for their
//! sums.

macro_rules! items {
    ($($(#[$doc:meta])* $item:ident => $name:literal,)*) => {
        /// What is counted, a cache.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum StatItem {
            $($(#[$doc])* $item,)*
        }

        /// All items with the names that `/sys/kernel/slab/<cache>/` gives them.
        pub const STAT_ITEMS: &[(StatItem, &str)] = &[$((StatItem::$item, $name),)*];
    };
}

items! {
    /// Objects taken from sheaves.
    AllocFastpath => "alloc_fastpath",
    /// Objects taken from slabs directly.
    AllocSlowpath => "alloc_slowpath",
    /// Objects put into sheaves.
    FreeFastpath => "free_fastpath",
    /// Objects freed to slabs directly.
    FreeSlowpath => "free_slowpath",
    /// Updates of slabs that freed them: one for all objects of a slab that were found together.
    FreeDetached => "free_detached",
    /// Slabs that a free linked to the partial list.
    FreeAddPartial => "free_add_partial",
    /// Slabs that a free unlinked from the partial list.
    FreeRemovePartial => "free_remove_partial",
    /// Slabs from the page layer.
    AllocSlab => "alloc_slab",
    /// Slabs back to the page layer.
    FreeSlab => "free_slab",
    /// Objects asked of another node than the CPU's.
    AllocNodeMismatch => "alloc_node_mismatch",
    /// Slabs of a smaller order than wanted. Always 0: where no run of pages is left, a block of 2
    /// MiB is added, and one without a run of 32 pages is none.
    OrderFallback => "order_fallback",
    /// State words that changed under our hands.
    CmpxchgDoubleFail => "cmpxchg_double_fail",
    /// Objects moved from sheaves to slabs.
    SheafFlush => "sheaf_flush",
    /// Objects moved from slabs to sheaves.
    SheafRefill => "sheaf_refill",
    /// Objects that a refill left over and put into sheaves.
    SheafSpill => "sheaf_spill",
    /// Times that a CPU came to want larger sheaves.
    SheafGrow => "sheaf_grow",
    /// Times that a CPU came to want smaller sheaves.
    SheafShrink => "sheaf_shrink",
    /// Sheaves made.
    SheafAlloc => "sheaf_alloc",
    /// Sheaves given up.
    SheafFree => "sheaf_free",
    /// Full sheaves taken from a barn.
    BarnGet => "barn_get",
    /// Full sheaves wanted while the barn had none.
    BarnGetFail => "barn_get_fail",
    /// Full sheaves stored in a barn.
    BarnPut => "barn_put",
    /// Full sheaves that a barn refused.
    BarnPutFail => "barn_put_fail",
    /// Times that a node's list lock was taken.
    ListLock => "list_lock",
    /// Times that it was held by somebody else.
    ListLockWait => "list_lock_wait",
    /// Objects that wait or waited for a grace period in sheaves.
    FreeRcuSheaf => "free_rcu_sheaf",
    /// Objects for which there was no rcu sheaf.
    FreeRcuSheafFail => "free_rcu_sheaf_fail",
    /// Prefilled sheaves that were the CPU's spare.
    SheafPrefillFast => "sheaf_prefill_fast",
    /// Prefilled sheaves that were not.
    SheafPrefillSlow => "sheaf_prefill_slow",
    /// Prefilled sheaves larger than the cache's.
    SheafPrefillOversize => "sheaf_prefill_oversize",
    /// Prefilled sheaves that became the CPU's spare again.
    SheafReturnFast => "sheaf_return_fast",
    /// Prefilled sheaves that did not.
    SheafReturnSlow => "sheaf_return_slow",
}

/// Counters that a region has for each cache.
pub const STAT_SLOTS: usize = STAT_ITEMS.len();
