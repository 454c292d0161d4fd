//! Damaged memory: the reader ends, and never panics.

mod support;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use support::World;
use uslub_inspect::memory::{Fault, Map, PAGE};
use uslub_inspect::{Depth, Heap, Memory, Process, holders, root};

type Pages = BTreeMap<u64, Vec<u8>>;

/// Remembers each page that is read.
struct Recorder {
    process: Process,
    pages: RefCell<Pages>,
}

impl Memory for Recorder {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Fault> {
        for page in at / PAGE..(at + to.len() as u64).div_ceil(PAGE) {
            let mut bytes = vec![0; PAGE as usize];
            if self.process.read(page * PAGE, &mut bytes).is_ok() {
                self.pages.borrow_mut().insert(page, bytes);
            }
        }
        self.process.read(at, to)
    }

    fn maps(&self) -> &[Map] {
        self.process.maps()
    }

    fn touched(&self, range: Range<u64>) -> Option<Range<u64>> {
        self.process.touched(range)
    }
}

/// A few pages of memory, with damage.
#[derive(Clone)]
struct Image {
    pages: Pages,
    maps: Vec<Map>,
}

impl Image {
    fn of(pages: Pages) -> Self {
        let map = |&page: &u64| Map {
            range: page * PAGE..(page + 1) * PAGE,
            writable: true,
            offset: 1,
            name: String::new(),
        };
        let mut maps: Vec<Map> = Vec::new();
        for map in pages.keys().map(map) {
            match maps.last_mut() {
                Some(last) if last.range.end == map.range.start => last.range.end = map.range.end,
                _ => maps.push(map),
            }
        }
        Self { pages, maps }
    }
}

impl Memory for Image {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < to.len() {
            let at = at.checked_add(done as u64).ok_or(Fault)?;
            let page = self.pages.get(&(at / PAGE)).ok_or(Fault)?;
            let from = (at % PAGE) as usize;
            let n = (to.len() - done).min(PAGE as usize - from);
            to[done..done + n].copy_from_slice(&page[from..from + n]);
            done += n;
        }
        Ok(())
    }

    fn maps(&self) -> &[Map] {
        &self.maps
    }
}

/// Everything that a reader can do.
fn read_all(memory: &dyn Memory, root: u64, addresses: &[u64]) -> u64 {
    let Ok(root) = root::at(memory, root) else {
        return 0;
    };
    let Ok(mut heap) = Heap::open(memory, root) else {
        return 0;
    };
    let mut live = 0;
    for depth in [Depth::Light, Depth::Full] {
        if let Ok(look) = heap.look(depth) {
            live = look.live_bytes().wrapping_add(look.free_bytes());
        }
    }
    for cache in heap.caches().0.iter().take(8) {
        let mut slots = 0;
        heap.for_each_slot(cache, |_, _| {
            slots += 1;
            slots < 20_000
        });
    }
    for &at in addresses {
        let _ = heap.explain(at);
    }
    live
}

/// Words that point to objects, in memory that may be damaged; the number of those that hold one.
fn search(memory: &dyn Memory, root: u64, addresses: &[u64]) -> usize {
    let heap = root::at(memory, root).and_then(|root| Heap::open(memory, root));
    let Ok(heap) = heap else {
        return 0;
    };
    let heaps = [heap];
    let words = addresses.iter().flat_map(|&at| {
        let found = holders::find(memory, &heaps, at..at.saturating_add(24), 1000);
        assert!(found.words.len() <= 1000);
        found.words
    });
    words.filter(|word| word.place.holds()).count()
}

fn image() -> (Image, u64, Vec<u64>) {
    let mut world = World::new(3, &[0]);
    (0..500).for_each(|_| world.step());
    let recorder = Recorder {
        process: World::process(),
        pages: RefCell::default(),
    };
    let mut addresses: Vec<_> = world.live.keys().copied().step_by(101).take(5).collect();
    addresses.extend(world.large.iter().take(2));
    let live = read_all(&recorder, world.root_address(), &addresses);
    assert!(live > 0);
    let image = Image::of(recorder.pages.into_inner());
    // Without damage the image says the same.
    assert_eq!(read_all(&image, world.root_address(), &addresses), live);
    (image, world.root_address(), addresses)
}

/// A damaged word: which page, where in it, and its new value.
fn damage() -> impl Strategy<Value = (usize, usize, u64)> {
    let value = prop_oneof![
        Just(0),
        Just(u64::MAX),
        Just(1 << 47),
        Just(0x7fff_ffff_f000),
        any::<u64>(),
        (0_u64..64).prop_map(|n| n),
        (0_u32..64).prop_map(|bit| 1 << bit),
    ];
    (any::<prop::sample::Index>(), 0_usize..512, value)
        .prop_map(|(page, at, value)| (page.index(1 << 20), at * 8, value))
}

#[test]
fn damaged_memory_ends_the_walk_and_never_panics() {
    let (image, root, addresses) = image();
    let count = image.pages.len();
    let damages = prop::collection::vec((damage(), any::<bool>()), 1..32);
    proptest!(ProptestConfig::with_cases(40), |(damages in damages)| {
        let mut image = image.clone();
        for ((page, at, value), only_a_byte) in damages {
            let page = image.pages.values_mut().nth(page % count).expect("a page");
            let bytes = value.to_le_bytes();
            let n = if only_a_byte { 1 } else { 8 };
            page[at..at + n].copy_from_slice(&bytes[..n]);
        }
        let begin = Instant::now();
        read_all(&image, root, &addresses);
        search(&image, root, &addresses[..2]);
        prop_assert!(begin.elapsed() < Duration::from_secs(10));
    });
}

#[test]
fn memory_with_missing_pages_never_panics() {
    let (image, root, addresses) = image();
    let pages: Vec<_> = image.pages.keys().copied().collect();
    for missing in pages.into_iter().step_by(11) {
        let mut pages = image.pages.clone();
        pages.remove(&missing);
        let image = Image::of(pages);
        read_all(&image, root, &addresses);
        search(&image, root, &addresses[..2]);
    }
}
