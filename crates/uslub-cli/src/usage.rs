//! The messages for a wrong command line: one line, and the known commands or options. `main`
//! calls [`explain`].

use crate::cli::Cli;
use crate::ending::Ending;
use crate::failure::{Failure, USAGE};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};
use std::ffi::OsStr;
use std::iter;

/// Answers a command line that `clap` rejected: prints help or the version if the user requested
/// it, and otherwise names the error.
pub fn explain(error: clap::Error) -> Result<Ending, Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            Ok(Ending::Exited(0))
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            Ok(Ending::Exited(USAGE))
        }
        _ => {
            let words: Vec<_> = std::env::args_os().skip(1).collect();
            let root = Cli::command();
            Err(describe(&error, &root, &chosen(&root, &words)))
        }
    }
}

/// The command that the first words name, and its subcommand if the words name one, from outer to
/// inner.
fn chosen<'a, W: AsRef<OsStr>>(root: &'a Command, words: &[W]) -> Vec<&'a Command> {
    let mut commands = Vec::new();
    let mut inner = root;
    for word in words {
        let Some(next) = inner.find_subcommand(word) else {
            break;
        };
        commands.push(next);
        inner = next;
    }
    commands
}

/// The failure for an error in the last of `commands`, or in `root` if the words named no command.
fn describe(error: &clap::Error, root: &Command, commands: &[&Command]) -> Failure {
    let chosen = commands.last().copied();
    let names = commands.iter().map(|command| command.get_name());
    let path: Vec<_> = iter::once("uslub").chain(names).collect();
    let path = path.join(" ");
    let help = format!("see '{path} --help'");
    match (error.kind(), context(error, ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(word)) if !word.starts_with('-') => {
            let usage = chosen.unwrap_or(root).clone().bin_name(path).render_usage();
            Failure::usage(
                format!("'{word}' is one word too many"),
                usage.to_string().replacen("Usage", "usage", 1),
            )
        }
        (ErrorKind::InvalidUtf8, _) => {
            let mut words = std::env::args_os().filter(|word| word.to_str().is_none());
            let word = words.next().unwrap_or_default();
            let word = uslub_inspect::root::printable(word.as_encoded_bytes());
            Failure::usage(format!("'{word}' is no text: it is not UTF-8"), help)
        }
        (ErrorKind::UnknownArgument, Some(option)) => Failure::usage(
            with_suggestion(
                format!("unknown option '{option}'"),
                error,
                ContextKind::SuggestedArg,
            ),
            format!(
                "known options: {}",
                options(chosen.unwrap_or(root)).join(", ")
            ),
        ),
        (ErrorKind::InvalidSubcommand, _) => {
            let word = context(error, ContextKind::InvalidSubcommand).unwrap_or_default();
            let outer = chosen.unwrap_or(root);
            let known = outer.get_subcommands().filter(|known| !known.is_hide_set());
            let known: Vec<_> = known.map(Command::get_name).collect();
            let hint = match chosen {
                Some(_) => help,
                None => format!("to run a program of that name: uslub run -- {word}"),
            };
            let message = format!("unknown command '{word}'");
            let message = with_suggestion(message, error, ContextKind::SuggestedSubcommand);
            Failure::usage(format!("{message}; known are {}", known.join(", ")), hint)
        }
        (ErrorKind::MissingRequiredArgument, _) => Failure::usage(
            "no program is given",
            format!("usage: {path} [OPTIONS] [--] PROGRAM [ARGS]..."),
        ),
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            let values =
                context(error, ContextKind::ValidValue).filter(|values| !values.is_empty());
            let hint = match values {
                Some(values) => format!("possible values: {values}"),
                None => help,
            };
            Failure::usage(line.trim_start_matches("error: "), hint)
        }
    }
}

/// Appends what the user may have meant, if `clap` has a suggestion.
fn with_suggestion(message: String, error: &clap::Error, kind: ContextKind) -> String {
    let word = match kind {
        ContextKind::SuggestedSubcommand => ContextKind::InvalidSubcommand,
        _ => ContextKind::InvalidArg,
    };
    let word = context(error, word).unwrap_or_default();
    // The last of several suggestions is the most similar word.
    let meant = match error.get(kind) {
        Some(ContextValue::Strings(all)) => all.last().cloned(),
        _ => context(error, kind),
    };
    match meant.filter(|meant| is_similar(&word, meant)) {
        Some(meant) => format!("{message}; did you mean '{meant}'?"),
        None => message,
    }
}

/// Whether somebody who wrote `word` may have meant the other one: few letters differ, or it is its
/// beginning.
fn is_similar(word: &str, meant: &str) -> bool {
    let letters = meant.trim_start_matches('-').chars().count();
    let is_begun = word.len() > 2 && meant.starts_with(word);
    is_begun || strsim::levenshtein(word, meant) <= (letters / 2).clamp(1, 2)
}

/// Long names of all options of `command`.
fn options(command: &Command) -> Vec<String> {
    let mut names: Vec<_> = command
        .get_arguments()
        .filter_map(|a| a.get_long().map(|long| format!("--{long}")))
        .collect();
    names.push("--help".to_owned());
    names.dedup();
    names
}

fn context(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => Some(texts.join(", ")),
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(words: &[&str]) -> Failure {
        let error = Cli::read([&["uslub"], words].concat()).unwrap_err();
        let root = Cli::command();
        describe(&error, &root, &chosen(&root, words))
    }

    #[test]
    fn an_unknown_option_lists_the_known_ones() {
        let f = failure(&["run", "--colour", "ls"]);
        assert_eq!(f.message, "unknown option '--colour'");
        assert_eq!(
            f.hint,
            "known options: --set, --debug, --guard, --hardened, --follow, --report, --record, \
             --record-every, --record-for, --record-limit, --all, --slabinfo, --quiet, --help"
        );
    }

    #[test]
    fn a_mistyped_word_gets_a_suggestion() {
        let f = failure(&["run", "--reprot", "x", "ls"]);
        assert_eq!(
            f.message,
            "unknown option '--reprot'; did you mean '--report'?"
        );
        let f = failure(&["nope"]);
        assert!(!f.message.contains("did you mean"), "{}", f.message);
        let f = failure(&["bench", "sedes"]);
        assert!(
            f.message
                .starts_with("unknown command 'sedes'; did you mean 'seeds'?")
        );
    }

    #[test]
    fn an_unknown_command_lists_the_known_ones() {
        let f = failure(&["ls", "-l"]);
        let (problem, known) = f.message.split_once("; known are ").unwrap();
        assert!(problem.starts_with("unknown command 'ls'"), "{problem}");
        let known: Vec<_> = known.split(", ").collect();
        for name in [
            "run",
            "bench",
            "info",
            "holders",
            "leaks",
            "record",
            "gdb-script",
            "sim",
        ] {
            assert!(known.contains(&name), "{name}: {known:?}");
        }
        assert!(!known.contains(&"pages"), "hidden: {known:?}");
        assert!(f.hint.ends_with("uslub run -- ls"));
        let f = failure(&["bench", "oaks"]);
        assert_eq!(
            f.message,
            "unknown command 'oaks'; known are seeds, peers, run"
        );
        let f = failure(&["bench", "seeds", "--fast"]);
        assert_eq!(f.hint, "known options: --quick, --html, --json, --help");
    }

    #[test]
    fn a_missing_program_and_a_bad_value_are_named() {
        assert_eq!(failure(&["run", "--quiet"]).message, "no program is given");
        let f = failure(&["run", "--follow", "perhaps", "ls"]);
        assert!(f.message.contains("perhaps"), "{}", f.message);
        assert_eq!(f.hint, "possible values: yes, no");
        assert!(!failure(&["run", "--set"]).message.is_empty());
        let f = failure(&["top", "1", "-n", "0"]);
        assert_eq!(f.hint, "see 'uslub top --help'");
        let f = failure(&["bench", "run", "--rounds", "none", "ls"]);
        assert_eq!(f.hint, "see 'uslub bench run --help'");
        let f = failure(&["bench", "seeds", "--html"]);
        assert_eq!(f.hint, "see 'uslub bench seeds --help'");
    }

    #[test]
    fn a_wrong_number_and_a_word_too_many_are_named() {
        let limit = "for '--limit <N>': it must be a whole number, 0 or more";
        for word in ["-1", "x"] {
            let f = failure(&["list", "1", "c", "--limit", word]);
            assert_eq!(f.message, format!("invalid value '{word}' {limit}"));
        }
        for (words, answer) in [
            (&["doctor", "1", "--seconds", "-1"][..], "from 0 to 3600"),
            (&["list", "1", "c", "--dump", "5000"], "from 0 to 4096"),
            (&["fail", "--jobs", "-1", "ls"], "from 1 to 256"),
            (&["top", "1", "-n", "0"], "whole number, 1 or more"),
            (&["top", "1", "-d", "-1"], "from 0.1 to 60"),
            (&["replay", "f", "--at", "-1s"], "0 to 366 days"),
            (&["sim", "--cpus", "-1,2"], "from 1 to 512"),
            (
                &["holders", "1", "0", "--limit", "99999999999999999999"],
                "too large",
            ),
        ] {
            let f = failure(words);
            assert!(f.message.contains(answer), "{words:?}: {}", f.message);
        }
        let f = failure(&["info", "1", "extra"]);
        assert_eq!(f.message, "'extra' is one word too many");
        assert_eq!(f.hint, "usage: uslub info [OPTIONS] <PID|FILE>");
    }

    #[test]
    fn help_is_a_command_too() {
        for (words, start) in [
            (&["help"][..], "The kernel's SLUB"),
            (&["help", "run"], "Run a"),
        ] {
            let error = Cli::read([&["uslub"], words].concat()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DisplayHelp);
            assert!(error.to_string().starts_with(start), "{error}");
        }
    }
}
