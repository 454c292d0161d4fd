//! Statistics, with the kernel's names.
//!
//! Each CPU counts in its own region: all layers count, `info` sums up. Counts are racy, as the
//! kernel's are.

macro_rules! items {
    ($($(#[$doc:meta])* $item:ident => $name:literal,)*) => {
        /// A counter; each cache has all of them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum StatItem {
            $($(#[$doc])* $item,)*
        }

        /// All counters, with their names in `/sys/kernel/slab/<cache>/`.
        pub const STAT_ITEMS: &[(StatItem, &str)] = &[$((StatItem::$item, $name),)*];
    };
}

items! {
    /// Objects taken from sheaves.
    AllocFastpath => "alloc_fastpath",
    /// Objects taken directly from slabs.
    AllocSlowpath => "alloc_slowpath",
    /// Objects put into sheaves.
    FreeFastpath => "free_fastpath",
    /// Objects freed directly to slabs.
    FreeSlowpath => "free_slowpath",
    /// Updates of slabs by direct frees: one for all objects of one slab that a call finds
    /// together.
    FreeDetached => "free_detached",
    /// Slabs that a free added to the partial list.
    FreeAddPartial => "free_add_partial",
    /// Slabs that a free removed from the partial list.
    FreeRemovePartial => "free_remove_partial",
    /// Slabs allocated from the page layer.
    AllocSlab => "alloc_slab",
    /// Slabs freed to the page layer.
    FreeSlab => "free_slab",
    /// Objects requested from another node than the CPU's.
    AllocNodeMismatch => "alloc_node_mismatch",
    /// Slabs of a smaller order than requested. Always 0: without a free run of this order the
    /// arena grows by a 2 MiB block, which has runs of every order.
    OrderFallback => "order_fallback",
    /// Failed compare-and-swaps of slab states.
    CmpxchgDoubleFail => "cmpxchg_double_fail",
    /// Objects moved from sheaves to slabs.
    SheafFlush => "sheaf_flush",
    /// Objects moved from slabs to sheaves.
    SheafRefill => "sheaf_refill",
    /// Objects left over from a refill and put into sheaves.
    SheafSpill => "sheaf_spill",
    /// Times that a CPU raised its target sheaf capacity.
    SheafGrow => "sheaf_grow",
    /// Times that a CPU lowered its target sheaf capacity.
    SheafShrink => "sheaf_shrink",
    /// Sheaves allocated.
    SheafAlloc => "sheaf_alloc",
    /// Sheaves freed.
    SheafFree => "sheaf_free",
    /// Full sheaves taken from a barn.
    BarnGet => "barn_get",
    /// Requests for a full sheaf that a barn could not serve.
    BarnGetFail => "barn_get_fail",
    /// Full sheaves stored in a barn.
    BarnPut => "barn_put",
    /// Full sheaves that a barn rejected.
    BarnPutFail => "barn_put_fail",
    /// Times that a node's list lock was taken.
    ListLock => "list_lock",
    /// Times that another thread held the list lock.
    ListLockWait => "list_lock_wait",
    /// Objects put into rcu sheaves, to wait for a grace period.
    FreeRcuSheaf => "free_rcu_sheaf",
    /// Objects freed after a grace period without an rcu sheaf.
    FreeRcuSheafFail => "free_rcu_sheaf_fail",
    /// Prefilled sheaves taken from the CPU's spare.
    SheafPrefillFast => "sheaf_prefill_fast",
    /// Prefilled sheaves taken from elsewhere.
    SheafPrefillSlow => "sheaf_prefill_slow",
    /// Prefilled sheaves larger than the cache's sheaves.
    SheafPrefillOversize => "sheaf_prefill_oversize",
    /// Prefilled sheaves returned as the CPU's spare.
    SheafReturnFast => "sheaf_return_fast",
    /// Prefilled sheaves returned in another way.
    SheafReturnSlow => "sheaf_return_slow",
}

/// Number of counters per cache in a region.
pub const STAT_SLOTS: usize = STAT_ITEMS.len();
