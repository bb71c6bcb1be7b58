//! A configuration in several files, with the real programs.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{CommandOutput, TestDir, checkpoints, done, lambert, run};

/// Writes a file with the settings of a site and a file with an experiment of `steps` steps. The first is invalid alone.
fn files(dir: &TestDir, steps: u64) -> [String; 2] {
    let site = "[cluster]\nranks = 2\nall_reduce.backend = \"mpi\"\n[device]\nkind = \"cpu\"\n\
                [checkpoint]\nevery_steps = 5\nkeep = 9\n[slurm]\npartition = \"long\"\ntime = \"3:00:00\"\n\
                [[stage]]\nname = \"lost\"\ndata = \"none\"\nsteps = 99\n";
    let experiment = format!(
        "[model]\nlayers = 2\nhidden = 32\nheads = 2\nintermediate = 64\npositions = 64\n\
         [cluster]\nranks = 1\nall_reduce.backend = \"auto\"\n[checkpoint]\nkeep = 2\n\
         [evaluation]\ndata = \"data/held-out\"\nevery_steps = 1000\n\
         [[stage]]\nname = \"one\"\ndata = \"data/train\"\nsteps = {steps}\nglobal_batch = 16\n\
         micro_batch_tokens = 256\nlearning_rate = 5e-3\n"
    );
    [dir.file("site/cluster.toml", site), dir.file("experiments/run.toml", experiment)]
}

/// Runs `lambert` in the folder of the test.
fn run_here(dir: &TestDir, arguments: &[&str]) -> CommandOutput {
    let output = Command::new(lambert()).args(arguments).current_dir(dir.path("")).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    CommandOutput { code: output.status.code().unwrap(), out: text(&output.stdout), err: text(&output.stderr) }
}

fn stored(dir: &TestDir, run: &str) -> toml::Table {
    std::fs::read_to_string(dir.path(&format!("{run}/run.toml"))).unwrap().parse().unwrap()
}

#[test]
fn a_run_stores_the_merged_configuration() {
    let dir = TestDir::new();
    let [site, experiment] = files(&dir, 7);
    let both = ["--config", &site, "--config", &experiment];
    let line = [&["run", "--run", "run"], &both[..], &["--set", "checkpoint.every_steps=3"]].concat();
    let trained = run_here(&dir, &line);
    assert_eq!(trained.code, 0, "{}", trained.err);
    let config = stored(&dir, "run");
    assert_eq!(config["stage"].as_array().unwrap().len(), 1);
    let stage = &config["stage"][0];
    // A relative path is relative to the working directory, in whichever file it is.
    let data = Path::new(&dir.path("data/train")).canonicalize().unwrap();
    assert_eq!((stage["name"].as_str(), stage["data"].as_str()), (Some("one"), data.to_str()));
    assert_eq!(config["cluster"]["ranks"].as_integer(), Some(1));
    assert_eq!(config["cluster"]["all_reduce"]["backend"].as_str(), Some("auto"));
    assert_eq!(config["slurm"]["partition"].as_str(), Some("long"));
    let checkpoint = &config["checkpoint"];
    assert_eq!((checkpoint["keep"].as_integer(), checkpoint["every_steps"].as_integer()), (Some(2), Some(3)));

    // No later command needs the files.
    let reversed = ["--config", &experiment, "--config", &site];
    let other = run_here(&dir, &[&["run", "--check", "--run", "run"], &reversed[..]].concat());
    assert!(other.code == 2 && other.err.contains("stage.0.data"), "{} {}", other.code, other.err);
    [&site, &experiment].into_iter().for_each(|file| std::fs::remove_file(file).unwrap());
    let url = dir.path("run");
    done(&["run", "--run", &url, "--set", "stage.0.steps=9", "--allow-change", "stage"]);
    assert!(checkpoints(&url)[0].starts_with("step-000000009"), "{:?}", checkpoints(&url));
    done(&["status", &url]);
    done(&["export", &url, "--output", &dir.path("model")]);
}

#[test]
fn errors_name_the_file_of_a_key() {
    let dir = TestDir::new();
    let [site, experiment] = files(&dir, 7);
    let own = "[checkpoint]\nevery_step = 3\n[model]\nheads = 5\n[device]\nkind = \"tpu\"\n[slurm]\npartition = 4\n";
    let own = dir.file("own.toml", own);
    let url = dir.path("run");
    let checked = |files: &[&str]| {
        let files: Vec<&str> = files.iter().flat_map(|file| ["--config", file]).collect();
        let checked = run(&[&["run", "--check", "--run", &url, "--set", "stage.0.steps=0"], &files[..]].concat());
        assert!(checked.code == 2 && !Path::new(&url).exists(), "{} {}", checked.code, checked.err);
        checked.err
    };
    let message = checked(&[&site, &own, &experiment]);
    assert!(message.contains(&format!("the configuration in {site}, {own}, {experiment} has ")), "{message}");
    for (key, source) in [
        ("checkpoint.every_step", &*own),
        ("device.kind", &*own),
        ("slurm.partition", &*own),
        ("stage.0.steps", "--set stage.0.steps"),
        ("stage.0.data", &*experiment),
    ] {
        let is_of_key = |line: &str| [": ", " = "].iter().any(|end| line.starts_with(&format!("{key}{end}")));
        let issue = message.lines().find(|line| is_of_key(line.trim_start()));
        assert!(issue.is_some_and(|line| line.ends_with(&format!(" ({source})"))), "{key}: {message}");
    }
    assert!(!message.contains("model.heads"), "a value that a later file overrides: {message}");
    let broken = dir.file("broken.toml", "[slurm]\ntime = \n");
    let message = checked(&[&broken, &experiment]);
    assert!(message.contains(&format!("{broken} is not TOML")) && message.contains("line 2"), "{message}");
    let message = checked(&[&experiment, &dir.path("prep.toml")]);
    assert!(message.contains(&format!("{} is a configuration of a preparation", dir.path("prep.toml"))), "{message}");
    let message = checked(&[&experiment, &dir.path("none.toml")]);
    assert!(message.contains(&format!("cannot read configuration {}", dir.path("none.toml"))), "{message}");
}

#[test]
fn every_command_passes_all_files_on() {
    let dir = TestDir::new();
    let [site, experiment] = files(&dir, 3);
    let both = ["--config", &site, "--config", &experiment];
    let tuned = run_here(&dir, &[&["tune", "--runs", "runs", "--grid", "run.seed=1,2"], &both[..]].concat());
    assert_eq!(tuned.code, 0, "{}", tuned.err);
    for name in ["runs/seed=1", "runs/seed=2"] {
        assert_eq!(stored(&dir, name)["slurm"]["partition"].as_str(), Some("long"));
    }
    let own = run_here(&dir, &["tune", "--runs", "runs", "--config", &site, "--config", "runs/best.toml"]);
    assert!(own.code == 2 && own.err.contains("--config runs/best.toml: `lambert tune` overwrites"), "{}", own.err);

    let script = run_here(&dir, &[&["submit", "--dry-run", "--run", "queued"], &both[..]].concat());
    assert_eq!(script.code, 0, "{}", script.err);
    assert!(script.out.contains("#SBATCH --partition=long\n#SBATCH"), "{}", script.out);
    assert!(!script.out.contains("--config"), "{}", script.out);

    let planned = run_here(&dir, &[&["plan", "--json", "--machine", "here"], &both[..]].concat());
    assert_eq!(planned.code, 0, "{}", planned.err);
    let planned: Value = serde_json::from_str(&planned.out).unwrap();
    assert_eq!((planned["ranks"].as_u64(), planned["stages"][0]["samples"].as_u64()), (Some(1), Some(48)));
}

/// The parts of a preparation and its vocabulary also take several files.
#[test]
fn a_preparation_takes_several_files() {
    let dir = TestDir::new();
    let site =
        dir.file("site.toml", "[slurm]\npartition = \"data\"\n[samples]\nsequence_length = 32\nheld_out = 0.5\n");
    let more =
        dir.file("more.toml", format!("[samples]\nsequence_length = 16\n[output]\nurl = {:?}\n", dir.path("new")));
    let files = ["--config", &site, "--config", &dir.path("prep.toml"), "--config", &more];
    let prepared: Value = serde_json::from_str(&done(&[&["prep", "--json"], &files[..]].concat())).unwrap();
    assert!(prepared.to_string().contains("\"sequence_length\":16"), "{prepared}");
    done(&[&["vocab", "--size", "200", "--output", &dir.path("other.txt")], &files[..]].concat());
    let script = run(&[&["submit", "--prep", "--dry-run"], &files[..]].concat());
    assert!(script.code == 0 && script.out.contains("#SBATCH --partition=data\n"), "{} {}", script.out, script.err);
    assert!(script.out.contains("held_out = 0.1\n"), "{}", script.out);
}
