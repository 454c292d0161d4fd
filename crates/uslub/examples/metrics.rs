//! Prints the figures of its own caches as OpenMetrics text. With the argument `wait`, it then waits,
//! so that `uslub metrics PID` can be compared with it.

use std::fmt::Write;
use std::io::Read;

use uslub::Gfp;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (request, session) = (uslub::Cache::new("request")?, uslub::Cache::new("session")?);
    let (mut requests, mut sessions) = (Vec::new(), Vec::new());
    for i in 0..1000u64 {
        requests.push(request.alloc([i; 40])?);
    }
    for i in 0..300u64 {
        sessions.push(session.alloc([i; 9])?);
    }
    sessions.truncate(100);
    let buffers: Vec<_> = (0..10)
        .filter_map(|_| uslub::kmalloc(20_000, Gfp::KERNEL))
        .collect();
    let picture = uslub::kmalloc(3 << 20, Gfp::KERNEL);

    let mut text = String::new();
    uslub::metrics(&mut text)?;
    writeln!(text, "# EOF")?;
    print!("{text}");
    if std::env::args().nth(1).as_deref() == Some("wait") {
        println!("ready");
        let _ = std::io::stdin().read(&mut [0]);
    }
    for buffer in buffers.into_iter().chain(picture) {
        // SAFETY: each is live, and freed once.
        unsafe { uslub::kfree(buffer.as_ptr()) };
    }
    drop((requests, sessions));
    Ok(())
}
