//! Report of the coordinator for the batch script in which it runs.

use std::ffi::OsString;
use std::path::PathBuf;

/// Environment variable with the path of the report. The batch script sets it.
const VARIABLE: &str = "LAMBERT_JOB_REPORT";

/// Facts about the run that the batch script needs after the end of the coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobReport<'a> {
    /// Step of the furthest checkpoint.
    pub step: u64,
    /// Nodes that the next start of the job excludes, the most important first.
    pub excluded: &'a [String],
}

impl JobReport<'_> {
    /// Writes the report, if a batch script has asked for it. A failure is only logged.
    pub fn write(&self) {
        let Some(path) = path(std::env::var_os(VARIABLE)) else { return };
        if let Err(error) = std::fs::write(&path, self.text()) {
            tracing::warn!("cannot write the report for the batch script to {}: {error}", path.display());
        }
    }

    /// One line for each fact: its name and its value.
    fn text(&self) -> String {
        format!("step {}\nexclude {}\n", self.step, self.excluded.join(" "))
    }
}

/// True if a batch script has asked for a report. It then excludes nodes from the next start of its job.
pub fn is_requested() -> bool {
    path(std::env::var_os(VARIABLE)).is_some()
}

/// The script sets the variable to nothing if it cannot create a file.
fn path(variable: Option<OsString>) -> Option<PathBuf> {
    variable.filter(|path| !path.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_a_line_for_each_fact() {
        let excluded = ["n3", "n1"].map(str::to_owned);
        assert_eq!(JobReport { step: 1200, excluded: &excluded }.text(), "step 1200\nexclude n3 n1\n");
        assert_eq!(path(Some(OsString::new())), None);
        assert_eq!(path(None), None);
    }
}
