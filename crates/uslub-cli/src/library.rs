//! Finds the library that is preloaded.

use crate::carried;
use crate::failure::Failure;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// File name of the library.
pub const NAME: &str = "libuslub_malloc.so";

/// Environment variable that names the library's file.
pub const VARIABLE: &str = "USLUB_LIBRARY";

/// Finds the library.
///
/// The file that [`VARIABLE`] names comes first. Without the variable, the first existing file
/// counts: in the command's folder, in its folder `deps` (cargo's place), then in `lib` and
/// `lib/uslub` one folder up (the place of packages). Last comes the library that the command
/// carries.
///
/// # Errors
///
/// If no library exists; the failure names the searched places.
pub fn find(variable: Option<&OsStr>, executable: &Path) -> Result<PathBuf, Failure> {
    find_or(variable, executable, || {
        carried::is_there().then(carried::unpack)
    })
}

/// As [`find`]; `carried` unpacks the carried library if there is one.
fn find_or(
    variable: Option<&OsStr>,
    executable: &Path,
    carried: impl FnOnce() -> Option<Result<PathBuf, Vec<String>>>,
) -> Result<PathBuf, Failure> {
    if let Some(named) = variable.filter(|v| !v.is_empty()) {
        let path = Path::new(named);
        return match path.canonicalize() {
            Ok(found) if found.is_file() => Ok(found),
            _ => Err(Failure::ours(
                format!("no library at '{}', which {VARIABLE} names", path.display()),
                format!("correct {VARIABLE}, or unset it to search beside the command"),
            )),
        };
    }
    let folder = executable.parent().unwrap_or(Path::new("/"));
    let beside = folder.join(NAME);
    let in_deps = folder.join("deps").join(NAME);
    // Cargo always refreshes the copy in `deps`. It refreshes the copy in the command's folder
    // only if the library itself was requested. Hence the newer of the two counts.
    let newest = std::cmp::max_by_key(in_deps.clone(), beside.clone(), |p| modified(p));
    let up = folder.parent().unwrap_or(folder);
    let packaged = [up.join("lib").join(NAME), up.join("lib/uslub").join(NAME)];
    let found = std::iter::once(&newest)
        .chain(&packaged)
        .find(|p| p.is_file());
    if let Some(found) = found {
        return Ok(found.clone());
    }
    if let Some(unpacked) = carried() {
        return unpacked.map_err(|refusals| {
            Failure::ours(
                format!("cannot unpack {NAME}: {}", refusals.join("; ")),
                format!(
                    "name a folder of your own in XDG_CACHE_HOME, or the library in {VARIABLE}"
                ),
            )
        });
    }
    Err({
        let [lib, lib_uslub] = &packaged;
        let places = [&beside, &in_deps, lib, lib_uslub].map(|p| p.display().to_string());
        Failure::ours(
            format!("{NAME} is missing; looked for {}", places.join(", ")),
            format!("build it with 'cargo build --release', or name its file in {VARIABLE}"),
        )
    })
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|m| m.modified()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    fn put(folder: &Path, place: &str) -> PathBuf {
        let path = folder.join(place).join(NAME);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        path
    }

    #[test]
    fn places_are_searched_in_order() {
        let root = tempfile::tempdir().unwrap();
        let executable = root.path().join("bin/uslub");
        let search = || find_or(None, &executable, || None);

        let failure = search().unwrap_err();
        for place in ["bin", "bin/deps", "lib", "lib/uslub"] {
            let place = root.path().join(place).join(NAME);
            assert!(
                failure.message.contains(&*place.to_string_lossy()),
                "{}",
                failure.message
            );
        }
        for place in ["lib/uslub", "lib", "bin/deps", "bin"] {
            let path = put(root.path(), place);
            assert_eq!(search().unwrap(), path);
        }
    }

    #[test]
    fn the_carried_library_is_the_last_resort() {
        let root = tempfile::tempdir().unwrap();
        let executable = root.path().join("bin/uslub");
        let unpacked = || Some(Ok(PathBuf::from("/unpacked")));
        let found = find_or(None, &executable, unpacked).unwrap();
        assert_eq!(found, Path::new("/unpacked"));
        let refused = || Some(Err(vec!["/a: full".to_owned(), "/b: gone".to_owned()]));
        let failure = find_or(None, &executable, refused).unwrap_err();
        assert!(
            failure.message.ends_with("/a: full; /b: gone"),
            "{failure:?}"
        );
        let path = put(root.path(), "lib");
        assert_eq!(find_or(None, &executable, unpacked).unwrap(), path);
    }

    #[test]
    fn a_stale_copy_beside_the_command_gives_way_to_the_newer_one_in_deps() {
        let root = tempfile::tempdir().unwrap();
        let beside = put(root.path(), "");
        let in_deps = put(root.path(), "deps");
        let later = SystemTime::now() + Duration::from_secs(9);
        let file = fs::File::options().write(true).open(&in_deps).unwrap();
        file.set_modified(later).unwrap();
        assert_eq!(find(None, &root.path().join("uslub")).unwrap(), in_deps);
        let file = fs::File::options().write(true).open(&beside).unwrap();
        file.set_modified(later).unwrap();
        assert_eq!(find(None, &root.path().join("uslub")).unwrap(), beside);
    }

    #[test]
    fn the_variable_wins_and_must_name_a_file() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "bin");
        let other = put(root.path(), "other").canonicalize().unwrap();
        let executable = root.path().join("bin/uslub");
        assert_eq!(find(Some(other.as_os_str()), &executable).unwrap(), other);
        for wrong in [root.path(), Path::new("/no/such/file")] {
            let failure = find(Some(wrong.as_os_str()), &executable).unwrap_err();
            assert!(failure.message.contains(VARIABLE));
        }
    }
}
