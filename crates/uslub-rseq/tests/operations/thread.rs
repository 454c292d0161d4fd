//! An area that the kernel does not know, for this thread.

use std::arch::asm;
use std::ptr::addr_of;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use uslub_rseq::{Area, Index};

/// The fields of an area.
#[repr(C, align(32))]
struct Fields {
    cpu_id_start: u32,
    cpu_id: u32,
    descriptor: u64,
    flags: u32,
    node_id: u32,
    mm_cid: u32,
    padding: u32,
}

/// Held for reading by who runs sequences, for writing by who changes their code.
pub static CODE: RwLock<()> = RwLock::new(());

/// The area; for the thread that made it only.
pub struct OwnArea {
    fields: Box<Fields>,
    _code: Option<RwLockReadGuard<'static, ()>>,
}

impl OwnArea {
    /// As if the kernel had registered it, on CPU 3 with concurrency id 1.
    pub fn registered() -> Self {
        Self::shared(3)
    }

    /// The same, for who holds [`CODE`] for writing.
    #[cfg(target_arch = "aarch64")]
    pub fn registered_alone() -> Self {
        Self::new(3, None)
    }

    /// As if the kernel had not registered it.
    pub fn unregistered() -> Self {
        Self::shared(u32::MAX)
    }

    fn shared(cpu_id: u32) -> Self {
        let code = CODE.read().unwrap_or_else(PoisonError::into_inner);
        Self::new(cpu_id, Some(code))
    }

    fn new(cpu_id: u32, code: Option<RwLockReadGuard<'static, ()>>) -> Self {
        let fields = Box::new(Fields {
            cpu_id_start: 0,
            cpu_id,
            descriptor: 0,
            flags: 0,
            node_id: 0,
            mm_cid: 1,
            padding: 0,
        });
        Self {
            fields,
            _code: code,
        }
    }

    /// Where operations find it.
    pub fn area(&self) -> Area {
        let offset = (addr_of!(*self.fields) as isize).wrapping_sub(thread_pointer() as isize);
        Area {
            offset,
            index_offset: offset + std::mem::offset_of!(Fields, mm_cid) as isize,
            index: Index::MmCid,
            own: true,
        }
    }

    /// The descriptor that was published last; 0 for none.
    pub fn descriptor(&self) -> u64 {
        // SAFETY: ours; volatile, as the operations write it unseen by the compiler.
        unsafe { addr_of!(self.fields.descriptor).read_volatile() }
    }
}

fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register, or the word in which the thread's control block has its own
    // address.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, preserves_flags, readonly));
        #[cfg(target_arch = "aarch64")]
        asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, nomem));
    }
    pointer
}
