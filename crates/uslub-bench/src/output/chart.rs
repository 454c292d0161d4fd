//! Charts: bars and curves as SVG in the colours of the page. `page` embeds them.
//!
//! The plotting library draws in fixed colours. Each fixed colour stands for a colour of the page
//! and is replaced by its name, so the chart follows the page between light and dark. The page
//! prints title and legend, because it can wrap them.

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Width and height of a chart in units of the SVG; the page scales it.
const SIZE: (u32, u32) = (440, 260);
/// Height and approximate width of a letter, in units of the SVG.
const LETTER: (i32, usize) = (14, 7);
/// Colours that stand for the page's colours: text, grid and series.
const TEXT: RGBColor = RGBColor(1, 1, 1);
const GRID: RGBColor = RGBColor(2, 2, 2);
const SERIES: [RGBColor; 4] = [
    RGBColor(3, 3, 1),
    RGBColor(3, 3, 2),
    RGBColor(3, 3, 3),
    RGBColor(3, 3, 4),
];
/// Width of a group of bars, as a share of the available width.
const GROUP: f64 = 0.8;

/// The area inside the axes.
type Plane<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The meaning of the horizontal axis.
#[derive(Clone, Debug)]
enum Axis {
    /// Groups of bars, with these names.
    Groups(Vec<String>),
    /// Numbers with this meaning; each tick doubles the number.
    Numbers(String),
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The title: the subject of the chart.
    pub title: String,
    /// Unit of the vertical axis.
    pub unit: String,
    axis: Axis,
    logarithmic: bool,
    series: Vec<(String, Vec<(f64, f64)>)>,
}

/// Values of a series: the heights of bars in order, or the points of a curve.
pub trait Points {
    /// The values as points; bars stand at 0, 1, 2, ….
    fn points(self) -> Vec<(f64, f64)>;
}

impl Points for Vec<f64> {
    fn points(self) -> Vec<(f64, f64)> {
        let at = |(i, height)| (i as f64, height);
        self.into_iter().enumerate().map(at).collect()
    }
}

impl Points for Vec<(f64, f64)> {
    fn points(self) -> Vec<(f64, f64)> {
        self
    }
}

impl Chart {
    /// A bar chart with groups of these names.
    pub fn bars(title: impl Into<String>, unit: &str, groups: Vec<String>) -> Self {
        Self {
            title: title.into(),
            unit: unit.to_owned(),
            axis: Axis::Groups(groups),
            logarithmic: false,
            series: Vec::new(),
        }
    }

    /// A chart of curves over numbers; both axes are logarithmic.
    pub fn curves(title: impl Into<String>, along: &str, unit: &str) -> Self {
        Self {
            axis: Axis::Numbers(along.to_owned()),
            ..Self::bars(title, unit, Vec::new()).logarithmic()
        }
    }

    /// Makes the vertical axis logarithmic.
    pub fn logarithmic(mut self) -> Self {
        self.logarithmic = true;
        self
    }

    /// Adds a series.
    pub fn with(mut self, name: &str, values: impl Points) -> Self {
        self.series.push((name.to_owned(), values.points()));
        self
    }

    /// Names of the series, in the order of their colours.
    pub fn legend(&self) -> impl Iterator<Item = &str> {
        self.series.iter().map(|(name, _)| name.as_str())
    }

    /// The chart as an `svg` element; empty if there is no data.
    pub fn svg(&self) -> String {
        let mut text = String::new();
        let drawn = {
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            self.draw(&area)
                .and_then(|()| area.present().map_err(|e| e.to_string()))
        };
        if drawn.is_err() {
            return String::new();
        }
        let mut colours = vec![
            (TEXT, "currentColor".to_owned()),
            (GRID, "var(--grid)".to_owned()),
        ];
        let series = SERIES.iter().enumerate();
        colours.extend(series.map(|(i, &colour)| (colour, format!("var(--s{i})"))));
        for (RGBColor(r, g, b), name) in colours {
            text = text.replace(&format!("#{r:02X}{g:02X}{b:02X}"), &name);
        }
        // The page scales the element.
        let (width, height) = SIZE;
        text.replace(
            &format!("width=\"{width}\" height=\"{height}\" viewBox"),
            "viewBox",
        )
    }

    /// The position of a value on the vertical scale.
    fn height(&self, value: f64) -> f64 {
        if self.logarithmic {
            value.max(1e-3).log10()
        } else {
            value
        }
    }

    /// Minimum and maximum of the vertical scale.
    fn heights(&self) -> (f64, f64) {
        let heights = self.series.iter().flat_map(|(_, points)| points);
        let heights = heights.map(|&(_, value)| self.height(value));
        let (least, greatest) = heights.fold((f64::MAX, f64::MIN), |(least, greatest), h| {
            (least.min(h), greatest.max(h))
        });
        if greatest < least {
            (0.0, 1.0)
        } else if self.logarithmic {
            (least.floor().min(greatest.ceil() - 1.0), greatest.ceil())
        } else {
            (0.0, (greatest * 1.08).max(f64::MIN_POSITIVE))
        }
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), String> {
        let (floor, ceiling) = self.heights();
        let along = match &self.axis {
            Axis::Groups(names) => 0.0..names.len() as f64,
            Axis::Numbers(_) => 0.0..8.0,
        };
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(14)
            .x_label_area_size(42)
            .y_label_area_size(60)
            .build_cartesian_2d(along, floor..ceiling)
            .map_err(|e| e.to_string())?;
        let font = ("sans-serif", LETTER.0).into_font().color(&TEXT);
        let scale = |height: &f64| {
            tick(if self.logarithmic {
                10f64.powf(*height)
            } else {
                *height
            })
        };
        let number = |along: &f64| format!("{:.0}", along.exp2());
        let mut mesh = chart.configure_mesh();
        mesh.disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .label_style(font.clone())
            .y_label_formatter(&scale)
            .y_desc(&self.unit)
            .axis_desc_style(font.clone());
        let decades = (ceiling - floor).round() as usize + 1;
        mesh.y_labels(if self.logarithmic { decades } else { 6 });
        match &self.axis {
            Axis::Groups(_) => mesh.x_labels(0),
            Axis::Numbers(along) => mesh.x_labels(9).x_label_formatter(&number).x_desc(along),
        };
        mesh.draw().map_err(|e| e.to_string())?;
        self.draw_series(&mut chart, floor)?;
        if let Axis::Groups(names) = &self.axis {
            let style = font.pos(Pos::new(HPos::Center, VPos::Top));
            let room = SIZE.0 as usize * 4 / 5 / names.len().max(1) / LETTER.1;
            for (i, name) in names.iter().enumerate() {
                let (x, y) = chart.backend_coord(&(i as f64 + 0.5, floor));
                for (line, text) in lines_of(name, room).into_iter().enumerate() {
                    let at = (x, y + 6 + line as i32 * (LETTER.0 + 2));
                    area.draw(&Text::new(text, at, style.clone()))
                        .map_err(|e| e.to_string())?;
                }
            }
        }
        Ok(())
    }

    /// Draws the bars or the curves.
    fn draw_series(&self, chart: &mut Plane<'_>, floor: f64) -> Result<(), String> {
        for (i, (_, points)) in self.series.iter().enumerate() {
            let colour = SERIES[i % SERIES.len()];
            let drawn = match &self.axis {
                Axis::Groups(_) => chart.draw_series(points.iter().map(|&(group, value)| {
                    let width = GROUP / self.series.len() as f64;
                    let left = group + (1.0 - GROUP) / 2.0 + width * i as f64;
                    let corners = [(left, floor), (left + width * 0.92, self.height(value))];
                    Rectangle::new(corners, colour.filled())
                })),
                Axis::Numbers(_) => {
                    let line = points
                        .iter()
                        .map(|&(n, value)| (n.log2(), self.height(value)));
                    let style = colour.stroke_width(2);
                    chart
                        .draw_series(LineSeries::new(line.clone(), style))
                        .map_err(|e| e.to_string())?;
                    let dots = line.map(|at| Circle::new(at, 3, colour.filled()));
                    chart.draw_series(dots)
                }
            };
            drawn.map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

/// A name, split into lines of about `letters` letters.
fn lines_of(name: &str, letters: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < letters => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The label of a tick.
fn tick(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", trimmed(v / 1e6)),
        v if v >= 1e4 => format!("{} k", trimmed(v / 1e3)),
        v => trimmed(v),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_and_curves_are_drawn_in_the_pages_colours() {
        let bars = Chart::bars("b", "ns", vec!["16 B".into(), "32 B".into()])
            .with("old", vec![3.0, 4.0])
            .with("new", vec![1.0, 1.5]);
        let curves = Chart::curves("c", "objects", "ns")
            .with("old", vec![(1.0, 20.0), (250.0, 3.0)])
            .with("new", vec![(1.0, 0.4), (250.0, 0.2)]);
        for chart in [bars, curves] {
            let svg = chart.svg();
            assert!(svg.starts_with("<svg viewBox=\"0 0 440 260\""), "{svg}");
            assert!(svg.contains("var(--s0)") && svg.contains("var(--s1)"));
            assert!(svg.contains("currentColor") && !svg.contains('#'), "{svg}");
            assert_eq!(chart.legend().collect::<Vec<_>>(), ["old", "new"]);
        }
    }

    #[test]
    fn nothing_to_draw_is_no_error() {
        assert!(!Chart::bars("b", "ns", vec![]).svg().is_empty());
        let zero = Chart::bars("b", "ns", vec!["a".into()]).with("old", vec![0.0]);
        assert!(!zero.svg().is_empty() && !zero.logarithmic().svg().is_empty());
    }

    #[test]
    fn long_names_are_broken_at_blanks() {
        assert_eq!(lines_of("16 B", 12), ["16 B"]);
        assert_eq!(
            lines_of("slabs taken and returned", 13),
            ["slabs taken", "and returned"]
        );
    }

    #[test]
    fn ticks_are_short() {
        assert_eq!(
            [tick(0.5), tick(10.0), tick(20_000.0), tick(3e6)],
            ["0.5", "10", "20 k", "3 M"]
        );
    }
}
