//! Report of one or more runs: curves, results, failures, data and configuration.
//!
//! - [`collect`]: facts of a run, from its store; [`extra`]: losses on extra held-out datasets; [`gpus`]: values and Xid
//!   errors of its GPUs
//! - [`card`]: model card of an exported checkpoint; [`datasets`]: its training data
//! - [`document`]: the report as headings, tables, code and charts; [`html`], [`markdown`]: its formats
//! - [`chart`]: charts as SVG

pub mod card;
pub mod chart;
pub mod collect;
pub mod datasets;
pub mod document;
pub mod extra;
pub mod gpus;
pub mod html;
pub mod markdown;
