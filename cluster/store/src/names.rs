//! Validation of object names. They must be relative, use forward slashes, and stay within their store.

use object_store::path::Path;

use crate::error::{Error, Result};

/// Maximum length of an object name, bytes. This is half of S3's limit for a key, because a key also includes the
/// prefix of the store.
const MAX_NAME_BYTES: usize = 512;

/// Checks that `name` is a plain relative object name such as `checkpoints/step-000000100-a0001/manifest.json`.
///
/// Some names come from manifests, which are untrusted. Therefore `..`, absolute paths, URLs, empty components, control
/// characters, backslashes and `#` (which marks temporary files) are rejected.
///
/// # Errors
/// [`Error::Name`] with the broken rule.
pub fn check(name: &str) -> Result<()> {
    match broken_rule(name) {
        None => Ok(()),
        Some(why) => Err(Error::Name { name: name.chars().take(200).collect(), why }),
    }
}

fn broken_rule(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("it is empty");
    }
    if name.len() > MAX_NAME_BYTES {
        return Some("it is longer than 512 bytes");
    }
    if name.contains("://") {
        return Some("it is a URL, expected a name relative to the store");
    }
    if name.starts_with('/') {
        return Some("it is absolute, expected a name relative to the store");
    }
    if name.chars().any(|c| c.is_control() || matches!(c, '\\' | '#')) {
        return Some("it contains a control character, a backslash or a #");
    }
    name.split('/').find_map(|part| match part {
        "" => Some("it has an empty component"),
        "." | ".." => Some("it has a component . or .."),
        _ => None,
    })
}

/// Appends the checked `name` to `root`.
pub(crate) fn below(root: &Path, name: &str) -> Result<Path> {
    check(name)?;
    let full = if root.is_root() { name.to_string() } else { format!("{root}/{name}") };
    Path::parse(full).map_err(|_| Error::Name { name: name.to_string(), why: "the store does not accept it" })
}

/// Appends `prefix` to `root`. Returns `root` for an empty prefix.
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
    fn names_that_escape_the_store_are_rejected() {
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
