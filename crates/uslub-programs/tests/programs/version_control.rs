//! Git: a history of 200 commits, a merge, a repack, a check.

use std::fs;
use std::path::Path;

use tempfile::tempdir;
use uslub_programs::program::WAYS;
use uslub_programs::text::{Numbers, word, write_lines};
use uslub_programs::{Program, Way};

/// A repository that `git` works on one way, with fixed identities and dates,
/// so that the same history has the same hashes.
struct Repository<'a> {
    git: Program,
    way: Way,
    folder: &'a Path,
    commits: u64,
}

impl<'a> Repository<'a> {
    fn init(git: &Program, way: Way, folder: &'a Path) -> Self {
        let mut git = git.folder(folder);
        for (name, value) in [
            ("HOME", folder.as_os_str()),
            ("GIT_CONFIG_NOSYSTEM", "1".as_ref()),
            ("GIT_CONFIG_GLOBAL", "/dev/null".as_ref()),
            ("GIT_CEILING_DIRECTORIES", folder.as_os_str()),
            ("GIT_AUTHOR_NAME", "A Writer".as_ref()),
            ("GIT_AUTHOR_EMAIL", "writer@example.org".as_ref()),
            ("GIT_COMMITTER_NAME", "A Keeper".as_ref()),
            ("GIT_COMMITTER_EMAIL", "keeper@example.org".as_ref()),
            ("GIT_EDITOR", "true".as_ref()),
        ] {
            git = git.variable(name, value);
        }
        for setting in ["gc.auto=0", "maintenance.auto=false", "pack.threads=2"] {
            git = git.args(["-c", setting]);
        }
        let repository = Self {
            git,
            way,
            folder,
            commits: 0,
        };
        repository.run(&["init", "--quiet", "--initial-branch=main"]);
        repository
    }

    fn run(&self, args: &[&str]) -> String {
        let outcome = self.git.args(args).run(self.way).succeeded();
        outcome.text().to_owned()
    }

    /// The program, at the date of the next commit.
    fn dated(&mut self) -> Program {
        self.commits += 1;
        let date = format!("{} +0000", 1_700_000_000 + self.commits * 3600);
        self.git
            .variable("GIT_AUTHOR_DATE", date.clone())
            .variable("GIT_COMMITTER_DATE", date)
    }

    fn commit(&mut self, message: &str) {
        self.run(&["add", "--all"]);
        self.dated()
            .args(["commit", "--quiet", "--message", message])
            .run(self.way)
            .succeeded();
    }

    fn merge(&mut self, branch: &str) {
        self.dated()
            .args(["merge", "--quiet", "--no-edit", "--no-ff", branch])
            .run(self.way)
            .succeeded();
    }

    /// Changes a file of its own for each of `count` commits.
    fn write_history(&mut self, name: &str, count: u64) {
        let mut numbers = Numbers::from_seed(count);
        for number in 0..count {
            let file = format!("{name}-{}.txt", numbers.below(12));
            let mut text = fs::read_to_string(self.folder.join(&file)).unwrap_or_default();
            for _ in 0..40 {
                text += &format!("{} {}\n", word(&mut numbers), numbers.below(1000));
            }
            fs::write(self.folder.join(&file), text).unwrap();
            self.commit(&format!("Change {file}, number {number}"));
        }
    }
}

/// The whole history; returns all that must be the same both ways.
fn life_of_a_repository(git: &Program, way: Way) -> Vec<String> {
    let folder = tempdir().unwrap();
    let mut repository = Repository::init(git, way, folder.path());
    write_lines(&folder.path().join("large"), 20_000, 1_000_000).unwrap();
    repository.write_history("main", 120);
    repository.run(&["checkout", "--quiet", "-b", "side", "HEAD~60"]);
    repository.write_history("side", 79);
    repository.run(&["checkout", "--quiet", "main"]);
    repository.merge("side");
    repository.run(&["gc", "--quiet", "--aggressive", "--prune=now"]);
    repository.run(&["fsck", "--full", "--strict"]);
    vec![
        repository.run(&["rev-parse", "HEAD", "HEAD^{tree}"]),
        repository.run(&["rev-list", "--count", "HEAD"]),
        repository.run(&["status", "--porcelain"]),
        repository.run(&["log", "--stat", "--graph", "--format=fuller"]),
        repository.run(&["blame", "main-3.txt"]),
        repository.run(&["diff", "--word-diff", "HEAD~100", "HEAD"]),
    ]
}

#[test]
fn git_writes_merges_repacks_and_checks_the_same_history() {
    let Some(git) = Program::find("git") else {
        return;
    };
    let [plain, on_uslub] = WAYS.map(|way| life_of_a_repository(&git, way));
    assert_eq!(plain[0], on_uslub[0], "the history has the same hashes");
    assert_eq!(on_uslub[1], "200", "there are 200 commits");
    assert!(plain == on_uslub, "git says the same about the history");
}
