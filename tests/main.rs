//! End-to-end tests of the two programs, one module per subject. A single test program links once and prepares the
//! shared dataset once.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod bad_input;
mod batch_ramp;
mod chaos;
mod checkpoints;
mod closed_pipes;
mod control_channel;
mod coordinator;
mod coordinator_page;
mod damaged_shards;
mod data_parallel;
mod data_report;
mod demo;
mod dependencies;
mod devices;
mod divergence;
mod documents;
mod failures;
mod families;
mod goodput;
mod gpu_monitor;
mod growth;
mod hosts;
mod init;
mod launched_programs;
mod memory;
mod metrics;
mod model_card;
mod modules;
mod noise_scale;
mod notify;
mod older_formats;
mod padded_vocabulary;
mod plan;
mod progress;
mod prometheus;
mod rank_environment;
mod reference;
mod replicas;
mod report;
mod resume;
mod run_check;
#[path = "../cluster/store/tests/s3_server/mod.rs"]
mod s3_server;
mod saves;
mod scratch_ownership;
mod several_hosts;
mod shipped_configs;
mod signals;
mod slurm;
mod stage_change;
mod status;
mod store_changes;
mod store_outages;
mod support;
mod takeover;
mod trace;
mod tune;
mod unpadded;
mod unresponsive;
mod unused_modules;
mod watch;
mod words;
mod worlds;
