//! Writing of shards and of small datasets.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, ListArray, RecordBatch, UInt8Array, UInt16Array, UInt32Array};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use arrow::error::ArrowError;
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::digest::{Digest, hex};
use super::ranges::{self, CHECKSUMS, ShardRanges};
use super::{DatasetError, MANIFEST, Manifest, NO_PAIR, Shard, schema, sha256_hex};

/// Sample to write, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample<'a> {
    /// Unmasked token IDs, including `[CLS]` and `[SEP]`. Their number is 1 to 65,535.
    pub input_ids: &'a [u32],
    /// Start of the second segment, in tokens. 0 = the sample has one segment.
    pub segment_b_start: u16,
    /// 1 = the second segment was replaced (NSP) or swapped (SOP), 0 = it was not, [`NO_PAIR`] = no pair objective.
    pub pair_label: u8,
}

/// Returns the file name of a shard, such as `shard-00000-of-00064.parquet`.
#[must_use]
pub fn shard_name(index: usize, count: usize) -> String {
    format!("shard-{index:05}-of-{count:05}.parquet")
}

/// Completed shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenShard {
    /// Entry in the manifest.
    #[serde(flatten)]
    pub shard: Shard,
    /// Checksums of the byte ranges. Earlier versions did not compute them.
    #[serde(default)]
    pub ranges: Option<ShardRanges>,
}

/// Writes one Parquet file row by row. The bytes of the file are a pure function of the rows.
pub struct ShardWriter {
    name: String,
    writer: ArrowWriter<HashingWriter>,
    schema: SchemaRef,
    ids: FieldRef,
    rows_per_group: usize,
    columns: Columns,
    groups: Vec<u64>,
    ranges: ShardRanges,
    rows: u64,
}

/// Buffered rows of a row group, by column.
#[derive(Default)]
struct Columns {
    ids: Vec<u32>,
    length: Vec<u16>,
    segment_b_start: Vec<u16>,
    /// Null without a pair objective.
    pair_label: Vec<Option<u8>>,
}

impl ShardWriter {
    /// Creates the file `folder/name`. Replaces an existing file.
    pub fn create(folder: &Path, name: &str, vocabulary_size: usize, rows: usize) -> Result<Self, DatasetError> {
        let path = folder.join(name);
        let file = File::create(&path).map_err(|source| DatasetError::Io { operation: "create", path, source })?;
        let sink = HashingWriter::new(file);
        let (schema, ids) = (schema::schema(vocabulary_size), schema::ids_field(vocabulary_size));
        let writer = schema::options()
            .and_then(|options| ArrowWriter::try_new_with_options(sink, Arc::clone(&schema), options))
            .map_err(|source| DatasetError::Parquet {
                operation: "start",
                file: name.to_owned(),
                group: None,
                source,
            })?;
        let (name, columns, rows_per_group) = (name.to_owned(), Columns::default(), rows.max(1));
        let (groups, ranges) = (Vec::new(), ShardRanges::default());
        Ok(Self { name, writer, schema, ids, rows_per_group, columns, groups, ranges, rows: 0 })
    }

    /// Appends a row.
    pub fn push(&mut self, sample: Sample<'_>) -> Result<(), DatasetError> {
        let length = sample.input_ids.len();
        if length == 0 || length > usize::from(u16::MAX) || usize::from(sample.segment_b_start) >= length {
            let message = format!("{length} tokens with the second segment at {}", sample.segment_b_start);
            return Err(DatasetError::Sample { file: self.name.clone(), row: self.rows, message });
        }
        self.columns.push(sample);
        self.rows += 1;
        if self.columns.length.len() == self.rows_per_group { self.write_group() } else { Ok(()) }
    }

    /// Writes the remaining rows and syncs the file.
    pub fn finish(mut self) -> Result<WrittenShard, DatasetError> {
        if !self.columns.length.is_empty() {
            self.write_group()?;
        }
        let Self { name, mut writer, groups, mut ranges, rows, .. } = self;
        writer.finish().and_then(|_| writer.inner_mut().sync()).map_err(|source| DatasetError::Parquet {
            operation: "finish",
            file: name.clone(),
            group: None,
            source,
        })?;
        let sink = writer.inner_mut();
        let (footer, range_sha256) = sink.end_range();
        ranges.push(footer, range_sha256);
        let (bytes, sha256) = (sink.bytes, hex(&sink.digest.clone().finalize()));
        let shard = Shard { path: name, rows, bytes, sha256, row_groups: groups };
        Ok(WrittenShard { shard, ranges: Some(ranges) })
    }

    fn write_group(&mut self) -> Result<(), DatasetError> {
        let columns = std::mem::take(&mut self.columns);
        self.groups.push(columns.length.len() as u64);
        let batch = columns.into_batch(&self.schema, &self.ids).map_err(ParquetError::from);
        let writer = &mut self.writer;
        // Without `sync`, the end of the row group could still be in a buffer of the writer.
        let written = batch.and_then(|batch| writer.write(&batch)).and_then(|()| writer.flush());
        written.and_then(|()| Ok(writer.sync()?)).map_err(|source| DatasetError::Parquet {
            operation: "write",
            file: self.name.clone(),
            group: None,
            source,
        })?;
        let (bytes, sha256) = self.writer.inner_mut().end_range();
        self.ranges.push(bytes, sha256);
        Ok(())
    }
}

impl Columns {
    fn push(&mut self, sample: Sample<'_>) {
        self.ids.extend_from_slice(sample.input_ids);
        // `ShardWriter::push` has checked the length.
        self.length.push(sample.input_ids.len() as u16);
        self.segment_b_start.push(sample.segment_b_start);
        self.pair_label.push((sample.pair_label != NO_PAIR).then_some(sample.pair_label));
    }

    fn into_batch(self, schema: &SchemaRef, ids: &FieldRef) -> Result<RecordBatch, ArrowError> {
        let ends = OffsetBuffer::from_lengths(self.length.iter().map(|length| usize::from(*length)));
        let values: ArrayRef = match ids.data_type() {
            DataType::UInt16 => Arc::new(UInt16Array::from_iter_values(self.ids.iter().map(|id| *id as u16))),
            _ => Arc::new(UInt32Array::from(self.ids)),
        };
        let columns: Vec<ArrayRef> = vec![
            Arc::new(ListArray::try_new(Arc::clone(ids), ends, values, None)?),
            Arc::new(UInt16Array::from(self.length)),
            Arc::new(UInt16Array::from(self.segment_b_start)),
            Arc::new(UInt8Array::from(self.pair_label)),
        ];
        RecordBatch::try_new(Arc::clone(schema), columns)
    }
}

/// File that computes the size and sha256 of the bytes written, in total and since the end of the last range.
struct HashingWriter {
    file: BufWriter<File>,
    digest: Sha256,
    bytes: u64,
    range_digest: Sha256,
    range_start: u64,
}

impl HashingWriter {
    fn new(file: File) -> Self {
        let file = BufWriter::with_capacity(1 << 20, file);
        Self { file, digest: Sha256::new(), bytes: 0, range_digest: Sha256::new(), range_start: 0 }
    }

    /// Ends the current range. Returns its size in bytes, and its sha256.
    fn end_range(&mut self) -> (u64, Digest) {
        let bytes = self.bytes - self.range_start;
        self.range_start = self.bytes;
        (bytes, Digest(std::mem::take(&mut self.range_digest).finalize().into()))
    }

    fn sync(&mut self) -> Result<(), ParquetError> {
        self.file.flush()?;
        Ok(self.file.get_ref().sync_all()?)
    }
}

impl Write for HashingWriter {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(buffer)?;
        self.digest.update(&buffer[..written]);
        self.range_digest.update(&buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    /// Does nothing: the file is flushed at its end.
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes a small dataset to a local directory. Distributes `samples`, in order, over `shards` files, whose numbers of
/// rows differ by at most one.
///
/// `manifest` contains the provenance. This function fills in the shards, the sample and token counts, and the
/// vocabulary entry. Returns the manifest as written.
pub fn write(
    folder: &Path,
    mut manifest: Manifest,
    vocabulary: &[u8],
    samples: &[Sample<'_>],
    shards: usize,
    rows_per_group: usize,
) -> Result<Manifest, DatasetError> {
    let io = |operation, path: PathBuf| move |source| DatasetError::Io { operation, path, source };
    std::fs::create_dir_all(folder).map_err(io("create", folder.to_owned()))?;
    manifest.shards.clear();
    let mut checksums = Vec::new();
    for index in 0..shards {
        let rows = |shard: usize| samples.len() * shard / shards;
        let name = shard_name(index, shards);
        let mut writer = ShardWriter::create(folder, &name, manifest.vocabulary.size, rows_per_group)?;
        samples[rows(index)..rows(index + 1)].iter().try_for_each(|&sample| writer.push(sample))?;
        let WrittenShard { shard, ranges } = writer.finish()?;
        manifest.shards.push(shard);
        checksums.extend(ranges);
    }
    manifest.counts.samples = samples.len() as u64;
    manifest.counts.tokens = samples.iter().map(|sample| sample.input_ids.len() as u64).sum();
    manifest.vocabulary.path = manifest.vocabulary.model.file().to_owned();
    manifest.vocabulary.bytes = vocabulary.len() as u64;
    manifest.vocabulary.sha256 = sha256_hex(vocabulary);
    let path = manifest.vocabulary.path.clone();
    let checksums = ranges::to_json(&manifest, &checksums);
    for (name, bytes) in [(path.as_str(), vocabulary), (CHECKSUMS, &checksums), (MANIFEST, &manifest.to_json())] {
        std::fs::write(folder.join(name), bytes).map_err(io("write", folder.join(name)))?;
    }
    Ok(manifest)
}
