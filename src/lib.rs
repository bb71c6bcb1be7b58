//! The training engine of lambert: the only code of the project that knows tensors.
//!
//! Read in this order:
//!
//! - [`train`]: the loop, from a run's URL to its last checkpoint
//! - [`session`]: what a rank holds while it trains: configuration, world, control channel, store
//! - [`state`]: the training state, as tensors on one device
//! - [`kernels`]: what is computed by loops of our own, a trait with an implementor for each kind of device
//! - [`data`]: dataset to micro-batches; which sample, which micro-batch, which rank are pure functions
//! - [`masking`]: which tokens are hidden, a pure function of (seed, epoch, sample)
//! - [`input`]: a micro-batch on the device
//! - [`model`]: embeddings, encoder, heads, over the parameters of the state
//! - [`objective`]: masked language modelling and the pair objectives
//! - [`step`]: one global batch through the model: losses and gradients
//! - [`totals`]: losses and right answers, added up
//! - [`exact`]: a sum of gradients that no order of its terms changes
//! - [`gradients`]: the sum of the gradients over all ranks, beside the backward pass
//! - [`sums`]: what NCCL has chosen to sum with
//! - [`optim`]: the rules of LAMB and AdamW
//! - [`outcome`]: what a step computed, and what follows from it
//! - [`agreement`]: what ranks tell each other after a step
//! - [`guard`]: which steps change the weights, and when the run goes back; [`retreat`]: how
//! - [`stages`]: the beginning of a stage, growth, and its end at a plateau
//! - [`checkpoint`]: the training state to and from the run's store
//! - [`saved`]: a model out of a run or checkpoint, for those that only read
//! - [`evaluate`], [`fill_mask`]: what a trained model knows
//! - [`metrics`]: one record a step; [`noise`]: how noisy its gradient is; [`mod@bench`]: what a stage takes, measured
//! - [`output`]: results on standard output; [`rank_log`]: what a rank prints, in a file of its host;
//!   [`janitor`]: what its launcher leaves there, removed; `binding`: on which processors it runs
//! - [`control`]: the worker's end of the control channel; [`leave`]: the end of a worker beside threads that are stuck
//! - [`environment`]: the environment of this process
//! - `allocator`: jemalloc in place of malloc
//! - [`device`]: what a rank computes on, and what a card needs for that
//! - [`budget`]: whether micro-batches fit into the cards, and how large they are where that is left open
//! - [`torch`]: the thinnest layer over libtorch
//! - [`error`]: everything that can go wrong, and the exit code of each

pub mod agreement;
mod allocator;
pub mod bench;
mod binding;
pub mod budget;
pub mod checkpoint;
pub mod control;
pub mod data;
pub mod device;
pub mod environment;
pub mod error;
pub mod evaluate;
pub mod exact;
pub mod fill_mask;
pub mod gradients;
pub mod guard;
pub mod input;
pub mod janitor;
pub mod kernels;
pub mod leave;
pub mod masking;
pub mod metrics;
pub mod model;
pub mod noise;
pub mod objective;
pub mod optim;
pub mod outcome;
pub mod output;
pub mod rank_log;
pub mod retreat;
pub mod saved;
pub mod session;
pub mod stages;
pub mod state;
pub mod step;
pub mod sums;
pub mod torch;
pub mod totals;
pub mod train;

pub use error::Error;
