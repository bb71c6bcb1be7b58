//! Opening of datasets and reading of row groups.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use lambert_config::prep::MAX_ROW_GROUP_TOKENS;
use lambert_config::run::DatasetCache;
use lambert_plan::memory::DatasetShape;
use lambert_store::{Store, TransferObserver};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;

use super::cache::Cache;
use super::column::Column;
use super::manifest::MAX_MANIFEST_BYTES;
use super::open_shards::OpenShards;
use super::panics::catch_panics;
use super::prefetch::{Prefetch, Windows};
use super::ranges::{self, CHECKSUMS, MAX_CHECKSUMS_BYTES, ShardRanges};
use super::rejected::{MAX_REJECTED_BYTES, REJECTED, RejectedExample};
use super::samples::{RowGroup, Samples, row_groups};
use super::shard_file::ShardFile;
use super::shard_reader::{self, ShardAccess, ShardReader};
use super::{DatasetError, MANIFEST, Manifest, Shard, check, schema, sha256_hex};

/// Fraction of the cache that holds row groups ahead of the reader. A row group is evicted when the cache has been filled
/// since its download or its last use. While the reader passes the row groups ahead of it, as many others are downloaded. So
/// this fraction is below one half, and the rest also holds footers and the row groups in use.
const AHEAD_FRACTION: f64 = 0.4;

/// An open dataset. Its manifest is valid, and the file sizes match the manifest, unless the caller skipped that check.
///
/// Each row group is verified when it is first read. Without [`CHECKSUMS`], a whole shard is verified when its first row
/// group is read.
pub struct Dataset {
    pub(crate) store: Store,
    manifest: Manifest,
    sha256: String,
    groups: Vec<RowGroup>,
    cache: Cache,
    open: OpenShards,
    /// Content of [`CHECKSUMS`], once it is needed. `None` if the dataset does not have this file.
    ranges: OnceLock<Option<Vec<ShardRanges>>>,
    /// Identity of the file that contained each row group when it was verified. 0 = not verified.
    verified: Vec<AtomicU64>,
}

/// Row group that can be read.
struct OpenRowGroup {
    shard: Arc<ShardReader>,
    file: ShardFile,
    group: RowGroup,
}

impl Dataset {
    /// Opens the dataset at a directory or URL.
    pub fn open(url: &str) -> Result<Self, DatasetError> {
        Self::at(Self::store_at(url)?)
    }

    /// Like [`Dataset::open`], and reports the bytes that are read to `observer`.
    pub fn open_observed(url: &str, observer: Arc<dyn TransferObserver>) -> Result<Self, DatasetError> {
        Self::at(Self::store_at(url)?.observed_by(observer))
    }

    /// Like [`Dataset::open`], but does not check the sizes of the files. For a process of a run in which another process has
    /// checked them. A missing or truncated file causes an error when it is read.
    pub fn open_without_size_check(url: &str) -> Result<Self, DatasetError> {
        Self::described_in(Self::store_at(url)?)
    }

    fn store_at(url: &str) -> Result<Store, DatasetError> {
        Store::open(url).map_err(|source| DatasetError::Store { url: url.to_owned(), source })
    }

    /// Opens the dataset at the root of `store`.
    pub fn at(store: Store) -> Result<Self, DatasetError> {
        let dataset = Self::described_in(store)?;
        dataset.check_sizes()?;
        Ok(dataset)
    }

    /// Reads the manifest at the root of `store`.
    fn described_in(store: Store) -> Result<Self, DatasetError> {
        let url = store.url().to_owned();
        let bytes = store.get_at_most(MANIFEST, MAX_MANIFEST_BYTES).map_err(|source| match source.is_not_found() {
            true => DatasetError::NoManifest { url: url.clone() },
            false => DatasetError::Store { url: url.clone(), source },
        })?;
        let manifest =
            Manifest::from_json(&bytes).map_err(|message| DatasetError::Manifest { url: url.clone(), message })?;
        let groups = row_groups(&manifest.shards);
        let (cache, open) = (Cache::new(&DatasetCache::default()), OpenShards::new(manifest.shards.len()));
        let verified = groups.iter().map(|_| AtomicU64::new(0)).collect();
        let (sha256, ranges) = (sha256_hex(&bytes), OnceLock::new());
        Ok(Self { store, manifest, sha256, groups, cache, open, ranges, verified })
    }

    /// Uses the cache that `settings` describes. Only shards in an object store are cached.
    #[must_use]
    pub fn with_cache(self, settings: &DatasetCache) -> Self {
        Self { cache: Cache::new(settings), ..self }
    }

    /// True if the dataset is in an object store, so that its row groups are cached.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        !self.store.is_local()
    }

    /// Starts to download row groups in the background, in the order of `windows`, of which an epoch has `count`. The
    /// downloads are at most an epoch ahead of the reader. They use the fraction `share` of the cache, because several
    /// datasets can share it. Returns `None` if the shards are local, or if the cache is too small.
    ///
    /// # Errors
    /// The checksums cannot be read.
    pub fn prefetch_windows(
        self: &Arc<Self>,
        windows: Windows,
        count: u64,
        share: f64,
    ) -> Result<Option<Prefetch>, DatasetError> {
        if !self.is_remote() || count == 0 {
            return Ok(None);
        }
        let room = (self.cache.limit() as f64 * share) as u64;
        let bytes = self.manifest.shard_bytes();
        let ahead = match self.ranges()?.is_some() {
            true => ((room as f64 * AHEAD_FRACTION) as u64 / bytes.div_ceil(count).max(1)).min(count),
            // A window reads from many shards, and each shard is downloaded as a whole.
            false if bytes <= room => count,
            false => 0,
        };
        Ok((ahead > 0).then(|| Prefetch::start(self, windows, ahead)))
    }

    /// Downloads a row group, unless it is cached or another process is downloading it. If it is the first row group of
    /// the shard, also downloads what opening the shard requires.
    pub(super) fn prefetch(&self, row_group: usize, is_first: bool) -> Result<(), DatasetError> {
        let group = self.groups[row_group];
        let shard = self.access(group.shard)?;
        if is_first {
            shard.prefetch()?;
        }
        shard.prefetch_row_group(group.index)
    }

    /// Returns the index of the smallest non-empty shard, and the number of bytes that are verified when it is opened.
    /// Returns `None` if the shards are remote.
    pub(super) fn smallest_local_shard(&self) -> Result<Option<(usize, u64)>, DatasetError> {
        let sizes = self.manifest.shards.iter().enumerate().filter(|(_, shard)| shard.rows > 0);
        let Some((index, shard)) = sizes.min_by_key(|(_, shard)| shard.bytes) else { return Ok(None) };
        if shard_reader::local(&self.store, &shard.path)?.is_none() {
            return Ok(None);
        }
        let footer = self.ranges()?.map(|ranges| ranges[index].range_bytes[ranges[index].footer()]);
        Ok(Some((index, footer.unwrap_or(shard.bytes))))
    }

    /// Returns the directory or URL.
    #[must_use]
    pub fn url(&self) -> &str {
        self.store.url()
    }

    /// Returns the manifest.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the sha256 of `manifest.json`. It identifies the dataset, because the manifest has the checksums of all
    /// files.
    #[must_use]
    pub fn manifest_sha256(&self) -> &str {
        &self.sha256
    }

    /// Returns the number of samples.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        self.manifest.counts.samples
    }

    /// Returns the shape of the dataset, for memory estimates.
    #[must_use]
    pub fn sizes(&self) -> DatasetShape {
        let row_group = self.groups.iter().map(|group| group.rows).max().unwrap_or(0);
        let (vocabulary, sequence_length) = (self.manifest.vocabulary.size, self.manifest.sequence_length);
        let mean_length = (self.manifest.counts.tokens / self.rows().max(1)) as usize;
        DatasetShape { vocabulary, sequence_length, mean_length, rows: self.rows(), row_group }
    }

    /// Returns all row groups, in row order.
    #[must_use]
    pub fn row_groups(&self) -> &[RowGroup] {
        &self.groups
    }

    /// Returns the length of each row of a row group, in tokens. Reads only the length column, after the row group has
    /// been verified.
    pub fn lengths(&self, row_group: usize) -> Result<Vec<u16>, DatasetError> {
        self.checked_lengths(&self.row_group(row_group)?)
    }

    /// Reads the samples of a row group. `row_group` is an index into [`Dataset::row_groups`].
    pub fn read(&self, row_group: usize) -> Result<Samples, DatasetError> {
        let open = self.row_group(row_group)?;
        let group = open.group;
        let lengths = self.checked_lengths(&open)?;
        let tokens = lengths.iter().map(|&length| u64::from(length)).sum();
        let column = |index, values| self.column(&open, index, values);
        let [segment_b_start, pair_label] =
            [column(schema::SEGMENT_B_START, group.rows)?, column(schema::PAIR_LABEL, group.rows)?];
        let fault = |message| self.content(group, message);
        if tokens > MAX_ROW_GROUP_TOKENS {
            return Err(fault(format!("{tokens} tokens, expected at most {MAX_ROW_GROUP_TOKENS}")));
        }
        let ids = column(schema::INPUT_IDS, tokens)?;
        let mut offsets = vec![0];
        offsets.extend(lengths.iter().scan(0, |end, &length| {
            *end += usize::from(length);
            Some(*end)
        }));
        let samples = Samples {
            input_ids: ids.values.into_iter().map(|id| id as u32).collect(),
            offsets,
            segment_b_start: check::starts(&segment_b_start.values, &lengths).map_err(fault)?,
            pair_label: pair_label.labels(),
        };
        check::first_problem(&self.manifest, &samples, &ids.repetition)
            .map_or(Ok(samples), |message| Err(fault(message)))
    }

    fn checked_lengths(&self, open: &OpenRowGroup) -> Result<Vec<u16>, DatasetError> {
        let column = self.column(open, schema::LENGTH, open.group.rows)?;
        check::lengths(&self.manifest, &column.values).map_err(|message| self.content(open.group, message))
    }

    /// Checks that a column of a row group has `values` values, then reads the column.
    fn column(&self, open: &OpenRowGroup, index: usize, values: u64) -> Result<Column, DatasetError> {
        let OpenRowGroup { shard, file, group } = open;
        let metadata = shard.metadata.row_group(group.index);
        let found = metadata.column(index).num_values();
        if u64::try_from(found) != Ok(values) {
            let name = schema::NAMES[index];
            return Err(self.content(*group, format!("{name} has {found} values, expected {values}")));
        }
        let read = || Column::read(file, metadata, group.rows as usize, index);
        catch_panics(read).map_err(|error| self.parquet(*group, error))
    }

    /// Opens a row group, which is then verified.
    fn row_group(&self, row_group: usize) -> Result<OpenRowGroup, DatasetError> {
        let group = self.groups[row_group];
        let open = || {
            let shard = self.shard(group.shard)?;
            let file = self.access(group.shard)?.row_group(&shard, group.index, &self.verified[row_group])?;
            Ok(OpenRowGroup { shard, file, group })
        };
        open().map_err(|error| self.or_size_error(group.shard, error))
    }

    /// URL of the vocabulary file.
    #[must_use]
    pub fn vocabulary_url(&self) -> String {
        format!("{}/{}", self.url(), self.manifest.vocabulary.path)
    }

    /// Reads the vocabulary file and verifies its sha256.
    pub fn vocabulary(&self) -> Result<Vec<u8>, DatasetError> {
        let file = &self.manifest.vocabulary;
        let bytes = self.store.get_at_most(&file.path, file.bytes).map_err(|source| self.store_error(source))?;
        let found = sha256_hex(&bytes);
        if found != file.sha256 {
            let (url, expected) = (self.url().to_owned(), file.sha256.clone());
            return Err(DatasetError::Damaged { url, file: file.path.clone(), range: None, expected, found });
        }
        Ok(bytes.to_vec())
    }

    /// Reads `rejected.json`. Returns no examples if the file does not exist.
    pub fn rejected(&self) -> Result<Vec<RejectedExample>, DatasetError> {
        match self.store.get_at_most(REJECTED, MAX_REJECTED_BYTES) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|source| DatasetError::Rejected { file: format!("{}/{REJECTED}", self.url()), source }),
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            Err(source) => Err(self.store_error(source)),
        }
    }

    /// Returns the index of the shard that `error` reports as damaged. A damaged shard has a wrong checksum or cannot
    /// be decoded. Returns `None` for other errors,
    /// and for errors of other datasets.
    #[must_use]
    pub fn damaged_shard(&self, error: &DatasetError) -> Option<usize> {
        let file = match error {
            DatasetError::Damaged { url, file, .. } | DatasetError::Content { url, file, .. } => {
                format!("{url}/{file}")
            }
            DatasetError::Parquet { file, .. } => file.clone(),
            _ => return None,
        };
        self.manifest.shards.iter().position(|shard| file == format!("{}/{}", self.url(), shard.path))
    }

    /// Verifies the checksums of all files and reads every row.
    pub fn verify(&self) -> Result<(), DatasetError> {
        self.verify_files()?;
        self.verify_rows(|_| {})
    }

    /// Verifies the checksums of all files. Reports the sizes of the shards to the observer of the store.
    pub fn verify_files(&self) -> Result<(), DatasetError> {
        self.vocabulary()?;
        self.store.report_expected(self.manifest.shard_bytes());
        (0..self.manifest.shards.len()).try_for_each(|index| self.access(index)?.verify(&*self.shard(index)?))
    }

    /// Reads every row. Calls `progress` after each row group with the number of rows read so far.
    pub fn verify_rows(&self, mut progress: impl FnMut(u64)) -> Result<(), DatasetError> {
        (0..self.groups.len()).try_for_each(|group| {
            self.read(group)?;
            progress(self.groups[group].first_row + self.groups[group].rows);
            Ok(())
        })
    }

    fn shard(&self, index: usize) -> Result<Arc<ShardReader>, DatasetError> {
        let shard = &self.manifest.shards[index];
        self.open.get(index, |checked| {
            let (reader, checked) = self.access(index)?.open(checked)?;
            self.check_row_groups(shard, &reader.metadata)?;
            Ok((reader, checked))
        })
    }

    fn access(&self, shard: usize) -> Result<ShardAccess<'_>, DatasetError> {
        let ranges = self.ranges()?.map(|ranges| &ranges[shard]);
        Ok(ShardAccess { store: &self.store, cache: &self.cache, shard: &self.manifest.shards[shard], ranges })
    }

    /// Returns the checksums of the byte ranges of each shard. Reads them at the first call.
    fn ranges(&self) -> Result<Option<&[ShardRanges]>, DatasetError> {
        let ranges = match self.ranges.get() {
            Some(ranges) => ranges,
            None => {
                let ranges = match self.store.get_at_most(CHECKSUMS, MAX_CHECKSUMS_BYTES) {
                    Ok(bytes) => Some(ranges::parse(&bytes, &self.manifest).map_err(|message| {
                        DatasetError::Checksums { file: format!("{}/{CHECKSUMS}", self.url()), message }
                    })?),
                    // S3 denies the read of a missing object if the credentials may not list the bucket.
                    Err(lambert_store::Error::NotFound { .. } | lambert_store::Error::Denied { .. }) => None,
                    Err(source) => return Err(self.store_error(source)),
                };
                self.ranges.get_or_init(|| ranges)
            }
        };
        Ok(ranges.as_deref())
    }

    fn check_row_groups(&self, shard: &Shard, metadata: &ParquetMetaData) -> Result<(), DatasetError> {
        let found: Vec<u64> = metadata.row_groups().iter().map(|group| group.num_rows() as u64).collect();
        if found == shard.row_groups && metadata.file_metadata().schema_descr().num_columns() == 4 {
            return Ok(());
        }
        let message =
            format!("row groups {found:?}, expected {:?} (from the manifest) with four columns", shard.row_groups);
        Err(DatasetError::Content { url: self.url().to_owned(), file: shard.path.clone(), group: 0, message })
    }

    fn content(&self, group: RowGroup, message: String) -> DatasetError {
        let file = self.manifest.shards[group.shard].path.clone();
        DatasetError::Content { url: self.url().to_owned(), file, group: group.index, message }
    }

    fn parquet(&self, group: RowGroup, source: ParquetError) -> DatasetError {
        let file = format!("{}/{}", self.url(), self.manifest.shards[group.shard].path);
        DatasetError::Parquet { operation: "read", file, group: Some(group.index), source }
    }

    pub(crate) fn store_error(&self, source: lambert_store::Error) -> DatasetError {
        DatasetError::Store { url: self.url().to_owned(), source }
    }
}
