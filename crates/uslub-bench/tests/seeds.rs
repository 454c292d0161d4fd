//! Each seed in its smallest form: what comes out has its shape, and nothing is lost on the way. No
//! time is judged.

use serde_json::Value;
use uslub_bench::output::{html, text, verdict};
use uslub_bench::seeds::{self, OldNew};
use uslub_bench::{Bench, Size};

type Report = uslub_bench::Report<OldNew>;

fn run(seed: u8) -> Report {
    let report = seeds::run(&Bench::quiet(Size::Tiny), &[seed]).expect("the seed runs");
    assert_eq!(report.sections.len(), 1);
    assert!(report.rows().all(|row| row.figures.seed == seed));
    check_json(&report, seed);
    check_ways(&report);
    check_text(&report);
    check_page(&report);
    report
}

/// Every row has what is promised, and no figure is absurd.
fn check_json(report: &Report, seed: u8) {
    let json: Value = serde_json::from_str(&report.json().unwrap()).unwrap();
    for key in ["machine", "kernel", "mode", "size"] {
        assert!(json[key].is_string(), "{key}");
    }
    assert!(json["versions"]["uslub"].is_string() && json["rounds"].is_u64());
    let rows = json["rows"].as_array().unwrap();
    assert!(!rows.is_empty());
    for row in rows {
        assert_eq!(row["seed"], seed);
        for key in ["name", "unit", "reported", "goal"] {
            assert!(row[key].is_string(), "{key} of {row}");
        }
        assert!(row["met"].is_boolean() || row["met"].is_null(), "{row}");
        for key in ["old", "new", "change"] {
            let value = &row[key];
            assert!(
                value.is_null() || value.as_f64().unwrap().is_finite(),
                "{row}"
            );
        }
        let (Some(old), Some(new)) = (row["old"].as_f64(), row["new"].as_f64()) else {
            continue;
        };
        assert!(old >= 0.0 && new >= 0.0, "{row}");
        if let Some(change) = row["change"].as_f64() {
            let expected = (new / old - 1.0) * 100.0;
            assert!(
                (change - expected).abs() <= 1e-6 * expected.abs().max(1.0),
                "{row}"
            );
        }
        for (key, median) in [("old_spread", old), ("new_spread", new)] {
            let [least, greatest] = [0, 1].map(|i| row[key][i].as_f64().unwrap());
            assert!(least <= median && median <= greatest, "{row}");
        }
    }
}

/// The two ways of each row run different code, and a row whose counter shows no difference says so.
fn check_ways(report: &Report) {
    for row in report.rows().filter(|row| row.is_measured()) {
        let OldNew {
            old_way, new_way, ..
        } = &row.figures;
        let (Some(old), Some(new)) = (old_way, new_way) else {
            panic!("'{}' does not name its ways", row.name);
        };
        assert!(
            !old.runs_as(new).unwrap(),
            "both ways of '{}' are equal",
            row.name
        );
        if let Some(witness) = &row.figures.witness {
            let says_equal = ["equal", "hides"]
                .iter()
                .any(|word| row.note.contains(word));
            assert!(
                witness.tells_apart() || says_equal,
                "'{}' ran the same code: {witness:?}",
                row.name
            );
        }
    }
}

/// The last lines of the text name all goals that were missed, and only those.
fn check_text(report: &Report) {
    let (text, verdict) = (text(report, 100), verdict(report));
    assert!(text.ends_with(&verdict));
    let missed = report.missed().count();
    assert_eq!(verdict.matches("; goal: ").count(), missed);
    assert_eq!(verdict.contains("are met."), missed == 0);
}

/// The page has every row and picture, and needs nothing from elsewhere.
fn check_page(report: &Report) {
    let html = html(report);
    let pictures: usize = report.sections.iter().map(|seed| seed.charts.len()).sum();
    assert!(pictures > 0);
    assert_eq!(html.matches("<svg ").count(), pictures);
    assert_eq!(
        html.matches("<th scope=\"row\">").count(),
        report.rows().count()
    );
    for outside in ["<script", "<link", "<img", "url(", "@import", " src="] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert!(
        !html
            .replace("http://www.w3.org/2000/svg", "")
            .contains("://")
    );
}

fn names(report: &Report, part: &str) -> usize {
    report.rows().filter(|row| row.name.contains(part)).count()
}

#[test]
fn seed_0_measures_twelve_rows_and_each_bulk_uses_up_a_fresh_slab() {
    let report = run(0);
    assert_eq!(report.rows().count(), 12);
    assert!(
        report
            .rows()
            .all(|row| row.figures.kernel.is_some() && row.met.is_some())
    );
    assert_eq!(
        (names(&report, "ascending"), names(&report, "random")),
        (6, 6)
    );
}

#[test]
fn seed_1_counts_what_spilling_and_the_reserve_change() {
    let report = run(1);
    for machine in ["2 CPUs, ", "48 virtual CPUs, "] {
        for way in ["spill: ", "spill and reserve: "] {
            let row = format!("{machine}{way}slabs taken and returned");
            assert_eq!(names(&report, &row), 1, "{row}");
        }
    }
    // Two on the real machine, eleven on the simulated one; three that two threads play.
    assert_eq!(names(&report, "list lock taken"), 2 + 11);
    assert_eq!(names(&report, "waited for"), 3);
    assert_eq!(names(&report, "list lock held"), 3);
    // A partly filled sheaf is refilled more often.
    let refills = (report.rows()).find(|row| row.name.ends_with("partly filled: refills"));
    let OldNew { old, new, .. } = &refills.unwrap().figures;
    assert!(new.unwrap() > 1.1 * old.unwrap(), "{old:?} {new:?}");
}

#[test]
fn seed_2_updates_slabs_exactly_as_often_as_the_look_ahead_allows() {
    let report = run(2);
    assert_eq!(names(&report, "bulk of"), 3 * 14 + 7);
    // Without sheaves a bulk of one slab's objects is one update instead of one for each object.
    let alone = (report.rows()).find(|row| row.name == "bulk of 16, no sheaves");
    let witness = alone.unwrap().figures.witness.clone().unwrap();
    assert!(witness.old > 700.0 && witness.new < 250.0, "{witness:?}");
    // With large sheaves no way updates a slab, and the row says that both are equal.
    let large = (report.rows()).find(|row| row.name == "bulk of 16, sheaves of 250");
    assert!(large.unwrap().note.starts_with("equal: "));
    let updates: Vec<_> = (report.rows().filter(|row| row.name.contains("updates"))).collect();
    assert_eq!(updates.len(), 8);
    for row in updates {
        assert_eq!(row.met, Some(true), "{row:?}");
        assert!(row.figures.old.unwrap() > 60.0, "{row:?}");
    }
    let all_alike = report
        .rows()
        .find(|row| row.name.starts_with("slab updates, all"));
    assert!(all_alike.unwrap().figures.new.unwrap() < 8.0);
}

#[test]
fn seed_3_accounts_for_every_message() {
    let report = run(3);
    assert_eq!(report.rows().count(), 8);
    for row in report.rows().filter(|row| row.name.contains("hackbench")) {
        assert!(row.goal.contains("every message accounted for"));
        assert!(!row.missed.contains("accounted"), "{row:?}");
    }
}

#[test]
fn seed_4_serves_callers_that_may_not_block_from_sheaves() {
    let report = run(4);
    assert_eq!(names(&report, "rate"), 6);
    let shares: Vec<_> = (report
        .rows()
        .filter(|row| row.name.contains("from sheaves")))
    .collect();
    assert_eq!(shares.len(), 6);
    for row in shares {
        assert!(
            row.figures.new.unwrap() > row.figures.old.unwrap() - 1.0,
            "{row:?}"
        );
    }
    let far = report
        .rows()
        .find(|row| row.name.starts_with("8 nodes, all own memory, from"));
    let far = far.unwrap();
    assert!(
        far.figures.old.unwrap() < 50.0 && far.figures.new.unwrap() > 90.0,
        "{far:?}"
    );
}

#[test]
fn seeds_are_run_in_their_order_each_once() {
    assert_eq!(seeds::numbers(), [0, 1, 2, 3, 4]);
    let report = seeds::run(&Bench::quiet(Size::Tiny), &[3, 0, 3]).unwrap();
    let numbers: Vec<_> = report.sections.iter().map(|section| section.name).collect();
    assert_eq!(numbers, ["Seed 0", "Seed 3"]);
}
