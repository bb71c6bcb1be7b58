//! Test that docs/reference/commands.md matches the command-line definitions from which it is generated. With
//! `LAMBERT_WRITE_DOCS=1` the test writes the page.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use clap::{Arg, Command, CommandFactory};
use lambert::cli::Cli;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/commands.md");

/// Guide for each command.
const GUIDES: &[(&str, &str)] = &[
    ("init", "[Start a first run](../guides/first-run.md)"),
    ("vocab", "[Prepare a corpus](../guides/prepare-a-corpus.md)"),
    ("completions", "[Completions and manual pages](../guides/completions.md)"),
    ("man", "[Completions and manual pages](../guides/completions.md)"),
    ("prep", "[Prepare a corpus](../guides/prepare-a-corpus.md)"),
    ("data", "[Report a dataset](../guides/prepare-a-corpus.md#report-a-dataset)"),
    (
        "run",
        "[Train on one machine](../guides/one-machine.md), [on several hosts](../guides/several-hosts.md); [step records](step-records.md)",
    ),
    ("plan", "[Plan a run](../guides/plan-a-run.md)"),
    ("submit", "[Train with Slurm](../guides/slurm.md)"),
    ("tune", "[Tune hyperparameters](../guides/one-machine.md#tune-hyperparameters)"),
    ("status", "[Watch a run](../guides/watch-a-run.md)"),
    ("logs", "[Logs](../guides/watch-a-run.md#logs)"),
    ("watch", "[Watch runs in a browser](../guides/watch-page.md)"),
    ("metrics", "[Export metrics](../guides/metrics.md)"),
    ("report", "[Report a run](../guides/report.md)"),
    ("stop", "[Stop a run](../guides/one-machine.md#stop-a-run)"),
    ("checkpoint", "[Manage checkpoints](../guides/one-machine.md#manage-checkpoints)"),
    ("eval", "[Evaluate and export a model](../guides/export.md)"),
    ("embed", "[Embed and score texts](../guides/embed.md)"),
    ("import", "[Start from a published model](../guides/import.md)"),
    ("score", "[Embed and score texts](../guides/embed.md)"),
    ("fill-mask", "[Evaluate and export a model](../guides/export.md)"),
    ("export", "[Evaluate and export a model](../guides/export.md)"),
];

#[test]
fn the_page_of_commands_is_up_to_date() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let mut program = Cli::command();
    program.build();
    let commands: Vec<&Command> = program.get_subcommands().filter(|command| command.get_name() != "help").collect();
    let text = replace(&page, "commands", &overview(&commands));
    let sections: Vec<String> = commands.iter().map(|command| section(command)).collect();
    let text = replace(&text, "options", &sections.join("\n"));
    if std::env::var_os("LAMBERT_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, text).unwrap();
        return;
    }
    let first = page.lines().zip(text.lines()).find(|(found, line)| found != line);
    let hint = "LAMBERT_WRITE_DOCS=1 cargo test --release --workspace --test reference writes it";
    assert!(page == text, "docs/reference/commands.md differs from the options: {first:?}; {hint}");
}

#[test]
fn every_guide_has_a_command() {
    let program = Cli::command();
    for (name, _) in GUIDES {
        assert!(program.find_subcommand(name).is_some(), "{name}");
    }
}

/// Replaces the text between the marks of `name`.
fn replace(page: &str, name: &str, text: &str) -> String {
    let start = format!("<!-- generated: {name} -->");
    let (before, rest) = page.split_once(&start).unwrap_or_else(|| panic!("{PAGE} lacks {start}"));
    let (_, after) = rest.split_once("<!-- end -->").unwrap();
    format!("{before}{start}\n\n{text}\n<!-- end -->{after}")
}

/// Renders the table of all commands.
fn overview(commands: &[&Command]) -> String {
    let mut text = "| Command | Effect |\n|---|---|\n".to_owned();
    for command in commands {
        let name = command.get_name();
        text += &format!("| [`{name}`](#lambert-{name}) | {} |\n", command.get_about().unwrap());
    }
    text
}

/// Renders the section of a command.
fn section(command: &Command) -> String {
    let name = command.get_name();
    let actions: Vec<&Command> = command.get_subcommands().filter(|action| action.get_name() != "help").collect();
    let mut text = format!("## lambert {name}\n\n{}.\n\n", command.get_about().unwrap());
    let with_usage = if actions.is_empty() { vec![command] } else { actions.clone() };
    with_usage.iter().for_each(|command| text += &usage(command));
    if !actions.is_empty() {
        text += "\n| Command | Effect |\n|---|---|\n";
        let row = |action: &&Command| format!("| `{}` | {} |\n", action.get_name(), action.get_about().unwrap());
        text.extend(actions.iter().map(row));
    }
    let mut rows: Vec<String> = Vec::new();
    for row in with_usage.iter().flat_map(|command| command.get_arguments()).filter_map(row) {
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    text += &format!("\n| Option | Default | Meaning |\n|---|---|---|\n{}", rows.concat());
    text += &examples(command);
    let guide = GUIDES.iter().find(|(command, _)| *command == name);
    text + &guide.map_or(String::new(), |(_, link)| format!("\n{link}\n"))
}

/// Renders the usage of a command as code, one form per line.
fn usage(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let lines = usage.lines().map(|line| line.trim_start_matches("Usage:").trim());
    lines.map(|line| format!("    {line}\n")).collect()
}

/// Renders the examples of a command as code. The examples come from the text after the help of the command.
fn examples(command: &Command) -> String {
    let Some(help) = command.get_after_help() else { return String::new() };
    let help = help.to_string();
    let examples =
        help.strip_prefix("Examples:\n").unwrap_or_else(|| panic!("{}: no examples: {help}", command.get_name()));
    let lines: String = examples.lines().map(|line| format!("    {}\n", line.trim())).collect();
    format!("\nFor example:\n\n{lines}")
}

/// Renders the table row of an option. Returns `None` for an option that every command has.
fn row(argument: &Arg) -> Option<String> {
    if ["help", "version", "log", "quiet"].contains(&argument.get_id().as_str()) {
        return None;
    }
    let help = argument.get_help().unwrap().to_string();
    let (meaning, stated) = help.strip_suffix(']').and_then(|help| help.split_once(" [default: ")).unzip();
    let takes_value = argument.get_action().takes_values();
    let value = argument.get_default_values().first().filter(|_| takes_value);
    let default = value.map(|value| format!("`{}`", value.to_string_lossy()));
    let default = stated.map(str::to_owned).or(default).unwrap_or_else(|| "–".to_owned());
    let values: Vec<String> =
        argument.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    let values = if takes_value && !values.is_empty() { format!(": {}", values.join(", ")) } else { String::new() };
    let required = if argument.is_required_set() { "; required" } else { "" };
    Some(format!("| `{argument}` | {default} | {}{values}{required} |\n", meaning.unwrap_or(&help)))
}
