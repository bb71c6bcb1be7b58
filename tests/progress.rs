//! Progress bars, `--quiet` and colors of the programs, on a terminal and without one. The input is slow because an S3
//! server limits its rate.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::s3_server::{self, Server};
use crate::support::{TestDir, checkpoints, copy, done, lambert};

/// Minimum number of seconds for which a command reads a checkpoint.
const SECONDS: u64 = 3;

/// Number of columns of a pseudo-terminal of unknown size.
const COLUMNS: usize = 80;

/// Result of a command on a pseudo-terminal.
struct Shown {
    code: Option<i32>,
    /// Everything that was written to the terminal.
    written: String,
}

impl Shown {
    /// Lines that are on the terminal after the command.
    fn screen(&self) -> Vec<String> {
        screen(&self.written)
    }

    /// True if there was an escape sequence for a color or a font.
    fn has_colors(&self) -> bool {
        let mut sequences = self.written.split("\x1b[").skip(1);
        sequences.any(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m'))
    }
}

/// True if this machine has pseudo-terminals. Prints the reason if not.
pub fn has_terminals() -> bool {
    let mut probe = Command::new("script");
    probe.args(["--quiet", "--return", "--command", "test -t 2", "/dev/null"]).stdin(Stdio::piped());
    match probe.output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            eprintln!("SKIPPED: `script` has no terminal: {}", String::from_utf8_lossy(&output.stderr));
            false
        }
        Err(error) => {
            eprintln!("SKIPPED: cannot run `script` (Debian: bsdutils): {error}");
            false
        }
    }
}

/// Runs a program on a pseudo-terminal. Presses Ctrl-C when `interrupt` returns true for the output so far.
fn on_terminal(
    program: &Path,
    arguments: &[&str],
    environment: &[(&str, String)],
    interrupt: Option<fn(&str) -> bool>,
) -> Shown {
    let quoted = |word: &str| format!("'{}'", word.replace('\'', "'\\''"));
    let words: Vec<String> =
        std::iter::once(program.to_str().unwrap()).chain(arguments.iter().copied()).map(quoted).collect();
    // A test in the background of a shell would ignore Ctrl-C, and so would the program.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", "script", "--quiet", "--return"]);
    command.args(["--command", &format!("exec {}", words.join(" ")), "/dev/null"]);
    for name in ["CI", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "RUST_LOG"] {
        command.env_remove(name);
    }
    command.env("TERM", "xterm").envs(environment.iter().map(|(name, value)| (name, value)));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut keyboard = child.stdin.take().unwrap();
    let mut output = child.stdout.take().unwrap();
    let (mut written, mut piece, mut is_interrupted) = (Vec::new(), [0; 4096], interrupt.is_none());
    loop {
        let count = output.read(&mut piece).unwrap();
        if count == 0 {
            break;
        }
        written.extend_from_slice(&piece[..count]);
        if !is_interrupted && interrupt.is_some_and(|due| due(&String::from_utf8_lossy(&written))) {
            keyboard.write_all(b"\x03").unwrap();
            is_interrupted = true;
        }
    }
    let code = child.wait().unwrap().code();
    Shown { code, written: String::from_utf8_lossy(&written).into_owned() }
}

/// Returns the lines of a terminal after `written`. Knows the sequences that the programs write.
fn screen(written: &str) -> Vec<String> {
    let (mut lines, mut row, mut column) = (vec![Vec::<char>::new()], 0, 0);
    let mut characters = written.chars();
    while let Some(character) = characters.next() {
        match character {
            '\r' => column = 0,
            '\n' => row += 1,
            '\x1b' => {
                characters.next();
                let mut number = String::new();
                let kind = characters.find(|c| {
                    number.extend(Some(*c).filter(|c| !c.is_ascii_alphabetic()));
                    c.is_ascii_alphabetic()
                });
                let count = number.parse().unwrap_or(1);
                match (kind, number.as_str()) {
                    (Some('K'), "2") => lines[row].clear(),
                    (Some('K'), _) => lines[row].truncate(column),
                    (Some('A'), _) => row = row.saturating_sub(count),
                    (Some('B'), _) => row += count,
                    _ => {}
                }
            }
            character => {
                // A full line wraps at the next character.
                if column == COLUMNS {
                    (row, column) = (row + 1, 0);
                }
                lines.resize(lines.len().max(row + 1), Vec::new());
                let line = &mut lines[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = character;
                column += 1;
            }
        }
        lines.resize(lines.len().max(row + 1), Vec::new());
    }
    let text = |line: &Vec<char>| line.iter().collect::<String>().trim_end().to_owned();
    lines.iter().map(text).filter(|line| !line.is_empty()).collect()
}

/// A run with a checkpoint in an S3 bucket, and a server that needs at least [`SECONDS`] for its largest object.
fn slow_run(dir: &TestDir) -> (Server, String) {
    let run = dir.path("run");
    done(&["run", "--config", &dir.config(4, 1), "--run", &run]);
    let objects = std::fs::read_dir(format!("{run}/checkpoints/{}", checkpoints(&run)[0])).unwrap();
    let largest = objects.map(|object| object.unwrap().metadata().unwrap().len()).max().unwrap();
    let server = Server::start(Path::new(&dir.path("s3")), 0);
    copy(Path::new(&run), Path::new(&dir.path(&format!("s3/{}/run", s3_server::BUCKET))));
    server.limit_rate(largest / SECONDS);
    (server, format!("s3://{}/run", s3_server::BUCKET))
}

/// True for the text of a bar: amounts in bytes, a rate and a time left.
fn has_bar(written: &str, label: &str) -> bool {
    let mut bars = written.split(['\r', '\n']).filter(|line| line.contains(label));
    bars.any(|line| line.contains("B/") && line.contains("B/s, ETA ") && line.contains(" s"))
}

#[test]
fn slow_commands_show_bytes_and_time_left_on_a_terminal_only() {
    if !has_terminals() {
        return;
    }
    let dir = TestDir::new();
    let (server, url) = slow_run(&dir);
    let environment = server.environment();
    let verify = ["checkpoint", "verify", &url];
    let (data, quiet) = (dir.path("data/held-out"), ["--quiet", "checkpoint", "verify", &url]);
    let eval = ["eval", &url, "--data", &data, "--samples", "4"];
    let bar = |arguments: &[&str], interrupt| on_terminal(&lambert(), arguments, &environment, interrupt);
    let piped = || {
        let variables = environment.iter().map(|(name, value)| (name, value));
        Command::new(lambert()).args(verify).envs(variables).stdin(Stdio::null()).output().unwrap()
    };
    thread::scope(|scope| {
        let shown = scope.spawn(|| bar(&verify, None));
        let silent = scope.spawn(|| bar(&quiet, None));
        let interrupted = scope.spawn(|| bar(&verify, Some(|written| has_bar(written, "verifying"))));
        let evaluated = scope.spawn(|| bar(&eval, None));
        let piped = scope.spawn(piped);
        let result = piped.join().unwrap();
        assert_eq!((result.status.code(), String::from_utf8_lossy(&result.stderr).as_ref()), (Some(0), ""));
        let result = String::from_utf8(result.stdout).unwrap();
        let shown = shown.join().unwrap();
        assert!(has_bar(&shown.written, "verifying"), "{:?}", shown.written);
        assert_eq!((shown.code, shown.screen()), (Some(0), vec![result.trim().to_owned()]), "{:?}", shown.written);
        let silent = silent.join().unwrap();
        assert_eq!((silent.code, silent.written), (Some(0), result.replace('\n', "\r\n")));
        let interrupted = interrupted.join().unwrap();
        assert!(has_bar(&interrupted.written, "verifying"), "{:?}", interrupted.written);
        assert_eq!(interrupted.code, Some(130), "ended by SIGINT: {:?}", interrupted.written);
        assert!(interrupted.screen().is_empty(), "{:?} left by {:?}", interrupted.screen(), interrupted.written);
        let evaluated = evaluated.join().unwrap();
        assert!(has_bar(&evaluated.written, "reading the model"), "{:?}", evaluated.written);
        assert!(evaluated.screen().iter().all(|line| !line.contains("reading")), "{:?}", evaluated.screen());
        assert!(evaluated.screen().iter().any(|line| line.starts_with("samples")), "{:?}", evaluated.screen());
    });
}

#[test]
fn colors_follow_no_color() {
    if !has_terminals() {
        return;
    }
    let dir = TestDir::new();
    let empty = dir.path("empty");
    std::fs::create_dir(&empty).unwrap();
    std::fs::write(format!("{empty}/run.toml"), "").unwrap();
    let worker = lambert().with_file_name("lambert-worker");
    let log = |text: &'static str| move |shown: &Shown| shown.written.contains(text);
    type Check<'a> = (&'a Path, Vec<&'a str>, Box<dyn Fn(&Shown) -> bool>);
    let (lambert, missing) = (lambert(), dir.path("missing"));
    let commands: [Check<'_>; 3] = [
        (&lambert, vec!["--help"], Box::new(log("Usage:"))),
        (&lambert, vec!["checkpoint", "list", &empty], Box::new(log("has no checkpoints"))),
        (&worker, vec!["eval", &missing, "--data", &missing], Box::new(log("ERROR"))),
    ];
    for (program, arguments, has_text) in commands {
        let shown = |variables: &[(&str, String)]| {
            let shown = on_terminal(program, &arguments, variables, None);
            assert!(has_text(&shown), "{arguments:?}: {:?}", shown.written);
            shown.has_colors()
        };
        assert!(shown(&[]) && shown(&[("NO_COLOR", String::new())]), "{arguments:?} has no colors");
        for (name, value) in [("NO_COLOR", "1"), ("CLICOLOR", "0"), ("TERM", "dumb")] {
            assert!(!shown(&[(name, value.to_owned())]), "{arguments:?} has colors with {name}={value}");
        }
    }
}
