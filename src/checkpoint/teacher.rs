//! Teacher of a run: the copy of another checkpoint in the store of the run. Each start reads it.

use std::sync::Arc;

use lambert_collective::Group;
use lambert_config::run::TeacherInfo;
use lambert_plan::architecture::Architecture;
use lambert_store::checkpoint::{self as stored, Manifest};
use lambert_store::run::{self, TEACHER, TEACHER_INFO, WEIGHTS};
use lambert_store::{Store, StoredVocabulary, hash};

use super::load::{read_mode, read_model, verify_on_first};
use crate::error::Error;
use crate::model;
use crate::objective::Teacher;
use crate::torch;
use crate::worker::datasets::Datasets;
use crate::worker::session::{self, Session};

/// Reads the teacher of a run; `None` if the run has none. Collective. Each rank has the whole teacher.
///
/// # Errors
/// The teacher cannot be read, is damaged, or is not the one that the first start of the run has read.
pub fn read_teacher(
    session: &Session,
    collective: &mut dyn Group,
    datasets: &Datasets,
) -> Result<Option<Teacher>, Error> {
    let Some(configured) = &session.config.objective.teacher else { return Ok(None) };
    let info = configured.info.as_ref().ok_or_else(|| {
        let message =
            format!("objective.teacher: {} has no {TEACHER_INFO}; run it with `lambert run`", session.store.url());
        Error::Usage(message)
    })?;
    let (store, name) = (session.store.join(TEACHER)?, checkpoint_name(info)?);
    let verified = verify_on_first(collective, &store, || stored::verify_weights(&store, &name))?;
    check(info, &store, &verified.manifest, datasets)?;
    let (theirs, _) = session::read_config(&store)?;
    let vocabulary = datasets.first().manifest().vocabulary.size;
    let architecture = Architecture::of_run(&theirs, info.model.layers, vocabulary);
    let mode = read_mode(session, collective, &store)?;
    let mut parameters = read_model(Arc::clone(&session.kernels), &store, &verified, architecture, mode)?;
    let model = Teacher::model(&info.model, &session.config.model);
    torch::guard(|| parameters.keep_bf16_copy(model::compute_dtype(&model)))?;
    Ok(Some(Teacher::new(parameters, model)))
}

/// Returns the name of the checkpoint in the copy of the teacher.
fn checkpoint_name(info: &TeacherInfo) -> Result<String, Error> {
    let Some(url) = &info.checkpoint else { return Ok(run::imported_checkpoint()) };
    let (_, name) = run::split_checkpoint_url(url);
    name.map(str::to_owned).ok_or_else(|| {
        let expected = run::CHECKPOINT_URL;
        Error::Usage(format!("objective.teacher: {url} is not a checkpoint; expected {expected}"))
    })
}

/// Compares the checkpoint and its vocabulary with the stored description and with the dataset.
fn check(info: &TeacherInfo, store: &Store, manifest: &Manifest, datasets: &Datasets) -> Result<(), Error> {
    let (url, name) = (store.url(), manifest.name());
    let found = manifest.object(WEIGHTS).map_or("", |entry| &entry.sha256);
    if found != info.weights_sha256 {
        let expected = &info.weights_sha256;
        return Err(Error::Usage(format!(
            "objective.teacher: {name} of {url} has weights with SHA-256 {found}, but the teacher that this run was \
             started with has {expected}; restore that teacher, or start another run"
        )));
    }
    let vocabulary = hash::sha256(&StoredVocabulary::read(store)?.bytes);
    let dataset = datasets.first();
    if vocabulary != dataset.manifest().vocabulary.sha256 {
        let message =
            format!("objective.teacher: the vocabulary of {url} differs from that of the dataset {}", dataset.url());
        return Err(Error::Usage(message));
    }
    Ok(())
}
