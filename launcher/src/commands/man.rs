//! `lambert man`: writes the manual pages of the program and of its commands.

use std::io::Write;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use lambert_config::exit;

use super::files;
use crate::cli::{self, Cli};
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::text::counted;

/// Writes one page per command.
pub fn man(arguments: &cli::Man) -> Outcome {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    let pages = pages(&program);
    for command in &pages {
        let version = concat!("lambert ", env!("CARGO_PKG_VERSION"));
        let page = Man::new(command.clone()).date(release_date()).source(version).manual("lambert");
        let text = render(&page, command).map_err(Failure::failed)?;
        let path = arguments.output.join(page.get_filename());
        files::write(&path, |output| output.write_all(text.as_bytes())).map_err(Failure::failed)?;
    }
    let (count, output) = (counted(pages.len() as u64, "page"), arguments.output.display());
    console::result(&format!("wrote {count} to {output}")).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

/// Returns the command and all commands below it.
fn pages(command: &Command) -> Vec<Command> {
    let below = command.get_subcommands().flat_map(pages);
    std::iter::once(command.clone()).chain(below).collect()
}

/// Date of the last release, from the changelog.
fn release_date() -> &'static str {
    let changelog = include_str!("../../../CHANGELOG.md");
    changelog.lines().find_map(|line| line.strip_prefix("## [")?.split_once("] - ")).map_or("", |(_, date)| date)
}

fn render(page: &Man, command: &Command) -> std::io::Result<String> {
    let mut output = Vec::new();
    page.render_title(&mut output)?;
    page.render_name_section(&mut output)?;
    synopsis(command).to_writer(&mut output)?;
    page.render_description_section(&mut output)?;
    page.render_options_section(&mut output)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut output)?;
    }
    if let Some(text) = command.get_after_help() {
        after_help(&text.to_string()).to_writer(&mut output)?;
    }
    // clap_mangen separates paragraphs by two line breaks, which mandoc rejects.
    Ok(String::from_utf8_lossy(&output).replace(".br\n\n.br\n", ".sp\n"))
}

/// Renders the usage of a command, one form per line.
fn synopsis(command: &Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]).control("nf", []);
    let usage = command.clone().render_usage().to_string();
    for line in usage.lines() {
        roff.text([bold(line.trim_start_matches("Usage:").trim())]);
    }
    roff.control("fi", []);
    roff
}

/// Renders the text after the help: examples as preformatted lines, or the exit codes.
fn after_help(text: &str) -> Roff {
    let mut roff = Roff::new();
    if let Some(examples) = text.strip_prefix("Examples:\n") {
        roff.control("SH", ["EXAMPLES"]).control("nf", []);
        for line in examples.lines() {
            roff.text([roman(line.trim())]);
        }
        roff.control("fi", []);
        return roff;
    }
    let (codes, heading) = text.strip_prefix("Exit codes: ").map_or((text, "NOTES"), |codes| (codes, "EXIT STATUS"));
    roff.control("SH", [heading]);
    for code in codes.split("; ") {
        let (number, meaning) = code.split_once(' ').unwrap_or(("", code));
        roff.control("TP", []).text([roman(number)]).text([roman(meaning)]);
    }
    roff
}
