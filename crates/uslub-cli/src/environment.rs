//! The environment variables that preload the library and configure it. `run` and `compare` set
//! them.

use crate::cli::Follow;
use crate::failure::Failure;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use uslub_core::debug::options::{self as slab_debug, SlabDebug};
use uslub_core::tunables::Tunables;
use uslub_report::{
    FOLLOW_VARIABLE, HELPER_VARIABLE, OPTIONS_VARIABLE, REPORT_VARIABLE, TRACES_VARIABLE,
};

/// The loader's variable: files to load before all others.
pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// The configuration of the library in the program.
pub struct Environment<'a> {
    /// The library, by a path that the loader can parse; see [`preloadable`].
    pub library: &'a Path,
    /// The absolute path of the folder for reports, if reports are wanted.
    pub reports: Option<&'a Path>,
    /// The absolute path of the folder for reports about debugged caches, if somebody reads them.
    pub traces: Option<&'a Path>,
    /// Tunables, joined by [`options`].
    pub options: &'a str,
    /// Whether child processes of the program run on uslub too.
    pub follow: Follow,
}

impl Environment<'_> {
    /// Sets the variables for `command`.
    pub fn apply(&self, command: &mut Command) {
        let others = std::env::var_os(PRELOAD_VARIABLE);
        command.env(PRELOAD_VARIABLE, preload(self.library, others.as_deref()));
        if let Some(folder) = self.reports {
            command.env(REPORT_VARIABLE, folder);
        }
        match self.traces {
            Some(folder) => command.env(TRACES_VARIABLE, folder),
            None => command.env_remove(TRACES_VARIABLE),
        };
        if !self.options.is_empty() {
            command.env(OPTIONS_VARIABLE, self.options);
        }
        // Without a witness there is no helper.
        if std::env::var_os(HELPER_VARIABLE).is_none()
            && let Ok(witness) = uslub_witness::start()
        {
            command.env(HELPER_VARIABLE, witness);
        }
        match self.follow {
            Follow::Yes => command.env_remove(FOLLOW_VARIABLE),
            Follow::No => command.env(FOLLOW_VARIABLE, "0"),
        };
    }
}

/// Appends `library` once to the libraries that the environment preloads already.
///
/// Another preloaded library may wrap the same functions as ours (system calls, limits, `_exit`)
/// to restrict the program. It stays first, so it sees each call before ours does.
fn preload(library: &Path, others: Option<&OsStr>) -> OsString {
    let others = others.unwrap_or_default().as_bytes();
    let mut list = OsString::new();
    for other in others.split(|b| matches!(b, b':' | b' ')) {
        if !other.is_empty() && other != library.as_os_str().as_bytes() {
            list.push(OsStr::from_bytes(other));
            list.push(":");
        }
    }
    list.push(library);
    list
}

/// A path by which the loader can load `library`.
///
/// The loader splits its list at blanks and colons and expands `$ORIGIN` and similar tokens. If
/// the path of the library has such a character, the path is a link in `folder`.
///
/// # Errors
///
/// If the link is needed and cannot be made.
pub fn preloadable(library: &Path, folder: Option<&Path>) -> Result<PathBuf, Failure> {
    if !is_split(library) {
        return Ok(library.to_owned());
    }
    let link = folder.map(|folder| folder.join(crate::library::NAME));
    let linked =
        |link: &PathBuf| !is_split(link) && std::os::unix::fs::symlink(library, link).is_ok();
    let Some(link) = link.filter(linked) else {
        return Err(Failure::ours(
            format!(
                "the loader cannot preload '{}': its path has a blank, ':' or '$'",
                library.display()
            ),
            "copy the library to a path without such characters and name it in USLUB_LIBRARY",
        ));
    };
    Ok(link)
}

/// Whether the loader would split or expand the path, so [`preloadable`] needs a folder.
pub fn is_split(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes
        .iter()
        .any(|b| matches!(b, b':' | b'$') || b.is_ascii_whitespace())
}

/// The value of the options variable: its present value, then each setting.
///
/// # Errors
///
/// If a present or new setting is invalid; the failure lists the known tunables.
pub fn options(
    existing: Option<&OsStr>,
    settings: &[String],
    debug: Option<&str>,
) -> Result<String, Failure> {
    let existing = existing.unwrap_or_default().to_string_lossy();
    let (before, old_debug, behind) = slab_debug::split(&existing);
    let old = [before, behind].into_iter().flat_map(|s| s.split(','));
    let old = old.map(str::trim).filter(|s| !s.is_empty());
    let old = old.map(|s| (s, format!("correct or unset {OPTIONS_VARIABLE}")));
    let (mut new_debug, mut parts) = (None, Vec::new());
    for setting in settings {
        let (before, value, behind) = slab_debug::split(setting);
        new_debug = value.or(new_debug);
        if value.is_none() {
            parts.push(before);
        } else {
            parts.extend([before, behind].into_iter().filter(|part| !part.is_empty()));
        }
    }
    let new = parts.iter().flat_map(|s| s.split(',')).map(str::trim);
    let new = new.map(|s| {
        (
            s,
            "'uslub run --help' says what each tunable does".to_owned(),
        )
    });
    let mut scratch = Tunables::DEFAULT;
    let mut all = Vec::new();
    for (setting, hint) in old.chain(new) {
        if let Err(error) = scratch.set(setting) {
            return Err(Failure::usage(error.to_string(), hint));
        }
        all.push(setting.to_owned());
    }
    if let Some(debug) = debug.or(new_debug).or(old_debug) {
        all.push(format!("slab_debug={}", checked(debug)?));
    }
    Ok(all.join(","))
}

/// The value of `slab_debug`, if the library can read it.
fn checked(debug: &str) -> Result<&str, Failure> {
    let mut unknown = None;
    SlabDebug::new(debug).check(|letter| unknown = unknown.or(Some(letter)));
    let (problem, hint) = match unknown {
        Some(letter) => (
            format!("slab_debug option '{letter}' unknown"),
            format!(
                "letters are {}; cache names follow a comma",
                slab_debug::LETTERS
            ),
        ),
        None if debug.contains('=') => (
            format!("slab_debug takes letters and names of caches, not '{debug}'"),
            "other settings belong to --set".to_owned(),
        ),
        None => return Ok(debug),
    };
    Err(Failure::usage(problem, hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_last_in_the_preload_list_and_once() {
        let library = Path::new("/l/u.so");
        assert_eq!(preload(library, None), "/l/u.so");
        assert_eq!(preload(library, Some(OsStr::new(""))), "/l/u.so");
        assert_eq!(
            preload(library, Some(OsStr::new("/a.so /b.so"))),
            "/a.so:/b.so:/l/u.so"
        );
        assert_eq!(
            preload(library, Some(OsStr::new("/l/u.so:/a.so"))),
            "/a.so:/l/u.so"
        );
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_linked() {
        let folder = tempfile::tempdir().unwrap();
        let plain = Path::new("/l/u.so");
        assert_eq!(preloadable(plain, None).unwrap(), plain);
        let odd = folder.path().join("my: folder.so");
        std::fs::write(&odd, "x").unwrap();
        let link = preloadable(&odd, Some(folder.path())).unwrap();
        assert_eq!(link.canonicalize().unwrap(), odd.canonicalize().unwrap());
        assert!(!is_split(&link));
        let nowhere = Path::new("/no/such folder");
        assert!(
            preloadable(&odd, Some(nowhere))
                .unwrap_err()
                .hint
                .contains("USLUB_LIBRARY")
        );
    }

    #[test]
    fn settings_follow_what_the_variable_holds() {
        let settings = [
            "rseq=0".to_owned(),
            " decay_ms = 5,slab_max_order=1".to_owned(),
        ];
        assert_eq!(options(None, &[], None).unwrap(), "");
        assert_eq!(
            options(Some(OsStr::new("rseq=1,")), &settings, None).unwrap(),
            "rseq=1,rseq=0,decay_ms = 5,slab_max_order=1"
        );
    }

    #[test]
    fn a_wrong_setting_is_refused_with_a_list_of_the_known() {
        let failure = options(None, &["colour=1".to_owned()], None).unwrap_err();
        assert!(failure.message.contains("unknown tunable 'colour'"));
        assert!(failure.message.contains("slab_max_order"));
        assert_eq!(failure.code, crate::failure::USAGE);
        assert!(options(None, &[String::new()], None).is_err());
        let failure = options(Some(OsStr::new("rseq=7")), &[], None).unwrap_err();
        assert!(failure.hint.contains(OPTIONS_VARIABLE));
    }

    #[test]
    fn slab_debug_comes_last_whatever_names_it() {
        let set = ["slab_debug=F,a,b".to_owned(), "rseq=0".to_owned()];
        assert_eq!(
            options(None, &set, None).unwrap(),
            "rseq=0,slab_debug=F,a,b"
        );
        assert_eq!(
            options(None, &set, Some("Z;P,c*")).unwrap(),
            "rseq=0,slab_debug=Z;P,c*"
        );
        let old = OsStr::new("slab_debug=,a,decay_ms=5");
        assert_eq!(
            options(Some(old), &[], None).unwrap(),
            "decay_ms=5,slab_debug=,a"
        );
        assert_eq!(options(None, &[], Some("")).unwrap(), "slab_debug=");
    }

    #[test]
    fn a_letter_that_is_unknown_is_refused_with_those_that_are_known() {
        let failure = options(None, &[], Some("FQ,a")).unwrap_err();
        assert_eq!(failure.message, "slab_debug option 'Q' unknown");
        assert!(failure.hint.contains("F Z P U T A O -"));
        assert_eq!(failure.code, crate::failure::USAGE);
        assert!(options(None, &[], Some("F,rseq=0")).is_err());
    }
}
