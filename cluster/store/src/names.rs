//! Object names: relative, forward slashes, and unable to leave the store they are used in.

use object_store::path::Path;

use crate::error::{Error, Result};

/// S3's limit for a whole key; names leave room for the prefix.
const LONGEST: usize = 512;

/// Checks that `name` is a plain relative object name such as `checkpoints/step-000000100-a0001/manifest.json`.
///
/// Names also come from manifests, which anybody may have written: `..`, absolute paths, URLs, empty parts,
/// control characters, backslashes and `#` (the mark of a half-written local file) are refused.
///
/// # Errors
/// [`Error::Name`] says which rule is broken.
pub fn check(name: &str) -> Result<()> {
    match fault(name) {
        None => Ok(()),
        Some(why) => Err(Error::Name { name: name.chars().take(200).collect(), why }),
    }
}

fn fault(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("it is empty");
    }
    if name.len() > LONGEST {
        return Some("it is longer than 512 bytes");
    }
    if name.contains("://") {
        return Some("it is a URL, where a name inside the store was expected");
    }
    if name.starts_with('/') {
        return Some("it is absolute, where a name inside the store was expected");
    }
    if name.chars().any(|c| c.is_control() || matches!(c, '\\' | '#')) {
        return Some("it holds a control character, a backslash or a #");
    }
    name.split('/').find_map(|part| match part {
        "" => Some("it has an empty part"),
        "." | ".." => Some("it has a part . or .."),
        _ => None,
    })
}

/// `root` with the checked `name` below it.
pub(crate) fn below(root: &Path, name: &str) -> Result<Path> {
    check(name)?;
    let full = if root.is_root() { name.to_string() } else { format!("{root}/{name}") };
    Path::parse(full).map_err(|_| Error::Name { name: name.to_string(), why: "the store takes no such name" })
}

/// `root` with `prefix` below it, where an empty prefix means the root itself.
pub(crate) fn folder(root: &Path, prefix: &str) -> Result<Path> {
    match prefix.trim_end_matches('/') {
        "" => Ok(root.clone()),
        prefix => below(root, prefix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_store_are_refused() {
        for bad in [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a/./b",
            "a//b",
            "a/",
            "s3://other/x",
            "a\\b",
            "a\nb",
            "a#1",
            "a\0b",
        ] {
            assert!(check(bad).is_err(), "{bad:?} was accepted");
        }
        assert!(check(&"x".repeat(513)).is_err());
    }

    #[test]
    fn plain_names_are_accepted() {
        for good in ["manifest.json", "checkpoints/step-000000100-a0001/model.safetensors", "ä b/..c", "a%20b"] {
            check(good).unwrap();
        }
    }
}
