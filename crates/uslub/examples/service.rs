//! A small service whose whole heap is uslub, and whose sessions have a cache of their own. It
//! prints where its memory is. `.ci/musl` runs it as a static program.

use std::collections::HashMap;
use std::sync::mpsc;
use std::thread;

use uslub::{LazyCache, Object, Uslub};

#[global_allocator]
static GLOBAL: Uslub = Uslub;

struct Session {
    id: u64,
    peer: String,
}

static SESSIONS: LazyCache<Session> = LazyCache::with("session", |cache| cache.hwcache_align());

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (sender, sessions) = mpsc::channel::<Object<'static, Session>>();
    let workers: Vec<_> = (0..4u64)
        .map(|worker| {
            let sender = sender.clone();
            thread::spawn(move || {
                for n in 0..1000 {
                    let id = worker * 1000 + n;
                    let peer = format!("10.0.{worker}.{n}");
                    let session = SESSIONS.alloc(Session { id, peer }).expect("memory");
                    sender.send(session).expect("a receiver");
                }
            })
        })
        .collect();
    drop(sender);
    let known: HashMap<u64, _> = sessions.iter().map(|s| (s.id, s)).collect();
    for worker in workers {
        worker.join().expect("a worker");
    }
    assert_eq!(known.len(), 4000);
    assert!(known.values().all(|s| s.peer.starts_with("10.0.")));
    println!("{}", uslub::slabinfo());
    println!("{} bytes are in use", uslub::totals().live);
    Ok(())
}
