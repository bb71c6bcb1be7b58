//! Teacher of a run (`objective.teacher`). The first start copies the weights of the checkpoint, or imports a folder of Hugging
//! Face Transformers, to `teacher` in the store of the run, and stores a description of the teacher. Later starts use the copy.

use std::path::Path;

use lambert_config::run::{Model, Teacher, TeacherInfo, Unpadded};
use lambert_config::{ConfigError, ConfigIssue, RunConfig};
use lambert_dataset::text_case;
use lambert_plan::architecture::Architecture;
use lambert_plan::distillation::{copied_tensors, other_reach};
use lambert_plan::memory::{self, DatasetShape};
use lambert_store::checkpoint::{self, Manifest};
use lambert_store::run::{
    CHECKPOINT_URL, CONFIG, MANIFEST, TEACHER, TEACHER_INFO, WEIGHTS, checkpoint_url, in_checkpoint,
    split_checkpoint_url,
};
use lambert_store::{Error, Store, StoredVocabulary, hash};

use super::open_datasets::OpenDatasets;
use super::run_plan;
use crate::failure::Failure;
use crate::import::{self, Import};
use crate::stored_config;

/// Key of the teacher.
const KEY: &str = "objective.teacher.from";

/// The teacher cannot be used.
#[derive(Debug, thiserror::Error)]
enum TeacherError {
    #[error("{KEY}: {url} is not a run; expected {CHECKPOINT_URL}, the URL of a run, or hf:FOLDER")]
    NoRun { url: String },
    #[error("{KEY}: {url} has no checkpoint that can be read")]
    NoCheckpoint { url: String },
    #[error(
        "{KEY}: {url} has a generator and a discriminator (objective.replaced_tokens); to learn from the generator, export it \
         (lambert export --network generator) and name the folder: hf:FOLDER"
    )]
    TwoNetworks { url: String },
    #[error("{KEY}")]
    Checkpoint { source: Error },
    #[error(
        "{KEY}: the copy of the teacher would replace {url}, which is not part of a teacher; use another --run, or move it away"
    )]
    OtherObject { url: String },
    #[error("{KEY}: {url} is this run's own copy of its teacher; expected the run of the teacher, or hf:FOLDER")]
    OwnCopy { url: String },
    #[error(
        "{KEY}: {copy} must be copied again from {from}, but its weights have SHA-256 {found}; expected {expected}; \
         restore the teacher of this run"
    )]
    OtherWeights { copy: String, from: String, found: String, expected: String },
    #[error(
        "{url} has checkpoints that were trained with a different teacher than {KEY}; use another --run, with --from \
         and a checkpoint of this run"
    )]
    Other { url: String },
    #[error("cannot write {TEACHER_INFO}")]
    Toml(#[from] toml::ser::Error),
}

/// Teacher that the start of a run has read. Nothing is written yet.
pub struct NewTeacher {
    info: TeacherInfo,
    /// Configuration of its run.
    config: RunConfig,
    /// True if its tokenizer lowercases text. `None` if that is not recorded.
    lowercase: Option<bool>,
    source: Source,
}

/// Source of the weights of a teacher.
enum Source {
    /// A Hugging Face Transformers folder.
    Folder(Box<Import>),
    /// A checkpoint of a run.
    Checkpoint {
        run: Box<Store>,
        name: String,
        /// Stored configuration of the run.
        config: String,
        vocabulary: StoredVocabulary,
    },
}

impl Source {
    /// Writes a run with one checkpoint, without moments, to `to`. The configuration is written last.
    fn write(self, to: &Store) -> Result<(), Error> {
        import::clear(to)?;
        match self {
            Self::Folder(import) => import.write(to).map(drop),
            Self::Checkpoint { run, name, config, vocabulary } => {
                to.put(vocabulary.name, vocabulary.bytes)?;
                checkpoint::copy_weights(&run, &name, to)?;
                to.put(CONFIG, config.into())
            }
        }
    }
}

/// True if `copy` is a complete copy of the teacher that `info` describes.
fn is_complete(copy: &Store, info: &TeacherInfo) -> Result<bool, Error> {
    let named = info.checkpoint.as_deref().and_then(|url| split_checkpoint_url(url).1);
    let name = named.map_or_else(import::checkpoint_name, str::to_owned);
    // The configuration is written last.
    if copy.head(CONFIG)?.is_none() {
        return Ok(false);
    }
    let manifest = match checkpoint::read_manifest(copy, &name) {
        Err(error) if error.is_not_found() || matches!(error, Error::Damaged { .. }) => return Ok(false),
        manifest => manifest?,
    };
    let Some(entry) = manifest.object(WEIGHTS) else { return Ok(false) };
    let found = copy.head(&in_checkpoint(&name, WEIGHTS))?;
    Ok(entry.sha256 == info.weights_sha256 && found == Some(entry.bytes))
}

/// True if the description is that of a teacher of this name.
fn is_named(info: &TeacherInfo, from: &str) -> bool {
    info.checkpoint.as_ref().is_none_or(|checkpoint| checkpoint.starts_with(from.trim_end_matches('/')))
}

/// True if the copy of a teacher has an object of this name.
fn is_of_copy(path: &str) -> bool {
    let is_of_checkpoint = path.starts_with("checkpoints/")
        && [WEIGHTS, MANIFEST].iter().any(|object| path.rsplit('/').next() == Some(object));
    is_of_checkpoint || import::is_of_import(path)
}

impl NewTeacher {
    /// Inserts the description of the teacher into `config`. Makes the path of a folder absolute. Reads the teacher, unless
    /// `before`, the configuration and store of a run that exists, has the same one and a complete copy of it.
    ///
    /// # Errors
    /// The teacher cannot be read. The copy is not complete, and the teacher has other weights now.
    pub fn resolve(config: &mut RunConfig, before: Option<(&RunConfig, &Store)>) -> Result<Option<Self>, Failure> {
        let Some(teacher) = &mut config.objective.teacher else { return Ok(None) };
        if let Some(folder) = teacher.folder() {
            teacher.from = Teacher::of_folder(&import::source(Path::new(folder)));
        }
        let stored = before.and_then(|(before, run)| {
            let before = before.objective.teacher.as_ref().filter(|before| before.from == teacher.from)?;
            Some((before.info.clone().filter(|info| is_named(info, &teacher.from))?, run))
        });
        let Some((info, run)) = stored else {
            let new = Self::read(&teacher.from)?;
            teacher.info = Some(Box::new(new.info.clone()));
            return Ok(Some(new));
        };
        teacher.info = Some(info.clone());
        let copy = run.join(TEACHER).map_err(Failure::failed)?;
        if is_complete(&copy, &info).map_err(Failure::failed)? {
            return Ok(None);
        }
        let from = info.checkpoint.clone().unwrap_or_else(|| teacher.from.clone());
        tracing::warn!("{} is not a complete copy of the teacher; copying it again from {from}", copy.url());
        let new = Self::read(&from)?;
        if new.info.weights_sha256 != info.weights_sha256 {
            let (found, expected) = (new.info.weights_sha256, info.weights_sha256);
            return Err(Failure::usage(TeacherError::OtherWeights { copy: copy.url().into(), from, found, expected }));
        }
        Ok(Some(Self { info: *info, ..new }))
    }

    fn read(from: &str) -> Result<Self, Failure> {
        let teacher = Teacher { from: from.to_owned(), ..Teacher::default() };
        let Some(folder) = teacher.folder() else { return Self::of_run(from) };
        let import = Import::read(Path::new(folder), &[]).map_err(Failure::usage)?;
        let config = import.config().clone();
        let info = TeacherInfo {
            checkpoint: None,
            weights_sha256: import.weights_sha256(),
            config_sha256: import.config_sha256(),
            vocabulary_sha256: hash::sha256(import.vocabulary()),
            model: config.model.clone(),
        };
        let lowercase = Some(import.lowercase());
        Ok(Self { info, config, lowercase, source: Source::Folder(Box::new(import)) })
    }

    /// Reads the checkpoint at `url`, or the newest intact checkpoint of the run at `url`.
    fn of_run(url: &str) -> Result<Self, Failure> {
        let (run, name) = split_checkpoint_url(url);
        let store = Store::open(run).map_err(Failure::usage)?;
        let Some(text) = stored_config::text(&store)? else {
            return Err(Failure::usage(TeacherError::NoRun { url: run.to_owned() }));
        };
        let manifest = manifest(&store, name)?;
        let theirs = stored_config::parse(&text, &store)?;
        if theirs.objective.replaced_tokens.is_some() {
            return Err(Failure::usage(TeacherError::TwoNetworks { url: run.to_owned() }));
        }
        let weights = manifest.object(WEIGHTS).map(|entry| entry.sha256.clone());
        let none = || Failure::usage(TeacherError::NoCheckpoint { url: run.to_owned() });
        let vocabulary = StoredVocabulary::read(&store).map_err(Failure::failed)?;
        let info = TeacherInfo {
            checkpoint: Some(checkpoint_url(run.trim_end_matches('/'), &manifest.name())),
            weights_sha256: weights.ok_or_else(none)?,
            config_sha256: manifest.config_sha256.clone(),
            vocabulary_sha256: hash::sha256(&vocabulary.bytes),
            model: Model { layers: theirs.depth(manifest.stage), ..theirs.model.clone() },
        };
        let source = Source::Checkpoint { run: Box::new(store), name: manifest.name(), config: text, vocabulary };
        let lowercase = manifest.state["lowercase"].as_bool();
        Ok(Self { info, config: theirs, lowercase, source })
    }

    /// Copies the teacher to the store of the run, in place of another copy, and writes the description. Leaves the description
    /// to another coordinator that has created the run in the meantime.
    pub fn write(self, run: &Store, is_new: bool) -> Result<(), Failure> {
        let is_taken = || Ok::<_, Failure>(is_new && run.head(CONFIG).map_err(Failure::failed)?.is_some());
        if is_taken()? {
            return Ok(());
        }
        let Self { info, source, .. } = self;
        let copy = run.join(TEACHER).map_err(Failure::failed)?;
        if !is_complete(&copy, &info).map_err(Failure::failed)? {
            replace(&copy, source)?;
            if is_taken()? {
                return Ok(());
            }
        }
        let text = info.to_toml().map_err(|error| Failure::failed(TeacherError::Toml(error)))?;
        run.put(TEACHER_INFO, text.into()).map_err(Failure::failed)
    }
}

/// Reads the description of the teacher of a run, and its text. `None` if the run has no teacher.
fn stored_info(run: &Store) -> Result<Option<(TeacherInfo, String)>, Failure> {
    let text = match run.get(TEACHER_INFO) {
        Err(error) if error.is_not_found() => return Ok(None),
        text => text.map_err(Failure::failed)?,
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(Some((TeacherInfo::parse(&text, &format!("{}/{TEACHER_INFO}", run.url()))?, text)))
}

/// True if both runs have a teacher, with different weights.
pub fn differs(one: &Store, other: &Store) -> Result<bool, Failure> {
    let both = stored_info(one)?.zip(stored_info(other)?);
    Ok(both.is_some_and(|((one, _), (other, _))| one.weights_sha256 != other.weights_sha256))
}

/// Copies the teacher of the run `from` to the run `to`, with the description. Does nothing if `from` has no teacher, or no
/// complete copy of it.
pub fn copy(from: &Store, to: &Store) -> Result<(), Failure> {
    let Some((info, text)) = stored_info(from)? else { return Ok(()) };
    let [theirs, ours] = [from, to].map(|run| run.join(TEACHER));
    let (theirs, ours) = (theirs.map_err(Failure::failed)?, ours.map_err(Failure::failed)?);
    if !is_complete(&theirs, &info).map_err(Failure::failed)? {
        return Ok(());
    }
    if !is_complete(&ours, &info).map_err(Failure::failed)? {
        replace(&ours, NewTeacher::of_run(theirs.url())?.source)?;
    }
    to.put(TEACHER_INFO, text.into()).map_err(Failure::failed)
}

/// Replaces the copy of a teacher. Reads the new teacher before it removes anything.
fn replace(copy: &Store, source: Source) -> Result<(), Failure> {
    let objects = copy.list("").map_err(Failure::failed)?;
    if let Some(other) = objects.iter().find(|object| !is_of_copy(&object.path)) {
        let url = format!("{}/{}", copy.url(), other.path);
        return Err(Failure::usage(TeacherError::OtherObject { url }));
    }
    if let Source::Checkpoint { run, name, .. } = &source {
        if run.url() == copy.url() {
            return Err(Failure::usage(TeacherError::OwnCopy { url: run.url().to_owned() }));
        }
        if !objects.is_empty() {
            checkpoint::verify_weights(run, name).map_err(Failure::failed)?;
        }
    }
    source.write(copy).map_err(Failure::failed)
}

impl std::fmt::Debug for NewTeacher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewTeacher").field("info", &self.info).finish_non_exhaustive()
    }
}

/// Reads the manifest of checkpoint `name`, or of the newest intact checkpoint.
fn manifest(store: &Store, name: Option<&str>) -> Result<Manifest, Failure> {
    let wrong = |source| Failure::usage(TeacherError::Checkpoint { source });
    match name {
        Some(name) => checkpoint::read_manifest(store, name).map_err(wrong),
        None => {
            let newest = checkpoint::newest_with_warnings(store).map_err(Failure::failed)?;
            let none = || Failure::usage(TeacherError::NoCheckpoint { url: store.url().to_owned() });
            Ok(newest.ok_or_else(none)?.manifest)
        }
    }
}

/// Rejects another teacher than that of the stored configuration, if the run has checkpoints.
fn check_change(before: &RunConfig, now: &TeacherInfo, store: &Store) -> Result<(), Failure> {
    let before = before.objective.teacher.as_ref().and_then(|teacher| teacher.info.as_ref());
    let is_other = before.is_some_and(|before| !before.is_same(now));
    if is_other && !checkpoint::list(store).map_err(Failure::failed)?.is_empty() {
        return Err(Failure::usage(TeacherError::Other { url: store.url().to_owned() }));
    }
    Ok(())
}

/// Rejects a teacher that does not fit the model, the datasets or the memory of this host. `new` is the teacher that this start
/// has read, and `before` the stored configuration of the run in `store`. `is_here` is true if all ranks run on this host.
///
/// # Errors
/// Also if `before` has another teacher, and the run has checkpoints.
pub fn check(
    config: &RunConfig,
    before: Option<&RunConfig>,
    new: Option<&NewTeacher>,
    (store, is_here): (&Store, bool),
    opened: &OpenDatasets,
) -> Result<(), Failure> {
    let Some(teacher) = &config.objective.teacher else { return Ok(()) };
    let Some(info) = &teacher.info else { return Ok(()) };
    before.map_or(Ok(()), |before| check_change(before, info, store))?;
    let mut issues = Vec::new();
    let from = &teacher.from;
    let (ours, theirs) = (config.model.hidden, info.model.hidden);
    if teacher.cosine_weight > 0.0 && ours != theirs {
        let message =
            format!("needs equal hidden sizes, but model.hidden is {ours}, that of {from} is {theirs}; set it to 0");
        issues.push(ConfigIssue::new("objective.teacher.cosine_weight", message));
    }
    if config.device.unpadded == Unpadded::Always && info.model.position_buckets > 0 {
        let message = format!("{from} has relative positions, which need padded samples");
        issues.push(ConfigIssue::of_value("device.unpadded", "\"always\"", message));
    }
    let stages = config.stage.iter().enumerate().flat_map(|(index, stage)| stage.datasets(index));
    let mut vocabulary = None;
    for (key, url) in stages.chain(config.evaluation.datasets()).filter(|(_, url)| !url.is_empty()) {
        let dataset = opened.open(url)?;
        let manifest = dataset.manifest();
        if manifest.sequence_length > info.model.positions {
            let (length, positions) = (manifest.sequence_length, info.model.positions);
            let message = format!("{from} has {positions} positions, but {key} has samples of up to {length} tokens");
            issues.push(ConfigIssue::new(KEY, message));
        }
        if vocabulary.is_none() {
            if manifest.vocabulary.sha256 != info.vocabulary_sha256 {
                let message = format!(
                    "the vocabulary of {from} differs from that of {url}; prepare the dataset with the vocabulary of the teacher"
                );
                issues.push(ConfigIssue::new(KEY, message));
            } else if let Some(theirs) =
                new.and_then(|new| new.lowercase).filter(|theirs| *theirs != manifest.lowercase)
            {
                let message = format!(
                    "the tokenizer of {from} {}, that of {url} {}; prepare the dataset with vocabulary.lowercase = {theirs}",
                    text_case(theirs),
                    text_case(manifest.lowercase)
                );
                issues.push(ConfigIssue::new(KEY, message));
            }
            vocabulary = Some(manifest.vocabulary.size);
        }
    }
    if let (Some(new), Some(tokens), false) = (new, vocabulary, teacher.layers.is_empty()) {
        let student = Architecture::of_run(config, config.model.layers, tokens);
        let of_teacher = Architecture::of_run(&new.config, info.model.layers, tokens);
        let copied = copied_tensors((&student, &config.model), (&of_teacher, &info.model), &teacher.layers);
        issues.extend(copied.err().map(|why| ConfigIssue::new("objective.teacher.layers", why)));
    }
    if new.is_some() {
        warn_of_other_reach(config, info, &teacher.layers);
    }
    if is_here && issues.is_empty() {
        let samples =
            config.stage.iter().map(|stage| run_plan::samples(stage, opened)).collect::<Result<Vec<_>, _>>()?;
        let shapes: Vec<DatasetShape> = samples.iter().map(|samples| samples.shape).collect();
        memory::check(config, &shapes, config.cluster.ranks, &mut issues);
    }
    match issues.is_empty() {
        true => Ok(()),
        false => Err(ConfigError::Invalid { origin: "the configuration".to_owned(), issues }.into()),
    }
}

/// Warns of layers that start from a layer of the teacher with another window of attention.
fn warn_of_other_reach(config: &RunConfig, teacher: &TeacherInfo, layers: &[usize]) {
    let reach = |distance: Option<usize>| {
        distance.map_or("global attention".to_owned(), |it| format!("a window of {}", 2 * it))
    };
    for layer in other_reach(&config.model, &teacher.model, layers) {
        let from = layers[layer];
        tracing::warn!(
            "objective.teacher.layers: layer {layer} has {}, but starts from layer {from} of the teacher, which has {}; see \
             model.attention_window and model.global_attention_every",
            reach(config.model.attention_reach(layer)),
            reach(teacher.model.attention_reach(from)),
        );
    }
}

/// Inserts the description of the teacher into a configuration that is not started. Returns an assumption if the teacher cannot
/// be read.
pub fn assume(config: &mut RunConfig) -> Option<String> {
    let why = NewTeacher::resolve(config, None).err()?;
    let teacher = config.objective.teacher.as_mut()?;
    let info = TeacherInfo {
        checkpoint: None,
        weights_sha256: String::new(),
        config_sha256: String::new(),
        vocabulary_sha256: String::new(),
        model: Model { layers: 2 * config.model.layers, ..config.model.clone() },
    };
    teacher.info = Some(Box::new(info));
    Some(format!(
        "the teacher cannot be read ({why}); assuming a model like that of the run, with twice as many layers"
    ))
}
