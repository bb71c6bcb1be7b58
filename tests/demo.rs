//! Runs `make demo` in each form that README.md and the Makefile show. The tests use fewer steps and a separate folder,
//! and do not build the programs.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::support::lambert;

/// Returns the corpus arguments of each `make demo` command in `file`.
fn shown(file: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let forms = text.match_indices("make demo").map(|(at, _)| {
        let rest = &text[at + "make demo".len()..];
        let corpus = rest.strip_prefix(" CORPUS=\"").and_then(|rest| rest.split_once('"')).map(|(corpus, _)| corpus);
        corpus.unwrap_or("").split_whitespace().map(str::to_owned).collect()
    });
    let mut forms: Vec<Vec<String>> = forms.collect();
    forms.sort();
    forms.dedup();
    forms
}

/// Generates documents and returns them.
fn documents(folder: &Path, count: u32, seed: u32) -> Vec<String> {
    let path = folder.join("generated.txt");
    let arguments = ["--documents", &count.to_string(), "--seed", &seed.to_string(), "--output"];
    let made = Command::new(lambert()).arg("generate").args(arguments).arg(&path).output().unwrap();
    assert!(made.status.success());
    std::fs::read_to_string(path).unwrap().trim_end().split("\n\n").map(str::to_owned).collect()
}

/// Writes an input. Its name determines its kind: a folder of books, a Wikipedia dump or a text file.
fn write(folder: &Path, name: &str) {
    let path = folder.join(name);
    if name.ends_with('/') {
        std::fs::create_dir(&path).unwrap();
        for (number, text) in documents(folder, 300, 2).iter().enumerate() {
            std::fs::write(path.join(format!("book {number}.txt")), text).unwrap();
        }
    } else if name.ends_with(".xml.bz2") {
        let page = |(id, text): (usize, &String)| {
            format!("<page><title>{id}</title><ns>0</ns><id>{id}</id><revision><text>{text}</text></revision></page>\n")
        };
        let pages: String = documents(folder, 300, 3).iter().enumerate().map(page).collect();
        let mut packed =
            bzip2::write::BzEncoder::new(std::fs::File::create(&path).unwrap(), bzip2::Compression::fast());
        write!(packed, "<mediawiki>\n{pages}</mediawiki>\n").unwrap();
        packed.finish().unwrap();
    } else if name == "one-document.txt" {
        std::fs::write(&path, documents(folder, 20, 5).join("\n")).unwrap();
    } else {
        assert!(name.ends_with(".txt"), "unknown kind of input: {name}");
        std::fs::write(&path, documents(folder, 300, 4).join("\n\n")).unwrap();
    }
}

/// Runs `make demo` with `steps` steps. The inputs are in a temporary folder.
fn demo(corpus: &[String], steps: u64) -> String {
    let folder = tempfile::tempdir().unwrap();
    corpus.iter().for_each(|name| write(folder.path(), name));
    let inputs: Vec<String> = corpus.iter().map(|name| format!("{}/{name}", folder.path().display())).collect();
    let mut make = Command::new("make");
    // Do not build: use the programs of this test run.
    make.args(["-o", "build", "demo", &format!("CORPUS={}", inputs.join(" "))]);
    make.arg(format!("DEMO={}", folder.path().join("demo").display()));
    make.arg(format!("RELEASE={}", lambert().parent().unwrap().display()));
    make.env("DEMO_STEPS", steps.to_string()).current_dir(env!("CARGO_MANIFEST_DIR"));
    let made = make.output().unwrap();
    let printed = format!("{}{}", String::from_utf8_lossy(&made.stdout), String::from_utf8_lossy(&made.stderr));
    assert!(made.status.success(), "make demo with {corpus:?}: {printed}");
    for word in
        ["SIGKILL to rank 1", "held-out MLM loss", "exported for transformers", "report with the loss curves", "[MASK]"]
    {
        assert!(printed.contains(word), "no {word:?} of {corpus:?} in {printed}");
    }
    assert!(folder.path().join("demo/model/model.safetensors").exists());
    printed
}

#[test]
fn every_documented_form_works() {
    let forms: Vec<Vec<String>> = [shown("README.md"), shown("Makefile")].concat();
    let own = forms.iter().filter(|corpus| !corpus.is_empty());
    assert!(forms.iter().any(Vec::is_empty) && own.count() >= 2, "{forms:?}");
    let mut forms: Vec<Vec<String>> = forms;
    forms.sort();
    forms.dedup();
    forms.iter().for_each(|corpus| drop(demo(corpus, 24)));
}

/// If there is too little text for training, the run must print warnings. A twentieth of the text must still be held
/// out.
#[test]
fn one_short_document_is_split_with_warnings() {
    let printed = demo(&["one-document.txt".to_owned()], 40);
    let line = |start: &str| {
        printed.lines().find(|line| line.contains(start)).unwrap_or_else(|| panic!("no {start:?} in {printed}"))
    };
    let share = line("of the tokens (5.0% requested), in blocks of about");
    let percent: f64 = share.strip_prefix("held out ").unwrap().split('%').next().unwrap().parse().unwrap();
    assert!((2.5..=7.5).contains(&percent), "{share}");
    assert!(line("are fewer than a global batch of 64").contains("stage.0.data: "));
    assert!(line("times (more than 40)").contains("stage.0.data: "));
}
