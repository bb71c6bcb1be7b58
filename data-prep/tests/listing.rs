//! Files of a source: patterns, folders, links and URLs.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use lambert_config::prep::Source;
use lambert_data_prep::source::find_files;

/// Names of the files of a source, without `folder`.
fn found(folder: &Path, path: &str) -> Result<Vec<String>, String> {
    let source = Source { path: path.to_owned(), format: "auto".into(), ..Source::default() };
    let files = find_files(&[source], 1).map_err(|error| {
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        format!("{error}: {cause}")
    })?;
    let prefix = format!("{}/", folder.display());
    Ok(files
        .iter()
        .map(|file| file.name.trim_start_matches("file://").trim_start_matches(&prefix).to_owned())
        .collect())
}

fn corpus() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a/one.txt", "a/deep/two.txt", "b/three.txt", "a/.hidden.txt", ".b/four.txt"] {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "The king is old.\n").unwrap();
    }
    folder
}

#[test]
fn patterns_mean_the_same_for_paths_and_urls() {
    let folder = corpus();
    let whole = folder.path().display();
    for scheme in ["", "file://"] {
        let found = |pattern: &str| found(folder.path(), &format!("{scheme}{whole}/{pattern}")).unwrap();
        assert_eq!(found("*/*.txt"), ["a/one.txt", "b/three.txt"], "{scheme}");
        assert_eq!(found("**/t*.txt"), ["a/deep/two.txt", "b/three.txt"], "{scheme}");
        assert_eq!(found("b"), ["b/three.txt"], "{scheme}");
        assert_eq!(found("b/three.txt"), ["b/three.txt"], "{scheme}");
    }
    assert_eq!(found(folder.path(), &whole.to_string()).unwrap(), ["a/deep/two.txt", "a/one.txt", "b/three.txt"]);
}

#[test]
fn a_link_to_a_folder_above_it_is_named() {
    let folder = corpus();
    symlink("..", folder.path().join("a/deep/up")).unwrap();
    symlink("../b", folder.path().join("a/other")).unwrap();
    let whole = folder.path().display();
    for pattern in [format!("{whole}/a/**/*.txt"), format!("{whole}/a")] {
        let error = found(folder.path(), &pattern).unwrap_err();
        let expected = format!("cannot list {whole}/a/deep/up: it is a symbolic link to a folder above it");
        assert_eq!(error, expected, "{pattern}");
    }
    // A link to another folder is followed, and a folder beside it does not matter.
    assert_eq!(found(folder.path(), &format!("{whole}/a/other")).unwrap(), ["a/other/three.txt"]);
    assert_eq!(found(folder.path(), &format!("file://{whole}/b")).unwrap(), ["b/three.txt"]);
}

const FOLDER: &str = "LAMBERT_TEST_LISTING";

/// A pattern that meets a folder without permission is an error, as for a folder.
#[test]
fn an_unreadable_folder_is_named() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let folder = Path::new(&folder);
        for pattern in ["", "/*/*.txt"] {
            println!("{}", found(folder, &format!("{}{pattern}", folder.display())).unwrap_err());
        }
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: only root can act as another user");
    }
    let folder = corpus();
    let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    mode(folder.path(), 0o755);
    mode(&folder.path().join("b"), 0o700);
    let output = Command::new("setpriv")
        .args(["--reuid=60000", "--regid=60000", "--clear-groups"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "listing::an_unreadable_folder_is_named", "--nocapture"])
        .env(FOLDER, folder.path())
        .current_dir("/")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let expected = format!("cannot list {}/b: ", folder.path().display());
    assert_eq!(text.matches(&expected).count(), 2, "{text}{}", String::from_utf8_lossy(&output.stderr));
}
