//! Parquet schema of a shard, and writer options.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

/// Column indices, in schema order.
pub const INPUT_IDS: usize = 0;
pub const LENGTH: usize = 1;
pub const SEGMENT_B_START: usize = 2;
pub const PAIR_LABEL: usize = 3;
/// Column names.
pub const NAMES: [&str; 4] = ["input_ids", "length", "segment_b_start", "pair_label"];

/// Compression level. A higher level would make the token IDs less than 2 % smaller.
const ZSTD_LEVEL: i32 = 3;

/// Returns the schema: `input_ids: list<uint16|uint32>`, `length: uint16`, `segment_b_start: uint16`, `pair_label:
/// uint8?`.
pub fn schema(vocabulary_size: usize) -> SchemaRef {
    let fields = [DataType::List(ids_field(vocabulary_size)), DataType::UInt16, DataType::UInt16, DataType::UInt8];
    let field = |(name, kind)| Field::new(name, kind, name == NAMES[PAIR_LABEL]);
    Arc::new(Schema::new(NAMES.into_iter().zip(fields).map(field).collect::<Vec<_>>()))
}

/// Returns the element type of `input_ids`, which has 16 bits if every id fits.
pub fn ids_field(vocabulary_size: usize) -> FieldRef {
    let kind = if vocabulary_size <= 1 << 16 { DataType::UInt16 } else { DataType::UInt32 };
    Arc::new(Field::new("element", kind, false))
}

/// Returns the writer options. Files have no embedded Arrow schema. The name of the schema root is fixed. It is the
/// name in the oldest datasets.
pub fn options() -> Result<ArrowWriterOptions, ParquetError> {
    let options = ArrowWriterOptions::new().with_properties(properties()?);
    Ok(options.with_skip_arrow_metadata(true).with_schema_root("sample".to_owned()))
}

/// Returns properties that do not depend on time, machine or library version, so that equal rows yield equal bytes.
fn properties() -> Result<WriterProperties, ParquetError> {
    Ok(WriterProperties::builder()
        .set_created_by("lambert".to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        // No row limit is needed, because `ShardWriter` ends row groups explicitly.
        .set_max_row_group_row_count(None)
        .build())
}
