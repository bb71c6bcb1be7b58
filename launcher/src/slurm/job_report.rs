//! Report of the coordinator for the batch script in which it runs.

use std::ffi::OsString;
use std::path::PathBuf;

/// Environment variable with the path of the report. The batch script sets it.
const VARIABLE: &str = "LAMBERT_JOB_REPORT";

/// Facts about the run that the batch script needs after the end of the coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobReport {
    /// Step of the furthest checkpoint.
    pub step: u64,
}

impl JobReport {
    /// Writes the report, if a batch script has asked for it. A failure is only logged.
    pub fn write(&self) {
        let Some(path) = path(std::env::var_os(VARIABLE)) else { return };
        if let Err(error) = std::fs::write(&path, self.text()) {
            tracing::warn!("cannot write the report for the batch script to {}: {error}", path.display());
        }
    }

    /// One line for each fact: its name and its value.
    fn text(&self) -> String {
        format!("step {}\n", self.step)
    }
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
        assert_eq!(JobReport { step: 1200 }.text(), "step 1200\n");
        assert_eq!(path(Some(OsString::new())), None);
        assert_eq!(path(None), None);
    }
}
