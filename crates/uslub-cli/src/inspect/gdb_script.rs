//! `uslub gdb-script`: the commands inside gdb. The script calls this program.

/// The script; `@PROGRAM@` stands for the program's path as a literal of Python.
const SCRIPT: &str = include_str!("uslub_gdb.py");

/// The script for this program.
pub fn text() -> String {
    let program = std::env::current_exe().ok();
    let program = program.and_then(|path| path.into_os_string().into_string().ok());
    SCRIPT.replace("@PROGRAM@", &literal(program.as_deref().unwrap_or("uslub")))
}

/// A text as a literal of Python.
fn literal(text: &str) -> String {
    let mut literal = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => literal.extend(['\\', c]),
            c if c.is_control() => literal.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => literal.push(c),
        }
    }
    literal + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_names_this_program() {
        let program = std::env::current_exe().unwrap();
        let line = format!("_PROGRAM = \"{}\"", program.display());
        assert!(text().lines().any(|l| l == line), "{line}");
        assert!(!text().contains("@PROGRAM@"));
        assert_eq!(literal("a\"b\\c\nd"), r#""a\"b\\c\x0ad""#);
    }
}
