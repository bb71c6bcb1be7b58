//! The configuration in the store of a run.

use lambert_config::run::TeacherInfo;
use lambert_config::{ConfigError, Layers, RunConfig};
use lambert_store::run::{CONFIG, TEACHER_INFO};
use lambert_store::{Store, checkpoint};

use crate::failure::Failure;

/// Maximum size of a configuration, bytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
#[error("{url}/{CONFIG} is not UTF-8")]
struct NotText {
    url: String,
}

/// Reads the text of the stored configuration. Returns `None` if the store contains no run.
pub fn text(store: &Store) -> Result<Option<String>, Failure> {
    match store.get_at_most(CONFIG, MAX_CONFIG_BYTES) {
        Ok(bytes) => match String::from_utf8(bytes.to_vec()) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(Failure::failed(NotText { url: store.url().to_owned() })),
        },
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(Failure::failed(error)),
    }
}

/// True if the store has checkpoints. A store that cannot be listed counts as a store without any.
pub fn has_checkpoints(store: &Store) -> bool {
    checkpoint::list(store).is_ok_and(|listed| !listed.is_empty())
}

/// Parses the stored configuration of a run. If the run has a teacher, also reads its description, if there is one.
pub fn parse(text: &str, store: &Store) -> Result<RunConfig, ConfigError> {
    let mut config: RunConfig = Layers::from_sets(&[]).parse(text, &format!("{}/{CONFIG}", store.url()))?;
    if let Some(teacher) = &mut config.objective.teacher
        && let Ok(bytes) = store.get_at_most(TEACHER_INFO, MAX_CONFIG_BYTES)
    {
        let origin = format!("{}/{TEACHER_INFO}", store.url());
        teacher.info = Some(Box::new(TeacherInfo::parse(&String::from_utf8_lossy(&bytes), &origin)?));
    }
    Ok(config)
}
