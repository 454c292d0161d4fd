//! `uslub sim`: the allocator on a simulated machine. `main` calls [`run`].

use crate::destination;
use crate::ending::Ending;
use crate::failure::Failure;
use crate::numbers::{ms, whole, whole_from};
use crate::progress::progress;
use clap::Args;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use uslub_lab::{Costs, Kind, Link, Load, Sweep, Trace};

/// Options of `uslub sim`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub struct SimOptions {
    /// The load: pairs, flow, ublk, maple, hackbench, bulk or trace
    #[arg(long, value_name = "LOAD", default_value = "pairs")]
    pub workload: String,

    /// Numbers of CPUs, 1 to 512
    #[arg(
        long,
        value_name = "N,N…",
        value_delimiter = ',',
        default_value = "1,2,8,32",
        value_parser = whole(1_usize, 512)
    )]
    pub cpus: Vec<usize>,

    /// Numbers of memory nodes, 1 to 16
    #[arg(long, value_name = "N,N…", value_delimiter = ',', default_value = "1",
        value_parser = whole(1_usize, 16))]
    pub nodes: Vec<usize>,

    /// Nodes that have memory; default: all
    #[arg(long, value_name = "NODE,NODE…", value_delimiter = ',',
        value_parser = whole_from(0_usize))]
    pub memory_nodes: Vec<usize>,

    /// CPUs that share a last-level cache
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole_from(0_usize))]
    pub llc: usize,

    /// Values of a tunable to try; can be repeated: all combinations run
    #[arg(long, value_name = "KEY=VALUE,VALUE…")]
    pub set: Vec<String>,

    /// Bytes of an object; default: the load's
    #[arg(long, value_name = "BYTES", value_parser = whole_from(0_usize))]
    pub size: Option<usize>,

    /// Objects of a bulk
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole(1_usize, 4096))]
    pub bulk: usize,

    /// Who sends to whom in a flow: near, far or ring; default: near for ublk, far for flow
    #[arg(long, value_name = "LINK")]
    pub link: Option<String>,

    /// Whether allocations may not block: yes (GFP_NOWAIT) or no (GFP_KERNEL); default: the load's
    #[arg(long, value_name = "yes|no")]
    pub nowait: Option<String>,

    /// Nanoseconds of a CPU's own work around each operation; default: the load's
    #[arg(long, value_name = "NS", value_parser = whole(0_u64, 1_000_000))]
    pub work: Option<u64>,

    /// The trace of the load 'trace'
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Seed of all random numbers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole_from(0_u64))]
    pub seed: u64,

    /// Milliseconds of virtual time before the measurement
    #[arg(long, value_name = "MS", default_value_t = 5.0, value_parser = ms)]
    pub warm_ms: f64,

    /// Milliseconds of virtual time of the measurement
    #[arg(long, value_name = "MS", default_value_t = 5.0, value_parser = ms)]
    pub run_ms: f64,

    /// Set a cost of the model; can be repeated
    #[arg(long, value_name = "NAME=NS")]
    pub cost: Vec<String>,

    /// Read all costs from FILE, as --calibrate writes them
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,

    /// Measure the costs of this machine, and compare the model with real runs on 1 and 2 CPUs
    #[arg(long)]
    pub calibrate: bool,

    /// Write a page with curves to FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write every figure to FILE as JSON; if FILE is -, standard output has only the JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The part of the help after the options.
const HELP: &str = "\
Loads:
  pairs      each CPU allocates an object, writes to it and frees it
  flow       producers allocate, consumers free
  ublk       the same through a mempool, with GFP_NOWAIT, and the work of an I/O request
  maple      the nodes of maple trees under mmap and munmap, as will-it-scale's mmap2 makes them
  hackbench  each CPU sends messages to the CPUs of its group
  bulk       bulk allocations, and bulk frees of objects from many slabs
  trace      a file: lines 'CPU a ID BYTES', 'CPU f ID', 'CPU w NS'

Tunables for --set are those of 'uslub run --help'. The time is virtual: the same command prints the
same figures on every machine. docs/laboratory.md says what the model leaves out.

Exit status: 0 when it ran; 2 wrong usage; 125 it could not run.";

/// Runs `uslub sim`.
pub fn run(options: &SimOptions) -> Result<Ending, Failure> {
    if options.calibrate {
        return calibrate(options);
    }
    let sweep = sweep(options)?;
    sweep.experiments().map_err(wrong)?;
    for file in [&options.html, &options.json].into_iter().flatten() {
        if !is_stdout(file) {
            destination::check(file)?;
        }
    }
    let bar = progress();
    let report = sweep.run(
        || None,
        |done, all| {
            bar.set_length(all as u64);
            bar.set_prefix(done.to_string());
            bar.set_message("experiments");
            bar.tick();
        },
    );
    bar.finish_and_clear();
    let report = report.map_err(failed)?;
    if let Some(file) = &options.html {
        destination::save(file, &uslub_lab::html(&report))?;
    }
    let mut text = uslub_lab::table(&report);
    if let Some(file) = &options.json {
        let json = report.json().map_err(failed)? + "\n";
        if is_stdout(file) {
            text = json;
        } else {
            destination::save(file, &json)?;
        }
    }
    print(&text);
    Ok(Ending::Exited(0))
}

fn print(text: &str) {
    // A closed standard output is no failure: its reader has read enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// The value of a name; fails with the known names.
fn named<T: Copy>(what: &str, word: &str, known: &[(&str, T)]) -> Result<T, Failure> {
    let found = known.iter().find(|(name, _)| *name == word);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        Failure::usage(
            format!("no {what} '{word}'; there are {}", names.join(", ")),
            "see 'uslub sim --help'",
        )
    })
}

/// The costs that the options ask for.
fn costs(options: &SimOptions) -> Result<Costs, Failure> {
    let mut costs = match &options.costs {
        Some(file) => serde_json::from_str(&read(file)?).map_err(|why| {
            Failure::usage(
                format!("{}: {why}", file.display()),
                "'uslub sim --calibrate --json FILE' writes such a file",
            )
        })?,
        None => Costs::default(),
    };
    for setting in &options.cost {
        costs.set(setting).map_err(wrong)?;
    }
    Ok(costs)
}

fn sweep(options: &SimOptions) -> Result<Sweep, Failure> {
    let kind = named("load", &options.workload, &Kind::ALL)?;
    let mut load = Load::usual(kind);
    if let Some(word) = &options.link {
        load.link = named("link", word, &Link::ALL)?;
    }
    load.size = options.size.unwrap_or(load.size);
    load.work = options.work.unwrap_or(load.work);
    load.bulk = options.bulk;
    load.seed = options.seed;
    if let Some(word) = &options.nowait {
        load.nowait = named("answer", word, &[("yes", true), ("no", false)])?;
    }
    load.trace = match (&options.trace, kind) {
        (Some(file), Kind::Trace) => Some(Trace::read(&read(file)?).map_err(wrong)?),
        (None, Kind::Trace) => {
            return Err(Failure::usage("no trace is given", "add --trace FILE"));
        }
        (Some(_), _) => {
            return Err(Failure::usage(
                "--trace is for the load 'trace'",
                "add --workload trace",
            ));
        }
        (None, _) => None,
    };
    let settings = options.set.iter().map(|set| uslub_lab::values_of(set));
    let settings = settings.collect::<Result<_, _>>().map_err(wrong)?;
    Ok(Sweep {
        load,
        cpus: options.cpus.clone(),
        nodes: options.nodes.clone(),
        llc: options.llc,
        memory_nodes: options.memory_nodes.clone(),
        settings,
        costs: costs(options)?,
        warm_us: microseconds("--warm-ms", options.warm_ms)?,
        run_us: microseconds("--run-ms", options.run_ms)?,
    })
}

fn microseconds(option: &str, ms: f64) -> Result<u64, Failure> {
    if (0.01..=10_000.0).contains(&ms) {
        Ok((ms * 1e3) as u64)
    } else {
        let message = format!("{option} takes 0.01 to 10000 milliseconds, not {ms}");
        Err(Failure::usage(message, "see 'uslub sim --help'"))
    }
}

fn calibrate(options: &SimOptions) -> Result<Ending, Failure> {
    let base = costs(options)?;
    let report = uslub_bench::lab::calibrate(base).map_err(|why| failed_text(&why.to_string()))?;
    let mut text = report.text();
    if let Some(file) = &options.json {
        let json = serde_json::to_string_pretty(&report.costs)
            .map_err(|why| failed_text(&why.to_string()))?;
        if is_stdout(file) {
            text = json + "\n";
        } else {
            destination::save(file, &(json + "\n"))?;
        }
    }
    print(&text);
    Ok(Ending::Exited(0))
}

fn wrong(why: uslub_lab::Failure) -> Failure {
    match why {
        uslub_lab::Failure::Wrong(text) => Failure::usage(text, "see 'uslub sim --help'"),
        other => failed(other),
    }
}

fn failed(why: uslub_lab::Failure) -> Failure {
    failed_text(&why.to_string())
}

fn failed_text(why: &str) -> Failure {
    Failure::ours(
        why.to_owned(),
        "a smaller machine or a shorter run needs less memory",
    )
}

fn is_stdout(file: &Path) -> bool {
    file.as_os_str() == "-"
}

fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(|error| {
        Failure::ours(
            format!("{} cannot be read: {error}", file.display()),
            "name a text file that you may read",
        )
    })
}
