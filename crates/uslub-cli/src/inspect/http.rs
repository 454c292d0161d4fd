//! A small HTTP server for one page, on loopback only.
//!
//! | limit | value |
//! |---|---|
//! | addresses | 127.0.0.0/8 and ::1 |
//! | connections at a time | 1; others wait |
//! | bytes and headers of a request | 8 KiB, 64 |
//! | time for a request, and for its answer | 2 s each |
//! | methods, paths | GET and HEAD of `/metrics` and `/` |
//! | `Host` | a loopback address or `localhost` |
//!
//! The last limit keeps web pages of other hosts out: a page may give its own name the address
//! 127.0.0.1, and then reads what a server there answers.

use crate::failure::Failure;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Bytes of a request, at most.
const REQUEST_MAX: usize = 8 << 10;
/// Headers of a request, at most.
const HEADERS_MAX: usize = 64;
/// Time for a request, and for its answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Milliseconds between two checks whether the server is still needed.
const CHECK_MS: u16 = 500;

/// The address that a word stands for.
pub fn address(word: &str) -> Result<SocketAddr, Failure> {
    let with_port = |port: &str| {
        let port = port.parse().ok()?;
        Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port))
    };
    let address = match word.strip_prefix("localhost:") {
        Some(port) => with_port(port),
        None => word.parse().ok(),
    };
    let Some(address) = address else {
        return Err(Failure::usage(
            format!("'{word}' is no address with a port"),
            "write it as 127.0.0.1:9464, [::1]:9464 or localhost:9464",
        ));
    };
    if !address.ip().is_loopback() {
        return Err(Failure::usage(
            format!(
                "'{word}' can be reached by other machines, and this server asks nobody who they are"
            ),
            "use 127.0.0.1:9464 or [::1]:9464; for other machines, put a proxy that checks them before it",
        ));
    }
    Ok(address)
}

/// Answers requests with what `page` returns, until `is_done`.
pub fn serve(
    address: SocketAddr,
    mut page: impl FnMut() -> Result<String, Failure>,
    is_done: impl Fn() -> bool,
) -> Result<(), Failure> {
    let refused = |error: io::Error| {
        Failure::ours(
            format!("cannot listen on {address}: {error}"),
            "choose another port: --listen 127.0.0.1:0 takes a free one, and names it",
        )
    };
    let listener = TcpListener::bind(address).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let _ = writeln!(io::stderr(), "uslub: metrics at http://{address}/metrics");
    while !is_done() {
        let mut set = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut set, PollTimeout::from(CHECK_MS));
        if let Ok((stream, _)) = listener.accept() {
            // A client that breaks off has nobody to tell.
            let _ = answer(stream, &mut page);
        }
    }
    let _ = writeln!(io::stderr(), "uslub: the processes have ended");
    Ok(())
}

/// Reads one request and answers it.
fn answer(
    mut stream: TcpStream,
    page: &mut impl FnMut() -> Result<String, Failure>,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let (status, is_head) = request(&mut stream)?;
    let (status, body) = match status {
        Status::Good => match page() {
            Ok(text) => (status, text),
            Err(failure) => (Status::Unavailable, failure.message + "\n"),
        },
        other => (other, format!("{}\n", other.line())),
    };
    let kind = match status {
        Status::Good => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    };
    let allow = match status {
        Status::Method => "Allow: GET, HEAD\r\n",
        _ => "",
    };
    let mut text = format!(
        "HTTP/1.1 {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        status.line(),
        body.len()
    );
    if !is_head {
        text.push_str(&body);
    }
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(text.as_bytes())
}

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Good,
    Malformed,
    Host,
    Path,
    Method,
    Timeout,
    TooLong,
    Unavailable,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Self::Good => "200 OK",
            Self::Malformed => "400 Bad Request",
            Self::Host => "403 Forbidden",
            Self::Path => "404 Not Found",
            Self::Method => "405 Method Not Allowed",
            Self::Timeout => "408 Request Timeout",
            Self::TooLong => "431 Request Header Fields Too Large",
            Self::Unavailable => "503 Service Unavailable",
        }
    }
}

/// Reads a request; says how it is answered, and whether without a body.
fn request(stream: &mut TcpStream) -> io::Result<(Status, bool)> {
    let end = Instant::now() + PATIENCE;
    let mut bytes = Vec::with_capacity(REQUEST_MAX);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok((Status::Timeout, false));
        }
        stream.set_read_timeout(Some(left))?;
        let mut part = [0; 1024];
        let n = match stream.read(&mut part) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok((Status::Timeout, false));
            }
            Err(error) => return Err(error),
        };
        bytes.extend_from_slice(&part[..n]);
        if let Some(done) = parse(&bytes) {
            return Ok(done);
        }
    }
}

/// How the request in `bytes` is answered; `None` if more of it must come.
fn parse(bytes: &[u8]) -> Option<(Status, bool)> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let status = match request.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() < REQUEST_MAX => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => Status::TooLong,
        Ok(httparse::Status::Complete(length)) if length > REQUEST_MAX => Status::TooLong,
        Ok(httparse::Status::Complete(_)) => check(&request),
        Err(_) => Status::Malformed,
    };
    Some((status, request.method == Some("HEAD")))
}

fn check(request: &httparse::Request<'_, '_>) -> Status {
    let hosts = (request.headers.iter()).filter(|h| h.name.eq_ignore_ascii_case("host"));
    let path = request.path.unwrap_or("");
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    if !hosts.map(|header| header.value).all(is_local) {
        Status::Host
    } else if !matches!(request.method, Some("GET" | "HEAD")) {
        Status::Method
    } else if !matches!(path, "/metrics" | "/") {
        Status::Path
    } else {
        Status::Good
    }
}

/// Whether a `Host` names this machine by loopback.
fn is_local(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else {
        return false;
    };
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) && !name.ends_with(':') => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = |ip: IpAddr| ip.is_loopback();
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_are_taken() {
        for word in ["127.0.0.1:9464", "127.9.9.9:1", "[::1]:9464", "localhost:0"] {
            assert!(address(word).is_ok(), "{word}");
        }
        for word in ["0.0.0.0:9464", "[::]:9464", "192.168.1.1:80", "[::2]:1"] {
            let failure = address(word).unwrap_err();
            assert!(failure.message.contains("other machines"), "{word}");
        }
        for word in [
            "",
            "9464",
            "127.0.0.1",
            "localhost",
            "localhost:x",
            "example.com:1",
        ] {
            let failure = address(word).unwrap_err();
            assert!(failure.message.contains("is no address"), "{word}");
        }
    }

    #[test]
    fn requests_are_told_apart() {
        let status = |text: &str| parse(text.as_bytes()).map(|(status, _)| status);
        for (text, expected) in [
            (
                "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9464\r\n\r\n",
                Status::Good,
            ),
            (
                "GET /metrics?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
                Status::Good,
            ),
            ("HEAD / HTTP/1.0\r\n\r\n", Status::Good),
            ("GET / HTTP/1.1\r\nhost: [::1]:9464\r\n\r\n", Status::Good),
            (
                "GET / HTTP/1.1\r\nHost: evil.example:9464\r\n\r\n",
                Status::Host,
            ),
            (
                "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: x\r\n\r\n",
                Status::Host,
            ),
            ("POST /metrics HTTP/1.1\r\n\r\n", Status::Method),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", Status::Path),
            ("GET /../etc/passwd HTTP/1.1\r\n\r\n", Status::Path),
            ("nonsense\r\n\r\n", Status::Malformed),
            ("GET / HTTP/9.9\r\n\r\n", Status::Malformed),
        ] {
            assert_eq!(status(text), Some(expected), "{text}");
        }
        assert_eq!(status("GET / HTTP/1.1\r\nHost: loc"), None);
        let long = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(REQUEST_MAX));
        assert_eq!(status(&long), Some(Status::TooLong));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: 1\r\n".repeat(65));
        assert_eq!(status(&many), Some(Status::TooLong));
        assert!(parse(b"HEAD / HTTP/1.0\r\n\r\n").is_some_and(|(_, is_head)| is_head));
    }
}
