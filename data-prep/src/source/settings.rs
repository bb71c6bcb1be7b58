//! Checks of the source settings that depend on the format.

use std::collections::BTreeSet;

use lambert_config::PrepConfig;
use lambert_config::load::ConfigIssue;
use lambert_config::prep::Source;
use serde_json::Value;

use super::format::FormatRegistry;
use super::transcode::encoding_of;

/// See [`super::check_settings`].
pub fn check(formats: FormatRegistry, config: &PrepConfig, issues: &mut Vec<ConfigIssue>) {
    for (key, source) in sources(config) {
        if let Some(Err(message)) = source.encoding.as_deref().map(encoding_of) {
            issues.push(ConfigIssue::new(format!("{key}.encoding"), message));
        }
        match formats.named(&source.format) {
            Err(message) => issues.push(ConfigIssue::new(format!("{key}.format"), message)),
            Ok(Some(format)) => {
                let supported = format.documents();
                if let Some(documents) = source.documents.filter(|documents| !supported.contains(documents)) {
                    let supported = supported.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
                    let message = format!("format = \"{}\" takes {supported}, not {documents}", format.name());
                    issues.push(ConfigIssue::new(format!("{key}.documents"), message));
                }
            }
            Ok(None) => {}
        }
    }
}

/// See [`super::unused_settings`].
pub fn unused(formats: FormatRegistry, config: &PrepConfig) -> Vec<ConfigIssue> {
    let options: BTreeSet<&str> = formats.all().flat_map(|format| format.options()).copied().collect();
    let mut found = Vec::new();
    for (key, source) in sources(config) {
        let Ok(Some(format)) = formats.named(&source.format) else { continue };
        let (values, defaults) = (fields(source), fields(&Source::default()));
        for option in options.iter().filter(|option| !format.options().contains(option)) {
            if values.get(option) != defaults.get(option) {
                let message = format!("has no effect with format = \"{}\"", format.name());
                found.push(ConfigIssue::new(format!("{key}.{option}"), message));
            }
        }
    }
    found
}

/// All sources with their configuration keys.
fn sources(config: &PrepConfig) -> impl Iterator<Item = (String, &Source)> {
    let lists = [("source", &config.source), ("exclude", &config.exclude)];
    lists.into_iter().flat_map(|(list, sources)| {
        sources.iter().enumerate().map(move |(index, source)| (format!("{list}.{index}"), source))
    })
}

fn fields(source: &Source) -> Value {
    serde_json::to_value(source).unwrap_or_default()
}
