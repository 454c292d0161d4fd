//! The last line of `uslub bench run`: one sentence that compares uslub with one other allocator.
//!
//! The other is the one whose median CPU time is least. A figure is the median of the ratios of
//! runs of one round. Its noise is half of the range in which the middle half of these ratios lies.
//! A figure below its noise is no difference.

/// CPU time and peak memory of one run, in any unit.
pub type Cost = (f64, f64);

/// The sentence, for the costs of each round; `None` without other allocators or without rounds.
pub fn sentence(ours: &[Cost], others: &[(&str, &[Cost])]) -> Option<String> {
    let least = |costs: &[Cost]| quantile(costs.iter().map(|cost| cost.0).collect(), 0.5);
    let (name, theirs) = (others.iter())
        .filter(|(_, costs)| !costs.is_empty())
        .min_by(|a, b| least(a.1).total_cmp(&least(b.1)))?;
    if ours.is_empty() {
        return None;
    }
    let cpu = Difference::of(ours, theirs, |cost| cost.0);
    let memory = Difference::of(ours, theirs, |cost| cost.1);
    let best = if others.len() > 1 {
        ", the best of the others"
    } else {
        ""
    };
    Some(format!(
        "uslub: {}, {} than {name}{best}; noise ±{:.0} % and ±{:.0} %.",
        cpu.words("CPU"),
        memory.words("memory"),
        cpu.noise.ceil(),
        memory.noise.ceil()
    ))
}

/// A difference and its noise, in per cent of the other.
struct Difference {
    median: f64,
    noise: f64,
}

impl Difference {
    fn of(ours: &[Cost], theirs: &[Cost], part: fn(&Cost) -> f64) -> Self {
        let pairs = ours.iter().zip(theirs);
        // What is too short to measure costs the same on every allocator.
        let ratio = |(a, b): (&Cost, &Cost)| match (part(a), part(b)) {
            (a, b) if b > 0.0 => 100.0 * (a / b - 1.0),
            _ => 0.0,
        };
        let all: Vec<_> = pairs.map(ratio).collect();
        Self {
            noise: (quantile(all.clone(), 0.75) - quantile(all.clone(), 0.25)) / 2.0,
            median: quantile(all, 0.5),
        }
    }

    fn words(&self, what: &str) -> String {
        let size = self.median.abs();
        // Less than half of one per cent would be printed as 0.
        if size < self.noise || size < 0.5 {
            return format!("no more or less {what}");
        }
        let word = if self.median < 0.0 { "less" } else { "more" };
        format!("{size:.0} % {word} {what}")
    }
}

/// The value below which a share of the values lies, between two values by proportion.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = share * (values.len() - 1) as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    values[below] + (values[above] - values[below]) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_the_best_of_the_others() {
        let ours = [(0.93, 1.03); 5];
        let [mimalloc, glibc] = [[(1.0, 1.0); 5], [(1.2, 0.9); 5]];
        assert_eq!(
            sentence(&ours, &[("glibc", &glibc), ("mimalloc", &mimalloc)]).unwrap(),
            "uslub: 7 % less CPU, 3 % more memory than mimalloc, the best of the others; \
             noise ±0 % and ±0 %."
        );
        assert_eq!(
            sentence(&ours, &[("glibc", &glibc)]).unwrap(),
            "uslub: 22 % less CPU, 14 % more memory than glibc; noise ±0 % and ±0 %."
        );
        assert_eq!(sentence(&ours, &[]), None);
        assert_eq!(sentence(&[], &[("glibc", &[])]), None);
    }

    #[test]
    fn a_difference_within_the_noise_is_none() {
        let ours = [(0.9, 1.0), (1.0, 1.0), (1.1, 1.0), (1.02, 1.0)];
        let said = sentence(&ours, &[("glibc", &[(1.0, 1.0); 4])]).unwrap();
        assert_eq!(
            said,
            "uslub: no more or less CPU, no more or less memory than glibc; noise ±4 % and ±0 %."
        );
    }

    #[test]
    fn a_program_that_costs_nothing_costs_the_same() {
        let said = sentence(&[(0.0, 5.0)], &[("glibc", &[(0.0, 5.0)])]).unwrap();
        assert!(said.starts_with("uslub: no more or less CPU"), "{said}");
    }

    #[test]
    fn quantiles_lie_between_two_values() {
        assert_eq!(quantile(vec![4.0, 1.0, 2.0, 3.0], 0.5), 2.5);
        assert_eq!(quantile(vec![7.0], 0.75), 7.0);
    }
}
