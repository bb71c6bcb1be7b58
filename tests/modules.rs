//! Checks that modules have no import cycles, neither at the root of a crate nor among the children of a module.
//! Imports between a module and its own children are allowed. Test modules are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Source folders of all crates.
pub const CRATES: [&str; 10] = [
    "src",
    "configs/src",
    "configs/plan/src",
    "data-prep/src",
    "data-prep/dataset/src",
    "cluster/collective/src",
    "cluster/control/src",
    "cluster/store/src",
    "launcher/src",
    "launcher/progress/src",
];

/// Path of a module from the root of its crate.
type Module = Vec<String>;

/// Returns all modules of a crate except test modules, each with its code. Comments and tests are removed from the
/// code.
fn modules(crate_folder: &str) -> BTreeMap<Module, String> {
    let mut modules = BTreeMap::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(crate_folder);
    read(&root.join("lib.rs"), &root, Vec::new(), &mut modules);
    modules
}

/// Reads the module in `file`, whose children are in `folder`.
fn read(file: &Path, folder: &Path, module: Module, modules: &mut BTreeMap<Module, String>) {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.starts_with("//")).collect();
    let mut code = String::new();
    for (number, line) in lines.iter().enumerate() {
        let is_test = number > 0 && lines[number - 1].starts_with("#[cfg(test)]");
        // A test module is the last item of its file.
        if is_test && line.ends_with("mod tests {") {
            break;
        }
        let declared = line
            .strip_suffix(';')
            .and_then(|line| line.split_once("mod "))
            .filter(|(before, _)| ["", "pub ", "pub(crate) ", "pub(super) "].contains(before));
        match declared {
            Some((_, name)) if !is_test => {
                let child = [&module[..], &[name.to_owned()]].concat();
                let (beside, within) = (folder.join(format!("{name}.rs")), folder.join(name));
                let file = if beside.is_file() { beside } else { within.join("mod.rs") };
                read(&file, &within, child, modules);
            }
            _ => code += &format!("{line}\n"),
        }
    }
    modules.insert(module, code);
}

/// Paths that the code of `module` imports, from the root of the crate.
fn imports(module: &Module, code: &str) -> Vec<Module> {
    let mut paths = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            // Skip the middle of a longer path, such as super::super.
            if !code[..at].ends_with("::") {
                paths.extend(tree(&code[at..]));
            }
        }
    }
    let from_root = |path: Vec<String>| {
        let ups = path.iter().take_while(|name| *name == "super").count();
        let rest = path[ups..].iter().filter(|name| *name != "crate").cloned();
        let base = if ups > 0 { &module[..module.len().saturating_sub(ups)] } else { &[] };
        base.iter().cloned().chain(rest).collect()
    };
    paths.into_iter().map(from_root).collect()
}

/// Returns the paths of `a::b` or of `a::{b, c::d}` at the beginning of a text.
fn tree(text: &str) -> Vec<Vec<String>> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let Some(rest) = rest.strip_prefix("::") else { return vec![vec![name.to_owned()]] };
    let below = match rest.strip_prefix('{') {
        Some(group) => items(group).into_iter().flat_map(tree).collect(),
        None => tree(rest),
    };
    below.into_iter().map(|path| [vec![name.to_owned()], path].concat()).collect()
}

/// Returns the items of a group. `group` starts after the opening brace.
fn items(group: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut items) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                items.push(group[begin..at].trim());
                begin = at + 1;
                if c == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    items.into_iter().filter(|item| !item.is_empty()).collect()
}

/// Import edges between the children of `parent`, with one example each.
fn between_children(parent: &[String], modules: &BTreeMap<Module, String>) -> BTreeMap<[String; 2], String> {
    let child = |path: &[String]| path.strip_prefix(parent).and_then(|rest| rest.first()).cloned();
    let mut edges = BTreeMap::new();
    for (module, code) in modules {
        let Some(from) = child(module) else { continue };
        for import in imports(module, code) {
            let is_module = |name: &String| modules.contains_key(&[parent, std::slice::from_ref(name)].concat());
            if let Some(to) = child(&import).filter(|to| *to != from && is_module(to)) {
                let example = format!("{} imports {}", module.join("::"), import.join("::"));
                edges.entry([from.clone(), to]).or_insert(example);
            }
        }
    }
    edges
}

/// Examples of edges that are on a cycle.
fn on_cycles(edges: &BTreeMap<[String; 2], String>) -> Vec<&String> {
    let reaches = |from: &String, goal: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(node) = open.pop() {
            if node == goal {
                return true;
            }
            let next = edges.keys().filter(|[start, _]| start == node).map(|[_, end]| end);
            open.extend(next.filter(|end| seen.insert(*end)));
        }
        false
    };
    edges.iter().filter(|([from, to], _)| reaches(to, from)).map(|(_, example)| example).collect()
}

#[test]
fn modules_have_no_import_cycles() {
    let mut broken = Vec::new();
    let mut imported = 0;
    for crate_folder in CRATES {
        let modules = modules(crate_folder);
        let parents: BTreeSet<Module> = modules.keys().filter(|path| !path.is_empty()).map(parent).collect();
        for parent in parents {
            let edges = between_children(&parent, &modules);
            imported += edges.len();
            broken.extend(on_cycles(&edges).into_iter().map(|example| format!("{crate_folder}: {example}")));
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(imported > 400, "only {imported} imports between modules were found");
}

fn parent(path: &Module) -> Module {
    path[..path.len() - 1].to_vec()
}

#[test]
fn cycles_are_detected() {
    let module = |path: &str| path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect::<Module>();
    let cycle = |code: &str| {
        let modules = BTreeMap::from([
            (module(""), String::new()),
            (module("a"), String::new()),
            (module("a::b"), "use crate::c;".to_owned()),
            (module("c"), code.to_owned()),
        ]);
        !on_cycles(&between_children(&[], &modules)).is_empty()
    };
    assert!(cycle("use crate::{d, a::b::{e, f}};") && cycle("super::a::work()") && cycle("use super::a;"));
    assert!(!cycle("use crate::{c::a, d};") && !cycle("use other::a;") && !cycle("use super::c::a;"));
}
