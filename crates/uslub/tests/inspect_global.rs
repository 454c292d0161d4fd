//! A program whose heap is uslub, read from outside.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use uslub::Uslub;
use uslub_inspect::{Depth, Heap, Process, root};

#[global_allocator]
static GLOBAL: Uslub = Uslub;

/// Tells the test to be the program that is read.
const ROLE: &str = "USLUB_TEST_IS_READ";

/// Holds objects, prints its own figures without allocating, and waits.
fn be_read() {
    let kept: Vec<Box<[u8; 1100]>> = (0..500).map(|_| Box::new([7; 1100])).collect();
    let mut line = [0; 256];
    // Makes the buffers of both streams before the figures are taken.
    println!("begin");
    let mut stdin = std::io::stdin().lock();
    let _ = stdin.read(&mut [0]);
    let t = uslub::totals();
    let mut rest = &mut line[..];
    let _ = writeln!(rest, "own {} {} {} {}", t.live, t.cached, t.free, t.large);
    let _ = std::io::stdout().write_all(&line);
    let _ = std::io::stdout().flush();
    let _ = stdin.read(&mut [0]);
    drop(kept);
}

#[test]
fn the_global_allocator_is_read_exactly() {
    if env::var_os(ROLE).is_some() {
        return be_read();
    }
    let mut child = Command::new(env::current_exe().expect("this program"))
        .args([
            "--exact",
            "the_global_allocator_is_read_exactly",
            "--nocapture",
        ])
        .env(ROLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program can be started");
    let mut to_child = child.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut line = |begin: &str| {
        let mut lines = lines.by_ref().map_while(Result::ok);
        lines
            .find(|line| line.starts_with(begin))
            .expect("the line")
    };
    line("begin");
    to_child.write_all(b"x").expect("a byte");
    let own = line("own");
    let own: Vec<u64> = own
        .split(' ')
        .skip(1)
        .map(|n| n.parse().expect("a number"))
        .collect();

    let process = Process::open(child.id() as i32).expect("a child may be read");
    let root = root::find(&process).expect("its note").remove(0);
    assert_eq!(root.face, "rust");
    let mut heap = Heap::open(&process, root).expect("its heap");
    let look = heap.look(Depth::Full).expect("a look");
    let figures = [
        look.live_bytes(),
        look.cached_bytes(),
        look.free_bytes(),
        look.pages.large * 4096,
    ];
    assert_eq!(figures[..], own[..]);
    let mut rows = look
        .rows
        .iter()
        .filter(|row| (1100..1200).contains(&row.cache.size));
    let row = rows.next().expect("the class of the boxes");
    assert!(
        row.live().is_some_and(|live| (500..510).contains(&live)),
        "{row:?}"
    );
    drop(to_child);
    child.wait().expect("the child ends");
}
