//! A policy of one's own in one file: empty slabs are kept by a rule of this file.
//!
//! ```sh
//! cargo run --release -p uslub-lab --example policy
//! ```
//!
//! The kernel gives a slab back as soon as it is empty, if its node has `min_partial` partial slabs.
//! The rule here keeps a slab that empties, unless most of the last ones were kept as well. It
//! prints the load of seed 1 with the allocator's rule and with this one.

use uslub_lab::{Choice, Costs, Failure, Kind, Load, Policy, Sweep, table};

/// Keeps three empty slabs of four.
#[derive(Default)]
struct ThreeOfFour {
    asked: usize,
}

impl Policy for ThreeOfFour {
    fn choose(&mut self, choice: Choice, ours: usize) -> usize {
        match choice {
            Choice::KeepEmpty { .. } => {
                self.asked += 1;
                usize::from(!self.asked.is_multiple_of(4))
            }
            _ => ours,
        }
    }
}

fn main() -> Result<(), Failure> {
    let sweep = Sweep {
        load: Load::usual(Kind::Maple),
        cpus: vec![8, 32],
        nodes: vec![1],
        llc: 8,
        memory_nodes: vec![],
        settings: vec![vec!["sheaf_spill=1".to_owned()]],
        costs: Costs::default(),
        warm_us: 10_000,
        run_us: 10_000,
    };
    println!("the allocator's rule:");
    print!("{}", table(&sweep.run(|| None, |_, _| ())?));
    println!("three of four empty slabs are kept:");
    let policy = || -> Option<Box<dyn Policy>> { Some(Box::new(ThreeOfFour::default())) };
    print!("{}", table(&sweep.run(policy, |_, _| ())?));
    Ok(())
}
