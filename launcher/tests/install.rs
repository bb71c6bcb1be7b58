//! Tests of the completions with bash, zsh and fish, and of the manual pages with mandoc and groff.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

fn lambert(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_lambert")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// True if all programs are installed. Otherwise, prints SKIPPED.
fn have(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap();
    let is_there = |program: &&str| std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    match programs.iter().find(|program| !is_there(program)) {
        Some(missing) => eprintln!("SKIPPED: {missing} is not installed; tests/setup.sh installs it"),
        None => return true,
    }
    false
}

/// Folder with a program `lambert` that writes its arguments, one per line, to the file `typed`.
fn stub() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("lambert");
    std::fs::write(
        &program,
        "#!/bin/sh\nprintf '%s\\n' \"$@\" >\"$0.part\" && mv \"$0.part\" \"$(dirname \"$0\")/typed\"\n",
    )
    .unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    folder
}

/// Waits until a file exists.
fn wait_for(file: &Path, log: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !file.exists() {
        let log = || std::fs::read_to_string(log).unwrap_or_default();
        assert!(Instant::now() < deadline, "{} is missing; the terminal: {}", file.display(), log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Starts an interactive shell on a terminal, types `setup`, then `line`. Returns the arguments of the program
/// `lambert` that the shell called.
fn typed(shell: &str, folder: &Path, setup: &str, line: &str) -> Vec<String> {
    let log = folder.join("terminal");
    let (ready, typed) = (folder.join("ready"), folder.join("typed"));
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut terminal = Command::new("script")
        .args(["--quiet", "--flush", "--return", "--command", shell])
        .arg(&log)
        .env("PATH", path)
        .env("TERM", "xterm")
        .env("HOME", folder)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut keys = terminal.stdin.take().unwrap();
    writeln!(keys, "{setup} && touch ready").unwrap();
    wait_for(&ready, &log);
    writeln!(keys, "{line}").unwrap();
    wait_for(&typed, &log);
    writeln!(keys, "exit").unwrap();
    drop(keys);
    terminal.wait().unwrap();
    let arguments = std::fs::read_to_string(&typed).unwrap();
    for file in [ready, typed] {
        std::fs::remove_file(file).unwrap();
    }
    // Zsh completes --option=VALUE, bash --option VALUE.
    arguments.lines().flat_map(|argument| argument.split('=')).map(str::to_owned).collect()
}

/// Keys with tabs, and the completed arguments: a command, options, a value, an action of a command.
const LINES: [(&str, &[&str]); 3] = [
    ("lambert compl\tb\t", &["completions", "bash"]),
    ("lambert init --gpu\t4 --place sl\t", &["init", "--gpus-per-node", "4", "--place", "slurm"]),
    ("lambert checkpoint ver\t--js\t", &["checkpoint", "verify", "--json"]),
];

#[test]
fn bash_completes_commands_options_and_values() {
    if !have(&["bash", "script"]) {
        return;
    }
    let folder = stub();
    std::fs::write(folder.path().join("completions.bash"), lambert(&["completions", "bash"])).unwrap();
    for (keys, expected) in LINES {
        let setup = "source completions.bash";
        assert_eq!(typed("bash --norc --noprofile -i", folder.path(), setup, keys), expected, "{keys:?}");
    }
}

#[test]
fn zsh_completes_commands_options_and_values() {
    if !have(&["zsh", "script"]) {
        return;
    }
    let folder = stub();
    std::fs::write(folder.path().join("_lambert"), lambert(&["completions", "zsh"])).unwrap();
    for (keys, expected) in LINES {
        let setup = "fpath=($PWD $fpath); autoload -Uz compinit && compinit -u -D";
        assert_eq!(typed("zsh -f -i", folder.path(), setup, keys), expected, "{keys:?}");
    }
}

#[test]
fn fish_completes_commands_and_options() {
    if !have(&["fish"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("completions.fish"), lambert(&["completions", "fish"])).unwrap();
    let completed = |line: &str| {
        let script = format!("source completions.fish; complete --do-complete '{line}'");
        let mut fish = Command::new("fish");
        fish.args(["--no-config", "--command", &script]).current_dir(folder.path()).env("HOME", folder.path());
        let output = fish.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(completed("lambert compl"), ["completions"]);
    assert_eq!(completed("lambert init --gpu"), ["--gpus-per-node"]);
    assert_eq!(completed("lambert checkpoint ver"), ["verify"]);
}

/// Writes the manual pages and returns their paths.
fn pages(folder: &TempDir) -> Vec<String> {
    let output = folder.path().join("man1");
    lambert(&["man", "--output", output.to_str().unwrap()]);
    let entries = std::fs::read_dir(&output).unwrap();
    let mut pages: Vec<String> = entries.map(|entry| entry.unwrap().path().to_str().unwrap().to_owned()).collect();
    pages.sort();
    pages
}

#[test]
fn every_command_has_a_manual_page() {
    use clap::CommandFactory;
    let folder = tempfile::tempdir().unwrap();
    let pages = pages(&folder);
    let has = |name: &str| pages.iter().any(|page| page.ends_with(&format!("/{name}.1")));
    assert!(has("lambert") && has("lambert-checkpoint-verify"), "{pages:?}");
    for command in lambert::cli::Cli::command().get_subcommands() {
        assert!(has(&format!("lambert-{}", command.get_name())), "{pages:?}");
    }
}

/// `mandoc -T lint` reports the style of sources as well, which matters only for pages written by hand.
#[test]
fn mandoc_accepts_the_manual_pages() {
    if !have(&["mandoc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let checked = Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).args(pages(&folder)).output().unwrap();
    let found = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success() && found.is_empty(), "{found}");
}

#[test]
fn groff_renders_the_manual_pages() {
    if !have(&["groff"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for page in pages(&folder) {
        let rendered = Command::new("groff").args(["-man", "-T", "utf8", "-ww", "-P-cbou", &page]).output().unwrap();
        let (text, warnings) = (String::from_utf8_lossy(&rendered.stdout), String::from_utf8_lossy(&rendered.stderr));
        assert!(rendered.status.success() && warnings.is_empty(), "{page}: {warnings}");
        assert!(text.contains("SYNOPSIS\n       lambert"), "{page}: {text}");
        if page.ends_with("/lambert.1") {
            assert!(text.contains("EXIT STATUS") && text.contains("70     permanent failure"), "{text}");
        }
        if page.ends_with("/lambert-prep.1") {
            assert!(text.contains("EXAMPLES\n       lambert prep --config configs/prep-demo.toml"), "{text}");
        }
    }
}
