//! Metrics for Prometheus.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Metrics of the run for Prometheus, served by the coordinator at `/metrics`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Prometheus {
    /// IP address and port to listen at, e.g. `"0.0.0.0:9400"`; empty: none. Port 0: any free port.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(!skip_serializing_if)]
    pub address: String,
    /// File with the bearer token of requests, mode 600; created if missing. Empty: `~/.config/lambert/prometheus.token`.
    ///
    /// The token permits nothing but reading the metrics.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(!skip_serializing_if)]
    pub token_file: String,
    /// File for Prometheus' `file_sd_configs` that names the coordinator's address; empty: none.
    ///
    /// Each coordinator of the run rewrites it, so it follows a requeue to another host. At the end it has no target.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(!skip_serializing_if)]
    pub discovery_file: String,
}
