//! The table of what was aborted where.

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

    /// A sequence, its aborts at each instruction, and the stops behind its commit that changed nothing.
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
    /// If there are fewer sequences, or an instruction was never aborted.
    pub fn assert_complete(&self, sequences: usize) {
        assert!(self.rows.len() >= sequences, "sequences are missing");
        for (name, aborted, passed) in &self.rows {
            assert!(!aborted.is_empty(), "{name}: no instruction");
            for (instruction, &n) in aborted.iter().enumerate() {
                assert!(n > 0, "{name}: never aborted at instruction {instruction}");
            }
            assert!(*passed > 0, "{name}: never stopped behind its commit");
        }
    }
}
