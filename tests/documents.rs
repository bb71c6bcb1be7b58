//! Checks the documentation: each link leads to an existing file and heading, the book contains every page, and
//! paragraphs, table cells and pages are short.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Returns the Markdown pages at the root, in cluster/collective and in every folder below docs.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut folders, mut pages) = (vec![root.to_owned(), root.join("cluster/collective")], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && path.starts_with(root.join("docs")) {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// Targets of `](...)`.
fn links(text: &str) -> Vec<String> {
    let parts = text.split("](").skip(1);
    let targets = parts.filter_map(|part| part.split_once(')').map(|(target, _)| target.to_owned()));
    targets.filter(|target| !target.contains([' ', '\n']) && !target.contains("://")).collect()
}

/// Anchors of the headings of a document, as GitHub generates them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |c: char| c.is_alphanumeric() || ['-', '_', ' '].contains(&c);
    let anchor = |heading: &str| heading.to_lowercase().chars().filter(|c| kept(*c)).collect::<String>();
    headings.map(|heading| anchor(heading).replace(' ', "-")).collect()
}

#[test]
fn every_link_has_a_target() {
    let (mut seen, mut broken) = (0, Vec::new());
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for link in links(&text) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { document.clone() } else { document.with_file_name(path) };
            let is_there = match (target.exists(), anchor) {
                (exists, "") => exists,
                (true, anchor) => anchors(&std::fs::read_to_string(&target).unwrap()).iter().any(|own| own == anchor),
                (false, _) => false,
            };
            if !is_there {
                broken.push(format!("{}: {link}", document.display()));
            }
            seen += 1;
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(seen > 20, "only {seen} links were found");
}

#[test]
fn the_book_has_every_page() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let summary = docs.join("SUMMARY.md");
    let chapters = links(&std::fs::read_to_string(&summary).unwrap());
    let listed: BTreeSet<PathBuf> = chapters.iter().map(|chapter| docs.join(chapter)).collect();
    let pages = documents().into_iter().filter(|page| page.starts_with(&docs) && *page != summary);
    assert_eq!(listed, pages.collect::<BTreeSet<PathBuf>>());
    assert_eq!(listed.len(), chapters.len(), "a page is listed twice");
}

/// Maximum number of lines of a paragraph.
const PARAGRAPH: usize = 8;
/// Maximum number of characters in a table cell.
const CELL: usize = 120;

/// Returns the line number and the number of lines of each paragraph or list item outside code.
fn paragraphs(text: &str) -> Vec<(usize, usize)> {
    let (mut found, mut is_code, mut was_text) = (Vec::new(), false, false);
    for (index, line) in text.lines().enumerate() {
        let content = line.trim_start();
        let is_fence = content.starts_with("```");
        is_code ^= is_fence;
        let is_indented = !was_text && line.starts_with("    ");
        let is_text = !is_code && !is_fence && !is_indented && !content.is_empty() && !content.starts_with(['#', '|']);
        let number = content.trim_start_matches(|c: char| c.is_ascii_digit());
        let is_item = content.starts_with("- ") || (number != content && number.starts_with(". "));
        match found.last_mut() {
            Some((_, lines)) if is_text && was_text && !is_item => *lines += 1,
            _ if is_text => found.push((index + 1, 1)),
            _ => {}
        }
        was_text = is_text;
    }
    found
}

/// Cells of a table row.
fn cells(row: &str) -> Vec<String> {
    row.replace("\\|", "/").split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// Pages with generated tables, whose cells have a limit of their own.
const GENERATED: [&str; 2] = ["docs/reference/configuration.md", "docs/reference/preparation.md"];

/// Maximum size of a page below docs, bytes.
fn size_limit(page: &str) -> usize {
    match page {
        guide if guide.starts_with("docs/guides/") => 10 << 10,
        "docs/design/architecture.md" => 15 << 10,
        "docs/reference/configuration.md" => 44 << 10,
        page if page.starts_with("docs/") => 25 << 10,
        _ => usize::MAX,
    }
}

#[test]
fn paragraphs_cells_and_pages_are_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut long = Vec::new();
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        let page = document.strip_prefix(root).unwrap().to_str().unwrap();
        let paragraphs = paragraphs(&text).into_iter().filter(|(_, lines)| *lines > PARAGRAPH);
        long.extend(paragraphs.map(|(start, lines)| format!("{page}:{start}: a paragraph of {lines} lines")));
        let rows = text.lines().enumerate().filter(|(_, line)| line.starts_with('|'));
        for (index, row) in rows.filter(|_| !GENERATED.contains(&page)) {
            let longest = cells(row).iter().map(|cell| cell.chars().count()).max().unwrap_or_default();
            long.extend((longest > CELL).then(|| format!("{page}:{}: a cell of {longest} characters", index + 1)));
        }
        if text.len() > size_limit(page) {
            long.push(format!("{page}: {} bytes of at most {}", text.len(), size_limit(page)));
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn paragraphs_and_cells_are_counted() {
    let text =
        "# A\n\none\ntwo\n- item\n  of two\n1. item\n\n    code\n    code\n\n```toml\na = 1\n```\n| a | b |\nlast\n";
    assert_eq!(paragraphs(text), [(3, 2), (5, 2), (7, 1), (16, 1)]);
    assert_eq!(cells("| a | `b \\| c` |"), ["", "a", "`b / c`", ""]);
}
