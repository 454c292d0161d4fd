//! Prints what a look at a process sees: `look PID`.
use uslub_inspect::{Depth, Heap, Process, root};
fn main() {
    let pid = std::env::args().nth(1).unwrap().parse().unwrap();
    let process = Process::open(pid).unwrap();
    for root in root::find(&process).unwrap() {
        println!("{} {} {}", root.face, root.version, root.file);
        let mut heap = Heap::open(&process, root).unwrap();
        for depth in [Depth::Light, Depth::Full] {
            let s = heap.look(depth).unwrap();
            println!(
                "{:?} {:?} {:?} looks {} damaged {}",
                depth, s.took, s.pages, s.looks, s.damaged
            );
            if depth == Depth::Full {
                for r in &s.rows {
                    println!(
                        "{:20} live {:?} cached {} free {:?} slabs {} calls {:?} ~{}",
                        r.cache.name,
                        r.live(),
                        r.cached,
                        r.free(),
                        r.slabs,
                        r.calls,
                        r.uncertain
                    );
                }
                println!(
                    "live {} cached {} free {}",
                    s.live_bytes(),
                    s.cached_bytes(),
                    s.free_bytes()
                );
            }
        }
    }
}
