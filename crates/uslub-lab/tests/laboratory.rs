//! The laboratory: runs repeat exactly, lines and locks cost what they should, and the seeds'
//! effects are there.

use uslub_lab::{Choice, Costs, Experiment, Figures, Kind, Link, Load, Policy, Topology, Trace};

/// A short experiment.
fn experiment(kind: Kind, cpus: usize, nodes: usize, settings: &[&str]) -> Experiment {
    Experiment {
        machine: Topology::new(cpus, nodes, 4, &[]).unwrap(),
        costs: Costs::default(),
        load: Load::usual(kind),
        settings: settings.iter().map(|&s| s.to_owned()).collect(),
        warm_us: 300,
        run_us: 500,
    }
}

fn run(experiment: &Experiment) -> Figures {
    experiment.run(None).unwrap()
}

#[test]
fn the_same_seed_gives_the_same_figures_and_another_seed_others() {
    for (name, kind) in Kind::ALL {
        let mut one = experiment(kind, 6, 2, &[]);
        (one.warm_us, one.run_us) = (100, 100);
        if kind == Kind::Trace {
            one.load.trace = Some(Trace::read("0 a 1 100\n1 f 1\n0 w 50\n").unwrap());
        }
        let first = run(&one);
        assert!(first.ops > 0, "{name}");
        // Other memory of the process moves meanwhile.
        let elsewhere = std::hint::black_box(vec![1u8; 12_345_678]);
        assert_eq!(first, run(&one), "{name}");
        drop(elsewhere);
        let other = std::thread::scope(|s| s.spawn(|| run(&one)).join().unwrap());
        assert_eq!(first, other, "{name}");
        if matches!(kind, Kind::Maple | Kind::Bulk | Kind::Hackbench) {
            one.load.seed = 2;
            assert_ne!(first, run(&one), "{name}");
        }
    }
}

#[test]
fn pairs_share_no_line_on_any_number_of_cpus() {
    let costs: Vec<_> = [1, 2, 16, 64]
        .map(|cpus| {
            let mut one = experiment(Kind::Pairs, cpus, 1, &[]);
            (one.warm_us, one.run_us) = (20, 20);
            run(&one)
        })
        .into();
    for figures in &costs {
        assert!(figures.lines < 0.01, "{figures:?}");
        assert!((figures.ns / costs[0].ns - 1.0).abs() < 0.1, "{figures:?}");
    }
}

#[test]
fn distance_costs() {
    let mut near = experiment(Kind::Flow, 8, 2, &[]);
    near.load.link = Link::Near;
    let mut far = near.clone();
    far.load.link = Link::Far;
    let (near, far) = (run(&near), run(&far));
    assert!(
        near.remote_lines < 0.2 && far.remote_lines > 1.0,
        "{near:?} {far:?}"
    );
    assert!(near.ns < far.ns && near.slow_frees < 0.5 && far.slow_frees > 0.9);
    let mut dear = experiment(Kind::Flow, 8, 1, &[]);
    let cheap = run(&dear);
    dear.costs.set("node=900").unwrap();
    assert!(run(&dear).ns > 2.0 * cheap.ns);
}

#[test]
fn a_lock_is_a_queue() {
    let wait = |cpus| run(&experiment(Kind::Flow, cpus, 2, &[])).list_wait;
    let (two, many) = (wait(2), wait(32));
    assert!(two < 5.0 && many > 20.0, "{two} {many}");
}

#[test]
fn a_flow_costs_the_same_on_many_cpus_with_barns_for_groups_of_them() {
    let ns = |cpus, link, setting| {
        let mut one = experiment(Kind::Flow, cpus, 1, &[setting]);
        one.load.link = link;
        one.machine = Topology::new(cpus, 1, 8, &[]).unwrap();
        run(&one).ns
    };
    let two = ns(2, Link::Near, "barn_cpus=16");
    for link in [Link::Near, Link::Far] {
        let (one_barn, groups) = (ns(64, link, "barn_cpus=4096"), ns(64, link, "barn_cpus=16"));
        assert!(one_barn > 10.0 * two, "{one_barn}, {two} on two CPUs");
        assert!(groups < 3.0 * two, "{groups}, {two} on two CPUs");
    }
}

#[test]
fn the_old_gate_starves_nodes_without_memory_and_the_new_one_does_not() {
    let rate = |settings: &[&str], memory: &[usize]| {
        let mut one = experiment(Kind::Ublk, 32, 8, settings);
        one.machine = Topology::new(32, 8, 4, memory).unwrap();
        run(&one).rate
    };
    let before = rate(&[], &[]);
    let old = rate(&["refill_needs_blocking=1", "memoryless_barns=0"], &[0, 4]);
    let new = rate(&[], &[0, 4]);
    assert!(old <= 0.45 * before, "{old} of {before}");
    assert!(new >= 0.9 * before, "{new} of {before}");
}

#[test]
fn a_spill_takes_fewer_list_locks() {
    let locks = |setting| {
        let mut one = experiment(Kind::Maple, 16, 1, &[setting]);
        (one.warm_us, one.run_us) = (9_000, 3_000);
        run(&one).list_locks
    };
    let (without, with) = (locks("sheaf_spill=0"), locks("sheaf_spill=1"));
    assert!(with < 0.8 * without, "{with} of {without}");
}

/// Counts what it is asked, and keeps every empty slab.
struct Keeper<'a>(&'a std::cell::Cell<usize>);

impl Policy for Keeper<'_> {
    fn choose(&mut self, choice: Choice, ours: usize) -> usize {
        self.0.set(self.0.get() + 1);
        match choice {
            Choice::KeepEmpty { .. } => 1,
            _ => ours,
        }
    }
}

#[test]
fn a_policy_of_ones_own_decides() {
    let mut one = experiment(Kind::Maple, 8, 1, &["sheaf_spill=1"]);
    (one.warm_us, one.run_us) = (9_000, 4_000);
    let asked: &'static _ = Box::leak(Box::new(std::cell::Cell::new(0)));
    let (ours, kept) = (run(&one), one.run(Some(Box::new(Keeper(asked)))).unwrap());
    assert!(asked.get() > 0);
    assert!(kept.churn < ours.churn, "{} {}", kept.churn, ours.churn);
}

#[test]
fn a_trace_plays_in_order_and_each_object_once() {
    let mut text = String::from("# producer and consumer\n");
    for id in 0..100 {
        text += &format!("0 a {id} 64\n0 w 10\n3 f {id}\n");
    }
    let mut one = experiment(Kind::Trace, 4, 1, &[]);
    one.load.trace = Some(Trace::read(&text).unwrap());
    assert_eq!(run(&one).ops, 100);
    one.machine = Topology::new(2, 1, 4, &[]).unwrap();
    let refused = one.run(None).unwrap_err().to_string();
    assert!(refused.contains("CPU 3"), "{refused}");
}

#[test]
fn what_is_wrong_is_named() {
    let wrong = experiment(Kind::Pairs, 1, 1, &["colour=1"])
        .run(None)
        .unwrap_err();
    assert!(wrong.to_string().contains("'colour'"));
    let twice = Trace::read("0 a 1 8\n0 f 1\n0 f 1\n")
        .unwrap_err()
        .to_string();
    assert!(twice.contains("object 1"), "{twice}");
}
