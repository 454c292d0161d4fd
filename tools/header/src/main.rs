//! Makes `uslub.h` of the sources of the crate for C.
//!
//! ```text
//! header CRATE FILE           writes FILE
//! header --check CRATE FILE   fails when FILE is not what would be written
//! ```

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (check, paths) = match args.split_first() {
        Some((first, rest)) if first == "--check" => (true, rest),
        _ => (false, &args[..]),
    };
    let [crate_folder, file] = paths else {
        eprintln!("usage: header [--check] CRATE FILE");
        return ExitCode::from(2);
    };
    let text = match header(Path::new(crate_folder)) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("{crate_folder}: {error}");
            return ExitCode::FAILURE;
        }
    };
    if !check {
        std::fs::write(file, text).expect("the header can be written");
        return ExitCode::SUCCESS;
    }
    if std::fs::read_to_string(file).is_ok_and(|there| there == text) {
        println!("{file} is up to date");
        return ExitCode::SUCCESS;
    }
    eprintln!("{file} is not what its sources say: run .ci/header --write");
    ExitCode::FAILURE
}

/// The sources that are part of the header, in its order.
const SOURCES: [&str; 14] = [
    "gfp.rs",
    "args.rs",
    "cache.rs",
    "bulk.rs",
    "sheaf.rs",
    "kmalloc.rs",
    "copy.rs",
    "buckets.rs",
    "mempool.rs",
    "rcu.rs",
    "shrinker.rs",
    "stats.rs",
    "slabinfo.rs",
    "lib.rs",
];

/// The header's text.
fn header(folder: &Path) -> Result<String, Box<dyn std::error::Error>> {
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml"))?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(folder.join("src").join(source));
    }
    let mut text = Vec::new();
    builder.generate()?.write(&mut text);
    Ok(tidy(&String::from_utf8(text)?))
}

/// Rust's headings and code marks mean nothing to who reads C, and a comment of one line takes one.
fn tidy(text: &str) -> String {
    let text = text
        .replace('`', "")
        .replace("# Safety\n *\n *", "The caller promises:");
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let count = lines.len();
        if line.trim() == "*/"
            && count >= 2
            && lines[count - 2].trim() == "/**"
            && let Some(only) = lines[count - 1].trim().strip_prefix("* ")
        {
            let joined = format!("{} {only} */", lines[count - 2]);
            lines.truncate(count - 2);
            lines.push(joined);
        } else if !(line.is_empty() && lines.last().is_some_and(String::is_empty)) {
            lines.push(line.to_owned());
        }
    }
    lines.join("\n") + "\n"
}
