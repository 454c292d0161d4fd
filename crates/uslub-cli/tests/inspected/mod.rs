//! What the tests of the inspecting commands share: the command, and programs that wait to be read.

// Each test file uses its part of this module.
#![allow(dead_code)]

use crate::support::compile;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
pub use uslub_tests::release::library;

/// The command of this build. It reads memory that a release build of the library writes.
pub fn uslub(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uslub"));
    command.args(arguments).env_remove("LD_PRELOAD");
    command.output().expect("the command can be started")
}

/// What the command prints, if it succeeds.
pub fn said(arguments: &[&str]) -> String {
    let output = uslub(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

pub fn json(target: &str) -> Value {
    serde_json::from_str(&said(&["info", target, "--json"])).expect("JSON")
}

/// A program that has said it is ready, and now waits. It is killed at the end.
pub struct Paused {
    pub child: Child,
    pub lines: Vec<String>,
}

impl Paused {
    /// Starts a program and reads its output up to the line `ready`.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        let mut lines = Vec::new();
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        for line in out.lines() {
            let line = line.expect("UTF-8");
            if line == "ready" {
                return Self { child, lines };
            }
            lines.push(line);
        }
        let _ = child.kill();
        let _ = child.wait();
        panic!("the program ended early: {lines:?}");
    }

    /// Returns when the program waits for input. Until then it runs, and a running thread may hold
    /// objects that a look cannot count exactly.
    pub fn at_rest(self) -> Self {
        let stat = format!("/proc/{}/stat", self.pid());
        for _ in 0..5000 {
            let stat = fs::read_to_string(&stat).expect("stat");
            if stat.rsplit(") ").next().expect("a state").starts_with('S') {
                return self;
            }
            thread::sleep(Duration::from_millis(2));
        }
        panic!("the program never waits");
    }

    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    pub fn status(&self, key: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("status");
        let line = text
            .lines()
            .find(|line| line.starts_with(key))
            .expect("the key");
        let digits: String = line.chars().filter(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    }

    /// The number of a line `name = number` that the program printed.
    pub fn own(&self, name: &str) -> u64 {
        let mut lines = self.lines.iter().filter_map(|line| line.split_once('='));
        let found = lines.find(|(key, _)| key.trim() == name);
        let (_, number) = found.unwrap_or_else(|| panic!("no '{name}' in {:?}", self.lines));
        number.trim().parse().expect("a number")
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

pub fn cache<'a>(look: &'a Value, name: &str) -> &'a Value {
    let caches = look["allocators"][0]["caches"].as_array().expect("caches");
    let found = caches.iter().find(|cache| cache["name"] == name);
    found.unwrap_or_else(|| panic!("no cache '{name}'"))
}

/// Objects of rare sizes, each third one freed; then the library's own figures.
const PRELOADED: &str = r#"
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *kept[4][3000];
int main(void)
{
    static const size_t sizes[4] = { 176, 368, 1248, 20000 };
    static const int counts[4] = { 3000, 3000, 300, 30 };
    setvbuf(stdin, NULL, _IONBF, 0);
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < counts[k]; i++)
            kept[k][i] = malloc(sizes[k]);
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < counts[k]; i += 3)
            free(kept[k][i]);
    dup2(1, 2);
    malloc_stats();
    printf("first = %zu\n", (size_t)kept[0][1]);
    printf("freed = %zu\n", (size_t)kept[0][0]);
    puts("ready");
    getchar();
    return 0;
}
"#;

/// Starts the program on the preloaded library; `None` without a compiler.
pub fn preloaded(folder: &TempDir) -> Option<Paused> {
    let program = folder.path().join("preloaded");
    let library = library("uslub-malloc", "libuslub_malloc.so");
    let flags = ["-O0", "-Wno-unused-result", "-Wno-use-after-free"];
    compile(PRELOADED, &flags, &program)
        .then(|| Paused::start(Command::new(&program).env("LD_PRELOAD", library)).at_rest())
}

/// Whether the machine has a C compiler; then every program must compile.
pub fn has_cc() -> bool {
    Command::new("cc").arg("--version").output().is_ok()
}
