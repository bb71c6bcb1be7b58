//! Dataset identity. It depends on the contents of the inputs, not on their names or times.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::common::{assert_same, config, generated, run, source, tree};
use lambert_config::PrepConfig;
use lambert_config::prep::{Damaged, Documents, Source};
use lambert_data_prep::prep::{self, PrepError, PrepOptions, PrepReport, PrepStatus};

fn part(config: &PrepConfig, part: (usize, usize)) -> Result<PrepReport, PrepError> {
    prep::run(
        config,
        &PrepOptions { threads: 1, memory: prep::DEFAULT_MEMORY, part: Some(part), progress: &|_: &PrepStatus| {} },
    )
}

/// Replaces a word by a word of the same length, so that the size does not change. If `keep_time`, the mtime does not
/// change either.
fn edit(path: &Path, keep_time: bool) {
    let modified = std::fs::metadata(path).unwrap().modified().unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let edited = text.replacen(" the ", " tha ", 1);
    assert!(edited != text && edited.len() == text.len());
    std::fs::write(path, edited).unwrap();
    let time = if keep_time { modified } else { modified + Duration::from_secs(7) };
    std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

fn touch(path: &Path) {
    let time = SystemTime::now() + Duration::from_secs(3);
    std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

fn refused(result: Result<PrepReport, PrepError>, words: &[&str]) {
    let message = result.unwrap_err().to_string();
    words.iter().for_each(|word| assert!(message.contains(word), "no {word:?} in {message}"));
}

#[test]
fn an_edit_that_keeps_size_and_mtime_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 200);
    let config = config(folder.path(), &vocabulary, vec![source(&text, "text", Documents::BlankLine)]);
    let made = run(&config, 1).unwrap();
    let before = std::fs::read(&text).unwrap();
    touch(&text);
    assert!(run(&config, 2).unwrap().unchanged, "equal contents, another time");
    edit(&text, true);
    refused(run(&config, 1), &["another corpus"]);
    refused(part(&config, (0, 2)), &["another corpus"]);
    std::fs::write(&text, before).unwrap();
    let found = run(&config, 1).unwrap();
    assert!(found.unchanged);
    assert_eq!(found.datasets[0].manifest, made.datasets[0].manifest);
    assert_eq!(made.datasets[0].manifest.corpus.bytes, std::fs::metadata(&text).unwrap().len());
    // A job was killed after its last step. The next call removes the leftover work folder.
    std::fs::create_dir(folder.path().join("data.work")).unwrap();
    std::fs::write(
        folder.path().join("data.work/job.json"),
        format!("{{\"fingerprint\":{:?}}}", found.datasets[0].manifest.preparation),
    )
    .unwrap();
    assert!(run(&config, 1).unwrap().unchanged && !folder.path().join("data.work").exists());
}

#[test]
fn an_edit_between_two_parts_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let (one, vocabulary) = generated(folder.path(), 200);
    let two = folder.path().join("two.txt");
    std::fs::copy(&one, &two).unwrap();
    let sources = || [&one, &two].map(|path| source(path, "text", Documents::BlankLine)).to_vec();
    let (plain, split) = (folder.path().join("plain"), folder.path().join("split"));
    run(&config(&plain, &vocabulary, sources()), 1).unwrap();
    let config = config(&split, &vocabulary, sources());
    part(&config, (0, 2)).unwrap();
    touch(&one);
    part(&config, (1, 2)).unwrap();
    let original = std::fs::read(&one).unwrap();
    edit(&one, false);
    refused(run(&config, 1), &["corpus.txt", "has changed"]);
    std::fs::write(&one, original).unwrap();
    run(&config, 1).unwrap();
    assert_same(&tree(&plain), &tree(&split));
}

#[test]
fn an_edit_in_a_shared_file_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 200);
    let once = std::fs::read_to_string(&text).unwrap();
    // The batches of a file above 32 MiB are distributed over the parts.
    std::fs::write(&text, once.repeat((33 << 20) / once.len() + 1)).unwrap();
    let sources = || vec![source(&text, "text", Documents::BlankLine)];
    let config = config(folder.path(), &vocabulary, sources());
    part(&config, (0, 2)).unwrap();
    edit(&text, true);
    refused(part(&config, (1, 2)), &["corpus.txt", "has changed"]);
}

#[test]
fn unchanged_objects_are_identified_by_etag() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 100);
    let text = std::fs::read_to_string(text).unwrap();
    let store = lambert_store::Store::open("memory://identity").unwrap();
    store.put("books/one.txt", text.clone().into_bytes().into()).unwrap();
    let path = "memory://identity/books/one.txt".to_owned();
    let source = Source { path, documents: Some(Documents::BlankLine), ..Source::default() };
    let mut config = config(folder.path(), &vocabulary, vec![source]);
    config.output.url = "memory://identity/out".to_owned();
    config.output.work = Some(folder.path().join("work").display().to_string());
    run(&config, 1).unwrap();
    let known = store.get("out/inputs.json").unwrap();
    assert!(run(&config, 1).unwrap().unchanged);
    // If the ETag is unchanged, the recorded hash is used. Without a record, the object is read.
    let mut other: serde_json::Value = serde_json::from_slice(&known).unwrap();
    other[0]["sha256"] = "0".repeat(64).into();
    store.put("out/inputs.json", other.to_string().into_bytes().into()).unwrap();
    refused(run(&config, 1), &["another corpus"]);
    store.delete("out/inputs.json").unwrap();
    assert!(run(&config, 1).unwrap().unchanged);
    store.put("out/inputs.json", known).unwrap();
    store.put("books/one.txt", text.replacen(" the ", " tha ", 1).into_bytes().into()).unwrap();
    refused(run(&config, 1), &["another corpus"]);
}

#[test]
fn a_second_process_is_locked_out() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 200);
    let config = config(folder.path(), &vocabulary, vec![source(&text, "text", Documents::BlankLine)]);
    let second = std::sync::Mutex::new(Vec::new());
    let meanwhile = |_: &PrepStatus| {
        let mut second = second.lock().unwrap();
        if second.is_empty() {
            for error in [run(&config, 1).unwrap_err(), part(&config, (0, 2)).unwrap_err()] {
                assert!(!error.is_usage());
                second.push(error.to_string());
            }
        }
    };
    prep::run(&config, &PrepOptions { threads: 1, memory: prep::DEFAULT_MEMORY, part: None, progress: &meanwhile })
        .unwrap();
    for message in second.into_inner().unwrap() {
        assert!(message.contains("data.work (all parts)") && message.contains("wait"), "{message}");
    }
}

/// After damaged input, a job goes on with what it has finished, or starts over if it has finished nothing.
#[test]
fn a_job_goes_on_after_damaged_input() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 300);
    let text = std::fs::read_to_string(text).unwrap();
    let whole = crate::common::corpus::gzip(text.as_bytes());
    let [good, bad] = ["a-good.gz", "b-bad.gz"].map(|name| folder.path().join(name));
    std::fs::write(&good, &whole).unwrap();
    std::fs::write(&bad, &whole[..whole.len() / 2]).unwrap();
    let sources = |paths: &[&Path]| paths.iter().map(|path| source(path, "text", Documents::BlankLine)).collect();
    let mut one = config(folder.path(), &vocabulary, sources(&[&bad]));
    refused(run(&one, 1), &["b-bad.gz"]);
    // Nothing is finished: another size of the file, or another setting, starts over.
    std::fs::write(&bad, &whole[..whole.len() / 3]).unwrap();
    refused(run(&one, 1), &["b-bad.gz"]);
    one.source[0].damaged = Damaged::Skip;
    assert!(!run(&one, 1).unwrap().unchanged);

    let in_folder = |name: &str, damaged| {
        let mut both = config(folder.path(), &vocabulary, sources(&[&good, &bad]));
        both.output.url = folder.path().join(name).display().to_string();
        both.source[1].damaged = damaged;
        both
    };
    run(&in_folder("undisturbed", Damaged::Skip), 2).unwrap();
    // The first file is finished, the second is not.
    let refusing = in_folder("resumed", Damaged::Refuse);
    part(&refusing, (0, 2)).unwrap();
    refused(part(&refusing, (1, 2)), &["b-bad.gz"]);
    let work = folder.path().join("resumed.work/documents");
    assert!(std::fs::read_dir(&work).unwrap().any(|entry| entry.unwrap().path().extension() == Some("docs".as_ref())));
    run(&in_folder("resumed", Damaged::Skip), 2).unwrap();
    assert_same(&tree(&folder.path().join("undisturbed")), &tree(&folder.path().join("resumed")));

    // The other way round, finished files may lack damaged parts.
    let skipping = in_folder("stricter", Damaged::Skip);
    part(&skipping, (0, 2)).unwrap();
    refused(run(&in_folder("stricter", Damaged::Refuse), 1), &["it allowed damage or invalid bytes"]);
    std::fs::write(&bad, &whole).unwrap();
    refused(run(&skipping, 1), &["its files have other sizes"]);
}

#[test]
fn a_held_out_dataset_of_another_job_is_refused_before_any_work() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 300);
    let mut config = config(folder.path(), &vocabulary, vec![source(&text, "text", Documents::BlankLine)]);
    config.samples.held_out = 0.1;
    run(&config, 1).unwrap();
    std::fs::remove_dir_all(folder.path().join("data/train")).unwrap();
    config.samples.held_out = 0.0;
    refused(run(&config, 1), &["held-out", "another corpus"]);
    assert!(!folder.path().join("data.work").exists());
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_any_work() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 100);
    let mut config = config(folder.path(), &vocabulary, vec![source(&text, "text", Documents::BlankLine)]);
    config.output.url = vocabulary.display().to_string();
    refused(run(&config, 1), &["output.url: ", "vocab.txt is a file; expected a folder"]);
    config.output.url = format!("{}/data", vocabulary.display());
    refused(run(&config, 1), &["cannot create ", "vocab.txt/data"]);
    assert!(!folder.path().join("vocab.txt.work").exists());
}

#[test]
fn a_read_only_output_is_refused_before_any_work() {
    const FOLDER: &str = "READ_ONLY_OUTPUT_FOLDER";
    let job = |folder: &Path| {
        let text = source(&folder.join("corpus.txt"), "text", Documents::BlankLine);
        config(folder, &folder.join("vocab.txt"), vec![text])
    };
    if let Some(folder) = std::env::var_os(FOLDER) {
        return println!("{}", run(&job(Path::new(&folder)), 1).unwrap_err());
    }
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: only root can act as another user");
    }
    let folder = tempfile::tempdir().unwrap();
    let (text, _) = generated(folder.path(), 100);
    assert_eq!(text, folder.path().join("corpus.txt"));
    std::fs::create_dir(folder.path().join("data")).unwrap();
    let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    mode(folder.path(), 0o777);
    mode(&folder.path().join("data"), 0o755);
    let output = Command::new("setpriv")
        .args(["--reuid=60000", "--regid=60000", "--clear-groups"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "identity::a_read_only_output_is_refused_before_any_work", "--nocapture"])
        .env(FOLDER, folder.path())
        .current_dir("/")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let expected = format!("cannot create {}/data/train", folder.path().display());
    assert!(text.contains(&expected), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(!folder.path().join("data.work").exists());
}

/// A work folder is removed at the end. So other files must not be in it, and the datasets neither.
#[test]
fn a_work_folder_with_other_files_or_datasets_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 100);
    let mut config = config(folder.path(), &vocabulary, vec![source(&text, "text", Documents::BlankLine)]);
    let path = |name: &str| folder.path().join(name);
    let mut refused_work = |url: &str, work: &str, word: &str| {
        config.output.url = url.to_owned();
        config.output.work = Some(path(work).display().to_string());
        let error = run(&config, 1).unwrap_err();
        assert!(error.is_usage(), "{error}");
        refused(Err(error), &["output.work: ", word]);
    };
    let out = path("out/books").display().to_string();
    // The job.json of a run has other fields.
    for (name, text) in
        [("me/a.txt", "mine"), ("me2/documents/run-0.docs", "mine"), ("me3/job.json", "{\"id\": \"7\"}")]
    {
        let file = path(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        refused_work(&out, name.split('/').next().unwrap(), &file.display().to_string());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    }
    std::fs::create_dir_all(path("out")).unwrap();
    std::os::unix::fs::symlink(path("out"), path("link")).unwrap();
    let url = format!("file://{out}/");
    for work in ["out", "out/books", "out/books/work", "link/books", "me/../out", "."] {
        refused_work(&out, work, "must not contain each other");
        refused_work(&url, work, "must not contain each other");
    }
    assert!(std::fs::read_dir(path("out")).unwrap().next().is_none());
    (config.output.url, config.output.work) = (out, Some(path("out/work").display().to_string()));
    run(&config, 1).unwrap();
    assert!(path("out/books/train/manifest.json").exists() && !path("out/work").exists());
}

#[test]
fn a_file_that_another_program_writes_to_the_work_folder_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 200);
    let mut config = config(folder.path(), &vocabulary, vec![source(&text, "text", Documents::BlankLine)]);
    config.samples.held_out = 0.1;
    let work = folder.path().join("data.work");
    let write = |_: &PrepStatus| {
        std::fs::create_dir_all(work.join("train-notes")).unwrap();
        ["notes.txt", "a.samples", "documents/notes.txt", "train-notes/shard-a.parquet"]
            .iter()
            .for_each(|name| std::fs::write(work.join(name), "mine").unwrap());
    };
    prep::run(&config, &PrepOptions { threads: 1, memory: prep::DEFAULT_MEMORY, part: None, progress: &write })
        .unwrap();
    let left: Vec<_> = tree(&work).into_keys().map(|path| path.display().to_string()).collect();
    assert_eq!(left, ["a.samples", "documents/notes.txt", "notes.txt", "train-notes/shard-a.parquet"]);
    assert!(run(&config, 1).unwrap().unchanged);
}
