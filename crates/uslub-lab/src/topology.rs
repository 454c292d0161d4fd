//! The CPUs, memory nodes and last-level caches of a simulated machine.

use uslub_core_timed::groups::Groups;

use crate::error::Failure;

/// Largest number of CPUs.
pub const CPUS_MAX: usize = 512;
/// Largest number of memory nodes.
pub const NODES_MAX: usize = 16;

/// A machine. CPUs are numbered node by node, and in a node cache by cache.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Topology {
    /// Number of CPUs.
    pub cpus: usize,
    /// Number of memory nodes, at most one a CPU.
    pub nodes: usize,
    /// CPUs that share a last-level cache.
    pub llc: usize,
    /// For each node, whether it has memory.
    pub memory: Vec<bool>,
}

/// How far apart two CPUs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// The same CPU.
    Own,
    /// They share a last-level cache.
    Cache,
    /// They share a memory node only.
    Node,
    /// Their nodes are this many steps apart.
    Remote(usize),
}

impl Topology {
    /// A machine of `cpus` CPUs on `nodes` nodes, `llc` CPUs to a last-level cache. All nodes have
    /// memory, or those of `with_memory` if it names any.
    ///
    /// # Errors
    ///
    /// If a number is out of bounds, or a node with memory does not exist.
    pub fn new(
        cpus: usize,
        nodes: usize,
        llc: usize,
        with_memory: &[usize],
    ) -> Result<Self, Failure> {
        let wrong = |what: String| Err(Failure::Wrong(what));
        if !(1..=CPUS_MAX).contains(&cpus) {
            return wrong(format!("{cpus} CPUs: a machine has 1 to {CPUS_MAX}"));
        }
        if !(1..=NODES_MAX).contains(&nodes) || llc == 0 {
            return wrong(format!(
                "{nodes} nodes and {llc} CPUs a cache: a machine has 1 to {NODES_MAX} nodes, and a \
                 cache at least 1 CPU"
            ));
        }
        let nodes = nodes.min(cpus);
        let mut memory = vec![with_memory.is_empty(); nodes];
        for &node in with_memory {
            match memory.get_mut(node) {
                Some(place) => *place = true,
                None if node < NODES_MAX => (),
                None => return wrong(format!("no node {node}: nodes are 0 to {}", nodes - 1)),
            }
        }
        if !memory.contains(&true) {
            memory[0] = true;
        }
        Ok(Self {
            cpus,
            nodes,
            llc,
            memory,
        })
    }

    /// The node of a CPU.
    #[inline]
    pub fn node_of(&self, cpu: usize) -> usize {
        cpu * self.nodes / self.cpus
    }

    /// The last-level cache of a CPU: caches do not span nodes.
    #[inline]
    pub fn cache_of(&self, cpu: usize) -> usize {
        let node = self.node_of(cpu);
        let first = (node * self.cpus).div_ceil(self.nodes);
        node * CPUS_MAX + (cpu - first) / self.llc
    }

    /// The group of each CPU within its node, in groups of `cpus` CPUs at most, and the largest
    /// number of groups in a node.
    pub fn groups(&self, cpus: usize) -> (Vec<usize>, usize) {
        let (mut of, mut largest) = (Vec::new(), 1);
        for node in 0..self.nodes {
            let mut groups = Groups::new(cpus);
            let mut left: Vec<_> = (0..self.cpus)
                .filter(|&c| self.node_of(c) == node)
                .collect();
            while let Some(&first) = left.first() {
                let cache = self.cache_of(first);
                let size = left.iter().filter(|&&c| self.cache_of(c) == cache).count();
                of.extend(groups.add(size));
                left.drain(..size);
            }
            largest = largest.max(groups.len());
        }
        (of, largest)
    }

    /// Steps between two nodes, which form a ring.
    pub fn steps(&self, from: usize, to: usize) -> usize {
        let steps = from.abs_diff(to);
        steps.min(self.nodes - steps)
    }

    /// How far apart two CPUs are.
    pub fn distance(&self, from: usize, to: usize) -> Distance {
        if from == to {
            return Distance::Own;
        }
        let (a, b) = (self.node_of(from), self.node_of(to));
        if a != b {
            Distance::Remote(self.steps(a, b))
        } else if self.cache_of(from) == self.cache_of(to) {
            Distance::Cache
        } else {
            Distance::Node
        }
    }

    /// The nearest node with memory.
    pub fn memory_node(&self, node: usize) -> usize {
        let with_memory = (0..self.nodes).filter(|&n| self.memory[n]);
        with_memory
            .min_by_key(|&n| (self.steps(node, n), n))
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_grouped_by_node_and_then_by_cache() {
        let t = Topology::new(32, 4, 4, &[0, 2]).unwrap();
        assert_eq!([0, 7, 8, 31].map(|c| t.node_of(c)), [0, 0, 1, 3]);
        assert_eq!(t.distance(8, 11), Distance::Cache);
        assert_eq!(t.distance(8, 12), Distance::Node);
        assert_eq!(t.distance(0, 31), Distance::Remote(1));
        assert_eq!(t.distance(0, 16), Distance::Remote(2));
        assert_eq!([0, 1, 2, 3].map(|n| t.memory_node(n)), [0, 0, 2, 0]);
        assert_eq!(t.groups(16).1, 1);
        let (groups, largest) = t.groups(4);
        assert_eq!((groups[3], groups[4], groups[8], largest), (0, 1, 0, 2));
    }

    #[test]
    fn numbers_out_of_bounds_are_named() {
        for (cpus, nodes, llc, memory) in [
            (0, 1, 8, 0),
            (513, 1, 8, 0),
            (4, 17, 8, 0),
            (4, 2, 0, 0),
            (4, 2, 8, 99),
        ] {
            assert!(Topology::new(cpus, nodes, llc, &[memory]).is_err());
        }
        assert_eq!(Topology::new(2, 8, 8, &[]).unwrap().nodes, 2);
    }
}
