//! The CPUs and memory nodes of a simulated machine, for `Sim`.

/// CPUs and memory nodes.
///
/// CPUs are distributed over the nodes in turn: CPU c is on node c mod n.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    cpus: usize,
    /// For each node, whether it has memory.
    memory: Vec<bool>,
}

/// Distance of a node from itself, as firmware tables give it.
const LOCAL: u32 = 10;
/// Distance of two neighbouring nodes.
const REMOTE: u32 = 20;

impl Machine {
    /// A machine with `cpus` CPUs on `nodes` nodes. All nodes have memory.
    ///
    /// # Panics
    ///
    /// If there is no CPU or no node.
    pub fn new(cpus: usize, nodes: usize) -> Self {
        assert!(cpus > 0 && nodes > 0, "a machine has a CPU and a node");
        Self {
            cpus,
            memory: vec![true; nodes],
        }
    }

    /// Restricts memory to these nodes.
    ///
    /// # Panics
    ///
    /// If `nodes` is empty or contains a node that does not exist.
    pub fn with_memory_on(mut self, nodes: &[usize]) -> Self {
        assert!(!nodes.is_empty(), "some node owns memory");
        self.memory.fill(false);
        nodes.iter().for_each(|&node| self.memory[node] = true);
        self
    }

    /// Number of CPUs.
    pub fn cpus(&self) -> usize {
        self.cpus
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.memory.len()
    }

    /// The node of a CPU.
    #[inline]
    pub fn node_of(&self, cpu: usize) -> usize {
        cpu % self.memory.len()
    }

    /// Whether a node has memory.
    #[inline]
    pub fn has_memory(&self, node: usize) -> bool {
        self.memory[node]
    }

    /// The distance between two nodes. The nodes form a ring.
    pub fn distance(&self, from: usize, to: usize) -> u32 {
        let around = self.nodes();
        let steps = from.abs_diff(to);
        match steps.min(around - steps) {
            0 => LOCAL,
            steps => REMOTE + steps as u32 - 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_spread_over_the_nodes_in_turn() {
        let machine = Machine::new(6, 4).with_memory_on(&[1, 3]);
        let nodes: Vec<_> = (0..machine.cpus()).map(|c| machine.node_of(c)).collect();
        assert_eq!(nodes, [0, 1, 2, 3, 0, 1]);
        let memory = [0, 1, 2, 3].map(|n| machine.has_memory(n));
        assert_eq!(memory, [false, true, false, true]);
    }

    #[test]
    fn distances_are_those_of_a_ring() {
        let machine = Machine::new(8, 8);
        let from_0: Vec<_> = (0..8).map(|to| machine.distance(0, to)).collect();
        assert_eq!(from_0, [10, 20, 21, 22, 23, 22, 21, 20]);
        for from in 0..8 {
            for to in 0..8 {
                assert_eq!(machine.distance(from, to), machine.distance(to, from));
            }
        }
    }
}
