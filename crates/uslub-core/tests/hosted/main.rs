//! The core on a hosted platform that is not Linux: threads, objects that cross them, large
//! objects, and memory that goes back.
//!
//! This is a program of its own: its platform counts all blocks of the process.

mod platform;

use std::sync::mpsc;
use std::thread;

use platform::Hosted;
use uslub_core::args::CacheArgs;
use uslub_core::tunables::Tunables;
use uslub_core::{Allocator, Gfp};

/// Address space for objects, in bytes.
const ARENA: usize = 64 << 20;

static SLUB: Allocator<Hosted> = Allocator::new(Hosted::new());

/// A number that is an address: the objects of a channel.
struct Sent(usize);

#[test]
fn threads_allocate_and_free_on_plain_std() {
    // SAFETY: nobody else uses the allocator yet.
    assert!(unsafe { SLUB.init(ARENA, Tunables::DEFAULT) });
    let cache = SLUB.create(&CacheArgs::new("packet", 200)).expect("memory");

    let (sender, packets) = mpsc::channel::<Sent>();
    let makers: Vec<_> = (0..6u8)
        .map(|maker| {
            let sender = sender.clone();
            thread::spawn(move || {
                for _ in 0..2000 {
                    let packet = SLUB.alloc(cache, Gfp::KERNEL);
                    assert!(!packet.is_null());
                    // SAFETY: 200 bytes, ours.
                    unsafe { packet.write_bytes(maker, 200) };
                    sender.send(Sent(packet as usize)).expect("a receiver");
                    let other = SLUB.kmalloc(3000, Gfp::KERNEL | Gfp::ZERO);
                    assert!(!other.is_null());
                    // SAFETY: 3000 zeroed bytes, ours, freed once.
                    unsafe {
                        assert_eq!((other.read(), other.add(2999).read()), (0, 0));
                        SLUB.kfree(other);
                    }
                }
            })
        })
        .collect();
    drop(sender);
    let mut received = 0;
    for Sent(packet) in packets {
        let packet = packet as *mut u8;
        // SAFETY: sent by its owner, 200 bytes, freed once.
        unsafe {
            let maker = packet.read();
            assert!(maker < 6 && packet.add(199).read() == maker);
            SLUB.free(cache, packet);
        }
        received += 1;
    }
    for maker in makers {
        maker.join().expect("a maker");
    }
    assert_eq!(received, 12_000);
    assert_eq!(SLUB.info(cache).live_objs(), 0);
    SLUB.validate().expect("all structures are whole");

    // An object above 256 KiB is a mapping of its own, which goes back.
    let before = Hosted::held_bytes();
    let large = SLUB.kmalloc(5 << 20, Gfp::KERNEL);
    assert!(!large.is_null());
    assert!(Hosted::held_bytes() >= before + (5 << 20));
    // SAFETY: ours, grown and freed once.
    unsafe {
        large.write_bytes(7, 5 << 20);
        let larger = SLUB.krealloc(large, 9 << 20, Gfp::KERNEL);
        assert!(!larger.is_null());
        assert_eq!((larger.read(), larger.add((5 << 20) - 1).read()), (7, 7));
        SLUB.kfree(larger);
    }
    SLUB.trim();
    // Its records may stay.
    let after = Hosted::held_bytes();
    assert!(after < before + (1 << 20), "{after} bytes after {before}");
    SLUB.validate().expect("all structures are whole");
    assert_eq!(SLUB.platform.warnings(), 0);
}
