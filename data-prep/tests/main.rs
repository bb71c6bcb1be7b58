//! Tests of preparation jobs, datasets, tokenizers and vocabularies, one module per subject. A single test program
//! links once. tests/hostile.rs measures the memory of its process, so it is a program of its own.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod cache;
mod common;
mod damage;
mod dataset;
mod held_out;
mod identity;
mod inputs;
mod kill;
mod listing;
mod packing;
mod prefetch;
mod prep;
mod rows;
#[path = "../../tests/support/samples.rs"]
mod samples;
mod statistics;
mod tokenizer;
mod tokenizer_files;
mod tokenizer_rules;
mod unigram_words;
mod vocab;
mod vocab_extend;
mod vocab_models;
mod wiki;
