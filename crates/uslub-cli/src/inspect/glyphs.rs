//! Text for a terminal: characters that it has, columns that a text takes, bars.

use ratatui::text::Span;

/// Characters to draw with: some terminals have only ASCII.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glyphs {
    /// Blocks and arrows.
    Unicode,
    /// ASCII only.
    Ascii,
}

/// Whether the user's locale has UTF-8: the first of these variables that is set decides.
fn is_utf8() -> bool {
    let mut names = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter();
    let value = names.find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()));
    value.is_some_and(|value| {
        let value = value.to_lowercase();
        value.contains("utf-8") || value.contains("utf8")
    })
}

/// Columns that a text takes on the screen.
pub fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// A text at the right end of this many columns.
pub fn right(text: &str, columns: usize) -> String {
    let blanks = columns.saturating_sub(width(text));
    format!("{}{text}", " ".repeat(blanks))
}

impl Glyphs {
    /// ASCII if it is asked for, or the locale has nothing more.
    pub fn choose(ascii: bool) -> Self {
        if ascii || !is_utf8() {
            Glyphs::Ascii
        } else {
            Glyphs::Unicode
        }
    }

    /// What stands for the rest of a text that was cut.
    pub fn dots(self) -> &'static str {
        match self {
            Glyphs::Unicode => "…",
            Glyphs::Ascii => "~",
        }
    }

    /// A text in exactly this many columns: cut, or with blanks behind it.
    pub fn fit(self, text: &str, columns: usize) -> String {
        let length = width(text);
        if length <= columns {
            return format!("{text}{}", " ".repeat(columns - length));
        }
        let room = columns.saturating_sub(1);
        let (mut cut, mut used) = (String::new(), 0);
        for c in text.chars() {
            let next = width(c.encode_utf8(&mut [0; 4]));
            if used + next > room {
                break;
            }
            cut.push(c);
            used += next;
        }
        if columns > 0 {
            cut.push_str(self.dots());
        }
        cut + &" ".repeat(room - used)
    }

    /// Numbers as bars, from the lowest to the highest of eight.
    pub fn bars(self, numbers: &[u64], low: u64, high: u64) -> String {
        let bars = match self {
            Glyphs::Unicode => "▁▂▃▄▅▆▇█",
            Glyphs::Ascii => "_.-=+*#@",
        };
        let bars: Vec<_> = bars.chars().collect();
        let bar = |&number: &u64| {
            let part = u128::from(number.clamp(low, high.max(low)) - low) * 7;
            bars[(part / u128::from(high.saturating_sub(low).max(1))) as usize]
        };
        numbers.iter().map(bar).collect()
    }

    /// A share as a bar of at most this many columns; any share above 0 has one.
    pub fn bar(self, part: u64, whole: u64, columns: usize) -> String {
        let full = match self {
            Glyphs::Unicode => "█",
            Glyphs::Ascii => "#",
        };
        let filled = u128::from(part.min(whole)) * columns as u128;
        full.repeat(filled.div_ceil(u128::from(whole.max(1))) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_to_columns_not_to_characters() {
        assert_eq!(Glyphs::Unicode.fit("session", 5), "sess…");
        assert_eq!(Glyphs::Ascii.fit("session", 5), "sess~");
        assert_eq!(Glyphs::Unicode.fit("漢字漢字", 6), "漢字… ");
        for columns in 0..12 {
            let cut = Glyphs::Unicode.fit("a漢b字c漢", columns);
            assert_eq!(width(&cut), columns, "{cut}");
        }
    }

    #[test]
    fn bars_never_divide_by_zero() {
        let g = Glyphs::Unicode;
        assert_eq!(g.bars(&[5, 5], 5, 5), "▁▁");
        assert_eq!(g.bars(&[0, 7, 9], 0, 7), "▁██");
        assert_eq!(g.bars(&[0, u64::MAX], 0, u64::MAX), "▁█");
        assert_eq!(
            (g.bar(1, 0, 4), g.bar(0, 0, 4)),
            (String::new(), String::new())
        );
        assert_eq!(
            (g.bar(1, 1000, 4), g.bar(9, 3, 4)),
            ("█".into(), "████".into())
        );
        assert_eq!(Glyphs::Ascii.bar(1, 2, 4), "##");
    }
}
