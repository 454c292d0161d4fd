//! `uslub pages`: the man pages and the completions of shells, as files below a prefix.
//! `scripts/install` and packages call it; it is no command for users.
//!
//! The pages of section 1 come from the command line's own description, so they cannot differ from
//! the help. The other pages are written by hand.

use crate::cli::Cli;
use crate::ending::Ending;
use crate::failure::Failure;
use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use std::fs;
use std::io;
use std::path::Path;

/// Pages that are written by hand: section, name, text.
const WRITTEN: [(u32, &str, &str); 2] = [
    (3, "libuslub", include_str!("../man/libuslub.3")),
    (7, "uslub_malloc", include_str!("../man/uslub_malloc.7")),
];

/// The shells, and where each looks for completions.
const SHELLS: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "bash-completion/completions", "uslub"),
    (Shell::Zsh, "zsh/site-functions", "_uslub"),
    (Shell::Fish, "fish/vendor_completions.d", "uslub.fish"),
];

/// Writes all files below `prefix`.
///
/// # Errors
///
/// If a file cannot be written.
pub fn write(prefix: &Path) -> Result<Ending, Failure> {
    write_all(&prefix.join("share")).map_err(|error| {
        Failure::ours(
            format!("cannot write below {}: {error}", prefix.display()),
            "name a folder that can be written",
        )
    })?;
    Ok(Ending::Exited(0))
}

fn write_all(share: &Path) -> io::Result<()> {
    let mut root = public(&Cli::command());
    root.build();
    write_man(&root, &share.join("man/man1"))?;
    for (section, name, text) in WRITTEN {
        let folder = share.join(format!("man/man{section}"));
        put(&folder, &format!("{name}.{section}"), text.as_bytes())?;
    }
    for (shell, folder, file) in SHELLS {
        let mut text = Vec::new();
        generate(shell, &mut public(&Cli::command()), "uslub", &mut text);
        put(&share.join(folder), file, &text)?;
    }
    Ok(())
}

/// `command` without its hidden commands.
fn public(command: &Command) -> Command {
    let known = command.get_subcommands().filter(|c| !c.is_hide_set());
    let known: Vec<_> = known.map(public).collect();
    let mut copy = Command::new(command.get_name().to_owned())
        .args(command.get_arguments().cloned())
        .subcommands(known)
        .subcommand_required(command.is_subcommand_required_set())
        .disable_help_subcommand(true);
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    if let Some(text) = command.get_after_help() {
        copy = copy.after_help(text.clone());
    }
    match command.get_version() {
        Some(version) => copy.version(version.to_owned()),
        None => copy,
    }
}

/// A page for `command`, and one for each of its commands.
fn write_man(command: &Command, folder: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let mut text = Vec::new();
    let version = format!("uslub {}", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command.clone().name(name.to_owned()));
    page.source(version).render(&mut text)?;
    put(folder, &format!("{name}.1"), &text)?;
    let mut inner = command.get_subcommands().filter(|c| c.get_name() != "help");
    inner.try_for_each(|c| write_man(c, folder))
}

fn put(folder: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join(name), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> (tempfile::TempDir, impl Fn(&str) -> String) {
        let root = tempfile::tempdir().unwrap();
        write(root.path()).unwrap();
        let share = root.path().join("share");
        let read = move |name: &str| fs::read_to_string(share.join(name)).unwrap();
        (root, read)
    }

    #[test]
    fn each_command_has_a_page_that_names_its_options() {
        let (_root, read) = pages();
        assert!(read("man/man1/uslub.1").contains("uslub\\-run(1)"));
        let run = read("man/man1/uslub-run.1");
        for word in ["\\-\\-set", "\\-\\-follow", "slab_max_order"] {
            assert!(run.contains(word), "{word}: {run}");
        }
        assert!(read("man/man1/uslub-bench.1").contains("uslub\\-bench\\-run(1)"));
        assert!(read("man/man1/uslub-bench-run.1").contains("\\-\\-rounds"));
        assert!(read("man/man7/uslub_malloc.7").contains("LD_PRELOAD"));
        assert!(read("man/man3/libuslub.3").contains("kmem_cache_alloc"));
    }

    #[test]
    fn completions_know_the_commands_but_not_the_hidden_ones() {
        let (_root, read) = pages();
        for (_, folder, file) in SHELLS {
            let text = read(&format!("{folder}/{file}"));
            for word in ["run", "bench", "seeds", "rounds"] {
                assert!(text.contains(word), "{file}: {word}");
            }
            assert!(!text.contains("peer-child") && !text.contains("below PREFIX/share"));
        }
    }
}
