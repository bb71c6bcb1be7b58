//! The columns of a shard, and how the Parquet library is told to write them.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

/// Column numbers, in the order of the schema.
pub const INPUT_IDS: usize = 0;
pub const LENGTH: usize = 1;
pub const SEGMENT_B_START: usize = 2;
pub const PAIR_LABEL: usize = 3;
/// Column names.
pub const NAMES: [&str; 4] = ["input_ids", "length", "segment_b_start", "pair_label"];

/// Compression level: higher ones gain less than 2 % on token ids.
const ZSTD_LEVEL: i32 = 3;

/// `input_ids: list<uint16|uint32>`, `length: uint16`, `segment_b_start: uint16`, `pair_label: uint8?`.
pub fn schema(vocabulary_size: usize) -> SchemaRef {
    let fields = [DataType::List(ids_field(vocabulary_size)), DataType::UInt16, DataType::UInt16, DataType::UInt8];
    let field = |(name, kind)| Field::new(name, kind, name == NAMES[PAIR_LABEL]);
    Arc::new(Schema::new(NAMES.into_iter().zip(fields).map(field).collect::<Vec<_>>()))
}

/// The elements of `input_ids`: 16 bits where that is enough for every id.
pub fn ids_field(vocabulary_size: usize) -> FieldRef {
    let kind = if vocabulary_size <= 1 << 16 { DataType::UInt16 } else { DataType::UInt32 };
    Arc::new(Field::new("element", kind, false))
}

/// Options of the writer: no copy of the Arrow schema, and the root's name, as in the first datasets.
pub fn options() -> Result<ArrowWriterOptions, ParquetError> {
    let options = ArrowWriterOptions::new().with_properties(properties()?);
    Ok(options.with_skip_arrow_metadata(true).with_schema_root("sample".to_owned()))
}

/// Nothing here depends on the time, the machine or the library's version, so that equal rows give equal bytes.
fn properties() -> Result<WriterProperties, ParquetError> {
    Ok(WriterProperties::builder()
        .set_created_by("lambert".to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        // A row group ends where the writer is told so.
        .set_max_row_group_row_count(None)
        .build())
}
