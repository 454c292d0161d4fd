//! The whole program on uslub.

mod support;

use std::alloc::{GlobalAlloc, Layout};
use std::collections::HashMap;
use std::thread;

use support::{assert_fatal, in_child};
use uslub::{Cache, Object, Uslub, totals, trim};

#[global_allocator]
static GLOBAL: Uslub = Uslub;

#[test]
fn collections_live_on_it() {
    let before = totals().live;
    let map: HashMap<_, _> = (0..10_000u32).map(|n| (n, n.to_string())).collect();
    assert!(totals().live > before + 10_000 * 24);
    assert!((0..10_000).all(|n| map[&n] == n.to_string()));
}

#[test]
fn layouts_are_met_exactly() {
    for shift in 0..=16 {
        let align = 1 << shift;
        for size in [
            1, 7, 8, 9, 16, 24, 40, 100, 1000, 4096, 5000, 8192, 8193, 300_000,
        ] {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: used within their layouts, freed once.
            unsafe {
                let zeroed = GLOBAL.alloc_zeroed(layout);
                let mut object = GLOBAL.alloc(layout);
                assert_eq!((zeroed as usize % align, object as usize % align), (0, 0));
                assert!((0..size).all(|i| *zeroed.add(i) == 0));
                object.write_bytes(0x5a, size);
                GLOBAL.dealloc(zeroed, layout);
                let mut now = layout;
                for new in [size * 2, size + 1, size / 2 + 1, 1, 6, 20_000, size] {
                    object = GLOBAL.realloc(object, now, new);
                    assert_eq!(object as usize % align, 0, "{size} to {new} at {align}");
                    let kept = now.size().min(new).min(size.min(1));
                    assert!((0..kept).all(|i| *object.add(i) == 0x5a));
                    now = Layout::from_size_align(new, align).unwrap();
                }
                GLOBAL.dealloc(object, now);
            }
        }
    }
}

#[test]
fn realloc_keeps_what_was_there() {
    for align in [1, 16, 64, 4096] {
        let mut layout = Layout::from_size_align(8, align).unwrap();
        // SAFETY: used within its layout, freed once.
        unsafe {
            let mut object = GLOBAL.alloc(layout);
            object.write_bytes(1, 8);
            for shift in 3..22 {
                let new = 1usize << (shift + 1);
                object = GLOBAL.realloc(object, layout, new);
                layout = Layout::from_size_align(new, align).unwrap();
                assert!(
                    (0..new / 2).all(|i| *object.add(i) == 1),
                    "{new} at {align}"
                );
                object.write_bytes(1, new);
            }
            GLOBAL.dealloc(object, layout);
        }
    }
}

#[test]
fn caches_readers_and_constructors_may_use_the_heap() {
    let cache = Cache::builder("built")
        .constructor(|| "x".repeat(100).len())
        .build();
    let cache = cache.unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let object = cache.alloc_constructed().unwrap();
                    assert_eq!(*object, 100);
                    Object::free_rcu(object);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..20 {
                trim();
                println!("{}", uslub::slabinfo().to_string().len());
                uslub::rcu_barrier();
            }
        });
    });
    uslub::rcu_barrier();
    assert_eq!(cache.destroy(), Ok(()));
}

#[test]
fn children_of_a_fork_go_on() {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    for n in 0..20_000 {
                        drop(vec![n; n % 5000]);
                    }
                })
            })
            .collect();
        for _ in 0..20 {
            // SAFETY: the child allocates, frees and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                for n in 0..2000 {
                    drop(vec![n; n]);
                }
                // SAFETY: the end.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: our child.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_double_free_of_a_box_ends_the_process() {
    let Some(output) = in_child("a_double_free_of_a_box_ends_the_process") else {
        let object = Box::into_raw(Box::new([0u8; 2000]));
        // SAFETY: not the second time, which is what is tested.
        unsafe {
            drop(Box::from_raw(object));
            drop(Box::from_raw(object));
        }
        trim();
        return;
    };
    assert_fatal(&output, &["cache 'kmalloc-2", "double free"]);
}

#[test]
fn a_layout_of_fewer_bytes_frees_the_object_as_what_it_is() {
    let layout = |size, align| Layout::from_size_align(size, align).unwrap();
    for (size, wrong) in [(100, 8), (20_000, 16), (400_000, 1)] {
        let before = totals();
        // SAFETY: live, and freed once; only the layout is not what it was.
        unsafe {
            let object = GLOBAL.alloc(layout(size, 8));
            object.write_bytes(7, size);
            GLOBAL.dealloc(object, layout(wrong, 64));
        }
        let now = totals();
        assert!(now.frees > before.frees, "nobody saw, and it is freed");
    }
}
