//! What a simulated machine consists of.

/// CPUs and memory nodes.
///
/// CPUs are spread over the nodes in turn: CPU c is on node c mod n.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    cpus: usize,
    /// By node: whether it owns memory.
    memory: Vec<bool>,
}

/// Distance of a node from itself, as firmware tables give it.
const LOCAL: u32 = 10;
/// Distance of two nodes side by side.
const REMOTE: u32 = 20;

impl Machine {
    /// A machine with so many CPUs on so many nodes, all of which own memory.
    ///
    /// # Panics
    ///
    /// When there is no CPU or no node.
    pub fn new(cpus: usize, nodes: usize) -> Self {
        assert!(cpus > 0 && nodes > 0, "a machine has a CPU and a node");
        Self {
            cpus,
            memory: vec![true; nodes],
        }
    }

    /// The machine, with memory on these nodes alone.
    ///
    /// # Panics
    ///
    /// When none is named, or one that is not there.
    pub fn with_memory_on(mut self, nodes: &[usize]) -> Self {
        assert!(!nodes.is_empty(), "some node owns memory");
        self.memory.fill(false);
        nodes.iter().for_each(|&node| self.memory[node] = true);
        self
    }

    /// CPUs.
    pub fn cpus(&self) -> usize {
        self.cpus
    }

    /// Nodes.
    pub fn nodes(&self) -> usize {
        self.memory.len()
    }

    /// The node that a CPU is on.
    #[inline]
    pub fn node_of(&self, cpu: usize) -> usize {
        cpu % self.memory.len()
    }

    /// Whether a node owns memory.
    #[inline]
    pub fn has_memory(&self, node: usize) -> bool {
        self.memory[node]
    }

    /// How far one node is from another: the nodes lie on a ring.
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
