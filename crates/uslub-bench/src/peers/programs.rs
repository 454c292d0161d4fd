//! P6: real programs, with each allocator preloaded.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::cost::{self, Cost};
use super::face::{OURS, SYSTEM};
use super::row::{Aim, PeerRow, Rounds};
use super::{Peers, Section, note};
use crate::bench::Bench;
use crate::dice::Dice;
use crate::error::Failure;
use crate::linux::Pinned;

/// Largest ratio to the best peer that a single program may have.
const WORST: f64 = 1.1;

/// Number of programs in a quick run: the most different ones.
const QUICK: usize = 4;

/// A program and its workload.
struct Program {
    name: &'static str,
    words: Vec<OsString>,
    stdin: Option<PathBuf>,
    variables: &'static [(&'static str, &'static str)],
}

impl Program {
    fn new(name: &'static str, words: &[&dyn AsRef<std::ffi::OsStr>]) -> Self {
        Self {
            name,
            words: words.iter().map(|word| word.as_ref().to_owned()).collect(),
            stdin: None,
            variables: &[],
        }
    }

    fn with(mut self, variables: &'static [(&'static str, &'static str)]) -> Self {
        self.variables = variables;
        self
    }

    fn reads(mut self, file: PathBuf) -> Self {
        self.stdin = Some(file);
        self
    }

    /// Whether it is installed.
    fn is_there(&self) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(&self.words[0]).is_file())
    }

    fn run(&self, ours: &Path, preload: Option<&Path>) -> Result<Cost, Failure> {
        let failed = |what: String| Failure::System(format!("{}: {what}", self.name));
        let stdin = self.stdin.as_deref().unwrap_or(Path::new("/dev/null"));
        let stdin = File::open(stdin).map_err(|error| failed(error.to_string()))?;
        let cost = cost::of(ours, preload, &self.words, self.variables, stdin)?;
        self.ended(cost, preload)
    }

    /// The cost, if the program did its work successfully.
    fn ended(&self, cost: Cost, preload: Option<&Path>) -> Result<Cost, Failure> {
        let failed = |what: String| Failure::System(format!("{}: {what}", self.name));
        if !cost.status().success() {
            let on = preload.map_or(SYSTEM.into(), |library| library.display().to_string());
            return Err(failed(format!("it ended with {} on {on}", cost.status())));
        }
        Ok(cost)
    }
}

/// A figure of a program: name, unit, and the part of its cost.
type Figure = (&'static str, &'static str, fn(&Cost) -> f64);

/// All figures of a program.
const FIGURES: [Figure; 2] = [
    ("CPU time", "s", |cost| cost.cpu),
    ("peak", "MB", |cost| cost.peak / 1e6),
];

/// Measures the part.
pub fn run(bench: &Bench, peers: &Peers) -> Result<Section, Failure> {
    let _pinned = Pinned::to_the_last()?;
    let folder = tempfile::tempdir().map_err(|error| Failure::System(error.to_string()))?;
    let scale = bench.size.pick(1, 3, 40);
    let mut programs =
        programs(&folder, scale).map_err(|error| Failure::System(error.to_string()))?;
    programs.truncate(bench.size.pick(2, QUICK, programs.len()));
    let mut preloads = vec![(OURS, Some(peers.library.as_path())), (SYSTEM, None)];
    preloads.extend(
        peers
            .preloads
            .iter()
            .map(|(name, path)| (*name, Some(path.as_path()))),
    );
    let mut rows = Vec::new();
    let mut logs = FIGURES.map(|_| vec![Vec::new(); preloads.len()]);
    for program in programs {
        if !program.is_there() {
            let why = Failure::Unavailable(program.words[0].display().to_string());
            let name = format!("{}, CPU time", program.name);
            rows.push(PeerRow::without("P6", name, "s", &why));
            continue;
        }
        bench.says(&format!("P6, {}", program.name));
        let costs = costs(bench, peers, &program, &preloads)?;
        for ((what, unit, figure), logs) in FIGURES.into_iter().zip(&mut logs) {
            let mut all = Vec::new();
            for (((name, _), costs), logs) in preloads.iter().zip(&costs).zip(logs) {
                let rounds: Vec<_> = costs.iter().map(figure).collect();
                logs.push(rounds.iter().map(|cost| cost.max(1e-6).ln()).collect());
                all.push((*name, rounds));
            }
            let (name, aim) = (format!("{}, {what}", program.name), Aim::ratio(WORST));
            rows.push(PeerRow::new("P6", name, unit, &Rounds::of(all), aim));
        }
    }
    for ((what, unit, _), logs) in FIGURES.into_iter().zip(logs) {
        let means = preloads.iter().zip(&logs);
        let means = means.map(|((name, _), logs)| (*name, geometric_means(logs)));
        let (name, means) = (format!("geometric mean, {what}"), means.collect());
        let aim = Aim::ratio(1.0);
        rows.push(PeerRow::new("P6", name, unit, &Rounds::of(means), aim));
    }
    Ok(Section::new(
        "P6",
        "Real programs",
        "Each program with each allocator preloaded, on one CPU. Redis serves a benchmark over a socket; both count.",
        rows,
    ))
}

/// The costs of a program's rounds on each allocator in turn, after one warm-up round.
fn costs(
    bench: &Bench,
    peers: &Peers,
    program: &Program,
    preloads: &[(&str, Option<&Path>)],
) -> Result<Vec<Vec<Cost>>, Failure> {
    let mut costs: Vec<_> = preloads.iter().map(|_| Vec::new()).collect();
    for round in 0..=bench.size.pick(1, 3, 11) {
        for ((_, preload), costs) in preloads.iter().zip(&mut costs) {
            note(bench, round, costs, program.run(&peers.command, *preload)?);
        }
    }
    Ok(costs)
}

/// The geometric mean over all programs, for each round.
fn geometric_means(logs: &[Vec<f64>]) -> Vec<f64> {
    let rounds = logs.iter().map(Vec::len).min().unwrap_or(0);
    let mean = |round| logs.iter().map(|log| log[round]).sum::<f64>() / logs.len() as f64;
    (0..rounds).map(|round| mean(round).exp()).collect()
}

/// A file from the program tests.
macro_rules! source {
    ($name:literal) => {
        ($name, include_str!(concat!("../../programs/", $name)))
    };
}

/// The programs; their input files are in the folder.
fn programs(folder: &TempDir, scale: usize) -> std::io::Result<Vec<Program>> {
    let at = |name: &str| folder.path().join(name);
    let sources = [
        source!("words.awk"),
        source!("words.pl"),
        source!("trees.lua"),
        source!("groups.jq"),
        source!("objects.py"),
        source!("containers.cc"),
    ];
    for (name, text) in sources {
        fs::write(at(name), text)?;
    }
    lines(&at("lines"), 15_000 * scale)?;
    objects(&at("objects"), 1_500 * scale)?;
    statements(&at("statements"), 10_000 * scale)?;
    fs::write(at("redis.sh"), include_str!("redis.sh"))?;
    let requests = (5_000 * scale).to_string();
    let socket = at("redis");
    Ok(vec![
        Program::new("lua", &[&"lua5.4", &at("trees.lua")]),
        Program::new("gawk", &[&"gawk", &"-f", &at("words.awk"), &at("lines")]),
        Program::new("perl", &[&"perl", &at("words.pl"), &at("lines")])
            .with(&[("PERL_HASH_SEED", "0")]),
        Program::new("jq", &[&"jq", &"-f", &at("groups.jq"), &at("objects")]),
        Program::new("python3", &[&"python3", &"-B", &at("objects.py")])
            .with(&[("PYTHONMALLOC", "malloc"), ("PYTHONHASHSEED", "0")]),
        Program::new("redis", &[&"sh", &at("redis.sh"), &socket, &requests]),
        Program::new("sqlite3", &[&"sqlite3", &"-batch", &":memory:"]).reads(at("statements")),
        Program::new(
            "c++",
            &[
                &"c++",
                &"-std=c++17",
                &"-O1",
                &"-c",
                &at("containers.cc"),
                &"-o",
                &at("o"),
            ],
        ),
    ])
}

const SYLLABLES: [&str; 11] = [
    "slab", "sheaf", "barn", "node", "page", "ra", "lo", "ti", "ne", "mu", "ka",
];

fn word(dice: &mut Dice) -> String {
    (0..=dice.below(5))
        .map(|_| SYLLABLES[dice.below(SYLLABLES.len())])
        .collect()
}

/// Writes lines of a number and some words of a small vocabulary.
fn lines(path: &Path, count: usize) -> std::io::Result<()> {
    let mut dice = Dice::new(count as u64);
    let vocabulary: Vec<_> = (0..20_000).map(|_| word(&mut dice)).collect();
    let mut file = std::io::BufWriter::new(File::create(path)?);
    for _ in 0..count {
        write!(file, "{}", dice.below(1_000_000))?;
        for _ in 0..=dice.below(4) {
            write!(file, " {}", vocabulary[dice.below(vocabulary.len())])?;
        }
        writeln!(file)?;
    }
    file.flush()
}

/// Writes a list of JSON objects.
fn objects(path: &Path, count: usize) -> std::io::Result<()> {
    let mut dice = Dice::new(count as u64);
    let object = |_| {
        serde_json::json!({
            "group": dice.below(100),
            "number": dice.below(1_000_000),
            "words": [word(&mut dice), word(&mut dice)],
            "text": format!("{} {}", word(&mut dice), word(&mut dice)),
        })
    };
    let objects: Vec<_> = (0..count).map(object).collect();
    fs::write(path, serde_json::Value::from(objects).to_string())
}

/// Writes SQL for a table of `rows` rows, and queries of the table.
fn statements(path: &Path, rows: usize) -> std::io::Result<()> {
    let mut dice = Dice::new(rows as u64);
    let mut file = std::io::BufWriter::new(File::create(path)?);
    writeln!(file, "BEGIN;")?;
    writeln!(
        file,
        "CREATE TABLE items (id INTEGER PRIMARY KEY, kind INTEGER, number INTEGER, name TEXT, text TEXT);"
    )?;
    for _ in 0..rows {
        writeln!(
            file,
            "INSERT INTO items (kind, number, name, text) VALUES ({}, {}, '{}', '{} {}');",
            dice.below(20),
            dice.below(1_000_000),
            word(&mut dice),
            word(&mut dice),
            word(&mut dice)
        )?;
    }
    writeln!(file, "COMMIT;")?;
    let (_, rest) = source!("tables.sql");
    file.write_all(rest.as_bytes())?;
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_geometric() {
        let logs = [vec![2f64.ln(), 1f64.ln()], vec![8f64.ln(), 9f64.ln()]];
        let means = geometric_means(&logs);
        assert!((means[0] - 4.0).abs() < 1e-9 && (means[1] - 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_program_that_fails_or_is_missing_is_named() {
        let failing = Program::new("a program", &[&"false"]);
        assert!(failing.is_there());
        let cost = cost::serve("".as_ref(), &failing.words).unwrap();
        let cost = serde_json::from_str(&cost).unwrap();
        let said = failing.ended(cost, None).err().unwrap().to_string();
        assert_eq!(said, "a program: it ended with exit status: 1 on glibc");
        assert!(!Program::new("none", &[&"no-such-program"]).is_there());
    }
}
