//! The table of what was aborted where.

use crate::world::Operation;

/// A row a sequence, a figure an instruction.
pub struct Table {
    title: &'static str,
    rows: Vec<(String, Vec<u32>, u32)>,
}

impl Table {
    pub fn new(title: &'static str) -> Self {
        Self {
            title,
            rows: Vec::new(),
        }
    }

    /// A sequence, its aborts at each instruction, and the stops behind its commit that changed
    /// nothing.
    pub fn row(&mut self, name: &str, aborted: &[u32], passed: u32) {
        self.rows.push((name.to_owned(), aborted.to_vec(), passed));
    }

    pub fn print(&self) {
        println!("\n{}", self.title);
        println!("sequence        instructions  behind the commit  aborted at each");
        for (name, aborted, passed) in &self.rows {
            let each: Vec<String> = aborted.iter().map(u32::to_string).collect();
            let (number, each) = (aborted.len(), each.join(" "));
            println!("{name:15} {number:12}  {passed:17}  {each}");
        }
    }

    /// # Panics
    ///
    /// If an operation has no sequence that was run, or one that was run was never aborted at one
    /// of its instructions.
    pub fn assert_complete(&self, operations: impl Iterator<Item = &'static Operation>) {
        for operation in operations.map(|operation| operation.name) {
            let copies = self.rows.iter().filter(|(name, ..)| *name == operation);
            let run = |(_, aborted, passed): &&(String, Vec<u32>, u32)| {
                *passed > 0 || aborted.iter().any(|&n| n > 0)
            };
            assert!(
                copies.clone().any(|row| run(&row)),
                "{operation}: never run"
            );
            for (name, aborted, passed) in copies.filter(run) {
                for (instruction, &n) in aborted.iter().enumerate() {
                    assert!(n > 0, "{name}: never aborted at instruction {instruction}");
                }
                assert!(*passed > 0, "{name}: never stopped behind its commit");
            }
        }
    }
}
