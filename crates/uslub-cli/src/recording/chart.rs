//! Charts over time as SVG: stacked areas, and small lines for tables.
//!
//! Colours are classes of the page's style sheet, so a chart follows the page between light and
//! dark. Legends are HTML, because HTML wraps.

use std::fmt::Write;

/// The drawings of a chart: class, width and height in units of the drawing. The page shows the one
/// that fits the screen, and scales it.
const SIZES: [(&str, f64, f64); 2] = [("wide", 900.0, 280.0), ("narrow", 360.0, 240.0)];
/// Room for labels: left, below, above, right.
const ROOM: (f64, f64, f64, f64) = (64.0, 24.0, 8.0, 8.0);
/// Lines across, at most.
const LINES: u32 = 5;
/// Width and height of a small line.
const SMALL: (f64, f64) = (120.0, 24.0);

/// One area.
#[derive(Clone, Debug)]
pub struct Area {
    /// What it shows.
    pub name: String,
    /// Number of its colour in the style sheet.
    pub colour: usize,
    /// Its values, one for each point.
    pub values: Vec<u64>,
}

impl Area {
    /// Whether nothing of it can be seen.
    pub fn is_empty(&self) -> bool {
        self.values.iter().all(|&value| value == 0)
    }
}

/// Stacked areas over time.
pub struct Areas<'a> {
    /// Milliseconds of each point, ascending.
    pub times: &'a [u64],
    /// The areas, the lowest first.
    pub areas: &'a [Area],
    /// Milliseconds of the time to mark.
    pub mark: Option<u64>,
    /// Value as text.
    pub value: fn(u64) -> String,
    /// Time as text.
    pub time: fn(u64) -> String,
}

impl Areas<'_> {
    /// The `svg` elements, for wide and for narrow screens.
    pub fn svg(&self) -> String {
        SIZES.map(|size| self.draw(size)).concat()
    }

    fn draw(&self, (class, width, height): (&str, f64, f64)) -> String {
        let duration = self.times.last().copied().unwrap_or(0).max(1);
        let sums: Vec<u64> = (0..self.times.len())
            .map(|i| {
                self.areas
                    .iter()
                    .fold(0, |sum: u64, a| sum.saturating_add(a.values[i]))
            })
            .collect();
        let highest = sums.iter().copied().max().unwrap_or(0).max(1);
        let step = step(highest);
        let top = highest.div_ceil(step).saturating_mul(step);
        let x = |ms: u64| ROOM.0 + (width - ROOM.0 - ROOM.3) * (ms as f64 / duration as f64);
        let y =
            |value: u64| height - ROOM.1 - (height - ROOM.1 - ROOM.2) * (value as f64 / top as f64);
        let mut svg =
            format!("<svg class=\"{class}\" viewBox=\"0 0 {width} {height}\" role=\"img\">");
        self.push_areas(&mut svg, &x, &y);
        for line in (0..=top / step).map(|number| number * step) {
            let (at, text) = (y(line), (self.value)(line));
            let right = width - ROOM.3;
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{:.1} {at:.1}H{right:.1}\"/><text class=\"side\" \
                 x=\"{:.1}\" y=\"{:.1}\">{text}</text>",
                ROOM.0,
                ROOM.0 - 6.0,
                at + 4.0
            );
        }
        for (part, anchor) in [(0, "left"), (1, "middle"), (2, "right")] {
            let ms = duration / 2 * part;
            let _ = write!(
                svg,
                "<text class=\"{anchor}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x(ms),
                height - 7.0,
                (self.time)(ms)
            );
        }
        if let Some(mark) = self.mark {
            let bottom = height - ROOM.1;
            let at = x(mark);
            let _ = write!(
                svg,
                "<path class=\"mark\" d=\"M{at:.1} {:.1}V{bottom:.1}\"/>",
                ROOM.2
            );
        }
        svg + "</svg>"
    }

    fn push_areas(&self, svg: &mut String, x: &dyn Fn(u64) -> f64, y: &dyn Fn(u64) -> f64) {
        let mut below = vec![0_u64; self.times.len()];
        for area in self.areas {
            let above: Vec<u64> = below
                .iter()
                .zip(&area.values)
                .map(|(b, a)| b.saturating_add(*a))
                .collect();
            if !area.is_empty() {
                let mut path = String::from("M");
                for (&ms, &value) in self.times.iter().zip(&above) {
                    let _ = write!(path, "{:.1} {:.1} ", x(ms), y(value));
                }
                for (&ms, &value) in self.times.iter().zip(&below).rev() {
                    let _ = write!(path, "{:.1} {:.1} ", x(ms), y(value));
                }
                let _ = write!(
                    svg,
                    "<path class=\"a{}\" d=\"{}Z\"/>",
                    area.colour,
                    path.trim_end()
                );
            }
            below = above;
        }
    }
}

/// The distance of lines across: 1, 2 or 5 times a power of two of a unit's size.
fn step(highest: u64) -> u64 {
    let unit = 1_u64 << (highest.ilog2() / 10 * 10);
    let steps = (0..).flat_map(|power: u32| {
        [1, 2, 5].map(|n: u64| n.saturating_mul(10_u64.saturating_pow(power)))
    });
    let rough = highest.div_ceil(u64::from(LINES));
    // Below a unit, in halves and quarters: 256 KiB of a MiB.
    if rough < unit {
        let mut step = unit;
        while step / 2 >= rough.max(1) {
            step /= 2;
        }
        return step;
    }
    let mut multiples = steps.map(|n| n.saturating_mul(unit));
    multiples.find(|&step| step >= rough).unwrap_or(u64::MAX)
}

/// A small line of values at times, from 0 to the highest one.
pub fn small(values: &[(u64, u64)]) -> String {
    let (width, height) = SMALL;
    let duration = values.last().map_or(0, |v| v.0).max(1) as f64;
    let highest = values.iter().map(|v| v.1).max().unwrap_or(0).max(1) as f64;
    let mut path = String::from("M");
    for &(ms, value) in values {
        let x = ms as f64 / duration * width;
        let y = height - 1.0 - (height - 2.0) * (value as f64 / highest);
        let _ = write!(path, "{x:.0} {y:.1} ");
    }
    format!(
        "<svg class=\"small\" viewBox=\"0 0 {width} {height}\" preserveAspectRatio=\"none\" \
         aria-hidden=\"true\"><path d=\"{}\"/></svg>",
        path.trim_end()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_across_are_few_and_at_round_values() {
        for (highest, expected) in [
            (1, 1),
            (100, 20),
            (1 << 20, 1 << 18),
            (3 << 20, 1 << 20),
            (70 << 20, 20 << 20),
            (1 << 30, 1 << 28),
        ] {
            assert_eq!(step(highest), expected, "{highest}");
        }
        let mut value = 1_u64;
        while value < u64::MAX / 3 {
            value += value / 2 + 1;
            let lines = value.div_ceil(step(value));
            assert!((1..=10).contains(&lines), "{value}: {lines}");
        }
        assert!(step(u64::MAX) > 0);
    }

    #[test]
    fn areas_lie_on_each_other_within_the_drawing() {
        let area = |colour, values: &[u64]| Area {
            name: String::new(),
            colour,
            values: values.to_vec(),
        };
        let areas = [
            area(0, &[1 << 20, 2 << 20, 0]),
            area(1, &[1 << 20, 0, u64::MAX]),
        ];
        let chart = Areas {
            times: &[0, 1000, 9000],
            areas: &areas,
            mark: Some(1000),
            value: |v| v.to_string(),
            time: |ms| format!("{ms} ms"),
        };
        let svg = chart.svg();
        assert!(svg.contains("class=\"a0\"") && svg.contains("class=\"a1\""));
        assert!(svg.contains("class=\"mark\"") && svg.contains(">9000 ms</text>"));
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("=\"-"));
        let empty = Areas {
            times: &[0],
            areas: &[area(0, &[0])],
            mark: None,
            ..chart
        };
        assert!(!empty.svg().contains("NaN"));
        assert!(small(&[]).starts_with("<svg") && !small(&[(0, 0)]).contains("NaN"));
    }
}
