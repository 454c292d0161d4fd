//! sqlite and redis.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::{TempDir, tempdir};
use uslub_programs::program::WAYS;
use uslub_programs::text::{Numbers, word};
use uslub_programs::{Program, Running, Way, find};

#[test]
fn sqlite_inserts_200_000_rows_and_finds_its_file_whole() {
    let Some(sqlite) = Program::find("sqlite3") else {
        return;
    };
    let folder = tempdir().unwrap();
    let statements = folder.path().join("statements.sql");
    write_statements(&statements, 200_000);
    let [plain, on_uslub] = WAYS.map(|way| {
        sqlite
            .args(["-batch", "-bail"])
            .arg(folder.path().join(format!("{way:?}.db")))
            .input(&statements)
            .run(way)
            .succeeded()
    });
    assert_eq!(plain.text(), on_uslub.text());
    assert!(on_uslub.text().ends_with("\nok"), "the file is whole");
}

/// Statements that fill a table, followed by those of `tables.sql`.
fn write_statements(path: &Path, rows: u64) {
    let mut numbers = Numbers::from_seed(rows);
    let mut file = std::io::BufWriter::new(fs::File::create(path).unwrap());
    file.write_all(
        b"BEGIN;\nCREATE TABLE items (id INTEGER PRIMARY KEY, kind INTEGER, number INTEGER, name TEXT, text TEXT);\n",
    )
    .unwrap();
    for _ in 0..rows {
        writeln!(
            file,
            "INSERT INTO items (kind, number, name, text) VALUES ({}, {}, '{}', '{} {}');",
            numbers.below(20),
            numbers.below(1_000_000),
            word(&mut numbers),
            word(&mut numbers),
            word(&mut numbers),
        )
        .unwrap();
    }
    file.write_all(b"COMMIT;\n").unwrap();
    file.write_all(&fs::read(crate::given("tables.sql")).unwrap())
        .unwrap();
    file.flush().unwrap();
}

/// A redis server on a socket of its own, with its clients.
struct Redis {
    folder: TempDir,
    way: Way,
    server: Running,
    client: Program,
}

impl Redis {
    fn start(server: &Program, client: &Program, way: Way) -> Self {
        let folder = tempdir().unwrap();
        let socket = folder.path().join("redis.sock");
        let client = client.arg("-s").arg(&socket);
        let mut server = server
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            .arg("--unixsocket")
            .arg(&socket)
            .arg("--dir")
            .arg(folder.path())
            .start(way);
        let deadline = Instant::now() + Duration::from_secs(30);
        while client.arg("PING").run(Way::Plain).text() != "PONG" {
            if !server.is_running() {
                let outcome = server.wait().succeeded();
                panic!("redis-server ends at once: {}", outcome.text());
            }
            assert!(Instant::now() < deadline, "redis-server does not answer");
            sleep(Duration::from_millis(20));
        }
        Self {
            client,
            folder,
            way,
            server,
        }
    }

    /// What redis answers to one command.
    fn ask(&self, command: &[&str]) -> String {
        let outcome = self.client.args(command).run(Way::Plain).succeeded();
        outcome.text().to_owned()
    }

    /// What redis answers to all commands in a file, written as one pipe.
    fn ask_all(&self, name: &str, commands: &str) -> String {
        let file = self.folder.path().join(name);
        fs::write(&file, commands).unwrap();
        let outcome = self.client.input(file).run(self.way).succeeded();
        outcome.text().to_owned()
    }

    /// Forks a child that writes the whole data set, and waits for it.
    fn save_in_background(&self) {
        self.ask(&["BGSAVE"]);
        let deadline = Instant::now() + Duration::from_secs(60);
        while self
            .ask(&["INFO", "persistence"])
            .contains("rdb_bgsave_in_progress:1")
        {
            assert!(Instant::now() < deadline, "the save does not end");
            sleep(Duration::from_millis(50));
        }
        let persistence = self.ask(&["INFO", "persistence"]);
        assert!(
            persistence.contains("rdb_last_bgsave_status:ok"),
            "{persistence}"
        );
    }

    fn shut_down(self) {
        self.client.args(["SHUTDOWN", "NOSAVE"]).run(Way::Plain);
        self.server.wait().succeeded();
    }
}

/// Commands that set 10,000 keys of several types, and those that read them.
fn commands() -> (String, String) {
    let mut numbers = Numbers::from_seed(10_000);
    let (mut set, mut get) = (String::new(), String::new());
    for key in 0..10_000 {
        let text = word(&mut numbers).repeat(1 + numbers.below(40) as usize);
        let number = numbers.below(1_000_000);
        set += &match key % 5 {
            0 => format!("HSET hash:{key} name {text} number {number}\n"),
            1 => format!("RPUSH list:{key} {text} {number} {text}\n"),
            2 => format!("ZADD set:{key} {number} {text} 1 first 2 second\n"),
            _ => format!("SET string:{key} {text}-{number}\n"),
        };
        get += &match key % 5 {
            0 => format!("HMGET hash:{key} name number\n"),
            1 => format!("LRANGE list:{key} 0 -1\n"),
            2 => format!("ZRANGE set:{key} 0 -1 WITHSCORES\n"),
            _ => format!("GET string:{key}\n"),
        };
    }
    (set, get)
}

fn life_of_a_server(
    server: &Program,
    client: &Program,
    benchmark: &PathBuf,
    way: Way,
) -> Vec<String> {
    let redis = Redis::start(server, client, way);
    Program::at(benchmark)
        .args(["-n", "100000", "-P", "16", "-c", "20", "-d", "200", "-q"])
        .args(["-r", "50000", "-t", "set,get,lpush,hset,zadd,spop"])
        .arg("-s")
        .arg(redis.folder.path().join("redis.sock"))
        .run(way)
        .succeeded();
    redis.ask(&["FLUSHALL"]);
    let (set, get) = commands();
    let answers = vec![
        redis.ask_all("set", &set),
        redis.ask(&["DBSIZE"]),
        redis.ask_all("get", &get),
    ];
    redis.save_in_background();
    redis.shut_down();
    answers
}

#[test]
fn redis_serves_a_benchmark_and_keeps_10_000_keys() {
    let (Some(server), Some(client), Some(benchmark)) = (
        Program::find("redis-server"),
        Program::find("redis-cli"),
        find("redis-benchmark"),
    ) else {
        return;
    };
    let [plain, on_uslub] = WAYS.map(|way| life_of_a_server(&server, &client, &benchmark, way));
    assert_eq!(on_uslub[1], "10000", "DBSIZE counts every key");
    assert!(plain == on_uslub, "redis gives the same answers");
}
