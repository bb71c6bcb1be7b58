//! Averages the weights of checkpoints of a run.

use bytes::Bytes;
use serde_json::Value;

use super::objects::read_reported_object;
use super::select::positions;
use super::tensors::HEADER_LENGTH_BYTES;
use super::{AttemptStep, Manifest, Rollbacks, copy, read_manifest};
use crate::error::{Error, Result};
use crate::hash;
use crate::run::{MANIFEST, WEIGHTS, in_checkpoint};
use crate::store::Store;

/// Returns the names of the newest `count` checkpoints of a run, newest first. Leaves out checkpoints that a rollback has
/// undone, and earlier checkpoints of the same step. Does not verify their objects.
///
/// # Errors
/// [`Error::TooFew`] if the run has fewer checkpoints, [`Error::Damaged`] for a damaged manifest, or another store error.
pub fn newest(run: &Store, count: usize) -> Result<Vec<String>> {
    let listed = positions(run)?;
    let rollbacks = Rollbacks::of(run, &listed)?;
    let mut found: Vec<AttemptStep> = Vec::new();
    for position in listed {
        // The listing is sorted by attempt: a step that is not below the last one was trained again.
        let is_repeated = found.last().is_some_and(|last| position.step >= last.step);
        if !rollbacks.invalidate(position) && !is_repeated && found.len() < count {
            found.push(position);
        }
    }
    if found.len() < count.max(1) {
        return Err(Error::TooFew { url: run.url().to_owned(), expected: count.max(1), found: found.len() });
    }
    Ok(found.into_iter().map(|position| position.name()).collect())
}

/// Copies the first of `checkpoints` from run `from` to run `to`, with the mean of the weights of all of them. The
/// optimizer moments are those of the first one. Returns the manifest of the copy, which has no held-out loss. Verifies
/// every object. Keeps one weights file and the sum, 8 bytes per parameter, in memory.
///
/// # Errors
/// [`Error::NoCheckpoint`] or [`Error::Damaged`] if a checkpoint is not intact, [`Error::OtherModel`] if the models differ,
/// [`Error::Exists`] if `to` has a different checkpoint with this name, or another store error. A failed call can be
/// repeated.
pub fn average(from: &Store, checkpoints: &[String], to: &Store) -> Result<Manifest> {
    let mut manifests = Vec::new();
    for name in checkpoints {
        manifests.push(read_manifest(from, name)?);
    }
    let Some(first) = manifests.first() else {
        return Err(Error::TooFew { url: from.url().to_owned(), expected: 1, found: 0 });
    };
    let mut average = first.clone();
    (average.parent, average.held_out_loss, average.best) = (None, None, None);
    average.averaged = checkpoints.to_vec();
    let bytes = |manifest: &Manifest| manifest.object(WEIGHTS).map_or(0, |entry| entry.bytes);
    from.report_expected(first.bytes() + manifests.iter().skip(1).map(bytes).sum::<u64>());
    to.report_expected(first.bytes());
    let mut sum = WeightSum::default();
    for manifest in &manifests {
        sum.add(from, manifest)?;
    }
    let weights = sum.mean(checkpoints.len());
    for entry in average.objects.iter_mut().filter(|entry| entry.path == WEIGHTS) {
        entry.sha256 = hash::sha256(&weights);
    }
    // The objects of a committed checkpoint are immutable.
    let manifest_name = in_checkpoint(&first.name(), MANIFEST);
    if to.head(&manifest_name)?.is_some() {
        return copy::check_identical(&average, to, &manifest_name).map(|()| average);
    }
    for entry in &average.objects {
        let bytes = match entry.path == WEIGHTS {
            true => weights.clone(),
            false => read_reported_object(from, first, &entry.path)?,
        };
        to.put(&in_checkpoint(&first.name(), &entry.path), bytes)?;
    }
    copy::put_manifest(&average, to)?;
    Ok(average)
}

/// Sum of weights files with the same tensors.
#[derive(Default)]
struct WeightSum {
    /// Name of the first checkpoint.
    first: String,
    /// Header of the file, with its length.
    head: Bytes,
    /// Sums of the elements of all tensors.
    sums: Vec<f64>,
}

impl WeightSum {
    fn add(&mut self, run: &Store, manifest: &Manifest) -> Result<()> {
        let (file, name) = (read_reported_object(run, manifest, WEIGHTS)?, manifest.name());
        let url = run.url_of(&in_checkpoint(&name, WEIGHTS));
        let damaged = |found: String| Error::Damaged {
            url: url.clone(),
            what: "header",
            expected: "a safetensors file of f32 tensors".to_owned(),
            found,
        };
        let end = header_end(&file).map_err(damaged)?;
        let (head, elements) = (file.slice(..end), file[end..].as_chunks::<4>().0);
        if self.sums.is_empty() {
            (self.first, self.head, self.sums) = (name, head, vec![0.0; elements.len()]);
        } else if self.head != head || self.sums.len() != elements.len() {
            return Err(Error::OtherModel { url, first: self.first.clone() });
        }
        for (sum, element) in self.sums.iter_mut().zip(elements) {
            *sum += f64::from(f32::from_le_bytes(*element));
        }
        Ok(())
    }

    /// Returns the file of the means of `count` files.
    fn mean(self, count: usize) -> Bytes {
        let mut file = Vec::with_capacity(self.head.len() + 4 * self.sums.len());
        file.extend_from_slice(&self.head);
        file.extend(self.sums.iter().flat_map(|sum| ((sum / count as f64) as f32).to_le_bytes()));
        Bytes::from(file)
    }
}

/// Returns the position after the header, or what is wrong with the file.
fn header_end(file: &[u8]) -> Result<usize, String> {
    let length = file.first_chunk::<HEADER_LENGTH_BYTES>().map(|length| u64::from_le_bytes(*length));
    let end = length.and_then(|length| usize::try_from(length).ok()?.checked_add(HEADER_LENGTH_BYTES));
    let end = end.filter(|end| *end <= file.len()).ok_or("a file that ends inside its header")?;
    let head: Value = serde_json::from_slice(&file[HEADER_LENGTH_BYTES..end]).map_err(|error| error.to_string())?;
    let tensors = head.as_object().into_iter().flatten().filter(|(name, _)| *name != "__metadata__");
    for (name, tensor) in tensors {
        if tensor["dtype"] != "F32" {
            return Err(format!("tensor {name} of type {}", tensor["dtype"]));
        }
    }
    if (file.len() - end).is_multiple_of(size_of::<f32>()) { Ok(end) } else { Err("incomplete elements".to_owned()) }
}
