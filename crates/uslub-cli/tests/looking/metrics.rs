//! `uslub metrics`: the text is OpenMetrics, a collector can scrape it, and a process's own text has
//! the same figures.

use crate::inspected::{Paused, has_cc, library, preloaded, said, uslub};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The samples of a text, by name and labels; fails where it breaks OpenMetrics' grammar.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let body = text.strip_suffix("# EOF\n").expect("the end mark");
    let is_name = |name: &str| {
        !name.is_empty()
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
            && !name.starts_with(|c: char| c.is_ascii_digit())
    };
    let (mut samples, mut families) = (BTreeMap::new(), BTreeSet::new());
    let (mut family, mut kind) = (String::new(), String::new());
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let words: Vec<_> = rest.splitn(3, ' ').collect();
            let [what, name, value] = words[..] else {
                panic!("a line with too few words: {line}");
            };
            assert!(is_name(name), "{line}");
            match what {
                "TYPE" => {
                    assert!(matches!(value, "gauge" | "counter" | "info"), "{line}");
                    assert!(families.insert(name.to_owned()), "a family twice: {line}");
                    (family, kind) = (name.to_owned(), value.to_owned());
                }
                "UNIT" => assert!(name.ends_with(&format!("_{value}")), "{line}"),
                "HELP" => assert!(!value.is_empty()),
                _ => panic!("{line}"),
            }
            assert_eq!(name, family, "families are not mixed: {line}");
            continue;
        }
        let (name, rest) = line.split_once('{').expect("labels");
        let suffix = match kind.as_str() {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        assert_eq!(name, format!("{family}{suffix}"), "{line}");
        let (labels, value) = rest.rsplit_once("} ").expect("a value");
        for label in labels.split("\",") {
            let (key, value) = label.split_once("=\"").expect("a quoted value");
            assert!(is_name(key) && !value.contains('\n'), "{line}");
        }
        let value: f64 = value.parse().expect("a number");
        assert!(value >= 0.0, "{line}");
        let sample = line.rsplit_once(' ').expect("a value").0.to_owned();
        assert!(samples.insert(sample, value).is_none(), "twice: {line}");
    }
    samples
}

#[test]
fn the_text_of_several_processes_is_openmetrics() {
    let folder = tempfile::tempdir().expect("a folder");
    let (Some(one), Some(two)) = (preloaded(&folder), preloaded(&folder)) else {
        return;
    };
    let samples = parse(&said(&["metrics", &one.pid(), &two.pid(), "--once"]));
    for pid in [one.pid(), two.pid()] {
        let labels = format!("pid=\"{pid}\",face=\"malloc\"");
        let live = format!("uslub_cache_objects{{{labels},cache=\"kmalloc-368\",state=\"live\"}}");
        assert_eq!(samples[&live], 2000.0);
        let large = format!("uslub_large_bytes{{{labels}}}");
        assert_eq!(samples[&large], one.own("large bytes") as f64);
        let resident = samples
            .iter()
            .filter(|(name, _)| name.starts_with(&format!("uslub_resident_bytes{{pid=\"{pid}\",")));
        let resident: f64 = resident.map(|(_, bytes)| bytes).sum();
        assert!(resident > 1e6, "{resident}");
    }
}

/// A server of the command, and its port.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(pid: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_uslub"))
            .args(["metrics", pid, "--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command can be started");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let line = lines.next().expect("a line").expect("UTF-8");
        let port = line
            .strip_suffix("/metrics")
            .and_then(|l| l.rsplit(':').next());
        let port = port.and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("no port: {line}"));
        // What else it says is not wanted; the pipe stays open.
        std::thread::spawn(move || lines.count());
        Self { child, port }
    }

    /// The answer to a request: head and body.
    fn answer(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        // A server that refuses early may close before it has read everything.
        let _ = stream.write_all(request.as_bytes());
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        let text = String::from_utf8(text).expect("UTF-8");
        let (head, body) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("{text}"));
        (head.to_owned(), body.to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_collector_scrapes_until_the_process_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(paused) = preloaded(&folder) else {
        return;
    };
    let pid = paused.pid();
    let mut server = Server::start(&pid);
    let host = format!("Host: 127.0.0.1:{}\r\n", server.port);
    let get = format!("GET /metrics HTTP/1.1\r\n{host}\r\n");
    let (head, body) = server.answer(&get);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("Content-Type: application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    assert!(
        head.contains(&format!("Content-Length: {}\r\n", body.len())),
        "{head}"
    );
    assert_eq!(parse(&body), parse(&said(&["metrics", &pid])));

    let (head, body) = server.answer(&format!("HEAD /metrics HTTP/1.1\r\n{host}\r\n"));
    assert!(
        head.starts_with("HTTP/1.1 200") && body.is_empty(),
        "{head}{body}"
    );
    for (request, status) in [
        ("GET /other HTTP/1.1\r\n\r\n".to_owned(), "404"),
        ("DELETE /metrics HTTP/1.1\r\n\r\n".to_owned(), "405"),
        (
            "GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(),
            "403",
        ),
        ("what\r\n\r\n".to_owned(), "400"),
        (
            format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000)),
            "431",
        ),
    ] {
        let (head, body) = server.answer(&request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert!(!body.contains("uslub_"), "{body}");
    }
    // A client that says nothing, or goes away, keeps no other one out for long.
    let silent = TcpStream::connect(("127.0.0.1", server.port)).expect("a connection");
    let gone = TcpStream::connect(("127.0.0.1", server.port)).expect("a connection");
    gone.shutdown(Shutdown::Both).expect("an end");
    let begin = Instant::now();
    assert!(server.answer(&get).0.starts_with("HTTP/1.1 200"));
    assert!(begin.elapsed() < Duration::from_secs(30));
    drop(silent);

    drop(paused);
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = server.child.try_wait().expect("a child") {
            break status;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "the server goes on"
        );
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(status.code(), Some(0));
}

/// Scrapes of which the quickest counts: other programs use the machine too.
const SCRAPES: usize = 50;
/// Longer than the time for which the server answers with the same text.
const NEW_LOOK: Duration = Duration::from_millis(110);

#[test]
fn a_scrape_takes_two_milliseconds_at_most() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(paused) = preloaded(&folder) else {
        return;
    };
    let server = Server::start(&paused.pid());
    let get = format!(
        "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n",
        server.port
    );
    let scrape = |_| {
        std::thread::sleep(NEW_LOOK);
        let begin = Instant::now();
        let (head, body) = server.answer(&get);
        let took = begin.elapsed();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(body.ends_with("# EOF\n"), "{body}");
        took
    };
    let quickest = (0..SCRAPES).map(scrape).min().expect("scrapes");
    // A build without optimization takes five to ten times as long.
    let most = Duration::from_millis(if cfg!(debug_assertions) { 40 } else { 2 });
    assert!(quickest <= most, "{quickest:?}");
    eprintln!("the quickest of {SCRAPES} scrapes took {quickest:?}");
}

#[test]
fn wrong_addresses_are_refused() {
    let refused = |arguments: &[&str], code: i32, word: &str| {
        let output = uslub(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(word), "'{word}' is missing: {error}");
    };
    refused(
        &["metrics", "1", "--listen", "0.0.0.0:9464"],
        2,
        "by other machines",
    );
    refused(
        &["metrics", "1", "--listen", "[::]:9464"],
        2,
        "use 127.0.0.1:9464",
    );
    refused(
        &["metrics", "1", "--listen", "9464"],
        2,
        "'9464' is no address",
    );
    refused(
        &["metrics", "8388608", "--listen", "127.0.0.1:0"],
        127,
        "no process",
    );
    refused(&["metrics"], 2, "PID|FILE");
    let folder = tempfile::tempdir().expect("a folder");
    let Some(paused) = preloaded(&folder) else {
        return;
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    refused(
        &["metrics", &paused.pid(), "--listen", &address],
        125,
        "cannot listen on",
    );
}

#[test]
fn a_process_writes_the_same_figures_itself() {
    // The example keeps objects of several caches, prints its own text, and waits.
    let built = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--package",
            "uslub",
            "--example",
            "metrics",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("LD_PRELOAD")
        .status();
    assert!(
        built.is_ok_and(|status| status.success()),
        "the example is not built"
    );
    let target = std::path::Path::new(env!("CARGO_BIN_EXE_uslub"));
    let target = target.parent().expect("a folder").join("examples/metrics");
    let paused = Paused::start(Command::new(target).arg("wait")).at_rest();
    let own = parse(&(paused.lines.join("\n") + "\n"));
    let seen = parse(&said(&["metrics", &paused.pid()]));
    let is_rust = |name: &str| name.contains("face=\"rust\"");
    let seen: BTreeMap<_, _> = seen.into_iter().filter(|(name, _)| is_rust(name)).collect();
    assert_eq!(own.len(), 15, "{own:?}");
    assert_eq!(own, seen);
}

#[test]
fn the_c_librarys_totals_are_those_of_the_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = r#"
        #include <stdio.h>
        #include <uslub.h>
        int main(void)
        {
            struct uslub_cache_args args = { .size = 200 };
            struct uslub_cache *cache = uslub_cache_create("nodes", &args);
            setvbuf(stdin, NULL, _IONBF, 0);
            void *last = NULL;
            for (int i = 0; i < 1000; i++)
                last = uslub_cache_alloc(cache, USLUB_GFP_KERNEL);
            unsigned used, slots;
            if (uslub_slab_use(last, &used, &slots))
                return 1;
            printf("used = %u\nslots = %u\nobject = %zu\nready\n", used, slots, (size_t)last);
            fflush(stdout);
            getchar();
            return 0;
        }
    "#;
    let installed = folder.path().join("libuslub.so.0");
    let built = library("uslub-capi", "libuslub_capi.so");
    std::fs::copy(built, &installed).expect("a copy");
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../uslub-capi/include");
    let program = folder.path().join("nodes");
    let flags = ["-I", include, crate::support::text(&installed)];
    if !crate::support::compile(source, &flags, &program) {
        assert!(!has_cc(), "the program does not compile");
        return;
    }
    let paused =
        Paused::start(Command::new(&program).env("LD_LIBRARY_PATH", folder.path())).at_rest();
    let samples = parse(&said(&["metrics", &paused.pid()]));
    let live = samples
        .iter()
        .find(|(name, _)| name.contains("face=\"c\",cache=\"nodes\",state=\"live\""));
    assert_eq!(live.map(|(_, live)| *live), Some(1000.0));
    // The slab's use, from inside and from outside.
    let address = format!("{:#x}", paused.own("object"));
    let text = said(&["explain", &paused.pid(), &address]);
    let line = format!(
        "{} of {} slots in use",
        paused.own("used"),
        paused.own("slots")
    );
    assert!(text.contains(&line), "'{line}' is missing: {text}");
}
