//! Report of a dataset: counts, lengths, token frequencies and duplicates in one file.
//!
//! - [`document`]: the report as headings, tables and charts
//! - [`chart`]: charts as SVG

pub mod chart;
pub mod document;
