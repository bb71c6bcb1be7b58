//! The settings of the sources that depend on their formats: checked, and looked through for some without effect.

use std::collections::BTreeSet;

use lambert_config::PrepConfig;
use lambert_config::load::Fault;
use lambert_config::prep::Source;
use serde_json::Value;

use super::format::Registry;

/// See [`super::check`].
pub fn check(formats: Registry, config: &PrepConfig, faults: &mut Vec<Fault>) {
    for (key, source) in sources(config) {
        match formats.named(&source.format) {
            Err(message) => faults.push(Fault::new(format!("{key}.format"), message)),
            Ok(Some(format)) => {
                let taken = format.documents();
                if let Some(documents) = source.documents.filter(|documents| !taken.contains(documents)) {
                    let taken = taken.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
                    let message = format!("format = \"{}\" takes {taken}, not {documents}", format.name());
                    faults.push(Fault::new(format!("{key}.documents"), message));
                }
            }
            Ok(None) => {}
        }
    }
}

/// See [`super::unused_settings`].
pub fn unused(formats: Registry, config: &PrepConfig) -> Vec<Fault> {
    let of_formats: BTreeSet<&str> = formats.all().flat_map(|format| format.options()).copied().collect();
    let mut found = Vec::new();
    for (key, source) in sources(config) {
        let Ok(Some(format)) = formats.named(&source.format) else { continue };
        let (set, default) = (fields(source), fields(&Source::default()));
        for option in of_formats.iter().filter(|option| !format.options().contains(option)) {
            if set.get(option) != default.get(option) {
                let message = format!("has no effect with format = \"{}\"", format.name());
                found.push(Fault::new(format!("{key}.{option}"), message));
            }
        }
    }
    found
}

/// All sources with their keys in the file.
fn sources(config: &PrepConfig) -> impl Iterator<Item = (String, &Source)> {
    let lists = [("source", &config.source), ("exclude", &config.exclude)];
    lists.into_iter().flat_map(|(list, sources)| {
        sources.iter().enumerate().map(move |(index, source)| (format!("{list}.{index}"), source))
    })
}

fn fields(source: &Source) -> Value {
    serde_json::to_value(source).unwrap_or_default()
}
