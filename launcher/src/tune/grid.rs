//! Settings of the runs of a sweep: all combinations of a grid over some keys, plus single trials.

/// A configuration key and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Key, e.g. `stage.0.learning_rate`.
    pub key: String,
    /// Value, as written after `=`.
    pub value: String,
}

impl Setting {
    fn parse(text: &str) -> Result<Self, GridError> {
        let (key, value) = text.split_once('=').ok_or_else(|| GridError::NoValue(text.to_owned()))?;
        let (key, value) = (key.trim(), value.trim());
        match key.is_empty() || value.is_empty() {
            true => Err(GridError::NoValue(text.to_owned())),
            false => Ok(Self { key: key.to_owned(), value: value.to_owned() }),
        }
    }

    /// Formats the setting as an argument of `--set`.
    pub fn to_set(&self) -> String {
        format!("{}={}", self.key, self.value)
    }

    /// Section of the configuration that the key belongs to.
    pub fn part(&self) -> &str {
        self.key.split('.').next().unwrap_or(&self.key)
    }

    /// Last component of the key.
    pub fn short(&self) -> &str {
        self.key.rsplit('.').next().unwrap_or(&self.key)
    }
}

/// Settings of one run.
pub type TrialSettings = Vec<Setting>;

/// Invalid `--grid` or `--trial` argument.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GridError {
    /// Not of the form KEY=VALUE.
    #[error("{0:?}: expected KEY=VALUE")]
    NoValue(String),
    /// A grid key without values. The grid would be empty.
    #[error("--grid {0}: expected KEY=VALUE,VALUE")]
    NoValues(String),
    /// Unclosed quote or bracket.
    #[error("{0}: unclosed quote or bracket")]
    Open(String),
    /// No settings.
    #[error("nothing to tune: expected --grid KEY=VALUE,VALUE or --trial KEY=VALUE")]
    Nothing,
    /// A key occurs in two grids.
    #[error("{0} has two --grid options; list all its values in one")]
    Twice(String),
}

/// Returns the settings of each run. The first runs are all combinations of the values in `grids` (`KEY=VALUE,VALUE`),
/// where the last key changes fastest. The other runs are `trials` (`KEY=VALUE KEY=VALUE`). Commas and spaces inside
/// quotes and brackets belong to a value.
///
/// # Errors
/// An argument is malformed, or there are no arguments.
pub fn settings(grids: &[String], trials: &[String]) -> Result<Vec<TrialSettings>, GridError> {
    let mut all: Vec<TrialSettings> = if grids.is_empty() { Vec::new() } else { vec![Vec::new()] };
    let mut keys: Vec<String> = Vec::new();
    for grid in grids {
        let Setting { key, value } = Setting::parse(grid)?;
        if keys.contains(&key) {
            return Err(GridError::Twice(key));
        }
        let values = split(&value, ',')?;
        if values.is_empty() {
            return Err(GridError::NoValues(grid.clone()));
        }
        let with = |settings: &TrialSettings, value: &String| {
            let mut settings = settings.clone();
            settings.push(Setting { key: key.clone(), value: value.clone() });
            settings
        };
        all = all.iter().flat_map(|settings| values.iter().map(move |value| with(settings, value))).collect();
        keys.push(key);
    }
    for trial in trials {
        let settings: TrialSettings =
            split(trial, ' ')?.iter().map(|text| Setting::parse(text)).collect::<Result<_, _>>()?;
        if settings.is_empty() {
            return Err(GridError::NoValue(trial.clone()));
        }
        all.push(settings);
    }
    match all.is_empty() {
        true => Err(GridError::Nothing),
        false => {
            let mut seen: Vec<TrialSettings> = Vec::new();
            all.retain(|settings| {
                !seen.contains(settings) && {
                    seen.push(settings.clone());
                    true
                }
            });
            Ok(all)
        }
    }
}

/// Splits `text` at separators outside quotes and brackets. Drops empty parts.
fn split(text: &str, separator: char) -> Result<Vec<String>, GridError> {
    let (mut parts, mut depth, mut quote) = (vec![String::new()], 0_usize, None);
    for letter in text.chars() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '"' | '\'') => quote = Some(letter),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        match parts.last_mut() {
            Some(part) if letter != separator || depth > 0 || quote.is_some() => part.push(letter),
            _ => parts.push(String::new()),
        }
    }
    if depth > 0 || quote.is_some() {
        return Err(GridError::Open(text.to_owned()));
    }
    Ok(parts.into_iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect())
}

/// Name of a run with these settings. The name contains only letters, digits, `.`, `-`, `+`, `_`, `=` and `,`, so it is
/// safe for directories and objects.
pub fn name(settings: &[Setting]) -> String {
    let parts = settings.iter().map(|setting| format!("{}={}", setting.short(), setting.value));
    let name: String = parts.collect::<Vec<_>>().join(",");
    let plain = |letter: char| letter.is_ascii_alphanumeric() || ".-+_=,".contains(letter);
    name.chars()
        .filter(|letter| !"\"' []".contains(*letter))
        .map(|letter| if plain(letter) { letter } else { '_' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(grids: &[&str], trials: &[&str]) -> Result<Vec<String>, GridError> {
        let own = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        Ok(settings(&own(grids), &own(trials))?.iter().map(|settings| name(settings)).collect())
    }

    #[test]
    fn a_grid_has_all_combinations() {
        let found = names(&["optimizer.kind=\"lamb\",\"adamw\"", "stage.0.learning_rate=1e-3, 2e-3"], &[]).unwrap();
        let expected =
            ["kind=lamb,learning_rate=1e-3", "kind=lamb,learning_rate=2e-3", "kind=adamw,learning_rate=1e-3"];
        assert_eq!((&found[..3], found.len()), (&expected.map(str::to_owned)[..], 4));
    }

    #[test]
    fn trials_are_added_once() {
        let found = names(&["a.b=1,2"], &["a.b=2", "a.b=3 c=[1, 2]", "d='x y'"]).unwrap();
        assert_eq!(found, ["b=1", "b=2", "b=3,c=1,2", "d=xy"]);
        assert_eq!(settings(&[], &["c=[1, 2]".to_owned()]).unwrap()[0][0].to_set(), "c=[1, 2]");
    }

    #[test]
    fn invalid_settings_are_rejected() {
        assert_eq!(names(&["a"], &[]), Err(GridError::NoValue("a".to_owned())));
        assert_eq!(names(&["a="], &[]), Err(GridError::NoValue("a=".to_owned())));
        assert_eq!(names(&["a=1", "a=2"], &[]), Err(GridError::Twice("a".to_owned())));
        assert_eq!(names(&[], &[" "]), Err(GridError::NoValue(" ".to_owned())));
        assert_eq!(names(&[], &[]), Err(GridError::Nothing));
        assert_eq!(names(&["a=1", "b=,"], &[]), Err(GridError::NoValues("b=,".to_owned())));
        let open = "run.name=it's optimizer.kind=1";
        assert_eq!(names(&[], &[open]), Err(GridError::Open(open.to_owned())));
    }
}
