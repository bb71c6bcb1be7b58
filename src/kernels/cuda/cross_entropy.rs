//! Cross-entropy over the vocabulary, with the kernels of cross_entropy.cu.

use std::sync::Arc;

use tch::{Kind, Tensor};

use super::launch::{KernelArguments, KernelDevice};
use crate::kernels::{CrossEntropy, TokenTargets};
use crate::torch::operation::{self, Operation};

/// Implements [`Kernels::cross_entropy`](crate::kernels::Kernels::cross_entropy).
pub fn apply<C: KernelDevice + 'static>(device: &Arc<C>, logits: &Tensor, targets: &TokenTargets<'_>) -> CrossEntropy {
    let logits = logits.contiguous();
    let [rows, width] = logits.size()[..] else { panic!("cross-entropy: unsupported shape {:?}", logits.size()) };
    let labels = targets.labels.contiguous();
    let operation = Rows {
        device: Arc::clone(device),
        factors: targets.factors.map(Tensor::contiguous),
        count: rows as usize,
        vocabulary: targets.vocabulary as usize,
        width: width as usize,
    };
    let correct = labels.empty_like();
    // Uninitialized values on the same device, two for each row.
    let floats = || labels.empty_like().view_dtype(Kind::Float);
    let (losses, statistics) = (floats().narrow(0, 0, rows), floats());
    let arguments = KernelArguments::new().tensor(&losses).tensor(&correct).tensor(&statistics);
    let arguments = arguments.tensor(&logits).tensor(&labels).optional_tensor(operation.factors.as_ref());
    operation.launch("cross_entropy", &logits, arguments);
    let loss = operation::apply(&[&logits, &losses, &labels, &statistics], operation);
    CrossEntropy { loss, correct: correct.sum(Kind::Int64) }
}

/// Sum of the losses of all rows. The inputs are the logits, the losses, the labels and the statistics of the rows.
struct Rows<C> {
    device: Arc<C>,
    factors: Option<Tensor>,
    count: usize,
    vocabulary: usize,
    width: usize,
}

impl<C: KernelDevice> Rows<C> {
    /// Launches the kernel `name` for the dtype of `logits`, with a block for each row.
    fn launch(&self, name: &str, logits: &Tensor, arguments: KernelArguments) {
        let kernel = format!("{name}_{}", super::suffix(logits));
        super::launch(&*self.device, &kernel, self.count, arguments.u32(self.vocabulary).u32(self.width));
    }
}

impl<C: KernelDevice> Operation for Rows<C> {
    fn forward(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        let [logits, losses, labels, statistics] = inputs else { panic!("cross-entropy: wrong number of inputs") };
        let saved = [logits, labels, statistics].map(Tensor::shallow_clone);
        std::iter::once(losses.sum(Kind::Float)).chain(saved).collect()
    }

    fn backward(&self, gradient: &Tensor, saved: &[Tensor]) -> Vec<Tensor> {
        let [logits, labels, statistics] = saved else { panic!("cross-entropy: wrong number of saved tensors") };
        let (scale, of_logits) = (gradient.contiguous(), logits.empty_like());
        let arguments = KernelArguments::new().tensor(&of_logits).tensor(&scale).tensor(logits).tensor(labels);
        let arguments = arguments.optional_tensor(self.factors.as_ref()).tensor(statistics);
        self.launch("cross_entropy_backward", logits, arguments);
        vec![of_logits]
    }
}
