//! Web page of the run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Web page of the run, served by the coordinator. `lambert watch` serves the same page without the coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Watch {
    /// File for the URL of the page, mode 600; empty: no page.
    ///
    /// The URL has an access token. Each coordinator of the run rewrites the file, so it follows a requeue to another
    /// host. At the end the file is removed.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(!skip_serializing_if)]
    pub url_file: String,
    /// Port on 127.0.0.1 of the coordinator's host; 0: any free port.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(!skip_serializing_if)]
    pub port: u16,
}

fn is_zero(port: &u16) -> bool {
    *port == 0
}
