//! The width of the output, and text that keeps within it. `summary` and its tables use it.

/// Columns for a file or a pipe.
const NO_TERMINAL: usize = 100;
/// Widest text for people, however wide the terminal is.
const WIDEST: usize = 120;
/// Narrowest terminal that the text adapts to.
const NARROWEST: usize = 40;

/// Columns of standard error. Where it is no terminal, or one without a size, the variable
/// `COLUMNS` counts.
pub fn of_stderr() -> usize {
    let terminal = console::Term::stderr().size_checked();
    let columns = terminal.map(|(_, columns)| usize::from(columns));
    columns_or(columns, std::env::var("COLUMNS").ok().as_deref())
}

fn columns_or(terminal: Option<usize>, variable: Option<&str>) -> usize {
    let variable = variable.and_then(|text| text.parse().ok());
    let columns = terminal.or(variable);
    columns.map_or(NO_TERMINAL, |columns| columns.clamp(NARROWEST, WIDEST))
}

/// Joins `words` by `between`, in lines of at most `width` columns where words allow. Lines after
/// the first begin with `indent` blanks, and the first line has that many in front already.
pub fn wrap(words: &[impl AsRef<str>], between: &str, indent: usize, width: usize) -> String {
    let mut text = String::new();
    let mut column = indent;
    for (i, word) in words.iter().map(AsRef::as_ref).enumerate() {
        let last = i + 1 == words.len();
        let end = if last { "" } else { between };
        let length = word.chars().count() + end.trim_end().chars().count();
        if i > 0 && column + length > width {
            text.truncate(text.trim_end().len());
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            column = indent;
        }
        text.push_str(word);
        text.push_str(end);
        column += word.chars().count() + end.chars().count();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_terminal_counts_before_the_variable() {
        assert_eq!(columns_or(Some(60), Some("70")), 60);
        assert_eq!(columns_or(None, Some("70")), 70);
        assert_eq!(columns_or(None, Some("wide")), NO_TERMINAL);
        assert_eq!(columns_or(None, None), NO_TERMINAL);
        assert_eq!(columns_or(Some(1), None), NARROWEST);
        assert_eq!(columns_or(Some(9999), None), WIDEST);
    }

    #[test]
    fn lines_are_as_long_as_they_may_be() {
        let words = ["peak 12.3 MiB", "at exit 10.0 MiB", "x"];
        let joined = "peak 12.3 MiB, at exit 10.0 MiB, x";
        assert_eq!(wrap(&words, ", ", 4, 4 + joined.len()), joined);
        assert_eq!(
            wrap(&words, ", ", 4, 3 + joined.len()),
            "peak 12.3 MiB, at exit 10.0 MiB,\n    x"
        );
        assert_eq!(
            wrap(&words, ", ", 2, 10),
            "peak 12.3 MiB,\n  at exit 10.0 MiB,\n  x"
        );
    }
}
