//! Programs that read text and write text.

use std::fs;

use tempfile::tempdir;
use uslub_programs::Program;
use uslub_programs::text::write_lines;

#[test]
fn sort_orders_two_million_lines_in_parallel() {
    let Some(sort) = Program::find("sort") else {
        return;
    };
    let folder = tempdir().unwrap();
    let lines = folder.path().join("lines");
    write_lines(&lines, 2_000_000, 1_000_000).unwrap();
    let sorted = sort
        .args(["--parallel=4", "--buffer-size=256M"])
        .arg(&lines)
        .same_both_ways()
        .succeeded();
    assert_eq!(sorted.stdout.len() as u64, lines.metadata().unwrap().len());
}

#[test]
fn sort_keeps_unique_lines_and_orders_by_number() {
    let Some(sort) = Program::find("sort") else {
        return;
    };
    let folder = tempdir().unwrap();
    let lines = folder.path().join("lines");
    write_lines(&lines, 500_000, 200_000).unwrap();
    let sort = sort.arg("--temporary-directory").arg(folder.path());
    sort.arg("-u").arg(&lines).same_both_ways().succeeded();
    sort.args(["-n", "-k1,1", "-s"])
        .arg(&lines)
        .same_both_ways()
        .succeeded();
    let small_buffer = sort.args(["-n", "-u", "--parallel=2", "--buffer-size=2M"]);
    small_buffer.arg(&lines).same_both_ways().succeeded();
}

#[test]
fn sort_reports_a_missing_file_by_its_exit_status() {
    let Some(sort) = Program::find("sort") else {
        return;
    };
    let folder = tempdir().unwrap();
    let outcome = sort.arg(folder.path().join("absent")).same_both_ways();
    assert_eq!(outcome.status.code(), Some(2));
}

#[test]
fn awk_counts_words_in_associative_arrays() {
    let folder = tempdir().unwrap();
    let lines = folder.path().join("lines");
    write_lines(&lines, 300_000, 1_000_000).unwrap();
    for name in ["mawk", "gawk"] {
        let Some(awk) = Program::find(name) else {
            continue;
        };
        let counted = awk
            .arg("-f")
            .arg(crate::given("words.awk"))
            .arg(&lines)
            .same_both_ways()
            .succeeded();
        assert!(counted.text().starts_with("300000 "));
    }
}

#[test]
fn jq_groups_and_rewrites_an_array_of_objects() {
    let Some(jq) = Program::find("jq") else {
        return;
    };
    let folder = tempdir().unwrap();
    let objects = folder.path().join("objects.json");
    fs::write(&objects, objects_as_json(30_000)).unwrap();
    jq.args(["-S", "-f"])
        .arg(crate::given("groups.jq"))
        .arg(&objects)
        .same_both_ways()
        .succeeded();
    jq.args(["-c", ".[]"])
        .arg(&objects)
        .same_both_ways()
        .succeeded();
}

/// An array of `count` objects.
fn objects_as_json(count: u64) -> String {
    use uslub_programs::text::{Numbers, word};
    let mut numbers = Numbers::from_seed(count);
    let objects: Vec<String> = (0..count)
        .map(|_| {
            format!(
                r#"{{"group":{},"number":{},"words":["{}","{}"],"text":"{} {}"}}"#,
                numbers.below(100),
                numbers.below(1_000_000),
                word(&mut numbers),
                word(&mut numbers),
                word(&mut numbers),
                word(&mut numbers),
            )
        })
        .collect();
    format!("[{}]", objects.join(",\n"))
}

#[test]
fn xz_packs_with_two_threads_and_unpacks_what_it_packed() {
    let Some(xz) = Program::find("xz") else {
        return;
    };
    let folder = tempdir().unwrap();
    let lines = folder.path().join("lines");
    write_lines(&lines, 300_000, 1_000_000).unwrap();
    let packed = xz
        .args(["--threads=2", "--block-size=2MiB", "-2", "--stdout"])
        .arg(&lines)
        .same_both_ways()
        .succeeded();
    let archive = folder.path().join("lines.xz");
    fs::write(&archive, &packed.stdout).unwrap();
    let unpacked = xz
        .args(["--decompress", "--stdout"])
        .arg(&archive)
        .same_both_ways()
        .succeeded();
    assert!(
        unpacked.stdout == fs::read(&lines).unwrap(),
        "xz gives back what it was given"
    );
}

#[test]
fn gzip_packs_and_unpacks_what_it_packed() {
    let Some(gzip) = Program::find("gzip") else {
        return;
    };
    let gzip = gzip.without_objects();
    let folder = tempdir().unwrap();
    let lines = folder.path().join("lines");
    write_lines(&lines, 300_000, 1_000_000).unwrap();
    let packed = gzip
        .args(["--no-name", "--stdout"])
        .arg(&lines)
        .same_both_ways()
        .succeeded();
    let archive = folder.path().join("lines.gz");
    fs::write(&archive, &packed.stdout).unwrap();
    let unpacked = gzip
        .args(["--decompress", "--stdout"])
        .arg(&archive)
        .same_both_ways()
        .succeeded();
    assert!(
        unpacked.stdout == fs::read(&lines).unwrap(),
        "gzip gives back what it was given"
    );
}
