//! Checks the wording of the sources: openings of doc comments, and names that were replaced by standard terms.

use std::path::Path;

/// Folders with Rust sources.
const FOLDERS: [&str; 7] = ["src", "tests", "benches", "configs", "data-prep", "cluster", "launcher"];

/// Openings that do not name the documented item. A noun phrase or a verb is required instead.
const OPENERS: [&str; 9] = ["What", "Whether", "How", "That of", "Those of", "When", "Where", "Why", "Which"];

/// Maximum share of doc comments with such an opening, percent.
const MAX_PERCENT: f64 = 1.0;

/// Types and variants of earlier versions that were replaced by standard terms.
#[rustfmt::skip]
const TYPES: [&str; 77] = [
    "Apart", "Asks", "Card", "Chosen", "Clash", "Collected", "Cut", "Demand", "Detours", "Division", "Drawn", "Each",
    "Facts", "Filler", "Form", "FromWorkers", "GoBack", "Groups", "Guess", "Hidden", "Lane", "Lanes", "Lasting", "Later",
    "Leaf", "Life", "Lost", "Mark", "Meaning", "Meeting", "Memo", "Misfit", "Numbered", "Order", "OtherStarter", "Pace",
    "Passed", "PassedOver", "Passes", "Passing", "Patience", "People", "Pieces", "Proposed", "Prose", "Question",
    "Retreat", "RollCall", "Room", "Saved", "Saying", "Scene", "Sealed", "Seat", "Share", "Spec", "Standing", "Sums",
    "SumStream", "Term", "Test", "Told", "Tries", "Undone", "Wanted", "Watched", "Why", "Ran", "Planted",
    "Auditor", "BaseFacts", "Eavesdropper", "TeacherFacts", "TensorFault", "TrainedPart", "VocabularyFacts", "Weather",
];

/// Functions and modules of earlier versions that were replaced by standard terms.
#[rustfmt::skip]
const FUNCTIONS: [&str; 30] = [
    "add_in_one_order", "are_final", "binding", "by_main_memory", "dealing", "derail", "doomed", "forecast", "hear",
    "hold_sums", "idle_parts", "janitor", "keep_low", "kept_by_layer", "leaf_by_leaf", "leftovers", "make_up", "misfit",
    "mishaps", "order_copies", "order_sent", "own_transpose", "planted", "retreat", "spoil", "taken_apart",
    "together", "owed", "make_of", "ends_like",
];

/// Returns the opening lines of the doc comments of a file, with their line numbers.
fn doc_openings(text: &str) -> Vec<(usize, &str)> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let is_doc = |line: &str| line.starts_with("///") || line.starts_with("//!");
    let first = (0..lines.len()).filter(|&n| is_doc(lines[n]) && (n == 0 || !is_doc(lines[n - 1])));
    first.map(|n| (n + 1, lines[n][3..].trim())).filter(|(_, line)| !line.is_empty()).collect()
}

fn opens_badly(comment: &str) -> bool {
    OPENERS
        .iter()
        .any(|opener| comment.strip_prefix(opener).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric)))
}

/// Returns the replaced names that a file defines as a type, a function or a module, with their line numbers.
fn replaced_names(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        for pair in words.windows(2).filter(|_| !line.trim_start().starts_with("//")) {
            let is_replaced = match pair[0] {
                "struct" | "enum" | "trait" | "type" => TYPES.contains(&pair[1]),
                "fn" | "mod" => FUNCTIONS.contains(&pair[1]),
                _ => false,
            };
            found.extend(is_replaced.then_some((number + 1, pair[1])));
        }
    }
    found
}

/// Adds the path and the text of each Rust file below `folder` to `files`, except those of this file.
fn read(folder: &Path, files: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            read(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("words.rs") {
            files.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
        }
    }
}

fn sources() -> Vec<(String, String)> {
    let mut files = Vec::new();
    FOLDERS.iter().for_each(|folder| read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut files));
    files
}

#[test]
fn doc_comments_open_with_a_noun_phrase_or_a_verb() {
    let (mut comments, mut bad) = (0, Vec::new());
    for (file, text) in sources() {
        for (line, comment) in doc_openings(&text) {
            comments += 1;
            bad.extend(opens_badly(comment).then(|| format!("{file}:{line}: {comment}")));
        }
    }
    assert!(comments > 4000, "only {comments} doc comments were found");
    let percent = 100.0 * bad.len() as f64 / f64::from(comments);
    assert!(percent < MAX_PERCENT, "{percent:.1} % of {comments} doc comments: {bad:#?}");
}

#[test]
fn replaced_names_are_not_defined_again() {
    let found: Vec<String> = sources()
        .iter()
        .flat_map(|(file, text)| {
            replaced_names(text).into_iter().map(move |(line, name)| format!("{file}:{line}: {name}"))
        })
        .collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn violations_are_detected() {
    let text =
        "//! How it works.\n\nfn f() {}\n/// Whether\n/// What it does.\npub struct Wanted;\n    mod leftovers {}";
    let openings = doc_openings(text);
    assert_eq!(openings, [(1, "How it works."), (4, "Whether")]);
    assert!(openings.iter().all(|(_, comment)| opens_badly(comment)));
    assert!(!opens_badly("However") && !opens_badly("Wherever") && !opens_badly("Splits a batch."));
    assert_eq!(replaced_names(text), [(6, "Wanted"), (7, "leftovers")]);
    assert_eq!(replaced_names("// struct Wanted\nlet wanted: Wanted; fn order() {}"), []);
}
