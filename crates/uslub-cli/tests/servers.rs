//! The bridge of servers: the parts of `uslub info` add up to the kernel's VmRSS within a page.

mod inspected;
mod support;

use inspected::{Paused, json, library, number};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Tells the test to be the server.
const ROLE: &str = "USLUB_TEST_IS_SERVER";
/// Threads of the server.
const WORKERS: usize = 4;

type Store = Mutex<HashMap<String, Vec<u8>>>;

/// Answers lines `set KEY BYTES` and `del KEY` until the connection closes.
fn answer(stream: TcpStream, store: &Store) -> std::io::Result<()> {
    let mut out = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let words: Vec<_> = line.split(' ').collect();
        let mut store = store.lock().expect("the store");
        match words[..] {
            ["set", key, bytes] => {
                let value = vec![7; bytes.parse().expect("a number")];
                store.insert(key.to_owned(), value);
            }
            ["del", key] => drop(store.remove(key)),
            _ => {}
        }
        // In one write: two would wait for each other's acknowledgement.
        out.write_all(format!("{}\n", store.len()).as_bytes())?;
    }
    Ok(())
}

/// A server with threads, which waits for its standard input to end.
fn serve() {
    let listener = Arc::new(TcpListener::bind("127.0.0.1:0").expect("a port"));
    let store = Arc::new(Store::default());
    let port = listener.local_addr().expect("an address").port();
    for _ in 0..WORKERS {
        let (listener, store) = (Arc::clone(&listener), Arc::clone(&store));
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let _ = answer(stream, &store);
            }
        });
    }
    println!("\nport = {port}\nready");
    let _ = std::io::stdin().read(&mut [0]);
}

/// Checks that the parts add up to what the kernel counts; prints the figures.
fn check(paused: &Paused, pid: &str, name: &str) {
    let resident = || -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
        let line = status.lines().find(|line| line.starts_with("VmRSS"));
        let digits: String = line
            .unwrap_or("")
            .chars()
            .filter(char::is_ascii_digit)
            .collect();
        digits.parse::<u64>().expect("a number") * 1024
    };
    let begin = Instant::now();
    let mut last = (0, 0);
    while begin.elapsed() < Duration::from_secs(30) {
        let before = resident();
        let look = json(pid);
        let after = resident();
        let bridge = look["resident"].as_object().expect("a bridge");
        let parts = bridge.iter().filter(|(name, _)| *name != "total_bytes");
        let sum: u64 = parts.map(|(_, bytes)| number(bytes)).sum();
        assert_eq!(sum, number(&bridge["total_bytes"]));
        let live = number(&bridge["live_bytes"]);
        assert!(live > 1 << 20, "{live}");
        last = (sum, before);
        // A server that works between the two readings is read again.
        if before == after && sum.abs_diff(before) <= 4096 {
            println!("{name}: parts {sum}, VmRSS {before}, live {live}");
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    let (sum, before) = last;
    panic!("{name} {}: parts {sum}, VmRSS {before}", paused.pid());
}

/// Sends lines from some connections at a time.
fn load(port: u64) {
    let clients = (0..WORKERS).map(|client| {
        thread::spawn(move || {
            let stream = TcpStream::connect(("127.0.0.1", port as u16)).expect("a connection");
            stream.set_nodelay(true).expect("an option");
            let mut out = stream.try_clone().expect("a copy");
            let mut lines = BufReader::new(stream).lines();
            for n in 0..1500 {
                let line = match n % 3 {
                    2 => format!("del key-{client}-{}\n", n - 2),
                    _ => format!("set key-{client}-{n} {}\n", 400 + n % 700),
                };
                out.write_all(line.as_bytes()).expect("a line");
                lines.next().expect("an answer").expect("UTF-8");
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    for client in clients {
        client.join().expect("the client");
    }
}

#[test]
fn the_bridge_of_a_rust_server_adds_up() {
    if std::env::var_os(ROLE).is_some() {
        return serve();
    }
    let library = library("uslub-malloc", "libuslub_malloc.so");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args([
            "--exact",
            "the_bridge_of_a_rust_server_adds_up",
            "--nocapture",
        ])
        .env(ROLE, "1")
        .env("LD_PRELOAD", library);
    let server = Paused::start(&mut command);
    load(server.own("port"));
    check(&server, &server.pid(), "Rust server");
}

#[test]
fn the_bridge_of_redis_adds_up() {
    let is_there = |name| Command::new(name).arg("--version").output().is_ok();
    if !["redis-server", "redis-benchmark"]
        .into_iter()
        .all(is_there)
    {
        eprintln!("skipped: 'redis-server' is absent");
        return;
    }
    let library = library("uslub-malloc", "libuslub_malloc.so");
    // A free port, which another program may take before redis does.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    let port = port.expect("a port").port().to_string();
    let mut command = Command::new("redis-server");
    command
        .args(["--port", &port, "--save", "", "--bind", "127.0.0.1"])
        .env("LD_PRELOAD", library)
        .stdout(Stdio::null());
    let child = command.spawn().expect("redis-server");
    let redis = Paused {
        child,
        lines: Vec::new(),
    };
    let begin = Instant::now();
    while TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "redis does not start"
        );
        thread::sleep(Duration::from_millis(20));
    }
    let words = [
        "-p", &port, "-q", "-n", "30000", "-r", "20000", "-d", "300", "-t", "set",
    ];
    let loaded = Command::new("redis-benchmark").args(words).output();
    assert!(loaded.expect("redis-benchmark").status.success());
    check(&redis, &redis.pid(), "redis");
}
