//! File trees for comparisons. Shared by the tests of several packages.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Bytes of every file below a folder, by relative path.
pub type Tree = BTreeMap<PathBuf, Vec<u8>>;

/// Reads a folder.
pub fn tree(folder: &Path) -> Tree {
    let mut found = Tree::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(folder).unwrap().to_owned(), std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// Asserts that two trees are equal. The message names the first file that differs.
#[allow(dead_code, reason = "tests of preparation use it")]
pub fn assert_same(one: &Tree, other: &Tree) {
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    one.iter().for_each(|(name, bytes)| assert!(bytes == &other[name], "{} differs", name.display()));
}
