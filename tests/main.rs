//! End-to-end tests of the two programs, one file a subject. One test program for all of them: it is linked once, and the
//! small dataset that they share is made once.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

mod bad_input;
mod chaos;
mod checkpoints;
mod closed_pipes;
mod control_channel;
mod coordinator;
mod damaged_shards;
mod data_parallel;
mod demo;
mod dependencies;
mod derail;
mod devices;
mod documents;
mod growth;
mod hosts;
mod idle_parts;
mod launched_programs;
mod live_store;
mod memory;
mod mishaps;
mod modules;
mod noise;
mod padded_vocabulary;
mod planted;
mod ramp;
mod rank_environment;
mod reference;
mod replicas;
mod resume;
#[path = "../cluster/store/tests/s3_server/mod.rs"]
mod s3_server;
mod saves;
mod several_hosts;
mod shipped_configs;
mod signals;
mod slurm;
mod stage_change;
mod store_outages;
mod support;
mod takeover;
mod trace;
mod tune;
mod unresponsive;
mod worlds;
