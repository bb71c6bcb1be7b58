//! Every link in the documentation leads to an existing file and heading.

use std::path::{Path, PathBuf};

/// The Markdown pages at the root, in cluster/collective and in every folder below docs.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut folders, mut pages) =
        (vec![root.to_owned(), root.join("cluster/collective"), root.join("docs")], Vec::new());
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

/// The anchors of a document's headings, as GitHub makes them.
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
