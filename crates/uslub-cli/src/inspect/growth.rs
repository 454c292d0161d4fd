//! Whether a number of objects grows steadily, from looks at different times.
//!
//! | verdict | the objects |
//! |---|---|
//! | suspect | rose in a steady way, and at this rate by 1 MiB or more within an hour |
//! | small | rose in a steady way, but by less than 1 MiB within an hour |
//! | slows | rose in a steady way at first, and then at less than a quarter of that rate |
//! | few looks | rose, but fewer than four looks cannot say that it is steady |
//! | uneven | are more at the end, but did not rise steadily |
//! | still | are as many as before, or the change is not beyond what a look may be wrong by |
//!
//! The rate is the median of the slopes between all pairs of looks (Theil and Sen): one odd look
//! does not move it. Steady means that Kendall's tau-b is above 0.8: nearly every later look has
//! more objects than an earlier one, where the two differ.

/// Looks of a series that are kept; when they are more, each second one is dropped.
const POINTS_MAX: usize = 256;
/// Looks without which nothing is called steady.
const POINTS_STEADY: usize = 4;
/// Kendall's tau-b above which a rise is steady. One step up among many looks has 0.71.
const TAU_STEADY: f64 = 0.8;
/// A rise whose later half has less than this part of the rate of the first half slows down.
const SLOWING: f64 = 0.25;
/// Bytes in an hour from which on a steady rise is suspect.
const SUSPECT_BYTES: f64 = 1024.0 * 1024.0;

/// What one look saw of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Seconds since the first look.
    pub seconds: f64,
    /// Live objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects by which the look may be wrong.
    pub unsure: u64,
}

/// The looks at one cache, by time.
#[derive(Clone, Debug, Default)]
pub struct Series {
    points: Vec<Point>,
    /// The last look, which may not be among the points.
    last: Option<Point>,
    seen: usize,
    each: usize,
}

/// What the looks say together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Steady, and much within an hour.
    Suspect,
    /// Steady, and little within an hour.
    Small,
    /// Steady at first, slower later.
    Slows,
    /// More, by too few looks.
    Few,
    /// More, but not by a steady rise.
    Uneven,
    /// Not more.
    Still,
}

/// How a series grew.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// The first look.
    pub first: Point,
    /// The last look.
    pub last: Point,
    /// Objects a second.
    pub rate: f64,
    /// Bytes a second.
    pub byte_rate: f64,
    /// Steps from look to look.
    pub steps: usize,
    /// Steps in which the objects rose.
    pub rose: usize,
    /// Steps in which they fell.
    pub fell: usize,
    /// What it means.
    pub verdict: Verdict,
}

impl Growth {
    /// Bytes an hour after the last look, if the rate stays.
    pub fn in_an_hour(&self) -> u64 {
        (self.last.bytes as f64 + self.byte_rate * 3600.0).max(0.0) as u64
    }

    /// A number of steps as a part of all steps.
    pub fn part(&self, steps: usize) -> f64 {
        steps as f64 / self.steps.max(1) as f64
    }

    /// Whether the objects rose steadily from the first look to the last.
    pub fn is_steady(&self) -> bool {
        matches!(self.verdict, Verdict::Suspect | Verdict::Small)
    }
}

impl Series {
    /// Adds a look.
    pub fn add(&mut self, point: Point) {
        self.last = Some(point);
        self.seen += 1;
        if !(self.seen - 1).is_multiple_of(self.each.max(1)) {
            return;
        }
        self.points.push(point);
        if self.points.len() > POINTS_MAX {
            let mut keep = [true, false].into_iter().cycle();
            self.points.retain(|_| keep.next().unwrap_or(true));
            self.each = self.each.max(1) * 2;
        }
    }

    /// What the looks say; `None` with fewer than two.
    pub fn growth(&self) -> Option<Growth> {
        let mut points = self.points.clone();
        points.extend(self.last.filter(|last| points.last() != Some(last)));
        let (&first, &last) = (points.first()?, points.last()?);
        if points.len() < 2 || last.seconds <= first.seconds {
            return None;
        }
        let steps = |is: fn(&[Point]) -> bool| points.windows(2).filter(|pair| is(pair)).count();
        let mut growth = Growth {
            first,
            last,
            rate: slope(&points, |point| point.objects as f64),
            byte_rate: slope(&points, |point| point.bytes as f64),
            steps: points.len() - 1,
            rose: steps(|pair| pair[1].objects > pair[0].objects),
            fell: steps(|pair| pair[1].objects < pair[0].objects),
            verdict: Verdict::Still,
        };
        growth.verdict = verdict(&points, &growth);
        Some(growth)
    }
}

fn verdict(points: &[Point], growth: &Growth) -> Verdict {
    let (first, last) = (growth.first, growth.last);
    let unsure = first.unsure.saturating_add(last.unsure);
    if last.objects <= first.objects.saturating_add(unsure) {
        return Verdict::Still;
    }
    if points.len() < POINTS_STEADY {
        return Verdict::Few;
    }
    if tau(points) <= TAU_STEADY || growth.byte_rate <= 0.0 {
        return Verdict::Uneven;
    }
    let half = points.len() / 2;
    let rate = |points: &[Point]| slope(points, |point| point.objects as f64);
    // Three looks or more for each half, with the one in the middle in both.
    if half >= 2 && rate(&points[half..]) < SLOWING * rate(&points[..=half]) {
        return Verdict::Slows;
    }
    if growth.byte_rate * 3600.0 < SUSPECT_BYTES {
        return Verdict::Small;
    }
    Verdict::Suspect
}

/// Median of the slopes between all pairs of points.
fn slope(points: &[Point], of: impl Fn(&Point) -> f64) -> f64 {
    let mut slopes = Vec::with_capacity(points.len() * points.len() / 2);
    for (i, a) in points.iter().enumerate() {
        for b in &points[i + 1..] {
            if b.seconds > a.seconds {
                slopes.push((of(b) - of(a)) / (b.seconds - a.seconds));
            }
        }
    }
    if slopes.is_empty() {
        return 0.0;
    }
    let middle = slopes.len() / 2;
    *slopes.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// Kendall's tau-b of time and objects, from -1 to 1; 0 if the objects never change.
fn tau(points: &[Point]) -> f64 {
    let (mut up, mut down, mut pairs) = (0.0_f64, 0.0_f64, 0.0_f64);
    for (i, a) in points.iter().enumerate() {
        for b in &points[i + 1..] {
            pairs += 1.0;
            up += f64::from(b.objects > a.objects);
            down += f64::from(b.objects < a.objects);
        }
    }
    let weight = (pairs * (up + down)).sqrt();
    if weight == 0.0 {
        0.0
    } else {
        (up - down) / weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict on objects of `size` bytes, seen once a second.
    fn of(size: u64, objects: impl IntoIterator<Item = u64>) -> Growth {
        let mut series = Series::default();
        for (i, objects) in objects.into_iter().enumerate() {
            series.add(Point {
                seconds: i as f64,
                objects,
                bytes: objects * size,
                unsure: 10,
            });
        }
        series.growth().expect("two looks or more")
    }

    #[test]
    fn a_steady_rise_is_suspect_and_its_rate_is_exact() {
        let growth = of(200, (0..60).map(|i| 1000 + 7 * i));
        assert_eq!(growth.verdict, Verdict::Suspect);
        assert_eq!((growth.rate, growth.byte_rate), (7.0, 1400.0));
        assert_eq!((growth.rose, growth.fell, growth.steps), (59, 0, 59));
        assert!((growth.part(growth.rose), growth.is_steady()) == (1.0, true));
        assert_eq!(growth.in_an_hour(), (1000 + 7 * 59) * 200 + 7 * 3600 * 200);
        // One odd look changes neither.
        let growth = of(200, (0..60).map(|i| if i == 30 { 0 } else { 1000 + 7 * i }));
        assert_eq!(growth.verdict, Verdict::Suspect);
        assert!((growth.rate - 7.0).abs() < 0.1, "{}", growth.rate);
    }

    #[test]
    fn other_shapes_are_told_apart() {
        assert_eq!(of(64, (0..60).map(|_| 500)).verdict, Verdict::Still);
        assert_eq!(of(64, (0..60).map(|i| 500 - i)).verdict, Verdict::Still);
        // Not beyond what two looks may be wrong by.
        assert_eq!(of(64, [500, 505, 510, 515, 520]).verdict, Verdict::Still);
        assert_eq!(of(4096, [500, 600]).verdict, Verdict::Few);
        let saw = (0..60).map(|i| 500 + i % 10 * 40 + i);
        assert_eq!(of(64, saw).verdict, Verdict::Uneven);
        let step = (0..60).map(|i| if i < 30 { 500 } else { 900 });
        assert_eq!(of(64, step).verdict, Verdict::Uneven);
        let fills = (0..60).map(|i: u64| if i < 30 { 100 * i } else { 2970 + i });
        assert_eq!(of(64, fills).verdict, Verdict::Slows);
        // 30 objects of 8 bytes in a minute.
        assert_eq!(of(8, (0..60).map(|i| 500 + i / 2)).verdict, Verdict::Small);
    }

    #[test]
    fn very_many_looks_keep_a_bounded_number() {
        let growth = of(200, (0..100_000).map(|i| 3 * i));
        assert_eq!((growth.rate, growth.verdict), (3.0, Verdict::Suspect));
        assert_eq!(growth.last.objects, 3 * 99_999);
        let mut series = Series::default();
        for i in 0..100_000 {
            let point = Point {
                seconds: f64::from(i),
                ..of(1, [0, 0]).first
            };
            series.add(point);
        }
        assert!(series.points.len() <= POINTS_MAX);
    }

    #[test]
    fn one_look_says_nothing() {
        let mut series = Series::default();
        assert!(series.growth().is_none());
        series.add(of(1, [5, 5]).first);
        assert!(series.growth().is_none());
    }
}
